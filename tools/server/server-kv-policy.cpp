#include "server-kv-policy.h"

#include "server-common.h"
#include "server-kv-slot-file.h"
#include "server-stop.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <new>
#include <stdexcept>

#if defined(__GLIBC__)
#include <malloc.h>
#endif

static const double MiB = 1024.0*1024.0;

static const int64_t SAVED_MIB_MIN = 16; // a default below this would keep hardly any prompt

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

    limit = checkpoint_limit(params, plan);
    if (limit == 0) {
        params.n_ctx_checkpoints = 0;
    }
    n_checkpoints = params.n_ctx_checkpoints;
    after_prompt  = n_checkpoints > 0 && !keep_newest && !ctx_dft && params.mmproj.path.empty() && params.kv_policy.rollback >= N_END;
    SRV_INF("context checkpoints: at most %d for a slot, %.1f MiB for all\n", n_checkpoints, limit/MiB);

    init_saved(params);

    if (params.n_cache_reuse != 0) {
        SRV_INF("--cache-reuse %d is ignored with a KV policy: moved pieces would carry over words of the prompt they come from\n", params.n_cache_reuse);
        params.n_cache_reuse = 0;
    }

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
    init_memory(params);
}

// Saved prompts share what the policy saves with the checkpoints: with one slot all of it together takes no more than the plain cache.
// Slots that share a cache are emptied while they are idle, so that there must be room for what they held.
void server_kv_policy::init_saved(common_params & params) {
    if (params.cache_ram_mib == common_params().cache_ram_mib) {
        const uint64_t plain = std::max(hwkv_plan_size_plain(plan), hwkv_plan_size(plan)); // types of their own may take more
        const uint64_t half  = (plain - hwkv_plan_size(plan))/2;
        const uint64_t size  = params.n_parallel > 1 && params.kv_unified ? std::max(half, hwkv_plan_size(plan)) : half;

        params.cache_ram_mib = std::max<int64_t>(SAVED_MIB_MIN, size >> 20);
    }
    limit_saved = params.cache_ram_mib < 0 ? -1 : (int64_t) params.cache_ram_mib << 20;
    if (limit_saved >= 0) {
        SRV_INF("saved prompts: at most %d MiB (--cache-ram)\n", params.cache_ram_mib);
    }
}

//
// one prompt
//

// How many of the first n tokens a slot's memory was computed from. Beyond an image the server's own comparison has to do, which goes by
// the image's hash; nothing is ever moved in a context that takes images.
static int n_same(const llama_context * ctx, int id_slot, const server_tokens & tokens, int n) {
    int n_text = 0;
    while (n_text < n && tokens[n_text] != LLAMA_TOKEN_NULL) {
        n_text++;
    }
    const int res = n_text > 0 ? llama_kv_policy_n_same(ctx, id_slot, &tokens[0], n_text) : 0;
    return res < n_text ? res : n;
}

int server_kv_policy::prompt_begin(int id_slot, const server_tokens & tokens, int n) {
    if (active()) {
        n = n_same(ctx, id_slot, tokens, n);
        slots[id_slot].n_common = n;
        slots[id_slot].restored = false;
    }
    return n;
}

bool server_kv_policy::can_resume(int id_slot, llama_pos p) const {
    return !active() || llama_kv_policy_can_resume(ctx, id_slot, p);
}

bool server_kv_policy::is_same(int id_slot, const common_prompt_checkpoint & checkpoint) const {
    const auto * packed = packed_of(checkpoint);
    return !active() || (packed && packed->mark != 0 && packed->mark == llama_kv_policy_mark(ctx, id_slot, checkpoint.n_tokens));
}

bool server_kv_policy::can_resume(const common_prompt_checkpoint & checkpoint, llama_pos p) const {
    // pos_min is the last position where rings cannot go on, unless the model's own windows have a part in it
    return active() && (keep_newest ? checkpoint.pos_max : checkpoint.pos_min) < p;
}

