// JSON tree -> policy. Each function reads one object of the format described in hwkv.h.

#include "hwkv-impl.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define PATH_SIZE 128

struct key {
    const char * name;
    bool         required;
};

static int expect_type(const struct hwkv_json * node, enum hwkv_json_type type, const char * path, struct hwkv_error * err) {
    const enum hwkv_json_type found = hwkv_json_type(node);
    if (found != type) {
        return hwkv_fail(err, HWKV_ERR_TYPE, path, "found %s, expected %s", hwkv_json_type_name(found), hwkv_json_type_name(type));
    }
    return 0;
}

// An object with these keys and no others.
static int expect_keys(const struct hwkv_json * node, const struct key * keys, size_t n, const char * path, struct hwkv_error * err) {
    const int status = expect_type(node, HWKV_JSON_OBJECT, path, err);
    if (status) {
        return status;
    }
    for (const struct hwkv_json * it = hwkv_json_child(node); it; it = hwkv_json_next(it)) {
        bool known = false;
        for (size_t i = 0; i < n && !known; i++) {
            known = strcmp(keys[i].name, hwkv_json_key(it)) == 0;
        }
        if (!known) {
            char found[108];
            return hwkv_fail(err, HWKV_ERR_UNKNOWN_KEY, path, "found the key %s, expected only the keys of the format",
                             hwkv_quote(found, hwkv_json_key(it), 100));
        }
    }
    for (size_t i = 0; i < n; i++) {
        if (keys[i].required && !hwkv_json_get(node, keys[i].name)) {
            return hwkv_fail(err, HWKV_ERR_MISSING_KEY, path, "found no key \"%s\", expected one", keys[i].name);
        }
    }
    return 0;
}

static int read_number(double * out, const struct hwkv_json * node, const char * path, struct hwkv_error * err) {
    const int status = expect_type(node, HWKV_JSON_NUMBER, path, err);
    if (status == 0) {
        *out = hwkv_json_number(node);
    }
    return status;
}

// cJSON's own integers saturate, so they are taken from the double. |max| <= 2^53 keeps them exact.
static int read_integer(int64_t * out, const struct hwkv_json * node, int64_t min, int64_t max, const char * path, struct hwkv_error * err) {
    double value = 0.0;
    const int status = read_number(&value, node, path, err);
    if (status) {
        return status;
    }
    if (value != floor(value) || value < (double) min || value > (double) max) {
        return hwkv_fail(err, HWKV_ERR_RANGE, path, "found %.17g, expected an integer from %lld to %lld", value, (long long) min,
                         (long long) max);
    }
    *out = (int64_t) value;
    return 0;
}

static void member_path(char path[PATH_SIZE], const char * parent, const char * key) {
    snprintf(path, PATH_SIZE, "%.90s.%.36s", parent, key);
}

static int read_int32(int32_t * out, const struct hwkv_json * object, const char * key, int32_t min, int32_t max, const char * parent,
                      struct hwkv_error * err) {
    char path[PATH_SIZE];
    member_path(path, parent, key);
    int64_t value = 0;
    const int status = read_integer(&value, hwkv_json_get(object, key), min, max, path, err);
    *out = (int32_t) value;
    return status;
}

static int read_text(char * out, size_t out_size, const struct hwkv_json * object, const char * key, const char * parent,
                     struct hwkv_error * err) {
    char path[PATH_SIZE];
    member_path(path, parent, key);
    const struct hwkv_json * node = hwkv_json_get(object, key);
    const int status = expect_type(node, HWKV_JSON_STRING, path, err);
    if (status) {
        return status;
    }
    const char * text = hwkv_json_string(node);
    if (strlen(text) >= out_size) {
        return hwkv_fail(err, HWKV_ERR_RANGE, path, "found a string of %zu bytes, expected at most %zu", strlen(text), out_size - 1);
    }
    hwkv_copy(out, out_size, text);
    return 0;
}

