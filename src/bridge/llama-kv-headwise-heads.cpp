#include "llama-kv-headwise-heads.h"

#include "llama-graph.h"

#include <cstring>

//
// which heads
//

// appends a head: one more of the last run, if that leaves it evenly spaced, else a run of its own
static void add_head(llama_kv_head_runs & runs, uint32_t head) {
    auto * run = runs.empty() ? nullptr : &runs.back();
    if (run && run->count == 1) {
        run->step = head - run->first; // two are always evenly spaced
    }
    if (run && head == run->first + run->count*run->step) {
        run->count++;
    } else {
        runs.push_back({ head, 1, 1 });
    }
}

llama_kv_head_runs llama_kv_heads_runs(const int32_t * heads, int32_t n_head) {
    llama_kv_head_runs res;
    for (int32_t i = 0; i < n_head; ++i) {
        add_head(res, heads[i]);
    }
    return res;
}

bool llama_kv_heads_are_all(const llama_kv_head_runs & runs, uint32_t n_head) {
    return runs.size() == 1 && runs[0].count == n_head;
}

std::vector<llama_kv_head_span> llama_kv_heads_spans(const std::vector<llama_kv_head_runs> & runs, uint32_t n_head) {
    std::vector<uint32_t> src_of(n_head);

    uint32_t n_src = 0;
    for (const auto & group : runs) {
        for (const auto & run : group) {
            for (uint32_t i = 0; i < run.count; ++i) {
                src_of[run.first + i*run.step] = n_src;
            }
        }
        n_src += !group.empty();
    }

    std::vector<llama_kv_head_span> res;
    std::vector<uint32_t> n_done(n_src, 0);
    for (uint32_t head = 0; head < n_head; ++head) {
        const uint32_t src = src_of[head];
        if (res.empty() || res.back().src != src) {
            res.push_back({ src, n_done[src], head, 0 });
        }
        res.back().count++;
        n_done[src]++;
    }
    return res;
}

//
// graph
//

// heads [first, first + count) of a tensor [n_embd_head, n_head, n_tokens]
static ggml_tensor * view_heads(ggml_context * ctx, ggml_tensor * t, int64_t first, int64_t count) {
    return ggml_view_3d(ctx, t, t->ne[0], count, t->ne[2], t->nb[1], t->nb[2], first*t->nb[1]);
}

// The same memory with rows of words, or back.
static ggml_tensor * view_as(ggml_context * ctx, ggml_tensor * t, ggml_type type) {
    const size_t row_size = ggml_row_size(t->type, t->ne[0]);
    if (t->type == type) {
        return t;
    }

    auto * res = ggml_view_tensor(ctx, t);

    res->op     = GGML_OP_VIEW;
    res->src[0] = t;
    res->type   = type;
    res->ne[0]  = row_size/ggml_type_size(type)*ggml_blck_size(type);
    res->nb[0]  = ggml_type_size(type);
    return res;
}

// Words as wide as the rows allow: devices move one word at a time, and the CPU only those of 8 bytes by whole rows. The rows of a
// block type need not be a multiple of that, and their parts are smaller still.
static ggml_tensor * concat(ggml_context * ctx, ggml_tensor * a, ggml_tensor * b, int dim) {
    const ggml_type type     = a->type;
    const size_t    row_size = ggml_row_size(type, a->ne[0]);

    for (const auto word : { GGML_TYPE_I64, GGML_TYPE_I32, GGML_TYPE_I16 }) {
        const bool fits = row_size % ggml_type_size(word) == 0 && a->nb[0] == ggml_type_size(type) && b->nb[0] == ggml_type_size(type);
        if (fits && dim > 0) {
            return view_as(ctx, ggml_concat(ctx, view_as(ctx, a, word), view_as(ctx, b, word), dim), type);
        }
    }
    return ggml_concat(ctx, a, b, dim);
}

ggml_tensor * llama_kv_heads_gather(ggml_context * ctx, ggml_tensor * t, const llama_kv_head_runs & runs, int64_t ratio) {
    if (llama_kv_heads_are_all(runs, t->ne[1]/ratio)) {
        return t;
    }

    ggml_tensor * res = nullptr;
    for (const auto & run : runs) {
        ggml_tensor * part;
        if (run.step == 1) {
            part = view_heads(ctx, t, run.first*ratio, run.count*ratio);
        } else {
            part = ggml_view_4d(ctx, t, t->ne[0], ratio, run.count, t->ne[2], t->nb[1], run.step*ratio*t->nb[1], t->nb[2], run.first*ratio*t->nb[1]);
            part = ggml_cont_3d(ctx, part, t->ne[0], ratio*run.count, t->ne[2]);
        }
        res = res ? concat(ctx, res, part, 1) : part;
    }
    return res;
}

