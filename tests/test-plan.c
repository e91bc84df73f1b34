// Plans against numbers worked out by hand.

#include "hwkv.h"
#include "testing.h"

#include "policy-fixture.h"

static const int32_t mixed[5]    = { W256, FULL, W1024, W256, FULL };
static const int32_t all_full[5] = { FULL, FULL, FULL, FULL, FULL };

static void check_group(const struct hwkv_plan * plan, int32_t ig, int32_t window, int32_t n_layer, int32_t n_head, uint32_t n_cells,
                        uint64_t k_size, uint64_t v_size) {
    const struct hwkv_group * g = hwkv_plan_group(plan, ig);
    CHECK(g != NULL);
    if (g) {
        CHECK_EQ_INT(g->entry.window, window);
        CHECK_EQ_INT(g->n_layer, n_layer);
        CHECK_EQ_INT(g->n_head, n_head);
        CHECK_EQ_INT(g->n_cells, n_cells);
        CHECK_EQ_INT(g->k_size, k_size);
        CHECK_EQ_INT(g->v_size, v_size);
    }
}

static struct hwkv_plan * make_plan(const int32_t entries[5], const struct hwkv_plan_params * params) {
    struct hwkv_policy * policy = fixture_policy(4);
    fixture_add(policy, "p", entries);
    struct hwkv_plan * plan = NULL;
    struct hwkv_error err = { 0 };
    CHECK_EQ_INT(hwkv_plan_init(&plan, policy, 0, params, &err), 0);
    hwkv_policy_free(policy);
    return plan; // a plan outlives its policy
}

// One sequence at 8192, rollback 64, padding 64, f16. A head of layer 3 has 128 bytes K and 128 V a cell,
// one of layer 7 has 256 K and 128 V.
//   full: one head of each layer, 8192 cells: K 8192 x 384, V 8192 x 256
//   256:  one head of each layer, 256 + 64 = 320 cells: K 320 x 384, V 320 x 256
//   1024: one head of layer 7, 1024 + 64 = 1088 cells: K 1088 x 256, V 1088 x 128
//   plain: 8192 x (2 x 256 + 3 x 384)
static void test_plan__one_sequence(void) {
    struct hwkv_plan_params params = hwkv_plan_params_default();
    params.n_ctx = 8192;
    struct hwkv_plan * plan = make_plan(mixed, &params);
    CHECK_EQ_INT(hwkv_plan_n_group(plan), 3);
    CHECK_EQ_INT(hwkv_plan_n_stream(plan), 1);
    CHECK_EQ_INT(hwkv_plan_n_ctx_seq(plan), 8192);
    check_group(plan, 0, HWKV_FULL, 2, 2, 8192, 8192 * 384, 8192 * 256);
    check_group(plan, 1, 256, 2, 2, 320, 320 * 384, 320 * 256);
    check_group(plan, 2, 1024, 1, 1, 1088, 1088 * 256, 1088 * 128);
    CHECK_EQ_INT(hwkv_plan_size(plan), 8192 * 640 + 320 * 640 + 1088 * 384);
    CHECK_EQ_INT(hwkv_plan_size_plain(plan), 13631488);
    CHECK(!hwkv_plan_is_plain(plan));
    for (int32_t ig = 0; ig < 3; ig++) {
        CHECK_EQ_INT(hwkv_plan_group(plan, ig)->entry.type_k, HWKV_TYPE_F16); // settled
        CHECK_EQ_INT(hwkv_plan_group(plan, ig)->entry.type_v, HWKV_TYPE_F16);
    }

    int32_t n = 0;
    const int32_t * heads = hwkv_plan_heads(plan, 0, 0, &n);
    CHECK_EQ_INT(n, 1);
    CHECK_EQ_INT(heads[0], 1);
    heads = hwkv_plan_heads(plan, 1, 1, &n);
    CHECK_EQ_INT(n, 1);
    CHECK_EQ_INT(heads[0], 1);
    hwkv_plan_heads(plan, 2, 0, &n);
    CHECK_EQ_INT(n, 0);
    CHECK_EQ_INT(hwkv_plan_group_of(plan, 1, 2), 0);
    CHECK_EQ_INT(hwkv_plan_group_of(plan, 1, 0), 2);
    CHECK(hwkv_plan_group(plan, 3) == NULL);
    CHECK(hwkv_plan_group(plan, -1) == NULL);
    hwkv_plan_free(plan);
}

