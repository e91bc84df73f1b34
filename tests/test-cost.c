#include "hwkv.h"
#include "testing.h"

#include "policy-fixture.h"

static const int32_t mixed[5] = { W256, FULL, W1024, W4096, FULL };

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
    CHECK_EQ_INT(hwkv_type_row_size(HWKV_TYPE_CACHE, 64), 0); // not a type before a cache settles it
    CHECK_EQ_INT(hwkv_type_row_size(HWKV_TYPE_COUNT, 64), 0);
    CHECK_EQ_INT(hwkv_type_from_name(hwkv_type_name(HWKV_TYPE_CACHE)), HWKV_TYPE_CACHE);
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
    const struct hwkv_cache cache = { 8192, HWKV_TYPE_F16, HWKV_TYPE_F16 };
    const int32_t full[5] = { FULL, FULL, FULL, FULL, FULL };
    CHECK_EQ_INT(hwkv_cost(&geo, fixture_codebook, full, &cache), 13631488);
    CHECK_EQ_INT(hwkv_cost(&geo, NULL, NULL, &cache), 13631488);
    CHECK_EQ_INT(hwkv_cost(&geo, fixture_codebook, mixed, &cache), 7274496);
    CHECK_NEAR(hwkv_retention(&geo, fixture_codebook, mixed, &cache), 7274496.0 / 13631488.0, 1e-15);
    CHECK_NEAR(hwkv_retention(&geo, fixture_codebook, full, &cache), 1.0, 0.0);
    CHECK_NEAR(hwkv_retention(&geo, NULL, NULL, &cache), 1.0, 0.0);
    // at a context that no window reaches, everything is kept
    const struct hwkv_cache small = { 200, HWKV_TYPE_F16, HWKV_TYPE_F16 };
    CHECK_NEAR(hwkv_retention(&geo, fixture_codebook, mixed, &small), 1.0, 0.0);
    // q8_0 K, f16 V: layer 3: 68 + 128 = 196, layer 7: 136 + 128 = 264
    const struct hwkv_cache quantised = { 8192, HWKV_TYPE_Q8_0, HWKV_TYPE_F16 };
    CHECK_EQ_INT(hwkv_cost(&geo, fixture_codebook, mixed, &quantised), 256 * 196 + 8192 * 196 + (1024 + 4096 + 8192) * 264);
}

// Entry 0 is q8_0 for both: layer 3 takes 68 + 68 = 136 bytes a token, layer 7 136 + 68 = 204. Entry 1 sets V only, which is
// q4_0: 128 + 36 = 164 and 256 + 36 = 292 beside an f16 K, 68 + 36 = 104 and 136 + 36 = 172 beside a q8_0 one.
static void test_cost__types_of_their_own(void) {
    const struct hwkv_geometry geo = fixture_geometry();
    const struct hwkv_entry codebook[3] = {
        { 256, HWKV_TYPE_Q8_0, HWKV_TYPE_Q8_0 }, { HWKV_FULL, HWKV_TYPE_CACHE, HWKV_TYPE_Q4_0 }, WINDOW(HWKV_FULL),
    };
    const struct hwkv_cache f16  = { 8192, HWKV_TYPE_F16,  HWKV_TYPE_F16 };
    const struct hwkv_cache q8_0 = { 8192, HWKV_TYPE_Q8_0, HWKV_TYPE_F16 };
    CHECK_EQ_INT(hwkv_cost_head(&fixture_layers[0], &codebook[0], &f16),  256 * 136);
    CHECK_EQ_INT(hwkv_cost_head(&fixture_layers[1], &codebook[0], &q8_0), 256 * 204);
    CHECK_EQ_INT(hwkv_cost_head(&fixture_layers[0], &codebook[1], &f16),  8192 * 164);
    CHECK_EQ_INT(hwkv_cost_head(&fixture_layers[1], &codebook[1], &q8_0), 8192 * 172);
    const int32_t entries[5] = { 0, 1, 0, 1, 2 };
    const uint64_t bytes = 256 * 136 + 8192 * 164 + 256 * 204 + 8192 * 292 + 8192 * 384;
    CHECK_EQ_INT(hwkv_cost(&geo, codebook, entries, &f16), bytes);
    CHECK_NEAR(hwkv_retention(&geo, codebook, entries, &f16), (double) bytes / 13631488.0, 1e-15);
    // a share of positions, whatever their bytes
    CHECK_NEAR(hwkv_retention_query(&geo, codebook, entries, 8192), (4.0 * 256 + 4.0 * 8192 + 2.0 * (256 + 2 * 8192)) / (14.0 * 8192), 1e-15);
    // wider types than the cache's take more than all of it
    const struct hwkv_entry wide = { HWKV_FULL, HWKV_TYPE_F32, HWKV_TYPE_F32 };
    CHECK_NEAR(hwkv_retention(&geo, &wide, (const int32_t[5]) { 0 }, &f16), 2.0, 0.0);
}

static void test_retention__of_tokens(void) {
    const struct hwkv_geometry geo = fixture_geometry();
    CHECK_NEAR(hwkv_retention_tokens(&geo, fixture_codebook, mixed, 8192), (256.0 + 8192.0 + 13312.0) / (5.0 * 8192), 1e-15);
    CHECK_NEAR(hwkv_retention_tokens(&geo, fixture_codebook, mixed, 200), 1.0, 0.0); // no window is reached
    CHECK_NEAR(hwkv_retention_tokens(&geo, NULL, NULL, 8192), 1.0, 0.0);
}

// Query heads: layer 3 has 4 for each KV head, layer 7 has 2, together 14:
// (4 x 256 + 4 x 8192 + 2 x (1024 + 4096 + 8192)) / (14 x 8192)
static void test_retention_query__weights_by_query_heads(void) {
    const struct hwkv_geometry geo = fixture_geometry();
    CHECK_NEAR(hwkv_retention_query(&geo, fixture_codebook, mixed, 8192), (4.0 * 256 + 4.0 * 8192 + 2.0 * 13312) / (14.0 * 8192), 1e-15);
}

int main(void) {
    test_types__sizes_and_names();
    test_retained__is_min_of_window_and_context();
    test_cost__by_hand();
    test_cost__types_of_their_own();
    test_retention__of_tokens();
    test_retention_query__weights_by_query_heads();
    return testing_result();
}
