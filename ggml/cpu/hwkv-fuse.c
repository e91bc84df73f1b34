// A layer with several window groups writes K and V and attends once for each. Between such nodes nobody has to wait.

#include "hwkv-fuse.h"
#include "hwkv-fattn-ggml.h"

#include "ggml-impl.h"
#include "ops.h"

#include <stdbool.h>
#include <stdint.h>

#define SPANS_MAX (HWKV_FATTN_NODES * GGML_MAX_SRC)

// memory of a tensor
struct span {
    uintptr_t begin, end;
};

// nodes of one kind that can be computed in any order
struct run {
    struct ggml_tensor * nodes[HWKV_FATTN_NODES];
    int                  last[HWKV_FATTN_NODES]; // place in the graph
    int                  n;
    struct span          written[HWKV_FATTN_NODES];
    struct span          read[SPANS_MAX];
    int                  n_read;
};

static struct span span_of(const struct ggml_tensor * t) {
    return (struct span) { (uintptr_t) t->data, (uintptr_t) t->data + ggml_nbytes(t) };
}

static bool touches(struct span span, const struct span * spans, int n) {
    for (int i = 0; i < n; i++) {
        if (span.begin < spans[i].end && spans[i].begin < span.end) {
            return true;
        }
    }
    return false;
}

// false: the node has to wait for one of the others, or they for it
static bool run_add(struct run * run, struct ggml_tensor * node, int at) {
    const struct span written = span_of(node);
    const int n_src = node->op == GGML_OP_SET_ROWS ? 2 : GGML_MAX_SRC; // the third is what is written to
    if (run->n == HWKV_FATTN_NODES || touches(written, run->written, run->n) || touches(written, run->read, run->n_read)) {
        return false;
    }
    const int n_read = run->n_read;
    for (int i = 0; i < n_src; i++) {
        if (node->src[i] != NULL) {
            const struct span read = span_of(node->src[i]);
            if (touches(read, run->written, run->n)) {
                run->n_read = n_read;
                return false;
            }
            run->read[run->n_read++] = read;
        }
    }
    run->nodes[run->n]   = node;
    run->last[run->n]    = at;
    run->written[run->n] = written;
    run->n += 1;
    return true;
}

static void run_init(struct run * run, const struct ggml_cgraph * graph, int node_n) {
    const enum ggml_op op = graph->nodes[node_n]->op;
    run->n = run->n_read = 0;
    for (int i = node_n; i < graph->n_nodes; i++) {
        struct ggml_tensor * node = graph->nodes[i];
        if (ggml_op_is_empty(node->op) || (node->flags & GGML_TENSOR_FLAG_COMPUTE) == 0) {
            continue;
        }
        if (node->op != op || !run_add(run, node, i)) {
            break;
        }
    }
}

int hwkv_fuse(const struct ggml_cgraph * graph, int node_n, const struct ggml_compute_params * params) {
    const enum ggml_op op = graph->nodes[node_n]->op;
    if (op != GGML_OP_SET_ROWS && op != GGML_OP_FLASH_ATTN_EXT) {
        return 0;
    }
    struct run run;
    run_init(&run, graph, node_n);
    if (run.n < 2) {
        return 0;
    }
    int n = run.n;
    if (op == GGML_OP_SET_ROWS) {
        for (int i = 0; i < n; i++) {
            ggml_compute_forward_set_rows(params, run.nodes[i]);
        }
    } else {
        n = hwkv_fattn_forward(params, run.nodes, n, 2);
    }
    return n > 0 ? run.last[n - 1] - node_n : 0;
}

size_t hwkv_fuse_work_size(const struct ggml_cgraph * graph, int node_n, int n_task) {
    size_t res = 0;
    int    n   = 0;
    for (int i = node_n; i < graph->n_nodes && n < HWKV_FATTN_NODES; i++) {
        const struct ggml_tensor * node = graph->nodes[i];
        if (node->op == GGML_OP_FLASH_ATTN_EXT) {
            res += hwkv_fattn_work_size(node, n_task);
            n   += 1;
        } else if (!ggml_op_is_empty(node->op)) {
            break;
        }
    }
    return res;
}