// Four slots that share one cache need four windows: 256 -> 4 x 320 = 1280; 1024 -> 4 x 1088 = 4352.
static void test_plan__unified_slots(void) {
    struct hwkv_plan_params params = hwkv_plan_params_default();
    params.n_ctx     = 8192;
    params.n_seq_max = 4;
    struct hwkv_plan * plan = make_plan(mixed, &params);
    CHECK_EQ_INT(hwkv_plan_n_stream(plan), 1);
    CHECK_EQ_INT(hwkv_plan_group(plan, 1)->n_cells, 1280);
    CHECK_EQ_INT(hwkv_plan_group(plan, 2)->n_cells, 4352);
    hwkv_plan_free(plan);
}

// Four streams of 2048: every group has its cells four times, and 1024 needs 1088 of 2048.
static void test_plan__streams(void) {
    struct hwkv_plan_params params = hwkv_plan_params_default();
    params.n_ctx      = 8192;
    params.n_seq_max  = 4;
    params.kv_unified = false;
    struct hwkv_plan * plan = make_plan(mixed, &params);
    CHECK_EQ_INT(hwkv_plan_n_stream(plan), 4);
    CHECK_EQ_INT(hwkv_plan_n_ctx_seq(plan), 2048);
    check_group(plan, 0, HWKV_FULL, 2, 2, 2048, 4 * 2048 * 384, 4 * 2048 * 256);
    check_group(plan, 1, 256, 2, 2, 320, 4 * 320 * 384, 4 * 320 * 256);
    check_group(plan, 2, 1024, 1, 1, 1088, 4 * 1088 * 256, 4 * 1088 * 128);
    CHECK_EQ_INT(hwkv_plan_size_plain(plan), 13631488);
    hwkv_plan_free(plan);
}

// A window that reaches the context is full; cells are never more than the context has.
static void test_plan__short_context(void) {
    struct hwkv_plan_params params = hwkv_plan_params_default();
    params.n_ctx = 1000; // llama.cpp rounds up to 1024
    struct hwkv_plan * plan = make_plan(mixed, &params);
    CHECK_EQ_INT(hwkv_plan_n_ctx_seq(plan), 1024);
    CHECK_EQ_INT(hwkv_plan_n_group(plan), 2);
    check_group(plan, 0, HWKV_FULL, 2, 3, 1024, 1024 * (128 + 2 * 256), 1024 * 3 * 128);
    check_group(plan, 1, 256, 2, 2, 320, 320 * 384, 320 * 256);
    hwkv_plan_free(plan);
    params.n_rollback = 1000;
    plan = make_plan(mixed, &params);
    check_group(plan, 1, 256, 2, 2, 1024, 1024 * 384, 1024 * 256);
    CHECK_EQ_INT(hwkv_plan_size(plan), hwkv_plan_size_plain(plan));
    hwkv_plan_free(plan);
}

static void test_plan__all_full_is_the_plain_cache(void) {
    struct hwkv_plan_params params = hwkv_plan_params_default();
    params.n_ctx = 8192;
    for (int fa = 0; fa < 2; fa++) {
        params.flash_attn = fa == 1;
        struct hwkv_plan * plan = make_plan(all_full, &params);
        CHECK_EQ_INT(hwkv_plan_n_group(plan), 1);
        CHECK_EQ_INT(hwkv_plan_size(plan), hwkv_plan_size_plain(plan));
        CHECK(hwkv_plan_is_plain(plan));
        hwkv_plan_free(plan);
    }
    // windows that the context does not reach come to the same
    params.n_ctx = 256;
    struct hwkv_plan * plan = make_plan(mixed, &params);
    CHECK_EQ_INT(hwkv_plan_n_group(plan), 1);
    CHECK(hwkv_plan_is_plain(plan));
    hwkv_plan_free(plan);
}

