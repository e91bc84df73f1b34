// Policy -> JSON text in the order hwkv.h describes: the same policy always gives the same bytes.

#include "hwkv-impl.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

// A window alone as a number or "full", as version 1 had it.
static struct hwkv_json * entry_node(const struct hwkv_entry * entry) {
    char text[HWKV_ENTRY_SIZE];
    if (entry->window != HWKV_FULL && !hwkv_entry_has_types(entry)) {
        return hwkv_json_new_number(entry->window);
    }
    return hwkv_json_new_string(hwkv_entry_format(entry, text));
}

static bool add_text(struct hwkv_json * object, const char * key, const char * text) {
    return hwkv_json_add(object, key, hwkv_json_new_string(text));
}

static bool add_number(struct hwkv_json * object, const char * key, double value) {
    return hwkv_json_add(object, key, hwkv_json_new_number(value));
}

static struct hwkv_json * layer_node(const struct hwkv_layer * layer) {
    struct hwkv_json * node = hwkv_json_new_object();
    if (add_number(node, "layer", layer->il) && add_number(node, "n_head", layer->n_head) && add_number(node, "n_head_kv", layer->n_head_kv) &&
        add_number(node, "head_dim_k", layer->head_dim_k) && add_number(node, "head_dim_v", layer->head_dim_v)) {
        return node;
    }
    hwkv_json_free(node);
    return NULL;
}

static struct hwkv_json * model_node(const struct hwkv_geometry * geo) {
    struct hwkv_json * node   = hwkv_json_new_object();
    struct hwkv_json * layers = hwkv_json_new_array();
    bool ok = add_text(node, "architecture", geo->architecture) && add_text(node, "name", geo->name) &&
              add_text(node, "fingerprint", geo->fingerprint) && add_text(node, "type_fingerprint", geo->type_fingerprint) &&
              add_number(node, "n_layer", geo->n_layer);
    for (int32_t jl = 0; jl < geo->n_full && ok; jl++) {
        ok = hwkv_json_append(layers, layer_node(&geo->layers[jl]));
    }
    if (!ok) {
        hwkv_json_free(layers);
        layers = NULL;
    }
    if (hwkv_json_add(node, "layers", layers)) {
        return node;
    }
    hwkv_json_free(node);
    return NULL;
}

static struct hwkv_json * entries_node(const struct hwkv_policy * p, const int32_t * entries) {
    struct hwkv_json * node = hwkv_json_new_array();
    bool ok = node != NULL;
    for (int32_t jl = 0; jl < p->geo.n_full && ok; jl++) {
        struct hwkv_json * line = hwkv_json_new_array();
        for (int32_t ih = 0; ih < p->geo.layers[jl].n_head_kv && ok; ih++) {
            ok = hwkv_json_append(line, entry_node(&p->codebook[*entries++]));
        }
        ok = hwkv_json_append(node, line) && ok;
    }
    if (ok) {
        return node;
    }
    hwkv_json_free(node);
    return NULL;
}

static struct hwkv_json * head_scores_node(const double * scores, int32_t n) {
    struct hwkv_json * node = hwkv_json_new_array();
    bool ok = node != NULL;
    for (int32_t i = 0; i < n && ok; i++) {
        ok = hwkv_json_append(node, hwkv_json_new_number(scores[i]));
    }
    if (ok) {
        return node;
    }
    hwkv_json_free(node);
    return NULL;
}

static struct hwkv_json * matrix_node(const struct hwkv_policy * p, const double * scores) {
    struct hwkv_json * node = hwkv_json_new_array();
    bool ok = node != NULL;
    for (int32_t jl = 0; jl < p->geo.n_full && ok; jl++) {
        struct hwkv_json * line = hwkv_json_new_array();
        for (int32_t ih = 0; ih < p->geo.layers[jl].n_head_kv && ok; ih++) {
            ok = hwkv_json_append(line, head_scores_node(scores, p->n_codebook));
            scores += p->n_codebook;
        }
        ok = hwkv_json_append(node, line) && ok;
    }
    if (ok) {
        return node;
    }
    hwkv_json_free(node);
    return NULL;
}

// The tables of one kind, which stand together: a matrix at C alone, or one for each context.
static struct hwkv_json * kind_node(const struct hwkv_policy * p, const struct hwkv_scores * tables, int32_t n) {
    if (n == 1 && tables[0].context == p->context) {
        return matrix_node(p, tables[0].values);
    }
    struct hwkv_json * node = hwkv_json_new_object();
    bool ok = node != NULL;
    for (int32_t i = 0; i < n && ok; i++) {
        char context[16];
        snprintf(context, sizeof(context), "%d", (int) tables[i].context);
        ok = hwkv_json_add(node, context, matrix_node(p, tables[i].values));
    }
    if (ok) {
        return node;
    }
    hwkv_json_free(node);
    return NULL;
}

