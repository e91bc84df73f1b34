// Tables of scores: what a kind may be called, what its values may be, and finding one.

#include "hwkv-impl.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool hwkv_kind_is_valid(const char * kind) {
    const size_t n = strlen(kind);
    return n >= 1 && n < sizeof(((struct hwkv_scores *) NULL)->kind) && strspn(kind, "abcdefghijklmnopqrstuvwxyz0123456789_-") == n;
}

static bool is_cosine(const char * kind) {
    return strcmp(kind, HWKV_KIND_COSINE) == 0 || strncmp(kind, HWKV_KIND_COSINE "-", strlen(HWKV_KIND_COSINE "-")) == 0;
}

const char * hwkv_score_expected(const char * kind, bool is_reference, double value) {
    if (is_cosine(kind)) {
        // rounding may carry a mean of cosines a hair over one
        const bool ok = is_reference ? value == 1.0 : value >= -1.0 - 1e-9 && value <= 1.0 + 1e-9;
        return ok ? NULL : is_reference ? "1 for the reference" : "-1 to 1";
    }
    const bool ok = is_reference ? value == 0.0 : value >= 0.0 && isfinite(value);
    return ok ? NULL : is_reference ? "0 for the reference" : "a finite loss of at least 0";
}

static int check_values(const struct hwkv_policy * policy, const struct hwkv_scores * table, const char * path, struct hwkv_error * err) {
    const int32_t n = policy->n_codebook;
    for (int32_t jl = 0; jl < policy->geo.n_full; jl++) {
        for (int32_t ih = 0; ih < policy->geo.layers[jl].n_head_kv; ih++) {
            const double * s = table->values + (size_t) hwkv_policy_unit(policy, jl, ih) * (size_t) n;
            for (int32_t i = 0; i < n; i++) {
                const char * expected = hwkv_score_expected(table->kind, i == policy->reference, s[i]);
                if (expected) {
                    char at[192];
                    snprintf(at, sizeof(at), "%s[%d][%d][%d]", path, (int) jl, (int) ih, (int) i);
                    return hwkv_fail(err, HWKV_ERR_VALUE, at, "found score %g, expected %s", s[i], expected);
                }
            }
        }
    }
    return 0;
}

static int check_table(const struct hwkv_policy * policy, const struct hwkv_scores * table, const char * path, struct hwkv_error * err) {
    char at[128];
    if (!memchr(table->kind, '\0', sizeof(table->kind)) || !hwkv_kind_is_valid(table->kind)) {
        return hwkv_fail(err, HWKV_ERR_VALUE, path, "found another kind, expected " HWKV_KIND_EXPECTED);
    }
    snprintf(at, sizeof(at), "%s.%s", path, table->kind);
    if (table->context < 1 || table->context == HWKV_FULL) {
        return hwkv_fail(err, HWKV_ERR_RANGE, at, "found the context %d, expected a positive number of tokens", (int) table->context);
    }
    if (!table->values) {
        return hwkv_fail(err, HWKV_ERR_ARG, at, "found NULL, expected scores");
    }
    if (table->context != policy->context) {
        snprintf(at, sizeof(at), "%s.%s.%d", path, table->kind, (int) table->context);
    }
    return check_values(policy, table, at, err);
}

int hwkv_scores_validate(const struct hwkv_policy * policy, const struct hwkv_scores * scores, int32_t n, const char * path, struct hwkv_error * err) {
    if (n < 0 || (n > 0 && !scores)) {
        return hwkv_fail(err, HWKV_ERR_ARG, path, "found %d tables, expected as many as there are", (int) n);
    }
    if (n > HWKV_KIND_MAX) {
        return hwkv_fail(err, HWKV_ERR_RANGE, path, "found %d tables, expected at most %d", (int) n, HWKV_KIND_MAX);
    }
    for (int32_t i = 0; i < n; i++) {
        const int status = check_table(policy, &scores[i], path, err);
        if (status) {
            return status;
        }
        for (int32_t k = 0; k < i; k++) {
            if (strcmp(scores[k].kind, scores[i].kind) == 0 && scores[k].context == scores[i].context) {
                return hwkv_fail(err, HWKV_ERR_VALUE, path, "found the kind %s at %d again, expected it once", scores[i].kind, (int) scores[i].context);
            }
        }
    }
    return 0;
}

//
// tables of a point's own
//

static int compare_tables(const void * a, const void * b) {
    const struct hwkv_scores * x = a;
    const struct hwkv_scores * y = b;
    const int kind = strcmp(x->kind, y->kind);
    return kind ? kind : x->context < y->context ? -1 : x->context > y->context;
}

int hwkv_scores_copy(struct hwkv_scores ** out, const struct hwkv_scores * scores, int32_t n, size_t n_value, struct hwkv_error * err) {
    *out = NULL;
    if (n == 0) {
        return 0;
    }
    struct hwkv_scores * res = hwkv_alloc((size_t) n, sizeof(*res));
    bool ok = res != NULL;
    for (int32_t i = 0; i < n && ok; i++) {
        hwkv_copy(res[i].kind, sizeof(res[i].kind), scores[i].kind);
        res[i].context = scores[i].context;
        res[i].values  = hwkv_alloc(n_value, sizeof(*res[i].values));
        ok = res[i].values != NULL;
        if (ok) {
            memcpy(res[i].values, scores[i].values, n_value * sizeof(*res[i].values));
        }
    }
    if (!ok) {
        hwkv_scores_free(res, n);
        return hwkv_fail(err, HWKV_ERR_NOMEM, NULL, "out of memory");
    }
    qsort(res, (size_t) n, sizeof(*res), compare_tables); // the same tables are always written alike
    *out = res;
    return 0;
}

void hwkv_scores_free(struct hwkv_scores * scores, int32_t n) {
    for (int32_t i = 0; i < n && scores; i++) {
        hwkv_free(scores[i].values);
    }
    hwkv_free(scores);
}

const double * hwkv_point_scores(const struct hwkv_point * point, const struct hwkv_policy * policy, const char * kind) {
    for (int32_t i = 0; i < point->n_scores; i++) {
        if (point->scores[i].context == policy->context && strcmp(point->scores[i].kind, kind) == 0) {
            return point->scores[i].values;
        }
    }
    return NULL;
}