// Without flash attention llama.cpp pads V of every layer to the widest, 3 x 64 here: layer 3 takes 384 bytes V instead
// of 256. Groups hold their heads only.
static void test_plan__without_flash_attention(void) {
    struct hwkv_plan_params params = hwkv_plan_params_default();
    params.n_ctx      = 8192;
    params.flash_attn = false;
    struct hwkv_plan * plan = make_plan(mixed, &params);
    CHECK_EQ_INT(hwkv_plan_size_plain(plan), 8192 * (256 + 384 + 768 + 384));
    CHECK_EQ_INT(hwkv_plan_size(plan), 8192 * 640 + 320 * 640 + 1088 * 384);
    hwkv_plan_free(plan);
    params.v_width_max = 1024; // a sliding-window layer is wider still: 2048 bytes for each layer
    plan = make_plan(mixed, &params);
    CHECK_EQ_INT(hwkv_plan_size_plain(plan), 8192 * (256 + 2048 + 768 + 2048));
    CHECK_EQ_INT(hwkv_plan_size(plan), 8192 * 640 + 320 * 640 + 1088 * 384);
    hwkv_plan_free(plan);
}

// q8_0: 64 elements take 68 bytes, 128 take 136
static void test_plan__quantised(void) {
    struct hwkv_plan_params params = hwkv_plan_params_default();
    params.n_ctx  = 8192;
    params.type_k = HWKV_TYPE_Q8_0;
    params.type_v = HWKV_TYPE_Q8_0;
    params.n_pad  = 256; // as on a GPU
    struct hwkv_plan * plan = make_plan(mixed, &params);
    check_group(plan, 0, HWKV_FULL, 2, 2, 8192, 8192 * (68 + 136), 8192 * (68 + 68));
    check_group(plan, 1, 256, 2, 2, 512, 512 * (68 + 136), 512 * (68 + 68)); // 256 + 64, padded
    check_group(plan, 2, 1024, 1, 1, 1280, 1280 * 136, 1280 * 68);
    hwkv_plan_free(plan);
}

// On a device a ring with room for a batch of 512 needs no scratch memory: 256 cells more in two layers, or the ring and the batch in one.
static void test_plan__slack(void) {
    struct hwkv_plan_params params = hwkv_plan_params_default();
    params.n_ctx    = 8192;
    params.n_pad    = 256;
    params.n_ubatch = 512;
    struct hwkv_plan * plan = make_plan((const int32_t[5]) { W4096, FULL, W4096, W256, FULL }, &params);
    // 4096 + 64 is 4352 padded, and 4096 + 512 - 1 is 4608: slack 256 x 640, scratch memory (4352 + 512) x 384
    check_group(plan, 2, 4096, 2, 2, 4608, 4608 * 384, 4608 * 256);
    CHECK(hwkv_plan_group(plan, 2)->n_room >= 512);
    // 256 + 64 is 512 padded; with room for a batch it would be 768, a third of it slack
    check_group(plan, 1, 256, 1, 1, 512, 512 * 256, 512 * 128);
    CHECK_EQ_INT(hwkv_plan_group(plan, 1)->n_room, 512 - 256 + 1);
    CHECK_EQ_INT(hwkv_plan_group(plan, 0)->n_room, UINT32_MAX);
    hwkv_plan_free(plan);

    params.n_ubatch = 0; // a CPU
    plan = make_plan((const int32_t[5]) { W4096, FULL, W4096, W256, FULL }, &params);
    check_group(plan, 2, 4096, 2, 2, 4352, 4352 * 384, 4352 * 256);
    CHECK_EQ_INT(hwkv_plan_group(plan, 2)->n_room, 4352 - 4096 + 1);
    hwkv_plan_free(plan);
}

//
// entries with types of their own
//

enum { Q256, B256, A256, A1024, W600, QFULL, AFULL, N_TYPED }; // A: f16, Q: q8_0, B: q4_0 for V alone, W: f32, which takes more than A1024

static const struct hwkv_entry typed[N_TYPED] = {
    { 256, HWKV_TYPE_Q8_0, HWKV_TYPE_Q8_0 }, { 256, HWKV_TYPE_F16, HWKV_TYPE_Q4_0 },  { 256, HWKV_TYPE_F16, HWKV_TYPE_F16 },
    { 1024, HWKV_TYPE_F16, HWKV_TYPE_F16 },  { 600, HWKV_TYPE_F32, HWKV_TYPE_F32 },
    { HWKV_FULL, HWKV_TYPE_Q8_0, HWKV_TYPE_Q8_0 }, { HWKV_FULL, HWKV_TYPE_F16, HWKV_TYPE_F16 },
};