// 64 hex digits, or "" where that is allowed
static int read_hash(char out[65], const struct hwkv_json * object, const char * key, bool may_be_empty, const char * parent,
                     struct hwkv_error * err) {
    char path[PATH_SIZE];
    member_path(path, parent, key);
    const struct hwkv_json * node = hwkv_json_get(object, key);
    const int status = expect_type(node, HWKV_JSON_STRING, path, err);
    if (status) {
        return status;
    }
    const char * text = hwkv_json_string(node);
    if (!hwkv_is_hex64(text) && !(may_be_empty && text[0] == '\0')) {
        char found[88];
        return hwkv_fail(err, HWKV_ERR_VALUE, path, "found %s, expected 64 lower-case hex digits%s", hwkv_quote(found, text, 80),
                         may_be_empty ? " or \"\"" : "");
    }
    hwkv_copy(out, 65, text);
    return 0;
}

//
// model
//

static int read_layer(struct hwkv_layer * layer, const struct hwkv_json * node, const char * path, struct hwkv_error * err) {
    static const struct key keys[] = { { "layer", true }, { "n_head", true }, { "n_head_kv", true }, { "head_dim_k", true }, { "head_dim_v", true } };
    int status = expect_keys(node, keys, sizeof(keys) / sizeof(keys[0]), path, err);
    if (status == 0) {
        status = read_int32(&layer->il, node, "layer", 0, 16 * HWKV_LAYER_MAX, path, err);
    }
    if (status == 0) {
        status = read_int32(&layer->n_head, node, "n_head", 1, 64 * HWKV_HEAD_MAX, path, err);
    }
    if (status == 0) {
        status = read_int32(&layer->n_head_kv, node, "n_head_kv", 1, HWKV_HEAD_MAX, path, err);
    }
    if (status == 0) {
        status = read_int32(&layer->head_dim_k, node, "head_dim_k", 1, 65536, path, err);
    }
    if (status == 0) {
        status = read_int32(&layer->head_dim_v, node, "head_dim_v", 1, 65536, path, err);
    }
    return status;
}

static int read_layers(struct hwkv_geometry * geo, const struct hwkv_json * node, struct hwkv_error * err) {
    int status = expect_type(node, HWKV_JSON_ARRAY, "$.model.layers", err);
    if (status) {
        return status;
    }
    const int32_t n = hwkv_json_size(node);
    if (n < 1 || n > HWKV_LAYER_MAX) {
        return hwkv_fail(err, HWKV_ERR_RANGE, "$.model.layers", "found %d layers, expected 1 to %d", (int) n, HWKV_LAYER_MAX);
    }
    geo->layers = hwkv_alloc((size_t) n, sizeof(*geo->layers));
    if (!geo->layers) {
        return hwkv_fail(err, HWKV_ERR_NOMEM, NULL, "out of memory");
    }
    for (const struct hwkv_json * it = hwkv_json_child(node); it && status == 0; it = hwkv_json_next(it)) {
        char path[PATH_SIZE];
        snprintf(path, sizeof(path), "$.model.layers[%d]", (int) geo->n_full);
        status = read_layer(&geo->layers[geo->n_full], it, path, err);
        geo->n_full++;
    }
    return status;
}

static int read_model(struct hwkv_geometry * geo, const struct hwkv_json * node, struct hwkv_error * err) {
    static const struct key keys[] = {
        { "architecture", true }, { "name", true }, { "fingerprint", true }, { "type_fingerprint", true }, { "n_layer", true }, { "layers", true },
    };
    int status = expect_keys(node, keys, sizeof(keys) / sizeof(keys[0]), "$.model", err);
    if (status == 0) {
        status = read_text(geo->architecture, sizeof(geo->architecture), node, "architecture", "$.model", err);
    }
    if (status == 0) {
        status = read_text(geo->name, sizeof(geo->name), node, "name", "$.model", err);
    }
    if (status == 0) {
        status = read_hash(geo->fingerprint, node, "fingerprint", true, "$.model", err);
    }
    if (status == 0) {
        status = read_hash(geo->type_fingerprint, node, "type_fingerprint", true, "$.model", err);
    }
    if (status == 0) {
        status = read_int32(&geo->n_layer, node, "n_layer", 1, 16 * HWKV_LAYER_MAX, "$.model", err);
    }
    return status ? status : read_layers(geo, hwkv_json_get(node, "layers"), err);
}

