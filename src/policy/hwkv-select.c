// Choosing entries from scores, and an operating point from a grid.

#include "hwkv-impl.h"

#include <math.h>
#include <stdlib.h>

int32_t hwkv_select_threshold(const double * scores, int32_t n_codebook, double tau) {
    int32_t i = 0;
    while (i < n_codebook - 1 && !(scores[i] >= tau)) {
        i++;
    }
    return i;
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

int hwkv_select_binary(int32_t * entries, const struct hwkv_split * split, struct hwkv_error * err) {
    if (!entries || !split || !split->scores || split->n_unit < 1) {
        return hwkv_fail(err, HWKV_ERR_ARG, NULL, "found no scores, expected those of at least one head for a binary split");
    }
    const int32_t n = split->n_codebook;
    if (split->ic < 0 || split->ic >= n || split->reference < 0 || split->reference >= n || split->ic == split->reference) {
        return hwkv_fail(err, HWKV_ERR_ARG, NULL, "found entries %d and %d, expected two of the codebook's %d for a binary split", (int) split->ic,
                         (int) split->reference, (int) n);
    }
    if (!(split->ratio >= 0.0 && split->ratio <= 1.0)) {
        return hwkv_fail(err, HWKV_ERR_RANGE, NULL, "found ratio %g, expected 0 to 1", split->ratio);
    }
    struct unit_score * order = hwkv_alloc((size_t) split->n_unit, sizeof(*order));
    if (!order) {
        return hwkv_fail(err, HWKV_ERR_NOMEM, NULL, "out of memory");
    }
    for (int32_t i = 0; i < split->n_unit; i++) {
        order[i] = (struct unit_score) { split->scores[(size_t) i * (size_t) n + (size_t) split->ic], i };
    }
    qsort(order, (size_t) split->n_unit, sizeof(*order), compare_unit_scores);
    const int32_t n_full = (int32_t) lround(split->ratio * split->n_unit);
    for (int32_t i = 0; i < split->n_unit; i++) {
        entries[order[i].unit] = i < n_full ? split->reference : split->ic;
    }
    hwkv_free(order);
    return 0;
}