static int init_typed(struct hwkv_plan ** plan, const int32_t entries[5], const struct hwkv_plan_params * params, struct hwkv_error * err) {
    const struct hwkv_geometry geo = fixture_geometry();
    struct hwkv_policy_params policy_params = hwkv_policy_params_default();
    policy_params.geometry   = &geo;
    policy_params.context    = 8192;
    policy_params.codebook   = typed;
    policy_params.n_codebook = N_TYPED;
    struct hwkv_policy * policy = NULL;
    CHECK_EQ_INT(hwkv_policy_init(&policy, &policy_params, NULL), 0);
    fixture_add(policy, "p", entries);
    const int status = hwkv_plan_init(plan, policy, 0, params, err);
    hwkv_policy_free(policy);
    return status;
}

static struct hwkv_plan * make_typed(const int32_t entries[5], const struct hwkv_plan_params * params) {
    struct hwkv_plan * plan = NULL;
    CHECK_EQ_INT(init_typed(&plan, entries, params, NULL), 0);
    return plan;
}

static void check_types(const struct hwkv_plan * plan, int32_t ig, enum hwkv_type type_k, enum hwkv_type type_v) {
    CHECK_EQ_INT(hwkv_plan_group(plan, ig)->entry.type_k, type_k);
    CHECK_EQ_INT(hwkv_plan_group(plan, ig)->entry.type_v, type_v);
}

// A head of layer 3 takes 128 bytes K and V a cell in f16, 68 in q8_0; one of layer 7 256 and 128 in f16, 136 and 68 in q8_0.
static void test_plan__two_full_groups(void) {
    struct hwkv_plan_params params = hwkv_plan_params_default();
    params.n_ctx = 8192;
    struct hwkv_plan * plan = make_typed((const int32_t[5]) { AFULL, QFULL, QFULL, AFULL, AFULL }, &params);
    CHECK_EQ_INT(hwkv_plan_n_group(plan), 2);
    check_group(plan, 0, HWKV_FULL, 2, 2, 8192, 8192 * (68 + 136), 8192 * (68 + 68)); // as the codebook has them
    check_types(plan, 0, HWKV_TYPE_Q8_0, HWKV_TYPE_Q8_0);
    check_group(plan, 1, HWKV_FULL, 2, 3, 8192, 8192 * (128 + 2 * 256), 8192 * 3 * 128);
    check_types(plan, 1, HWKV_TYPE_F16, HWKV_TYPE_F16);
    CHECK_EQ_INT(hwkv_plan_group_of(plan, 0, 1), 0);
    CHECK_EQ_INT(hwkv_plan_group_of(plan, 1, 2), 1);
    CHECK(!hwkv_plan_is_plain(plan));
    hwkv_plan_free(plan);

    // one full group, but not of the cache's types
    plan = make_typed((const int32_t[5]) { QFULL, QFULL, QFULL, QFULL, QFULL }, &params);
    CHECK_EQ_INT(hwkv_plan_n_group(plan), 1);
    CHECK(!hwkv_plan_is_plain(plan));
    hwkv_plan_free(plan);

    // of a q8_0 cache's it is, and stock
    params.type_k = HWKV_TYPE_Q8_0;
    params.type_v = HWKV_TYPE_Q8_0;
    plan = make_typed((const int32_t[5]) { QFULL, QFULL, QFULL, QFULL, QFULL }, &params);
    CHECK_EQ_INT(hwkv_plan_n_group(plan), 1);
    CHECK(hwkv_plan_is_plain(plan));
    CHECK_EQ_INT(hwkv_plan_size(plan), hwkv_plan_size_plain(plan));
    hwkv_plan_free(plan);
}

