#include "hwkv.h"
#include "testing.h"

#include "policy-fixture.h"

static const int32_t entries_a[5] = { W256, FULL, W1024, W4096, FULL };
static const int32_t entries_b[5] = { W1024, FULL, W1024, W4096, FULL };

static double cosines_a[20] = {
    0.991, 0.995, 0.999, 1, 0.1, 0.2, 0.3, 1, 0.9, 0.98, 0.99, 1, 0.5, 0.6, 0.985, 1, 0.1, 0.2, 0.3, 1,
};
static const struct hwkv_scores scores_a = { "cosine", 8192, cosines_a };

static struct hwkv_policy * make_policy(void) {
    struct hwkv_policy * p = fixture_policy(4);
    const struct hwkv_point_params a = {
        .name = "tau 0.98", .tau = 0.98, .entries = entries_a, .scores = &scores_a, .n_scores = 1, .validation = "{\"kl\": 0.0051}",
    };
    CHECK_EQ_INT(hwkv_policy_add_point(p, &a, NULL), 0);
    fixture_add(p, "by \"hand\"\n\xc3\xa9", entries_b);
    struct hwkv_calibration c = { .text = "wiki", .seed = 42, .n_seq = 2, .n_query = 256, .query_rule = "last-quarter", .tool = "test" };
    memset(c.text_sha256, 'a', 64);
    CHECK_EQ_INT(hwkv_policy_set_calibration(p, &c, NULL), 0);
    CHECK_EQ_INT(hwkv_policy_set_extensions(p, "{\"x\": [1, {\"y\": null}]}", NULL), 0);
    return p;
}

static void test_policy__derives_the_numbers(void) {
    struct hwkv_policy * p = make_policy();
    const struct hwkv_point * a = hwkv_policy_point(p, 0);
    CHECK_EQ_INT(a->bytes, 7274496); // worked out in test-cost.c
    CHECK_NEAR(a->retention, 7274496.0 / 13631488.0, 1e-15);
    CHECK_NEAR(a->min_score, 0.98, 0.0); // head 0 of layer 7 at 1024
    CHECK_EQ_INT(strlen(a->artifact_id), 64);
    CHECK(strcmp(a->artifact_id, hwkv_policy_point(p, 1)->artifact_id) != 0);
    CHECK(isnan(hwkv_policy_point(p, 1)->min_score));
    CHECK_EQ_INT(hwkv_policy_n_unit(p), 5);
    CHECK_EQ_INT(hwkv_policy_unit(p, 1, 2), 4);
    CHECK(hwkv_policy_point(p, 2) == NULL);
    hwkv_policy_free(p);
}

static void test_policy__finds_points_by_name_and_number(void) {
    struct hwkv_policy * p = make_policy();
    CHECK_EQ_INT(hwkv_policy_find_point(p, "tau 0.98"), 0);
    CHECK_EQ_INT(hwkv_policy_find_point(p, "1"), 1);
    CHECK_EQ_INT(hwkv_policy_find_point(p, "2"), -1);
    CHECK_EQ_INT(hwkv_policy_find_point(p, "-1"), -1);
    CHECK_EQ_INT(hwkv_policy_find_point(p, "1x"), -1);
    CHECK_EQ_INT(hwkv_policy_find_point(p, ""), -1);
    CHECK_EQ_INT(hwkv_policy_find_point(p, "99999999999999999999"), -1);
    fixture_add(p, "0", entries_b); // a name wins over a number
    CHECK_EQ_INT(hwkv_policy_find_point(p, "0"), 2);
    hwkv_policy_free(p);
}

