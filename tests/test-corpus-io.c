// Files that are no policies by nature (huge, missing, a directory), impossible arguments, and the promise that
// whatever the library writes it can read again.

// mkdtemp, ftruncate and geteuid
#define _POSIX_C_SOURCE 200809L

#include "entries.h"
#include "hwkv.h"
#include "testing.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

static char g_temp[1024];

static void temp_path(char * path, size_t size, const char * name) {
    snprintf(path, size, "%.990s/%s", g_temp, name);
}

static void check_load_fails(const char * path, int code) {
    struct hwkv_policy * policy = (struct hwkv_policy *) (void *) &policy;
    struct hwkv_error    err    = { 0 };
    CHECK_ERR(hwkv_policy_load(&policy, path, &err), code);
    CHECK(policy == NULL);
    CHECK_EQ_INT(err.code, code);
    CHECK(err.msg[0] != '\0' && strchr(err.msg, '\n') == NULL);
}

//
// files
//

// size times the same byte must fail with this code
static void check_filled(char byte, size_t size, int code) {
    char * text = malloc(size);
    if (!text) {
        fprintf(stderr, "cannot get %zu bytes\n", size);
        exit(1);
    }
    memset(text, byte, size);
    struct hwkv_policy * policy = NULL;
    CHECK_ERR(hwkv_policy_parse(&policy, text, size, NULL), code);
    CHECK(policy == NULL);
    free(text);
}

// A sparse file: it begins with head and goes on with zero bytes.
static void check_sparse(const char * head, size_t size, int code) {
    char path[1024];
    temp_path(path, sizeof(path), "sparse.json");
    FILE * file = fopen(path, "wb");
    CHECK(file && fputs(head, file) >= 0 && fflush(file) == 0 && ftruncate(fileno(file), (off_t) size) == 0 && fclose(file) == 0);
    check_load_fails(path, code);
    CHECK(remove(path) == 0);
}

static void test_sizes(void) {
    check_filled(' ', HWKV_FILE_MAX, HWKV_ERR_TRUNCATED);
    check_filled(' ', (size_t) HWKV_FILE_MAX + 1, HWKV_ERR_TOO_LARGE);
    check_filled('[', HWKV_FILE_MAX, HWKV_ERR_TOO_DEEP);
    check_filled('"', 1, HWKV_ERR_TRUNCATED);
    check_sparse("{", HWKV_FILE_MAX, HWKV_ERR_PARSE);
    check_sparse("{", (size_t) HWKV_FILE_MAX + 1, HWKV_ERR_TOO_LARGE);
}

static void test_no_file(void) {
    char path[1024];
    check_load_fails(g_temp, HWKV_ERR_IO);
    check_load_fails("", HWKV_ERR_IO);
    temp_path(path, sizeof(path), "missing.json");
    check_load_fails(path, HWKV_ERR_IO);
    temp_path(path, sizeof(path), "missing/policy.json");
    check_load_fails(path, HWKV_ERR_IO);

    temp_path(path, sizeof(path), "unreadable.json");
    FILE * file = fopen(path, "wb");
    CHECK(file && fputs("{}", file) >= 0 && fclose(file) == 0);
    CHECK(chmod(path, 0) == 0);
    if (geteuid() == 0) {
        fprintf(stderr, "unreadable file: skipped, root reads everything\n");
    } else {
        check_load_fails(path, HWKV_ERR_IO);
    }
    remove(path);
}

//
// impossible arguments
//

static const struct hwkv_entry codebook[] = { WINDOW(64), WINDOW(HWKV_FULL) };
static const int32_t           entries[]  = { 0 };

// 1 layer, 1 head, no point
static struct hwkv_policy * make_empty(void) {
    struct hwkv_geometry geo;
    CHECK_ERR(hwkv_geometry_init(&geo, 1, NULL), 0);
    snprintf(geo.architecture, sizeof(geo.architecture), "llama");
    geo.n_layer   = 1;
    geo.layers[0] = (struct hwkv_layer) { .il = 0, .n_head = 1, .n_head_kv = 1, .head_dim_k = 32, .head_dim_v = 32 };
    struct hwkv_policy_params params = hwkv_policy_params_default();
    params.geometry   = &geo;
    params.context    = 256;
    params.codebook   = codebook;
    params.n_codebook = 2;
    struct hwkv_policy * policy = NULL;
    CHECK_ERR(hwkv_policy_init(&policy, &params, NULL), 0);
    hwkv_geometry_free(&geo);
    if (!policy) {
        exit(1);
    }
    return policy;
}

static struct hwkv_policy * make_policy(void) {
    struct hwkv_policy * policy = make_empty();
    const struct hwkv_point_params point = { .name = "p", .method = "uniform", .entries = entries };
    CHECK_ERR(hwkv_policy_add_point(policy, &point, NULL), 0);
    return policy;
}