static struct hwkv_json * scores_node(const struct hwkv_policy * p, const struct hwkv_point * point) {
    struct hwkv_json * node = hwkv_json_new_object();
    bool ok = node != NULL;
    for (int32_t i = 0, n; i < point->n_scores && ok; i += n) {
        const struct hwkv_scores * first = &point->scores[i];
        n = 1;
        while (i + n < point->n_scores && strcmp(first[n].kind, first->kind) == 0) {
            n++;
        }
        ok = hwkv_json_add(node, first->kind, kind_node(p, first, n));
    }
    if (ok) {
        return node;
    }
    hwkv_json_free(node);
    return NULL;
}

static bool add_rule(struct hwkv_json * node, const struct hwkv_point * point) {
    if (!point->method[0]) {
        return add_number(node, "tau", point->tau);
    }
    return add_text(node, "method", point->method) &&
           (point->budget == 0 || (add_number(node, "budget", (double) point->budget) && add_number(node, "lambda", point->lambda)));
}

static struct hwkv_json * point_node(const struct hwkv_policy * p, const struct hwkv_point * point) {
    struct hwkv_json * node = hwkv_json_new_object();
    bool ok = add_text(node, "name", point->name) && add_rule(node, point) && add_number(node, "retention", point->retention) &&
              add_number(node, "retention_tokens", point->retention_tokens) && add_number(node, "retention_query", point->retention_query) &&
              (isnan(point->min_score) || add_number(node, "min_score", point->min_score)) && add_number(node, "bytes", (double) point->bytes) &&
              add_text(node, "artifact_id", point->artifact_id) && hwkv_json_add(node, "entries", entries_node(p, point->entries));
    if (ok && point->n_scores > 0) {
        ok = hwkv_json_add(node, "scores", scores_node(p, point));
    }
    if (ok && point->validation) {
        ok = hwkv_json_add(node, "validation", hwkv_json_new_parsed(point->validation));
    }
    if (ok) {
        return node;
    }
    hwkv_json_free(node);
    return NULL;
}

static bool add_points(struct hwkv_json * root, const struct hwkv_policy * p) {
    struct hwkv_json * node = hwkv_json_new_array();
    bool ok = node != NULL;
    for (int32_t i = 0; i < p->n_point && ok; i++) {
        ok = hwkv_json_append(node, point_node(p, &p->points[i]));
    }
    return hwkv_json_add(root, "operating_points", node) && ok;
}

static bool add_codebook(struct hwkv_json * root, const struct hwkv_policy * p) {
    struct hwkv_json * node = hwkv_json_new_array();
    bool ok = node != NULL;
    for (int32_t i = 0; i < p->n_codebook && ok; i++) {
        ok = hwkv_json_append(node, entry_node(&p->codebook[i]));
    }
    return hwkv_json_add(root, "codebook", node) && ok;
}

static bool add_types(struct hwkv_json * root, const struct hwkv_policy * p) {
    struct hwkv_json * node = hwkv_json_new_object();
    const bool ok = add_text(node, "k", hwkv_type_name(p->type_k)) && add_text(node, "v", hwkv_type_name(p->type_v));
    return hwkv_json_add(root, "cache_types", node) && ok;
}

static bool add_calibration(struct hwkv_json * root, const struct hwkv_calibration * c) {
    struct hwkv_json * node = hwkv_json_new_object();
    const bool ok = add_text(node, "text", c->text) && add_text(node, "text_sha256", c->text_sha256) && add_number(node, "seed", (double) c->seed) &&
                    add_number(node, "n_seq", c->n_seq) && add_number(node, "n_query", c->n_query) &&
                    add_text(node, "query_rule", c->query_rule) && add_text(node, "tool", c->tool);
    return hwkv_json_add(root, "calibration", node) && ok;
}

int hwkv_policy_print(char ** out, const struct hwkv_policy * policy, struct hwkv_error * err) {
    if (!out) {
        return hwkv_fail(err, HWKV_ERR_ARG, NULL, "found NULL, expected a place for the text");
    }
    *out = NULL;
    if (!policy || policy->n_point < 1) {
        return hwkv_fail(err, HWKV_ERR_ARG, NULL, "found no operating point, expected at least one");
    }
    struct hwkv_json * root = hwkv_json_new_object();
    bool ok = add_text(root, "format", HWKV_POLICY_FORMAT) && add_number(root, "version", HWKV_POLICY_VERSION) &&
              hwkv_json_add(root, "model", model_node(&policy->geo)) && add_number(root, "context", policy->context) && add_types(root, policy) &&
              add_codebook(root, policy) && add_number(root, "sinks", policy->sinks) && add_points(root, policy) &&
              add_text(root, "selected", policy->points[policy->selected].name);
    if (ok && policy->has_calib) {
        ok = add_calibration(root, &policy->calib);
    }
    if (ok && policy->extensions) {
        ok = hwkv_json_add(root, "extensions", hwkv_json_new_parsed(policy->extensions));
    }
    const int status = ok ? hwkv_json_print(out, root, err) : hwkv_fail(err, HWKV_ERR_NOMEM, NULL, "out of memory");
    hwkv_json_free(root);
    return status;
}
