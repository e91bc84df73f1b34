// The flash attention kernels against a naive one in double, for every instruction set of this CPU: random shapes, strides,
// types and masks in blocks of exactly the size they need, so that a sanitizer sees what is read beyond them.

#include "hwkv-fattn.h"
#include "testing.h"

#include <stdlib.h>

static uint64_t rng_state;

static uint32_t rng(void) {
    rng_state = rng_state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t) (rng_state >> 33);
}

static int32_t pick(int32_t lo, int32_t hi) {
    return lo + (int32_t) (rng() % (uint32_t) (hi - lo + 1));
}

static float uniform(void) {
    return (float) rng() / 1073741824.0f - 1.0f; // [-1, 1)
}

#define PICK(array) (array)[rng() % (sizeof(array) / sizeof((array)[0]))]

#define F16_MASKED 0xfc00
#define F16_NAN    0x7e00

static double f16_value(uint16_t x) {
    const int    e    = x >> 10 & 31;
    const double sign = x & 0x8000 ? -1.0 : 1.0;
    const double frac = (x & 1023) / 1024.0;
    if (e == 31) {
        return frac != 0.0 ? (double) NAN : sign * (double) INFINITY;
    }
    return sign * (e == 0 ? ldexp(frac, -14) : ldexp(1.0 + frac, e - 15));
}

// values up to about 2, now and then 0 or too small for an exponent
static uint16_t f16_random(void) {
    const uint16_t x = (uint16_t) (rng() & 0x83ff);
    return (uint16_t) (x | (rng() % 32 == 0 ? 0 : pick(8, 15)) << 10);
}

struct tensor {
    char  * data;
    size_t  nb[3]; // token or key, head, stream
};

struct problem {
    struct hwkv_fattn f;
    struct tensor q, k, v, mask;
    float * sinks;
    float * dst;
};

// rows of row_size bytes in one of the orders that llama.cpp's views have, sometimes with gaps
static struct tensor tensor_new(size_t row_size, int32_t n_row, int32_t n_head, int32_t n_stream, bool gaps, size_t align) {
    struct tensor t;
    const size_t pad = gaps ? align * (size_t) pick(0, 3) : 0;
    if (gaps && pick(0, 1)) { // heads beside each other
        t.nb[1] = row_size + pad;
        t.nb[0] = t.nb[1] * (size_t) n_head;
        t.nb[2] = t.nb[0] * (size_t) n_row;
    } else {
        t.nb[0] = row_size + pad;
        t.nb[1] = t.nb[0] * (size_t) n_row;
        t.nb[2] = t.nb[1] * (size_t) n_head;
    }
    // the last row ends the block
    const size_t size = t.nb[0] * (size_t) (n_row - 1) + t.nb[1] * (size_t) (n_head - 1) + t.nb[2] * (size_t) (n_stream - 1) + row_size;
    t.data = calloc(1, size);
    return t;
}

static char * row_at(const struct tensor * t, int32_t row, int32_t head, int32_t stream) {
    return t->data + t->nb[0] * (size_t) row + t->nb[1] * (size_t) head + t->nb[2] * (size_t) stream;
}

// bytes of the 32 values that quantised types keep together, with their factor at the front
static size_t block_size(enum hwkv_fattn_type type) {
    return type == HWKV_FATTN_Q8_0 ? 34 : 18;
}

static size_t kv_row_size(enum hwkv_fattn_type type, int32_t dim) {
    return type == HWKV_FATTN_F16 ? 2 * (size_t) dim : block_size(type) * (size_t) (dim / 32);
}

// factors of either sign, values up to about 2
static void kv_fill_row(char * row, enum hwkv_fattn_type type, int32_t dim) {
    for (size_t i = 0; i < kv_row_size(type, dim); i += 2) {
        const bool     factor = type != HWKV_FATTN_F16 && i % block_size(type) == 0;
        const uint32_t size   = type == HWKV_FATTN_Q8_0 ? 0x2000 : 0x3000;
        const uint16_t x = factor ? (uint16_t) (size | (rng() & 0x83ff)) : type == HWKV_FATTN_F16 ? f16_random() : (uint16_t) rng();
        memcpy(row + i, &x, 2);
    }
}

