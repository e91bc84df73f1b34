#include "llama-kv-headwise.h"

#include "llama-impl.h"
#include "llama-context.h"
#include "llama-io.h"
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

// appends a head: one more of the last run, if that leaves it evenly spaced, else a run of its own
static void add_head(std::vector<llama_kv_head_run> & runs, uint32_t head) {
    auto * run = runs.empty() ? nullptr : &runs.back();
    if (run && run->count == 1) {
        run->step = head - run->first; // two are always evenly spaced
    }
    if (run && head == run->first + run->count*run->step) {
        run->count++;
    } else {
        runs.push_back({ head, 1, 1 });
    }
}

// where every head of a layer is; inside a group heads ascend
static std::vector<llama_kv_head_span> spans_of(const std::vector<std::vector<llama_kv_head_run>> & runs, uint32_t n_head) {
    std::vector<uint32_t> src_of(n_head);

    uint32_t n_src = 0;
    for (const auto & group : runs) {
        for (const auto & run : group) {
            for (uint32_t i = 0; i < run.count; ++i) {
                src_of[run.first + i*run.step] = n_src;
            }
        }
        n_src += !group.empty();
    }

    std::vector<llama_kv_head_span> res;
    std::vector<uint32_t> n_done(n_src, 0);
    for (uint32_t head = 0; head < n_head; ++head) {
        const uint32_t src = src_of[head];
        if (res.empty() || res.back().src != src) {
            res.push_back({ src, n_done[src], head, 0 });
        }
        res.back().count++;
        n_done[src]++;
    }
    return res;
}

llama_kv_headwise::llama_kv_headwise(const llama_hparams & hparams, std::shared_ptr<llama_kv_headwise_plan> plan) :
    plan(std::move(plan)), hp_full(hparams) {
    const auto * p   = this->plan->plan.get();
    const auto * geo = hwkv_policy_geometry(this->plan->policy.get());

    if (hwkv_plan_group(p, 0)->window == HWKV_FULL) {
        ig_full = 0;
    }

    layers.resize(hparams.n_layer_all);

    for (int32_t row = 0; row < geo->n_full; ++row) {
        const uint32_t il = geo->layers[row].il;

        auto & layer = layers[il];
        layer.src = il;
        layer.runs.resize(hwkv_plan_n_group(p));

        for (int32_t ig = 0; ig < hwkv_plan_n_group(p); ++ig) {
            int32_t n_head = 0;
            const int32_t * heads = hwkv_plan_heads(p, ig, row, &n_head);

            for (int32_t i = 0; i < n_head; ++i) {
                add_head(layer.runs[ig], heads[i]);
            }

            if (ig == ig_full) {
                hp_full.n_head_kv_arr[il] = n_head;
            }
        }

        if (ig_full < 0) {
            hp_full.n_head_kv_arr[il] = 0;
        }

        layer.n_head = geo->layers[row].n_head_kv;
        layer.spans  = spans_of(layer.runs, layer.n_head);
    }
}

bool llama_kv_headwise::skip(uint32_t il) const {
    return layers[il].src == (int32_t) il && hp_full.n_head_kv_arr[il] == 0;
}

