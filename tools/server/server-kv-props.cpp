// What llama-server tells about a KV policy.

#include "server-kv-policy.h"

#include "common-kv-memory.h"
#include "hwkv-json.h"
#include "tool-groups.h"
#include "tool-print.h"

#include <cmath>
#include <new>
#include <sstream>

#if defined(__GLIBC__)
#include <malloc.h>
#endif

using json = common_json;

static json window_json(int32_t window) {
    return window == HWKV_FULL ? json("full") : json(window);
}

// as the policy file spells it: a window alone, or "256:q8_0"
static json entry_json(const hwkv_entry & entry) {
    char name[HWKV_ENTRY_SIZE];
    return hwkv_entry_has_types(&entry) ? json(hwkv_entry_format(&entry, name)) : window_json(entry.window);
}

static json number_json(double x) {
    return std::isnan(x) ? json(nullptr) : json(x);
}

// what llama-kv-policy tells in the same words
static json tree_json(hwkv_json * tree) {
    char      * text = nullptr;
    const int status = tree ? hwkv_json_print_compact(&text, tree, nullptr) : HWKV_ERR_NOMEM;
    hwkv_json_free(tree);
    if (status != 0) {
        throw std::bad_alloc();
    }
    json res = json::parse(text);
    hwkv_string_free(text);
    return res;
}

// one layer: codebook entry, scores and bytes of every KV head
static json layer_json(const llama_context * ctx, const hwkv_policy * policy, const hwkv_point * point, int32_t jl) {
    const auto & layer = hwkv_policy_geometry(policy)->layers[jl];

    int32_t n_codebook = 0;
    hwkv_policy_codebook(policy, &n_codebook);
    const double * cosines = hwkv_point_scores(point, policy, "cosine");

    json entries = json::array();
    json scores  = json::array();
    json bytes   = json::array();

    for (int32_t ih = 0; ih < layer.n_head_kv; ++ih) {
        const int32_t unit = hwkv_policy_unit(policy, jl, ih);
        entries.push_back(point->entries[unit]);

        json head = json::array();
        for (int32_t ic = 0; cosines && ic < n_codebook; ++ic) {
            head.push_back(number_json(cosines[(size_t) unit*n_codebook + ic]));
        }
        scores.push_back(head);

        bytes.push_back(llama_kv_policy_head_size(ctx, jl, ih));
    }

    return {
        { "layer",   layer.il },
        { "entries", entries },
        { "scores",  cosines ? scores : json(nullptr) },
        { "bytes",   bytes },
    };
}

void server_kv_policy::init_memory(common_params & params) {
    const auto found = std::make_unique<tool_memory>();
    common_kv_memory_read(params, ctx, ctx_dft, *found);
    memory = tree_json(tool_memory_json(found.get()));
#if defined(__GLIBC__)
    malloc_trim(0); // a second vocabulary and its graphs are gone: no need to keep room for them
#endif
}

json server_kv_policy::props() const {
    if (!active()) {
        return nullptr;
    }

    const auto * policy = llama_kv_policy_get(ctx);
    const auto * point  = hwkv_policy_point(policy, llama_kv_policy_point(ctx));

    int32_t n_codebook = 0;
    const auto * entries = hwkv_policy_codebook(policy, &n_codebook);

    json codebook = json::array();
    for (int32_t i = 0; i < n_codebook; ++i) {
        codebook.push_back(entry_json(entries[i]));
    }

    json layers = json::array();
    for (int32_t jl = 0; jl < hwkv_policy_geometry(policy)->n_full; ++jl) {
        layers.push_back(layer_json(ctx, policy, point, jl));
    }

    const uint64_t size       = hwkv_plan_size(plan);
    const uint64_t size_plain = hwkv_plan_size_plain(plan);

    return {
        { "sha256",      hwkv_policy_hash(policy) },
        { "point",       point->name },
        { "tau",         point->method[0] ? json(nullptr) : json(point->tau) },
        { "method",      point->method[0] ? json(point->method) : json(nullptr) },
        { "sinks",       hwkv_policy_sinks(policy) },
        { "context",     hwkv_policy_context(policy) },
        { "retention",   point->retention },
        { "min_score",   number_json(point->min_score) },
        { "codebook",    codebook },
        { "cache_types", { { "k", hwkv_type_name(hwkv_policy_type_k(policy)) }, { "v", hwkv_type_name(hwkv_policy_type_v(policy)) } } },
        { "n_stream",    hwkv_plan_n_stream(plan) },
        { "groups",      tree_json(tool_groups_json(plan)) },
        { "layers",      layers },
        { "bytes",       size },
        { "bytes_plain", size_plain },
        { "bytes_saved", (int64_t) (size_plain - size) }, // types of their own may take more
        { "checkpoint_bytes_max",   limit },
        { "saved_prompt_bytes_max", limit_saved < 0 ? json(nullptr) : json(limit_saved) },
        { "memory",                 memory },
    };
}

void server_kv_policy::look() {
    if (!active()) {
        return;
    }

    const int32_t n_group = hwkv_plan_n_group(plan);

    cells_used.resize(n_group);
    for (int32_t ig = 0; ig < n_group; ++ig) {
        cells_used[ig] = llama_kv_policy_cells_used(ctx, ig);
    }
    for (size_t id = 0; id < slots.size(); ++id) {
        slots[id].cells_used.resize(n_group);
        for (int32_t ig = 0; ig < n_group; ++ig) {
            slots[id].cells_used[ig] = llama_kv_policy_cells_used_seq(ctx, ig, id);
        }
    }
}

