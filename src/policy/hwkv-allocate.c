// Spending a number of bytes on entries so that the least is lost.
//
// Under a price for bytes every unit takes the entry with the least loss + price x bytes, which is a corner of the lower convex hull of what
// the unit is offered. As the price falls, units step from corner to corner, those that gain the most for a byte first. The price at which the
// budget is spent is lambda. What is left over then goes into whatever still fits, and into exchanges: one unit steps back for another.

#include "hwkv-impl.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

// From one corner of a unit's hull to the next.
struct step {
    double   gain;
    uint64_t bytes;
    int32_t  unit;
    int32_t  from;
    int32_t  to;
};

// Another entry for a unit than it has.
struct move {
    double  gain;  // of loss
    int64_t bytes; // more than now
    int32_t unit;
    int32_t entry;
};

// Up to a place in the order of bytes: the move that gains the most, and the one of another unit; -1: none.
struct best {
    int32_t first;
    int32_t second;
};

struct allocate {
    const struct hwkv_allocate_params * params;
    int32_t     * entries;
    uint64_t      bytes;
    double        lambda;
    struct step * steps;
    int32_t       n_step;
    struct move * moves; // [n_unit][n_entry] at most: those that gain
    struct best * bests;
    int32_t       n_move;
};

static uint64_t bytes_of(const struct hwkv_allocate_params * p, int32_t unit, int32_t entry) {
    return p->bytes[(size_t) unit * (size_t) p->n_entry + (size_t) entry];
}

static double loss_of(const struct hwkv_allocate_params * p, int32_t unit, int32_t entry) {
    return p->loss[(size_t) unit * (size_t) p->n_entry + (size_t) entry];
}

//
// hulls
//

// Fewer bytes, then less loss, then the order of the codebook.
static bool comes_before(const struct hwkv_allocate_params * p, int32_t unit, int32_t a, int32_t b) {
    const uint64_t bytes_a = bytes_of(p, unit, a);
    const uint64_t bytes_b = bytes_of(p, unit, b);
    if (bytes_a != bytes_b) {
        return bytes_a < bytes_b;
    }
    const double loss_a = loss_of(p, unit, a);
    const double loss_b = loss_of(p, unit, b);
    return loss_a != loss_b ? loss_a < loss_b : a < b;
}

static double slope(const struct hwkv_allocate_params * p, int32_t unit, int32_t a, int32_t b) {
    return (loss_of(p, unit, a) - loss_of(p, unit, b)) / (double) (bytes_of(p, unit, b) - bytes_of(p, unit, a));
}

// The corners of a unit's hull, from the cheapest on: each loses less than the one before, and gains less for a byte than the one before did.
static int32_t find_hull(const struct hwkv_allocate_params * p, int32_t unit, int32_t hull[HWKV_CODE_MAX]) {
    int32_t order[HWKV_CODE_MAX];
    for (int32_t ie = 0; ie < p->n_entry; ie++) {
        int32_t at = ie;
        for (; at > 0 && comes_before(p, unit, ie, order[at - 1]); at--) {
            order[at] = order[at - 1];
        }
        order[at] = ie;
    }
    int32_t n = 0;
    for (int32_t i = 0; i < p->n_entry; i++) {
        const int32_t ie = order[i];
        if (n > 0 && (loss_of(p, unit, ie) >= loss_of(p, unit, hull[n - 1]) || bytes_of(p, unit, ie) == bytes_of(p, unit, hull[n - 1]))) {
            continue;
        }
        while (n > 1 && slope(p, unit, hull[n - 1], ie) >= slope(p, unit, hull[n - 2], hull[n - 1])) {
            n--;
        }
        hull[n++] = ie;
    }
    return n;
}

// The most gain for a byte comes first. The steps of a unit stay in their order: its slopes fall.
static int compare_steps(const void * a, const void * b) {
    const struct step * x = a;
    const struct step * y = b;
    const double slope_x = x->gain / (double) x->bytes;
    const double slope_y = y->gain / (double) y->bytes;
    if (slope_x != slope_y) {
        return slope_x > slope_y ? -1 : 1;
    }
    if (x->unit != y->unit) {
        return x->unit < y->unit ? -1 : 1;
    }
    return x->bytes < y->bytes ? -1 : x->bytes > y->bytes;
}