static void test_policy__tells_the_points_there_are(void) {
    struct hwkv_policy * p = make_policy();
    struct hwkv_error err = { 0 };
    int32_t ip = 7;
    CHECK_EQ_INT(hwkv_policy_choose_point(&ip, p, "1", &err), 0);
    CHECK_EQ_INT(ip, 1);
    CHECK_EQ_INT(hwkv_policy_choose_point(&ip, p, NULL, &err), 0);
    CHECK_EQ_INT(ip, hwkv_policy_selected(p));
    CHECK_ERR(hwkv_policy_choose_point(&ip, p, "x", NULL), HWKV_ERR_ARG);
    CHECK_EQ_INT(ip, -1);
    CHECK_ERR(hwkv_policy_choose_point(&ip, p, "x", &err), HWKV_ERR_ARG);
    // the second name has a line break in it: a message is one line
    CHECK_STR(err.msg, "found no operating point \"x\", expected one of \"tau 0.98\", \"by \"hand\" \xc3\xa9\" or a number below 2");

    // more than a message holds: the beginning of the list, and its end is still there
    char name[64];
    for (int i = 0; i < 30; i++) {
        snprintf(name, sizeof(name), "a point with a name that is long, number %d", i);
        fixture_add(p, name, entries_b);
    }
    memset(name, 'y', sizeof(name) - 1);
    name[sizeof(name) - 1] = '\0';
    for (int n = 0; n < (int) sizeof(name); n++) {
        CHECK_ERR(hwkv_policy_choose_point(&ip, p, name + n, &err), HWKV_ERR_ARG);
        CHECK(strstr(err.msg, "expected one of \"tau 0.98\", ") != NULL);
        CHECK(strstr(err.msg, ", ... or a number below 32") != NULL);
        CHECK_EQ_INT(strlen(strstr(err.msg, ", ... or")), strlen(", ... or a number below 32"));
    }
    hwkv_policy_free(p);
}

static void test_policy__survives_a_round_trip(void) {
    struct hwkv_policy * p = make_policy();
    struct hwkv_policy * q = NULL;
    struct hwkv_error err = { 0 };
    char * one = NULL;
    char * two = NULL;
    CHECK_EQ_INT(hwkv_policy_select(p, "by \"hand\"\n\xc3\xa9", &err), 0);
    CHECK_EQ_INT(hwkv_policy_print(&one, p, &err), 0);
    CHECK_EQ_INT(hwkv_policy_parse(&q, one, strlen(one), &err), 0);
    CHECK_STR(err.msg, "");
    if (q) {
        CHECK_EQ_INT(hwkv_policy_print(&two, q, &err), 0);
        CHECK_STR(two, one);
        CHECK_EQ_INT(hwkv_policy_selected(q), 1);
        CHECK_EQ_INT(hwkv_policy_sinks(q), 4);
        CHECK_EQ_INT(hwkv_policy_context(q), 8192);
        CHECK_STR(hwkv_policy_extensions(q), "{\"x\":[1,{\"y\":null}]}");
        CHECK_STR(hwkv_policy_point(q, 0)->validation, "{\"kl\":0.0051}");
        CHECK(memcmp(hwkv_point_scores(hwkv_policy_point(q, 0), q, "cosine"), cosines_a, sizeof(cosines_a)) == 0);
        CHECK(hwkv_point_scores(hwkv_policy_point(q, 0), q, "loss") == NULL);
        CHECK(hwkv_point_scores(hwkv_policy_point(q, 1), q, "cosine") == NULL);
        CHECK_EQ_INT(hwkv_policy_calibration(q)->seed, 42);
        CHECK_EQ_INT(strlen(hwkv_policy_hash(q)), 64);
    }
    CHECK_STR(hwkv_policy_hash(p), "");
    hwkv_string_free(one);
    hwkv_string_free(two);
    hwkv_policy_free(q);
    hwkv_policy_free(p);
}