//
// codebook and cache types
//

// A window in a codebook or a matrix: a positive integer or "full".
static int read_window(int32_t * out, const struct hwkv_json * node) {
    const enum hwkv_json_type type = hwkv_json_type(node);
    if (type == HWKV_JSON_STRING) {
        *out = HWKV_FULL;
        return strcmp(hwkv_json_string(node), "full") == 0 ? 0 : HWKV_ERR_VALUE;
    }
    if (type != HWKV_JSON_NUMBER) {
        return HWKV_ERR_TYPE;
    }
    const double value = hwkv_json_number(node);
    if (value != floor(value) || value < 1.0 || value >= (double) HWKV_FULL) {
        return HWKV_ERR_RANGE;
    }
    *out = (int32_t) value;
    return 0;
}

static int fail_window(int code, const struct hwkv_json * node, const char * path, struct hwkv_error * err) {
    static const char expected[] = "expected a positive 32-bit integer or \"full\"";
    const enum hwkv_json_type type = hwkv_json_type(node);
    if (type == HWKV_JSON_NUMBER) {
        return hwkv_fail(err, code, path, "found %.17g, %s", hwkv_json_number(node), expected);
    }
    if (type == HWKV_JSON_STRING) {
        char found[68];
        return hwkv_fail(err, code, path, "found %s, %s", hwkv_quote(found, hwkv_json_string(node), 60), expected);
    }
    return hwkv_fail(err, code, path, "found %s, %s", hwkv_json_type_name(type), expected);
}

static int read_codebook(int32_t codebook[HWKV_CODE_MAX], int32_t * n, const struct hwkv_json * node, struct hwkv_error * err) {
    const int status = expect_type(node, HWKV_JSON_ARRAY, "$.codebook", err);
    if (status) {
        return status;
    }
    for (const struct hwkv_json * it = hwkv_json_child(node); it; it = hwkv_json_next(it)) {
        if (*n == HWKV_CODE_MAX) {
            return hwkv_fail(err, HWKV_ERR_RANGE, "$.codebook", "found over %d entries, expected at most that many", HWKV_CODE_MAX);
        }
        const int code = read_window(&codebook[*n], it);
        if (code) {
            char path[PATH_SIZE];
            snprintf(path, sizeof(path), "$.codebook[%d]", (int) *n);
            return fail_window(code, it, path, err);
        }
        (*n)++;
    }
    return 0;
}

static int read_type(enum hwkv_type * out, const struct hwkv_json * node, const char * key, struct hwkv_error * err) {
    char name[32];
    const int status = read_text(name, sizeof(name), node, key, "$.cache_types", err);
    if (status) {
        return status;
    }
    const int type = hwkv_type_from_name(name);
    if (type < 0) {
        char path[PATH_SIZE];
        member_path(path, "$.cache_types", key);
        return hwkv_fail(err, HWKV_ERR_VALUE, path, "found \"%s\", expected f32, f16, bf16, q8_0, q4_0, q4_1, q5_0, q5_1 or iq4_nl", name);
    }
    *out = (enum hwkv_type) type;
    return 0;
}

static int read_types(struct hwkv_policy_params * params, const struct hwkv_json * node, struct hwkv_error * err) {
    static const struct key keys[] = { { "k", true }, { "v", true } };
    int status = expect_keys(node, keys, sizeof(keys) / sizeof(keys[0]), "$.cache_types", err);
    if (status == 0) {
        status = read_type(&params->type_k, node, "k", err);
    }
    return status ? status : read_type(&params->type_v, node, "v", err);
}

//
// operating points
//