json server_kv_policy::slot_json(int id_slot, const server_prompt & prompt, bool decoding) {
    if (!active()) {
        return nullptr;
    }
    if (!decoding) {
        look();
    }

    const auto & slot = slots.at(id_slot);

    json groups = json::array();
    for (int32_t ig = 0; ig < hwkv_plan_n_group(plan); ++ig) {
        const auto * g = hwkv_plan_group(plan, ig);
        groups.push_back({
            { "window",       window_json(g->entry.window) },
            { "type_k",       hwkv_type_name(g->entry.type_k) },
            { "type_v",       hwkv_type_name(g->entry.type_v) },
            { "n_cells",      g->n_cells },
            { "n_cells_used", slot.cells_used[ig] },
        });
    }

    json at = json::array();
    server_kv_count count(*store);
    for (const auto & checkpoint : prompt.checkpoints) {
        at.push_back(checkpoint.n_tokens);
        if (const auto * packed = static_cast<const server_kv_packed *>(checkpoint.packed.get())) {
            count.add(*packed);
        }
    }

    return {
        { "groups",                   groups },
        { "checkpoints",              prompt.checkpoints.size() },
        { "checkpoint_tokens",        at },
        { "checkpoint_bytes",         count.n_bytes },
        { "checkpoint_bytes_shared",  count.n_shared },
        { "prompt_tokens",            {
            { "reused",      slot.n_reused },
            { "restored",    slot.n_restored },
            { "reprocessed", slot.n_reprocessed },
        } },
        { "full_reprocessing",        slot.n_full },
        { "full_reprocessing_reason", slot.reason.empty() ? json(nullptr) : json(slot.reason) },
    };
}

std::string server_kv_policy::metrics(bool decoding, const server_prompt_cache * cache) {
    if (!active()) {
        return "";
    }
    if (!decoding) {
        look();
    }

    std::ostringstream out;

    const auto head = [&](const char * name, const char * type, const char * help) {
        out << "# HELP llamacpp:kv_policy_" << name << " " << help << "\n# TYPE llamacpp:kv_policy_" << name << " " << type << "\n";
    };
    const auto value = [&](const char * name, const char * type, const char * help, uint64_t x) {
        head(name, type, help);
        out << "llamacpp:kv_policy_" << name << " " << x << "\n";
    };
    const auto groups = [&](const char * name, const char * help, const auto & get) {
        head(name, "gauge", help);
        for (int32_t ig = 0; ig < hwkv_plan_n_group(plan); ++ig) {
            const auto * g = hwkv_plan_group(plan, ig);
            char window[16];
            out << "llamacpp:kv_policy_" << name << "{window=\"" << tool_window_name(g->entry.window, window) << "\",type_k=\"" << hwkv_type_name(g->entry.type_k)
                << "\",type_v=\"" << hwkv_type_name(g->entry.type_v) << "\"} " << get(ig, *g) << "\n";
        }
    };

    groups("bytes",      "Allocated bytes of K and V, by group", [&](int32_t, const hwkv_group & g) { return g.k_size + g.v_size; });
    groups("cells",      "Cells of all streams, by group",        [&](int32_t, const hwkv_group & g) { return g.n_cells*hwkv_plan_n_stream(plan); });
    groups("cells_used", "Cells that hold a token, by group",     [&](int32_t ig, const hwkv_group &) { return cells_used[ig]; });

    value("bytes_plain",      "gauge", "Bytes that the plain cache would take",  hwkv_plan_size_plain(plan));
    value("checkpoints",      "gauge", "Context checkpoints that are kept",      store->n_packed());
    value("checkpoint_bytes", "gauge", "Bytes of all context checkpoints, rows that several share counted once", store->size());

    // what its checkpoints take is counted above
    size_t n_saved = 0;
    if (cache) {
        for (const auto & state : cache->states) {
            n_saved += state.data.size();
        }
    }
    value("checkpoint_bytes_max", "gauge", "Bytes that all context checkpoints may take", limit);
    value("saved_prompts",        "gauge", "Prompts that are saved in memory (--cache-ram)", cache ? cache->states.size() : 0);
    value("saved_prompt_bytes",   "gauge", "Bytes of all saved prompts, without their checkpoints", n_saved);
    if (limit_saved >= 0) {
        value("saved_prompt_bytes_max", "gauge", "Bytes that all saved prompts may take", limit_saved);
    }

    slot_state sum;
    for (const auto & slot : slots) {
        sum.n_reused      += slot.n_reused;
        sum.n_restored    += slot.n_restored;
        sum.n_reprocessed += slot.n_reprocessed;
        sum.n_full        += slot.n_full;
    }

    value("prompt_tokens_reused_total",      "counter", "Prompt tokens taken from the live cache",                           sum.n_reused);
    value("prompt_tokens_restored_total",    "counter", "Prompt tokens taken from a context checkpoint",                     sum.n_restored);
    value("prompt_tokens_reprocessed_total", "counter", "Prompt tokens that were as in the slot's last prompt, yet processed again", sum.n_reprocessed);
    value("full_reprocessing_total",         "counter", "Prompts that began as the slot's last one, yet were processed from the start", sum.n_full);

    return out.str();
}
