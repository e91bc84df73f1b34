// What the runtime allocates for one operating point: groups of heads with the same entry, their cells and bytes.
//
// A finite group keeps, for every sequence that shares its cells, the window and the positions that may be taken back.
// A batch that is larger than what is free is attended to beside them in scratch memory, or the cells are given room for it.

#include "hwkv-impl.h"
#include "hwkv-rule.h"
#include "hwkv-slack.h"

#include <stdio.h>
#include <string.h>

struct hwkv_plan {
    struct hwkv_plan_params params;
    int32_t             n_group;
    struct hwkv_group * groups;      // [n_group]
    int32_t           * group_of;    // [n_unit]
    int32_t           * heads;       // [n_unit] heads of a layer ordered by group
    int32_t           * head_start;  // [n_full * (n_group + 1)] into heads
    int32_t           * unit_start;   // [n_full + 1]
    uint32_t            n_stream;
    uint32_t            n_ctx_seq;
    uint64_t            size_plain;
    bool                is_plain;
};

struct hwkv_plan_params hwkv_plan_params_default(void) {
    return (struct hwkv_plan_params) {
        .n_ctx      = 4096,
        .n_seq_max  = 1,
        .kv_unified = true,
        .flash_attn = true,
        .type_k     = HWKV_TYPE_F16,
        .type_v     = HWKV_TYPE_F16,
        .n_pad      = 64,
        .n_rollback = 64,
    };
}

static uint64_t pad_to(uint64_t n, uint64_t multiple) {
    return (n + multiple - 1) / multiple * multiple;
}

// elements of the widest V row of any layer
static int64_t widest_v(const struct hwkv_geometry * geo, const struct hwkv_plan_params * p) {
    int64_t width_max = geo->v_width_max > p->v_width_max ? geo->v_width_max : p->v_width_max;
    for (int32_t jl = 0; jl < geo->n_full; jl++) {
        const int64_t width = (int64_t) geo->layers[jl].n_head_kv * geo->layers[jl].head_dim_v;
        width_max = width > width_max ? width : width_max;
    }
    return width_max;
}

// Without flash attention V is stored transposed, which blocks cannot be.
static int validate_type_v(enum hwkv_type type, const struct hwkv_plan_params * p, const char * path, struct hwkv_error * err) {
    if (!p->flash_attn && type > HWKV_TYPE_BF16) {
        return hwkv_fail(err, HWKV_ERR_VALUE, path, "found V cache type %s without flash attention, expected f32, f16 or bf16", hwkv_type_name(type));
    }
    return 0;
}

static int validate_params(const struct hwkv_geometry * geo, const struct hwkv_plan_params * p, struct hwkv_error * err) {
    if (p->n_ctx < 1 || p->n_ctx > INT32_MAX - 256) {
        return hwkv_fail(err, HWKV_ERR_RANGE, NULL, "found n_ctx %u, expected 1 to %d", p->n_ctx, INT32_MAX - 256);
    }
    if (p->n_seq_max < 1 || p->n_seq_max > 65536 || p->n_rollback > INT32_MAX) {
        return hwkv_fail(err, HWKV_ERR_RANGE, NULL, "found n_seq_max %u and n_rollback %u, expected 1 to 65536 sequences and at most %d positions",
                         p->n_seq_max, p->n_rollback, INT32_MAX);
    }
    if (p->n_pad < 1 || p->n_pad > 65536) {
        return hwkv_fail(err, HWKV_ERR_RANGE, NULL, "found padding %u, expected 1 to 65536", p->n_pad);
    }
    if ((int) p->type_v < 0 || p->type_v >= HWKV_TYPE_COUNT || (int) p->type_k < 0 || p->type_k >= HWKV_TYPE_COUNT) {
        return hwkv_fail(err, HWKV_ERR_ARG, NULL, "found unknown cache types %d and %d", (int) p->type_k, (int) p->type_v);
    }
    const int status = validate_type_v(p->type_v, p, NULL, err);
    if (status) {
        return status;
    }
    const double width_v = (double) widest_v(geo, p);
    double bytes = 0.0;
    for (int32_t jl = 0; jl < geo->n_full; jl++) {
        const struct hwkv_layer * l = &geo->layers[jl];
        if (hwkv_type_row_size(p->type_k, l->head_dim_k) == 0 || hwkv_type_row_size(p->type_v, l->head_dim_v) == 0) {
            return hwkv_fail(err, HWKV_ERR_VALUE, NULL, "found cache types %s and %s, expected types whose blocks divide the head dims %d and %d of layer %d",
                             hwkv_type_name(p->type_k), hwkv_type_name(p->type_v), (int) l->head_dim_k, (int) l->head_dim_v, (int) l->il);
        }
        bytes += 4.0 * ((double) l->n_head_kv * l->head_dim_k + width_v);
    }
    if (bytes * ((double) p->n_ctx + 512.0) * p->n_seq_max > 4e18) {
        return hwkv_fail(err, HWKV_ERR_RANGE, NULL, "found a cache of over 4e18 bytes for n_ctx %u, expected a smaller one", p->n_ctx);
    }
    return 0;
}

