// The graph side of window groups: one attention call for each group of a layer.

#include "llama-kv-headwise.h"

#include "llama-batch.h"
#include "llama-cparams.h"
#include "llama-graph.h"
#include "llama-impl.h"
#include "llama-memory-hybrid.h"

#include <cmath>

// cell indices and masks of all finite groups, shared by all layers
class llm_graph_input_headwise : public llm_graph_input_i {
public:
    llm_graph_input_headwise(llama_kv_headwise * hw, const llama_cparams & cparams, ggml_context * ctx, const llama_ubatch & ubatch) :
        hw(hw), causal(cparams.causal_attn) {
        for (const auto & g : hw->groups) {
            auto * idx = ggml_new_tensor_1d(ctx, GGML_TYPE_I64, ubatch.n_tokens);
            ggml_set_input(idx);
            ggml_format_name(idx, "hw_idxs_%d", g->ig);

            const int64_t n_stream = cparams.kv_unified ? 1 : ubatch.n_seqs_unq;

            auto * mask = ggml_new_tensor_4d(ctx, cparams.flash_attn ? GGML_TYPE_F16 : GGML_TYPE_F32, g->n_kv, ubatch.n_tokens/n_stream, 1, n_stream);
            ggml_set_input(mask);
            ggml_format_name(mask, "hw_mask_%d", g->ig);

            idxs .push_back(idx);
            masks.push_back(mask);
        }
    }

    void set_input(const llama_ubatch * ubatch) override {
        for (size_t i = 0; i < hw->groups.size(); ++i) {
            const auto & g = *hw->groups[i];

            // a group whose layers are not part of this graph has no buffers
            if (idxs[i]->buffer) {
                g.kv->set_input_k_idxs(idxs[i], ubatch, g.sinfo);
            }
            if (masks[i]->buffer) {
                hw->fill_mask(g, masks[i], *ubatch, causal);
            }
        }
    }

    bool can_reuse(const llm_graph_params & params) override {
        const int64_t n_stream = params.cparams.kv_unified ? 1 : params.ubatch.n_seqs_unq;

        bool res = causal == params.cparams.causal_attn;

        for (size_t i = 0; i < hw->groups.size(); ++i) {
            res &= idxs[i]->ne[0]  == params.ubatch.n_tokens;
            res &= masks[i]->ne[0] == hw->groups[i]->n_kv;
            res &= masks[i]->ne[1] == params.ubatch.n_tokens/n_stream;
            res &= masks[i]->ne[3] == n_stream;
        }

        return res;
    }

    std::vector<ggml_tensor *> idxs;  // I64 [n_tokens], per finite group
    std::vector<ggml_tensor *> masks; // F16/F32 [n_kv, n_tokens/n_stream, 1, n_stream]

private:
    llama_kv_headwise * hw;

    const bool causal;
};

template <typename T>
static void fill_rows(T * data, T keep, T drop, const std::vector<llama_pos> & pos, llama_pos p1, int32_t sinks, int32_t recent, bool causal) {
    const int64_t n_kv = pos.size();
    for (int64_t j = 0; j < n_kv; ++j) {
        const llama_pos p0 = pos[j];
        const bool visible = p0 >= 0 && (p0 <= p1 || !causal) && (p0 < sinks || p1 - p0 < recent);
        data[j] = visible ? keep : drop;
    }
}

