#include "server-kv-policy.h"

#include "server-common.h"
#include "server-kv-slot-file.h"
#include "server-stop.h"

#include <algorithm>
#include <cstdlib>

#if defined(__GLIBC__)
#include <malloc.h>
#endif

static const double MiB = 1024.0*1024.0;

static const llama_pos N_END = 4; // at the end of a prompt, where templates and tokenizers change it first

static server_kv_packed * packed_of(const common_prompt_checkpoint & checkpoint) {
    return static_cast<server_kv_packed *>(checkpoint.packed.get());
}

void server_kv_policy::init(llama_context * ctx_tgt, llama_context * ctx_dft, common_params & params) {
    hwkv_stop_watch(ctx_tgt);
    hwkv_stop_watch(ctx_dft);

    this->ctx     = ctx_tgt;
    this->ctx_dft = ctx_dft;
    plan          = llama_kv_policy_plan(ctx);
    if (!plan) {
        return;
    }

    slots.resize(params.n_parallel);

    keep_newest = llama_model_is_hybrid(llama_get_model(ctx)) || llama_model_n_swa(llama_get_model(ctx)) > 0;

    // every turn may be the one a user comes back to; upstream's default spacing is made for states without shared rows
    if (params.checkpoint_min_step == common_params().checkpoint_min_step) {
        params.checkpoint_min_step = 0;
    }

    limit = params.kv_policy.checkpoint_mib >= 0 ? (size_t) params.kv_policy.checkpoint_mib << 20
                                                 : (hwkv_plan_size_plain(plan) - hwkv_plan_size(plan))/2;
    if (limit == 0) {
        params.n_ctx_checkpoints = 0;
    }
    n_checkpoints = params.n_ctx_checkpoints;
    after_prompt  = n_checkpoints > 0 && !keep_newest && !ctx_dft && params.mmproj.path.empty() && params.kv_policy.rollback >= N_END;
    SRV_INF("context checkpoints: at most %d for a slot, %.1f MiB for all\n", n_checkpoints, limit/MiB);

#if defined(__GLIBC__)
    // states are large and short-lived: their memory goes back at once, instead of staying as holes between the blocks
    mallopt(M_MMAP_THRESHOLD, 1 << 20);
#endif

    char hex[65];
    llama_kv_policy_model_id(ctx, hex);
    model_id = server_kv_model_id(hex, params.model.path);

    char text[256];
    llama_kv_policy_cache_text(ctx, text, sizeof(text));
    cache_text = std::string(text) + (ctx_dft ? ", with a draft" : "");

    look();
}

//
// one prompt
//

void server_kv_policy::prompt_begin(int id_slot, int n) {
    if (active()) {
        slots[id_slot].n_common = n;
        slots[id_slot].restored = false;
    }
}

bool server_kv_policy::can_resume(int id_slot, llama_pos p) const {
    return !active() || llama_kv_policy_can_resume(ctx, id_slot, p);
}

bool server_kv_policy::can_resume(const common_prompt_checkpoint & checkpoint, llama_pos p) const {
    // pos_min is the last position where rings cannot go on, unless the model's own windows have a part in it
    return active() && (keep_newest ? checkpoint.pos_max : checkpoint.pos_min) < p;
}

void server_kv_policy::unpack(common_prompt_checkpoint & checkpoint) const {
    if (const auto * packed = packed_of(checkpoint)) {
        server_kv_packed::join(packed->tgt, checkpoint.data_tgt);
        server_kv_packed::join(packed->dft, checkpoint.data_dft);
    }
}

static void forget_bytes(common_prompt_checkpoint & checkpoint) {
    std::vector<uint8_t>().swap(checkpoint.data_tgt);
    std::vector<uint8_t>().swap(checkpoint.data_dft);
}

void server_kv_policy::prompt_restored(int id_slot, common_prompt_checkpoint & checkpoint) {
    if (active()) {
        slots[id_slot].restored = true;
    }
    if (checkpoint.packed) {
        forget_bytes(checkpoint);
    }
}

