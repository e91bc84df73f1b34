#include "llama-hwkv-trace.h"
#include "llama-hwkv-cut.h"
#include "llama-hwkv-project.h"
#include "llama-hwkv.h"

#include "hwkv-error.h"

#include "llama-graph.h"
#include "llama-impl.h"
#include "llama-kv-cache.h"
#include "llama-kv-headwise-setup.h"
#include "llama-model.h"

#include "ggml-cpp.h"

#include <algorithm>
#include <cstring>
#include <unordered_set>
#include <vector>

struct llama_hwkv_tracer {
    llama_context * ctx = nullptr;

    llama_hwkv_part part = {};
    int32_t n_embd   = 0;
    int32_t n_tokens = 0;
    bool    reserving = false; // a context asks how much room its graphs need: nothing is run

    // in the graph of the last decode
    ggml_tensor * hidden_inp = nullptr;
    ggml_tensor * hidden_out = nullptr;
    ggml_tensor * fattn      = nullptr;
    llama_hwkv_projection projection;

    // what the attention reads; between devices the scheduler gives it copies, which are gone when it is done
    ggml_tensor * q           = nullptr;
    ggml_tensor * k           = nullptr;
    ggml_tensor * v           = nullptr;
    ggml_tensor * sink_logits = nullptr;

    std::string error; // why the graph could not be cut

    ggml_cgraph * cut(llm_graph_result & res);

    // a row-wise copy of a tensor [dim, n_rows, n_heads] whose rows are converted to float, as dst[head][row][dim] or dst[row][head][dim]
    void get_rows(const ggml_tensor * t, int64_t n_rows, bool head_major, float * dst) const;

private:
    bool replace_input(llm_graph_result & res, std::vector<ggml_tensor *> & nodes, size_t & i_first);
    bool check_closed(ggml_cgraph * gf, const std::vector<ggml_tensor *> & nodes, size_t i_first);
};

static thread_local llama_hwkv_tracer * g_active = nullptr;

// feeds the kept values in, and lets a graph be reused only for the same part
class llm_graph_input_part : public llm_graph_input_i {
public:
    llm_graph_input_part(llama_hwkv_tracer * tracer, ggml_tensor * hidden) : tracer(tracer), part(tracer->part), hidden(hidden) {}

    void set_input(const llama_ubatch * ubatch) override {
        if (hidden) {
            GGML_ASSERT((int64_t) ubatch->n_tokens == hidden->ne[1]);
            ggml_backend_tensor_set(hidden, tracer->part.hidden, 0, ggml_nbytes(hidden));
        }
    }

    bool can_reuse(const llm_graph_params & params) override {
        return g_active == tracer && tracer->part.first == part.first && tracer->part.last == part.last && tracer->part.attend == part.attend &&
            tracer->part.project == part.project && (!hidden || hidden->ne[1] == (int64_t) params.ubatch.n_tokens);
    }

private:
    llama_hwkv_tracer * tracer;
    llama_hwkv_part     part;
    ggml_tensor *       hidden;
};

// The tensor that enters a layer: what the one below it puts out. Null if it is not one row of values for each token.
static ggml_tensor * layer_input(const llm_graph_result & res, int32_t il, int64_t n_embd, int64_t n_tokens) {
    auto * named = ggml_graph_get_tensor(res.get_gf(), format("l_out-%d", il - 1).c_str());
    auto * given = res.get_layer_inp(il);
    if (named && given && named != given) {
        return nullptr; // more than one stream passes from layer to layer
    }
    auto * t = named ? named : given;
    return t && t->type == GGML_TYPE_F32 && ggml_is_contiguous(t) && t->ne[0] == n_embd && ggml_nrows(t) == n_tokens ? t : nullptr;
}

static ggml_tensor * attention_of(const llm_graph_result & res, int32_t il) {
    ggml_tensor * found = nullptr;
    for (const auto & node : res.get_fused_nodes()) {
        if (node.op == LLM_FUSED_OP_FLASH_ATTN && node.il == il) {
            if (found) {
                return nullptr;
            }
            found = node.tensor;
        }
    }
    return found;
}

static size_t index_of(const std::vector<ggml_tensor *> & nodes, const ggml_tensor * t) {
    for (size_t i = 0; i < nodes.size(); ++i) {
        if (nodes[i] == t) {
            return i;
        }
    }
    return SIZE_MAX;
}

// what stays in memory when a view of it is all that is left
static ggml_tensor * storage_of(ggml_tensor * t) {
    return t->view_src ? t->view_src : t;
}