static int expect_size(const struct hwkv_json * node, int32_t n, const char * what, const char * path, struct hwkv_error * err) {
    const int status = expect_type(node, HWKV_JSON_ARRAY, path, err);
    if (status) {
        return status;
    }
    const int32_t found = hwkv_json_size(node);
    if (found != n) {
        return hwkv_fail(err, HWKV_ERR_VALUE, path, "found %d entries, expected %d, one for each %s", (int) found, (int) n, what);
    }
    return 0;
}

// A matrix layer x KV head. Checked before memory is taken for it: a small file cannot promise a large matrix.
static int check_shape(const struct hwkv_policy * p, const struct hwkv_json * node, const char * key, const char * parent, struct hwkv_error * err) {
    char path[PATH_SIZE];
    member_path(path, parent, key);
    int status = expect_size(node, p->geo.n_full, "full-attention layer", path, err);
    int32_t row = 0;
    for (const struct hwkv_json * line = status ? NULL : hwkv_json_child(node); line && status == 0; line = hwkv_json_next(line), row++) {
        snprintf(path, sizeof(path), "%.90s.%s[%d]", parent, key, (int) row);
        status = expect_size(line, p->geo.layers[row].n_head_kv, "KV head", path, err);
    }
    return status;
}

static int read_windows(int32_t * windows, const struct hwkv_json * node, const char * parent, struct hwkv_error * err) {
    int32_t row = 0;
    for (const struct hwkv_json * line = hwkv_json_child(node); line; line = hwkv_json_next(line), row++) {
        int32_t ih = 0;
        for (const struct hwkv_json * it = hwkv_json_child(line); it; it = hwkv_json_next(it), ih++) {
            const int code = read_window(windows++, it);
            if (code) {
                char path[PATH_SIZE];
                snprintf(path, sizeof(path), "%s.windows[%d][%d]", parent, (int) row, (int) ih);
                return fail_window(code, it, path, err);
            }
        }
    }
    return 0;
}

static int read_scores(double * scores, const struct hwkv_policy * p, const struct hwkv_json * node, const char * parent, struct hwkv_error * err) {
    char path[PATH_SIZE];
    int32_t row = 0;
    for (const struct hwkv_json * line = hwkv_json_child(node); line; line = hwkv_json_next(line), row++) {
        int32_t ih = 0;
        for (const struct hwkv_json * head = hwkv_json_child(line); head; head = hwkv_json_next(head), ih++) {
            snprintf(path, sizeof(path), "%s.scores[%d][%d]", parent, (int) row, (int) ih);
            const int status = expect_size(head, p->n_codebook, "codebook entry", path, err);
            if (status) {
                return status;
            }
            int32_t ic = 0;
            for (const struct hwkv_json * it = hwkv_json_child(head); it; it = hwkv_json_next(it), ic++) {
                if (hwkv_json_type(it) != HWKV_JSON_NUMBER) {
                    snprintf(path, sizeof(path), "%s.scores[%d][%d][%d]", parent, (int) row, (int) ih, (int) ic);
                    return expect_type(it, HWKV_JSON_NUMBER, path, err);
                }
                *scores++ = hwkv_json_number(it);
            }
        }
    }
    return 0;
}

