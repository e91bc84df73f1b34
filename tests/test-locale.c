// A program may have set a locale with a decimal comma: policies are read and written as ever, and the locale stays what it was.

#include "entries.h"
#include "hwkv-json.h"
#include "hwkv-number.h"
#include "testing.h"

#include <locale.h>
#include <stdlib.h>

static const char * const policies[] = {
    HWKV_SOURCE_DIR "/policies/smollm2-135m-instruct-8k.json",
    HWKV_TEST_DATA "/policy-ok/calibrated.json",
};

#define N_POLICY ((int) (sizeof(policies) / sizeof(policies[0])))

static char * printed(const char * path) {
    struct hwkv_policy * policy = NULL;
    struct hwkv_error    err    = { 0 };
    char * text = NULL;
    CHECK_ERR(hwkv_policy_load(&policy, path, &err), 0);
    CHECK_STR(err.msg, "");
    if (policy) {
        CHECK_ERR(hwkv_policy_print(&text, policy, NULL), 0);
    }
    hwkv_policy_free(policy);
    return text;
}

// of a point that is named by its content, tau among it
static void content_id(char id[65]) {
    static const struct hwkv_entry codebook[] = { WINDOW(256), WINDOW(HWKV_FULL) };
    static const int32_t entries[] = { 0 };
    struct hwkv_geometry geo;
    CHECK_ERR(hwkv_geometry_init(&geo, 1, NULL), 0);
    snprintf(geo.architecture, sizeof(geo.architecture), "llama");
    geo.n_layer   = 1;
    geo.layers[0] = (struct hwkv_layer) { .il = 0, .n_head = 4, .n_head_kv = 1, .head_dim_k = 64, .head_dim_v = 64 };

    struct hwkv_policy_params params = hwkv_policy_params_default();
    params.geometry   = &geo;
    params.context    = 4096;
    params.codebook   = codebook;
    params.n_codebook = 2;

    struct hwkv_policy * policy = NULL;
    const struct hwkv_point_params point = { .name = "p", .tau = 0.995, .entries = entries, .validation = "{\"kl\": [0.125, 1e-7]}" };
    CHECK_ERR(hwkv_policy_init(&policy, &params, NULL), 0);
    CHECK_ERR(hwkv_policy_add_point(policy, &point, NULL), 0);
    CHECK_STR(hwkv_policy_point(policy, 0)->validation, "{\"kl\":[0.125,1e-07]}");
    snprintf(id, 65, "%s", hwkv_policy_point(policy, 0)->artifact_id);
    hwkv_policy_free(policy);
    hwkv_geometry_free(&geo);
}

static void check_comma(void) {
    char text[16];
    snprintf(text, sizeof(text), "%g", 0.5);
    CHECK_STR(text, "0,5");
}

int main(void) {
    char * before[N_POLICY];
    char   id[65];
    char   id_comma[65];
    for (int i = 0; i < N_POLICY; i++) {
        before[i] = printed(policies[i]);
    }
    content_id(id);

    if (!setlocale(LC_ALL, "de_DE.UTF-8")) {
        fprintf(stderr, "skipped: no locale de_DE.UTF-8 (Debian's package locales has its sources)\n");
        return 77;
    }
    check_comma();
    for (int i = 0; i < N_POLICY; i++) {
        char * text = printed(policies[i]);
        CHECK_STR(text, before[i]);
        hwkv_string_free(text);
        hwkv_string_free(before[i]);
    }
    content_id(id_comma);
    CHECK_STR(id_comma, id);

    char text[32];
    hwkv_snprintf(text, sizeof(text), "%.2f", 2.25);
    CHECK_STR(text, "2.25");
    CHECK_NEAR(hwkv_strtod("2.25", NULL), 2.25, 0.0);

    struct hwkv_error err = { 0 };
    CHECK_EQ_INT(hwkv_fail(&err, HWKV_ERR_RANGE, NULL, "found %g", 1.5), HWKV_ERR_RANGE);
    CHECK_STR(err.msg, "found 1.5");

    check_comma();
    return testing_result();
}