static double kv_value(const char * row, enum hwkv_fattn_type type, int32_t i) {
    const char * at = type == HWKV_FATTN_F16 ? row + 2 * i : row + block_size(type) * (size_t) (i / 32);
    uint16_t x;
    memcpy(&x, at, 2);
    if (type == HWKV_FATTN_F16) {
        return f16_value(x);
    }
    if (type == HWKV_FATTN_Q8_0) {
        return f16_value(x) * (double) (signed char) at[2 + i % 32];
    }
    const int pair = (unsigned char) at[2 + i % 16]; // of values 16 apart, the first in the low bits
    return f16_value(x) * (double) ((i % 32 < 16 ? pair % 16 : pair / 16) - 8);
}

static void kv_new(struct hwkv_fattn_kv * kv, struct tensor * t, const struct hwkv_fattn * f) {
    *t = tensor_new(kv_row_size(kv->type, kv->dim), f->n_kv, f->n_head_kv, f->n_stream, true, 2);
    for (int32_t i = 0; i < f->n_kv * f->n_head_kv * f->n_stream; i++) {
        kv_fill_row(row_at(t, i % f->n_kv, i / f->n_kv % f->n_head_kv, i / f->n_kv / f->n_head_kv), kv->type, kv->dim);
    }
    kv->data      = t->data;
    kv->nb_key    = t->nb[0];
    kv->nb_head   = t->nb[1];
    kv->nb_stream = t->nb[2];
}

enum mask_kind { MASK_NONE, MASK_ZERO, MASK_CAUSAL, MASK_WINDOW, MASK_SPARSE, MASK_BIAS, MASK_ALL, MASK_KINDS };

static uint16_t mask_value(enum mask_kind kind, const struct hwkv_fattn * f, int32_t token, int32_t key) {
    const int32_t pos = f->n_kv - f->n_token + token;
    switch (kind) {
        case MASK_CAUSAL: return key <= pos ? 0 : F16_MASKED; // with more tokens than keys some rows see none
        case MASK_WINDOW: return key <= pos && (key > pos - 40 || key < 4) ? 0 : F16_MASKED;
        case MASK_SPARSE: return rng() % 4 == 0 ? 0 : F16_MASKED;
        case MASK_BIAS:   return rng() % 3 == 0 ? F16_MASKED : (uint16_t) (0x8000 | f16_random());
        case MASK_ALL:    return token % 3 == 0 ? F16_MASKED : rng() % 2 ? 0x8000 : F16_MASKED; // -0 counts as 0
        default:          return 0;
    }
}

static void mask_new(struct problem * p, enum mask_kind kind) {
    struct hwkv_fattn * f = &p->f;
    p->mask.data = NULL;
    if (kind == MASK_NONE) {
        return;
    }
    f->mask_n_head   = pick(0, 3) == 0 ? f->n_head : 1;
    f->mask_n_stream = pick(0, 1) ? f->n_stream : 1;
    p->mask = tensor_new(2 * (size_t) f->n_kv, f->n_token, f->mask_n_head, f->mask_n_stream, false, 2);
    for (int32_t i = 0; i < f->n_token * f->mask_n_head * f->mask_n_stream; i++) {
        char * row = row_at(&p->mask, i % f->n_token, i / f->n_token % f->mask_n_head, i / f->n_token / f->mask_n_head);
        for (int32_t key = 0; key < f->n_kv; key++) {
            const uint16_t x = mask_value(kind, f, i % f->n_token, key);
            memcpy(row + 2 * key, &x, 2);
        }
    }
    f->mask           = p->mask.data;
    f->mask_nb_token  = p->mask.nb[0];
    f->mask_nb_head   = p->mask.nb[1];
    f->mask_nb_stream = p->mask.nb[2];
}