// What the attention reads is a copy of a cache in F32, rounded to F16.
static ggml_tensor * held(ggml_tensor * t) {
    return t->op == GGML_OP_CPY && t->src[0]->type == GGML_TYPE_F32 ? t->src[0] : t;
}

bool llama_hwkv_tracer::replace_input(llm_graph_result & res, std::vector<ggml_tensor *> & nodes, size_t & i_first) {
    auto * src = layer_input(res, part.first, n_embd, n_tokens);
    const size_t i_src = src ? index_of(nodes, src) : SIZE_MAX;
    if (i_src == SIZE_MAX) {
        error = format("the input of layer %d is not one tensor", part.first);
        return false;
    }

    hidden_inp = ggml_new_tensor_2d(res.get_ctx(), GGML_TYPE_F32, src->ne[0], src->ne[1]);
    ggml_set_input(hidden_inp);
    ggml_set_name(hidden_inp, "hw_hidden");

    for (size_t i = i_src + 1; i < nodes.size(); ++i) {
        for (auto & s : nodes[i]->src) {
            if (s == src) {
                s = hidden_inp;
            }
        }
        if (nodes[i]->view_src == src) {
            nodes[i]->view_src = hidden_inp;
        }
    }

    i_first = i_src + 1;
    return true;
}

// The layer of a tensor of a cache, -1 for others: cache_k_l3, cache_g0_k_l3, cache_s_l3, ...
static int cache_layer(const ggml_tensor * t) {
    const char * end = strrchr(t->name, '_');
    int il = -1;
    return strncmp(t->name, "cache_", 6) == 0 && end && sscanf(end, "_l%d", &il) == 1 ? il : -1;
}

// nothing of a layer below the first may be needed: it has not run
bool llama_hwkv_tracer::check_closed(ggml_cgraph * gf, const std::vector<ggml_tensor *> & nodes, size_t i_first) {
    const std::unordered_set<const ggml_tensor *> below(nodes.begin(), nodes.begin() + i_first);

    for (int i = 0; i < ggml_graph_n_nodes(gf); ++i) {
        const auto * node = ggml_graph_node(gf, i);

        int il = -1;
        if (below.count(node) && sscanf(node->name, "l_out-%d", &il) == 1) {
            error = format("layer %d is read by a later one", il);
            return false;
        }
        for (const auto * s : node->src) {
            if (s && cache_layer(s) >= 0 && cache_layer(s) < part.first) {
                error = format("the cache of layer %d is read by a later one", cache_layer(s));
                return false;
            }
        }
    }
    return true;
}

ggml_cgraph * llama_hwkv_tracer::cut(llm_graph_result & res) {
    auto * gf = res.get_gf();

    std::vector<ggml_tensor *> nodes(ggml_graph_nodes(gf), ggml_graph_nodes(gf) + ggml_graph_n_nodes(gf));

    hidden_inp = nullptr;
    fattn      = attention_of(res, part.last);
    if (fattn && reserving) {
        n_tokens = (int32_t) (fattn->src[0]->ne[1]*fattn->src[0]->ne[3]);
    }
    hidden_out = part.last > 0 ? layer_input(res, part.last, n_embd, n_tokens) : nullptr;

    const size_t i_fattn = fattn ? index_of(nodes, fattn) : SIZE_MAX;
    if (i_fattn == SIZE_MAX) {
        error = format("layer %d has no flash attention in one call", part.last);
        return nullptr;
    }
    q           = fattn->src[0];
    k           = held(fattn->src[1]);
    v           = held(fattn->src[2]);
    sink_logits = fattn->src[4];

    projection = {};
    if (part.project) {
        projection.find(nodes, fattn);
    }

    // all inputs are set, used or not
    std::vector<ggml_tensor *> inputs;
    for (auto * node : nodes) {
        for (auto * s : node->src) {
            if (s && s->op == GGML_OP_NONE && (s->flags & GGML_TENSOR_FLAG_INPUT) && std::find(inputs.begin(), inputs.end(), s) == inputs.end()) {
                inputs.push_back(s);
            }
        }
    }

    size_t i_first = 0;
    if (part.first > 0 && !replace_input(res, nodes, i_first)) {
        return nullptr;
    }

    ggml_graph_clear(gf);
    for (auto * inp : inputs) {
        // a node reads each: ggml does not notice that a tensor has grown which nobody reads
        ggml_build_forward_expand(gf, ggml_view_1d(res.get_ctx(), inp, inp->ne[0], 0));
    }
    for (size_t i = i_first; i < i_fattn + part.attend; ++i) {
        if (nodes[i]->flags & GGML_TENSOR_FLAG_COMPUTE) {
            ggml_build_forward_expand(gf, nodes[i]);
        } else {
            ggml_build_forward_order(gf, nodes[i]);
        }
    }

    for (auto * t : projection.tensors()) {
        ggml_build_forward_expand(gf, t);
        ggml_set_output(storage_of(t));
    }

    if (part.first > 0 && !check_closed(gf, nodes, i_first)) {
        return nullptr;
    }

    for (auto * t : { hidden_out, q, fattn->src[1], fattn->src[2], part.attend ? fattn : nullptr }) {
        if (t && storage_of(t)->op != GGML_OP_NONE) {
            ggml_set_output(storage_of(t));
        }
    }

    res.t_logits = res.t_embd = res.t_embd_pooled = res.t_h_nextn = nullptr;
    if (!reserving) {
        res.add_input(std::make_unique<llm_graph_input_part>(this, hidden_inp));
    }

    return gf;
}

