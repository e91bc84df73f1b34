#pragma once

// A KV cache by groups: what the cache of the full-attention layers becomes under a KV policy.
//
// The cache that llama.cpp creates for those layers, the owner, keeps the positions of all tokens and no tensors. Every group
// of the plan (heads with the same codebook entry) has its tensors in a stock llama_kv_cache, its store. Cells, which say what
// position is held in which row, are shared by all groups with the same window: the owner's own cells serve full history, and
// a finite window has a ring, kept by the first store that uses it. The owner forwards its operations here by one-line hooks.

#include "llama-kv-cache.h"
#include "llama-kv-headwise-heads.h"
#include "llama-kv-headwise-setup.h"

#include "hwkv-history.h"
#include "hwkv-rule.h"
#include "hwkv-state.h"

#include <functional>
#include <memory>
#include <string>
#include <vector>

struct llama_cparams;
struct llm_graph_context;

// tells a state made under another policy from damage
static const uint32_t LLAMA_KV_HEADWISE_MAGIC = 0x6877677c;

// the tokens that a sequence's rows were computed from
struct llama_kv_history : hwkv_history {
    llama_kv_history() : hwkv_history() {}
    ~llama_kv_history() { hwkv_history_free(this); }

    llama_kv_history(const llama_kv_history &) = delete;
    llama_kv_history & operator=(const llama_kv_history &) = delete;
};

class llama_kv_headwise {
public:
    using slot_info       = llama_kv_cache::slot_info;
    using slot_info_vec_t = llama_kv_cache::slot_info_vec_t;

    // what the owner was built from; the stores are built alike
    struct owner_params {
        bool     offload;
        bool     unified;
        uint32_t n_seq_max;
        uint32_t n_pad;
    };

    // null without a setup; throws when a draft model wants to share a cache that has groups
    static std::shared_ptr<llama_kv_headwise> attach(const llama_hparams & hparams, const llama_kv_headwise_setup * setup, llama_memory_t mem_other);

    llama_kv_headwise(const llama_hparams & hparams, const llama_kv_headwise_setup & setup);

    // the owner is complete: build the stores
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

    // can ggml move the keys of every group to other positions?
    bool can_shift() const;

    void memory_breakdown(std::map<ggml_backend_buffer_type_t, size_t> & mb) const;

    // pending shifts and stream copies
    bool update(llama_context * lctx, const llama_kv_cache::stream_copy_info & sc_info);

    void state_write(llama_io_write_i & io, llama_seq_id seq_id, llama_state_seq_flags flags) const;
    // sinfos: where the owner has put the positions it read; not used for a checkpoint, which has only rings
    void state_read (llama_io_read_i  & io, llama_seq_id seq_id, llama_state_seq_flags flags, const slot_info_vec_t & sinfos);
    void state_clear(llama_seq_id seq_id); // zeroes the rows of a sequence whose state is not complete

    // place the tokens of an ubatch in all cells; the owner has put them at sinfo. False if a ring cannot hold them
    bool apply(const llama_ubatch & ubatch, const slot_info & sinfo);

    // worst case, for reserving graphs
    void apply_full();

    //
    // graph
    //

    // stores k_cur and v_cur (null where a layer reuses another's cache) and attends: [n_embd_head_v*n_head, n_tokens]
    ggml_tensor * build_attn(
            const llm_graph_context & gctx,
            ggml_tensor * q_cur,
            ggml_tensor * k_cur,
            ggml_tensor * v_cur,
            ggml_tensor * sink_logits,
                  float   kq_scale,
                    int   il);

    // upper bound of graph nodes on top of the plain cache's
    uint32_t n_nodes_extra() const;

    //
    // what it tells
    //

    const llama_kv_headwise_setup & get_setup() const { return setup; }

    // bytes of a group of the plan in the i-th kind of buffer; 0 past the last
    size_t group_device(int32_t ig, size_t i, const char ** name) const;
    std::map<ggml_backend_buffer_type_t, size_t> group_breakdown(int32_t ig) const;

    // cells in use by any sequence, per group of the plan
    uint32_t n_cells_used(int32_t ig) const;
    uint32_t n_cells_used(int32_t ig, llama_seq_id seq_id) const; // by one

    // the first finite window that does not hold what a sequence needs to go on at p, HWKV_FULL if all do
    int32_t lost_window(llama_seq_id seq_id, llama_pos p) const;

    const hwkv_history & get_history(llama_seq_id seq_id) const { return histories[seq_id]; }

    // How a memory writes the state of a sequence, for hwkv_state_check; throws when memory is out.
    static void describe_state(llama_memory_i * mem, const llama_hparams & hparams, hwkv_state_shape & shape);

    // the groups of a memory, or null
    static llama_kv_headwise * find(llama_memory_i * mem);

    // throws if a setup was given and no cache of the memory has taken it
    static void check_taken(const llama_kv_headwise_setup * setup, llama_memory_i * mem);

private:
    friend class llm_graph_input_headwise;

    // Columns of a mask, one after the other, with ascending positions of one sequence. A ring has few such runs, and the full
    // history mostly one, so masks are filled by ranges.
    struct run {
        uint32_t  col;
        uint32_t  count;
        llama_pos pos; // of the first
    };

    // A column whose position the ubatch has too: in an image the 2D place decides among equal positions.
    struct near_col {
        uint32_t          col;
        llama_pos         pos;
        llama_kv_cell_ext ext;
    };