static void test_policy__refuses_bad_points(void) {
    struct hwkv_policy * p = fixture_policy(4);
    struct hwkv_error err;
    int32_t odd[5] = { W256, FULL, 4, W256, W256 };
    struct hwkv_point_params point = { .name = "a", .method = "m", .entries = odd };
    CHECK_ERR(hwkv_policy_add_point(p, &point, &err), HWKV_ERR_VALUE);
    CHECK_STR(err.path, "$.operating_points[0].entries[1][0]");
    CHECK_STR(err.msg, "found entry 4, expected one of the codebook's 4");
    odd[2] = -1;
    CHECK_ERR(hwkv_policy_add_point(p, &point, &err), HWKV_ERR_VALUE);
    point.entries = entries_a;
    point.tau     = 0.5; // and a method
    CHECK_ERR(hwkv_policy_add_point(p, &point, &err), HWKV_ERR_VALUE);
    point.method = NULL;
    point.tau    = 1.5;
    CHECK_ERR(hwkv_policy_add_point(p, &point, &err), HWKV_ERR_RANGE);
    point.tau         = NAN;
    CHECK_ERR(hwkv_policy_add_point(p, &point, &err), HWKV_ERR_RANGE);
    point.tau         = 0.5;
    point.validation  = "[1]";
    CHECK_ERR(hwkv_policy_add_point(p, &point, &err), HWKV_ERR_TYPE);
    double values[20];
    const struct hwkv_scores scores = { "cosine", 8192, values };
    memcpy(values, cosines_a, sizeof(values));
    values[3]        = 0.9; // full must score one
    point.validation = NULL;
    point.scores     = &scores;
    point.n_scores   = 1;
    CHECK_ERR(hwkv_policy_add_point(p, &point, &err), HWKV_ERR_VALUE);
    CHECK_STR(err.path, "$.operating_points[0].scores.cosine[0][0][3]");
    values[3] = 1.0;
    values[0] = NAN;
    CHECK_ERR(hwkv_policy_add_point(p, &point, &err), HWKV_ERR_VALUE);
    CHECK_EQ_INT(hwkv_policy_n_point(p), 0);
    char * text = NULL;
    CHECK_ERR(hwkv_policy_print(&text, p, &err), HWKV_ERR_ARG); // a policy without points is none
    hwkv_policy_free(p);
}

static void test_policy__many_points(void) {
    struct hwkv_policy * p = fixture_policy(4);
    char name[16];
    for (int i = 0; i < HWKV_POINT_MAX; i++) {
        snprintf(name, sizeof(name), "p%d", i);
        fixture_add(p, name, entries_a);
    }
    const struct hwkv_point_params point = { .name = "one more", .method = "m", .entries = entries_a };
    CHECK_ERR(hwkv_policy_add_point(p, &point, NULL), HWKV_ERR_RANGE);
    CHECK_STR(hwkv_policy_point(p, 255)->name, "p255");
    hwkv_policy_free(p);
}

// Ids that files carry: they may not change when the library does.
static void test_policy__keeps_content_ids(void) {
    struct hwkv_policy * p = fixture_policy(4);
    fixture_add(p, "p", entries_a);
    const struct hwkv_point_params point = { .name = "tau 0.98", .tau = 0.98, .entries = entries_a };
    CHECK_EQ_INT(hwkv_policy_add_point(p, &point, NULL), 0);
    CHECK_STR(hwkv_policy_point(p, 0)->artifact_id, "b9a3e1f3bd953a3a527b3131fc229c373e320d9ec6844cab3955187fb634239a");
    CHECK_STR(hwkv_policy_point(p, 1)->artifact_id, "ba8fdcbcc0eb555f9e5c2cebd1e9e0b60da5edb1257dc14e0f16d1e52e863700");
    hwkv_policy_free(p);
}

static void test_policy__windows_alone_take_any_types(void) {
    struct hwkv_policy * p = fixture_policy(4);
    CHECK_EQ_INT(hwkv_policy_check_types_option(p, "-ctk", NULL), 0);
    hwkv_policy_free(p);
}

static int init_codebook(struct hwkv_policy ** policy, const struct hwkv_entry * codebook, int32_t n, struct hwkv_error * err) {
    const struct hwkv_geometry geo = fixture_geometry();
    struct hwkv_policy_params params = hwkv_policy_params_default();
    params.geometry   = &geo;
    params.context    = 8192;
    params.codebook   = codebook;
    params.n_codebook = n;
    return hwkv_policy_init(policy, &params, err);
}

#define TYPED(w, k, v) { (w), HWKV_TYPE_##k, HWKV_TYPE_##v }

// Bytes of a position if all five heads have the type: f16 1664, q8_0 884, f16/q4_0 1204.
static const struct hwkv_entry typed[6] = {
    TYPED(256, Q8_0, Q8_0), TYPED(256, F16, Q4_0), TYPED(256, F16, F16), TYPED(HWKV_FULL, Q8_0, Q8_0), TYPED(HWKV_FULL, F16, F16),
    TYPED(HWKV_FULL, F32, F32),
};

