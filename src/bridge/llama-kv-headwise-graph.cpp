// The graph side: one attention call for each group of a layer.

#include "llama-kv-headwise.h"

#include "llama-cparams.h"
#include "llama-impl.h"
#include "llama-kv-headwise-input.h"

#include <map>

namespace {

// q, k or v of a layer as it is, and rotated for the stores that want it so: once, however many groups share that
class rotated {
public:
    rotated(const llm_graph_context & gctx, ggml_tensor * t) : gctx(gctx), plain(t) {}

    ggml_tensor * by(ggml_tensor * matrix) {
        if (!matrix || !plain) {
            return plain;
        }
        auto & res = done[matrix];
        if (!res) {
            res = llama_mul_mat_hadamard(gctx.ctx0, plain, matrix);
            ggml_build_forward_expand(gctx.gf, res);
        }
        return res;
    }

private:
    const llm_graph_context & gctx;
    ggml_tensor * plain;
    std::map<ggml_tensor *, ggml_tensor *> done;
};

// what a group attends with
struct part {
    ggml_tensor * q;
    ggml_tensor * k;
    ggml_tensor * v;
    ggml_tensor * mask;
    ggml_tensor * sink_logits;
    ggml_tensor * v_rot;
};

} // namespace

// the learned logits of the query heads of the runs
static ggml_tensor * gather_logits(const llm_graph_context & gctx, ggml_tensor * logits, const llama_kv_head_runs & runs, int64_t ratio) {
    if (!logits) {
        return nullptr;
    }

    auto * ctx = gctx.ctx0;
    auto * t   = llama_kv_heads_gather(ctx, ggml_reshape_3d(ctx, logits, 1, logits->ne[0], 1), runs, ratio);
    auto * res = ggml_reshape_1d(ctx, ggml_is_contiguous(t) ? t : ggml_cont(ctx, t), ggml_nelements(t));
    ggml_build_forward_expand(gctx.gf, res);
    return res;
}

ggml_tensor * llama_kv_headwise::build_attn(
        const llm_graph_context & gctx,
        ggml_tensor * q_cur,
        ggml_tensor * k_cur,
        ggml_tensor * v_cur,
        ggml_tensor * sink_logits,
              float   kq_scale,
                int   il) {
    auto * ctx = gctx.ctx0;
    auto & inp = llm_graph_input_headwise::get(gctx, this);

    const auto & layer = layers[il];

    const int64_t n_head_kv = layer.n_head;
    const int64_t ratio     = q_cur->ne[1]/n_head_kv; // query heads of each KV head

    rotated q_as(gctx, q_cur);
    rotated k_as(gctx, k_cur);
    rotated v_as(gctx, v_cur);

    std::vector<const group *> used;
    for (const auto & g : groups) {
        if (!layer.runs[g->ig].empty()) {
            used.push_back(g.get());
        }
    }

    std::vector<part> parts;
    for (const auto * g : used) {
        const auto & runs = layer.runs[g->ig];
        const auto & t    = inp.of(g->at);
        const auto & rot  = inp.rotations[g->ig];

        auto * k = g->kv->get_k(ctx, layer.src, g->at->n_kv, g->at->sinfo);
        auto * v = g->kv->get_v(ctx, layer.src, g->at->n_kv, g->at->sinfo);

        if (t.mask->ne[0] > k->ne[2]) {
            // a layer that reuses another's cache has no tokens of its own to put there
            auto & staged = inp.staged[{ g->ig, layer.src }];
            if (k_cur && v_cur) {
                staged.first  = llama_kv_heads_stage(gctx, k, k_as.by(rot.k), runs, t.mask->ne[0]);
                staged.second = llama_kv_heads_stage(gctx, v, v_as.by(rot.v), runs, t.mask->ne[0]);
            }
            k = staged.first;
            v = staged.second;
        }

        auto * q = llama_kv_heads_gather(ctx, q_as.by(rot.k), runs, ratio);
        ggml_build_forward_expand(gctx.gf, q);

        parts.push_back({ q, k, v, t.mask, gather_logits(gctx, sink_logits, runs, ratio), rot.v });
    }

    // first all writes, then all attention: the CPU computes neighbours of a kind without waiting in between
    bool on_cpu = true;
    for (const auto * g : used) {
        const auto & l   = g->kv->layers[g->kv->map_layer_ids.at(layer.src)];
        const auto & t   = inp.of(g->at);
        const auto & rot = inp.rotations[g->ig];
        if (k_cur) {
            llama_kv_heads_store(gctx, l.k, k_as.by(rot.k), t.rows, t.tokens, layer.runs[g->ig]);
        }
        if (v_cur) {
            llama_kv_heads_store(gctx, l.v, v_as.by(rot.v), t.rows, t.tokens, layer.runs[g->ig]);
        }
        on_cpu = on_cpu && l.k->buffer && ggml_backend_buffer_is_host(l.k->buffer);
    }

    std::vector<ggml_tensor *> outs;
    for (const auto & p : parts) {
        outs.push_back(gctx.build_attn_mha(p.q, p.k, p.v, nullptr, p.mask, p.sink_logits, nullptr, 0, kq_scale, il));
        ggml_build_forward_expand(gctx.gf, outs.back());
    }

    for (size_t i = 0; i < parts.size(); ++i) {
        if (parts[i].v_rot) {
            outs[i] = llama_mul_mat_hadamard(ctx, outs[i], parts[i].v_rot); // back, as it is its own inverse
            ggml_build_forward_expand(gctx.gf, outs[i]);
        }
    }

    if (outs.size() == 1) {
        return outs[0];
    }

    auto * cur = llama_kv_heads_merge(gctx, outs, layer.spans, owner->hparams.n_embd_head_v(layer.src)*q_cur->ne[1], n_head_kv, on_cpu);
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
        // a run: three views and a write for K and V, a view and a concat for Q and the output; a group: attention, rotations
        res += 16*n_runs + 32*n_groups;
    }
    return res;
}
