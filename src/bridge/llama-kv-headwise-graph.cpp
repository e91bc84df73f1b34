// The graph side of window groups: one attention call for each group of a layer.

#include "llama-kv-headwise.h"

#include "llama-batch.h"
#include "llama-cparams.h"
#include "llama-graph.h"
#include "llama-impl.h"
#include "llama-memory-hybrid.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>

// cell indices and masks of all finite groups, shared by all layers
class llm_graph_input_headwise : public llm_graph_input_i {
public:
    struct tensors {
        ggml_tensor * rows   = nullptr; // I64 [n_stored] where the tokens go
        ggml_tensor * tokens = nullptr; // I32 [n_stored] which, null if all are stored
        ggml_tensor * mask   = nullptr; // F16/F32 [n_kv + n_staged, n_tokens/n_stream, 1, n_stream]
    };

    llm_graph_input_headwise(llama_kv_headwise * hw, const llama_cparams & cparams, ggml_context * ctx, const llama_ubatch & ubatch) :
        hw(hw), causal(cparams.causal_attn) {
        for (const auto & g : hw->groups) {
            const auto s = shape(*g, cparams, ubatch);

            tensors t;

            t.rows = ggml_new_tensor_1d(ctx, GGML_TYPE_I64, s.n_stored);
            ggml_set_input(t.rows);
            ggml_format_name(t.rows, "hw_rows_%d", g->ig);

            if (s.n_stored != (int64_t) ubatch.n_tokens) {
                t.tokens = ggml_new_tensor_1d(ctx, GGML_TYPE_I32, s.n_stored);
                ggml_set_input(t.tokens);
                ggml_format_name(t.tokens, "hw_tokens_%d", g->ig);
            }

            t.mask = ggml_new_tensor_4d(ctx, cparams.flash_attn ? GGML_TYPE_F16 : GGML_TYPE_F32, g->n_kv + s.n_staged, s.n_row, 1, s.n_stream);
            ggml_set_input(t.mask);
            ggml_format_name(t.mask, "hw_mask_%d", g->ig);

            groups.push_back(t);
            shapes.push_back(s);
        }
    }

    void set_input(const llama_ubatch * ubatch) override {
        for (size_t i = 0; i < hw->groups.size(); ++i) {
            const auto & g = *hw->groups[i];
            const auto & t = groups[i];

            // a group whose layers are not part of this graph has no buffers
            if (t.rows->buffer) {
                ggml_backend_tensor_set(t.rows, g.rows.data(), 0, ggml_nbytes(t.rows));
            }
            if (t.tokens && t.tokens->buffer) {
                ggml_backend_tensor_set(t.tokens, g.tokens.data(), 0, ggml_nbytes(t.tokens));
            }
            if (t.mask->buffer) {
                hw->fill_mask(g, t.mask, *ubatch, causal);
            }
        }
    }

    bool can_reuse(const llm_graph_params & params) override {
        bool res = causal == params.cparams.causal_attn;

        for (size_t i = 0; i < hw->groups.size(); ++i) {
            res = res && shapes[i] == shape(*hw->groups[i], params.cparams, params.ubatch);
        }

        return res;
    }

    std::vector<tensors> groups; // the finite ones

    // K and V of a ring and the current tokens side by side, by group and layer
    std::map<std::pair<int32_t, int32_t>, std::pair<ggml_tensor *, ggml_tensor *>> staged;

private:
    // what decides on the nodes and their sizes
    struct dims {
        int64_t n_stream;
        int64_t n_row;
        int64_t n_kv;
        int64_t n_staged;
        int64_t n_stored;

        bool operator==(const dims & o) const {
            return n_stream == o.n_stream && n_row == o.n_row && n_kv == o.n_kv && n_staged == o.n_staged && n_stored == o.n_stored;
        }
    };

    dims shape(const llama_kv_headwise::group & g, const llama_cparams & cparams, const llama_ubatch & ubatch) const {
        dims res;
        res.n_stream = cparams.kv_unified ? 1 : ubatch.n_seqs_unq;
        res.n_row    = ubatch.n_tokens/res.n_stream;
        res.n_kv     = g.n_kv;
        res.n_staged = hw->n_staged(g, res.n_row);
        res.n_stored = hw->reserving ? ubatch.n_tokens : g.rows.size();
        return res;
    }

