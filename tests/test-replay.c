// The nested replay against slow double-precision attention, on every instruction set of this CPU.
// usage: test-replay [--time]

#define _POSIX_C_SOURCE 200809L

#include "hwkv-replay-impl.h"
#include "replay-fixture.h"
#include "testing.h"

#include <time.h>

// float sums of some thousand terms that cancel little; values are at most 1
#define TOLERANCE 1e-5

static int replay(const struct hwkv_replay_kernel * kernel, struct problem * p, struct hwkv_error * err) {
    return hwkv_replay_with(kernel, &p->head, &p->params, p->q, p->pos, p->n_query, p->out, p->mass, err);
}

static void spoil(struct problem * p) {
    memset(p->out,  0xFF, (size_t) p->n_out * (size_t) p->head.dim_v * sizeof(*p->out));
    memset(p->mass, 0xFF, (size_t) p->n_out * sizeof(*p->mass));
}

// largest distance of an output or a mass from what was expected; NaN counts as infinite
static double distance(const struct problem * p) {
    double worst = 0.0;
    for (size_t i = 0; i < (size_t) p->n_out * (size_t) p->head.dim_v; i++) {
        const double far = fabs((double) p->out[i] - p->expected_out[i]);
        worst = isnan(far) ? HUGE_VAL : fmax(worst, far);
    }
    for (size_t i = 0; i < (size_t) p->n_out; i++) {
        const double far = fabs((double) p->mass[i] - p->expected_mass[i]);
        worst = isnan(far) ? HUGE_VAL : fmax(worst, far);
    }
    return worst;
}

static double check_oracle(const struct shape * shape, uint64_t seed) {
    const struct hwkv_replay_kernel * kernel;
    struct problem * p = problem_new(shape, seed);
    double worst = 0.0;
    problem_solve(p);
    for (int32_t i = 0; (kernel = hwkv_replay_kernel(i)) != NULL; i++) {
        struct hwkv_error err = { 0 };
        spoil(p);
        CHECK_ERR(replay(kernel, p, &err), 0);
        const double far = distance(p);
        CHECK(far <= TOLERANCE);
        if (!(far <= TOLERANCE)) {
            fprintf(stderr, "    %s: off by %g (seed %llu: %d positions, %d queries x %d, dims %d and %d, %d sinks, softcap %g) %s\n",
                    kernel->name, far, (unsigned long long) seed, (int) shape->n_pos, (int) shape->n_query, (int) shape->n_q_head,
                    (int) shape->dim_k, (int) shape->dim_v, (int) shape->sinks, (double) shape->softcap, err.msg);
        }
        worst = fmax(worst, far);
    }
    problem_free(p);
    return worst;
}

static void test_random_shapes(void) {
    static const int32_t dims[] = { 1, 2, 3, 7, 16, 17, 33, 64, 80, 96, 128, 255, 256 };
    double worst = 0.0;
    for (uint64_t seed = 1; seed <= 40; seed++) {
        uint64_t state = seed * UINT64_C(0xD1342543DE82EF95) + 1;
        struct shape s = {
            .n_pos = random_int(&state, 1, 350), .n_query = random_int(&state, 1, 5), .n_q_head = random_int(&state, 1, 16),
            .dim_k = dims[random_int(&state, 0, 12)], .dim_v = dims[random_int(&state, 0, 12)], .sinks = random_int(&state, 0, 8),
            .softcap = random_int(&state, 0, 2) ? 0.0f : (float) random_int(&state, 1, 50), .sink_logit = random_int(&state, 0, 2) == 0,
        };
        const int32_t n = random_int(&state, 0, 7);
        int32_t w = s.sinks;
        for (int32_t i = 0; i < n; i++) {
            w += random_int(&state, 1, 90);
            s.codebook[i] = w;
        }
        s.codebook[n] = HWKV_FULL;
        worst = fmax(worst, check_oracle(&s, seed));
    }
    printf("random shapes: at most %.2g from the oracle\n", worst);
}