static void test_null_out(const struct hwkv_policy * p) {
    struct hwkv_error err;
    struct hwkv_policy_params params = hwkv_policy_params_default();
    struct hwkv_plan_params   plan   = hwkv_plan_params_default();
    CHECK_ERR(hwkv_policy_load(NULL, "x.json", &err), HWKV_ERR_ARG);
    CHECK_EQ_INT(err.code, HWKV_ERR_ARG);
    CHECK_ERR(hwkv_policy_parse(NULL, "{}", 2, &err), HWKV_ERR_ARG);
    CHECK_ERR(hwkv_policy_init(NULL, &params, &err), HWKV_ERR_ARG);
    CHECK_ERR(hwkv_policy_print(NULL, p, &err), HWKV_ERR_ARG);
    CHECK_ERR(hwkv_plan_init(NULL, p, 0, &plan, &err), HWKV_ERR_ARG);
    CHECK_ERR(hwkv_plan_init(NULL, p, 0, &plan, NULL), HWKV_ERR_ARG);
}

static void test_null_in(struct hwkv_policy * p) {
    struct hwkv_policy * out  = p;
    struct hwkv_plan   * plan = (struct hwkv_plan *) (void *) p;
    char * text = (char *) p;
    struct hwkv_error err;
    struct hwkv_policy_params params      = hwkv_policy_params_default();
    struct hwkv_plan_params   plan_params = hwkv_plan_params_default();
    struct hwkv_point_params  point       = { .name = "q", .method = "m" };
    CHECK_ERR(hwkv_policy_load(&out, NULL, &err), HWKV_ERR_ARG);
    CHECK(out == NULL);
    out = p;
    CHECK_ERR(hwkv_policy_parse(&out, NULL, 0, &err), HWKV_ERR_ARG);
    CHECK(out == NULL);
    out = p;
    CHECK_ERR(hwkv_policy_init(&out, NULL, &err), HWKV_ERR_ARG);
    CHECK(out == NULL);
    CHECK_ERR(hwkv_policy_init(&out, &params, &err), HWKV_ERR_ARG);
    CHECK_ERR(hwkv_policy_print(&text, NULL, &err), HWKV_ERR_ARG);
    CHECK(text == NULL);
    CHECK_ERR(hwkv_policy_save(NULL, "x.json", &err), HWKV_ERR_ARG);
    CHECK_ERR(hwkv_policy_save(p, NULL, &err), HWKV_ERR_ARG);
    CHECK_ERR(hwkv_policy_save(p, "", &err), HWKV_ERR_ARG);
    CHECK_ERR(hwkv_policy_add_point(NULL, &point, &err), HWKV_ERR_ARG);
    CHECK_ERR(hwkv_policy_add_point(p, NULL, &err), HWKV_ERR_ARG);
    CHECK_ERR(hwkv_policy_add_point(p, &point, &err), HWKV_ERR_ARG);
    CHECK_ERR(hwkv_policy_select(NULL, "p", &err), HWKV_ERR_ARG);
    CHECK_ERR(hwkv_policy_select(p, NULL, &err), HWKV_ERR_ARG);
    CHECK_ERR(hwkv_policy_set_calibration(NULL, NULL, &err), HWKV_ERR_ARG);
    CHECK_ERR(hwkv_policy_set_calibration(p, NULL, &err), HWKV_ERR_ARG);
    CHECK_ERR(hwkv_policy_set_validation(NULL, 0, "{}", &err), HWKV_ERR_ARG);
    CHECK_ERR(hwkv_policy_set_validation(p, 1, "{}", &err), HWKV_ERR_ARG);
    CHECK_ERR(hwkv_policy_set_validation(p, -1, "{}", &err), HWKV_ERR_ARG);
    CHECK_ERR(hwkv_policy_set_extensions(NULL, "{}", &err), HWKV_ERR_ARG);
    CHECK_ERR(hwkv_policy_check_model(NULL, hwkv_policy_geometry(p), false, NULL, &err), HWKV_ERR_ARG);
    CHECK_ERR(hwkv_policy_check_model(p, NULL, false, NULL, &err), HWKV_ERR_ARG);
    CHECK_ERR(hwkv_geometry_validate(NULL, &err), HWKV_ERR_ARG);
    CHECK_ERR(hwkv_plan_init(&plan, NULL, 0, &plan_params, &err), HWKV_ERR_ARG);
    CHECK(plan == NULL);
    CHECK_ERR(hwkv_plan_init(&plan, p, 0, NULL, &err), HWKV_ERR_ARG);
    CHECK_ERR(hwkv_plan_init(&plan, p, 1, &plan_params, &err), HWKV_ERR_ARG);
    CHECK_ERR(hwkv_plan_init(&plan, p, -1, &plan_params, NULL), HWKV_ERR_ARG);
}

