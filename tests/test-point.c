// What an operating point carries beside its entries: tables of scores by kind and context, budget and price.

#include "hwkv.h"
#include "testing.h"

#include "policy-fixture.h"

static const int32_t entries[5] = { W256, FULL, W1024, W4096, FULL };

static double cosines[20] = { 0.991, 0.995, 0.999, 1, 0.1, 0.2, 0.3, 1, 0.9, 0.98, 0.99, 1, 0.5, 0.6, 0.985, 1, 0.1, 0.2, 0.3, 1 };
static double worse[20]   = { -1, 0, 1, 1, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 1 };
static double losses[20]  = { 7, 6, 5, 0, 0, 0, 0, 0, 1e9, 1e-9, 0, 0, 3, 2, 1, 0, 3, 2, 1, 0 };

static int add_scores(struct hwkv_policy * p, const char * name, const struct hwkv_scores * scores, int32_t n, struct hwkv_error * err) {
    const struct hwkv_point_params point = { .name = name, .method = "m", .entries = entries, .scores = scores, .n_scores = n };
    return hwkv_policy_add_point(p, &point, err);
}

static struct hwkv_policy * read_again(const struct hwkv_policy * p) {
    struct hwkv_error err = { 0 };
    struct hwkv_policy * q = NULL;
    char * text  = NULL;
    char * again = NULL;
    CHECK_EQ_INT(hwkv_policy_print(&text, p, &err), 0);
    CHECK_EQ_INT(hwkv_policy_parse(&q, text, strlen(text), &err), 0);
    CHECK_STR(err.msg, "");
    CHECK_EQ_INT(hwkv_policy_print(&again, q, &err), 0);
    CHECK_STR(again, text);
    hwkv_string_free(text);
    hwkv_string_free(again);
    return q;
}

static void check_table(const struct hwkv_point * point, int32_t i, const char * kind, int32_t context, const double * values) {
    CHECK_STR(point->scores[i].kind, kind);
    CHECK_EQ_INT(point->scores[i].context, context);
    CHECK(memcmp(point->scores[i].values, values, sizeof(cosines)) == 0);
}

// Whatever order they are given in, they stand and are written by kind, then context.
static void test_scores__kinds_and_contexts(void) {
    const struct hwkv_scores tables[6] = {
        { "loss", 10000, losses }, { "cosine-worst", 8192, worse }, { "loss", 8192, losses }, { "cosine", 512, worse }, { "cosine", 8192, cosines },
        { "loss", 900, losses },
    };
    struct hwkv_policy * p = fixture_policy(4);
    CHECK_EQ_INT(add_scores(p, "a", tables, 6, NULL), 0);
    struct hwkv_policy * q = read_again(p);
    const struct hwkv_policy * both[2] = { p, q };
    for (int i = 0; i < 2; i++) {
        const struct hwkv_point * point = hwkv_policy_point(both[i], 0);
        CHECK_EQ_INT(point->n_scores, 6);
        check_table(point, 0, "cosine", 512, worse);
        check_table(point, 1, "cosine", 8192, cosines);
        check_table(point, 2, "cosine-worst", 8192, worse);
        check_table(point, 3, "loss", 900, losses);
        check_table(point, 4, "loss", 8192, losses);
        check_table(point, 5, "loss", 10000, losses);
        CHECK(hwkv_point_scores(point, both[i], "cosine") == point->scores[1].values);
        CHECK(hwkv_point_scores(point, both[i], "loss") == point->scores[4].values);
        CHECK(hwkv_point_scores(point, both[i], "los") == NULL);
        CHECK_NEAR(point->min_score, 0.98, 0.0); // head 0 of layer 7 at 1024, by the cosines at 8192
    }
    hwkv_policy_free(p);
    hwkv_policy_free(q);
}

// Cosines at another context, or of another kind, are no scores of the entries at C.
static void test_scores__min_score_is_of_the_cosine_at_c(void) {
    const struct hwkv_scores tables[3] = { { "cosine", 512, cosines }, { "cosine-worst", 8192, worse }, { "loss", 8192, losses } };
    struct hwkv_policy * p = fixture_policy(4);
    CHECK_EQ_INT(add_scores(p, "a", tables, 3, NULL), 0);
    CHECK(isnan(hwkv_policy_point(p, 0)->min_score));
    CHECK(hwkv_point_scores(hwkv_policy_point(p, 0), p, "cosine") == NULL);
    struct hwkv_policy * q = read_again(p);
    CHECK(isnan(hwkv_policy_point(q, 0)->min_score));
    CHECK_EQ_INT(hwkv_policy_point(q, 0)->n_scores, 3);
    hwkv_policy_free(p);
    hwkv_policy_free(q);
}

