// JSON tree -> policy. Each function reads one object of the format described in hwkv.h.

#include "hwkv-impl.h"

#include <string.h>

//
// model
//

static int read_layer(struct hwkv_layer * layer, const struct hwkv_at * at, struct hwkv_error * err) {
    static const struct hwkv_key keys[] = {
        { "layer", true }, { "n_head", true }, { "n_head_kv", true }, { "head_dim_k", true }, { "head_dim_v", true },
    };
    int status = hwkv_expect_keys(at, keys, sizeof(keys) / sizeof(keys[0]), err);
    if (status == 0) {
        status = hwkv_read_int32(&layer->il, at, "layer", 0, 16 * HWKV_LAYER_MAX, err);
    }
    if (status == 0) {
        status = hwkv_read_int32(&layer->n_head, at, "n_head", 1, 64 * HWKV_HEAD_MAX, err);
    }
    if (status == 0) {
        status = hwkv_read_int32(&layer->n_head_kv, at, "n_head_kv", 1, HWKV_HEAD_MAX, err);
    }
    if (status == 0) {
        status = hwkv_read_int32(&layer->head_dim_k, at, "head_dim_k", 1, 65536, err);
    }
    if (status == 0) {
        status = hwkv_read_int32(&layer->head_dim_v, at, "head_dim_v", 1, 65536, err);
    }
    return status;
}

static int read_layers(struct hwkv_geometry * geo, const struct hwkv_at * at, struct hwkv_error * err) {
    int status = hwkv_expect_type(at, HWKV_JSON_ARRAY, err);
    if (status) {
        return status;
    }
    const int32_t n = hwkv_json_size(at->node);
    if (n < 1 || n > HWKV_LAYER_MAX) {
        return hwkv_fail_at(err, HWKV_ERR_RANGE, at, "found %d layers, expected 1 to %d", (int) n, HWKV_LAYER_MAX);
    }
    geo->layers = hwkv_alloc((size_t) n, sizeof(*geo->layers));
    if (!geo->layers) {
        return hwkv_fail(err, HWKV_ERR_NOMEM, NULL, "out of memory");
    }
    for (const struct hwkv_json * it = hwkv_json_child(at->node); it && status == 0; it = hwkv_json_next(it)) {
        const struct hwkv_at at_layer = hwkv_at_element(at, it, geo->n_full);
        status = read_layer(&geo->layers[geo->n_full], &at_layer, err);
        geo->n_full++;
    }
    return status;
}

static int read_model(struct hwkv_geometry * geo, const struct hwkv_at * at, struct hwkv_error * err) {
    static const struct hwkv_key keys[] = {
        { "architecture", true }, { "name", true }, { "fingerprint", true }, { "type_fingerprint", true }, { "n_layer", true }, { "layers", true },
    };
    int status = hwkv_expect_keys(at, keys, sizeof(keys) / sizeof(keys[0]), err);
    if (status == 0) {
        status = hwkv_read_text(geo->architecture, sizeof(geo->architecture), at, "architecture", err);
    }
    if (status == 0) {
        status = hwkv_read_text(geo->name, sizeof(geo->name), at, "name", err);
    }
    if (status == 0) {
        status = hwkv_read_hash(geo->fingerprint, at, "fingerprint", true, err);
    }
    if (status == 0) {
        status = hwkv_read_hash(geo->type_fingerprint, at, "type_fingerprint", true, err);
    }
    if (status == 0) {
        status = hwkv_read_int32(&geo->n_layer, at, "n_layer", 1, 16 * HWKV_LAYER_MAX, err);
    }
    if (status == 0) {
        const struct hwkv_at at_layers = hwkv_at_member(at, "layers");
        status = read_layers(geo, &at_layers, err);
    }
    return status;
}

//
// codebook and cache types
//

