// Products with Q4_1 weights, in ggml with our kernel on and off: the same bits, over random shapes and threads.
//
// usage: test-mulmat                  compare
//        test-mulmat --time [THREADS] time both, with the shapes of the default model

#include "hwkv-mulmat.h"
#include "testing.h"

#include "ggml-cpu.h"
#include "ggml.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

static uint64_t rng_state = 1;

static uint32_t rng(void) {
    rng_state = rng_state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t) (rng_state >> 33);
}

static int32_t pick(int32_t lo, int32_t hi) {
    return lo + (int32_t) (rng() % (uint32_t) (hi - lo + 1));
}

static void fill(float * data, int64_t n, float size) {
    for (int64_t i = 0; i < n; i++) {
        data[i] = size * ((float) rng() / 1073741824.0f - 1.0f);
    }
}

struct product {
    struct ggml_context * ctx;
    struct ggml_cgraph  * gf;
    struct ggml_tensor  * w, * x, * out;
};

// the rows of x are further apart than they are long where `apart` says so
static struct product product_new(int64_t n, int64_t n_row, int64_t n_col, int64_t n_batch, bool apart) {
    const struct ggml_init_params params = { .mem_size = (size_t) (n * (n_row + 2 * n_col * n_batch) + n_row * n_col * n_batch) * 4 + (1 << 20) };

    struct product p;
    p.ctx = ggml_init(params);
    p.w   = ggml_new_tensor_2d(p.ctx, GGML_TYPE_Q4_1, n, n_row);
    p.x   = ggml_new_tensor_3d(p.ctx, GGML_TYPE_F32, apart ? 2 * n : n, n_col, n_batch);

    float * weights = malloc((size_t) (n * n_row) * sizeof(float));
    fill(weights, n * n_row, 0.1f);
    ggml_quantize_chunk(GGML_TYPE_Q4_1, weights, p.w->data, 0, n_row, n, NULL);
    free(weights);
    fill(p.x->data, ggml_nelements(p.x), 3.0f);

    struct ggml_tensor * x = apart ? ggml_view_3d(p.ctx, p.x, n, n_col, n_batch, p.x->nb[1], p.x->nb[2], 0) : p.x;

    p.out = ggml_mul_mat(p.ctx, p.w, x);
    p.gf  = ggml_new_graph(p.ctx);
    ggml_build_forward_expand(p.gf, p.out);
    return p;
}

static void run(struct product * p, int n_thread, bool on) {
    hwkv_mul_mat_enable(on);
    memset(p->out->data, 255, ggml_nbytes(p->out)); // NaN where nothing is written

    struct ggml_cplan plan = ggml_graph_plan(p->gf, n_thread, NULL);
    plan.work_data = malloc(plan.work_size + 1);
    CHECK(ggml_graph_compute(p->gf, &plan) == GGML_STATUS_SUCCESS);
    free(plan.work_data);
}

static void compare(int64_t n, int64_t n_row, int64_t n_col, int64_t n_batch, bool apart, int n_thread) {
    struct product p = product_new(n, n_row, n_col, n_batch, apart);
    const size_t   size = ggml_nbytes(p.out);

    run(&p, n_thread, false);
    void * expected = malloc(size);
    memcpy(expected, p.out->data, size);
    run(&p, n_thread, true);

    if (memcmp(expected, p.out->data, size) != 0) {
        const float * a = expected, * b = p.out->data;
        size_t        i = 0;
        while (memcmp(&a[i], &b[i], sizeof(float)) == 0) {
            i++;
        }
        fprintf(stderr, "n %lld, rows %lld, columns %lld, batch %lld, threads %d: found %.9g at %zu, expected %.9g\n", (long long) n, (long long) n_row,
                (long long) n_col, (long long) n_batch, n_thread, (double) b[i], i, (double) a[i]);
    }
    CHECK(memcmp(expected, p.out->data, size) == 0);

    free(expected);
    ggml_free(p.ctx);
}

static void test_same_bits(void) {
    compare(576, 1536, 64, 1, false, 2);
    compare(1536, 576, 67, 1, false, 3);
    compare(32 * 1025, 8, 8, 1, false, 1); // too long for it
    for (int i = 0; i < 300; i++) {
        compare(32 * pick(1, 40), pick(1, 70), pick(1, 70), pick(1, 8) == 1 ? 2 : 1, pick(0, 1), pick(1, 3));
    }
}

// it does not just fall back
static void test_is_asked(void) {
    struct product p = product_new(64, 8, 5, 1, false);
    const size_t   col_size = ggml_row_size(GGML_TYPE_Q8_1, 64);
    char         * y = malloc(5 * col_size);
    for (int i = 0; i < 5; i++) {
        ggml_get_type_traits_cpu(GGML_TYPE_Q8_1)->from_float((const float *) p.x->data + 64 * i, y + i * col_size, 64);
    }

    hwkv_mul_mat_enable(true);
    const bool can = ggml_cpu_has_avx2() && ggml_cpu_has_fma() && ggml_cpu_has_f16c();
    CHECK(hwkv_mul_mat(p.out, y, col_size, 0, 8, 0, 5) == can);
    CHECK(hwkv_mul_mat(p.out, y, col_size, 2, 3, 4, 5) == can);
    hwkv_mul_mat_enable(false);
    CHECK(!hwkv_mul_mat(p.out, y, col_size, 0, 8, 0, 5));

    free(y);
    ggml_free(p.ctx);
}

static double seconds(void) {
    struct timespec t;
    timespec_get(&t, TIME_UTC);
    return (double) t.tv_sec + 1e-9 * (double) t.tv_nsec;
}

static void time_both(int n_thread) {
    static const int64_t shapes[][3] = { { 576, 576, 512 }, { 576, 192, 512 }, { 576, 1536, 512 }, { 1536, 576, 512 }, { 576, 1536, 1 }, { 1536, 576, 1 } };
    for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++) {
        struct product p = product_new(shapes[i][0], shapes[i][1], shapes[i][2], 1, false);
        double best[2] = { 1e9, 1e9 };
        for (int k = 0; k < (shapes[i][2] == 1 ? 1000 : 10); k++) {
            for (int on = 0; on < 2; on++) {
                const double start = seconds();
                run(&p, n_thread, on);
                const double time = seconds() - start;
                best[on] = time < best[on] ? time : best[on];
            }
        }
        const double ops = 2.0 * (double) (shapes[i][0] * shapes[i][1] * shapes[i][2]);
        printf("%lld x %lld by %lld: ggml %.1f, ours %.1f Gop/s\n", (long long) shapes[i][1], (long long) shapes[i][0], (long long) shapes[i][2], 1e-9 * ops / best[0], 1e-9 * ops / best[1]);
        ggml_free(p.ctx);
    }
}

int main(int argc, char ** argv) {
    if (argc > 1 && strcmp(argv[1], "--time") == 0) {
        time_both(argc > 2 ? atoi(argv[2]) : 1);
        return 0;
    }
    ggml_cpu_init();
    test_same_bits();
    test_is_asked();
    return testing_result();
}