static void test_codebook__types_of_their_own(void) {
    struct hwkv_policy * p = NULL;
    struct hwkv_error err = { 0 };
    CHECK_EQ_INT(init_codebook(&p, typed, 6, &err), 0);
    CHECK(hwkv_policy_has_types(p));
    CHECK_EQ_INT(hwkv_policy_reference(p), 4); // not the last: that of the cache's types
    struct hwkv_error refused = { 0 };
    CHECK_ERR(hwkv_policy_check_types_option(p, "-ctk", &refused), HWKV_ERR_ARG);
    CHECK_STR(refused.path, "$.codebook");
    CHECK_STR(refused.msg, "found -ctk beside entries with types of their own such as 256:q8_0, expected no types for the whole cache "
              "(llama-kv-policy make retype gives a policy other types)");
    const struct hwkv_point_params points[3] = {
        { .name = "a", .method = "m", .entries = (const int32_t[5]) { 0, 1, 2, 3, 4 } },
        { .name = "b", .method = "m", .entries = (const int32_t[5]) { 0, 2, 2, 3, 4 } },
        { .name = "c", .method = "m", .entries = (const int32_t[5]) { 5, 5, 5, 5, 5 } },
    };
    for (int i = 0; i < 3; i++) {
        CHECK_EQ_INT(hwkv_policy_add_point(p, &points[i], &err), 0);
    }
    // the same windows, but not the same content
    CHECK(strcmp(hwkv_policy_point(p, 0)->artifact_id, hwkv_policy_point(p, 1)->artifact_id) != 0);
    const uint64_t bytes = 256 * 136 + 256 * (128 + 36) + 256 * 384 + 8192 * 204 + 8192 * 384;
    CHECK_EQ_INT(hwkv_policy_point(p, 0)->bytes, bytes);
    CHECK_NEAR(hwkv_policy_point(p, 0)->retention, (double) bytes / 13631488.0, 1e-15);
    CHECK_NEAR(hwkv_policy_point(p, 0)->retention_tokens, (3.0 * 256 + 2.0 * 8192) / (5.0 * 8192), 1e-15);
    CHECK_NEAR(hwkv_policy_point(p, 0)->retention_query, (8.0 * 256 + 2.0 * 256 + 4.0 * 8192) / (14.0 * 8192), 1e-15);
    CHECK_NEAR(hwkv_policy_point(p, 2)->retention, 2.0, 0.0);

    char * text = NULL;
    char * again = NULL;
    struct hwkv_policy * q = NULL;
    CHECK_EQ_INT(hwkv_policy_print(&text, p, &err), 0);
    CHECK(strstr(text, "\"codebook\": [\"256:q8_0\", \"256:f16/q4_0\", \"256:f16\", \"full:q8_0\", \"full:f16\", \"full:f32\"]") != NULL);
    CHECK_EQ_INT(hwkv_policy_parse(&q, text, strlen(text), &err), 0);
    CHECK_STR(err.msg, "");
    if (q) {
        CHECK_EQ_INT(hwkv_policy_print(&again, q, &err), 0);
        CHECK_STR(again, text);
        CHECK(memcmp(hwkv_policy_codebook(q, NULL), typed, sizeof(typed)) == 0);
        CHECK(memcmp(hwkv_policy_point(q, 0)->entries, points[0].entries, 5 * sizeof(int32_t)) == 0);
        CHECK_EQ_INT(hwkv_policy_reference(q), 4);
    }
    hwkv_string_free(text);
    hwkv_string_free(again);
    hwkv_policy_free(q);
    hwkv_policy_free(p);
}