// Groups with the same window share its cells, so both have room or neither. 35 cells more take 776 bytes each in all layers; scratch
// memory would be 320 + 100 cells of 384.
static void test_plan__slack_is_shared(void) {
    struct hwkv_plan_params params = hwkv_plan_params_default();
    params.n_ctx    = 8192;
    params.n_pad    = 1;
    params.n_ubatch = 100;
    struct hwkv_plan * plan = make_typed((const int32_t[5]) { Q256, A256, QFULL, A256, AFULL }, &params);
    CHECK_EQ_INT(hwkv_plan_n_group(plan), 4);
    check_group(plan, 2, 256, 1, 1, 355, 355 * 68, 355 * 68);
    check_group(plan, 3, 256, 2, 2, 355, 355 * (128 + 256), 355 * (128 + 128));
    CHECK_EQ_INT(hwkv_plan_group(plan, 2)->n_room, 100);
    CHECK_EQ_INT(hwkv_plan_group(plan, 3)->n_room, 100);
    hwkv_plan_free(plan);
}

static void test_plan__equal_windows_of_different_types(void) {
    struct hwkv_plan_params params = hwkv_plan_params_default();
    params.n_ctx = 8192;
    struct hwkv_plan * plan = make_typed((const int32_t[5]) { B256, A256, Q256, A256, A1024 }, &params);
    CHECK_EQ_INT(hwkv_plan_n_group(plan), 4);
    check_group(plan, 0, 256, 1, 1, 320, 320 * 136, 320 * 68);
    check_types(plan, 0, HWKV_TYPE_Q8_0, HWKV_TYPE_Q8_0);
    check_group(plan, 1, 256, 1, 1, 320, 320 * 128, 320 * 36);
    check_types(plan, 1, HWKV_TYPE_F16, HWKV_TYPE_Q4_0);
    check_group(plan, 2, 256, 2, 2, 320, 320 * (128 + 256), 320 * (128 + 128));
    check_types(plan, 2, HWKV_TYPE_F16, HWKV_TYPE_F16);
    check_group(plan, 3, 1024, 1, 1, 1088, 1088 * 256, 1088 * 128);
    hwkv_plan_free(plan);

    // entries with types keep them in any cache
    params.type_v = HWKV_TYPE_Q4_0;
    plan = make_typed((const int32_t[5]) { B256, A256, Q256, A256, A1024 }, &params);
    CHECK_EQ_INT(hwkv_plan_n_group(plan), 4);
    check_types(plan, 1, HWKV_TYPE_F16, HWKV_TYPE_Q4_0);
    check_types(plan, 2, HWKV_TYPE_F16, HWKV_TYPE_F16);
    hwkv_plan_free(plan);
}

// Groups go by window where the codebook goes by bytes: a short window in a wide type comes after a longer one there.
static void test_plan__windows_ascend(void) {
    struct hwkv_plan_params params = hwkv_plan_params_default();
    params.n_ctx = 8192;
    struct hwkv_plan * plan = make_typed((const int32_t[5]) { A1024, W600, AFULL, Q256, A1024 }, &params);
    CHECK_EQ_INT(hwkv_plan_n_group(plan), 4);
    const int32_t windows[4] = { HWKV_FULL, 256, 600, 1024 };
    const int32_t entries[4] = { AFULL, Q256, W600, A1024 };
    for (int32_t ig = 0; ig < 4; ig++) {
        CHECK_EQ_INT(hwkv_plan_group(plan, ig)->entry.window, windows[ig]);
        CHECK_EQ_INT(hwkv_plan_group(plan, ig)->ic, entries[ig]);
    }
    CHECK_EQ_INT(hwkv_plan_group_of(plan, 0, 0), 3);
    CHECK_EQ_INT(hwkv_plan_group_of(plan, 0, 1), 2);
    CHECK_EQ_INT(hwkv_plan_group_of(plan, 1, 1), 1);
    hwkv_plan_free(plan);
}