    llama_kv_headwise * hw;

    const bool causal;

    std::vector<dims> shapes;
};

template <typename T>
void llama_kv_headwise::fill_rows(const group & g, ggml_tensor * dst, const llama_ubatch & ubatch, bool causal, T keep, T drop) {
    const int64_t n_kv  = g.n_kv;
    const int64_t n_col = dst->ne[0];
    const int64_t n_row = dst->ne[1];
    const bool    is_2d = ubatch.is_pos_2d();

    // 2D place of a token in an image, whose tokens share a position and are ordered by it
    const auto place_of = [&](int64_t i) {
        llama_kv_cell_ext res;
        if (is_2d) {
            res.x = ubatch.pos[i + ubatch.n_tokens*2];
            res.y = ubatch.pos[i + ubatch.n_tokens];
        }
        return res;
    };

    for (int64_t i = 0; i < (int64_t) ubatch.n_tokens; ++i) {
        const llama_seq_id seq_id = ubatch.seq_id[i][0];
        const llama_pos    p1     = ubatch.pos[i];
        const auto         ext1   = place_of(i);

        T * data = (T *) dst->data + i*n_col;

        const auto visible = [&](llama_pos p0, const llama_kv_cell_ext & ext0) {
            const bool res = p0 >= 0 && (p0 <= p1 || !causal) && (p0 < g.sinks || p1 - p0 < g.recent);
            return res && !(is_2d && causal && p0 == p1 && ext0.is_2d_gt(ext1.x, ext1.y));
        };

        const auto & seen = g.seen[ubatch.seq_idx[seq_id]];
        for (int64_t j = 0; j < n_kv; ++j) {
            data[j] = visible(seen[j].pos, seen[j].ext) ? keep : drop;
        }
        std::fill(data + n_kv, data + n_col, drop);

        // the tokens of the same stream stand beside the ring
        const int64_t i0 = i/n_row*n_row;
        for (int64_t k = i0; k < i0 + n_row && g.staged; ++k) {
            const auto * ids = ubatch.seq_id[k];
            if (std::find(ids, ids + ubatch.n_seq_id[k], seq_id) != ids + ubatch.n_seq_id[k] && visible(ubatch.pos[k], place_of(k))) {
                data[n_kv + k - i0] = keep;
            }
        }
    }
}

void llama_kv_headwise::fill_mask(const group & g, ggml_tensor * dst, const llama_ubatch & ubatch, bool causal) const {
    GGML_ASSERT(ggml_backend_buffer_is_host(dst->buffer));

    if (dst->type == GGML_TYPE_F16) {
        fill_rows<ggml_fp16_t>(g, dst, ubatch, causal, ggml_fp32_to_fp16(0.0f), ggml_fp32_to_fp16(-INFINITY));
    } else {
        fill_rows<float>(g, dst, ubatch, causal, 0.0f, -INFINITY);
    }
}

// heads [first, first + count) of a tensor [n_embd_head, n_head, n_tokens]
static ggml_tensor * view_heads(ggml_context * ctx, ggml_tensor * t, int64_t first, int64_t count) {
    return ggml_view_3d(ctx, t, t->ne[0], count, t->ne[2], t->nb[1], t->nb[2], first*t->nb[1]);
}

