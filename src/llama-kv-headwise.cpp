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
    if (!runs.empty()) {
        auto & run = runs.back();
        if (run.count == 1) {
            run.step = head - run.first;
        }
        if (head == run.first + run.count*run.step) {
            run.count++;
            return;
        }
    }
    runs.push_back({ head, 1, 1 });
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

void llama_kv_headwise::clear(bool data) {
    for (auto & g : groups) {
        g->kv->clear(data);
    }
}

void llama_kv_headwise::seq_rm(llama_seq_id seq_id, llama_pos p0, llama_pos p1) {
    for (auto & g : groups) {
        g->kv->seq_rm(seq_id, p0, p1);
    }
}

void llama_kv_headwise::seq_cp(llama_seq_id seq_id_src, llama_seq_id seq_id_dst, llama_pos p0, llama_pos p1) {
    for (auto & g : groups) {
        g->kv->seq_cp(seq_id_src, seq_id_dst, p0, p1);
    }
}

void llama_kv_headwise::seq_keep(llama_seq_id seq_id) {
    for (auto & g : groups) {
        g->kv->seq_keep(seq_id);
    }
}

void llama_kv_headwise::seq_add(llama_seq_id seq_id, llama_pos p0, llama_pos p1, llama_pos shift) {
    for (auto & g : groups) {
        g->kv->seq_add(seq_id, p0, p1, shift);
    }
}