static void test_codebook__sorts(void) {
    const struct hwkv_geometry geo = fixture_geometry();
    const struct hwkv_cache cache = { 8192, HWKV_TYPE_F16, HWKV_TYPE_F16 };
    struct hwkv_entry codebook[6] = { typed[4], typed[2], typed[5], typed[0], typed[3], typed[1] };
    struct hwkv_error err = { 0 };
    CHECK_EQ_INT(hwkv_codebook_sort(codebook, 6, &geo, &cache, &err), 0);
    CHECK(memcmp(codebook, typed, sizeof(typed)) == 0);
    CHECK_EQ_INT(hwkv_codebook_reference(codebook, 6, &cache), 4);
    CHECK_EQ_INT(hwkv_codebook_reference(codebook, 4, &cache), -1);
    // equal bytes: by window, then by the precision of K, then of V
    struct hwkv_entry equal[6] = {
        TYPED(512, BF16, F16), TYPED(512, F16, BF16), TYPED(512, F16, F16), TYPED(256, F32, F32), TYPED(512, IQ4_NL, Q4_0), TYPED(512, Q4_0, IQ4_NL),
    };
    static const struct hwkv_entry expected[6] = {
        TYPED(512, Q4_0, IQ4_NL), TYPED(512, IQ4_NL, Q4_0), TYPED(256, F32, F32), TYPED(512, BF16, F16), TYPED(512, F16, BF16), TYPED(512, F16, F16),
    };
    CHECK_EQ_INT(hwkv_codebook_sort(equal, 6, &geo, &cache, &err), 0);
    CHECK(memcmp(equal, expected, sizeof(expected)) == 0);
    struct hwkv_entry bare[4] = { WINDOW(HWKV_FULL), WINDOW(4096), WINDOW(256), WINDOW(1024) };
    CHECK_EQ_INT(hwkv_codebook_sort(bare, 4, &geo, &cache, &err), 0);
    CHECK(memcmp(bare, fixture_codebook, sizeof(bare)) == 0);
    CHECK_EQ_INT(hwkv_codebook_reference(bare, 4, &cache), 3);

    // what it refuses it leaves as it was
    const struct hwkv_entry twice[3] = { typed[4], typed[0], typed[4] };
    memcpy(codebook, twice, sizeof(twice));
    CHECK_ERR(hwkv_codebook_sort(codebook, 3, &geo, &cache, &err), HWKV_ERR_VALUE);
    CHECK_STR(err.msg, "found full:f16 again, expected it once");
    CHECK(memcmp(codebook, twice, sizeof(twice)) == 0);
    const struct hwkv_entry mixed[2] = { TYPED(256, F16, F16), WINDOW(HWKV_FULL) };
    memcpy(codebook, mixed, sizeof(mixed));
    CHECK_ERR(hwkv_codebook_sort(codebook, 2, &geo, &cache, &err), HWKV_ERR_VALUE);
    CHECK_ERR(hwkv_codebook_sort(codebook, 0, &geo, &cache, &err), HWKV_ERR_RANGE);
    CHECK_ERR(hwkv_codebook_sort(NULL, 2, &geo, &cache, &err), HWKV_ERR_ARG);
}