    // first and last position of a sequence in an ubatch
    struct pos_range {
        llama_pos first = -1; // -1: none
        llama_pos last  = -1;
    };

    struct group;

    // Which positions are held, and in which rows: shared by all groups with the same window.
    struct cells {
        hwkv_rule        rule;
        uint32_t         n_room = 0;   // tokens of a ubatch that always find free cells
        llama_kv_cache * kv = nullptr; // keeps them: the owner, or the first store of a ring

        std::vector<const group *> groups;

        bool is_ring() const { return !hwkv_rule_is_full(rule); }

        // the current ubatch: its streams, and how many cells are looked at
        slot_info sinfo;
        uint32_t  n_kv = 0;

        // A ring that has no room for the ubatch: its tokens are attended to beside the ring as it was before, and only those
        // that stay are stored.
        bool staged = false;

        // what the ubatch finds there, and beside there when staged, per sequence
        std::vector<std::vector<run>>      runs; // [n_seqs_unq]
        std::vector<std::vector<near_col>> near; // [n_seqs_unq], of images only

        std::vector<int32_t> tokens; // of the ubatch that are stored
        std::vector<int64_t> rows;   // where, over all streams
    };

    // Heads with the same entry: tensors over cells.
    struct group {
        int32_t         ig;      // index in the plan
        cells         * at;
        llama_hparams   hparams; // the store's view of the model
        std::unique_ptr<llama_kv_cache> kv; // the store
    };

    struct layer {
        int32_t src = -1;  // the layer whose cache is used: itself, or the one it reuses
        int32_t n_head = 0;
        std::vector<llama_kv_head_runs>   runs; // [plan groups]
        std::vector<llama_kv_head_span> spans; // all heads in order
    };

    struct layer_graph; // a layer in a graph that is being built

    void add_group(int32_t ig, const llama_model & model, const owner_params & params);
    cells & cells_of(hwkv_rule rule, uint32_t n_room); // made when the first group asks
    void check_size() const; // throws if the allocation is not what the plan promised

    // calls fn(llama_kv_cache &) for the keeper of every ring
    template <typename F>
    void for_rings(F && fn) const;

    // histories
    void for_sequences(llama_seq_id seq_id, const std::function<void(hwkv_history & h)> & fn) const; // -1: of all
    void for_sharing  (llama_seq_id seq_id, const std::function<void(hwkv_history & h)> & fn) const; // and of those that share a cell with it
    bool remember(const llama_ubatch & ubatch);
    void write_histories(llama_io_write_i & io, llama_seq_id seq_id, llama_state_seq_flags flags) const;
    void read_histories (llama_io_read_i  & io, llama_seq_id seq_id, llama_state_seq_flags flags);

    // states: the rows of a store whose positions another cache has written or read
    void write_rows(llama_io_write_i & io, const group & g, llama_seq_id seq_id) const;
    void read_rows (llama_io_read_i  & io, const group & g, llama_seq_id seq_id, const slot_info_vec_t & sinfos);
    void read_cells(llama_io_read_i  & io, const cells & c, llama_seq_id seq_id, llama_state_seq_flags flags, const slot_info_vec_t & sinfos);

    static void describe_rows (const llama_kv_cache & kv, hwkv_state_part & part);
    static void describe_cache(const llama_kv_cache & kv, hwkv_state_kind kind, bool in_checkpoint, hwkv_rule rule, hwkv_state_shape & shape);
    static void describe_attn (const llama_kv_cache & kv, bool in_checkpoint, hwkv_state_shape & shape);
    void describe_groups(uint32_t i_owner, hwkv_state_shape & shape) const;

    bool holds_window(const cells & c, llama_seq_id seq_id, llama_pos p) const;

    // placement
    bool place(cells & c, const llama_ubatch & ubatch, const std::vector<pos_range> & ranges);
    bool store(cells & c, const llama_ubatch & ubatch, const std::vector<pos_range> & ranges, uint32_t is, uint32_t n_tokens);
    void look (cells & c, const llama_ubatch & ubatch) const;
    void look_near  (cells & c, const llama_ubatch & ubatch, uint32_t u) const;
    void look_beside(cells & c, const llama_ubatch & ubatch, uint32_t u) const;
    void follow(cells & c, const llama_ubatch & ubatch, const slot_info & sinfo) const;
    // frees what neither the ubatch (ranges may be empty) nor a continuation within the rollback room needs
    void trim(const cells & c, const std::vector<pos_range> & ranges, bool done) const;
    // whether tokens see only older ones: in some models those of an image see each other, but in sliding-window layers alone
    bool is_causal(const llama_cparams & cparams) const;
    // columns of a mask beside the ring's cells; n_tokens of a ubatch, n_row of them in each stream
    uint32_t n_staged(const cells & c, uint32_t n_tokens, uint32_t n_row) const;

    llama_kv_headwise_setup setup;

    uint32_t n_rollback;

    llama_kv_cache * owner = nullptr;

    std::vector<std::unique_ptr<cells>> windows; // in the order of their first groups
    std::vector<std::unique_ptr<group>> groups;  // [plan groups]
    std::vector<layer>                  layers;  // [n_layer_all]

    std::unique_ptr<llama_kv_history[]> histories; // [n_seq_max]

    bool reserving = false; // graphs are built for their size only: take the larger kind
};
