#include "llama-kv-headwise-input.h"

#include "llama-batch.h"
#include "llama-cparams.h"

#include <algorithm>

llm_graph_input_headwise::llm_graph_input_headwise(llama_kv_headwise * hw, const llama_cparams & cparams, ggml_context * ctx, const llama_ubatch & ubatch) :
    hw(hw), causal(hw->is_causal(cparams)), n_thread(std::max(1, cparams.n_threads_batch)) {
    for (const auto & c : hw->windows) {
        const auto d = dims_of(*c, cparams, ubatch);
        const auto i = inputs.size();

        cells_input t;

        t.rows = ggml_new_tensor_1d(ctx, GGML_TYPE_I64, d.n_stored);
        ggml_set_input(t.rows);
        ggml_format_name(t.rows, "hw_rows_%zu", i);

        // reserving: of a batch that is staged some may not be stored
        if (d.n_stored != (int64_t) ubatch.n_tokens || (hw->reserving && d.n_staged > 0)) {
            t.tokens = ggml_new_tensor_1d(ctx, GGML_TYPE_I32, d.n_stored);
            ggml_set_input(t.tokens);
            ggml_format_name(t.tokens, "hw_tokens_%zu", i);
        }

        t.mask = ggml_new_tensor_4d(ctx, cparams.flash_attn ? GGML_TYPE_F16 : GGML_TYPE_F32, c->n_kv + d.n_staged, d.n_row, 1, d.n_stream);
        ggml_set_input(t.mask);
        ggml_format_name(t.mask, "hw_mask_%zu", i);

        inputs.push_back(t);
        shapes.push_back(d);
    }

    for (const auto & g : hw->groups) {
        const auto * kv = g->kv.get();
        rotations.push_back({ add_matrix(kv->build_input_k_rot(ctx), kv, true), add_matrix(kv->build_input_v_rot(ctx), kv, false) });
    }
}

ggml_tensor * llm_graph_input_headwise::add_matrix(ggml_tensor * t, const llama_kv_cache * kv, bool is_k) {
    if (!t) {
        return nullptr;
    }
    for (const auto & m : matrices) {
        if (m.t->ne[0] == t->ne[0]) {
            return m.t;
        }
    }
    matrices.push_back({ t, kv, is_k });
    return t;
}

llm_graph_input_headwise & llm_graph_input_headwise::get(const llm_graph_context & gctx, llama_kv_headwise * hw) {
    for (auto & input : gctx.res->inputs) {
        if (auto * res = dynamic_cast<llm_graph_input_headwise *>(input.get())) {
            return *res;
        }
    }
    return *(llm_graph_input_headwise *) gctx.res->add_input(std::make_unique<llm_graph_input_headwise>(hw, gctx.cparams, gctx.ctx0, gctx.ubatch));
}

const llm_graph_input_headwise::cells_input & llm_graph_input_headwise::of(const llama_kv_headwise::cells * c) const {
    size_t i = 0;
    while (hw->windows[i].get() != c) {
        ++i;
    }
    return inputs[i];
}

llm_graph_input_headwise::dims llm_graph_input_headwise::dims_of(const llama_kv_headwise::cells & c, const llama_cparams & cparams, const llama_ubatch & ubatch) const {
    dims res;
    res.n_stream = cparams.kv_unified ? 1 : ubatch.n_seqs_unq;
    res.n_row    = ubatch.n_tokens/res.n_stream;
    res.n_kv     = c.n_kv;
    res.n_staged = hw->n_staged(c, ubatch.n_tokens, res.n_row);
    res.n_stored = hw->reserving ? ubatch.n_tokens : c.rows.size();
    return res;
}

bool llm_graph_input_headwise::can_reuse(const llm_graph_params & params) {
    bool res = causal == hw->is_causal(params.cparams);

    for (size_t i = 0; i < hw->windows.size(); ++i) {
        res = res && shapes[i] == dims_of(*hw->windows[i], params.cparams, params.ubatch);
    }

    return res;
}

void llm_graph_input_headwise::set_input(const llama_ubatch * ubatch) {
    // what belongs to layers that are not part of this graph has no buffer
    for (size_t i = 0; i < hw->windows.size(); ++i) {
        const auto & c = *hw->windows[i];
        const auto & t = inputs[i];

        if (t.rows->buffer) {
            ggml_backend_tensor_set(t.rows, c.rows.data(), 0, ggml_nbytes(t.rows));
        }
        if (t.tokens && t.tokens->buffer) {
            ggml_backend_tensor_set(t.tokens, c.tokens.data(), 0, ggml_nbytes(t.tokens));
        }
        if (t.mask->buffer) {
            fill_mask(c, t.mask, *ubatch);
        }
    }

    for (const auto & m : matrices) {
        if (m.t->buffer && m.is_k) {
            m.kv->set_input_k_rot(m.t);
        } else if (m.t->buffer) {
            m.kv->set_input_v_rot(m.t);
        }
    }
}