// Without padding.
static uint64_t cells_needed(const struct hwkv_plan * plan, struct hwkv_rule rule) {
    const struct hwkv_plan_params * p = &plan->params;
    return hwkv_rule_n_cells(rule, p->n_rollback, p->kv_unified ? p->n_seq_max : 1);
}

// With room for a batch of n_tokens. Never more than the context has, which is what the full history takes.
static uint32_t group_cells(const struct hwkv_plan * plan, struct hwkv_rule rule, uint32_t n_tokens) {
    const struct hwkv_plan_params * p = &plan->params;
    const uint64_t room  = hwkv_rule_n_room(p->n_rollback, 0);
    const uint64_t slack = n_tokens > room ? n_tokens - room : 0;
    const uint64_t cells = pad_to(cells_needed(plan, rule) + slack, p->n_pad);
    return cells < plan->n_ctx_seq ? (uint32_t) cells : plan->n_ctx_seq;
}

// Cells that hold the whole context have room for everything.
static uint32_t group_room(const struct hwkv_plan * plan, struct hwkv_rule rule, uint32_t n_cells) {
    if (n_cells == plan->n_ctx_seq) {
        return UINT32_MAX;
    }
    return (uint32_t) hwkv_rule_n_room(plan->params.n_rollback, n_cells - cells_needed(plan, rule));
}

// llama.cpp's own cache for the same layers. Without flash attention it pads V to the widest layer.
static uint64_t plain_size(const struct hwkv_plan * plan, const struct hwkv_geometry * geo) {
    const struct hwkv_plan_params * p = &plan->params;
    const int64_t width_max = widest_v(geo, p);
    uint64_t bytes = 0;
    for (int32_t jl = 0; jl < geo->n_full; jl++) {
        const struct hwkv_layer * l = &geo->layers[jl];
        const int64_t width_v = p->flash_attn ? (int64_t) l->n_head_kv * l->head_dim_v : width_max;
        bytes += hwkv_type_row_size(p->type_k, (int64_t) l->n_head_kv * l->head_dim_k) + hwkv_type_row_size(p->type_v, width_v);
    }
    return bytes * plan->n_ctx_seq * plan->n_stream;
}

// The group of an entry, which is made if there is none yet.
static int32_t group_of_entry(struct hwkv_plan * plan, const struct hwkv_entry * entry, int32_t sinks) {
    for (int32_t ig = 0; ig < plan->n_group; ig++) {
        if (hwkv_entry_equal(&plan->groups[ig].entry, entry)) {
            return ig;
        }
    }
    plan->groups[plan->n_group] = (struct hwkv_group) { .entry = *entry, .n_cells = group_cells(plan, hwkv_rule_of(entry->window, sinks), 0) };
    return plan->n_group++;
}

// The entry of the group that comes next: the full ones first, then ascending windows, equal ones as they stand in the codebook. -1: none is
// left. settled: entries as this cache takes them.
static int32_t next_entry(const struct hwkv_entry * settled, const bool * left, int32_t n) {
    int32_t best = -1;
    for (int32_t ic = 0; ic < n; ic++) {
        if (left[ic] && settled[ic].window == HWKV_FULL) {
            return ic;
        }
        if (left[ic] && (best < 0 || settled[ic].window < settled[best].window)) {
            best = ic;
        }
    }
    return best;
}

