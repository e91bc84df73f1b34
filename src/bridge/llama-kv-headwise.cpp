#include "llama-kv-headwise.h"

#include "llama-impl.h"
#include "llama-kv-cache-iswa.h"
#include "llama-memory-hybrid.h"
#include "llama-memory-hybrid-iswa.h"
#include "llama-model.h"

#include <algorithm>
#include <limits>
#include <stdexcept>

//
// construction
//

std::shared_ptr<llama_kv_headwise> llama_kv_headwise::attach(const llama_hparams & hparams, const llama_kv_headwise_setup * setup, llama_memory_t mem_other) {
    if (mem_other && find(mem_other)) {
        throw std::runtime_error("KV policy: a draft model cannot share the cache of a model with window groups");
    }
    return setup ? std::make_shared<llama_kv_headwise>(hparams, *setup) : nullptr;
}

llama_kv_headwise::llama_kv_headwise(const llama_hparams & hparams, const llama_kv_headwise_setup & setup) :
    setup(setup), n_rollback(hwkv_plan_params_of(setup.plan.get())->n_rollback), layers(hparams.n_layer_all) {
    const auto * plan = setup.plan.get();
    const auto * geo  = hwkv_policy_geometry(setup.policy.get());

    for (int32_t jl = 0; jl < geo->n_full; ++jl) {
        auto & layer = layers[geo->layers[jl].il];

        layer.src    = geo->layers[jl].il;
        layer.n_head = geo->layers[jl].n_head_kv;

        for (int32_t ig = 0; ig < hwkv_plan_n_group(plan); ++ig) {
            int32_t n_head = 0;
            const int32_t * heads = hwkv_plan_heads(plan, ig, jl, &n_head);
            layer.runs.push_back(llama_kv_heads_runs(heads, n_head));
        }
        layer.spans = llama_kv_heads_spans(layer.runs, layer.n_head);
    }
}

void llama_kv_headwise::init(llama_kv_cache & kv, const llama_model & model, const owner_params & params, const llama_memory_i::layer_reuse_cb & reuse) {
    owner = &kv;

    histories = std::make_unique<llama_kv_history[]>(params.n_seq_max);

    for (int32_t ig = 0; ig < hwkv_plan_n_group(setup.plan.get()); ++ig) {
        add_group(ig, model, params);
    }

    // layers that reuse another layer's cache follow its groups
    if (reuse) {
        for (uint32_t il = 0; il < layers.size(); ++il) {
            const int32_t il_reuse = reuse(il);
            if (il_reuse >= 0 && layers[il_reuse].src == il_reuse) {
                layers[il] = layers[il_reuse];
            }
        }
    }

    apply_full();
    check_size();
}

llama_kv_headwise::cells & llama_kv_headwise::cells_of(hwkv_rule rule, uint32_t n_room) {
    for (const auto & c : windows) {
        if (hwkv_rule_window(c->rule) == hwkv_rule_window(rule)) {
            return *c;
        }
    }

    windows.push_back(std::make_unique<cells>());

    auto & res = *windows.back();
    res.rule   = rule;
    res.n_room = n_room;
    res.kv     = res.is_ring() ? nullptr : owner; // a ring is kept by its first store
    return res;
}

