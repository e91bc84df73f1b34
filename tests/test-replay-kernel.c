// The replay's inner loops by themselves: exponential, softcap, products.

#include "hwkv-replay-impl.h"
#include "replay-fixture.h"
#include "testing.h"

#define KEYS HWKV_REPLAY_KEYS
#define ROWS HWKV_REPLAY_ROWS

static void test_exp(const struct hwkv_replay_kernel * kernel) {
    double worst = 0.0;
    for (double at = 0.0; at < 86.9; at += 0.0611) {
        float x[KEYS];
        float p[KEYS];
        for (int i = 0; i < KEYS; i++) {
            x[i] = i == 0 ? 0.0f : (float) -(at + 0.001 * i);
        }
        memcpy(p, x, sizeof(p));
        float  max = -INFINITY;
        double sum = 0.0;
        const float total = kernel->weigh(p, &max);
        CHECK(max == 0.0f && p[0] == 1.0f);
        for (int i = 0; i < KEYS; i++) {
            worst = fmax(worst, fabs((double) p[i] / exp((double) x[i]) - 1.0));
            sum += exp((double) x[i]);
        }
        CHECK_NEAR((double) total / sum, 1.0, 4e-6); // 64 roundings, all one way at worst
    }
    printf("%-7s exp %.2g relative\n", kernel->name, worst);
    CHECK(worst <= 2e-7);
}

static void test_exp_edges(const struct hwkv_replay_kernel * kernel) {
    float p[KEYS];
    for (int i = 0; i < KEYS; i++) {
        p[i] = i % 4 == 0 ? -INFINITY : i % 4 == 1 ? -3e38f : i % 4 == 2 ? -1e4f : -104.0f;
    }
    p[KEYS - 1] = 5.0f;
    float max = 5.0f;
    CHECK(kernel->weigh(p, &max) == 1.0f && max == 5.0f && p[KEYS - 1] == 1.0f);
    for (int i = 0; i < KEYS - 1; i++) {
        CHECK(p[i] == 0.0f);
    }
    // a running maximum above all of the block stays
    for (int i = 0; i < KEYS; i++) {
        p[i] = -1.0f;
    }
    max = 1.0f;
    CHECK_NEAR((double) kernel->weigh(p, &max), KEYS * exp(-2.0), 1e-5);
    CHECK(max == 1.0f);
    // the first block of a row
    p[3] = 1e30f;
    max  = -INFINITY;
    CHECK(kernel->weigh(p, &max) == 1.0f && max == 1e30f && p[3] == 1.0f);
}

static void test_softcap(const struct hwkv_replay_kernel * kernel) {
    double worst = 0.0;
    for (int round = -200; round < 200; round++) {
        float s[ROWS * KEYS];
        float x[ROWS * KEYS];
        for (int i = 0; i < ROWS * KEYS; i++) {
            x[i] = s[i] = (float) (round + i / 256.0);
        }
        kernel->finish(s, 30.0f);
        for (int i = 0; i < ROWS * KEYS; i++) {
            const double expected = 30.0 * tanh((double) x[i] / 30.0);
            worst = fmax(worst, expected == 0.0 ? fabs((double) s[i]) : fabs((double) s[i] / expected - 1.0));
        }
    }
    printf("%-7s tanh %.2g relative\n", kernel->name, worst);
    CHECK(worst <= 4e-7);
    float s[ROWS * KEYS] = { INFINITY, -INFINITY, NAN, 3e38f, -0.0f };
    kernel->finish(s, 30.0f);
    CHECK(s[0] == 30.0f && s[1] == -30.0f && s[2] == -30.0f && s[3] == 30.0f && s[4] == 0.0f);
    float t[ROWS * KEYS] = { INFINITY, -INFINITY, NAN, 3e38f, -7.0f };
    kernel->finish(t, 0.0f);
    CHECK(t[0] > 3.4e38f && isfinite(t[0]) && t[1] == -t[0] && t[2] == -t[0] && t[3] == 3e38f && t[4] == -7.0f);
}

static void test_mul(const struct hwkv_replay_kernel * kernel) {
    for (int32_t n = HWKV_REPLAY_PAD; n <= 9 * HWKV_REPLAY_PAD; n += HWKV_REPLAY_PAD) {
        for (int32_t k = 1; k <= 67; k += 11) {
            uint64_t state = 77;
            const float keep[ROWS] = { 0.0f, 1.0f, 0.5f, -2.0f };
            float * a     = random_floats(&state, (size_t) (ROWS * k), 1.0f, 0);
            float * b     = random_floats(&state, (size_t) (k * n), 1.0f, 0);
            float * old   = random_floats(&state, (size_t) (ROWS * n), 1.0f, 0);
            float * tile  = malloc((size_t) (ROWS * n) * sizeof(float));
            float * row   = malloc((size_t) (ROWS * n) * sizeof(float));
            for (int with = 0; with < 2; with++) {
                memcpy(tile, old, (size_t) (ROWS * n) * sizeof(float));
                memcpy(row,  old, (size_t) (ROWS * n) * sizeof(float));
                kernel->mul_tile(tile, a, b, k, n, with ? keep : NULL);
                for (int32_t r = 0; r < ROWS; r++) {
                    kernel->mul_row(row + r * n, a + r * k, b, k, n, with ? &keep[r] : NULL);
                }
                CHECK(memcmp(tile, row, (size_t) (ROWS * n) * sizeof(float)) == 0);
                double worst = 0.0;
                for (int32_t i = 0; i < ROWS * n; i++) {
                    double sum = with ? (double) keep[i / n] * (double) old[i] : 0.0;
                    for (int32_t j = 0; j < k; j++) {
                        sum += (double) a[i / n * k + j] * (double) b[j * n + i % n];
                    }
                    worst = fmax(worst, fabs((double) tile[i] - sum));
                }
                CHECK(worst <= 1e-5);
            }
            free(a);
            free(b);
            free(old);
            free(tile);
            free(row);
        }
    }
}

int main(void) {
    const struct hwkv_replay_kernel * kernel = NULL;
    const char * last = "";
    for (int32_t i = 0; (kernel = hwkv_replay_kernel(i)) != NULL; i++) {
        test_exp(kernel);
        test_exp_edges(kernel);
        test_softcap(kernel);
        test_mul(kernel);
        last = kernel->name;
    }
    CHECK_STR(last, "scalar");
    CHECK(hwkv_replay_kernel(-1) == NULL);
    return testing_result();
}