// The same memory with rows of 8-byte words, or back: the CPU concatenates those by rows, floats one by one.
static ggml_tensor * view_as(ggml_context * ctx, ggml_tensor * t, ggml_type type) {
    const size_t row_size = ggml_row_size(t->type, t->ne[0]);
    if (t->type == type || row_size % ggml_type_size(type) != 0) {
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

static ggml_tensor * concat(ggml_context * ctx, ggml_tensor * a, ggml_tensor * b, int dim) {
    const ggml_type type = a->type;
    if (ggml_is_quantized(type) || a->nb[0] != ggml_type_size(type) || b->nb[0] != ggml_type_size(type)) {
        return ggml_concat(ctx, a, b, dim);
    }
    return view_as(ctx, ggml_concat(ctx, view_as(ctx, a, GGML_TYPE_I64), view_as(ctx, b, GGML_TYPE_I64), dim), type);
}

// the heads of all runs side by side; ratio heads of t belong to each head of a run
static ggml_tensor * gather_heads(ggml_context * ctx, ggml_tensor * t, const std::vector<llama_kv_head_run> & runs, int64_t ratio) {
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

// stores the heads of the runs in the columns of a cache tensor [n_embd_gqa, n_cells, n_stream]; tokens: which, null for all
static void store_heads(const llm_graph_context & gctx, ggml_tensor * cache, ggml_tensor * cur, ggml_tensor * rows, ggml_tensor * tokens, const std::vector<llama_kv_head_run> & runs) {
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

// the ring [n_embd_head, n_head, n_kv, n_stream] and the current tokens side by side, rounded as the cache does, in n_col cells
static ggml_tensor * stage_heads(const llm_graph_context & gctx, ggml_tensor * ring, ggml_tensor * cur, const std::vector<llama_kv_head_run> & runs, int64_t n_col) {
    auto * ctx = gctx.ctx0;

    const int64_t n_stream = ring->ne[3];

    cur = ggml_cast(ctx, gather_heads(ctx, cur, runs, 1), ring->type);
    cur = ggml_reshape_4d(ctx, cur, cur->ne[0], cur->ne[1], cur->ne[2]/n_stream, n_stream);

    auto * res = concat(ctx, ring, cur, 2);

    // cells that are there for their number only; masked, so any finite values will do
    const int64_t n_fill = n_col - res->ne[2];
    if (n_fill > 0) {
        res = concat(ctx, res, ggml_view_4d(ctx, ring, ring->ne[0], ring->ne[1], n_fill, n_stream, ring->nb[1], ring->nb[2], ring->nb[3], 0), 2);
    }

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

// puts the outputs of a layer's groups [n_embd_head_v*n_head_group, n_tokens] back in the order of the heads
static ggml_tensor * merge_heads(const llm_graph_context & gctx, std::vector<ggml_tensor *> & outs, const std::vector<llama_kv_head_span> & spans, int64_t n_embd, int64_t n_head_kv, bool on_cpu) {
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

ggml_tensor * llama_kv_headwise::build_attn(
        const llm_graph_context & gctx,
        const llama_kv_cache_context * mctx,
        ggml_tensor * k_idxs,
        ggml_tensor * v_idxs,
        ggml_tensor * mask_full,
        ggml_tensor * q_cur,
        ggml_tensor * k_cur,
        ggml_tensor * v_cur,
        ggml_tensor * sinks,
              float   kq_scale,
                int   il) {
    auto * ctx = gctx.ctx0;

    llm_graph_input_headwise * inp = nullptr;
    for (auto & input : gctx.res->inputs) {
        if ((inp = dynamic_cast<llm_graph_input_headwise *>(input.get()))) {
            break;
        }
    }
    if (!inp) {
        inp = (llm_graph_input_headwise *) gctx.res->add_input(std::make_unique<llm_graph_input_headwise>(this, gctx.cparams, ctx, gctx.ubatch));

        // this memory sets the owner's inputs without asking whether the graph uses them
        if (owner->layers.empty() && dynamic_cast<const llama_memory_hybrid_context *>(gctx.mctx)) {
            ggml_build_forward_expand(gctx.gf, k_idxs);
            ggml_build_forward_expand(gctx.gf, v_idxs);
            ggml_build_forward_expand(gctx.gf, mask_full);
        }
    }

    const auto & layer = layers[il];

    const int64_t n_head_kv = layer.n_head;
    const int64_t ratio     = q_cur->ne[1]/n_head_kv; // query heads of each KV head

    // what a group attends with
    struct part {
        ggml_tensor * q;
        ggml_tensor * k;
        ggml_tensor * v;
        ggml_tensor * mask;
        ggml_tensor * sinks;
    };
    std::vector<part> parts;

    const auto add_part = [&](int32_t ig, ggml_tensor * k, ggml_tensor * v, ggml_tensor * mask) {
        const auto & runs = layer.runs[ig];

        auto * q = gather_heads(ctx, q_cur, runs, ratio);
        ggml_build_forward_expand(gctx.gf, q);

        ggml_tensor * s = nullptr;
        if (sinks) {
            auto * s3 = gather_heads(ctx, ggml_reshape_3d(ctx, sinks, 1, sinks->ne[0], 1), runs, ratio);
            s = ggml_reshape_1d(ctx, ggml_is_contiguous(s3) ? s3 : ggml_cont(ctx, s3), ggml_nelements(s3));
            ggml_build_forward_expand(gctx.gf, s);
        }

        parts.push_back({ q, k, v, mask, s });
    };

    if (ig_full >= 0 && !layer.runs[ig_full].empty()) {
        add_part(ig_full, mctx->get_k(ctx, layer.src), mctx->get_v(ctx, layer.src), mask_full);
    }

    for (size_t i = 0; i < groups.size(); ++i) {
        auto & g = *groups[i];
        if (layer.runs[g.ig].empty()) {
            continue;
        }

        const auto & t = inp->groups[i];

        auto * k = g.kv->get_k(ctx, layer.src, g.n_kv, g.sinfo);
        auto * v = g.kv->get_v(ctx, layer.src, g.n_kv, g.sinfo);

        if (t.mask->ne[0] > k->ne[2]) {
            // a layer that reuses another's cache has no tokens of its own to put there
            auto & staged = inp->staged[{ g.ig, layer.src }];
            if (k_cur && v_cur) {
                staged.first  = stage_heads(gctx, k, k_cur, layer.runs[g.ig], t.mask->ne[0]);
                staged.second = stage_heads(gctx, v, v_cur, layer.runs[g.ig], t.mask->ne[0]);
            }
            k = staged.first;
            v = staged.second;
        }

        add_part(g.ig, k, v, t.mask);
    }

    // first all writes, then all attention: the CPU computes neighbours of a kind without waiting in between
    bool on_cpu = true;
    const auto store = [&](llama_kv_cache & kv, int32_t ig, ggml_tensor * rows_k, ggml_tensor * rows_v, ggml_tensor * tokens) {
        const auto & l = kv.layers[kv.map_layer_ids.at(layer.src)];
        if (k_cur) {
            store_heads(gctx, l.k, k_cur, rows_k, tokens, layer.runs[ig]);
        }
        if (v_cur) {
            store_heads(gctx, l.v, v_cur, rows_v, tokens, layer.runs[ig]);
        }
        on_cpu = on_cpu && l.k->buffer && ggml_backend_buffer_is_host(l.k->buffer);
    };

    if (ig_full >= 0 && !layer.runs[ig_full].empty()) {
        store(*owner, ig_full, k_idxs, v_idxs, nullptr);
    }
    for (size_t i = 0; i < groups.size(); ++i) {
        if (!layer.runs[groups[i]->ig].empty()) {
            store(*groups[i]->kv, groups[i]->ig, inp->groups[i].rows, inp->groups[i].rows, inp->groups[i].tokens);
        }
    }

    std::vector<ggml_tensor *> outs;
    for (const auto & p : parts) {
        outs.push_back(gctx.build_attn_mha(p.q, p.k, p.v, nullptr, p.mask, p.sinks, nullptr, 0, kq_scale, il));
        ggml_build_forward_expand(gctx.gf, outs.back());
    }

    if (outs.size() == 1) {
        return outs[0];
    }

    auto * cur = merge_heads(gctx, outs, layer.spans, owner->hparams.n_embd_head_v(layer.src)*q_cur->ne[1], n_head_kv, on_cpu);
    ggml_build_forward_expand(gctx.gf, cur);

    return cur;
}

uint32_t llama_kv_headwise::n_nodes_extra() const {
    uint32_t res = 0;
    for (const auto & layer : layers) {
        uint32_t n_runs   = 0;
        uint32_t n_groups = 0;
        for (const auto & runs : layer.runs) {
            n_runs   += runs.size();
            n_groups += !runs.empty();
        }
        // a run: three views and a write for K and V, a view and a concat for Q and the output; a group: attention
        res += 16*n_runs + 32*n_groups;
    }
    return res;
}