// Entries that no head uses make no group, and those that come to the same in this cache share one.
static void fill_groups(struct hwkv_plan * plan, const struct hwkv_policy * policy, const int32_t * entries) {
    const struct hwkv_cache cache = { plan->n_ctx_seq, plan->params.type_k, plan->params.type_v };
    const int32_t n_unit = hwkv_policy_n_unit(policy);
    struct hwkv_entry settled[HWKV_CODE_MAX];
    int32_t           group  [HWKV_CODE_MAX] = { 0 }; // of an entry
    bool              left   [HWKV_CODE_MAX] = { false };
    for (int32_t u = 0; u < n_unit; u++) {
        left[entries[u]] = true;
    }
    for (int32_t ic = 0; ic < policy->n_codebook; ic++) {
        settled[ic] = hwkv_entry_settle(&policy->codebook[ic], &cache);
    }
    for (int32_t ic = next_entry(settled, left, policy->n_codebook); ic >= 0; ic = next_entry(settled, left, policy->n_codebook)) {
        group[ic] = group_of_entry(plan, &settled[ic], policy->sinks);
        plan->groups[group[ic]].ic = ic;
        left[ic] = false;
    }
    for (int32_t u = 0; u < n_unit; u++) {
        plan->group_of[u] = group[entries[u]];
    }
}

// The heads of every layer sorted by group, and how many the groups have.
static void fill_heads(struct hwkv_plan * plan, const struct hwkv_geometry * geo) {
    for (int32_t jl = 0; jl < geo->n_full; jl++) {
        const struct hwkv_layer * l = &geo->layers[jl];
        const int32_t * group_of = plan->group_of + plan->unit_start[jl];
        int32_t       * start    = plan->head_start + (size_t) jl * (size_t) (plan->n_group + 1);
        int32_t count[HWKV_CODE_MAX] = { 0 };
        int32_t next [HWKV_CODE_MAX];
        for (int32_t ih = 0; ih < l->n_head_kv; ih++) {
            count[group_of[ih]]++;
        }
        start[0] = plan->unit_start[jl];
        for (int32_t ig = 0; ig < plan->n_group; ig++) {
            struct hwkv_group * g = &plan->groups[ig];
            next[ig]      = start[ig];
            start[ig + 1] = start[ig] + count[ig];
            g->n_layer += count[ig] > 0;
            g->n_head  += count[ig];
        }
        for (int32_t ih = 0; ih < l->n_head_kv; ih++) {
            plan->heads[next[group_of[ih]]++] = ih;
        }
    }
}

static uint64_t row_size_k(const struct hwkv_plan * plan, const struct hwkv_layer * l, int32_t ig, int32_t n_head) {
    return hwkv_type_row_size(plan->groups[ig].entry.type_k, (int64_t) n_head * l->head_dim_k);
}

static uint64_t row_size_v(const struct hwkv_plan * plan, const struct hwkv_layer * l, int32_t ig, int32_t n_head) {
    return hwkv_type_row_size(plan->groups[ig].entry.type_v, (int64_t) n_head * l->head_dim_v);
}