void llama_kv_headwise::add_group(int32_t ig, const llama_model & model, const owner_params & params) {
    const auto * pg   = hwkv_plan_group(setup.plan.get(), ig);
    const auto   rule = hwkv_rule_of(pg->entry.window, hwkv_policy_sinks(setup.policy.get()));

    auto g = std::make_unique<group>();

    g->ig      = ig;
    g->at      = &cells_of(rule, pg->n_room);
    g->hparams = model.hparams;
    for (uint32_t il = 0; il < layers.size(); ++il) {
        if (layers[il].src == (int32_t) il) {
            g->hparams.n_head_kv_arr[il] = 0;
            for (const auto & run : layers[il].runs[ig]) {
                g->hparams.n_head_kv_arr[il] += run.count;
            }
        }
    }

    const auto filter = [&](int32_t il) {
        return layers[il].src == il && !layers[il].runs[ig].empty();
    };

    const std::string tag = format("g%d_", ig);

    try {
        // the window is enforced by placement and mask, so to the store every cell counts
        g->kv = std::make_unique<llama_kv_cache>(
                model, g->hparams, llama_kv_headwise_ggml_type(pg->entry.type_k), llama_kv_headwise_ggml_type(pg->entry.type_v),
                /*v_trans =*/ false, params.offload, params.unified, pg->n_cells, params.n_seq_max, params.n_pad,
                0, LLAMA_SWA_TYPE_NONE, nullptr, filter, nullptr, nullptr, tag.c_str(), nullptr, g->at->kv);
    } catch (const std::exception & e) {
        const auto window = hwkv_rule_is_full(rule) ? std::string("full") : std::to_string(pg->entry.window);
        throw std::runtime_error(format("KV policy: window %s: cannot allocate %.2f MiB: %s", window.c_str(), (pg->k_size + pg->v_size)/1024.0/1024.0, e.what()));
    }

    if (!g->at->kv) {
        g->at->kv = g->kv.get();
    }
    g->at->groups.push_back(g.get());
    groups.push_back(std::move(g));
}

void llama_kv_headwise::check_size() const {
    size_t allocated = 0;
    for (const auto & g : groups) {
        allocated += g->kv->size_k_bytes() + g->kv->size_v_bytes();
    }

    const size_t size = hwkv_plan_size(setup.plan.get());

    LLAMA_LOG_INFO("%s: KV policy %s, operating point \"%s\": %zu groups, %.2f MiB, plain cache %.2f MiB\n", __func__, setup.path.c_str(),
            setup.point.c_str(), groups.size(), size/1024.0/1024.0, hwkv_plan_size_plain(setup.plan.get())/1024.0/1024.0);

    if (allocated != size) {
        throw std::runtime_error(format("KV policy: %zu bytes are allocated, but %zu were predicted", allocated, size));
    }
}

llama_kv_headwise * llama_kv_headwise::find(llama_memory_i * mem) {
    if (auto * kv = dynamic_cast<llama_kv_cache *>(mem)) {
        return kv->get_headwise();
    }
    if (auto * iswa = dynamic_cast<llama_kv_cache_iswa *>(mem)) {
        return iswa->get_base()->get_headwise();
    }
    if (auto * hybrid = dynamic_cast<llama_memory_hybrid *>(mem)) {
        return hybrid->get_mem_attn()->get_headwise();
    }
    if (auto * hybrid = dynamic_cast<llama_memory_hybrid_iswa *>(mem)) {
        return hybrid->get_mem_attn()->get_base()->get_headwise();
    }
    return nullptr;
}

void llama_kv_headwise::check_taken(const llama_kv_headwise_setup * setup, llama_memory_i * mem) {
    if (setup && !find(mem)) {
        throw std::runtime_error("KV policy: this model's memory has no cache that can take it");
    }
}

//
// sequences
//

template <typename F>
void llama_kv_headwise::for_rings(F && fn) const {
    for (const auto & c : windows) {
        if (c->is_ring()) {
            fn(*c->kv);
        }
    }
}

// as llama.cpp reads a range: negative is open
static llama_pos range_begin(llama_pos p0) {
    return std::max(p0, 0);
}

static llama_pos range_end(llama_pos p1) {
    return p1 < 0 ? std::numeric_limits<llama_pos>::max() : p1;
}

void llama_kv_headwise::clear(bool data) {
    for (auto & g : groups) {
        g->kv->clear(data);
    }
    for_sequences(-1, [](hwkv_history & h) { hwkv_history_free(&h); });
}

void llama_kv_headwise::seq_rm(llama_seq_id seq_id, llama_pos p0, llama_pos p1) {
    for_rings([&](llama_kv_cache & kv) { kv.seq_rm(seq_id, p0, p1); });
    for_sequences(seq_id, [&](hwkv_history & h) { hwkv_history_remove(&h, range_begin(p0), range_end(p1)); });
}