void llama_kv_headwise::seq_div(llama_seq_id seq_id, llama_pos p0, llama_pos p1, int d) {
    for (auto & g : groups) {
        g->kv->seq_div(seq_id, p0, p1, d);
    }
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
    if (iswa && iswa->get_swa()->seq_pos_min(seq_id) > std::max(0, p - (llama_pos) iswa->get_swa()->n_swa)) {
        return false;
    }

    if (const auto * hw = find(mem)) {
        for (const auto & g : hw->groups) {
            if (!hw->holds_window(*g, seq_id, p)) {
                return false;
            }
        }
    }

    return true;
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

size_t llama_kv_headwise::group_device(int32_t ig, size_t i, const char ** name) const {
    const llama_kv_cache * kv = ig == ig_full ? owner : nullptr;
    for (const auto & g : groups) {
        if (g->ig == ig) {
            kv = g->kv.get();
        }
    }
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

    if (ig == ig_full) {
        for (const auto & cells : owner->v_cells) {
            res += cells.get_used();
        }
    }
    for (const auto & g : groups) {
        if (g->ig == ig) {
            for (const auto & cells : g->kv->v_cells) {
                res += cells.get_used();
            }
        }
    }

    return res;
}

uint32_t llama_kv_headwise::n_cells_used(int32_t ig, llama_seq_id seq_id) const {
    for (const auto & g : groups) {
        if (g->ig == ig) {
            return g->kv->get_cells(seq_id).seq_pos_get(seq_id).size();
        }
    }
    return ig == ig_full ? owner->get_cells(seq_id).seq_pos_get(seq_id).size() : 0;
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
// placement
//

// Takes the positions [p0, p1) from a sequence; unlike seq_rm it looks only at those.
static void drop(llama_kv_cells & cells, llama_seq_id seq_id, llama_pos p0, llama_pos p1) {
    std::vector<uint32_t> idxs;

    const auto & held = cells.seq_pos_get(seq_id);
    for (auto it = held.lower_bound({ p0, 0 }); it != held.end() && it->first < p1; ++it) {
        idxs.push_back(it->second);
    }
    for (const auto idx : idxs) {
        cells.seq_rm(idx, seq_id);
    }
}

llama_pos llama_kv_headwise::keep_from(const group & g, llama_pos first, llama_pos last) const {
    return std::min(first, last + 1 - (llama_pos) plan->n_rollback) - g.recent + 1;
}

void llama_kv_headwise::trim(group & g, const std::vector<span> & spans, bool done) const {
    for (uint32_t s = 0; s < g.kv->get_n_seq_max(); ++s) {
        auto & cells = g.kv->v_cells[g.kv->seq_to_stream[s]];

        const llama_pos newest = cells.seq_pos_max(s);
        if (newest < 0) {
            continue;
        }

        llama_pos keep = keep_from(g, newest + 1, newest);
        if (s < spans.size() && spans[s].first >= 0) {
            keep = keep_from(g, done ? spans[s].last + 1 : spans[s].first, spans[s].last);
        }

        if (keep > g.sinks) {
            drop(cells, s, g.sinks, keep);
        }
    }
}

// Frees n cells of the sequences in a stream, oldest first: only images, whose tokens share a position, can need this.
static void evict_oldest(llama_kv_cells & cells, const llama_ubatch & ubatch, int32_t sinks, uint32_t n) {
    for (uint32_t i = 0; i < ubatch.n_seqs_unq && n > 0; ++i) {
        const llama_seq_id seq_id = ubatch.seq_id_unq[i];

        while (n > 0) {
            const auto & held = cells.seq_pos_get(seq_id);
            const auto   it   = held.lower_bound({ sinks, 0 });
            if (it == held.end()) {
                break;
            }
            n -= cells.seq_rm(it->second, seq_id);
        }
    }
}

uint32_t llama_kv_headwise::n_staged(const group & g, uint32_t n_tokens) const {
    const bool staged = reserving ? n_tokens > plan->n_rollback : g.staged;
    if (!staged) {
        return 0;
    }
    // GPU kernels want whole blocks of cells
    return plan->n_pad >= 256 ? GGML_PAD(g.n_kv + n_tokens, plan->n_pad) - g.n_kv : n_tokens;
}

void llama_kv_headwise::look(group & g, const llama_ubatch & ubatch) const {
    g.n_kv = g.kv->get_n_kv(g.sinfo);

    g.seen.resize(ubatch.n_seqs_unq);
    for (uint32_t u = 0; u < ubatch.n_seqs_unq; ++u) {
        const llama_seq_id seq_id = ubatch.seq_id_unq[u];
        const auto & cells = g.kv->v_cells[g.kv->seq_to_stream[seq_id]];

        g.seen[u].assign(g.n_kv, {});
        for (uint32_t j = 0; j < g.n_kv; ++j) {
            if (!cells.is_empty(j) && cells.seq_has(j, seq_id)) {
                g.seen[u][j] = { cells.pos_get(j), cells.ext_get(j) };
            }
        }
    }
}

// the tokens of the is-th stream of the ubatch that stay
bool llama_kv_headwise::store(group & g, const llama_ubatch & ubatch, const std::vector<span> & spans, uint32_t is, uint32_t n_tokens) {
    const uint32_t strm = g.sinfo.strm[is];

    auto & cells = g.kv->v_cells[strm];
    auto & head  = g.kv->v_heads[strm];

    for (uint32_t i = is*n_tokens; i < (is + 1)*n_tokens; ++i) {
        const llama_pos pos = ubatch.pos[i];

        bool stays = !g.staged;
        for (int32_t j = 0; j < ubatch.n_seq_id[i]; ++j) {
            const auto & span = spans[ubatch.seq_id[i][j]];
            stays = stays || pos < g.sinks || pos >= keep_from(g, span.last + 1, span.last);
        }
        if (!stays) {
            continue;
        }

        if (cells.get_used() == cells.size()) {
            evict_oldest(cells, ubatch, g.sinks, 1);
        }
        if (cells.get_used() == cells.size()) {
            return false;
        }
        while (!cells.is_empty(head % cells.size())) {
            head++;
        }
        head %= cells.size();

        cells.pos_set(head, pos);

        llama_kv_cell_ext ext;
        if (ubatch.is_pos_2d()) {
            ext.x = ubatch.pos[i + ubatch.n_tokens*2];
            ext.y = ubatch.pos[i + ubatch.n_tokens];
        }
        if (ubatch.token) {
            ext.tok = ubatch.token[i];
        }
        cells.ext_set(head, ext);

        for (int32_t j = 0; j < ubatch.n_seq_id[i]; ++j) {
            cells.seq_add(head, ubatch.seq_id[i][j]);
        }

        g.tokens.push_back(i);
        g.rows.push_back((int64_t) strm*cells.size() + head);

        head++;
    }

    return true;
}

bool llama_kv_headwise::place(group & g, const llama_ubatch & ubatch, const std::vector<span> & spans) {
    auto & kv = *g.kv;

    trim(g, spans, false);

    // as the owner does: one slot for the whole ubatch, or one for each stream
    const uint32_t n_strm   = kv.get_n_stream() == 1 ? 1 : ubatch.n_seqs_unq;
    const uint32_t n_tokens = ubatch.n_tokens/n_strm;

    g.sinfo = {};
    g.sinfo.s0 = LLAMA_MAX_SEQ;
    g.sinfo.s1 = 0;
    g.sinfo.resize(n_strm);

    g.staged = false;
    for (uint32_t is = 0; is < n_strm; ++is) {
        const uint32_t strm = kv.seq_to_stream[ubatch.seq_id_unq[is]];

        g.sinfo.strm[is] = strm;
        g.sinfo.s0 = std::min<uint32_t>(g.sinfo.s0, strm);
        g.sinfo.s1 = std::max<uint32_t>(g.sinfo.s1, strm);

        const auto & cells = kv.v_cells[strm];
        g.staged = g.staged || cells.get_used() + n_tokens > cells.size();
    }

    if (g.staged) {
        look(g, ubatch);
        trim(g, spans, true);
    }

    g.tokens.clear();
    g.rows.clear();
    for (uint32_t is = 0; is < n_strm; ++is) {
        if (!store(g, ubatch, spans, is, n_tokens)) {
            return false;
        }
    }

    if (!g.staged) {
        look(g, ubatch);
    }

    return true;
}

bool llama_kv_headwise::apply(const llama_ubatch & ubatch) {
    reserving = false;

    std::vector<span> spans(owner->get_n_seq_max());
    for (uint32_t i = 0; i < ubatch.n_tokens; ++i) {
        for (int32_t j = 0; j < ubatch.n_seq_id[i]; ++j) {
            auto & span = spans[ubatch.seq_id[i][j]];
            span.first = span.first < 0 ? ubatch.pos[i] : std::min(span.first, ubatch.pos[i]);
            span.last  = std::max(span.last, ubatch.pos[i]);
        }
    }

    for (auto & g : groups) {
        if (!place(*g, ubatch, spans)) {
            LLAMA_LOG_ERROR("%s: window %d: no room for %u tokens in %u cells\n", __func__,
                    g->recent + g->sinks, ubatch.n_tokens, g->kv->get_size());
            return false;
        }
    }

    return true;
}

void llama_kv_headwise::apply_full() {
    reserving = true;

    for (auto & g : groups) {
        const uint32_t n_stream = g->kv->get_n_stream();

        g->n_kv = g->kv->get_size();

        g->sinfo = {};
        g->sinfo.s0 = 0;
        g->sinfo.s1 = n_stream - 1;
        g->sinfo.resize(n_stream);
        for (uint32_t s = 0; s < n_stream; ++s) {
            g->sinfo.strm[s] = s;
        }
    }
}

//
// state
//

// tells a state made under another policy from damage
static const uint32_t LLAMA_KV_HEADWISE_MAGIC = 0x6877677a;

void llama_kv_headwise::state_write(llama_io_write_i & io, llama_seq_id seq_id, llama_state_seq_flags flags) const {
    const uint32_t magic = LLAMA_KV_HEADWISE_MAGIC;

    io.write(&magic, sizeof(magic));
    io.write(plan->state_id.data(), plan->state_id.size());

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
