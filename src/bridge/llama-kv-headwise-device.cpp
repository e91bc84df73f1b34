// Nodes as the graph has them, built without memory and shown to the device.

#include "llama-kv-headwise-device.h"

#include "ggml-cpp.h"

#include <algorithm>
#include <vector>

namespace {

// a graph that is asked for and thrown away
class question {
public:
    question() : ctx_ptr(ggml_init({ 64*ggml_tensor_overhead() + ggml_graph_overhead_custom(64, false), nullptr, /*no_alloc =*/ true })),
        ctx(ctx_ptr.get()), gf(ggml_new_graph_custom(ctx, 64, false)) {}

    void add(ggml_tensor * t) {
        ggml_build_forward_expand(gf, t);
    }

    bool ask(ggml_backend_dev_t dev) const {
        for (int i = 0; i < ggml_graph_n_nodes(gf); ++i) {
            const auto * node = ggml_graph_node(gf, i);
            switch (node->op) {
                case GGML_OP_VIEW:
                case GGML_OP_RESHAPE:
                case GGML_OP_PERMUTE:
                case GGML_OP_TRANSPOSE:
                    break; // nothing is computed
                default:
                    if (!ggml_backend_dev_supports_op(dev, node)) {
                        return false;
                    }
            }
        }
        return true;
    }

private:
    ggml_context_ptr ctx_ptr;

public:
    ggml_context * const ctx;
    ggml_cgraph  * const gf;
};

} // namespace

// n_kv cells of a store with more of them
static ggml_tensor * new_cells(ggml_context * ctx, ggml_type type, int64_t head_dim, int64_t n_kv, const llama_kv_headwise_attn & a) {
    const int64_t width = head_dim*a.n_head_kv;

    auto * store = ggml_new_tensor_3d(ctx, type, width, std::max(n_kv, a.n_cells), a.n_stream);
    return ggml_view_4d(ctx, store, head_dim, a.n_head_kv, n_kv, a.n_stream, ggml_row_size(type, head_dim), store->nb[1], store->nb[2], 0);
}

static void add_attention(question & qn, const llama_kv_headwise_attn & a, bool flash_attn, int64_t n_tokens, int64_t n_kv) {
    auto * ctx = qn.ctx;

    auto * q = ggml_permute(ctx, ggml_new_tensor_4d(ctx, GGML_TYPE_F32, a.head_dim_k, a.n_head_q, n_tokens, a.n_stream), 0, 2, 1, 3);
    auto * k = ggml_permute(ctx, new_cells(ctx, a.type_k, a.head_dim_k, n_kv, a), 0, 2, 1, 3);
    auto * v = ggml_permute(ctx, new_cells(ctx, a.type_v, a.head_dim_v, n_kv, a), 0, 2, 1, 3);

    auto * mask  = ggml_new_tensor_4d(ctx, flash_attn ? GGML_TYPE_F16 : GGML_TYPE_F32, n_kv, n_tokens, 1, a.n_stream);
    auto * sinks = a.sink_logits ? ggml_new_tensor_1d(ctx, GGML_TYPE_F32, a.n_head_q) : nullptr;

    if (flash_attn) {
        k = k->type == GGML_TYPE_F32 ? ggml_cast(ctx, k, GGML_TYPE_F16) : k;
        v = v->type == GGML_TYPE_F32 ? ggml_cast(ctx, v, GGML_TYPE_F16) : v;

        auto * out = ggml_flash_attn_ext(ctx, q, k, v, mask, 1.0f, a.max_bias, a.softcap);
        ggml_flash_attn_ext_add_sinks(out, sinks);
        ggml_prec_set_acc(out, GGML_PREC_F32);
        qn.add(out);
        return;
    }

    auto * kq = ggml_mul_mat(ctx, k, q);
    ggml_prec_set_acc(kq, GGML_PREC_F32);
    kq = ggml_soft_max_ext(ctx, kq, mask, 1.0f, a.max_bias);
    ggml_soft_max_add_sinks(kq, sinks);
    qn.add(ggml_mul_mat(ctx, ggml_cont(ctx, ggml_transpose(ctx, v)), kq));
}

