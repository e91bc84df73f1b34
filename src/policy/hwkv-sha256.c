// SHA-256 as in FIPS 180-4.

#include "hwkv-impl.h"

#include <string.h>

// fractional parts of the cube roots of the first 64 primes
static const uint32_t K[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2,
};

static uint32_t rotr(uint32_t x, int n) {
    return (x >> n) | (x << (32 - n));
}

// Round i + j. Instead of moving eight words along, the next round is given them under shifted names.
#define ROUND(a, b, c, d, e, f, g, h, j)                                                                                      \
    do {                                                                                                                      \
        const uint32_t t1 = (h) + (rotr(e, 6) ^ rotr(e, 11) ^ rotr(e, 25)) + ((g) ^ ((e) & ((f) ^ (g)))) + K[i + (j)] + w[j]; \
        (d) += t1;                                                                                                            \
        (h) = t1 + (rotr(a, 2) ^ rotr(a, 13) ^ rotr(a, 22)) + (((a) & (b)) | ((c) & ((a) | (b))));                            \
    } while (0)

// The next 16 words of the message schedule in place of the last 16.
static void schedule(uint32_t w[16]) {
    for (int i = 0; i < 16; i++) {
        const uint32_t w1  = w[(i + 1) & 15];
        const uint32_t w14 = w[(i + 14) & 15];
        w[i] += (rotr(w1, 7) ^ rotr(w1, 18) ^ (w1 >> 3)) + w[(i + 9) & 15] + (rotr(w14, 17) ^ rotr(w14, 19) ^ (w14 >> 10));
    }
}

static void compress(uint32_t state[8], const unsigned char block[64]) {
    uint32_t w[16];
    for (int i = 0; i < 16; i++) {
        w[i] = (uint32_t) block[4*i] << 24 | (uint32_t) block[4*i + 1] << 16 | (uint32_t) block[4*i + 2] << 8 | block[4*i + 3];
    }
    uint32_t a = state[0], b = state[1], c = state[2], d = state[3];
    uint32_t e = state[4], f = state[5], g = state[6], h = state[7];
    for (int i = 0; i < 64; i += 16) {
        if (i > 0) {
            schedule(w);
        }
        ROUND(a, b, c, d, e, f, g, h, 0);
        ROUND(h, a, b, c, d, e, f, g, 1);
        ROUND(g, h, a, b, c, d, e, f, 2);
        ROUND(f, g, h, a, b, c, d, e, 3);
        ROUND(e, f, g, h, a, b, c, d, 4);
        ROUND(d, e, f, g, h, a, b, c, 5);
        ROUND(c, d, e, f, g, h, a, b, 6);
        ROUND(b, c, d, e, f, g, h, a, 7);
        ROUND(a, b, c, d, e, f, g, h, 8);
        ROUND(h, a, b, c, d, e, f, g, 9);
        ROUND(g, h, a, b, c, d, e, f, 10);
        ROUND(f, g, h, a, b, c, d, e, 11);
        ROUND(e, f, g, h, a, b, c, d, 12);
        ROUND(d, e, f, g, h, a, b, c, 13);
        ROUND(c, d, e, f, g, h, a, b, 14);
        ROUND(b, c, d, e, f, g, h, a, 15);
    }
    state[0] += a;
    state[1] += b;
    state[2] += c;
    state[3] += d;
    state[4] += e;
    state[5] += f;
    state[6] += g;
    state[7] += h;
}

void hwkv_sha256_init(struct hwkv_sha256 * s) {
    static const uint32_t h0[8] = {
        0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19,
    };
    memset(s, 0, sizeof(*s));
    memcpy(s->h, h0, sizeof(h0));
}

void hwkv_sha256_update(struct hwkv_sha256 * s, const void * data, size_t size) {
    const unsigned char * p = data;
    size_t fill = (size_t) (s->n % 64);
    s->n += size;
    while (size > 0) {
        if (fill == 0 && size >= 64) {
            compress(s->h, p);
            p    += 64;
            size -= 64;
            continue;
        }
        const size_t take = size < 64 - fill ? size : 64 - fill;
        memcpy(s->buf + fill, p, take);
        fill += take;
        p    += take;
        size -= take;
        if (fill == 64) {
            compress(s->h, s->buf);
            fill = 0;
        }
    }
}

void hwkv_sha256_string(struct hwkv_sha256 * s, const char * text) {
    hwkv_sha256_update(s, text, strlen(text) + 1);
}

void hwkv_sha256_i64(struct hwkv_sha256 * s, int64_t value) {
    unsigned char bytes[8];
    for (int i = 0; i < 8; i++) {
        bytes[i] = (unsigned char) ((uint64_t) value >> (8 * i));
    }
    hwkv_sha256_update(s, bytes, sizeof(bytes));
}

void hwkv_sha256_final(struct hwkv_sha256 * s, char hex[65]) {
    static const char digits[] = "0123456789abcdef";
    const uint64_t n_bits = s->n * 8;
    static const unsigned char pad[64] = { 0x80 };
    hwkv_sha256_update(s, pad, (size_t) (s->n % 64 < 56 ? 56 - s->n % 64 : 120 - s->n % 64));
    unsigned char length[8];
    for (int i = 0; i < 8; i++) {
        length[i] = (unsigned char) (n_bits >> (56 - 8 * i));
    }
    hwkv_sha256_update(s, length, sizeof(length));
    for (int i = 0; i < 64; i++) {
        hex[i] = digits[(s->h[i / 8] >> (28 - 4 * (i % 8))) & 15];
    }
    hex[64] = '\0';
}

bool hwkv_is_hex64(const char * text) {
    return strlen(text) == 64 && strspn(text, "0123456789abcdef") == 64;
}