// Every unit at its cheapest corner, and all steps from there.
static void begin(struct allocate * a) {
    const struct hwkv_allocate_params * p = a->params;
    for (int32_t unit = 0; unit < p->n_unit; unit++) {
        if (unit >= p->n_fixed) {
            int32_t hull[HWKV_CODE_MAX];
            const int32_t n = find_hull(p, unit, hull);
            a->entries[unit] = hull[0];
            for (int32_t i = 1; i < n; i++) {
                a->steps[a->n_step++] = (struct step) {
                    .gain = loss_of(p, unit, hull[i - 1]) - loss_of(p, unit, hull[i]), .bytes = bytes_of(p, unit, hull[i]) - bytes_of(p, unit, hull[i - 1]),
                    .unit = unit, .from = hull[i - 1], .to = hull[i],
                };
            }
        }
        a->bytes += bytes_of(p, unit, a->entries[unit]);
    }
    qsort(a->steps, (size_t) a->n_step, sizeof(*a->steps), compare_steps);
}

// Down the hulls until a step does not fit, which tells the price; what is still smaller than the rest follows in the same order.
static void descend(struct allocate * a) {
    bool priced = false;
    for (int32_t i = 0; i < a->n_step; i++) {
        const struct step * s = &a->steps[i];
        if (a->entries[s->unit] == s->from && s->bytes <= a->params->budget - a->bytes) {
            a->entries[s->unit] = s->to;
            a->bytes += s->bytes;
        } else if (!priced) {
            a->lambda = s->gain / (double) s->bytes;
            priced    = true;
        }
    }
}

//
// exchanges
//

static int compare_moves(const void * a, const void * b) {
    const struct move * x = a;
    const struct move * y = b;
    if (x->bytes != y->bytes) {
        return x->bytes < y->bytes ? -1 : 1;
    }
    if (x->unit != y->unit) {
        return x->unit < y->unit ? -1 : 1;
    }
    return x->entry < y->entry ? -1 : x->entry > y->entry;
}

static struct move move_of(const struct allocate * a, int32_t unit, int32_t entry) {
    const struct hwkv_allocate_params * p = a->params;
    const int32_t now = a->entries[unit];
    return (struct move) {
        .gain = loss_of(p, unit, now) - loss_of(p, unit, entry), .bytes = (int64_t) bytes_of(p, unit, entry) - (int64_t) bytes_of(p, unit, now),
        .unit = unit, .entry = entry,
    };
}

// The moves that gain, by bytes, and the best of all up to each.
static void find_moves(struct allocate * a) {
    const struct hwkv_allocate_params * p = a->params;
    a->n_move = 0;
    for (int32_t unit = p->n_fixed; unit < p->n_unit; unit++) {
        for (int32_t ie = 0; ie < p->n_entry; ie++) {
            const struct move move = move_of(a, unit, ie);
            if (move.gain > 0.0) {
                a->moves[a->n_move++] = move;
            }
        }
    }
    qsort(a->moves, (size_t) a->n_move, sizeof(*a->moves), compare_moves);

    struct best best = { -1, -1 };
    for (int32_t i = 0; i < a->n_move; i++) {
        const struct move * m = &a->moves[i];
        if (best.first < 0 || m->gain > a->moves[best.first].gain) {
            if (best.first >= 0 && a->moves[best.first].unit != m->unit) {
                best.second = best.first;
            }
            best.first = i;
        } else if (m->unit != a->moves[best.first].unit && (best.second < 0 || m->gain > a->moves[best.second].gain)) {
            best.second = i;
        }
        a->bests[i] = best;
    }
}

// The best move of a unit other than this one that takes no more bytes; -1: none gains.
static int32_t best_within(const struct allocate * a, int64_t bytes, int32_t unit) {
    int32_t lo = 0;
    int32_t hi = a->n_move;
    while (lo < hi) {
        const int32_t mid = lo + (hi - lo) / 2;
        if (a->moves[mid].bytes <= bytes) {
            lo = mid + 1;
        } else {
            hi = mid;
        }
    }
    if (lo == 0) {
        return -1;
    }
    const struct best best = a->bests[lo - 1];
    return best.first >= 0 && a->moves[best.first].unit == unit ? best.second : best.first;
}

static void make(struct allocate * a, const struct move * move) {
    a->entries[move->unit] = move->entry;
    a->bytes = (uint64_t) ((int64_t) a->bytes + move->bytes);
}