void llama_kv_headwise::seq_cp(llama_seq_id seq_id_src, llama_seq_id seq_id_dst, llama_pos p0, llama_pos p1) {
    for_rings([&](llama_kv_cache & kv) { kv.seq_cp(seq_id_src, seq_id_dst, p0, p1); });
    if (!hwkv_history_copy(&histories[seq_id_dst], &histories[seq_id_src], range_begin(p0), range_end(p1))) {
        hwkv_history_free(&histories[seq_id_dst]); // rows of unknown tokens serve no prompt
    }
}

void llama_kv_headwise::seq_keep(llama_seq_id seq_id) {
    for_rings([&](llama_kv_cache & kv) { kv.seq_keep(seq_id); });
    for_sequences(-1, [&](hwkv_history & h) {
        if (&h != &histories[seq_id]) {
            hwkv_history_free(&h);
        }
    });
}

void llama_kv_headwise::seq_add(llama_seq_id seq_id, llama_pos p0, llama_pos p1, llama_pos shift) {
    for_rings([&](llama_kv_cache & kv) { kv.seq_add(seq_id, p0, p1, shift); });
    for_sharing(seq_id, [&](hwkv_history & h) { hwkv_history_shift(&h, range_begin(p0), range_end(p1), shift); });
}

void llama_kv_headwise::seq_div(llama_seq_id seq_id, llama_pos p0, llama_pos p1, int d) {
    for_rings([&](llama_kv_cache & kv) { kv.seq_div(seq_id, p0, p1, d); });
    for_sharing(seq_id, [&](hwkv_history & h) { hwkv_history_divide(&h, range_begin(p0), range_end(p1), d); });
}

bool llama_kv_headwise::can_shift() const {
    // ggml ropes floats. Blocks are roped as floats, by a graph that takes for granted that they are rotated
    return std::all_of(groups.begin(), groups.end(), [&](const auto & g) {
        const auto type = hwkv_plan_group(setup.plan.get(), g->ig)->entry.type_k;
        return type == HWKV_TYPE_F32 || type == HWKV_TYPE_F16 || (type != HWKV_TYPE_BF16 && g->kv->attn_rot_k);
    });
}

bool llama_kv_headwise::holds_window(const cells & c, llama_seq_id seq_id, llama_pos p) const {
    int64_t n_missing = hwkv_rule_n_needed(c.rule, p);

    llama_pos last = -1;
    for (const auto & [pos, idx] : c.kv->get_cells(seq_id).seq_pos_get(seq_id)) {
        GGML_UNUSED(idx);
        // tokens of an image share a position
        if (pos != last && pos < p && hwkv_rule_sees(c.rule, p, pos)) {
            n_missing--;
        }
        last = pos;
    }

    return n_missing <= 0;
}

bool llama_kv_headwise::can_resume(llama_memory_i * mem, llama_seq_id seq_id, llama_pos p) {
    if (!mem) {
        return p == 0; // nothing is kept, so everything starts from there
    }
    if (p > mem->seq_pos_max(seq_id) + 1) {
        return false;
    }

    auto * iswa = dynamic_cast<llama_kv_cache_iswa *>(mem);
    if (auto * hybrid = dynamic_cast<llama_memory_hybrid_iswa *>(mem)) {
        iswa = hybrid->get_mem_attn();
    }
    if (iswa) {
        const auto &    swa   = *iswa->get_swa();
        const llama_pos first = swa.seq_pos_min(seq_id);
        if (first > 0 && !llama_hparams::is_masked_swa(swa.n_swa, swa.swa_type, first - 1, p)) {
            return false; // the newest one that is gone would be seen
        }
    }

    const auto * hw = find(mem);

    return !hw || hw->lost_window(seq_id, p) == HWKV_FULL;
}

int32_t llama_kv_headwise::lost_window(llama_seq_id seq_id, llama_pos p) const {
    for (const auto & c : windows) {
        if (c->is_ring() && !holds_window(*c, seq_id, p)) {
            return hwkv_rule_window(c->rule);
        }
    }
    return HWKV_FULL;
}