// q, k, v, mask and dst for the shapes in p->f
static void problem_fill(struct problem * p, enum mask_kind kind, float q_size) {
    struct hwkv_fattn * f = &p->f;
    p->q = tensor_new(sizeof(float) * (size_t) f->k.dim, f->n_token, f->n_head, f->n_stream, true, 4);
    for (int32_t i = 0; i < f->n_token * f->n_head * f->n_stream; i++) {
        float * row = (float *) (void *) row_at(&p->q, i % f->n_token, i / f->n_token % f->n_head, i / f->n_token / f->n_head);
        for (int32_t d = 0; d < f->k.dim; d++) {
            row[d] = q_size * uniform();
        }
    }
    f->q           = p->q.data;
    f->q_nb_token  = p->q.nb[0];
    f->q_nb_head   = p->q.nb[1];
    f->q_nb_stream = p->q.nb[2];
    kv_new(&f->k, &p->k, f);
    kv_new(&f->v, &p->v, f);
    mask_new(p, kind);
    p->sinks = NULL;
    if (pick(0, 3) == 0) {
        p->sinks = malloc(sizeof(float) * (size_t) f->n_head);
        for (int32_t i = 0; i < f->n_head; i++) {
            p->sinks[i] = 4.0f * uniform();
        }
    }
    f->sinks = p->sinks;
    p->dst = malloc(sizeof(float) * (size_t) (f->n_stream * f->n_token * f->n_head * f->v.dim));
    f->dst = p->dst;
}

static void problem_free(struct problem * p) {
    free(p->q.data);
    free(p->k.data);
    free(p->v.data);
    free(p->mask.data);
    free(p->sinks);
    free(p->dst);
}

static void problem_random(struct problem * p) {
    static const int32_t DIMS[][2] = { { 64, 64 }, { 64, 64 }, { 128, 128 }, { 80, 80 }, { 96, 96 }, { 192, 128 }, { 256, 256 }, { 512, 512 },
                                       { 576, 512 }, { 16, 48 } };
    static const int32_t TOKENS[]  = { 1, 1, 1, 2, 3, 8, 9, 17, 70 };
    static const int32_t SHARE[]   = { 1, 2, 3, 3, 4, 5, 6, 7, 8, 9, 16 };
    struct hwkv_fattn * f = &p->f;
    memset(p, 0, sizeof(*p));
    do {
        const int32_t * dims = PICK(DIMS);
        f->k.dim     = dims[0];
        f->v.dim     = dims[1];
        f->n_token   = PICK(TOKENS);
        f->n_head_kv = pick(1, 3);
        f->n_head    = f->n_head_kv * PICK(SHARE);
        f->n_stream  = pick(0, 3) == 0 ? pick(2, 3) : 1;
        f->n_kv      = pick(0, 3) == 0 ? pick(1, 20) : pick(0, 1) ? pick(1, 512) : pick(513, 700);
    } while ((double) f->n_token * f->n_head * f->n_stream * f->n_kv * (f->k.dim + f->v.dim) > 4e6);
    f->k.type   = f->k.dim % 32 == 0 ? (enum hwkv_fattn_type) pick(0, HWKV_FATTN_TYPES - 1) : HWKV_FATTN_F16;
    f->v.type   = f->v.dim % 32 == 0 ? (enum hwkv_fattn_type) pick(0, HWKV_FATTN_TYPES - 1) : HWKV_FATTN_F16;
    f->softcap  = pick(0, 3) == 0 ? 20.0f : 0.0f;
    f->scale    = 1.0f / sqrtf((float) f->k.dim);
    const enum mask_kind kind = (enum mask_kind) pick(0, MASK_KINDS - 1);
    f->max_bias = kind != MASK_NONE && pick(0, 3) == 0 ? 8.0f : 0.0f;
    problem_fill(p, kind, 4.0f);
}

//
// the naive one
//

static double slope_of(const struct hwkv_fattn * f, int32_t head) {
    if (f->max_bias == 0.0f) {
        return 1.0;
    }
    const int32_t n = 1 << (int) floor(log2(f->n_head));
    return head < n ? pow(pow(2.0, -(double) f->max_bias / n), head + 1) : pow(pow(2.0, -(double) f->max_bias / 2 / n), 2 * (head - n) + 1);
}