void server_kv_policy::prompt_lost(int id_slot, const checkpoints & list, llama_pos p) {
    if (!active()) {
        return;
    }
    auto & slot = slots[id_slot];

    const int32_t window = llama_kv_policy_lost_window(ctx, id_slot, p);

    slot.reason = window != HWKV_FULL
        ? string_format("window %d no longer holds what position %d needs", window, p)
        : string_format("the model's own windows or recurrent state are past position %d", p);
    slot.reason += n_checkpoints == 0 ? ", and no checkpoints are kept"
                 : list.empty()       ? ", and there is no checkpoint"
                                      : string_format(", and the first checkpoint is at position %d", list.front().pos_max + 1);
    slot.n_full++;

    SRV_INF("slot %d: the prompt is processed again from the start, though its first %d tokens are as before: %s\n", id_slot, slot.n_common,
            slot.reason.c_str());
}

void server_kv_policy::prompt_end(int id_slot, int n) {
    if (!active()) {
        return;
    }
    auto & slot = slots[id_slot];

    (slot.restored ? slot.n_restored : slot.n_reused) += n;
    slot.n_reprocessed += std::max(0, slot.n_common - n);

    slot.n_common = 0;
}

//
// checkpoints
//

void server_kv_policy::fix_turns(common_chat_msg_delimiters & delimiters, const common_chat_templates * templates) {
    if (!active()) {
        return;
    }

    std::call_once(user_start_once, [&]() {
        const auto message = [](const char * role, const char * content) {
            common_chat_msg res;
            res.role    = role;
            res.content = content;
            return res;
        };
        try {
            const auto text = common_chat_format_single(templates, { message("user", "one"), message("assistant", "two") }, message("user", "three"),
                    false, true);
            const size_t n = text.find("three");
            user_start = n == std::string::npos ? "" : string_strip(text.substr(0, n));
        } catch (const std::exception & e) {
            SRV_DBG("no user's turn in the chat template: %s\n", e.what());
        }
    });

    for (auto & d : delimiters.delimiters) {
        if (d.role == COMMON_CHAT_ROLE_USER && !user_start.empty()) {
            d.delimiter = user_start;
        }
    }
}

common_chat_msg_spans server_kv_policy::turns(const common_chat_msg_spans & spans) const {
    if (!active()) {
        return spans;
    }

    size_t n = 0;
    for (const auto & span : spans.spans) {
        n += span.role == COMMON_CHAT_ROLE_USER;
    }

    // counted from the end: the last turn is the likeliest to change
    const size_t step = (n + std::max(1, n_checkpoints) - 1)/std::max(1, n_checkpoints);

    auto res = spans;
    for (auto & span : res.spans) {
        if (span.role == COMMON_CHAT_ROLE_USER && --n % step != 0) {
            span.role = COMMON_CHAT_ROLE_UNKNOWN;
        }
    }
    return res;
}

// What is lost without a checkpoint: for every position up to the next one, the tokens since the one before. Turns are where
// people come back to.
static double usefulness(const server_kv_policy::checkpoints & list, server_kv_policy::checkpoints::const_iterator it) {
    const auto * packed = packed_of(*it);
    const auto   next   = std::next(it);

    const double n_before = it->n_tokens - (it == list.begin() ? 0 : std::prev(it)->n_tokens);
    const double n_after  = next == list.end() ? n_before : next->n_tokens - it->n_tokens; // what comes will be like what was

    return n_before*n_after*(packed && packed->turn ? 4 : 1);
}

// of all but the newest
static server_kv_policy::checkpoints::iterator least_useful(server_kv_policy::checkpoints & list) {
    auto best = list.begin();
    for (auto it = list.begin(); std::next(it) != list.end(); ++it) {
        if (usefulness(list, it) < usefulness(list, best)) {
            best = it;
        }
    }
    return best;
}

