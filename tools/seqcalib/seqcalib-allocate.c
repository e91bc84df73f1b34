#include "seqcalib-allocate.h"
#include "seqcalib-work.h"

#include "tool-print.h"
#include "tool-progress.h"

#include "hwkv-error.h"

#include <stdlib.h>
#include <string.h>

static const struct sc_input * input_of(const struct sc_allocate * alloc) {
    return alloc->calib->in;
}

static size_t unit_size(const struct sc_allocate * alloc) {
    return (size_t) input_of(alloc)->codebook->n;
}

// the losses of a point's units, and those of a layer
static double * losses_of(const struct sc_allocate * alloc, int32_t ip) {
    return alloc->losses + (size_t) ip*(size_t) alloc->calib->n_unit*unit_size(alloc);
}

static size_t layer_start(const struct sc_allocate * alloc, int32_t jl) {
    return (size_t) alloc->calib->unit_start[jl]*unit_size(alloc);
}

static size_t layer_size(const struct sc_allocate * alloc, int32_t jl) {
    return (size_t) input_of(alloc)->geo->layers[jl].n_head_kv*unit_size(alloc);
}

//
// bytes
//

// What every entry takes of each unit, as the runtime allocates it: the cells of its group, each with a row of the head.
static int measure_entry(struct sc_allocate * alloc, struct hwkv_policy * policy, int32_t ic, int32_t * entries, struct hwkv_error * err) {
    const struct sc_input * in = input_of(alloc);
    char name[16];
    snprintf(name, sizeof(name), "%d", ic);
    for (int32_t i = 0; i < alloc->calib->n_unit; i++) {
        entries[i] = ic;
    }
    const struct hwkv_point_params point = { .name = name, .method = "one entry", .entries = entries };
    int status = hwkv_policy_add_point(policy, &point, err);

    struct hwkv_plan * plan = NULL;
    if (status == HWKV_OK) {
        const struct hwkv_plan_params params = sc_plan_params(in);
        status = hwkv_plan_init(&plan, policy, ic, &params, err);
    }
    if (status != HWKV_OK) {
        return status;
    }
    const struct hwkv_group * group = hwkv_plan_group(plan, 0);
    for (int32_t jl = 0; jl < in->geo->n_full; jl++) {
        const struct hwkv_layer * layer = &in->geo->layers[jl];
        const uint64_t row = hwkv_type_row_size(group->entry.type_k, layer->head_dim_k) + hwkv_type_row_size(group->entry.type_v, layer->head_dim_v);
        for (int32_t ih = 0; ih < layer->n_head_kv; ih++) {
            alloc->bytes[layer_start(alloc, jl) + (size_t) ih*unit_size(alloc) + (size_t) ic] = row*group->n_cells;
        }
    }
    hwkv_plan_free(plan);
    return HWKV_OK;
}

static int measure_bytes(struct sc_allocate * alloc, struct hwkv_error * err) {
    struct hwkv_policy * policy;
    int status = sc_policy_new(&policy, input_of(alloc), err);
    int32_t * entries = calloc((size_t) alloc->calib->n_unit, sizeof(*entries));
    if (status == HWKV_OK && !entries) {
        status = hwkv_fail(err, HWKV_ERR_NOMEM, NULL, "out of memory");
    }
    for (int32_t ic = 0; ic < input_of(alloc)->codebook->n && status == HWKV_OK; ic++) {
        status = measure_entry(alloc, policy, ic, entries, err);
    }
    free(entries);
    hwkv_policy_free(policy);
    return status;
}

//
// the choice
//