// a batch put beside the ring, in words as wide as its rows allow
static void add_staging(question & qn, const llama_kv_headwise_attn & a, ggml_type type, int64_t head_dim) {
    auto * ctx = qn.ctx;

    auto * cur = ggml_new_tensor_4d(ctx, GGML_TYPE_F32, head_dim, a.n_head_kv, a.n_batch, a.n_stream);
    qn.add(ggml_cast(ctx, ggml_pad(ctx, cur, 0, 0, a.n_staged - a.n_batch, 0), type));

    const int64_t row_size = ggml_row_size(type, head_dim);
    const auto    word     = row_size % 8 == 0 ? GGML_TYPE_I64 : row_size % 4 == 0 ? GGML_TYPE_I32 : GGML_TYPE_I16;
    const int64_t n_word   = row_size/ggml_type_size(word);

    qn.add(ggml_concat(ctx, ggml_new_tensor_4d(ctx, word, n_word, a.n_head_kv, a.n_cells,  a.n_stream),
                            ggml_new_tensor_4d(ctx, word, n_word, a.n_head_kv, a.n_staged, a.n_stream), 2));
}

static bool can_attend(ggml_backend_dev_t dev, const llama_kv_headwise_attn & a, bool flash_attn, int64_t n_tokens, int64_t n_kv) {
    question qn;
    add_attention(qn, a, flash_attn, n_tokens, n_kv);
    return qn.ask(dev);
}

// as long as few cells are in use the rest is not looked at
static const int64_t N_KV_FIRST = 256;

bool llama_kv_headwise_can_store(ggml_backend_dev_t dev, const llama_kv_headwise_attn & attn) {
    question qn;
    auto * rows = ggml_new_tensor_1d(qn.ctx, GGML_TYPE_I64, attn.n_batch*attn.n_stream);
    for (const auto & [type, head_dim] : { std::pair(attn.type_k, attn.head_dim_k), std::pair(attn.type_v, attn.head_dim_v) }) {
        const int64_t width = head_dim*attn.n_head_kv;
        qn.add(ggml_set_rows(qn.ctx, ggml_new_tensor_2d(qn.ctx, type, width, attn.n_cells*attn.n_stream),
                    ggml_new_tensor_2d(qn.ctx, GGML_TYPE_F32, width, rows->ne[0]), rows));
    }
    return qn.ask(dev);
}

bool llama_kv_headwise_can_decode(ggml_backend_dev_t dev, const llama_kv_headwise_attn & attn, bool flash_attn) {
    return can_attend(dev, attn, flash_attn, 1, std::min(N_KV_FIRST, attn.n_cells)) && can_attend(dev, attn, flash_attn, 1, attn.n_cells);
}

bool llama_kv_headwise_can_attend(ggml_backend_dev_t dev, const llama_kv_headwise_attn & attn, bool flash_attn) {
    if (!llama_kv_headwise_can_decode(dev, attn, flash_attn) ||
        !can_attend(dev, attn, flash_attn, attn.n_batch, std::min(N_KV_FIRST, attn.n_cells)) ||
        !can_attend(dev, attn, flash_attn, attn.n_batch, attn.n_cells + attn.n_staged)) {
        return false;
    }
    if (attn.n_staged == 0) {
        return true;
    }

    question qn;
    add_staging(qn, attn, attn.type_k, attn.head_dim_k);
    add_staging(qn, attn, attn.type_v, attn.head_dim_v);
    return qn.ask(dev);
}

std::string llama_kv_headwise_types(ggml_backend_dev_t dev, llama_kv_headwise_attn attn, bool flash_attn) {
    std::vector<const char *> names;
    for (const auto type : { GGML_TYPE_F32, GGML_TYPE_F16, GGML_TYPE_BF16, GGML_TYPE_Q8_0, GGML_TYPE_Q5_1, GGML_TYPE_Q5_0, GGML_TYPE_Q4_1, GGML_TYPE_Q4_0, GGML_TYPE_IQ4_NL }) {
        const int64_t block = ggml_blck_size(type);
        if (attn.head_dim_k % block != 0 || attn.head_dim_v % block != 0 || (!flash_attn && ggml_is_quantized(type))) {
            continue;
        }
        attn.type_k = attn.type_v = type;
        if (llama_kv_headwise_can_store(dev, attn) && llama_kv_headwise_can_attend(dev, attn, flash_attn)) {
            names.push_back(ggml_type_name(type));
        }
    }

    std::string res;
    for (size_t i = 0; i < names.size(); ++i) {
        res += (i == 0 ? "" : i + 1 < names.size() ? ", " : " or ") + std::string(names[i]);
    }
    return res;
}
