#pragma once

// llama-server with a KV policy: which prompts can go on, the checkpoints that let others go on, and what it tells about
// both. Called from one thread at a time; while a batch is decoded only what is marked so may be called.

#include "llama-hwkv.h"

#include "server-kv-blocks.h"
#include "server-task.h"

#include "json.h"

#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

class server_kv_policy {
public:
    using checkpoints = std::list<common_prompt_checkpoint>;

    server_kv_policy(); // from here on --kv-policy-dry-run knows the projector and the checkpoints

    // the context is there; may change what the parameters say about checkpoints
    void init(llama_context * ctx_tgt, llama_context * ctx_dft, common_params & params);

    bool active() const { return plan != nullptr; }

    // May another prompt be brought into a slot? Not while it answers somebody, with a policy or without.
    template <typename S>
    static bool is_free(const S & slot) { return !slot.is_processing(); }

    //
    // one prompt, in this order
    //

    // n tokens are those of the slot's last prompt; returns how many of them the memory was really computed from
    int prompt_begin(int id_slot, const server_tokens & tokens, int n);

    // can the slot go on at p as if it had been run from the start? true without a policy
    bool can_resume(int id_slot, llama_pos p) const;

    // was this checkpoint made from the tokens that the slot's memory begins with? true without a policy
    bool is_same(int id_slot, const common_prompt_checkpoint & checkpoint) const;

    // can it go on after this checkpoint is restored?
    bool can_resume(const common_prompt_checkpoint & checkpoint, llama_pos p) const;

    // restores it; false if that failed, and then nothing of the slot's memory serves; true without a policy
    bool load(int id_slot, const common_prompt_checkpoint & checkpoint);

    // neither helped
    void prompt_lost(int id_slot, const checkpoints & list, llama_pos p);

    // n tokens are not to be processed. Every way to reuse memory ends here (live cache, checkpoint, slot file, saved prompt):
    // returns n only if the memory was computed from just these tokens and can go on after them, else 0.
    int prompt_end(int id_slot, const server_tokens & tokens, int n, checkpoints & list);

    //
    // checkpoints
    //

    // How a user's turn begins, from the template itself: upstream takes the text before a first message, which may be a
    // system prompt that the template adds. From any thread.
    void fix_turns(common_chat_msg_delimiters & delimiters, const common_chat_templates * templates);

    // the turns of a prompt that are worth one: all, or as many as a slot keeps
    common_chat_msg_spans turns(const common_chat_msg_spans & spans) const;

    // Rings can take back the last tokens of a prompt, so that it needs no batch of their own: a checkpoint after all of them
    // serves as well.
    bool checkpoint_after_prompt() const { return after_prompt; }

    // false: don't make one at n_tokens
    bool checkpoint_begin(int id_slot, checkpoints & list, int64_t n_tokens, const common_chat_msg_spans & spans);

    // fills the newest one; drops what is too much, anywhere
    template <typename S>
    void checkpoint_end(int id_slot, S & slots, server_prompt_cache * cache, checkpoints & list, bool turn) {
        if (active()) {
            pack(id_slot, list, turn, all_checkpoints(slots, cache));
        }
    }

    //
    // slot files
    //

    // bytes written, 0 if that failed, with the reason in error()
    size_t save(const std::string & path, int id_slot, const std::vector<char> & tokens, const server_prompt & prompt);

    // bytes read, 0 without a policy; throws and leaves the slot as it was if the file cannot be used; drops checkpoints that are too
    // much, anywhere
    template <typename T, typename S>
    size_t restore(const std::string & path, T & slot, S & slots, server_prompt_cache * cache, bool has_mtmd) {
        return active() ? restore(path, slot.id, slot.prompt, slot.n_ctx, has_mtmd, all_checkpoints(slots, cache)) : 0;
    }

    std::string error(const char * otherwise) const { return last_error.empty() ? otherwise : last_error; }
    enum error_type error_type() const { return last_error_type; }

    //
    // what it tells
    //

    // for /props: file hash, operating point, groups, bytes, windows and scores of every head; null without window groups
    common_json props() const;

    // cells in use change while a batch is decoded: looked up before and after
    void look();

    // these may be called while a batch is decoded, then with the cells of the last look
    common_json slot_json(int id_slot, const server_prompt & prompt, bool decoding);
    std::string metrics(bool decoding, const server_prompt_cache * cache);

private:
    struct slot_state {
        // of the current prompt
        int  n_common = 0;
        bool restored = false;

        // since the start
        uint64_t n_reused      = 0;
        uint64_t n_restored    = 0;
        uint64_t n_reprocessed = 0;
        uint64_t n_full        = 0;

        std::string reason; // of the last full reprocessing

        std::vector<uint32_t> cells_used; // [groups]
    };

    // of all slots and saved prompts: they share one limit
    template <typename S>
    static std::vector<checkpoints *> all_checkpoints(S & slots, server_prompt_cache * cache) {
        std::vector<checkpoints *> res;
        if (cache) {
            for (auto & state : cache->states) {
                res.push_back(&state.prompt.checkpoints);
            }
        }
        for (auto & slot : slots) {
            res.push_back(&slot.prompt.checkpoints);
        }
        return res;
    }

    void init_saved(common_params & params);
    void init_memory(common_params & params);
    static size_t checkpoint_limit(const common_params & params, const hwkv_plan * plan); // bytes
    size_t restore(const std::string & path, int id_slot, server_prompt & prompt, int n_ctx, bool has_mtmd, const std::vector<checkpoints *> & lists);
    void pack(int id_slot, checkpoints & list, bool turn, const std::vector<checkpoints *> & lists);
    bool pack_state(llama_context * ctx, int id_slot, server_kv_packed & packed, std::vector<server_kv_block *> & blocks,
                    const std::vector<checkpoints *> & lists);
    bool drop(const std::vector<checkpoints *> & lists, size_t n_more = 0, const server_kv_packed * made = nullptr);

    llama_context   * ctx     = nullptr;
    llama_context   * ctx_dft = nullptr;
    const hwkv_plan * plan    = nullptr;

    bool    keep_newest   = false; // the model has state that cannot be taken back at all
    bool    after_prompt  = false;
    size_t  limit         = 0; // bytes of all checkpoints
    int64_t limit_saved   = 0; // bytes of saved prompts (--cache-ram), -1: none
    int32_t n_checkpoints = 0; // of a slot
    bool    warned_limit  = false;

    std::once_flag user_start_once;
    std::string    user_start;

    common_json memory; // of all devices

    std::string model_id;
    std::string cache_text;
    std::string last_error;
    enum error_type last_error_type = ERROR_TYPE_SERVER;

    std::shared_ptr<server_kv_blocks> store = std::make_shared<server_kv_blocks>();

    std::vector<slot_state> slots;
    std::vector<uint32_t>   cells_used; // [groups]
};