void llama_kv_headwise::fill_mask(const group & g, ggml_tensor * dst, const llama_ubatch & ubatch, bool causal) const {
    GGML_ASSERT(ggml_backend_buffer_is_host(dst->buffer));

    const int64_t n_kv     = dst->ne[0];
    const int64_t n_stream = dst->ne[3];
    const int64_t n_tps    = ubatch.n_tokens/n_stream;

    const ggml_fp16_t keep_f16 = ggml_fp32_to_fp16(0.0f);
    const ggml_fp16_t drop_f16 = ggml_fp32_to_fp16(-INFINITY);

    std::vector<llama_pos> pos(n_kv); // of the cells of one sequence, -1 for the others
    llama_seq_id seq_last = -1;

    for (int64_t i = 0; i < (int64_t) ubatch.n_tokens; ++i) {
        const llama_seq_id seq_id = ubatch.seq_id[i][0];
        const auto & cells = g.kv->v_cells[g.kv->seq_to_stream[seq_id]];

        if (seq_id != seq_last) {
            for (int64_t j = 0; j < n_kv; ++j) {
                pos[j] = !cells.is_empty(j) && cells.seq_has(j, seq_id) ? cells.pos_get(j) : -1;
            }
            seq_last = seq_id;
        }

        const int64_t row = (i/n_tps)*n_tps + i%n_tps;

        if (dst->type == GGML_TYPE_F16) {
            fill_rows((ggml_fp16_t *) dst->data + row*n_kv, keep_f16, drop_f16, pos, ubatch.pos[i], g.sinks, g.recent, causal);
        } else {
            fill_rows((float *) dst->data + row*n_kv, 0.0f, -INFINITY, pos, ubatch.pos[i], g.sinks, g.recent, causal);
        }

        // tokens of an image share a position and are ordered by their place in it
        if (causal && ubatch.is_pos_2d()) {
            for (int64_t j = 0; j < n_kv; ++j) {
                if (pos[j] == ubatch.pos[i] && cells.ext_get(j).is_2d_gt(ubatch.pos[i + ubatch.n_tokens*2], ubatch.pos[i + ubatch.n_tokens])) {
                    if (dst->type == GGML_TYPE_F16) {
                        ((ggml_fp16_t *) dst->data)[row*n_kv + j] = drop_f16;
                    } else {
                        ((float *) dst->data)[row*n_kv + j] = -INFINITY;
                    }
                }
            }
        }
    }
}

// heads [first, first + count) of a tensor [n_embd_head, n_head, n_tokens]
static ggml_tensor * view_heads(ggml_context * ctx, ggml_tensor * t, int64_t first, int64_t count) {
    return ggml_view_3d(ctx, t, t->ne[0], count, t->ne[2], t->nb[1], t->nb[2], first*t->nb[1]);
}

// the heads of all runs side by side; ratio heads of t belong to each head of a run
static ggml_tensor * gather_heads(ggml_context * ctx, ggml_tensor * t, const std::vector<llama_kv_head_run> & runs, int64_t ratio) {
    ggml_tensor * res = nullptr;
    for (const auto & run : runs) {
        auto * part = view_heads(ctx, t, run.first*ratio, run.count*ratio);
        res = res ? ggml_concat(ctx, res, part, 1) : part;
    }
    return res;
}

// stores the heads of the runs in the columns of a cache tensor [n_embd_gqa, n_cells, n_stream]
static void store_heads(const llm_graph_context & gctx, ggml_tensor * cache, ggml_tensor * cur, ggml_tensor * idxs, const std::vector<llama_kv_head_run> & runs) {
    auto * ctx = gctx.ctx0;

    const int64_t n_embd_head = cur->ne[0];

    int64_t at = 0; // first column of the run
    for (const auto & run : runs) {
        auto * src = view_heads(ctx, cur, run.first, run.count);
        GGML_ASSERT(src->nb[1] == ggml_row_size(src->type, n_embd_head));
        src = ggml_view_2d(ctx, src, n_embd_head*run.count, cur->ne[2], cur->nb[2], 0);

        auto * dst = ggml_view_2d(ctx, cache, n_embd_head*run.count, cache->ne[1]*cache->ne[2], cache->nb[1], ggml_row_size(cache->type, at));

        ggml_build_forward_expand(gctx.gf, ggml_set_rows(ctx, dst, src, idxs));

        at += n_embd_head*run.count;
    }
}