static void test_arguments(void) {
    struct hwkv_policy * p = make_policy();
    test_null_out(p);
    test_null_in(p);
    CHECK_EQ_INT(hwkv_policy_n_point(p), 1);
    hwkv_policy_free(p);
    hwkv_policy_free(NULL);
    hwkv_plan_free(NULL);
    hwkv_string_free(NULL);
    hwkv_geometry_free(NULL);
}

//
// what is written can be read
//

static void check_readable(const struct hwkv_policy * policy, const char * what) {
    const int before = testing_n_failed;
    char * text = NULL;
    struct hwkv_policy * again = NULL;
    struct hwkv_error    err   = { 0 };
    CHECK_ERR(hwkv_policy_print(&text, policy, &err), 0);
    if (text) {
        CHECK_ERR(hwkv_policy_parse(&again, text, strlen(text), &err), 0);
    }
    if (testing_n_failed > before) {
        fprintf(stderr, "    with %s: %s %s\n", what, err.path, err.msg);
    }
    hwkv_policy_free(again);
    hwkv_string_free(text);
}

// An object of n levels. One that is too deep inside a policy must be refused when it is set, not when it is read.
static void test_nested_objects(void) {
    for (int n = 1; n <= HWKV_DEPTH_MAX + 1; n++) {
        char json[8 * (HWKV_DEPTH_MAX + 2)] = "";
        char what[64];
        for (int i = 0; i < n; i++) {
            strcat(json, i < n - 1 ? "{\"a\":" : "{");
        }
        for (int i = 0; i < n; i++) {
            strcat(json, "}");
        }
        struct hwkv_policy * p = make_policy();
        snprintf(what, sizeof(what), "extensions of %d levels", n);
        CHECK(hwkv_policy_set_extensions(p, json, NULL) == 0 || n >= HWKV_DEPTH_MAX);
        check_readable(p, what);
        CHECK_ERR(hwkv_policy_set_extensions(p, NULL, NULL), 0);
        snprintf(what, sizeof(what), "validation of %d levels", n);
        CHECK(hwkv_policy_set_validation(p, 0, json, NULL) == 0 || n >= HWKV_DEPTH_MAX - 2);
        check_readable(p, what);
        hwkv_policy_free(p);
    }
}

static void test_numbers(void) {
    static const char * const numbers[] = { "1.7976931348623157e308", "-1.7976931348623157e308", "5e-324", "0.1", "0.10000000000000002",
                                            "123456789012345678901234567890", "-0.0", "1e-400", "9007199254740993" };
    for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++) {
        char json[128];
        snprintf(json, sizeof(json), "{\"x\":%s}", numbers[i]);
        struct hwkv_policy * p = make_policy();
        CHECK_ERR(hwkv_policy_set_extensions(p, json, NULL), 0);
        check_readable(p, numbers[i]);
        const double kept = strtod(hwkv_policy_extensions(p) + 5, NULL);
        CHECK(kept == strtod(numbers[i], NULL));
        hwkv_policy_free(p);
    }
    static const char * const wrong[] = { "", "[]", "1", "null", "{", "{\"a\":1,\"a\":1}", "{\"a\":NaN}", "{\"a\":1e999}", "{} x", "{\"\xff\":1}" };
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        struct hwkv_policy * p = make_policy();
        CHECK(hwkv_policy_set_extensions(p, wrong[i], NULL) < 0);
        CHECK(hwkv_policy_extensions(p) == NULL);
        CHECK(hwkv_policy_set_validation(p, 0, wrong[i], NULL) < 0);
        CHECK(hwkv_policy_point(p, 0)->validation == NULL);
        hwkv_policy_free(p);
    }
}

// Text that came from elsewhere (a GGUF's name, a file name) may be no UTF-8: refused or mended, never a broken file.
static void test_texts(void) {
    static const char * const texts[] = { "\xff", "caf\xe9", "\xc0\x80", "\xed\xa0\x80", "a\tb\nc", "\x01\x7f", "\"\\/", "\xf0\x9f\x98\x80" };
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        char what[64];
        snprintf(what, sizeof(what), "text %zu", i);
        struct hwkv_policy * p = make_policy();
        const struct hwkv_point_params point = { .name = texts[i], .method = texts[i], .entries = entries };
        hwkv_policy_add_point(p, &point, NULL);
        check_readable(p, what);
        struct hwkv_calibration calib = { .seed = 0, .n_seq = 1, .n_query = 1 };
        memset(calib.text_sha256, 'a', 64);
        snprintf(calib.text, sizeof(calib.text), "%s", texts[i]);
        hwkv_policy_set_calibration(p, &calib, NULL);
        check_readable(p, what);
        hwkv_policy_free(p);
    }
}

