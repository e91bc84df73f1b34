#include "hwkv-hash.h"

#include <string.h>

uint64_t hwkv_mix(uint64_t x) {
    x ^= x >> 30;
    x *= 0xbf58476d1ce4e5b9u;
    x ^= x >> 27;
    x *= 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

uint64_t hwkv_hash(const void * data, size_t size, uint64_t seed) {
    const uint8_t * p = data;

    // every step is a permutation of its lane, so that no change of one word is lost
    uint64_t lane[4] = { seed + 1, seed + 2, seed + 3, seed + 4 };

    size_t i = 0;
    for (; i + 32 <= size; i += 32) {
        uint64_t w[4];
        memcpy(w, p + i, sizeof(w));
        for (int j = 0; j < 4; j++) {
            lane[j]  = (lane[j] ^ w[j]) * 0x9e3779b97f4a7c15u;
            lane[j] ^= lane[j] >> 29;
        }
    }

    uint8_t rest[32] = { 0 };
    if (size > i) {
        memcpy(rest, p + i, size - i);
    }
    for (int j = 0; j < 4; j++) {
        uint64_t w;
        memcpy(&w, rest + 8 * j, sizeof(w));
        lane[j] = hwkv_mix(lane[j] ^ w);
    }

    uint64_t res = hwkv_mix(size ^ seed);
    for (int j = 0; j < 4; j++) {
        res = hwkv_mix(res ^ lane[j]);
    }
    return res;
}