// the bytes of blocks, one after the other
struct block_reader {
    const std::vector<server_kv_block *> & blocks;

    size_t i    = 0; // block
    size_t done = 0; // bytes of it
    size_t n    = 0; // bytes in all

    static bool read(void * data, size_t size, void * arg) {
        auto & self = *static_cast<block_reader *>(arg);
        auto * dst  = static_cast<uint8_t *>(data);

        while (size > 0 && self.i < self.blocks.size()) {
            const auto * block = self.blocks[self.i];

            const size_t k = std::min<size_t>(size, block->size - self.done);
            memcpy(dst, block->data() + self.done, k);
            dst       += k;
            size      -= k;
            self.n    += k;
            self.done += k;
            if (self.done == block->size) {
                self.done = 0;
                self.i++;
            }
        }
        return size == 0;
    }
};

bool server_kv_policy::load(int id_slot, const common_prompt_checkpoint & checkpoint) {
    const auto * packed = packed_of(checkpoint);
    if (!packed) {
        return !active();
    }

    const auto load = [&](llama_context * ctx, const std::vector<server_kv_block *> & blocks) {
        block_reader in = { blocks };
        return blocks.empty() || (llama_kv_policy_state_read(ctx, id_slot, LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY, block_reader::read, &in) == in.n && in.n > 0 && in.i == blocks.size());
    };
    if (!load(ctx, packed->tgt) || !load(ctx_dft, packed->dft)) {
        SRV_ERR("slot %d: the context checkpoint at %lld tokens cannot be restored\n", id_slot, (long long) checkpoint.n_tokens);
        return false;
    }

    slots[id_slot].restored = true;
    return true;
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

int server_kv_policy::prompt_end(int id_slot, const server_tokens & tokens, int n, checkpoints & list) {
    if (!active()) {
        return n;
    }
    auto & slot = slots[id_slot];

    const int n_memory = n_same(ctx, id_slot, tokens, tokens.size());

    if (n > 0 && (n > n_memory || (!tokens.has_mtmd && !can_resume(id_slot, n)))) {
        SRV_ERR("slot %d: the memory is not that of the prompt's first %d tokens: the prompt is processed from the start\n", id_slot, n);
        list.clear();
        n = 0;
    }

    // the server keeps one that ends with the first token that differs; none that is not of this prompt will ever serve
    list.remove_if([&](const common_prompt_checkpoint & checkpoint) {
        return checkpoint.n_tokens > n_memory || !is_same(id_slot, checkpoint);
    });

    (slot.restored ? slot.n_restored : slot.n_reused) += n;
    slot.n_reprocessed += std::max(0, slot.n_common - n);

    slot.n_common = 0;

    return n;
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

// Fills in the blocks of a sequence's state. What there is no room for is counted first, so that no more than that is dropped, and
// made then. False if others are worth more than this one.
bool server_kv_policy::pack_state(llama_context * ctx, int id_slot, server_kv_packed & packed, std::vector<server_kv_block *> & blocks,
        const std::vector<checkpoints *> & lists) {
    size_t n_missing = 0;
    size_t i         = 0;
    bool   again     = false;

    server_kv_cutter cutter([&](const uint8_t * data, size_t size) {
        if (!again) {
            blocks.push_back(nullptr); // first, so that nothing is lost when memory runs out
        }
        GGML_ASSERT(i < blocks.size()); // the state is the same both times
        auto & block = blocks[i++];
        if (!block) {
            block = store->take(data, size, again ? SIZE_MAX : limit);
            n_missing += block ? 0 : server_kv_blocks::size_of(size);
        }
    });

    const auto write = [](const void * data, size_t size, void * arg) {
        try {
            static_cast<server_kv_cutter *>(arg)->write(data, size);
            return true;
        } catch (const std::bad_alloc &) {
            return false;
        }
    };
    const auto run = [&]() {
        i = 0;
        if (llama_kv_policy_state_write(ctx, id_slot, LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY, write, &cutter) == 0) {
            throw std::runtime_error("no memory");
        }
        cutter.finish();
    };

    run();
    if (n_missing > 0) {
        if (!drop(lists, n_missing, &packed)) {
            return false;
        }
        again = true;
        run();
    }
    return true;
}

void server_kv_policy::pack(int id_slot, checkpoints & list, bool turn, const std::vector<checkpoints *> & lists) {
    // in the order of their tokens: the nearest is found from the end
    const auto newest = std::prev(list.end());
    const auto after  = std::find_if(list.begin(), newest, [&](const auto & cur) { return cur.n_tokens > newest->n_tokens; });
    list.splice(after, list, newest);

    try {
        auto packed = std::make_shared<server_kv_packed>(store);

        packed->mark   = llama_kv_policy_mark(ctx, id_slot, newest->n_tokens);
        packed->turn   = turn;
        newest->packed = packed;

        if (!pack_state(ctx, id_slot, *packed, packed->tgt, lists) || (ctx_dft && !pack_state(ctx_dft, id_slot, *packed, packed->dft, lists))) {
            list.erase(newest);
        } else {
            // writing it has evicted what no continuation needs, and it holds no more than that
            newest->pos_min = llama_memory_seq_pos_min(llama_get_memory(ctx), id_slot);
        }
    } catch (const std::exception & e) {
        SRV_WRN("no context checkpoint at %lld tokens: %s\n", (long long) newest->n_tokens, e.what());
        list.erase(newest);
    }
    drop(lists);
}

// Until there is room for n_more bytes that `made` still needs. False if that one itself is missed least.
bool server_kv_policy::drop(const std::vector<checkpoints *> & lists, size_t n_more, const server_kv_packed * made) {
    bool dropped = false;

    while (store->size() + n_more > limit) {
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
                const size_t size   = (packed ? packed->size_alone() : 0) + (packed && packed == made ? n_more : 0);
                const double value  = usefulness(*cur, it)/(1.0 + size);

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
        if (made && packed_of(*best) == made) {
            return false;
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
    return true;
}

//
// slot files
//

size_t server_kv_policy::save(const std::string & path, int id_slot, const std::vector<char> & tokens, const server_prompt & prompt) {
    last_error.clear();
    try {
        const server_kv_slot_file file(ctx, ctx_dft, id_slot, { model_id, cache_text, llama_kv_policy_state_id(ctx) });

        // a prompt that was given up may have checkpoints further on, which are of no use now
        auto list = prompt.checkpoints;
        list.remove_if([&](const common_prompt_checkpoint & checkpoint) { return !is_same(id_slot, checkpoint); });

        return file.save(path, tokens, prompt.tokens, list);
    } catch (const std::exception & e) {
        last_error      = std::string("Unable to save slot: ") + e.what();
        last_error_type = dynamic_cast<const std::invalid_argument *>(&e) ? ERROR_TYPE_INVALID_REQUEST : ERROR_TYPE_SERVER;
        return 0;
    }
}

size_t server_kv_policy::restore(const std::string & path, int id_slot, server_prompt & prompt, int n_ctx, bool has_mtmd,
        const std::vector<checkpoints *> & lists) {
    const server_kv_slot_file file(ctx, ctx_dft, id_slot, { model_id, cache_text, llama_kv_policy_state_id(ctx) });

    // those that come stand beside those that are there until it is known which ones are missed least
    const size_t n = file.restore(path, prompt, { store, store->size() + limit, n_ctx, has_mtmd });

    auto & list = prompt.checkpoints;
    for (const auto & checkpoint : list) {
        packed_of(checkpoint)->mark = llama_kv_policy_mark(ctx, id_slot, checkpoint.n_tokens);
    }
    while (list.size() > 1 && list.size() > (size_t) n_checkpoints) {
        list.erase(least_useful(list));
    }
    drop(lists);

    return n;
}