// puts the groups' outputs [n_embd_head_v*n_head_group, n_tokens] back in the order of the heads
static ggml_tensor * merge_heads(ggml_context * ctx, const std::vector<ggml_tensor *> & outs, const std::vector<std::vector<llama_kv_head_run>> & runs, int64_t n_embd_head_v, int64_t ratio) {
    ggml_tensor * res = nullptr;

    std::vector<size_t>   next(runs.size(), 0); // next run of each group
    std::vector<uint32_t> done(runs.size(), 0); // heads taken from each group

    for (uint32_t head = 0;;) {
        size_t ig = 0;
        while (ig < runs.size() && (next[ig] >= runs[ig].size() || runs[ig][next[ig]].first != head)) {
            ig++;
        }
        if (ig == runs.size()) {
            break;
        }

        const uint32_t count = runs[ig][next[ig]].count;

        auto * out = outs[ig];
        out = ggml_reshape_3d(ctx, out, n_embd_head_v, out->ne[0]/n_embd_head_v, out->ne[1]);
        out = view_heads(ctx, out, done[ig]*ratio, count*ratio);

        res = res ? ggml_concat(ctx, res, out, 1) : out;

        next[ig] += 1;
        done[ig] += count;
        head     += count;
    }

    return ggml_reshape_2d(ctx, res, res->ne[0]*res->ne[1], res->ne[2]);
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

    uint32_t n_head_kv = 0;
    for (const auto & runs : layer.runs) {
        for (const auto & run : runs) {
            n_head_kv += run.count;
        }
    }
    const int64_t ratio = q_cur->ne[1]/n_head_kv; // query heads of each KV head

    std::vector<ggml_tensor *> outs(layer.runs.size(), nullptr);

    size_t n_used = 0;

    // attention of one group over its K and V
    const auto attend = [&](int32_t ig, ggml_tensor * k, ggml_tensor * v, ggml_tensor * mask) {
        const auto & runs = layer.runs[ig];

        auto * q = gather_heads(ctx, q_cur, runs, ratio);

        ggml_tensor * s = nullptr;
        if (sinks) {
            auto * s3 = gather_heads(ctx, ggml_reshape_3d(ctx, sinks, 1, sinks->ne[0], 1), runs, ratio);
            s = ggml_reshape_1d(ctx, ggml_is_contiguous(s3) ? s3 : ggml_cont(ctx, s3), ggml_nelements(s3));
        }

        outs[ig] = gctx.build_attn_mha(q, k, v, nullptr, mask, s, nullptr, 0, kq_scale, il);
        n_used++;
    };

    const auto store = [&](llama_kv_cache & kv, int32_t ig, ggml_tensor * idxs_k, ggml_tensor * idxs_v) {
        const auto & l = kv.layers[kv.map_layer_ids.at(layer.src)];
        if (k_cur) {
            store_heads(gctx, l.k, k_cur, idxs_k, layer.runs[ig]);
        }
        if (v_cur) {
            store_heads(gctx, l.v, v_cur, idxs_v, layer.runs[ig]);
        }
    };

    if (ig_full >= 0 && !layer.runs[ig_full].empty()) {
        store(*owner, ig_full, k_idxs, v_idxs);
        attend(ig_full, mctx->get_k(ctx, layer.src), mctx->get_v(ctx, layer.src), mask_full);
    }

    for (size_t i = 0; i < groups.size(); ++i) {
        auto & g = *groups[i];
        if (layer.runs[g.ig].empty()) {
            continue;
        }

        store(*g.kv, g.ig, inp->idxs[i], inp->idxs[i]);
        attend(g.ig, g.kv->get_k(ctx, layer.src, g.n_kv, g.sinfo), g.kv->get_v(ctx, layer.src, g.n_kv, g.sinfo), inp->masks[i]);
    }

    if (n_used == 1) {
        for (auto * out : outs) {
            if (out) {
                return out;
            }
        }
    }

    const int64_t n_embd_head_v = owner->hparams.n_embd_head_v(layer.src);

    auto * cur = merge_heads(ctx, outs, layer.runs, n_embd_head_v, ratio);
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