// windows that end at, before and after the ends of blocks, with and without sinks; sinks over several blocks
static void test_boundaries(void) {
    static const int32_t sinks[] = { 0, 1, 4, 63, 64, 65, 130 };
    for (size_t i = 0; i < sizeof(sinks) / sizeof(sinks[0]); i++) {
        for (int32_t n_pos = 255; n_pos <= 258; n_pos++) {
            const int32_t      s     = sinks[i];
            const struct shape shape = {
                .n_pos = n_pos, .n_query = 6, .n_q_head = 3, .dim_k = 8, .dim_v = 5, .sinks = s,
                .codebook = { s + 1, s + 2, s + 63, s + 64, s + 65, s + 127, s + 128, HWKV_FULL },
            };
            check_oracle(&shape, (uint64_t) n_pos);
        }
    }
}

// Entries that differ in type alone have the same window: the same output, at the end of a block as well as inside one.
static void test_equal_windows(void) {
    for (int32_t s = 0; s < 70; s += 23) {
        const struct shape shape = {
            .n_pos = 257, .n_query = 40, .n_q_head = 2, .dim_k = 8, .dim_v = 5, .sinks = s,
            .codebook = { s + 1, s + 1, s + 64, s + 64, s + 64, s + 129, s + 129, HWKV_FULL },
        };
        check_oracle(&shape, (uint64_t) s);
        struct problem * p = problem_new(&shape, (uint64_t) s);
        CHECK_ERR(replay(hwkv_replay_kernel(0), p, NULL), 0);
        for (int32_t i = 0; i < p->n_out; i++) {
            const int32_t ic = i % p->params.n_codebook;
            if (ic > 0 && p->codebook[ic].window == p->codebook[ic - 1].window) {
                CHECK(p->mass[i] == p->mass[i - 1]);
                for (int32_t j = 0; j < p->head.dim_v; j++) {
                    CHECK(p->out[i * p->head.dim_v + j] == p->out[(i - 1) * p->head.dim_v + j]);
                }
            }
        }
        problem_free(p);
    }
}

// the length calibration works at
static void test_long(void) {
    const struct shape s = { .n_pos = 8192, .n_query = 3, .n_q_head = 1, .dim_k = 24, .dim_v = 8, .sinks = 4, .codebook = { 256, 1024, 4096, HWKV_FULL } };
    printf("8192 positions: %.2g from the oracle\n", check_oracle(&s, 1));
}

// Whole numbers and powers of two as scale, so that the logits are the same in float and double.
static void test_large_logits(void) {
    static const float scales[] = { 1.0f, 64.0f, 0x1p100f };
    for (size_t i = 0; i < sizeof(scales) / sizeof(scales[0]); i++) {
        for (int32_t sinks = 0; sinks <= 4; sinks += 4) {
            const struct shape s = {
                .n_pos = 300, .n_query = 6, .n_q_head = 3, .dim_k = 16, .dim_v = 24, .sinks = sinks,
                .codebook = { 5, 40, 64, 200, HWKV_FULL }, .scale = scales[i], .whole = 4,
            };
            check_oracle(&s, 7);
        }
    }
}

// Products beyond float: no NaN, and nothing outside the values.
static void test_overflow(void) {
    const struct shape s = { .n_pos = 200, .n_query = 6, .n_q_head = 3, .dim_k = 16, .dim_v = 8, .codebook = { 5, 40, 100, HWKV_FULL } };
    const struct hwkv_replay_kernel * kernel;
    for (int32_t ik = 0; (kernel = hwkv_replay_kernel(ik)) != NULL; ik++) {
        for (int32_t mode = 0; mode < 4; mode++) {
            struct problem * p = problem_new(&s, 11);
            p->head.softcap = mode & 1 ? 30.0f : 0.0f;
            p->params.sinks = mode & 2 ? 4 : 0;
            for (int32_t i = 0; i < s.n_pos * s.dim_k; i++) {
                p->k[i] *= 1e30f;
            }
            for (int32_t i = 0; i < s.n_query * s.n_q_head * s.dim_k; i++) {
                p->q[i] *= 1e30f;
            }
            spoil(p);
            CHECK_ERR(replay(kernel, p, NULL), 0);
            bool ok = true;
            for (int32_t i = 0; i < p->n_out * s.dim_v; i++) {
                ok = ok && fabsf(p->out[i]) <= 1.0f + 1e-6f;
            }
            for (int32_t i = 0; i < p->n_out; i++) {
                ok = ok && p->mass[i] >= 0.0f && p->mass[i] <= 1.0f;
            }
            CHECK(ok);
            problem_free(p);
        }
    }
}