// The numbers derived from windows and scores must agree with them: a file edited by hand is caught here.
static int check_derived(const struct hwkv_point * point, const struct hwkv_json * node, const char * parent, struct hwkv_error * err) {
    char path[PATH_SIZE];
    double retention = 0.0;
    member_path(path, parent, "retention");
    int status = read_number(&retention, hwkv_json_get(node, "retention"), path, err);
    if (status == 0 && !(fabs(retention - point->retention) <= 1e-6)) {
        status = hwkv_fail(err, HWKV_ERR_VALUE, path, "found %.9g, expected %.9g from the windows", retention, point->retention);
    }
    if (status) {
        return status;
    }
    int64_t bytes = 0;
    member_path(path, parent, "bytes");
    status = read_integer(&bytes, hwkv_json_get(node, "bytes"), 0, (int64_t) 1 << 53, path, err);
    if (status == 0 && (uint64_t) bytes != point->bytes) {
        status = hwkv_fail(err, HWKV_ERR_VALUE, path, "found %lld, expected %llu from the windows", (long long) bytes,
                           (unsigned long long) point->bytes);
    }
    if (status) {
        return status;
    }
    const struct hwkv_json * low = hwkv_json_get(node, "min_score");
    if (!low != !point->scores) {
        return hwkv_fail(err, point->scores ? HWKV_ERR_MISSING_KEY : HWKV_ERR_VALUE, parent, "found %s, expected both or neither",
                         point->scores ? "scores without min_score" : "min_score without scores");
    }
    if (!low) {
        return 0;
    }
    double min_score = 0.0;
    member_path(path, parent, "min_score");
    status = read_number(&min_score, low, path, err);
    if (status == 0 && !(fabs(min_score - point->min_score) <= 1e-6)) {
        status = hwkv_fail(err, HWKV_ERR_VALUE, path, "found %.9g, expected %.9g from the scores", min_score, point->min_score);
    }
    return status;
}

static int read_rule(struct hwkv_point_params * params, char method[HWKV_NAME_MAX], const struct hwkv_json * node, const char * path,
                     struct hwkv_error * err) {
    const struct hwkv_json * tau = hwkv_json_get(node, "tau");
    if (!tau == !hwkv_json_get(node, "method")) {
        return hwkv_fail(err, tau ? HWKV_ERR_VALUE : HWKV_ERR_MISSING_KEY, path, "found %s of the keys \"tau\" and \"method\", expected exactly one",
                         tau ? "both" : "none");
    }
    if (!tau) {
        params->method = method;
        return read_text(method, HWKV_NAME_MAX, node, "method", path, err);
    }
    char tau_path[PATH_SIZE];
    member_path(tau_path, path, "tau");
    const int status = read_number(&params->tau, tau, tau_path, err);
    if (status == 0 && !(params->tau > 0.0 && params->tau <= 1.0)) {
        return hwkv_fail(err, HWKV_ERR_RANGE, tau_path, "found %g, expected above 0 and at most 1", params->tau);
    }
    return status;
}

static int read_point_arrays(struct hwkv_policy * p, struct hwkv_point_params * params, const struct hwkv_json * node, const char * path,
                             struct hwkv_error * err) {
    const struct hwkv_json * score_node = hwkv_json_get(node, "scores");
    int status = check_shape(p, hwkv_json_get(node, "windows"), "windows", path, err);
    if (status == 0 && score_node) {
        status = check_shape(p, score_node, "scores", path, err);
    }
    if (status) {
        return status;
    }
    const size_t n_unit  = (size_t) hwkv_policy_n_unit(p);
    int32_t    * windows = hwkv_alloc(n_unit, sizeof(*windows));
    double     * scores  = score_node ? hwkv_alloc(n_unit * (size_t) p->n_codebook, sizeof(*scores)) : NULL;
    if (!windows || (score_node && !scores)) {
        status = hwkv_fail(err, HWKV_ERR_NOMEM, path, "out of memory");
    }
    if (status == 0) {
        status = read_windows(windows, hwkv_json_get(node, "windows"), path, err);
    }
    if (status == 0 && score_node) {
        status = read_scores(scores, p, score_node, path, err);
    }
    if (status == 0) {
        params->windows = windows;
        params->scores  = scores;
        status = hwkv_policy_add_point(p, params, err);
    }
    hwkv_free(windows);
    hwkv_free(scores);
    return status ? status : check_derived(&p->points[p->n_point - 1], node, path, err);
}

