#pragma once

// What a graph by groups is given with every ubatch, shared by all layers: rows and masks of all cells, rotations of all stores.

#include "llama-graph.h"
#include "llama-kv-headwise.h"

#include <map>
#include <utility>
#include <vector>

class llm_graph_input_headwise : public llm_graph_input_i {
public:
    // of one window's cells
    struct cells_input {
        ggml_tensor * rows   = nullptr; // I64 [n_stored] where the tokens go
        ggml_tensor * tokens = nullptr; // I32 [n_stored] which, null if all are stored
        ggml_tensor * mask   = nullptr; // F16/F32 [n_kv + n_staged, n_tokens/n_stream, 1, n_stream]
    };

    // of one group's store, null where it keeps values as they are
    struct rotation {
        ggml_tensor * k = nullptr;
        ggml_tensor * v = nullptr;
    };

    llm_graph_input_headwise(llama_kv_headwise * hw, const llama_cparams & cparams, ggml_context * ctx, const llama_ubatch & ubatch);

    // of a graph that is being built, made when the first layer asks
    static llm_graph_input_headwise & get(const llm_graph_context & gctx, llama_kv_headwise * hw);

    void set_input(const llama_ubatch * ubatch) override;

    bool can_reuse(const llm_graph_params & params) override;

    const cells_input & of(const llama_kv_headwise::cells * c) const;

    std::vector<rotation> rotations; // [groups]

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

    dims dims_of(const llama_kv_headwise::cells & c, const llama_cparams & cparams, const llama_ubatch & ubatch) const;

    // of the tokens [i0, i1)
    template <typename T>
    void fill_rows(const llama_kv_headwise::cells & c, ggml_tensor * dst, const llama_ubatch & ubatch, uint32_t i0, uint32_t i1) const;
    void fill_mask(const llama_kv_headwise::cells & c, ggml_tensor * dst, const llama_ubatch & ubatch) const;

    llama_kv_headwise * hw;

    const bool     causal;
    const uint32_t n_thread; // for large masks

    std::vector<cells_input> inputs; // [windows]
    std::vector<dims>        shapes; // [windows]

    // A matrix of a size is the same for all stores: one of them fills it.
    struct matrix {
        ggml_tensor          * t;
        const llama_kv_cache * kv;
        bool                   is_k;
    };
    std::vector<matrix> matrices;

    ggml_tensor * add_matrix(ggml_tensor * t, const llama_kv_cache * kv, bool is_k);
};