static void naive_row(const struct problem * p, int32_t stream, int32_t head, int32_t token, double * score, double * out) {
    const struct hwkv_fattn * f = &p->f;
    const int32_t head_kv = head / (f->n_head / f->n_head_kv);
    const float * q   = (const float *) (const void *) row_at(&p->q, token, head, stream);
    double        top = f->sinks ? (double) f->sinks[head] : -(double) INFINITY;
    for (int32_t j = 0; j < f->n_kv; j++) {
        const char * k = row_at(&p->k, j, head_kv, stream);
        double s = 0.0;
        for (int32_t d = 0; d < f->k.dim; d++) {
            s += (double) q[d] * kv_value(k, f->k.type, d);
        }
        s *= (double) f->scale;
        s = f->softcap != 0.0f ? (double) f->softcap * tanh(s / (double) f->softcap) : s;
        if (f->mask) {
            uint16_t m;
            memcpy(&m, row_at(&p->mask, token, head % f->mask_n_head, stream % f->mask_n_stream) + 2 * j, 2);
            s = m == F16_MASKED ? -(double) INFINITY : s + slope_of(f, head) * f16_value(m);
        }
        score[j] = s;
        top = fmax(top, s);
    }
    double sum = f->sinks ? exp((double) f->sinks[head] - top) : 0.0;
    memset(out, 0, sizeof(double) * (size_t) f->v.dim);
    for (int32_t j = 0; j < f->n_kv; j++) {
        const double w = score[j] == -(double) INFINITY ? 0.0 : exp(score[j] - top);
        for (int32_t d = 0; w != 0.0 && d < f->v.dim; d++) {
            out[d] += w * kv_value(row_at(&p->v, j, head_kv, stream), f->v.type, d);
        }
        sum += w;
    }
    for (int32_t d = 0; d < f->v.dim; d++) {
        out[d] = sum == 0.0 ? 0.0 : out[d] / sum;
    }
}

// the naive result, to be freed
static float * naive(const struct problem * p) {
    const struct hwkv_fattn * f = &p->f;
    const int32_t n = f->n_stream * f->n_token * f->n_head;
    float  * result = malloc(sizeof(float) * (size_t) (n * f->v.dim));
    double * score  = malloc(sizeof(double) * (size_t) f->n_kv);
    double * out    = malloc(sizeof(double) * (size_t) f->v.dim);
    for (int32_t i = 0; i < n; i++) {
        naive_row(p, i / f->n_head / f->n_token, i % f->n_head, i / f->n_head % f->n_token, score, out);
        for (int32_t d = 0; d < f->v.dim; d++) {
            result[i * f->v.dim + d] = (float) out[d];
        }
    }
    free(score);
    free(out);
    return result;
}

static size_t dst_size(const struct problem * p) {
    return sizeof(float) * (size_t) (p->f.n_stream * p->f.n_token * p->f.n_head * p->f.v.dim);
}

// largest difference of dst from what is expected; infinite if something is NaN
static double distance(const struct problem * p, const float * expected) {
    double worst = 0.0;
    for (size_t i = 0; i < dst_size(p) / sizeof(float); i++) {
        const double e = fabs((double) p->dst[i] - (double) expected[i]);
        worst = e <= worst ? worst : isnan(e) ? (double) INFINITY : e;
    }
    return worst;
}

static double naive_error(const struct problem * p) {
    float * expected = naive(p);
    const double worst = distance(p, expected);
    free(expected);
    return worst;
}

//
// cases
//

// all items as nth threads would do them, one after the other; the last item first if backwards
static void compute(const struct problem * p, int32_t nth, bool backwards) {
    struct hwkv_fattn_plan plan;
    CHECK(hwkv_fattn_plan_init(&plan, &p->f));
    void * work = malloc(hwkv_fattn_plan_size(&plan, nth));
    for (int32_t i = 0; i < plan.n_item; i++) {
        hwkv_fattn_item(&p->f, &plan, work, backwards ? plan.n_item - 1 - i : i, i % nth, nth);
    }
    for (int32_t i = 0; i < nth; i++) {
        hwkv_fattn_merge(&p->f, &plan, work, i, nth);
    }
    free(work);
}

static void describe(const struct problem * p, uint64_t seed, double error) {
    const struct hwkv_fattn * f = &p->f;
    fprintf(stderr, "    seed %llu: %d tokens, %d/%d heads, %d streams, %d keys, dims %d %d, types %d %d, mask %d, softcap %g, bias %g, "
            "sinks %d: error %g\n", (unsigned long long) seed, (int) f->n_token, (int) f->n_head, (int) f->n_head_kv, (int) f->n_stream,
            (int) f->n_kv, (int) f->k.dim, (int) f->v.dim, (int) f->k.type, (int) f->v.type, f->mask != NULL, (double) f->softcap,
            (double) f->max_bias, f->sinks != NULL, error);
}