static void check_refused(const struct hwkv_scores * scores, int32_t n, int code, const char * path, const char * msg) {
    struct hwkv_policy * p = fixture_policy(4);
    struct hwkv_error err = { 0 };
    CHECK_ERR(add_scores(p, "a", scores, n, &err), code);
    CHECK_STR(err.path, path);
    CHECK_STR(err.msg, msg);
    CHECK_EQ_INT(hwkv_policy_n_point(p), 0);
    hwkv_policy_free(p);
}

static void check_refused_value(const char * kind, int32_t context, int32_t i, double value, const char * path, const char * msg) {
    double values[20];
    memcpy(values, strncmp(kind, "cosine", 6) == 0 ? cosines : losses, sizeof(values));
    values[i] = value;
    struct hwkv_scores table = { .context = context, .values = values };
    snprintf(table.kind, sizeof(table.kind), "%s", kind);
    check_refused(&table, 1, HWKV_ERR_VALUE, path, msg);
}

#define SCORES "$.operating_points[0].scores"

static void test_scores__refuses_values(void) {
    check_refused_value("cosine", 8192, 3, 0.9, SCORES ".cosine[0][0][3]", "found score 0.9, expected 1 for the reference");
    check_refused_value("cosine", 512, 8, 1.1, SCORES ".cosine.512[1][0][0]", "found score 1.1, expected -1 to 1");
    check_refused_value("cosine-x", 8192, 18, -1.1, SCORES ".cosine-x[1][2][2]", "found score -1.1, expected -1 to 1");
    check_refused_value("cosine", 8192, 0, (double) NAN, SCORES ".cosine[0][0][0]", "found score nan, expected -1 to 1");
    check_refused_value("loss", 8192, 3, 1e-300, SCORES ".loss[0][0][3]", "found score 1e-300, expected 0 for the reference");
    check_refused_value("loss", 8192, 0, -1e-300, SCORES ".loss[0][0][0]", "found score -1e-300, expected a finite loss of at least 0");
    check_refused_value("cosinex", 8192, 0, -1.0, SCORES ".cosinex[0][0][0]", "found score -1, expected a finite loss of at least 0");
    check_refused_value("loss", 8192, 1, (double) INFINITY, SCORES ".loss[0][0][1]", "found score inf, expected a finite loss of at least 0");
    check_refused_value("loss", 8192, 1, (double) NAN, SCORES ".loss[0][0][1]", "found score nan, expected a finite loss of at least 0");
}

static void test_scores__refuses_tables(void) {
    static const char kinds[][32] = { "", "Loss", "a loss", "loss.", "l\xc3\xb6ss", "a/b" };
    for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
        struct hwkv_scores table = { .context = 8192, .values = losses };
        memcpy(table.kind, kinds[i], sizeof(table.kind));
        check_refused(&table, 1, HWKV_ERR_VALUE, SCORES, "found another kind, expected 1 to 31 of a-z, 0-9, _ and -");
    }
    struct hwkv_scores endless = { .context = 8192, .values = losses };
    memset(endless.kind, 'k', sizeof(endless.kind));
    check_refused(&endless, 1, HWKV_ERR_VALUE, SCORES, "found another kind, expected 1 to 31 of a-z, 0-9, _ and -");

    const struct hwkv_scores twice[3] = { { "loss", 512, losses }, { "loss", 8192, losses }, { "loss", 512, losses } };
    check_refused(twice, 3, HWKV_ERR_VALUE, SCORES, "found the kind loss at 512 again, expected it once");
    const struct hwkv_scores nowhere[2] = { { "loss", 0, losses }, { "loss", HWKV_FULL, losses } };
    check_refused(&nowhere[0], 1, HWKV_ERR_RANGE, SCORES ".loss", "found the context 0, expected a positive number of tokens");
    check_refused(&nowhere[1], 1, HWKV_ERR_RANGE, SCORES ".loss", "found the context 2147483647, expected a positive number of tokens");
    const struct hwkv_scores nothing = { "loss", 512, NULL };
    check_refused(&nothing, 1, HWKV_ERR_ARG, SCORES ".loss", "found NULL, expected scores");
    check_refused(NULL, 1, HWKV_ERR_ARG, SCORES, "found 1 tables, expected as many as there are");
    check_refused(twice, -1, HWKV_ERR_ARG, SCORES, "found -1 tables, expected as many as there are");

    struct hwkv_scores many[HWKV_KIND_MAX + 1];
    for (int i = 0; i <= HWKV_KIND_MAX; i++) {
        many[i] = (struct hwkv_scores) { "loss", 1 + i, losses };
    }
    check_refused(many, HWKV_KIND_MAX + 1, HWKV_ERR_RANGE, SCORES, "found 17 tables, expected at most 16");
    struct hwkv_policy * p = fixture_policy(4);
    CHECK_EQ_INT(add_scores(p, "a", many, HWKV_KIND_MAX, NULL), 0);
    hwkv_policy_free(read_again(p));
    hwkv_policy_free(p);
}