// The problem of a point whose layers below jl are settled. With one entry a layer, a layer stands for its heads.
static int solve_layers(struct sc_allocate * alloc, int32_t ip, int32_t jl, struct hwkv_allocation * found, struct hwkv_error * err) {
    const struct sc_input * in = input_of(alloc);
    const size_t  n_entry = unit_size(alloc);
    const size_t  n_full  = (size_t) in->geo->n_full;
    int32_t     * entries = alloc->calib->entries + (size_t) ip*(size_t) alloc->calib->n_unit;

    double   * loss   = calloc(n_full*n_entry, sizeof(*loss));
    uint64_t * bytes  = calloc(n_full*n_entry, sizeof(*bytes));
    int32_t  * chosen = calloc(n_full, sizeof(*chosen));
    int status = loss && bytes && chosen ? HWKV_OK : hwkv_fail(err, HWKV_ERR_NOMEM, NULL, "out of memory");
    for (int32_t r = 0; r < in->geo->n_full && status == HWKV_OK; r++) {
        for (size_t i = 0; i < layer_size(alloc, r); i++) {
            loss [(size_t) r*n_entry + i%n_entry] += losses_of(alloc, ip)[layer_start(alloc, r) + i];
            bytes[(size_t) r*n_entry + i%n_entry] += alloc->bytes[layer_start(alloc, r) + i];
        }
        chosen[r] = entries[alloc->calib->unit_start[r]];
    }
    if (status == HWKV_OK) {
        const struct hwkv_allocate_params params = {
            .loss = loss, .bytes = bytes, .n_unit = in->geo->n_full, .n_entry = in->codebook->n, .n_fixed = jl, .budget = alloc->budgets[ip],
        };
        status = hwkv_allocate(found, chosen, &params, err);
        for (int32_t r = 0; r < in->geo->n_full; r++) {
            for (int32_t ih = 0; ih < in->geo->layers[r].n_head_kv; ih++) {
                entries[alloc->calib->unit_start[r] + ih] = chosen[r];
            }
        }
    }
    free(loss);
    free(bytes);
    free(chosen);
    return status;
}

static int solve(struct sc_allocate * alloc, int32_t ip, int32_t jl, struct hwkv_allocation * found, struct hwkv_error * err) {
    if (input_of(alloc)->per_layer) {
        return solve_layers(alloc, ip, jl, found, err);
    }
    const struct hwkv_allocate_params params = {
        .loss = losses_of(alloc, ip), .bytes = alloc->bytes, .n_unit = alloc->calib->n_unit, .n_entry = input_of(alloc)->codebook->n,
        .n_fixed = alloc->calib->unit_start[jl], .budget = alloc->budgets[ip],
    };
    return hwkv_allocate(found, alloc->calib->entries + (size_t) ip*(size_t) alloc->calib->n_unit, &params, err);
}

// A layer of the first sweep. When all are there every point begins with them.
static void settle_first(struct sc_allocate * alloc, int32_t jl, const double * losses) {
    alloc->known[jl] = true;
    for (int32_t ip = 0; ip < alloc->calib->n_tau; ip++) {
        memcpy(losses_of(alloc, ip) + layer_start(alloc, jl), losses, sizeof(*losses)*layer_size(alloc, jl));
    }
}

// A layer under the choices below it: what is left of the budget is shared out again, and the layer keeps what it got.
static int settle(struct sc_allocate * alloc, int32_t jl, uint64_t mask, const double * cosines, const double * losses, struct hwkv_error * err) {
    struct sc_calib * calib = alloc->calib;
    int status = HWKV_OK;
    for (int32_t ip = 0; ip < calib->n_tau && status == HWKV_OK; ip++) {
        if (!(mask >> ip & 1)) {
            continue;
        }
        const size_t unit = (size_t) ip*(size_t) calib->n_unit + (size_t) calib->unit_start[jl];
        memcpy(calib->scores + unit*unit_size(alloc), cosines, sizeof(*cosines)*layer_size(alloc, jl));
        memcpy(losses_of(alloc, ip) + layer_start(alloc, jl), losses, sizeof(*losses)*layer_size(alloc, jl));
        struct hwkv_allocation found;
        status = solve(alloc, ip, jl, &found, err);
        if (jl == 0) {
            alloc->lambdas[ip] = found.lambda; // of all heads; later ones tell of ever fewer
        }
        calib->known[(size_t) ip*(size_t) input_of(alloc)->geo->n_full + (size_t) jl] = true;
    }
    return status;
}