// The groups of one window share cells. Gives them room for a batch where that takes less than scratch memory.
static void fill_cells(struct hwkv_plan * plan, const struct hwkv_policy * policy) {
    struct hwkv_ring rings[HWKV_CODE_MAX];
    int32_t          ring_of[HWKV_CODE_MAX];
    int32_t          n_ring = 0;
    for (int32_t ig = 0; ig < plan->n_group; ig++) {
        const struct hwkv_group * g = &plan->groups[ig];
        int32_t ir = 0;
        while (ir < n_ring && rings[ir].window != g->entry.window) {
            ir++;
        }
        if (ir == n_ring) {
            const struct hwkv_rule rule = hwkv_rule_of(g->entry.window, policy->sinks);
            rings[n_ring++] = (struct hwkv_ring) {
                .window = g->entry.window, .n_cells = g->n_cells, .n_cells_slack = group_cells(plan, rule, plan->params.n_ubatch),
            };
        }
        ring_of[ig] = ir;
        for (int32_t jl = 0; jl < policy->geo.n_full; jl++) {
            int32_t n_head = 0;
            hwkv_plan_heads(plan, ig, jl, &n_head);
            const uint64_t size = row_size_k(plan, &policy->geo.layers[jl], ig, n_head) + row_size_v(plan, &policy->geo.layers[jl], ig, n_head);
            rings[ir].cell_size += size;
            rings[ir].scratch_size = size > rings[ir].scratch_size ? size : rings[ir].scratch_size;
        }
    }
    hwkv_slack_choose(rings, n_ring, plan->params.n_ubatch);
    for (int32_t ig = 0; ig < plan->n_group; ig++) {
        struct hwkv_group * g = &plan->groups[ig];
        g->n_cells = rings[ring_of[ig]].n_cells;
        g->n_room  = group_room(plan, hwkv_rule_of(g->entry.window, policy->sinks), g->n_cells);
        for (int32_t jl = 0; jl < policy->geo.n_full; jl++) {
            const uint64_t rows = (uint64_t) g->n_cells * plan->n_stream;
            int32_t n_head = 0;
            hwkv_plan_heads(plan, ig, jl, &n_head);
            g->k_size += row_size_k(plan, &policy->geo.layers[jl], ig, n_head) * rows;
            g->v_size += row_size_v(plan, &policy->geo.layers[jl], ig, n_head) * rows;
        }
    }
}

static int plan_alloc(struct hwkv_plan * plan, const struct hwkv_policy * policy, struct hwkv_error * err) {
    const size_t n_unit = (size_t) hwkv_policy_n_unit(policy);
    const size_t n_full = (size_t) policy->geo.n_full;
    const size_t n_code = (size_t) policy->n_codebook;
    plan->groups     = hwkv_alloc(n_code, sizeof(*plan->groups));
    plan->group_of   = hwkv_alloc(n_unit, sizeof(*plan->group_of));
    plan->heads      = hwkv_alloc(n_unit, sizeof(*plan->heads));
    plan->head_start = hwkv_alloc(n_full * (n_code + 1), sizeof(*plan->head_start));
    plan->unit_start  = hwkv_alloc(n_full + 1, sizeof(*plan->unit_start));
    if (!plan->groups || !plan->group_of || !plan->heads || !plan->head_start || !plan->unit_start) {
        return hwkv_fail(err, HWKV_ERR_NOMEM, NULL, "out of memory");
    }
    memcpy(plan->unit_start, policy->unit_start, (n_full + 1) * sizeof(*plan->unit_start));
    return 0;
}

static int fill_contexts(struct hwkv_plan * plan, struct hwkv_error * err) {
    const struct hwkv_plan_params * p = &plan->params;
    const uint64_t n_ctx = pad_to(p->n_ctx, 256);
    plan->n_stream  = p->kv_unified ? 1 : p->n_seq_max;
    plan->n_ctx_seq = (uint32_t) pad_to(n_ctx / plan->n_stream, 256);
    if (plan->n_ctx_seq == 0) {
        return hwkv_fail(err, HWKV_ERR_RANGE, NULL, "found %u sequences for %u cells, expected at least one cell each", p->n_seq_max, p->n_ctx);
    }
    if (p->n_rollback > plan->n_ctx_seq) {
        return hwkv_fail(err, HWKV_ERR_RANGE, NULL, "found a rollback of %u positions, expected at most the context of a sequence, %u",
                         p->n_rollback, plan->n_ctx_seq);
    }
    return 0;
}