static int add_budget(struct hwkv_policy * p, const char * name, uint64_t budget, double lambda, struct hwkv_error * err) {
    const struct hwkv_point_params point = { .name = name, .method = "least loss", .budget = budget, .lambda = lambda, .entries = entries };
    return hwkv_policy_add_point(p, &point, err);
}

static void test_budget__is_kept(void) {
    struct hwkv_policy * p = fixture_policy(4);
    CHECK_EQ_INT(add_budget(p, "none", 0, 0.0, NULL), 0);
    CHECK_EQ_INT(add_budget(p, "none either", 0, (double) NAN, NULL), 0);
    CHECK_EQ_INT(add_budget(p, "some", 25165824, 1.0 / 3.0, NULL), 0);
    CHECK_EQ_INT(add_budget(p, "free", (uint64_t) 1 << 53, 0.0, NULL), 0);
    // the inputs differ, so the ids do
    CHECK(strcmp(hwkv_policy_point(p, 2)->artifact_id, hwkv_policy_point(p, 0)->artifact_id) != 0);
    CHECK(strcmp(hwkv_policy_point(p, 2)->artifact_id, hwkv_policy_point(p, 3)->artifact_id) != 0);
    CHECK_STR(hwkv_policy_point(p, 0)->artifact_id, hwkv_policy_point(p, 1)->artifact_id);
    struct hwkv_policy * q = read_again(p);
    const struct hwkv_policy * both[2] = { p, q };
    for (int i = 0; i < 2; i++) {
        for (int32_t ip = 0; ip < 2; ip++) {
            CHECK_EQ_INT(hwkv_policy_point(both[i], ip)->budget, 0);
            CHECK(isnan(hwkv_policy_point(both[i], ip)->lambda));
        }
        CHECK_EQ_INT(hwkv_policy_point(both[i], 2)->budget, 25165824);
        CHECK_NEAR(hwkv_policy_point(both[i], 2)->lambda, 1.0 / 3.0, 0.0);
        CHECK_EQ_INT(hwkv_policy_point(both[i], 3)->budget, 9007199254740992);
        CHECK_NEAR(hwkv_policy_point(both[i], 3)->lambda, 0.0, 0.0);
    }
    hwkv_policy_free(p);
    hwkv_policy_free(q);
}

static void test_budget__refuses(void) {
    struct hwkv_policy * p = fixture_policy(4);
    struct hwkv_error err = { 0 };
    CHECK_ERR(add_budget(p, "a", 0, 1.0, &err), HWKV_ERR_VALUE);
    CHECK_STR(err.msg, "found lambda without budget, expected both or neither");
    CHECK_ERR(add_budget(p, "a", 1, -1.0, &err), HWKV_ERR_RANGE);
    CHECK_STR(err.msg, "found lambda -1, expected a finite number of at least 0");
    CHECK_ERR(add_budget(p, "a", 1, (double) NAN, &err), HWKV_ERR_RANGE);
    CHECK_ERR(add_budget(p, "a", 1, (double) INFINITY, &err), HWKV_ERR_RANGE);
    CHECK_ERR(add_budget(p, "a", ((uint64_t) 1 << 53) + 1, 0.0, &err), HWKV_ERR_RANGE);
    CHECK_ERR(add_budget(p, "a", UINT64_MAX, 0.0, &err), HWKV_ERR_RANGE);
    const struct hwkv_point_params point = { .name = "a", .tau = 0.9, .budget = 1, .entries = entries };
    CHECK_ERR(hwkv_policy_add_point(p, &point, &err), HWKV_ERR_VALUE);
    CHECK_STR(err.msg, "found a budget beside tau, expected it beside a method");
    CHECK_EQ_INT(hwkv_policy_n_point(p), 0);
    hwkv_policy_free(p);
}

int main(void) {
    test_scores__kinds_and_contexts();
    test_scores__min_score_is_of_the_cosine_at_c();
    test_scores__refuses_values();
    test_scores__refuses_tables();
    test_budget__is_kept();
    test_budget__refuses();
    return testing_result();
}
