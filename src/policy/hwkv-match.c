// Does a policy fit a model?

#include "hwkv-impl.h"

#include <stdio.h>
#include <string.h>

static int mismatch_number(struct hwkv_error * err, int32_t jl, const char * what, int32_t found, int32_t expected) {
    char path[96];
    snprintf(path, sizeof(path), "$.model.layers[%d].%s", (int) jl, what);
    return hwkv_fail(err, HWKV_ERR_MISMATCH, path, "found %d, expected %d as the model has it", (int) found, (int) expected);
}

static int match_layers(const struct hwkv_geometry * ours, const struct hwkv_geometry * model, struct hwkv_error * err) {
    if (ours->n_layer != model->n_layer) {
        return hwkv_fail(err, HWKV_ERR_MISMATCH, "$.model.n_layer", "found %d, expected %d as the model has it", (int) ours->n_layer,
                         (int) model->n_layer);
    }
    if (ours->n_full != model->n_full) {
        return hwkv_fail(err, HWKV_ERR_MISMATCH, "$.model.layers", "found %d full-attention layers, expected %d as the model has them",
                         (int) ours->n_full, (int) model->n_full);
    }
    for (int32_t jl = 0; jl < ours->n_full; jl++) {
        const struct hwkv_layer * a = &ours->layers[jl];
        const struct hwkv_layer * b = &model->layers[jl];
        if (a->il != b->il) {
            return mismatch_number(err, jl, "layer", a->il, b->il);
        }
        if (a->n_head != b->n_head) {
            return mismatch_number(err, jl, "n_head", a->n_head, b->n_head);
        }
        if (a->n_head_kv != b->n_head_kv) {
            return mismatch_number(err, jl, "n_head_kv", a->n_head_kv, b->n_head_kv);
        }
        if (a->head_dim_k != b->head_dim_k) {
            return mismatch_number(err, jl, "head_dim_k", a->head_dim_k, b->head_dim_k);
        }
        if (a->head_dim_v != b->head_dim_v) {
            return mismatch_number(err, jl, "head_dim_v", a->head_dim_v, b->head_dim_v);
        }
    }
    return 0;
}

int hwkv_policy_check_model(const struct hwkv_policy * policy, const struct hwkv_geometry * model, bool strict, const char ** warning,
                            struct hwkv_error * err) {
    if (warning) {
        *warning = NULL;
    }
    if (!policy || !model) {
        return hwkv_fail(err, HWKV_ERR_ARG, NULL, "found NULL, expected a policy and a model");
    }
    const struct hwkv_geometry * ours = &policy->geo;
    if (strcmp(ours->architecture, model->architecture) != 0) {
        return hwkv_fail(err, HWKV_ERR_MISMATCH, "$.model.architecture", "found \"%s\", expected \"%s\" as the model has it",
                         ours->architecture, model->architecture);
    }
    const int status = match_layers(ours, model, err);
    if (status) {
        return status;
    }
    if (ours->fingerprint[0] && model->fingerprint[0] && strcmp(ours->fingerprint, model->fingerprint) != 0) {
        return hwkv_fail(err, HWKV_ERR_MISMATCH, "$.model.fingerprint",
                         "found %.12s..., expected %.12s...: same head geometry, but another tokenizer or other tensors", ours->fingerprint,
                         model->fingerprint);
    }
    if (ours->type_fingerprint[0] && model->type_fingerprint[0] && strcmp(ours->type_fingerprint, model->type_fingerprint) != 0) {
        if (strict) {
            return hwkv_fail(err, HWKV_ERR_MISMATCH, "$.model.type_fingerprint",
                             "found %.12s..., expected %.12s...: the same model with other tensor types", ours->type_fingerprint,
                             model->type_fingerprint);
        }
        if (warning) {
            *warning = "the policy was made for the same model with other tensor types (quantisation)";
        }
    }
    return 0;
}
