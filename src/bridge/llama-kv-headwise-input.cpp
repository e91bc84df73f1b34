#include "llama-kv-headwise-input.h"

#include "llama-batch.h"
#include "llama-cparams.h"

#include <algorithm>
#include <cmath>

llm_graph_input_headwise::llm_graph_input_headwise(llama_kv_headwise * hw, const llama_cparams & cparams, ggml_context * ctx, const llama_ubatch & ubatch) :
    hw(hw), causal(cparams.causal_attn) {
    for (const auto & c : hw->windows) {
        const auto d = dims_of(*c, cparams, ubatch);
        const auto i = inputs.size();

        cells_input t;

        t.rows = ggml_new_tensor_1d(ctx, GGML_TYPE_I64, d.n_stored);
        ggml_set_input(t.rows);
        ggml_format_name(t.rows, "hw_rows_%zu", i);

        if (d.n_stored != (int64_t) ubatch.n_tokens) {
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
    res.n_staged = hw->n_staged(c, res.n_row);
    res.n_stored = hw->reserving ? ubatch.n_tokens : c.rows.size();
    return res;
}

bool llm_graph_input_headwise::can_reuse(const llm_graph_params & params) {
    bool res = causal == params.cparams.causal_attn;

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
        if (t.mask->buffer && c.is_ring()) {
            fill_mask(c, t.mask, *ubatch);
        } else if (t.mask->buffer) {
            c.kv->set_input_kq_mask(t.mask, ubatch, causal);
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

//
// masks of rings
//

template <typename T>
void llm_graph_input_headwise::fill_rows(const llama_kv_headwise::cells & c, ggml_tensor * dst, const llama_ubatch & ubatch, T keep, T drop) const {
    const int64_t n_kv  = c.n_kv;
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
            const bool res = p0 >= 0 && (p0 <= p1 || !causal) && hwkv_rule_sees(c.rule, p1, p0);
            return res && !(is_2d && causal && p0 == p1 && ext0.is_2d_gt(ext1.x, ext1.y));
        };

        const auto & seen = c.seen[ubatch.seq_idx[seq_id]];
        for (int64_t j = 0; j < n_kv; ++j) {
            data[j] = visible(seen[j].pos, seen[j].ext) ? keep : drop;
        }
        std::fill(data + n_kv, data + n_col, drop);

        // the tokens of the same stream stand beside the ring
        const int64_t i0 = i/n_row*n_row;
        for (int64_t k = i0; k < i0 + n_row && c.staged; ++k) {
            const auto * ids = ubatch.seq_id[k];
            if (std::find(ids, ids + ubatch.n_seq_id[k], seq_id) != ids + ubatch.n_seq_id[k] && visible(ubatch.pos[k], place_of(k))) {
                data[n_kv + k - i0] = keep;
            }
        }
    }
}

void llm_graph_input_headwise::fill_mask(const llama_kv_headwise::cells & c, ggml_tensor * dst, const llama_ubatch & ubatch) const {
    GGML_ASSERT(ggml_backend_buffer_is_host(dst->buffer));

    if (dst->type == GGML_TYPE_F16) {
        fill_rows<ggml_fp16_t>(c, dst, ubatch, ggml_fp32_to_fp16(0.0f), ggml_fp32_to_fp16(-INFINITY));
    } else {
        fill_rows<float>(c, dst, ubatch, 0.0f, -INFINITY);
    }
}
