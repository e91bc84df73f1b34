#pragma once

// Window groups of a KV policy: what a llama_kv_cache holds besides its own cells.
//
// The cache that keeps the full-attention layers stays the keeper of all positions and holds the heads with full
// history. Every finite window has a child: a stock llama_kv_cache with just that window's heads, whose cells are
// used as a ring with pinned first positions. The owner forwards its operations here by one-line hooks.

#include "llama-kv-cache.h"

#include "hwkv-history.h"
#include "hwkv-state.h"
#include "hwkv.h"

#include <functional>
#include <memory>
#include <string>
#include <vector>

struct llama_context_params;
struct llm_graph_context;

// tells a state made under another policy from damage
static const uint32_t LLAMA_KV_HEADWISE_MAGIC = 0x6877677b;

// some heads of one layer that share a window: first, first + step, ...
struct llama_kv_head_run {
    uint32_t first;
    uint32_t count;
    uint32_t step;
};

// adjacent heads that come from one of a layer's groups
struct llama_kv_head_span {
    uint32_t src;   // which of the groups that the layer has
    uint32_t from;  // first head in the group
    uint32_t to;    // first head in the layer
    uint32_t count;
};

// the tokens that a sequence's rows were computed from
struct llama_kv_history : hwkv_history {
    llama_kv_history() : hwkv_history() {}
    ~llama_kv_history() { hwkv_history_free(this); }

    llama_kv_history(const llama_kv_history &) = delete;
    llama_kv_history & operator=(const llama_kv_history &) = delete;
};

// a policy made ready for one model and one set of context parameters
struct llama_kv_headwise_plan {
    std::string path;
    std::string point;
    std::string state_id; // same for policies whose states are interchangeable
    int32_t     sinks      = 0;
    uint32_t    n_rollback = 0;
    uint32_t    n_pad      = 1; // cells of a ring are a multiple of this

    std::shared_ptr<const struct hwkv_policy> policy;
    std::shared_ptr<struct hwkv_plan>         plan;
    int32_t                                   ip = 0; // operating point
};

// Active while a context creates its memory: the first cache without a window of its own takes the policy.
// Throws std::runtime_error with the reason when the policy cannot be used.
class llama_kv_headwise_scope {
public:
    llama_kv_headwise_scope(const llama_model & model, const llama_context_params & params, const llama_cparams & cparams);
    ~llama_kv_headwise_scope();

    // throws if no cache took the policy
    void check() const;

private:
    std::shared_ptr<llama_kv_headwise_plan> plan;
};

class llama_kv_headwise {
public:
    // what the owner was built from; its children are built alike
    struct owner_params {
        ggml_type type_k;
        ggml_type type_v;
        bool      offload;
        bool      unified;
        uint32_t  n_seq_max;
        uint32_t  n_pad;
    };

    // null unless a scope is active and this cache is the one to take its policy
    static std::shared_ptr<llama_kv_headwise> attach(const llama_hparams & hparams, llama_swa_type swa_type, llama_memory_t mem_other, const char * name_tag);

    llama_kv_headwise(const llama_hparams & hparams, std::shared_ptr<llama_kv_headwise_plan> plan);

    // the owner's view of the model: only heads with full history
    const llama_hparams & hparams_full() const { return hp_full; }

    // true if the owner keeps nothing for this layer
    bool skip(uint32_t il) const;

    // the owner is complete: build the children
    void init(llama_kv_cache & kv, const llama_model & model, const owner_params & params, const llama_memory_i::layer_reuse_cb & reuse);

    //
    // what the owner forwards
    //

    void clear(bool data);

    void seq_rm  (llama_seq_id seq_id,                              llama_pos p0, llama_pos p1);
    void seq_cp  (llama_seq_id seq_id_src, llama_seq_id seq_id_dst, llama_pos p0, llama_pos p1);
    void seq_keep(llama_seq_id seq_id);
    void seq_add (llama_seq_id seq_id,                              llama_pos p0, llama_pos p1, llama_pos shift);
    void seq_div (llama_seq_id seq_id,                              llama_pos p0, llama_pos p1, int d);

    // every position above this can be continued exactly; -1 if the sequence is empty
    llama_pos seq_pos_min(llama_seq_id seq_id) const;
    static llama_pos seq_pos_min_iswa(const llama_kv_cache & base, const llama_kv_cache & swa, llama_seq_id seq_id);

    // can a sequence go on at p as if it had been run from the start?
    static bool can_resume(llama_memory_i * mem, llama_seq_id seq_id, llama_pos p);

    void memory_breakdown(std::map<ggml_backend_buffer_type_t, size_t> & mb) const;

    // pending shifts and stream copies; returns false if nothing is left for the owner to do
    bool update(llama_context * lctx, bool do_shift);

    void state_write(llama_io_write_i & io, llama_seq_id seq_id, llama_state_seq_flags flags) const;
    void state_read (llama_io_read_i  & io, llama_seq_id seq_id, llama_state_seq_flags flags);

    // place the tokens of an ubatch in every ring; false if one of them cannot hold it
    bool apply(const llama_ubatch & ubatch);

    // worst case, for reserving graphs
    void apply_full();

    //
    // graph
    //

    // stores k_cur and v_cur (null where a layer reuses another's cache) and attends: [n_embd_head_v*n_head, n_tokens]
    // k_full, v_full and mask_full are the owner's, for heads with full history
    ggml_tensor * build_attn(
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
                    int   il);