static int read_codebook(struct hwkv_entry codebook[HWKV_CODE_MAX], int32_t * n, const struct hwkv_at * at, int version, struct hwkv_error * err) {
    int status = hwkv_expect_type(at, HWKV_JSON_ARRAY, err);
    if (status) {
        return status;
    }
    for (const struct hwkv_json * it = hwkv_json_child(at->node); it && status == 0; it = hwkv_json_next(it)) {
        if (*n == HWKV_CODE_MAX) {
            return hwkv_fail_at(err, HWKV_ERR_RANGE, at, "found over %d entries, expected at most that many", HWKV_CODE_MAX);
        }
        const struct hwkv_at at_entry = hwkv_at_element(at, it, *n);
        status = hwkv_read_entry(&codebook[(*n)++], &at_entry, version, err);
    }
    return status;
}

static int read_type(enum hwkv_type * out, const struct hwkv_at * object, const char * key, struct hwkv_error * err) {
    char name[32];
    const int status = hwkv_read_text(name, sizeof(name), object, key, err);
    if (status) {
        return status;
    }
    const int type = hwkv_type_from_name(name);
    if (type < 0) {
        const struct hwkv_at at = hwkv_at_member(object, key);
        return hwkv_fail_at(err, HWKV_ERR_VALUE, &at, "found \"%s\", expected " HWKV_TYPE_NAMES, name);
    }
    *out = (enum hwkv_type) type;
    return 0;
}

static int read_types(struct hwkv_policy_params * params, const struct hwkv_at * at, struct hwkv_error * err) {
    static const struct hwkv_key keys[] = { { "k", true }, { "v", true } };
    int status = hwkv_expect_keys(at, keys, sizeof(keys) / sizeof(keys[0]), err);
    if (status == 0) {
        status = read_type(&params->type_k, at, "k", err);
    }
    return status ? status : read_type(&params->type_v, at, "v", err);
}

//
// the rest
//

static int read_calibration(struct hwkv_policy * p, const struct hwkv_at * at, struct hwkv_error * err) {
    static const struct hwkv_key keys[] = {
        { "text", true }, { "text_sha256", true }, { "seed", true }, { "n_seq", true }, { "n_query", true }, { "query_rule", true }, { "tool", true },
    };
    struct hwkv_calibration c = { 0 };
    int status = hwkv_expect_keys(at, keys, sizeof(keys) / sizeof(keys[0]), err);
    if (status == 0) {
        status = hwkv_read_text(c.text, sizeof(c.text), at, "text", err);
    }
    if (status == 0) {
        status = hwkv_read_hash(c.text_sha256, at, "text_sha256", false, err);
    }
    if (status == 0) {
        status = hwkv_read_int64(&c.seed, at, "seed", 0, (int64_t) 1 << 53, err);
    }
    if (status == 0) {
        status = hwkv_read_int32(&c.n_seq, at, "n_seq", 1, INT32_MAX, err);
    }
    if (status == 0) {
        status = hwkv_read_int32(&c.n_query, at, "n_query", 1, INT32_MAX, err);
    }
    if (status == 0) {
        status = hwkv_read_text(c.query_rule, sizeof(c.query_rule), at, "query_rule", err);
    }
    if (status == 0) {
        status = hwkv_read_text(c.tool, sizeof(c.tool), at, "tool", err);
    }
    return status ? status : hwkv_policy_set_calibration(p, &c, err);
}

static int read_extensions(struct hwkv_policy * p, const struct hwkv_at * at, struct hwkv_error * err) {
    const int status = hwkv_expect_type(at, HWKV_JSON_OBJECT, err);
    return status ? status : hwkv_json_print_compact(&p->extensions, at->node, err);
}