ggml_cgraph * llama_hwkv_cut(llm_graph_result & res) {
    auto * gf = g_active ? g_active->cut(res) : res.get_gf();

    // where it cannot be cut there is room for the whole graph; the first decode says so
    return gf || !g_active->reserving ? gf : res.get_gf();
}

//
// C API
//

llama_context * llama_hwkv_tracer_context(llama_model * model, llama_context_params params, const hwkv_policy * policy, int32_t ip, int32_t first, int32_t last) {
    llama_hwkv_tracer room;
    room.part      = { first, last, /*attend =*/ true, /*project =*/ true, nullptr };
    room.n_embd    = llama_model_n_embd(model);
    room.reserving = true;

    g_active = &room;
    auto * ctx = llama_kv_policy_init_from_model(model, params, policy, ip);
    g_active = nullptr;
    return ctx;
}

llama_hwkv_tracer * llama_hwkv_tracer_init(llama_context * ctx) {
    auto * res = new llama_hwkv_tracer;
    res->ctx    = ctx;
    res->n_embd = llama_model_n_embd(llama_get_model(ctx));
    return res;
}

void llama_hwkv_tracer_free(llama_hwkv_tracer * tracer) {
    delete tracer;
}

int llama_hwkv_tracer_decode(llama_hwkv_tracer * tracer, const llama_token * tokens, int32_t n_tokens, llama_pos pos, const llama_hwkv_part * part, hwkv_error * err) {
    if (n_tokens < 1 || n_tokens > (int32_t) llama_n_ubatch(tracer->ctx) || part->first < 0 || part->last < part->first || (part->first > 0 && !part->hidden)) {
        return hwkv_fail(err, HWKV_ERR_ARG, nullptr, "found %d tokens for layers %d to %d, expected 1 to %u for an ascending range with its input", n_tokens,
                part->first, part->last, llama_n_ubatch(tracer->ctx));
    }

    auto batch = llama_batch_init(n_tokens, 0, 1);
    batch.n_tokens = n_tokens;
    for (int32_t i = 0; i < n_tokens; ++i) {
        batch.token   [i]    = tokens[i];
        batch.pos     [i]    = pos + i;
        batch.n_seq_id[i]    = 1;
        batch.seq_id  [i][0] = 0;
        batch.logits  [i]    = 0;
    }

    tracer->part     = *part;
    tracer->n_tokens = n_tokens;
    tracer->error.clear();

    g_active = tracer;
    const int status = llama_decode(tracer->ctx, batch);
    g_active = nullptr;

    llama_batch_free(batch);
    llama_synchronize(tracer->ctx);

    if (!tracer->error.empty()) {
        return hwkv_fail(err, HWKV_ERR_MISMATCH, nullptr, "%s", tracer->error.c_str());
    }
    if (status != 0) {
        return hwkv_fail(err, HWKV_ERR_INTERNAL, nullptr, "llama_decode failed with %d at position %d of layers %d to %d", status, pos, part->first, part->last);
    }
    return HWKV_OK;
}

llama_hwkv_trace_shape llama_hwkv_tracer_shape(const llama_hwkv_tracer * tracer) {
    const auto * fattn = tracer->fattn;

    float params[3]; // scale, max_bias, softcap
    memcpy(params, fattn->op_params, sizeof(params));

    llama_hwkv_trace_shape res = {};
    res.n_tokens   = tracer->n_tokens;
    res.n_embd     = tracer->n_embd;
    res.n_head     = tracer->q->ne[2];
    res.n_head_kv  = tracer->k->ne[2];
    res.head_dim_k = tracer->k->ne[0];
    res.head_dim_v = tracer->v->ne[0];
    // the operation divides the scale by the cap before it multiplies with it: this is the scale as given
    res.scale      = params[0];
    res.softcap    = params[2];
    res.has_sink_logits = tracer->sink_logits != nullptr;
    return res;
}