static void test_zero_vectors(void) {
    const struct shape s = { .n_pos = 150, .n_query = 4, .n_q_head = 2, .dim_k = 9, .dim_v = 7, .sinks = 2, .codebook = { 3, 70, HWKV_FULL } };
    for (int32_t which = 0; which < 3; which++) {
        struct problem * p = problem_new(&s, 5);
        float      * zero = which == 0 ? p->q : which == 1 ? p->k : p->v;
        const size_t n    = which == 0 ? 4 * 2 * 9 : which == 1 ? 150 * 9 : 150 * 7;
        memset(zero, 0, n * sizeof(*zero));
        problem_solve(p);
        spoil(p);
        CHECK_ERR(hwkv_replay(&p->head, &p->params, p->q, p->pos, p->n_query, p->out, p->mass, NULL), 0);
        CHECK(distance(p) <= TOLERANCE);
        problem_free(p);
    }
}

// One token: its value, whatever the logit. A window as long as the history: the bits of full, and nothing omitted.
static void test_single_and_whole(void) {
    const struct shape s = { .n_pos = 130, .n_query = 8, .n_q_head = 2, .dim_k = 12, .dim_v = 10, .codebook = { 1, 130, 200, HWKV_FULL } };
    const struct hwkv_replay_kernel * kernel;
    struct problem * p = problem_new(&s, 3);
    for (int32_t ik = 0; (kernel = hwkv_replay_kernel(ik)) != NULL; ik++) {
        spoil(p);
        CHECK_ERR(replay(kernel, p, NULL), 0);
        for (int32_t i = 0; i < 8 * 2; i++) {
            const float * out  = p->out + (size_t) i * 4 * 10;
            const float * full = out + 3 * 10;
            CHECK(memcmp(out,      p->v + (size_t) p->pos[i / 2] * 10, 10 * sizeof(float)) == 0);
            CHECK(memcmp(out + 10, full, 10 * sizeof(float)) == 0);
            CHECK(memcmp(out + 20, full, 10 * sizeof(float)) == 0);
            CHECK(p->mass[i * 4 + 1] == 0.0f && p->mass[i * 4 + 2] == 0.0f && p->mass[i * 4 + 3] == 0.0f);
        }
    }
    problem_free(p);
}

// A mass far below the resolution of 1 - x in float.
static void test_small_mass(void) {
    const struct shape s = { .n_pos = 100, .n_query = 1, .n_q_head = 1, .dim_k = 1, .dim_v = 1, .codebook = { 10, 50, HWKV_FULL }, .scale = 1.0f };
    struct problem * p = problem_new(&s, 1);
    for (int32_t i = 0; i < 100; i++) {
        p->k[i] = i >= 90 ? 40.0f : 0.0f;
    }
    p->q[0] = 1.0f;
    CHECK_ERR(hwkv_replay(&p->head, &p->params, p->q, p->pos, 1, p->out, p->mass, NULL), 0);
    CHECK_NEAR((double) p->mass[0] / (9.0 * exp(-40.0)), 1.0, 1e-5);
    CHECK_NEAR((double) p->mass[1] / (5.0 * exp(-40.0)), 1.0, 1e-5);
    CHECK(p->mass[2] == 0.0f);
    problem_free(p);
}