// The move, alone or with another unit stepping back for it, that gains the most. False: nothing gains any more.
static bool improve(struct allocate * a) {
    const struct hwkv_allocate_params * p = a->params;
    const int64_t left = (int64_t) (p->budget - a->bytes);
    find_moves(a);

    struct move back  = { .unit = -1 };
    int32_t     found = best_within(a, left, -1);
    double      gain  = found < 0 ? 0.0 : a->moves[found].gain;
    for (int32_t unit = p->n_fixed; unit < p->n_unit; unit++) {
        for (int32_t ie = 0; ie < p->n_entry; ie++) {
            const struct move  move = move_of(a, unit, ie);
            const int32_t      i    = move.bytes < 0 ? best_within(a, left - move.bytes, unit) : -1;
            if (i >= 0 && a->moves[i].gain + move.gain > gain) {
                gain  = a->moves[i].gain + move.gain;
                found = i;
                back  = move;
            }
        }
    }
    if (found < 0) {
        return false;
    }
    make(a, &a->moves[found]);
    if (back.unit >= 0) {
        make(a, &back);
    }
    return true;
}

//
// all of it
//

static int validate(const struct hwkv_allocate_params * p, const int32_t * entries, struct hwkv_error * err) {
    if (!p || !entries || !p->loss || !p->bytes || p->n_unit < 1 || p->n_entry < 1 || p->n_entry > HWKV_CODE_MAX || p->n_fixed < 0 || p->n_fixed > p->n_unit) {
        return hwkv_fail(err, HWKV_ERR_ARG, NULL, "found nothing to allocate, expected the losses and bytes of at least one head under 1 to %d entries", HWKV_CODE_MAX);
    }
    double most = 0.0;
    for (int32_t unit = 0; unit < p->n_unit; unit++) {
        if (unit < p->n_fixed && (entries[unit] < 0 || entries[unit] >= p->n_entry)) {
            return hwkv_fail(err, HWKV_ERR_ARG, NULL, "found entry %d for head %d, expected one of %d", (int) entries[unit], (int) unit, (int) p->n_entry);
        }
        double largest = 0.0;
        for (int32_t ie = 0; ie < p->n_entry; ie++) {
            if (!(loss_of(p, unit, ie) >= 0.0) || isinf(loss_of(p, unit, ie))) {
                return hwkv_fail(err, HWKV_ERR_NOT_FINITE, NULL, "found a loss of %g for head %d, expected a number of at least 0", loss_of(p, unit, ie), (int) unit);
            }
            largest = fmax(largest, (double) bytes_of(p, unit, ie));
        }
        most += largest;
    }
    if (most > 4e18) {
        return hwkv_fail(err, HWKV_ERR_RANGE, NULL, "found entries of over 4e18 bytes, expected fewer");
    }
    return 0;
}

static void finish(const struct allocate * a, struct hwkv_allocation * out) {
    *out = (struct hwkv_allocation) { .bytes = a->bytes, .lambda = a->lambda };
    for (int32_t unit = 0; unit < a->params->n_unit; unit++) {
        out->loss += loss_of(a->params, unit, a->entries[unit]);
    }
}

int hwkv_allocate(struct hwkv_allocation * out, int32_t * entries, const struct hwkv_allocate_params * params, struct hwkv_error * err) {
    int status = out ? validate(params, entries, err) : hwkv_fail(err, HWKV_ERR_ARG, NULL, "found NULL, expected a place for the allocation");
    if (status) {
        return status;
    }
    const size_t n = (size_t) params->n_unit * (size_t) params->n_entry;
    struct allocate a = { .params = params, .entries = entries };
    a.steps = hwkv_alloc(n, sizeof(*a.steps));
    a.moves = hwkv_alloc(n, sizeof(*a.moves));
    a.bests = hwkv_alloc(n, sizeof(*a.bests));
    if (!a.steps || !a.moves || !a.bests) {
        status = hwkv_fail(err, HWKV_ERR_NOMEM, NULL, "out of memory");
        goto cleanup;
    }
    begin(&a);
    if (a.bytes > params->budget) {
        status = hwkv_fail(err, HWKV_ERR_BUDGET, NULL, "found a budget of %llu bytes, expected at least the %llu of the smallest allocation",
                           (unsigned long long) params->budget, (unsigned long long) a.bytes);
    } else {
        descend(&a);
        // exchanges only ever gain; the bound is for sums whose rounding says otherwise
        for (int32_t i = 0; i < params->n_unit && improve(&a); i++) {
        }
    }
    finish(&a, out);

cleanup:
    hwkv_free(a.steps);
    hwkv_free(a.moves);
    hwkv_free(a.bests);
    return status;
}