    // upper bound of graph nodes on top of the plain cache's
    uint32_t n_nodes_extra() const;

    const llama_kv_headwise_plan & get_plan() const { return *plan; }

    // bytes of a group of the plan in the i-th kind of buffer; 0 past the last
    size_t group_device(int32_t ig, size_t i, const char ** name) const;

    // cells in use by any sequence, per group of the plan
    uint32_t n_cells_used(int32_t ig) const;
    uint32_t n_cells_used(int32_t ig, llama_seq_id seq_id) const; // by one

    // the first finite window that does not hold what a sequence needs to go on at p, HWKV_FULL if all do
    int32_t lost_window(llama_seq_id seq_id, llama_pos p) const;

    ggml_type type_k() const;
    ggml_type type_v() const;

    const hwkv_history & get_history(llama_seq_id seq_id) const { return histories[seq_id]; }

    // How a memory writes the state of a sequence, for hwkv_state_check; throws when memory is out.
    static void describe_state(llama_memory_i * mem, const llama_hparams & hparams, hwkv_state_shape & shape);

    // the groups of a memory, or null
    static llama_kv_headwise * find(llama_memory_i * mem);

private:
    friend class llm_graph_input_headwise;

    // what the mask needs to know of a cell
    struct cell {
        llama_pos         pos = -1; // -1: nothing of this sequence
        llama_kv_cell_ext ext;
    };

    // first and last position of a sequence in an ubatch
    struct span {
        llama_pos first = -1; // -1: none
        llama_pos last  = -1;
    };

    struct group {
        int32_t  ig;     // index in the plan
        int32_t  sinks;  // first positions that stay
        int32_t  recent; // newest positions that stay

        llama_hparams hparams; // the child's view of the model
        std::unique_ptr<llama_kv_cache> kv;

        // the current ubatch: its streams, and how many cells of the ring are looked at
        llama_kv_cache::slot_info sinfo;
        uint32_t n_kv = 0;

        // The ring has no room for the ubatch: its tokens are attended to beside the ring as it was before, and only those
        // that stay are stored.
        bool staged = false;

        std::vector<std::vector<cell>> seen; // [n_seqs_unq][n_kv] cells that the ubatch finds, per sequence

        std::vector<int32_t> tokens; // of the ubatch that are stored
        std::vector<int64_t> rows;   // where, over all streams
    };

    struct layer {
        int32_t src = -1;  // the layer whose cache is used: itself, or the one it reuses
        int32_t n_head = 0;
        std::vector<std::vector<llama_kv_head_run>> runs; // [plan groups]
        std::vector<llama_kv_head_span> spans; // all heads in order
    };

    // of a group of the plan, null if there is no such group
    const llama_kv_cache * cache_of(int32_t ig) const;

    // histories
    void for_sequences(llama_seq_id seq_id, const std::function<void(hwkv_history & h)> & fn) const; // -1: of all
    void for_sharing  (llama_seq_id seq_id, const std::function<void(hwkv_history & h)> & fn) const; // and of those that share a cell with it
    bool remember(const llama_ubatch & ubatch);
    void write_histories(llama_io_write_i & io, llama_seq_id seq_id, llama_state_seq_flags flags) const;
    void read_histories (llama_io_read_i  & io, llama_seq_id seq_id, llama_state_seq_flags flags);

    static void describe_cache(const llama_kv_cache & kv, hwkv_state_kind kind, bool in_checkpoint, const group * g, hwkv_state_shape & shape);
    static void describe_attn (const llama_kv_cache & kv, bool in_checkpoint, hwkv_state_shape & shape);

    bool holds_window(const group & g, llama_seq_id seq_id, llama_pos p) const;

    bool place(group & g, const llama_ubatch & ubatch, const std::vector<span> & spans);
    bool store(group & g, const llama_ubatch & ubatch, const std::vector<span> & spans, uint32_t is, uint32_t n_tokens);
    void look (group & g, const llama_ubatch & ubatch) const;

    // the oldest recent position that a query at `first`, or one within the rollback room of `last`, attends to
    llama_pos keep_from(const group & g, llama_pos first, llama_pos last) const;
    // frees what neither the ubatch (spans may be empty) nor a continuation within the rollback room needs
    void trim(group & g, const std::vector<span> & spans, bool done) const;

    // columns of a mask beside the ring's cells
    uint32_t n_staged(const group & g, uint32_t n_tokens) const;

    template <typename T>
    static void fill_rows(const group & g, ggml_tensor * dst, const llama_ubatch & ubatch, bool causal, T keep, T drop);
    void fill_mask(const group & g, ggml_tensor * dst, const llama_ubatch & ubatch, bool causal) const;
    void check_size() const; // throws if the allocation is not what the plan promised

    std::shared_ptr<llama_kv_headwise_plan> plan;

    llama_hparams hp_full;

    llama_kv_cache * owner = nullptr;

    int32_t ig_full = -1; // the plan's group with full history, -1 if no head has it

    mutable std::vector<std::unique_ptr<group>> groups; // finite windows; trimming is not a change of state

    std::vector<layer> layers; // [n_layer_all]

    std::unique_ptr<llama_kv_history[]> histories; // [n_seq_max]

    bool reserving = false; // graphs are built for their size only: take the larger kind
};