//
// sweeps
//

static uint64_t first_mask(const struct sc_allocate * alloc) {
    return UINT64_C(1) << alloc->calib->n_tau; // in the work file: of no point
}

static int see(void * user, int32_t jl, uint64_t mask, int32_t iseq, const struct sc_trace * trace, struct hwkv_error * err) {
    struct sc_allocate * alloc = user;
    (void) mask;
    return sc_calib_see(alloc->calib, jl, iseq, trace, err);
}

// Cosines and losses of the layer that has been seen, one after the other; kept in the work file.
static int measured(struct sc_allocate * alloc, int32_t jl, uint64_t mask, double ** out, struct hwkv_error * err) {
    const size_t n = layer_size(alloc, jl);
    *out = malloc(sizeof(**out)*2*n);
    if (!*out) {
        return hwkv_fail(err, HWKV_ERR_NOMEM, NULL, "out of memory");
    }
    sc_calib_means(alloc->calib, jl, *out);
    sc_distort_means(alloc->calib->distort, *out + n, (int32_t) n);
    return sc_work_layer(alloc->calib->work, jl, mask, *out, (int32_t) (2*n), err);
}

static bool knows_first(void * user, int32_t jl, uint64_t mask) {
    const struct sc_allocate * alloc = user;
    (void) mask;
    return alloc->known[jl];
}

static int decide_first(void * user, int32_t jl, uint64_t mask, struct hwkv_error * err) {
    struct sc_allocate * alloc = user;
    double * scores;
    (void) mask;
    const int status = measured(alloc, jl, first_mask(alloc), &scores, err);
    if (status == HWKV_OK) {
        settle_first(alloc, jl, scores + layer_size(alloc, jl));
    }
    free(scores);
    return status;
}

static const int32_t * entries_first(void * user, int32_t jl, int32_t ip) {
    const struct sc_allocate * alloc = user;
    (void) jl;
    (void) ip;
    return alloc->references;
}

static bool knows(void * user, int32_t jl, uint64_t mask) {
    const struct sc_allocate * alloc = user;
    return sc_calib_knows(alloc->calib, jl, mask);
}

static int decide(void * user, int32_t jl, uint64_t mask, struct hwkv_error * err) {
    struct sc_allocate * alloc = user;
    double * scores;
    int status = measured(alloc, jl, mask, &scores, err);
    if (status == HWKV_OK) {
        status = settle(alloc, jl, mask, scores, scores + layer_size(alloc, jl), err);
    }
    free(scores);
    if (status == HWKV_OK) {
        sc_calib_print_layer(alloc->calib, jl, mask);
    }
    return status;
}

static const int32_t * entries_of(void * user, int32_t jl, int32_t ip) {
    const struct sc_allocate * alloc = user;
    return sc_calib_entries(alloc->calib, jl, ip);
}

static int32_t n_known_first(const struct sc_allocate * alloc) {
    int32_t n = 0;
    while (n < input_of(alloc)->geo->n_full && alloc->known[n]) {
        n++;
    }
    return n;
}

int sc_allocate_run(struct sc_allocate * alloc, struct hwkv_error * err) {
    struct sc_calib * calib = alloc->calib;

    const struct sc_judge first = {
        .user = alloc, .verb = "measure", .knows = knows_first, .see = see, .decide = decide_first, .entries = entries_first,
    };
    int status = sc_sweep(calib->in, 1, n_known_first(alloc), &first, err);
    if (status == HWKV_OK) {
        const struct sc_judge judge = { .user = alloc, .verb = "allocate", .knows = knows, .see = see, .decide = decide, .entries = entries_of };
        calib->in->work_scale = calib->n_tau;
        status = sc_sweep(calib->in, calib->n_tau, sc_calib_n_known(calib), &judge, err);
    }
    return status;
}