// values are up to 2: float sums of scores around 10 leave some 1e-6
#define TOLERANCE 2e-5

// every kernel against the naive one; describes what differs, with the seed
static void test_kernels(struct problem * p, uint64_t seed, double * worst) {
    float * expected = naive(p);
    float * first    = malloc(dst_size(p));
    for (int32_t i = 0; hwkv_fattn_kernel_name(i); i++) {
        CHECK(hwkv_fattn_kernel_set(i));
        memset(p->dst, 0xff, dst_size(p)); // NaN where nothing is written
        compute(p, 1, false);
        const double error = distance(p, expected);
        CHECK(error < TOLERANCE);
        if (!(error < TOLERANCE)) {
            describe(p, seed, error);
        }
        worst[i] = fmax(worst[i], error);

        // the number of threads and the order change no bit
        memcpy(first, p->dst, dst_size(p));
        memset(p->dst, 0xff, dst_size(p));
        compute(p, 3, true);
        CHECK(memcmp(first, p->dst, dst_size(p)) == 0);
    }
    free(expected);
    free(first);
}

static void test_shape(uint64_t seed, double * worst) {
    struct problem p;
    rng_state = seed;
    problem_random(&p);
    test_kernels(&p, seed, worst);
    problem_free(&p);
}

static void problem_init(struct problem * p, int32_t n_token, int32_t n_kv) {
    memset(p, 0, sizeof(*p));
    p->f.n_token   = n_token;
    p->f.n_head    = 6;
    p->f.n_head_kv = 2;
    p->f.n_stream  = 1;
    p->f.n_kv      = n_kv;
    p->f.k.dim     = 64;
    p->f.v.dim     = 64;
    p->f.scale     = 0.125f;
}

static void problem_simple(struct problem * p, int32_t n_token, int32_t n_kv, enum mask_kind kind, float q_size) {
    problem_init(p, n_token, n_kv);
    problem_fill(p, kind, q_size);
}

// every pair of types: as many query rows of a head as are few, one more, and many; dims that end in a part of what registers hold
static void test_types(double * worst) {
    static const int32_t DIMS[] = { 32, 64, 96, 128, 160 };
    for (uint64_t i = 0; i < HWKV_FATTN_TYPES * HWKV_FATTN_TYPES * 10; i++) {
        struct problem p;
        rng_state = i;
        problem_init(&p, i % 10 < 9 ? 1 : 23, pick(130, 300));
        p.f.n_head = p.f.n_head_kv * (int32_t) (i % 10 < 9 ? i % 10 + 1 : 3);
        p.f.k.type = (enum hwkv_fattn_type) (i / 10 % HWKV_FATTN_TYPES);
        p.f.v.type = (enum hwkv_fattn_type) (i / 10 / HWKV_FATTN_TYPES);
        p.f.k.dim  = PICK(DIMS);
        p.f.v.dim  = PICK(DIMS);
        problem_fill(&p, MASK_CAUSAL, 4.0f);
        test_kernels(&p, i, worst);
        problem_free(&p);
    }
}

// scores of +-1e6 and more: the softmax is a choice of one key, and nothing is NaN
static void test_large_scores(void) {
    for (int32_t n_token = 1; n_token <= 65; n_token += 64) {
        struct problem p;
        rng_state = 7;
        problem_simple(&p, n_token, 300, MASK_CAUSAL, 1e30f);
        p.f.sinks = NULL;
        compute(&p, 1, false);
        CHECK(naive_error(&p) < TOLERANCE);
        p.f.softcap = 30.0f;
        compute(&p, 1, false);
        CHECK(naive_error(&p) < 1e-4); // many keys share the cap, some by a hair
        problem_free(&p);
    }
}