// At a context of 512 a window of 1024 is full, at 256 all are: entries share a group where window and types come to the same.
static void test_plan__collapse_at_a_small_context(void) {
    struct hwkv_plan_params params = hwkv_plan_params_default();
    params.n_ctx = 512;
    struct hwkv_plan * plan = make_typed((const int32_t[5]) { A1024, AFULL, QFULL, Q256, A256 }, &params);
    CHECK_EQ_INT(hwkv_plan_n_group(plan), 4);
    check_group(plan, 0, HWKV_FULL, 1, 2, 512, 512 * 2 * 128, 512 * 2 * 128); // 1024 comes before full in the codebook
    check_types(plan, 0, HWKV_TYPE_F16, HWKV_TYPE_F16);
    check_group(plan, 1, HWKV_FULL, 1, 1, 512, 512 * 136, 512 * 68);
    CHECK_EQ_INT(hwkv_plan_group(plan, 0)->ic, AFULL); // the last that comes to it
    check_group(plan, 2, 256, 1, 1, 320, 320 * 136, 320 * 68);
    check_group(plan, 3, 256, 1, 1, 320, 320 * 256, 320 * 128);
    hwkv_plan_free(plan);
    params.n_ctx = 256;
    plan = make_typed((const int32_t[5]) { A1024, AFULL, QFULL, Q256, A256 }, &params);
    CHECK_EQ_INT(hwkv_plan_n_group(plan), 2);
    check_group(plan, 0, HWKV_FULL, 1, 2, 256, 256 * 2 * 136, 256 * 2 * 68);
    check_group(plan, 1, HWKV_FULL, 2, 3, 256, 256 * (2 * 128 + 256), 256 * 3 * 128);
    CHECK(!hwkv_plan_is_plain(plan));
    hwkv_plan_free(plan);
}

// Own types may be wider than the cache's, and may not be quantised where V cannot be.
static void test_plan__own_types_and_the_cache(void) {
    struct hwkv_plan_params params = hwkv_plan_params_default();
    struct hwkv_plan * plan = NULL;
    struct hwkv_error err = { 0 };
    params.n_ctx  = 8192;
    params.type_k = HWKV_TYPE_Q4_0;
    params.type_v = HWKV_TYPE_Q4_0;
    plan = make_typed((const int32_t[5]) { QFULL, QFULL, QFULL, QFULL, QFULL }, &params);
    CHECK(hwkv_plan_size(plan) > hwkv_plan_size_plain(plan));
    hwkv_plan_free(plan);

    params = hwkv_plan_params_default();
    params.flash_attn = false;
    CHECK_ERR(init_typed(&plan, (const int32_t[5]) { AFULL, AFULL, B256, AFULL, AFULL }, &params, &err), HWKV_ERR_VALUE);
    CHECK_STR(err.path, "$.codebook[1]");
    CHECK_STR(err.msg, "found V cache type q4_0 without flash attention, expected f32, f16 or bf16");
    CHECK(plan == NULL);
    plan = make_typed((const int32_t[5]) { AFULL, A256, A256, AFULL, AFULL }, &params); // nobody uses those that could not be
    hwkv_plan_free(plan);
}

static void test_plan__refuses(void) {
    struct hwkv_policy * policy = fixture_policy(0);
    fixture_add(policy, "p", mixed);
    struct hwkv_plan * plan = NULL;
    struct hwkv_error err;
    struct hwkv_plan_params params = hwkv_plan_params_default();
    CHECK_ERR(hwkv_plan_init(&plan, policy, 1, &params, &err), HWKV_ERR_ARG);
    params.n_ctx = 0;
    CHECK_ERR(hwkv_plan_init(&plan, policy, 0, &params, &err), HWKV_ERR_RANGE);
    params = hwkv_plan_params_default();
    params.n_seq_max = 0;
    CHECK_ERR(hwkv_plan_init(&plan, policy, 0, &params, &err), HWKV_ERR_RANGE);
    params = hwkv_plan_params_default();
    params.n_pad = 0;
    CHECK_ERR(hwkv_plan_init(&plan, policy, 0, &params, &err), HWKV_ERR_RANGE);
    params = hwkv_plan_params_default();
    params.flash_attn = false;
    params.type_v     = HWKV_TYPE_Q8_0;
    CHECK_ERR(hwkv_plan_init(&plan, policy, 0, &params, &err), HWKV_ERR_VALUE);
    params = hwkv_plan_params_default();
    params.n_seq_max  = 4;
    params.kv_unified = false;
    params.n_rollback = 1025; // of a sequence's own 1024
    CHECK_ERR(hwkv_plan_init(&plan, policy, 0, &params, &err), HWKV_ERR_RANGE);
    CHECK_STR(err.msg, "found a rollback of 1025 positions, expected at most the context of a sequence, 1024");
    CHECK(plan == NULL);
    params.n_rollback = 1024;
    CHECK_EQ_INT(hwkv_plan_init(&plan, policy, 0, &params, &err), 0);
    CHECK_EQ_INT(hwkv_plan_params_of(plan)->n_rollback, 1024);
    CHECK_EQ_INT(hwkv_plan_params_of(plan)->n_seq_max, 4);
    hwkv_plan_free(plan);
    hwkv_policy_free(policy);
}