// What follows from the groups as a whole.
static int fill_sizes(struct hwkv_plan * plan, const struct hwkv_geometry * geo, struct hwkv_error * err) {
    const struct hwkv_plan_params * p = &plan->params;
    bool own_types = false;
    for (int32_t ig = 0; ig < plan->n_group; ig++) {
        const struct hwkv_entry * entry = &plan->groups[ig].entry;
        char path[64];
        snprintf(path, sizeof(path), "$.codebook[%d]", (int) plan->groups[ig].ic);
        const int status = validate_type_v(entry->type_v, p, path, err);
        if (status) {
            return status;
        }
        own_types = own_types || entry->type_k != p->type_k || entry->type_v != p->type_v;
    }
    plan->size_plain = plain_size(plan, geo);
    plan->is_plain   = plan->n_group == 1 && plan->groups[0].entry.window == HWKV_FULL && !own_types;
    if (plan->is_plain) {
        // nothing to do for us: the runtime keeps llama.cpp's own cache, padding included
        plan->groups[0].v_size = plan->size_plain - plan->groups[0].k_size;
    }
    if (!own_types && hwkv_plan_size(plan) > plan->size_plain) {
        return hwkv_fail(err, HWKV_ERR_INTERNAL, NULL, "the plan takes more than the plain cache");
    }
    return 0;
}

int hwkv_plan_init(struct hwkv_plan ** out, const struct hwkv_policy * policy, int32_t ip, const struct hwkv_plan_params * params,
                   struct hwkv_error * err) {
    if (!out) {
        return hwkv_fail(err, HWKV_ERR_ARG, NULL, "found NULL, expected a place for the plan");
    }
    *out = NULL;
    if (!policy || !params || ip < 0 || ip >= policy->n_point) {
        return hwkv_fail(err, HWKV_ERR_ARG, NULL, "found no operating point %d, expected one of the policy's", (int) ip);
    }
    int status = validate_params(&policy->geo, params, err);
    if (status) {
        return status;
    }
    struct hwkv_plan * plan = hwkv_alloc(1, sizeof(*plan));
    if (!plan) {
        return hwkv_fail(err, HWKV_ERR_NOMEM, NULL, "out of memory");
    }
    plan->params = *params;
    status = plan_alloc(plan, policy, err);
    if (status == 0) {
        status = fill_contexts(plan, err);
    }
    if (status == 0) {
        fill_groups(plan, policy, policy->points[ip].entries);
        fill_heads(plan, &policy->geo);
        fill_cells(plan, policy);
        status = fill_sizes(plan, &policy->geo, err);
    }
    if (status) {
        hwkv_plan_free(plan);
        return status;
    }
    *out = plan;
    return 0;
}

void hwkv_plan_free(struct hwkv_plan * plan) {
    if (!plan) {
        return;
    }
    hwkv_free(plan->groups);
    hwkv_free(plan->group_of);
    hwkv_free(plan->heads);
    hwkv_free(plan->head_start);
    hwkv_free(plan->unit_start);
    hwkv_free(plan);
}

int32_t hwkv_plan_n_group(const struct hwkv_plan * plan) {
    return plan->n_group;
}

const struct hwkv_group * hwkv_plan_group(const struct hwkv_plan * plan, int32_t ig) {
    return ig >= 0 && ig < plan->n_group ? &plan->groups[ig] : NULL;
}

const int32_t * hwkv_plan_heads(const struct hwkv_plan * plan, int32_t ig, int32_t jl, int32_t * n) {
    const int32_t * start = plan->head_start + (size_t) jl * (size_t) (plan->n_group + 1) + ig;
    *n = start[1] - start[0];
    return plan->heads + start[0];
}

int32_t hwkv_plan_group_of(const struct hwkv_plan * plan, int32_t jl, int32_t ih) {
    return plan->group_of[plan->unit_start[jl] + ih];
}

const struct hwkv_plan_params * hwkv_plan_params_of(const struct hwkv_plan * plan) {
    return &plan->params;
}

uint32_t hwkv_plan_n_stream(const struct hwkv_plan * plan) {
    return plan->n_stream;
}

uint32_t hwkv_plan_n_ctx_seq(const struct hwkv_plan * plan) {
    return plan->n_ctx_seq;
}

uint64_t hwkv_plan_size(const struct hwkv_plan * plan) {
    uint64_t bytes = 0;
    for (int32_t ig = 0; ig < plan->n_group; ig++) {
        bytes += plan->groups[ig].k_size + plan->groups[ig].v_size;
    }
    return bytes;
}

uint64_t hwkv_plan_size_plain(const struct hwkv_plan * plan) {
    return plan->size_plain;
}

bool hwkv_plan_is_plain(const struct hwkv_plan * plan) {
    return plan->is_plain;
}