// one token of a problem, of one stream, alone; the result goes to dst
static struct hwkv_fattn one_token(const struct hwkv_fattn * f, int32_t stream, int32_t token, float * dst) {
    struct hwkv_fattn one = *f;
    one.n_token  = 1;
    one.n_stream = 1;
    one.q      += (size_t) token * f->q_nb_token + (size_t) stream * f->q_nb_stream;
    one.k.data += (size_t) stream * f->k.nb_stream;
    one.v.data += (size_t) stream * f->v.nb_stream;
    if (f->mask) {
        one.mask += (size_t) token * f->mask_nb_token + (size_t) (stream % f->mask_n_stream) * f->mask_nb_stream;
        one.mask_n_stream = 1;
    }
    one.dst = dst;
    return one;
}

// in a short prompt every token has the bits that it has alone
static void test_short_prompt(uint64_t seed) {
    struct problem p;
    rng_state = seed;
    do {
        problem_random(&p);
        if (p.f.n_token > 1 && p.f.n_token < 64 && p.f.n_kv <= 512) {
            break;
        }
        problem_free(&p);
    } while (true);
    compute(&p, 1, false);
    const size_t n = (size_t) (p.f.n_head * p.f.v.dim);
    float * alone = malloc(n * sizeof(float));
    for (int32_t i = 0; i < p.f.n_stream * p.f.n_token; i++) {
        const struct problem one = { .f = one_token(&p.f, i / p.f.n_token, i % p.f.n_token, alone) };
        compute(&one, 1, false);
        CHECK(memcmp(alone, p.dst + (size_t) i * n, n * sizeof(float)) == 0);
    }
    free(alone);
    problem_free(&p);
}

// what no row sees is not read: NaN there does no harm
static void test_masked_nan(void) {
    for (int32_t n_token = 1; n_token <= 65; n_token += 64) {
        struct problem p;
        rng_state = 11;
        problem_simple(&p, n_token, 200, MASK_ZERO, 4.0f);
        for (int32_t j = 0; j < 200; j += 3) {
            const uint16_t nan = F16_NAN, masked = F16_MASKED;
            for (int32_t h = 0; h < 2 * 64; h++) {
                memcpy(row_at(&p.k, j, h / 64, 0) + 2 * (h % 64), &nan, 2);
                memcpy(row_at(&p.v, j, h / 64, 0) + 2 * (h % 64), &nan, 2);
            }
            for (int32_t i = 0; i < n_token * p.f.mask_n_head; i++) {
                memcpy(row_at(&p.mask, i % n_token, i / n_token, 0) + 2 * j, &masked, 2);
            }
        }
        compute(&p, 1, false);
        CHECK(naive_error(&p) < TOLERANCE);
        problem_free(&p);
    }
}

static void test_refused(void) {
    struct problem p;
    struct hwkv_fattn_plan plan;
    rng_state = 13;
    problem_simple(&p, 1, 10, MASK_NONE, 1.0f);
    CHECK(hwkv_fattn_plan_init(&plan, &p.f));
    p.f.k.dim = 72;
    CHECK(!hwkv_fattn_plan_init(&plan, &p.f));
    p.f.k.dim  = 80;
    CHECK(hwkv_fattn_plan_init(&plan, &p.f));
    for (int i = 0; i < HWKV_FATTN_TYPES; i++) {
        p.f.k.type = p.f.v.type = (enum hwkv_fattn_type) i;
        CHECK(hwkv_fattn_plan_init(&plan, &p.f) == (i == HWKV_FATTN_F16));
    }
    p.f.k.dim  = 64;
    p.f.n_head = 7;
    CHECK(!hwkv_fattn_plan_init(&plan, &p.f));
    problem_free(&p);
}

int main(void) {
    double worst[8] = { 0 };
    for (uint64_t seed = 0; seed < 150; seed++) {
        test_shape(seed, worst);
    }
    test_types(worst);
    for (int32_t i = 0; hwkv_fattn_kernel_name(i); i++) {
        printf("kernel %s: largest error %.2g\n", hwkv_fattn_kernel_name(i), worst[i]);
        CHECK(hwkv_fattn_kernel_set(i));
        test_large_scores();
        test_masked_nan();
        for (uint64_t seed = 0; seed < 40; seed++) {
            test_short_prompt(seed);
        }
    }
    CHECK(!hwkv_fattn_kernel_set(-1));
    CHECK(!hwkv_fattn_kernel_set(99));
    test_refused();
    return testing_result();
}
