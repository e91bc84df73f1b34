// Which cells of the rings the tokens of a ubatch take, and which older ones make room for them.

#include "llama-kv-headwise.h"

#include "llama-batch.h"
#include "llama-impl.h"

#include <algorithm>

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

    return remember(ubatch);
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
