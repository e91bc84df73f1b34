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

} // namespace

struct llama_kv_headwise::layer_graph {
    const llm_graph_context  & gctx;
    llm_graph_input_headwise & inp;
    const layer              & l;

    rotated q;
    rotated k;
    rotated v;

    const bool    has_kv; // of its own, not another layer's
    const int64_t ratio;  // query heads of each KV head
    const bool    fill;   // of a staged batch has nodes of its own

    // what a group attends with
    struct part {
        ggml_tensor * q;
        ggml_tensor * k;
        ggml_tensor * v;
        ggml_tensor * mask;
        ggml_tensor * sink_logits;
        ggml_tensor * v_rot;
    };

    layer_graph(const llm_graph_context & gctx, llm_graph_input_headwise & inp, const layer & l, ggml_tensor * q_cur, ggml_tensor * k_cur, ggml_tensor * v_cur, bool fill) :
        gctx(gctx), inp(inp), l(l), q(gctx, q_cur), k(gctx, k_cur), v(gctx, v_cur), has_kv(k_cur && v_cur), ratio(q_cur->ne[1]/l.n_head), fill(fill) {}

    part build_part(const group & g, ggml_tensor * sink_logits);

    // writes the heads of a group to its store
    void store(const group & g);

    ggml_tensor * attend(const part & p, float kq_scale, int il) const;

    // the output of a part that attends to rotated values, as it is without
    ggml_tensor * rotate_back(ggml_tensor * out, const part & p) const;

    // whether a group's store is in the memory of the host
    bool is_on_cpu(const group & g) const;

private:
    // the learned logits of the query heads of the runs
    ggml_tensor * gather_logits(ggml_tensor * logits, const group & g) const;
};

ggml_tensor * llama_kv_headwise::layer_graph::gather_logits(ggml_tensor * logits, const group & g) const {
    if (!logits || llama_kv_heads_are_all(l.runs[g.ig], l.n_head)) {
        return logits;
    }

    auto * ctx = gctx.ctx0;
    auto * t   = llama_kv_heads_gather(ctx, ggml_reshape_3d(ctx, logits, 1, logits->ne[0], 1), l.runs[g.ig], ratio);
    // devices want them at an aligned address, which a view into the middle has not
    const bool as_is = ggml_is_contiguous(t) && (is_on_cpu(g) || !t->view_src);
    auto * res = ggml_reshape_1d(ctx, as_is ? t : ggml_cont(ctx, t), ggml_nelements(t));
    ggml_build_forward_expand(gctx.gf, res);
    return res;
}

llama_kv_headwise::layer_graph::part llama_kv_headwise::layer_graph::build_part(const group & g, ggml_tensor * sink_logits) {
    auto * ctx = gctx.ctx0;

    const auto & runs = l.runs[g.ig];
    const auto & t    = inp.of(g.at);
    const auto & rot  = inp.rotations[g.ig];

    auto * k_all = g.kv->get_k(ctx, l.src, g.at->n_kv, g.at->sinfo);
    auto * v_all = g.kv->get_v(ctx, l.src, g.at->n_kv, g.at->sinfo);

    if (t.mask->ne[0] > k_all->ne[2]) {
        // a layer that reuses another's cache has no tokens of its own to put there
        auto & staged = inp.staged[{ g.ig, l.src }];
        if (has_kv) {
            staged.first  = llama_kv_heads_stage(gctx, k_all, k.by(rot.k), runs, t.mask->ne[0], fill);
            staged.second = llama_kv_heads_stage(gctx, v_all, v.by(rot.v), runs, t.mask->ne[0], fill);
        }
        k_all = staged.first;
        v_all = staged.second;
    }

    auto * q_part = llama_kv_heads_gather(ctx, q.by(rot.k), runs, ratio);
    ggml_build_forward_expand(gctx.gf, q_part);

    return { q_part, k_all, v_all, t.mask, gather_logits(sink_logits, g), rot.v };
}

void llama_kv_headwise::layer_graph::store(const group & g) {
    const auto & at  = g.kv->layers[g.kv->map_layer_ids.at(l.src)];
    const auto & t   = inp.of(g.at);
    const auto & rot = inp.rotations[g.ig];

    auto * k_cur = k.by(rot.k);
    auto * v_cur = v.by(rot.v);

    if (k_cur && v_cur && !t.tokens && llama_kv_heads_are_all(l.runs[g.ig], l.n_head)) {
        // nothing to split: llama.cpp's own nodes, which backends know how to fuse
        ggml_build_forward_expand(gctx.gf, g.kv->cpy_k(gctx.ctx0, k_cur, t.rows, l.src, g.at->sinfo));
        ggml_build_forward_expand(gctx.gf, g.kv->cpy_v(gctx.ctx0, v_cur, t.rows, l.src, g.at->sinfo));
        return;
    }
    if (k_cur) {
        llama_kv_heads_store(gctx, at.k, k_cur, t.rows, t.tokens, l.runs[g.ig]);
    }
    if (v_cur) {
        llama_kv_heads_store(gctx, at.v, v_cur, t.rows, t.tokens, l.runs[g.ig]);
    }
}

bool llama_kv_headwise::layer_graph::is_on_cpu(const group & g) const {
    const auto & at = g.kv->layers[g.kv->map_layer_ids.at(l.src)];
    return at.k->buffer && ggml_backend_buffer_is_host(at.k->buffer);
}

ggml_tensor * llama_kv_headwise::layer_graph::attend(const part & p, float kq_scale, int il) const {
    auto * res = gctx.build_attn_mha(p.q, p.k, p.v, nullptr, p.mask, p.sink_logits, nullptr, 0, kq_scale, il);
    ggml_build_forward_expand(gctx.gf, res);
    return res;
}

ggml_tensor * llama_kv_headwise::layer_graph::rotate_back(ggml_tensor * out, const part & p) const {
    if (!p.v_rot) {
        return out;
    }
    auto * res = llama_mul_mat_hadamard(gctx.ctx0, out, p.v_rot); // its own inverse
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
    const auto & l = layers[il];

    layer_graph graph(gctx, llm_graph_input_headwise::get(gctx, this), l, q_cur, k_cur, v_cur, reserving && setup.on_gpu);

    std::vector<const group *> used;
    bool on_cpu = true;
    for (const auto & g : groups) {
        if (!l.runs[g->ig].empty()) {
            used.push_back(g.get());
            on_cpu = on_cpu && graph.is_on_cpu(*g);
        }
    }

    std::vector<layer_graph::part> parts;
    std::vector<ggml_tensor *>     outs;

    if (on_cpu) {
        // first all writes, then all attention: the CPU computes neighbours of a kind without waiting in between
        for (const auto * g : used) {
            parts.push_back(graph.build_part(*g, sink_logits));
        }
        for (const auto * g : used) {
            graph.store(*g);
        }
        for (const auto & p : parts) {
            outs.push_back(graph.attend(p, kq_scale, il));
        }
        for (size_t i = 0; i < parts.size(); ++i) {
            outs[i] = graph.rotate_back(outs[i], parts[i]);
        }
    } else {
        // one group after the other: what is staged for one is free again for the next
        for (const auto * g : used) {
            const auto part = graph.build_part(*g, sink_logits);
            graph.store(*g);
            outs.push_back(graph.rotate_back(graph.attend(part, kq_scale, il), part));
        }
    }

    if (outs.size() == 1) {
        return outs[0];
    }

    auto * cur = llama_kv_heads_merge(gctx, outs, l.spans, owner->hparams.n_embd_head_v(l.src)*q_cur->ne[1], l.n_head, on_cpu);
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