// Threads, chunks and neighbours leave every bit as it is; mass is optional.
static void test_same_bits(void) {
    const struct shape s = {
        .n_pos = 700, .n_query = 37, .n_q_head = 3, .dim_k = 80, .dim_v = 40, .sinks = 4,
        .codebook = { 17, 100, 333, HWKV_FULL }, .softcap = 20.0f, .sink_logit = true,
    };
    const struct hwkv_replay_kernel * kernel;
    struct problem * p = problem_new(&s, 9);
    const size_t n_one = (size_t) p->n_out / 37 * 40;
    float * reference = malloc(37 * n_one * sizeof(float));
    for (int32_t ik = 0; (kernel = hwkv_replay_kernel(ik)) != NULL; ik++) {
        p->params.n_thread = 1;
        CHECK_ERR(replay(kernel, p, NULL), 0);
        memcpy(reference, p->out, 37 * n_one * sizeof(float));
        for (int32_t n = 2; n <= 64; n = n * 2 + 1) {
            spoil(p);
            p->params.n_thread = n;
            CHECK_ERR(replay(kernel, p, NULL), 0);
            CHECK(memcmp(p->out, reference, 37 * n_one * sizeof(float)) == 0);
        }
        p->params.n_thread = 1;
        spoil(p);
        for (size_t i = 0; i < 37; i++) {
            CHECK_ERR(hwkv_replay_with(kernel, &p->head, &p->params, p->q + i * 3 * 80, p->pos + i, 1, p->out + i * n_one, NULL, NULL), 0);
        }
        CHECK(memcmp(p->out, reference, 37 * n_one * sizeof(float)) == 0);
        CHECK(isnan(p->mass[0])); // spoiled before, not asked for
    }
    CHECK_ERR(hwkv_replay(&p->head, &p->params, p->q, p->pos, 37, p->out, NULL, NULL), 0);
    CHECK_ERR(replay(hwkv_replay_kernel(0), p, NULL), 0);
    // more queries than pass over the keys together
    const struct shape wide = { .n_pos = 90, .n_query = 12, .n_q_head = 16, .dim_k = 256, .dim_v = 256, .sinks = 1, .codebook = { 20, HWKV_FULL } };
    check_oracle(&wide, 2);
    free(reference);
    problem_free(p);
}

static void expect(struct problem * p, int code) {
    struct hwkv_error err = { 0 };
    CHECK_ERR(hwkv_replay(&p->head, &p->params, p->q, p->pos, p->n_query, p->out, p->mass, &err), code);
    CHECK_EQ_INT(err.code, code);
    CHECK((err.msg[0] != '\0') == (code != 0));
}

#define WITH(field, value, code)                \
    do {                                        \
        const struct problem saved = *p;        \
        p->field = (value);                     \
        expect(p, code);                        \
        *p = saved;                             \
    } while (0)

static void test_arguments(void) {
    const struct shape s = { .n_pos = 20, .n_query = 3, .n_q_head = 2, .dim_k = 4, .dim_v = 4, .sinks = 2, .codebook = { 4, 8, HWKV_FULL } };
    struct problem * p = problem_new(&s, 1);
    expect(p, 0);
    WITH(params.n_codebook, 0, HWKV_ERR_ARG);
    WITH(params.n_codebook, -1, HWKV_ERR_ARG);
    WITH(params.n_codebook, HWKV_CODE_MAX + 1, HWKV_ERR_ARG);
    WITH(params.n_codebook, 2, HWKV_ERR_ARG);  // last not full
    WITH(params.codebook, NULL, HWKV_ERR_ARG);
    WITH(codebook[1].window, 4, 0);            // of another type
    WITH(codebook[1].window, 3, HWKV_ERR_ARG);
    WITH(params.sinks, -1, HWKV_ERR_ARG);
    WITH(params.sinks, 4, HWKV_ERR_ARG);
    WITH(params.sinks, 3, 0);
    WITH(params.n_thread, 0, HWKV_ERR_ARG);
    WITH(head.dim_k, 0, HWKV_ERR_ARG);
    WITH(head.dim_v, 0, HWKV_ERR_ARG);
    WITH(head.dim_v, INT32_MAX, HWKV_ERR_ARG);
    WITH(head.n_q_head, 0, HWKV_ERR_ARG);
    WITH(head.n_pos, 0, HWKV_ERR_ARG);
    WITH(head.n_pos, 19, HWKV_ERR_ARG);        // the first query is at 19
    WITH(head.k, NULL, HWKV_ERR_ARG);
    WITH(head.softcap, -1.0f, HWKV_ERR_ARG);
    WITH(head.scale, NAN, HWKV_ERR_ARG);
    WITH(n_query, -1, HWKV_ERR_ARG);
    WITH(n_query, 0, 0);
    WITH(pos[2], -1, HWKV_ERR_ARG);            // shared by the copies, so it stays
    p->pos[2] = 5;
    expect(p, 0);
    p->q[7] = INFINITY;
    expect(p, HWKV_ERR_NOT_FINITE);
    p->q[7] = 1.0f;
    p->k[19 * 4] = NAN;
    expect(p, HWKV_ERR_NOT_FINITE);
    p->pos[0] = 18;                            // nobody sees it any more
    expect(p, 0);
    p->v[18 * 4 + 3] = -INFINITY;
    expect(p, HWKV_ERR_NOT_FINITE);
    problem_free(p);
}