// One layer of 256 heads with windows drawn from a codebook of 64: every head in the group of its window, groups in
// order, heads ascending.
static void test_plan__many_groups(void) {
    enum { N_HEAD = 256, N_CODE = 64 };
    struct hwkv_entry codebook[N_CODE];
    int32_t  entries[N_HEAD];
    uint32_t state = 7;
    for (int i = 0; i < N_CODE; i++) {
        codebook[i] = hwkv_entry_of_window(i == N_CODE - 1 ? HWKV_FULL : 16 * (i + 1));
    }
    for (int i = 0; i < N_HEAD; i++) {
        state = state * 1664525u + 1013904223u;
        entries[i] = (int32_t) (state >> 24) % N_CODE / 3 * 3; // two thirds of the entries stay unused
    }
    struct hwkv_layer layer = { 0, N_HEAD, N_HEAD, 64, 64 };
    struct hwkv_geometry geo = { .n_layer = 1, .n_full = 1, .layers = &layer };
    struct hwkv_policy_params policy_params = hwkv_policy_params_default();
    policy_params.geometry   = &geo;
    policy_params.context    = 8192;
    policy_params.codebook   = codebook;
    policy_params.n_codebook = N_CODE;
    struct hwkv_policy * policy = NULL;
    CHECK_EQ_INT(hwkv_policy_init(&policy, &policy_params, NULL), 0);
    const struct hwkv_point_params point = { .name = "p", .method = "drawn", .entries = entries };
    CHECK_EQ_INT(hwkv_policy_add_point(policy, &point, NULL), 0);

    struct hwkv_plan_params params = hwkv_plan_params_default();
    params.n_ctx = 512; // entries from 512 on are full
    struct hwkv_plan * plan = NULL;
    CHECK_EQ_INT(hwkv_plan_init(&plan, policy, 0, &params, NULL), 0);
    int32_t n_seen = 0;
    for (int32_t ig = 0; ig < hwkv_plan_n_group(plan); ig++) {
        const struct hwkv_group * g = hwkv_plan_group(plan, ig);
        CHECK(ig == 0 ? g->entry.window == HWKV_FULL : g->entry.window < 512);
        CHECK(ig < 2 || g->entry.window > hwkv_plan_group(plan, ig - 1)->entry.window);
        int32_t n = 0;
        const int32_t * heads = hwkv_plan_heads(plan, ig, 0, &n);
        CHECK(n > 0 && n == g->n_head);
        for (int32_t i = 0; i < n; i++) {
            const int32_t window = codebook[entries[heads[i]]].window;
            CHECK_EQ_INT(window >= 512 ? HWKV_FULL : window, g->entry.window);
            CHECK(i == 0 || heads[i] > heads[i - 1]);
            CHECK_EQ_INT(hwkv_plan_group_of(plan, 0, heads[i]), ig);
        }
        n_seen += n;
    }
    CHECK_EQ_INT(n_seen, N_HEAD);
    hwkv_plan_free(plan);
    hwkv_policy_free(policy);
}

int main(void) {
    test_plan__one_sequence();
    test_plan__unified_slots();
    test_plan__streams();
    test_plan__short_context();
    test_plan__all_full_is_the_plain_cache();
    test_plan__without_flash_attention();
    test_plan__quantised();
    test_plan__slack();
    test_plan__slack_is_shared();
    test_plan__many_groups();
    test_plan__two_full_groups();
    test_plan__equal_windows_of_different_types();
    test_plan__windows_ascend();
    test_plan__collapse_at_a_small_context();
    test_plan__own_types_and_the_cache();
    test_plan__refuses();
    return testing_result();
}