static int read_point(struct hwkv_policy * p, const struct hwkv_json * node, struct hwkv_error * err) {
    static const struct key keys[] = {
        { "name", true },      { "tau", false },   { "method", false },     { "windows", true },    { "scores", false },
        { "retention", true }, { "bytes", true },  { "min_score", false },  { "artifact_id", true }, { "validation", false },
    };
    char path[64];
    snprintf(path, sizeof(path), "$.operating_points[%d]", (int) p->n_point);
    char name[HWKV_NAME_MAX];
    char method[HWKV_NAME_MAX];
    char artifact_id[65];
    struct hwkv_point_params params = { .name = name, .artifact_id = artifact_id };
    int status = expect_keys(node, keys, sizeof(keys) / sizeof(keys[0]), path, err);
    if (status == 0) {
        status = read_text(name, sizeof(name), node, "name", path, err);
    }
    if (status == 0) {
        status = read_rule(&params, method, node, path, err);
    }
    if (status == 0) {
        status = read_hash(artifact_id, node, "artifact_id", false, path, err);
    }
    const struct hwkv_json * validation = status == 0 ? hwkv_json_get(node, "validation") : NULL;
    char * validation_text = NULL;
    if (validation) {
        char at[PATH_SIZE];
        member_path(at, path, "validation");
        status = expect_type(validation, HWKV_JSON_OBJECT, at, err);
        if (status == 0) {
            status = hwkv_json_print_compact(&validation_text, validation, err);
        }
    }
    if (status == 0) {
        params.validation = validation_text;
        status = read_point_arrays(p, &params, node, path, err);
    }
    hwkv_free(validation_text);
    return status;
}

static int read_points(struct hwkv_policy * p, const struct hwkv_json * node, struct hwkv_error * err) {
    int status = expect_type(node, HWKV_JSON_ARRAY, "$.operating_points", err);
    if (status == 0 && !hwkv_json_child(node)) {
        status = hwkv_fail(err, HWKV_ERR_VALUE, "$.operating_points", "found none, expected at least one");
    }
    for (const struct hwkv_json * it = status ? NULL : hwkv_json_child(node); it && status == 0; it = hwkv_json_next(it)) {
        status = read_point(p, it, err);
    }
    return status;
}

//
// the rest
//

static int read_calibration(struct hwkv_policy * p, const struct hwkv_json * node, struct hwkv_error * err) {
    static const struct key keys[] = {
        { "text", true }, { "text_sha256", true }, { "seed", true }, { "n_seq", true }, { "n_query", true }, { "query_rule", true }, { "tool", true },
    };
    static const char at[] = "$.calibration";
    struct hwkv_calibration c = { 0 };
    int status = expect_keys(node, keys, sizeof(keys) / sizeof(keys[0]), at, err);
    if (status == 0) {
        status = read_text(c.text, sizeof(c.text), node, "text", at, err);
    }
    if (status == 0) {
        status = read_hash(c.text_sha256, node, "text_sha256", false, at, err);
    }
    if (status == 0) {
        status = read_integer(&c.seed, hwkv_json_get(node, "seed"), 0, (int64_t) 1 << 53, "$.calibration.seed", err);
    }
    if (status == 0) {
        status = read_int32(&c.n_seq, node, "n_seq", 1, INT32_MAX, at, err);
    }
    if (status == 0) {
        status = read_int32(&c.n_query, node, "n_query", 1, INT32_MAX, at, err);
    }
    if (status == 0) {
        status = read_text(c.query_rule, sizeof(c.query_rule), node, "query_rule", at, err);
    }
    if (status == 0) {
        status = read_text(c.tool, sizeof(c.tool), node, "tool", at, err);
    }
    return status ? status : hwkv_policy_set_calibration(p, &c, err);
}

static int read_extensions(struct hwkv_policy * p, const struct hwkv_json * node, struct hwkv_error * err) {
    const int status = expect_type(node, HWKV_JSON_OBJECT, "$.extensions", err);
    return status ? status : hwkv_json_print_compact(&p->extensions, node, err);
}