static void test_codebook__refuses(void) {
    static const struct {
        struct hwkv_entry codebook[4];
        int32_t           n;
        const char      * path;
        const char      * msg;
    } bad[] = {
        { { WINDOW(256), WINDOW(256), WINDOW(HWKV_FULL) }, 3, "$.codebook[1]", "found 256 again, expected it once" },
        { { WINDOW(512), WINDOW(256), WINDOW(HWKV_FULL) }, 3, "$.codebook[1]",
          "found 256 of 425984 bytes after 512 of 851968, expected ascending bytes, then windows, then precision" },
        { { TYPED(256, F16, F16), TYPED(256, Q8_0, Q8_0), TYPED(HWKV_FULL, F16, F16) }, 3, "$.codebook[1]",
          "found 256:q8_0 of 226304 bytes after 256:f16 of 425984, expected ascending bytes, then windows, then precision" },
        { { TYPED(256, F16, F16), TYPED(256, F16, BF16), TYPED(HWKV_FULL, F16, F16) }, 3, "$.codebook[1]",
          "found 256:f16/bf16 of 425984 bytes after 256:f16 of 425984, expected ascending bytes, then windows, then precision" },
        { { TYPED(256, F16, F16), TYPED(HWKV_FULL, F16, F16), TYPED(HWKV_FULL, F16, F16) }, 3, "$.codebook[2]",
          "found full:f16 again, expected it once" },
        { { WINDOW(256), TYPED(HWKV_FULL, F16, F16) }, 2, "$.codebook[1]", "found full:f16 after 256, expected types in all entries or in none" },
        { { TYPED(256, CACHE, F16), TYPED(HWKV_FULL, F16, F16) }, 2, "$.codebook[0]", "found 256:-/f16, expected types for both K and V, or none" },
        { { WINDOW(0), WINDOW(HWKV_FULL) }, 2, "$.codebook[0]", "found window 0, expected one above 0 and below the context 8192" },
        { { WINDOW(-1), WINDOW(HWKV_FULL) }, 2, "$.codebook[0]", "found window -1, expected one above 0 and below the context 8192" },
        { { WINDOW(8192), WINDOW(HWKV_FULL) }, 2, "$.codebook[0]", "found window 8192, expected one above 0 and below the context 8192" },
        { { WINDOW(HWKV_FULL), WINDOW(HWKV_FULL) }, 2, "$.codebook[1]", "found full again, expected it once" },
        { { WINDOW(HWKV_FULL), WINDOW(256) }, 2, "$.codebook[1]",
          "found 256 of 425984 bytes after full of 13631488, expected ascending bytes, then windows, then precision" },
        { { WINDOW(256) }, 1, "$.codebook", "found no \"full\", expected the reference among the entries" },
        { { TYPED(HWKV_FULL, Q8_0, Q8_0) }, 1, "$.codebook",
          "found no \"full:f16\", expected the reference, full with the types of cache_types, among the entries" },
        { { { HWKV_FULL, (enum hwkv_type) -2, HWKV_TYPE_F16 } }, 1, "$.codebook[0]",
          "found ? and f16, expected types whose blocks divide the head dims 64 and 64" },
        { { { HWKV_FULL, HWKV_TYPE_F16, HWKV_TYPE_COUNT } }, 1, "$.codebook[0]",
          "found f16 and ?, expected types whose blocks divide the head dims 64 and 64" },
        { { WINDOW(4), WINDOW(HWKV_FULL) }, 2, "$.sinks", "found 4, expected less than the smallest window 4" },
        { { TYPED(8, Q4_0, Q4_0), TYPED(4, F16, F16), TYPED(HWKV_FULL, F16, F16) }, 3, "$.sinks", "found 4, expected less than the smallest window 4" },
    };
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        struct hwkv_policy * p = NULL;
        struct hwkv_error err = { 0 };
        CHECK_ERR(init_codebook(&p, bad[i].codebook, bad[i].n, &err), HWKV_ERR_VALUE);
        CHECK_STR(err.path, bad[i].path);
        CHECK_STR(err.msg, bad[i].msg);
        CHECK(p == NULL);
    }
}

static void test_codebook__refuses_cut_blocks(void) {
    // blocks of 32 do not divide a head of 80
    struct hwkv_layer layer = { 0, 1, 1, 80, 80 };
    struct hwkv_geometry geo = { .n_layer = 1, .n_full = 1, .layers = &layer };
    const struct hwkv_entry codebook[2] = { TYPED(256, F16, Q8_0), TYPED(HWKV_FULL, F16, F16) };
    const struct hwkv_entry bare = WINDOW(HWKV_FULL);
    struct hwkv_policy_params params = hwkv_policy_params_default();
    params.geometry   = &geo;
    params.context    = 8192;
    params.codebook   = codebook;
    params.n_codebook = 2;
    struct hwkv_policy * p = NULL;
    struct hwkv_error err = { 0 };
    CHECK_ERR(hwkv_policy_init(&p, &params, &err), HWKV_ERR_VALUE);
    CHECK_STR(err.path, "$.codebook[0]");
    CHECK_STR(err.msg, "found f16 and q8_0, expected types whose blocks divide the head dims 80 and 80");
    // a cache has types, whatever the entries say
    params.codebook   = &bare;
    params.n_codebook = 1;
    params.type_k     = HWKV_TYPE_CACHE;
    CHECK_ERR(hwkv_policy_init(&p, &params, &err), HWKV_ERR_VALUE);
    CHECK_STR(err.path, "$.cache_types");
}