// 2^14 heads of 2^50 bytes are 2^64: the sum must not come out as something small.
static void test_byte_overflow(void) {
    enum { N_LAYER = 16, N_UNIT = N_LAYER * HWKV_HEAD_MAX };
    struct hwkv_geometry geo;
    CHECK_ERR(hwkv_geometry_init(&geo, N_LAYER, NULL), 0);
    geo.n_layer = N_LAYER;
    for (int32_t i = 0; i < N_LAYER; i++) {
        geo.layers[i] = (struct hwkv_layer) { .il = i, .n_head = HWKV_HEAD_MAX, .n_head_kv = HWKV_HEAD_MAX, .head_dim_k = 65536, .head_dim_v = 65536 };
    }
    struct hwkv_policy_params params = hwkv_policy_params_default();
    params.geometry   = &geo;
    params.context    = HWKV_FULL - 1;
    params.codebook   = codebook;
    params.n_codebook = 2;
    params.type_k     = HWKV_TYPE_F32;
    params.type_v     = HWKV_TYPE_F32;
    static int32_t full[N_UNIT];
    for (int32_t i = 0; i < N_UNIT; i++) {
        full[i] = 1;
    }
    const struct hwkv_point_params point = { .name = "p", .method = "full", .entries = full };
    struct hwkv_policy * p = NULL;
    int status = hwkv_policy_init(&p, &params, NULL);
    if (status == 0) {
        status = hwkv_policy_add_point(p, &point, NULL);
    }
    CHECK_ERR(status, HWKV_ERR_RANGE);
    hwkv_policy_free(p);
    hwkv_geometry_free(&geo);
}

// A file of some hundred kilobytes can name 4 million heads with 64 scores each, which are 2 GiB. Memory must follow
// what is there, not what is promised.
static size_t g_largest;

static void * alloc_watched(size_t size) {
    g_largest = size > g_largest ? size : g_largest;
    return size > (size_t) 256 * 1024 * 1024 ? NULL : malloc(size);
}

static void test_promised_scores(void) {
    static char text[1024 * 1024];
    int n = snprintf(text, sizeof(text), "{\"format\":\"headwisekv-policy\",\"version\":1,\"model\":{\"architecture\":\"a\",\"name\":\"\","
                     "\"fingerprint\":\"\",\"type_fingerprint\":\"\",\"n_layer\":%d,\"layers\":[", HWKV_LAYER_MAX);
    for (int i = 0; i < HWKV_LAYER_MAX; i++) {
        n += snprintf(text + n, sizeof(text) - (size_t) n, "%s{\"layer\":%d,\"n_head\":%d,\"n_head_kv\":%d,\"head_dim_k\":1,\"head_dim_v\":1}",
                      i ? "," : "", i, HWKV_HEAD_MAX, HWKV_HEAD_MAX);
    }
    n += snprintf(text + n, sizeof(text) - (size_t) n, "]},\"context\":1024,\"cache_types\":{\"k\":\"f16\",\"v\":\"f16\"},\"sinks\":0,\"codebook\":[");
    for (int i = 1; i < HWKV_CODE_MAX; i++) {
        n += snprintf(text + n, sizeof(text) - (size_t) n, "%d,", i);
    }
    n += snprintf(text + n, sizeof(text) - (size_t) n, "\"full\"],\"operating_points\":[{\"name\":\"p\",\"tau\":1,\"windows\":[],\"scores\":[],"
                  "\"retention\":1,\"min_score\":1,\"bytes\":1,\"artifact_id\":\"%064d\"}],\"selected\":\"p\"}", 0);
    CHECK((size_t) n < sizeof(text) - 1);

    hwkv_set_allocator(alloc_watched, free);
    struct hwkv_policy * policy = NULL;
    struct hwkv_error    err    = { 0 };
    CHECK_ERR(hwkv_policy_parse(&policy, text, (size_t) n, &err), HWKV_ERR_VALUE);
    CHECK_STR(err.path, "$.operating_points[0].windows");
    CHECK(g_largest <= (size_t) 64 * 1024 * 1024);
    hwkv_policy_free(policy);
    hwkv_set_allocator(NULL, NULL);
}

int main(void) {
    const char * tmp = getenv("TMPDIR");
    snprintf(g_temp, sizeof(g_temp), "%s/hwkv-corpus-io-XXXXXX", tmp && tmp[0] ? tmp : "/tmp");
    if (!mkdtemp(g_temp)) {
        fprintf(stderr, "%s: cannot make a directory: %s\n", g_temp, strerror(errno));
        return 1;
    }
    test_sizes();
    test_no_file();
    test_arguments();
    test_nested_objects();
    test_numbers();
    test_texts();
    test_byte_overflow();
    test_promised_scores();
    CHECK(rmdir(g_temp) == 0);
    return testing_result();
}