llama_pos llama_kv_headwise::seq_pos_min(llama_seq_id seq_id) const {
    llama_pos res = owner->get_cells(seq_id).seq_pos_min(seq_id);
    if (res < 0) {
        return res;
    }

    for (const auto & c : windows) {
        if (!c->is_ring()) {
            continue;
        }

        const auto & held = c->kv->get_cells(seq_id).seq_pos_get(seq_id);

        // the lowest position from which everything up to the newest is there
        llama_pos lo = owner->get_cells(seq_id).seq_pos_max(seq_id) + 1;
        for (auto it = held.rbegin(); it != held.rend() && it->first >= lo - 1; ++it) {
            lo = it->first;
        }

        // how far the first positions reach
        llama_pos n_first = 0;
        for (auto it = held.begin(); it != held.end() && it->first <= n_first && n_first < c->rule.sinks; ++it) {
            n_first = it->first + 1;
        }

        res = std::max(res, hwkv_rule_pos_min(c->rule, lo, n_first));
    }

    return res;
}

llama_pos llama_kv_headwise::seq_pos_min_iswa(const llama_kv_cache & base, const llama_kv_cache & swa, llama_seq_id seq_id) {
    const llama_pos pos_swa  = swa.seq_pos_min(seq_id);
    const llama_pos pos_base = base.seq_pos_min(seq_id);

    // callers allow for the model's own window, unless the SWA cache has the size of the base cache
    const llama_pos n_swa = swa.get_size() < base.get_size() ? swa.n_swa : 0;

    return std::max(pos_swa, pos_base - n_swa);
}

void llama_kv_headwise::memory_breakdown(std::map<ggml_backend_buffer_type_t, size_t> & mb) const {
    for (const auto & g : groups) {
        for (const auto & [buft, size] : g->kv->memory_breakdown()) {
            mb[buft] += size;
        }
    }
}

bool llama_kv_headwise::update(llama_context * lctx, const llama_kv_cache::stream_copy_info & sc_info) {
    bool res = false;

    for (const auto & c : windows) {
        auto & keeper = *c->kv;

        auto copies = sc_info;
        if (c->is_ring()) {
            copies = std::move(keeper.sc_info);
            keeper.sc_info = {};
        }

        // a store's update ends the shift of the cells, which the next store over them still needs
        const bool shift  = keeper.get_has_shift();
        const bool shared = c->groups.size() > 1;
        const auto before = shift && shared ? keeper.v_cells : llama_kv_cells_vec();

        for (const auto * g : c->groups) {
            if (shift && shared) {
                keeper.v_cells = before;
            }
            res = g->kv->update(lctx, shift, copies) || res;
        }
    }

    // no store has done it where no head has full history
    for (auto & cells : owner->v_cells) {
        cells.reset_shift();
    }

    return res;
}

//
// what it tells
//

size_t llama_kv_headwise::group_device(int32_t ig, size_t i, const char ** name) const {
    const auto & bufs = groups[ig]->kv->ctxs_bufs;
    if (i >= bufs.size()) {
        return 0;
    }

    const auto & [ctx, buf] = bufs[i];

    size_t res = 0;
    for (auto * t = ggml_get_first_tensor(ctx.get()); t; t = ggml_get_next_tensor(ctx.get(), t)) {
        res += t->view_src ? 0 : ggml_nbytes(t);
    }

    *name = ggml_backend_buft_name(ggml_backend_buffer_get_type(buf.get()));

    return res;
}

std::map<ggml_backend_buffer_type_t, size_t> llama_kv_headwise::group_breakdown(int32_t ig) const {
    return groups[ig]->kv->memory_breakdown();
}

uint32_t llama_kv_headwise::n_cells_used(int32_t ig) const {
    uint32_t res = 0;
    for (const auto & cells : groups[ig]->at->kv->v_cells) {
        res += cells.get_used();
    }
    return res;
}

uint32_t llama_kv_headwise::n_cells_used(int32_t ig, llama_seq_id seq_id) const {
    return groups[ig]->at->kv->get_cells(seq_id).seq_pos_get(seq_id).size();
}
