// Choosing windows from scores, and an operating point from a grid.

#include "hwkv-impl.h"

#include <math.h>
#include <stdlib.h>

int32_t hwkv_select_threshold(const double * scores, int32_t n_codebook, double tau) {
    for (int32_t i = 0; i < n_codebook - 1; i++) {
        if (scores[i] >= tau) {
            return i;
        }
    }
    return n_codebook - 1; // full scores one by definition
}

int32_t hwkv_select_budget(const struct hwkv_record * records, int32_t n, double budget) {
    int32_t best = -1;
    for (int32_t i = 0; i < n; i++) {
        if (!(records[i].retention <= budget)) {
            continue;
        }
        const bool better = best < 0 || records[i].min_score > records[best].min_score ||
                            (records[i].min_score == records[best].min_score && records[i].retention < records[best].retention);
        if (better) {
            best = i;
        }
    }
    return best;
}

struct unit_score {
    double  score;
    int32_t unit;
};

static int compare_unit_scores(const void * a, const void * b) {
    const struct unit_score * x = a;
    const struct unit_score * y = b;
    if (x->score != y->score) {
        return x->score < y->score ? -1 : 1;
    }
    return x->unit < y->unit ? -1 : x->unit > y->unit;
}

int hwkv_select_binary(int32_t * entries, const double * scores, int32_t n_unit, int32_t n_codebook, int32_t ic, double ratio,
                       struct hwkv_error * err) {
    if (!entries || !scores || n_unit < 1 || ic < 0 || ic >= n_codebook - 1) {
        return hwkv_fail(err, HWKV_ERR_ARG, NULL, "a binary split needs scores and a codebook entry before the last");
    }
    if (!(ratio >= 0.0 && ratio <= 1.0)) {
        return hwkv_fail(err, HWKV_ERR_RANGE, NULL, "found ratio %g, expected 0 to 1", ratio);
    }
    struct unit_score * order = hwkv_alloc((size_t) n_unit, sizeof(*order));
    if (!order) {
        return hwkv_fail(err, HWKV_ERR_NOMEM, NULL, "out of memory");
    }
    for (int32_t i = 0; i < n_unit; i++) {
        order[i] = (struct unit_score) { scores[(size_t) i * (size_t) n_codebook + (size_t) ic], i };
    }
    qsort(order, (size_t) n_unit, sizeof(*order), compare_unit_scores);
    const int32_t n_full = (int32_t) lround(ratio * n_unit);
    for (int32_t i = 0; i < n_unit; i++) {
        entries[order[i].unit] = i < n_full ? n_codebook - 1 : ic;
    }
    hwkv_free(order);
    return 0;
}