static void check_mismatch(struct hwkv_geometry * model, const char * path) {
    struct hwkv_policy * p = make_policy();
    struct hwkv_error err = { 0 };
    CHECK_ERR(hwkv_policy_check_model(p, model, false, NULL, &err), HWKV_ERR_MISMATCH);
    CHECK_STR(err.path, path);
    hwkv_policy_free(p);
}

static void test_match__other_geometry_is_an_error(void) {
    struct hwkv_layer layers[2] = { fixture_layers[0], fixture_layers[1] };
    struct hwkv_geometry model = fixture_geometry();
    model.layers = layers;
    struct hwkv_policy * p = make_policy();
    const char * warning = "x";
    CHECK_EQ_INT(hwkv_policy_check_model(p, &model, true, &warning, NULL), 0);
    CHECK(warning == NULL);
    hwkv_policy_free(p);

    snprintf(model.architecture, sizeof(model.architecture), "qwen3");
    check_mismatch(&model, "$.model.architecture");
    model = fixture_geometry();
    model.layers = layers;
    model.n_layer = 9;
    check_mismatch(&model, "$.model.n_layer");
    model.n_layer = 8;
    model.n_full = 1;
    check_mismatch(&model, "$.model.layers");
    model.n_full = 2;
    layers[1].n_head_kv = 6;
    check_mismatch(&model, "$.model.layers[1].n_head_kv");
    layers[1] = fixture_layers[1];
    layers[0].il = 2;
    check_mismatch(&model, "$.model.layers[0].layer");
}

static void test_match__other_types_warn(void) {
    struct hwkv_geometry geo = fixture_geometry();
    memset(geo.fingerprint, 'a', 64);
    memset(geo.type_fingerprint, 'b', 64);
    struct hwkv_policy_params params = hwkv_policy_params_default();
    params.geometry   = &geo;
    params.context    = 8192;
    params.codebook   = fixture_codebook;
    params.n_codebook = 4;
    struct hwkv_policy * p = NULL;
    CHECK_EQ_INT(hwkv_policy_init(&p, &params, NULL), 0);
    const char * warning = NULL;
    CHECK_EQ_INT(hwkv_policy_check_model(p, &geo, true, &warning, NULL), 0);
    geo.type_fingerprint[0] = 'c';
    CHECK_EQ_INT(hwkv_policy_check_model(p, &geo, false, &warning, NULL), 0);
    CHECK(warning != NULL);
    CHECK_ERR(hwkv_policy_check_model(p, &geo, true, &warning, NULL), HWKV_ERR_MISMATCH);
    geo.fingerprint[0] = 'c';
    CHECK_ERR(hwkv_policy_check_model(p, &geo, false, &warning, NULL), HWKV_ERR_MISMATCH);
    hwkv_policy_free(p);
}

static void test_error__formats_one_line(void) {
    struct hwkv_error err = { .code = HWKV_ERR_TYPE, .path = "$.sinks", .msg = "found a string, expected a number" };
    char buf[300];
    CHECK_STR(hwkv_error_format(&err, buf, sizeof(buf)), "$.sinks: found a string, expected a number");
    err.path[0] = '\0';
    err.line    = 3;
    err.column  = 7;
    CHECK_STR(hwkv_error_format(&err, buf, sizeof(buf)), "line 3, column 7: found a string, expected a number");
    char tiny[5];
    CHECK_STR(hwkv_error_format(&err, tiny, sizeof(tiny)), "line");
    CHECK_STR(hwkv_err_name(HWKV_ERR_TYPE), "HWKV_ERR_TYPE");
    CHECK_STR(hwkv_err_name(-1000), "HWKV_ERR_?");
}

int main(void) {
    test_policy__derives_the_numbers();
    test_policy__finds_points_by_name_and_number();
    test_policy__tells_the_points_there_are();
    test_policy__survives_a_round_trip();
    test_policy__refuses_bad_points();
    test_policy__many_points();
    test_policy__keeps_content_ids();
    test_policy__windows_alone_take_any_types();
    test_codebook__types_of_their_own();
    test_codebook__sorts();
    test_codebook__refuses();
    test_codebook__refuses_cut_blocks();
    test_match__other_geometry_is_an_error();
    test_match__other_types_warn();
    test_error__formats_one_line();
    return testing_result();
}