void llama_kv_headwise::init(llama_kv_cache & kv, const llama_model & model, const owner_params & params, const llama_memory_i::layer_reuse_cb & reuse) {
    owner = &kv;

    histories = std::make_unique<llama_kv_history[]>(params.n_seq_max);

    const auto * p = plan->plan.get();

    for (int32_t ig = 0; ig < hwkv_plan_n_group(p); ++ig) {
        if (ig == ig_full) {
            continue;
        }

        const auto * pg = hwkv_plan_group(p, ig);

        auto g = std::make_unique<group>();

        g->ig      = ig;
        g->sinks   = plan->sinks;
        g->recent  = pg->window - plan->sinks;
        g->hparams = model.hparams;

        for (uint32_t il = 0; il < layers.size(); ++il) {
            if (layers[il].src != (int32_t) il) {
                continue;
            }

            uint32_t n_head = 0;
            for (const auto & run : layers[il].runs[ig]) {
                n_head += run.count;
            }
            g->hparams.n_head_kv_arr[il] = n_head;
        }

        const auto filter = [&](int32_t il) {
            return layers[il].src == il && !layers[il].runs[ig].empty();
        };

        const std::string tag = format("w%d_", pg->window);

        try {
            // the window is enforced by placement and mask, so to the child every cell counts
            g->kv = std::make_unique<llama_kv_cache>(
                    model, g->hparams, params.type_k, params.type_v,
                    /*v_trans =*/ false, params.offload, params.unified, pg->n_cells, params.n_seq_max, params.n_pad,
                    0, LLAMA_SWA_TYPE_NONE, nullptr, filter, nullptr, nullptr, tag.c_str());
        } catch (const std::exception & e) {
            throw std::runtime_error(format("KV policy: window %d: cannot allocate %.2f MiB: %s", pg->window,
                        (pg->k_size + pg->v_size)/1024.0/1024.0, e.what()));
        }

        groups.push_back(std::move(g));
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

    // one rotation for all groups: the owner's, which is the plain cache's, unless it holds nothing
    if (kv.layers.empty()) {
        const auto & kv0 = *groups[0]->kv;

        kv.n_embd_head_k_all = kv0.n_embd_head_k_all;
        kv.n_embd_head_v_all = kv0.n_embd_head_v_all;
        kv.attn_rot_k        = kv0.attn_rot_k;
        kv.attn_rot_v        = kv0.attn_rot_v;
        kv.attn_rot_hadamard = kv0.attn_rot_hadamard;
    }
    for (auto & g : groups) {
        g->kv->n_embd_head_k_all = kv.n_embd_head_k_all;
        g->kv->n_embd_head_v_all = kv.n_embd_head_v_all;
        g->kv->attn_rot_k        = kv.attn_rot_k;
        g->kv->attn_rot_v        = kv.attn_rot_v;
        g->kv->attn_rot_hadamard = kv.attn_rot_hadamard;
    }

    apply_full();
    check_size();
}

void llama_kv_headwise::check_size() const {
    size_t allocated = owner->size_k_bytes() + owner->size_v_bytes();
    for (const auto & g : groups) {
        allocated += g->kv->size_k_bytes() + g->kv->size_v_bytes();
    }

    const size_t size = hwkv_plan_size(plan->plan.get());

    LLAMA_LOG_INFO("%s: KV policy %s, operating point \"%s\": %zu windows, %.2f MiB, plain cache %.2f MiB\n", __func__, plan->path.c_str(),
            plan->point.c_str(), groups.size() + (ig_full >= 0), size/1024.0/1024.0, hwkv_plan_size_plain(plan->plan.get())/1024.0/1024.0);

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

//
// sequences
//

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
    for (auto & g : groups) {
        g->kv->seq_rm(seq_id, p0, p1);
    }
    for_sequences(seq_id, [&](hwkv_history & h) { hwkv_history_remove(&h, range_begin(p0), range_end(p1)); });
}

void llama_kv_headwise::seq_cp(llama_seq_id seq_id_src, llama_seq_id seq_id_dst, llama_pos p0, llama_pos p1) {
    for (auto & g : groups) {
        g->kv->seq_cp(seq_id_src, seq_id_dst, p0, p1);
    }
    if (!hwkv_history_copy(&histories[seq_id_dst], &histories[seq_id_src], range_begin(p0), range_end(p1))) {
        hwkv_history_free(&histories[seq_id_dst]); // rows of unknown tokens serve no prompt
    }
}

void llama_kv_headwise::seq_keep(llama_seq_id seq_id) {
    for (auto & g : groups) {
        g->kv->seq_keep(seq_id);
    }
    for_sequences(-1, [&](hwkv_history & h) {
        if (&h != &histories[seq_id]) {
            hwkv_history_free(&h);
        }
    });
}

void llama_kv_headwise::seq_add(llama_seq_id seq_id, llama_pos p0, llama_pos p1, llama_pos shift) {
    for (auto & g : groups) {
        g->kv->seq_add(seq_id, p0, p1, shift);
    }
    for_sharing(seq_id, [&](hwkv_history & h) { hwkv_history_shift(&h, range_begin(p0), range_end(p1), shift); });
}

void llama_kv_headwise::seq_div(llama_seq_id seq_id, llama_pos p0, llama_pos p1, int d) {
    for (auto & g : groups) {
        g->kv->seq_div(seq_id, p0, p1, d);
    }
    for_sharing(seq_id, [&](hwkv_history & h) { hwkv_history_divide(&h, range_begin(p0), range_end(p1), d); });
}

// p attends to the sinks and to [p - recent + 1, p)
bool llama_kv_headwise::holds_window(const group & g, llama_seq_id seq_id, llama_pos p) const {
    const llama_pos lo = std::max(0, p - g.recent + 1);

    int64_t n_missing = p - lo + std::min(g.sinks, lo);

    llama_pos last = -1;
    for (const auto & [pos, idx] : g.kv->get_cells(seq_id).seq_pos_get(seq_id)) {
        GGML_UNUSED(idx);
        // tokens of an image share a position
        if (pos != last && pos < p && (pos >= lo || pos < g.sinks)) {
            n_missing--;
        }
        last = pos;
    }

    return n_missing <= 0;
}

bool llama_kv_headwise::can_resume(llama_memory_i * mem, llama_seq_id seq_id, llama_pos p) {
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

llama_pos llama_kv_headwise::seq_pos_min(llama_seq_id seq_id) const {
    llama_pos res = owner->get_cells(seq_id).seq_pos_min(seq_id);
    if (res < 0) {
        return res;
    }

    for (const auto & g : groups) {
        const auto & held = g->kv->get_cells(seq_id).seq_pos_get(seq_id);

        // the lowest position from which everything up to the newest is there
        llama_pos lo = owner->get_cells(seq_id).seq_pos_max(seq_id) + 1;
        for (auto it = held.rbegin(); it != held.rend() && it->first >= lo - 1; ++it) {
            lo = it->first;
        }

        // how far the first positions reach
        llama_pos n_first = 0;
        for (auto it = held.begin(); it != held.end() && it->first <= n_first && n_first < g->sinks; ++it) {
            n_first = it->first + 1;
        }

        if (lo <= n_first) {
            continue; // nothing is missing
        }
        if (n_first < g->sinks) {
            return std::numeric_limits<llama_pos>::max(); // without its sinks a head cannot be continued exactly
        }

        // lo + recent - 1 is the first position whose window is whole
        res = std::max(res, lo + g->recent - 2);
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

bool llama_kv_headwise::update(llama_context * lctx, bool do_shift) {
    for (auto & g : groups) {
        auto sc_info = std::move(g->kv->sc_info);
        g->kv->sc_info = {};

        g->kv->update(lctx, g->kv->get_has_shift(), sc_info);
    }

    if (do_shift && owner->layers.empty()) {
        for (auto & cells : owner->v_cells) {
            cells.reset_shift();
        }
        return false;
    }

    return do_shift;
}

const llama_kv_cache * llama_kv_headwise::cache_of(int32_t ig) const {
    for (const auto & g : groups) {
        if (g->ig == ig) {
            return g->kv.get();
        }
    }
    return ig == ig_full ? owner : nullptr;
}

size_t llama_kv_headwise::group_device(int32_t ig, size_t i, const char ** name) const {
    const auto * kv = cache_of(ig);
    if (!kv || i >= kv->ctxs_bufs.size()) {
        return 0;
    }

    const auto & [ctx, buf] = kv->ctxs_bufs[i];

    size_t res = 0;
    for (auto * t = ggml_get_first_tensor(ctx.get()); t; t = ggml_get_next_tensor(ctx.get(), t)) {
        res += t->view_src ? 0 : ggml_nbytes(t);
    }

    *name = ggml_backend_buft_name(ggml_backend_buffer_get_type(buf.get()));

    return res;
}

uint32_t llama_kv_headwise::n_cells_used(int32_t ig) const {
    uint32_t res = 0;

    if (const auto * kv = cache_of(ig)) {
        for (const auto & cells : kv->v_cells) {
            res += cells.get_used();
        }
    }

    return res;
}

uint32_t llama_kv_headwise::n_cells_used(int32_t ig, llama_seq_id seq_id) const {
    const auto * kv = cache_of(ig);
    return kv ? kv->get_cells(seq_id).seq_pos_get(seq_id).size() : 0;
}

int32_t llama_kv_headwise::lost_window(llama_seq_id seq_id, llama_pos p) const {
    for (const auto & g : groups) {
        if (!holds_window(*g, seq_id, p)) {
            return g->recent + g->sinks;
        }
    }
    return HWKV_FULL;
}

// every policy has a finite window, and every group the owner's types
ggml_type llama_kv_headwise::type_k() const {
    return groups[0]->kv->type_k();
}

ggml_type llama_kv_headwise::type_v() const {
    return groups[0]->kv->type_v();
}

//
// state
//

void llama_kv_headwise::state_write(llama_io_write_i & io, llama_seq_id seq_id, llama_state_seq_flags flags) const {
    const uint32_t magic = LLAMA_KV_HEADWISE_MAGIC;

    io.write(&magic, sizeof(magic));
    io.write(plan->state_id.data(), plan->state_id.size());

    write_histories(io, seq_id, flags);

    for (const auto & g : groups) {
        trim(*g, {}, true);
        g->kv->state_write(io, seq_id, flags);
    }
}

void llama_kv_headwise::state_read(llama_io_read_i & io, llama_seq_id seq_id, llama_state_seq_flags flags) {
    uint32_t    magic = 0;
    std::string id(plan->state_id.size(), '\0');

    io.read(&magic, sizeof(magic));
    if (magic == LLAMA_KV_HEADWISE_MAGIC) {
        io.read(id.data(), id.size());
    }
    if (id != plan->state_id) {
        throw std::runtime_error("the state was saved under another KV policy");
    }

    try {
        read_histories(io, seq_id, flags);

        for (const auto & g : groups) {
            // room for what comes: the other sequences keep only what they need
            trim(*g, {}, true);
            g->kv->state_read(io, seq_id, flags);
        }
    } catch (...) {
        // half a state is none
        owner->state_clear(seq_id);
        throw;
    }
}
