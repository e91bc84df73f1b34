#include "hwkv.h"
#include "testing.h"

#include "policy-fixture.h"

static void test_types__sizes_and_names(void) {
    CHECK_EQ_INT(hwkv_type_row_size(HWKV_TYPE_F16, 64), 128);
    CHECK_EQ_INT(hwkv_type_row_size(HWKV_TYPE_F32, 64), 256);
    CHECK_EQ_INT(hwkv_type_row_size(HWKV_TYPE_Q8_0, 64), 68);
    CHECK_EQ_INT(hwkv_type_row_size(HWKV_TYPE_Q4_0, 64), 36);
    CHECK_EQ_INT(hwkv_type_row_size(HWKV_TYPE_Q5_1, 32), 24);
    CHECK_EQ_INT(hwkv_type_row_size(HWKV_TYPE_Q8_0, 80), 0); // no whole number of blocks
    for (int i = 0; i < HWKV_TYPE_COUNT; i++) {
        CHECK_EQ_INT(hwkv_type_from_name(hwkv_type_name((enum hwkv_type) i)), i);
    }
    CHECK_EQ_INT(hwkv_type_from_name("q6_K"), -1);
}

static void test_retained__is_min_of_window_and_context(void) {
    CHECK_EQ_INT(hwkv_retained(256, 8192), 256);
    CHECK_EQ_INT(hwkv_retained(8192, 8192), 8192);
    CHECK_EQ_INT(hwkv_retained(9000, 8192), 8192);
    CHECK_EQ_INT(hwkv_retained(HWKV_FULL, 8192), 8192);
}

// Layer 3: 2 heads x (64 + 64) x 2 bytes = 256 bytes a token and head; layer 7: 3 heads x (128 + 64) x 2 = 384.
// All full at 8192: 8192 x (2 x 256 + 3 x 384) = 8192 x 1664 = 13631488.
// 256, full | 1024, 4096, full: 256 x 256 + 8192 x 256 + (1024 + 4096 + 8192) x 384 = 65536 + 2097152 + 5111808 = 7274496.
static void test_cost__by_hand(void) {
    const struct hwkv_geometry geo = fixture_geometry();
    const int32_t full[5]  = { HWKV_FULL, HWKV_FULL, HWKV_FULL, HWKV_FULL, HWKV_FULL };
    const int32_t mixed[5] = { 256, HWKV_FULL, 1024, 4096, HWKV_FULL };
    CHECK_EQ_INT(hwkv_cost(&geo, full, 8192, HWKV_TYPE_F16, HWKV_TYPE_F16), 13631488);
    CHECK_EQ_INT(hwkv_cost(&geo, mixed, 8192, HWKV_TYPE_F16, HWKV_TYPE_F16), 7274496);
    CHECK_NEAR(hwkv_retention(&geo, mixed, 8192, HWKV_TYPE_F16, HWKV_TYPE_F16), 7274496.0 / 13631488.0, 1e-15);
    CHECK_NEAR(hwkv_retention(&geo, full, 8192, HWKV_TYPE_F16, HWKV_TYPE_F16), 1.0, 0.0);
    // at a context that no window reaches, everything is kept
    CHECK_NEAR(hwkv_retention(&geo, mixed, 200, HWKV_TYPE_F16, HWKV_TYPE_F16), 1.0, 0.0);
    // q8_0 K, f16 V: layer 3: 68 + 128 = 196, layer 7: 136 + 128 = 264
    CHECK_EQ_INT(hwkv_cost(&geo, mixed, 8192, HWKV_TYPE_Q8_0, HWKV_TYPE_F16), 256 * 196 + 8192 * 196 + (1024 + 4096 + 8192) * 264);
}

// Query heads: layer 3 has 4 for each KV head, layer 7 has 2, together 14:
// (4 x 256 + 4 x 8192 + 2 x (1024 + 4096 + 8192)) / (14 x 8192)
static void test_retention_query__weights_by_query_heads(void) {
    const struct hwkv_geometry geo = fixture_geometry();
    const int32_t mixed[5] = { 256, HWKV_FULL, 1024, 4096, HWKV_FULL };
    CHECK_NEAR(hwkv_retention_query(&geo, mixed, 8192), (4.0 * 256 + 4.0 * 8192 + 2.0 * 13312) / (14.0 * 8192), 1e-15);
}

int main(void) {
    test_types__sizes_and_names();
    test_retained__is_min_of_window_and_context();
    test_cost__by_hand();
    test_retention_query__weights_by_query_heads();
    return testing_result();
}