bool server_kv_policy::checkpoint_begin(int id_slot, checkpoints & list, int64_t n_tokens, const common_chat_msg_spans & spans) {
    if (!active()) {
        return true;
    }

    // a turn that begins soon will have its own
    for (const auto & span : spans.spans) {
        if (span.role == COMMON_CHAT_ROLE_USER && (int64_t) span.pos > n_tokens && (int64_t) span.pos <= n_tokens + 64) {
            return false;
        }
    }

    // those that stand are of this very prompt; one a few tokens away serves as well
    const int64_t n_near = spans.is_user_start(n_tokens) ? 0 : N_END;
    for (const auto & checkpoint : list) {
        if (std::abs(checkpoint.n_tokens - n_tokens) <= n_near) {
            return false;
        }
    }

    const size_t size = llama_state_seq_get_size_ext(ctx, id_slot, LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY);
    if (size > limit) {
        if (!warned_limit) {
            SRV_WRN("a context checkpoint of %.1f MiB is more than the %.1f MiB for all: none is made here (--kv-policy-checkpoint-mib)\n",
                    size/MiB, limit/MiB);
        }
        warned_limit = true;
        return false;
    }

    while (list.size() > 1 && list.size() >= (size_t) n_checkpoints) {
        list.erase(least_useful(list));
    }
    return true;
}

void server_kv_policy::pack(checkpoints & list, bool turn) {
    auto & checkpoint = list.back();

    const size_t before = store->size();

    try {
        auto packed = std::make_shared<server_kv_packed>(store);

        store->take_all(checkpoint.data_tgt.data(), checkpoint.data_tgt.size(), packed->tgt);
        store->take_all(checkpoint.data_dft.data(), checkpoint.data_dft.size(), packed->dft);

        packed->turn  = turn;
        packed->n_new = store->size() - before;

        checkpoint.packed = packed;
        forget_bytes(checkpoint);

        // in the order of their tokens: the nearest is found from the end
        const auto newest = std::prev(list.end());
        const auto after  = std::find_if(list.begin(), newest, [&](const auto & cur) { return cur.n_tokens > newest->n_tokens; });
        list.splice(after, list, newest);
    } catch (const std::bad_alloc &) {
        SRV_WRN("no memory for a context checkpoint of %.1f MiB\n", checkpoint.data_tgt.size()/MiB);
        list.pop_back();
    }
}

void server_kv_policy::drop(const std::vector<checkpoints *> & lists) {
    bool dropped = false;

    while (store->size() > limit) {
        // the one that is missed least for what it takes
        checkpoints         * list = nullptr;
        checkpoints::iterator best;
        double                best_value = 0;

        for (auto * cur : lists) {
            for (auto it = cur->begin(); it != cur->end(); ++it) {
                if (keep_newest && cur->size() > 1 && std::next(it) == cur->end()) {
                    continue;
                }
                const auto * packed = packed_of(*it);
                const double value  = usefulness(*cur, it)/(1.0 + (packed ? packed->size_alone() : 0));

                if (!list || value < best_value) {
                    list       = cur;
                    best       = it;
                    best_value = value;
                }
            }
        }
        if (!list) {
            break;
        }
        list->erase(best);
        dropped = true;
    }

#if defined(__GLIBC__)
    if (dropped) {
        malloc_trim(0);
    }
#else
    (void) dropped;
#endif
}

//
// slot files
//

size_t server_kv_policy::save(const std::string & path, int id_slot, const std::vector<char> & tokens, const server_prompt & prompt) {
    last_error.clear();
    try {
        const server_kv_slot_file file(ctx, ctx_dft, id_slot, { llama_kv_policy_state_id(ctx), model_id, cache_text });
        return file.save(path, tokens, prompt);
    } catch (const std::exception & e) {
        last_error = std::string("Unable to save slot: ") + e.what();
        return 0;
    }
}

size_t server_kv_policy::restore(const std::string & path, int id_slot, server_prompt & prompt, int n_ctx, bool has_mtmd) {
    if (!active()) {
        return 0;
    }
    const server_kv_slot_file file(ctx, ctx_dft, id_slot, { llama_kv_policy_state_id(ctx), model_id, cache_text });
    const size_t n = file.restore(path, prompt, n_ctx, has_mtmd, store);

    auto & list = prompt.checkpoints;
    while (list.size() > 1 && list.size() > (size_t) n_checkpoints) {
        list.erase(least_useful(list));
    }
    drop({ &list });

    return n;
}