// Format and version come first, so that a file of a later version is not called faulty.
static int check_format(int * version, const struct hwkv_at * root, struct hwkv_error * err) {
    int status = hwkv_expect_type(root, HWKV_JSON_OBJECT, err);
    if (status) {
        return status;
    }
    const struct hwkv_at format     = hwkv_at_member(root, "format");
    const struct hwkv_at at_version = hwkv_at_member(root, "version");
    if (!format.node || !at_version.node) {
        return hwkv_fail_at(err, HWKV_ERR_MISSING_KEY, root, "found no key \"%s\", expected one", format.node ? "version" : "format");
    }
    const enum hwkv_json_type type = hwkv_json_type(format.node);
    if (type != HWKV_JSON_STRING || strcmp(hwkv_json_string(format.node), HWKV_POLICY_FORMAT) != 0) {
        char found[68];
        return hwkv_fail_at(err, HWKV_ERR_VERSION, &format, "found %s, expected \"" HWKV_POLICY_FORMAT "\"",
                            type == HWKV_JSON_STRING ? hwkv_quote(found, hwkv_json_string(format.node), 60) : hwkv_json_type_name(type));
    }
    double number = 0.0;
    status = hwkv_read_number(&number, &at_version, err);
    if (status == 0 && number != 1 && number != HWKV_POLICY_VERSION) {
        return hwkv_fail_at(err, HWKV_ERR_VERSION, &at_version, "found %g, expected 1 or %d", number, HWKV_POLICY_VERSION);
    }
    *version = number == 1 ? 1 : HWKV_POLICY_VERSION;
    return status;
}

// What a policy cannot be made without.
static int read_head(struct hwkv_policy ** out, const struct hwkv_at * root, int version, struct hwkv_error * err) {
    const struct hwkv_at model    = hwkv_at_member(root, "model");
    const struct hwkv_at types    = hwkv_at_member(root, "cache_types");
    const struct hwkv_at at_codes = hwkv_at_member(root, "codebook");
    struct hwkv_entry         codebook[HWKV_CODE_MAX] = { 0 };
    struct hwkv_geometry      geo    = { 0 };
    struct hwkv_policy_params params = { .geometry = &geo, .codebook = codebook };
    int status = read_model(&geo, &model, err);
    if (status == 0) {
        status = hwkv_read_int32(&params.context, root, "context", 1, HWKV_FULL - 1, err);
    }
    if (status == 0) {
        status = read_types(&params, &types, err);
    }
    if (status == 0) {
        status = read_codebook(codebook, &params.n_codebook, &at_codes, version, err);
    }
    if (status == 0) {
        status = hwkv_read_int32(&params.sinks, root, "sinks", 0, HWKV_SINKS_MAX, err);
    }
    if (status == 0) {
        status = hwkv_policy_init(out, &params, err);
    }
    hwkv_geometry_free(&geo);
    return status;
}

static int read_body(struct hwkv_policy * p, const struct hwkv_at * root, int version, struct hwkv_error * err) {
    const struct hwkv_at points      = hwkv_at_member(root, "operating_points");
    const struct hwkv_at calibration = hwkv_at_member(root, "calibration");
    const struct hwkv_at extensions  = hwkv_at_member(root, "extensions");
    char name[HWKV_NAME_MAX];
    int status = hwkv_policy_read_points(p, &points, version, err);
    if (status == 0) {
        status = hwkv_read_text(name, sizeof(name), root, "selected", err);
    }
    if (status == 0) {
        status = hwkv_policy_select(p, name, err);
    }
    if (status == 0 && calibration.node) {
        status = read_calibration(p, &calibration, err);
    }
    if (status == 0 && extensions.node) {
        status = read_extensions(p, &extensions, err);
    }
    return status;
}

int hwkv_policy_read_json(struct hwkv_policy ** out, const struct hwkv_json * root, struct hwkv_error * err) {
    static const struct hwkv_key keys[] = {
        { "format", true },   { "version", true }, { "model", true },            { "context", true },  { "cache_types", true },
        { "codebook", true }, { "sinks", true },   { "operating_points", true }, { "selected", true }, { "calibration", false },
        { "extensions", false },
    };
    *out = NULL;
    const struct hwkv_at at     = hwkv_at_root(root);
    struct hwkv_policy * policy = NULL;
    int version = 0;
    int status  = check_format(&version, &at, err);
    if (status == 0) {
        status = hwkv_expect_keys(&at, keys, sizeof(keys) / sizeof(keys[0]), err);
    }
    if (status == 0) {
        status = read_head(&policy, &at, version, err);
    }
    if (status == 0) {
        status = read_body(policy, &at, version, err);
    }
    if (status) {
        hwkv_policy_free(policy);
        return status;
    }
    *out = policy;
    return 0;
}