// Format and version come first, so that a file of a later version is not called faulty.
static int check_format(const struct hwkv_json * root, struct hwkv_error * err) {
    const int status = expect_type(root, HWKV_JSON_OBJECT, "$", err);
    if (status) {
        return status;
    }
    const struct hwkv_json * format  = hwkv_json_get(root, "format");
    const struct hwkv_json * version = hwkv_json_get(root, "version");
    if (!format || !version) {
        return hwkv_fail(err, HWKV_ERR_MISSING_KEY, "$", "found no key \"%s\", expected one", format ? "version" : "format");
    }
    if (hwkv_json_type(format) != HWKV_JSON_STRING || strcmp(hwkv_json_string(format), HWKV_POLICY_FORMAT) != 0) {
        char found[68];
        return hwkv_fail(err, HWKV_ERR_VERSION, "$.format", "found %s, expected \"" HWKV_POLICY_FORMAT "\"",
                         hwkv_json_type(format) == HWKV_JSON_STRING ? hwkv_quote(found, hwkv_json_string(format), 60)
                                                                    : hwkv_json_type_name(hwkv_json_type(format)));
    }
    if (hwkv_json_type(version) != HWKV_JSON_NUMBER) {
        return expect_type(version, HWKV_JSON_NUMBER, "$.version", err);
    }
    if (hwkv_json_number(version) != HWKV_POLICY_VERSION) {
        return hwkv_fail(err, HWKV_ERR_VERSION, "$.version", "found %g, expected %d", hwkv_json_number(version), HWKV_POLICY_VERSION);
    }
    return 0;
}

static int read_body(struct hwkv_policy * p, const struct hwkv_json * root, struct hwkv_error * err) {
    int status = read_points(p, hwkv_json_get(root, "operating_points"), err);
    char name[HWKV_NAME_MAX];
    if (status == 0) {
        status = read_text(name, sizeof(name), root, "selected", "$", err);
    }
    if (status == 0) {
        status = hwkv_policy_select(p, name, err);
    }
    const struct hwkv_json * calibration = hwkv_json_get(root, "calibration");
    if (status == 0 && calibration) {
        status = read_calibration(p, calibration, err);
    }
    const struct hwkv_json * extensions = hwkv_json_get(root, "extensions");
    if (status == 0 && extensions) {
        status = read_extensions(p, extensions, err);
    }
    return status;
}

int hwkv_policy_read_json(struct hwkv_policy ** out, const struct hwkv_json * root, struct hwkv_error * err) {
    static const struct key keys[] = {
        { "format", true },   { "version", true }, { "model", true },            { "context", true },  { "cache_types", true },
        { "codebook", true }, { "sinks", true },   { "operating_points", true }, { "selected", true }, { "calibration", false },
        { "extensions", false },
    };
    *out = NULL;
    int32_t codebook[HWKV_CODE_MAX];
    struct hwkv_geometry      geo    = { 0 };
    struct hwkv_policy_params params = { .geometry = &geo, .codebook = codebook };
    struct hwkv_policy      * policy = NULL;
    int status = check_format(root, err);
    if (status == 0) {
        status = expect_keys(root, keys, sizeof(keys) / sizeof(keys[0]), "$", err);
    }
    if (status == 0) {
        status = read_model(&geo, hwkv_json_get(root, "model"), err);
    }
    if (status == 0) {
        status = read_int32(&params.context, root, "context", 1, HWKV_FULL - 1, "$", err);
    }
    if (status == 0) {
        status = read_types(&params, hwkv_json_get(root, "cache_types"), err);
    }
    if (status == 0) {
        status = read_codebook(codebook, &params.n_codebook, hwkv_json_get(root, "codebook"), err);
    }
    if (status == 0) {
        status = read_int32(&params.sinks, root, "sinks", 0, HWKV_SINKS_MAX, "$", err);
    }
    if (status == 0) {
        status = hwkv_policy_init(&policy, &params, err);
    }
    hwkv_geometry_free(&geo);
    if (status == 0) {
        status = read_body(policy, root, err);
    }
    if (status) {
        hwkv_policy_free(policy);
        return status;
    }
    *out = policy;
    return 0;
}