void llama_hwkv_tracer::get_rows(const ggml_tensor * t, int64_t n_rows, bool head_major, float * dst) const {
    const auto * base = t->view_src ? t->view_src : t;

    // one transfer, then rows by stride
    std::vector<uint8_t> data((t->ne[2] - 1)*t->nb[2] + (n_rows - 1)*t->nb[1] + ggml_row_size(t->type, t->ne[0]));
    ggml_backend_tensor_get(base, data.data(), t->view_offs, data.size());

    const auto * traits = ggml_get_type_traits(t->type);

    for (int64_t ih = 0; ih < t->ne[2]; ++ih) {
        for (int64_t ir = 0; ir < n_rows; ++ir) {
            const auto * src = data.data() + ih*t->nb[2] + ir*t->nb[1];
            auto       * to  = dst + (head_major ? ih*n_rows + ir : ir*t->ne[2] + ih)*t->ne[0];
            if (t->type == GGML_TYPE_F32) {
                memcpy(to, src, t->ne[0]*sizeof(float));
            } else {
                traits->to_float(src, to, t->ne[0]);
            }
        }
    }
}

const llama_hwkv_projection & llama_hwkv_projection_of(const llama_hwkv_tracer * tracer) {
    return tracer->projection;
}

bool llama_hwkv_tracer_get_hidden(const llama_hwkv_tracer * tracer, float * dst) {
    if (!tracer->hidden_out) {
        return false;
    }
    ggml_backend_tensor_get(tracer->hidden_out, dst, 0, ggml_nbytes(tracer->hidden_out));
    return true;
}

void llama_hwkv_tracer_get_q(const llama_hwkv_tracer * tracer, float * dst) {
    tracer->get_rows(tracer->q, tracer->n_tokens, false, dst);
}

void llama_hwkv_tracer_get_out(const llama_hwkv_tracer * tracer, float * dst) {
    ggml_backend_tensor_get(tracer->fattn, dst, 0, ggml_nbytes(tracer->fattn)); // [head_dim_v, n_head, n_tokens]
}

void llama_hwkv_tracer_get_sink_logits(const llama_hwkv_tracer * tracer, float * dst) {
    const auto * sinks = tracer->sink_logits;
    ggml_backend_tensor_get(sinks->view_src ? sinks->view_src : sinks, dst, sinks->view_offs, ggml_nbytes(sinks));
}

void llama_hwkv_tracer_get_k(const llama_hwkv_tracer * tracer, int32_t n_pos, float * dst) {
    tracer->get_rows(tracer->k, n_pos, true, dst);
}

void llama_hwkv_tracer_get_v(const llama_hwkv_tracer * tracer, int32_t n_pos, float * dst) {
    tracer->get_rows(tracer->v, n_pos, true, dst);
}

// A cache of one cell is asked, so that the rule stays llama.cpp's.
int llama_hwkv_rotation(const llama_model * model, const hwkv_geometry * geo, hwkv_type type_k, hwkv_type type_v, int32_t * n_k, int32_t * n_v, hwkv_error * err) {
    const auto filter = [&](int32_t il) {
        return std::any_of(geo->layers, geo->layers + geo->n_full, [&](const hwkv_layer & l) { return l.il == il; });
    };
    try {
        const llama_kv_cache kv(*model, model->hparams, llama_kv_headwise_ggml_type(type_k), llama_kv_headwise_ggml_type(type_v),
                /*v_trans =*/ false, /*offload =*/ false, /*unified =*/ true, 1, 1, 1, 0, LLAMA_SWA_TYPE_NONE, nullptr, filter, nullptr, nullptr);

        ggml_context_ptr ctx { ggml_init({ 2*ggml_tensor_overhead(), nullptr, /*no_alloc =*/ true }) };
        const auto * k = kv.build_input_k_rot(ctx.get());
        const auto * v = kv.build_input_v_rot(ctx.get());
        *n_k = k ? k->ne[0] : 0;
        *n_v = v ? v->ne[0] : 0;
    } catch (const std::exception & e) {
        return hwkv_fail(err, HWKV_ERR_INTERNAL, nullptr, "cannot make a cache of %s and %s: %s", hwkv_type_name(type_k), hwkv_type_name(type_v), e.what());
    }
    return HWKV_OK;
}