//
// memory
//

static long g_live;
static long g_count;
static long g_fail_at;

static void * alloc_counted(size_t size) {
    if (++g_count == g_fail_at) {
        return NULL;
    }
    void * ptr = malloc(size);
    if (!ptr) {
        fprintf(stderr, "cannot get %zu bytes\n", size);
        exit(1);
    }
    memset(ptr, 0xA5, size);
    g_live++;
    return ptr;
}

static void free_counted(void * ptr) {
    g_live--;
    free(ptr);
}

static void test_out_of_memory(void) {
    const struct shape s = { .n_pos = 90, .n_query = 9, .n_q_head = 2, .dim_k = 8, .dim_v = 8, .sinks = 1, .codebook = { 20, HWKV_FULL } };
    struct problem * p = problem_new(&s, 4);
    p->params.n_thread = 3;
    problem_solve(p);
    hwkv_set_allocator(alloc_counted, free_counted);
    int status = HWKV_ERR_NOMEM;
    for (g_fail_at = 1; status != 0 && g_fail_at < 100; g_fail_at++) {
        struct hwkv_error err = { 0 };
        spoil(p);
        g_count = 0;
        status = hwkv_replay(&p->head, &p->params, p->q, p->pos, p->n_query, p->out, p->mass, &err);
        CHECK_ERR(status, g_count >= g_fail_at ? HWKV_ERR_NOMEM : 0);
        CHECK_EQ_INT(err.code, status);
        CHECK_EQ_INT(g_live, 0);
    }
    CHECK(status == 0 && g_fail_at > 2 && distance(p) <= TOLERANCE);
    hwkv_set_allocator(NULL, NULL);
    problem_free(p);
}

//
// speed
//

// processor time, so that a busy machine disturbs less
static double now(void) {
    struct timespec ts;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &ts);
    return (double) ts.tv_sec + 1e-9 * (double) ts.tv_nsec;
}

static int print_times(void) {
    const struct shape s = {
        .n_pos = 8192, .n_query = 256, .n_q_head = 3, .dim_k = 64, .dim_v = 64, .sinks = 4, .codebook = { 256, 512, 1024, 2048, 4096, HWKV_FULL },
    };
    const struct hwkv_replay_kernel * kernel;
    struct problem * p = problem_new(&s, 1);
    double n_key = 0.0;
    hwkv_sample(p->pos, 256, 6144, 2048, 1, 0);
    for (int32_t i = 0; i < 256; i++) {
        n_key += p->pos[i] + 1;
    }
    for (int32_t ik = 0; (kernel = hwkv_replay_kernel(ik)) != NULL; ik++) {
        double best = HUGE_VAL;
        for (int32_t i = 0; i < 5; i++) {
            const double start = now();
            if (replay(kernel, p, NULL)) {
                return 1;
            }
            best = fmin(best, now() - start);
        }
        printf("%-7s %8.2f ms %8.2f GFLOP/s\n", kernel->name, 1e3 * best, n_key * 3 * (2.0 * 64 + 2.0 * 64) / best * 1e-9);
    }
    problem_free(p);
    return 0;
}

int main(int argc, char ** argv) {
    if (argc == 2 && strcmp(argv[1], "--time") == 0) {
        return print_times();
    }
    if (argc > 1) {
        fprintf(stderr, "usage: test-replay [--time]\n");
        return 2;
    }
    for (int32_t i = 0; hwkv_replay_kernel(i); i++) {
        printf("%s%s", i ? ", " : "kernels: ", hwkv_replay_kernel(i)->name);
    }
    printf("\n");
    test_random_shapes();
    test_boundaries();
    test_equal_windows();
    test_long();
    test_large_logits();
    test_overflow();
    test_zero_vectors();
    test_single_and_whole();
    test_small_mass();
    test_same_bits();
    test_arguments();
    test_out_of_memory();
    return testing_result();
}