void llama_kv_heads_store(const llm_graph_context & gctx, ggml_tensor * cache, ggml_tensor * cur, ggml_tensor * rows, ggml_tensor * tokens, const llama_kv_head_runs & runs) {
    auto * ctx = gctx.ctx0;

    const int64_t n_embd_head = cur->ne[0];
    const int64_t n_cells     = cache->ne[1]*cache->ne[2];

    GGML_ASSERT(cur->nb[1] == ggml_row_size(cur->type, n_embd_head));

    uint32_t lo = 0; // first head of cur
    if (tokens) {
        lo = runs.front().first;

        const int64_t n_head = runs.back().first + (runs.back().count - 1)*runs.back().step + 1 - lo;

        cur = ggml_get_rows(ctx, ggml_view_2d(ctx, cur, n_embd_head*n_head, cur->ne[2], cur->nb[2], lo*cur->nb[1]), tokens);
        cur = ggml_reshape_3d(ctx, cur, n_embd_head, n_head, cur->ne[1]);
    }

    int64_t at = 0; // first column of the run
    for (const auto & run : runs) {
        const int64_t n_col  = run.step > 1 ? n_embd_head : n_embd_head*run.count; // of one write
        const int64_t n_part = run.step > 1 ? run.count : 1;

        auto * src = ggml_view_3d(ctx, cur, n_col, cur->ne[2], n_part, cur->nb[2], run.step*cur->nb[1], (run.first - lo)*cur->nb[1]);
        auto * dst = ggml_view_3d(ctx, cache, n_col, n_cells, n_part, cache->nb[1], ggml_row_size(cache->type, n_col), ggml_row_size(cache->type, at));

        ggml_build_forward_expand(gctx.gf, ggml_set_rows(ctx, dst, src, rows));

        at += n_embd_head*run.count;
    }
}

ggml_tensor * llama_kv_heads_stage(const llm_graph_context & gctx, ggml_tensor * ring, ggml_tensor * cur, const llama_kv_head_runs & runs, int64_t n_col, bool fill) {
    auto * ctx = gctx.ctx0;

    const int64_t n_stream = ring->ne[3];
    const int64_t n_row    = cur->ne[2]/n_stream;
    const int64_t n_fill   = n_col - ring->ne[2] - n_row;

    cur = llama_kv_heads_gather(ctx, cur, runs, 1);
    if (n_fill > 0 || fill) {
        // cells that are there for their number only: masked, so any finite values will do
        cur = ggml_is_contiguous(cur) ? cur : ggml_cont(ctx, cur);
        cur = ggml_pad(ctx, ggml_reshape_4d(ctx, cur, cur->ne[0], cur->ne[1], n_row, n_stream), 0, 0, n_fill, 0);
    }
    cur = ggml_cast(ctx, cur, ring->type);
    cur = ggml_reshape_4d(ctx, cur, cur->ne[0], cur->ne[1], n_row + n_fill, n_stream);

    auto * res = concat(ctx, ring, cur, 2);

    // before the ring is written to
    ggml_build_forward_expand(gctx.gf, res);
    return res;
}

// the CPU's way: one operation that copies every span of heads to its place
static void copy_spans(ggml_tensor * dst, int ith, int nth, void * userdata) {
    const auto & spans = *(const std::vector<llama_kv_head_span> *) userdata;

    const size_t head_size = dst->nb[1]; // of all query heads of a KV head

    for (int64_t i = ith; i < dst->ne[2]; i += nth) {
        for (const auto & span : spans) {
            const auto * src = dst->src[span.src];
            memcpy((char *) dst->data + i*dst->nb[2] + span.to*head_size, (const char *) src->data + i*src->nb[1] + span.from*head_size, span.count*head_size);
        }
    }
}

ggml_tensor * llama_kv_heads_merge(const llm_graph_context & gctx, std::vector<ggml_tensor *> & outs, const std::vector<llama_kv_head_span> & spans,
        int64_t n_embd, int64_t n_head_kv, bool on_cpu) {
    auto * ctx = gctx.ctx0;

    const int64_t n_tokens = outs[0]->ne[1];

    if (on_cpu && outs.size() < GGML_MAX_SRC) {
        auto * res = ggml_custom_4d(ctx, GGML_TYPE_F32, n_embd/n_head_kv, n_head_kv, n_tokens, 1, outs.data(), outs.size(),
                copy_spans, GGML_N_TASKS_MAX, const_cast<std::vector<llama_kv_head_span> *>(&spans));
        // some devices say that they can do everything
        ggml_backend_sched_set_tensor_backend(gctx.sched, res, gctx.backend_cpu);
        return ggml_reshape_2d(ctx, res, n_embd, n_tokens);
    }

    ggml_tensor * res = nullptr;
    for (const auto & span : spans) {
        auto * out = outs[span.src];
        out = ggml_view_3d(ctx, out, n_embd/n_head_kv, span.count, n_tokens, n_embd/n_head_kv*ggml_element_size(out), out->nb[1], span.from*n_embd/n_head_kv*ggml_element_size(out));
        res = res ? concat(ctx, res, out, 1) : out;
    }
    return ggml_reshape_2d(ctx, res, n_embd, n_tokens);
}
