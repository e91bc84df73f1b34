// Stabilised cosine and sampling of queries.

#include "hwkv.h"
#include "testing.h"

#include <stdbool.h>
#include <stdlib.h>

static void test_cosine(void) {
    const float a[]    = { 1.0f, 2.0f, -3.0f };
    const float b[]    = { -2.0f, -4.0f, 6.0f };
    const float c[]    = { 2.0f, -1.0f, 0.0f };
    const float d[]    = { 3.0f, 0.0f, 1.0f };
    const float zero[] = { 0.0f, 0.0f, -0.0f };
    const float tiny[] = { 0.0f, 1e-12f, 0.0f };  // 1e-12 as a float is just under 1e-12
    const float more[] = { 0.0f, 1.01e-12f, 0.0f };
    const float y[]    = { 0.0f, 1.0f, 0.0f };
    const float huge[] = { 3e38f, 3e38f, -3e38f };
    CHECK(hwkv_cosine(a, a, 3) == 1.0);
    CHECK(hwkv_cosine(a, b, 3) == -1.0);
    CHECK(hwkv_cosine(a, c, 3) == 0.0);
    CHECK(hwkv_cosine(a, d, 3) == 0.0);
    CHECK_NEAR(hwkv_cosine(c, d, 3), 6.0 / sqrt(50.0), 1e-15);
    CHECK(hwkv_cosine(zero, zero, 3) == 1.0);
    CHECK(hwkv_cosine(zero, tiny, 3) == 1.0);
    CHECK(hwkv_cosine(zero, a, 3) == 0.0 && hwkv_cosine(a, zero, 3) == 0.0);
    CHECK(hwkv_cosine(tiny, y, 3) == 0.0);
    CHECK(hwkv_cosine(more, y, 3) == 1.0);
    CHECK(hwkv_cosine(huge, huge, 3) == 1.0);
    for (int i = 1; i <= 50; i++) {
        const float e[] = { 1.0f, (float) i, 0.1f };  // the square of the root of aa is not always aa
        CHECK(hwkv_cosine(e, e, 3) == 1.0);
    }
    CHECK(isnan(hwkv_cosine(a, (const float[]) { 1.0f, NAN, 0.0f }, 3)));
    // in index order the small terms are lost beside the first, in any other they are not
    float many[1001];
    float ones[1001];
    for (int i = 0; i < 1001; i++) {
        many[i] = i == 0 ? 0x1p27f : 1.0f;
        ones[i] = i == 0 ? 0x1p27f : 0.5f;
    }
    CHECK(hwkv_cosine(many, ones, 1001) == 1.0);
}

static bool sample_ok(const int32_t * x, int32_t n, int32_t first, int32_t count) {
    for (int32_t i = 0; i < n; i++) {
        if (x[i] < first || x[i] - first >= count || (i > 0 && x[i] <= x[i - 1])) {
            return false;
        }
    }
    return true;
}

static void test_sample(void) {
    static int32_t x[4096];
    static int32_t y[4096];
    CHECK_EQ_INT(hwkv_sample(x, 256, 6144, 2048, 42, 0), 256);
    CHECK(sample_ok(x, 256, 6144, 2048));
    CHECK_EQ_INT(hwkv_sample(y, 256, 6144, 2048, 42, 0), 256);
    CHECK(memcmp(x, y, 256 * sizeof(*x)) == 0);
    hwkv_sample(y, 256, 6144, 2048, 42, 1);
    CHECK(memcmp(x, y, 256 * sizeof(*x)) != 0);
    hwkv_sample(y, 256, 6144, 2048, 43, 0);
    CHECK(memcmp(x, y, 256 * sizeof(*x)) != 0);
    // all of them, and none
    CHECK_EQ_INT(hwkv_sample(x, 100, 5, 7, 1, 1), 7);
    CHECK(sample_ok(x, 7, 5, 7) && x[0] == 5 && x[6] == 11);
    CHECK_EQ_INT(hwkv_sample(x, 7, -3, 7, 1, 1), 7);
    CHECK(x[0] == -3 && x[6] == 3);
    CHECK_EQ_INT(hwkv_sample(x, 0, 0, 10, 1, 1), 0);
    CHECK_EQ_INT(hwkv_sample(x, 3, 0, 0, 1, 1), 0);
    CHECK_EQ_INT(hwkv_sample(x, 3, INT32_MAX, 2, 1, 1), 0);
    CHECK_EQ_INT(hwkv_sample(x, 3, INT32_MAX, 1, 1, 1), 1);
    CHECK_EQ_INT(x[0], INT32_MAX);
}

// The numbers are part of what a seed means: they must not change.
static void test_sample__stays(void) {
    static const int32_t expected[] = { 1049, 1102, 1111, 1181, 1196, 1335, 1451, 1831 };
    int32_t x[8];
    CHECK_EQ_INT(hwkv_sample(x, 8, 1000, 1000, 7, 3), 8);
    for (int i = 0; i < 8; i++) {
        CHECK_EQ_INT(x[i], expected[i]);
    }
}

// Every value as often as any other: 2000 draws of 8 from 40 take each about 400 times (standard deviation 18).
static void test_sample__even(void) {
    int32_t n[40] = { 0 };
    for (uint64_t stream = 0; stream < 2000; stream++) {
        int32_t x[8];
        hwkv_sample(x, 8, 0, 40, 1, stream);
        for (int i = 0; i < 8; i++) {
            n[x[i]]++;
        }
    }
    for (int i = 0; i < 40; i++) {
        CHECK(abs(n[i] - 400) < 5 * 18);
    }
}

int main(void) {
    test_cosine();
    test_sample();
    test_sample__stays();
    test_sample__even();
    return testing_result();
}