int sc_allocate_restore(struct sc_allocate * alloc, int32_t jl, uint64_t mask, const double * scores, int32_t n_score, struct hwkv_error * err) {
    const struct sc_calib * calib = alloc->calib;
    const int32_t n_full = input_of(alloc)->geo->n_full;

    bool fits = jl >= 0 && jl < n_full && n_score > 0 && (size_t) n_score == 2*layer_size(alloc, jl) && mask != 0 && mask <= first_mask(alloc);
    if (fits && mask == first_mask(alloc)) {
        settle_first(alloc, jl, scores + layer_size(alloc, jl));
        return HWKV_OK;
    }
    // a choice rests on the whole first sweep, and on the choices below
    fits = fits && n_known_first(alloc) == n_full;
    for (int32_t ip = 0; ip < calib->n_tau && fits; ip++) {
        fits = !(mask >> ip & 1) || jl == 0 || calib->known[(size_t) ip*(size_t) n_full + (size_t) (jl - 1)];
    }
    return fits ? settle(alloc, jl, mask, scores, scores + layer_size(alloc, jl), err) :
        hwkv_fail(err, HWKV_ERR_MISMATCH, NULL, "work file: found a layer of another model");
}

//
// life
//

// Shares become bytes. Nothing has been measured yet, so every head takes what it can get: does the smallest fit?
static int set_budgets(struct sc_allocate * alloc, const struct sc_budgets * budgets, struct hwkv_error * err) {
    const struct sc_calib * calib = alloc->calib;

    uint64_t all = 0;
    for (int32_t i = 0; i < calib->n_unit; i++) {
        all += alloc->bytes[(size_t) i*unit_size(alloc) + (size_t) input_of(alloc)->codebook->reference];
    }
    int status = HWKV_OK;
    for (int32_t ip = 0; ip < calib->n_tau && status == HWKV_OK; ip++) {
        const struct sc_budget * budget = &budgets->budget[ip];
        snprintf(calib->names[ip], SC_POINT_NAME, "budget-%s", budgets->text[ip]);
        alloc->budgets[ip] = budget->bytes ? budget->bytes : (uint64_t) (budget->share*(double) all);
        struct hwkv_allocation found;
        status = solve(alloc, ip, 0, &found, err);
    }
    return status;
}

int sc_allocate_init(struct sc_allocate * alloc, struct sc_calib * calib, const struct sc_budgets * budgets, struct hwkv_error * err) {
    const struct sc_input * in = calib->in;
    const size_t n = (size_t) calib->n_unit*(size_t) in->codebook->n;

    *alloc = (struct sc_allocate) { .calib = calib };
    alloc->bytes      = calloc(n, sizeof(*alloc->bytes));
    alloc->budgets    = calloc((size_t) calib->n_tau, sizeof(*alloc->budgets));
    alloc->known      = calloc((size_t) in->geo->n_full, sizeof(*alloc->known));
    alloc->losses     = calloc((size_t) calib->n_tau*n, sizeof(*alloc->losses));
    alloc->lambdas    = calloc((size_t) calib->n_tau, sizeof(*alloc->lambdas));
    alloc->references = calloc((size_t) calib->n_unit, sizeof(*alloc->references));
    if (!alloc->bytes || !alloc->budgets || !alloc->known || !alloc->losses || !alloc->lambdas || !alloc->references) {
        sc_allocate_free(alloc);
        return hwkv_fail(err, HWKV_ERR_NOMEM, NULL, "out of memory");
    }
    for (int32_t i = 0; i < calib->n_unit; i++) {
        alloc->references[i] = in->codebook->reference;
    }
    int status = measure_bytes(alloc, err);
    if (status == HWKV_OK) {
        status = set_budgets(alloc, budgets, err);
    }
    if (status != HWKV_OK) {
        sc_allocate_free(alloc);
    }
    return status;
}

void sc_allocate_free(struct sc_allocate * alloc) {
    free(alloc->bytes);
    free(alloc->budgets);
    free(alloc->known);
    free(alloc->losses);
    free(alloc->lambdas);
    free(alloc->references);
    memset(alloc, 0, sizeof(*alloc));
}
