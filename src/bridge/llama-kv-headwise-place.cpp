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

void llama_kv_headwise::trim(const cells & c, const std::vector<pos_range> & ranges, bool done) const {
    for (uint32_t s = 0; s < c.kv->get_n_seq_max(); ++s) {
        auto & cells = c.kv->v_cells[c.kv->seq_to_stream[s]];

        const llama_pos newest = cells.seq_pos_max(s);
        if (newest < 0) {
            continue;
        }

        llama_pos keep = hwkv_rule_keep_from(c.rule, newest + 1, newest, n_rollback);
        if (s < ranges.size() && ranges[s].first >= 0) {
            keep = hwkv_rule_keep_from(c.rule, done ? ranges[s].last + 1 : ranges[s].first, ranges[s].last, n_rollback);
        }

        if (keep > c.rule.sinks) {
            drop(cells, s, c.rule.sinks, keep);
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

uint32_t llama_kv_headwise::n_staged(const cells & c, uint32_t n_tokens, uint32_t n_row) const {
    // reserving: as if all tokens were of one sequence, which is the largest that can come
    const bool     staged = c.is_ring() && (reserving ? n_tokens > c.n_room : c.staged);
    const uint32_t n      = reserving ? n_tokens : n_row;
    if (!staged) {
        return 0;
    }
    // GPU kernels want whole blocks of cells
    return setup.on_gpu ? GGML_PAD(c.n_kv + n, setup.n_pad) - c.n_kv : n;
}

// the tokens of the is-th stream of the ubatch that stay
bool llama_kv_headwise::store(cells & c, const llama_ubatch & ubatch, const std::vector<pos_range> & ranges, uint32_t is, uint32_t n_tokens) {
    const uint32_t strm = c.sinfo.strm[is];

    auto & cells = c.kv->v_cells[strm];
    auto & head  = c.kv->v_heads[strm];

    for (uint32_t i = is*n_tokens; i < (is + 1)*n_tokens; ++i) {
        const llama_pos pos = ubatch.pos[i];

        bool stays = !c.staged;
        for (int32_t j = 0; j < ubatch.n_seq_id[i]; ++j) {
            const auto & range = ranges[ubatch.seq_id[i][j]];
            stays = stays || hwkv_rule_keeps(c.rule, hwkv_rule_keep_from(c.rule, range.last + 1, range.last, n_rollback), pos);
        }
        if (!stays) {
            continue;
        }

        if (cells.get_used() == cells.size()) {
            evict_oldest(cells, ubatch, c.rule.sinks, 1);
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

        c.tokens.push_back(i);
        c.rows.push_back((int64_t) strm*cells.size() + head);

        head++;
    }

    return true;
}

bool llama_kv_headwise::place(cells & c, const llama_ubatch & ubatch, const std::vector<pos_range> & ranges) {
    auto & kv = *c.kv;

    trim(c, ranges, false);

    // as the owner does: one slot for the whole ubatch, or one for each stream
    const uint32_t n_strm   = kv.get_n_stream() == 1 ? 1 : ubatch.n_seqs_unq;
    const uint32_t n_tokens = ubatch.n_tokens/n_strm;

    c.sinfo = {};
    c.sinfo.s0 = LLAMA_MAX_SEQ;
    c.sinfo.s1 = 0;
    c.sinfo.resize(n_strm);

    c.staged = false;
    for (uint32_t is = 0; is < n_strm; ++is) {
        const uint32_t strm = kv.seq_to_stream[ubatch.seq_id_unq[is]];

        c.sinfo.strm[is] = strm;
        c.sinfo.s0 = std::min<uint32_t>(c.sinfo.s0, strm);
        c.sinfo.s1 = std::max<uint32_t>(c.sinfo.s1, strm);

        const auto & cells = kv.v_cells[strm];
        c.staged = c.staged || cells.get_used() + n_tokens > cells.size();
    }

    if (c.staged) {
        look(c, ubatch);
        trim(c, ranges, true);
    }

    c.tokens.clear();
    c.rows.clear();
    for (uint32_t is = 0; is < n_strm; ++is) {
        if (!store(c, ubatch, ranges, is, n_tokens)) {
            return false;
        }
    }

    if (!c.staged) {
        look(c, ubatch);
    }

    return true;
}

// the owner has placed the tokens in its own cells
void llama_kv_headwise::follow(cells & c, const llama_ubatch & ubatch, const slot_info & sinfo) const {
    c.sinfo = sinfo;
    look(c, ubatch);

    c.rows.clear();
    for (uint32_t is = 0; is < sinfo.n_stream(); ++is) {
        for (const auto idx : sinfo.idxs[is]) {
            c.rows.push_back((int64_t) sinfo.strm[is]*c.kv->get_size() + idx);
        }
    }
}

bool llama_kv_headwise::apply(const llama_ubatch & ubatch, const slot_info & sinfo) {
    reserving = false;

    std::vector<pos_range> ranges(owner->get_n_seq_max());
    for (uint32_t i = 0; i < ubatch.n_tokens; ++i) {
        for (int32_t j = 0; j < ubatch.n_seq_id[i]; ++j) {
            auto & range = ranges[ubatch.seq_id[i][j]];
            range.first = range.first < 0 ? ubatch.pos[i] : std::min(range.first, ubatch.pos[i]);
            range.last  = std::max(range.last, ubatch.pos[i]);
        }
    }

    for (auto & c : windows) {
        if (!c->is_ring()) {
            follow(*c, ubatch, sinfo);
        } else if (!place(*c, ubatch, ranges)) {
            LLAMA_LOG_ERROR("%s: window %d: no room for %u tokens in %u cells\n", __func__,
                    hwkv_rule_window(c->rule), ubatch.n_tokens, c->kv->get_size());
            return false;
        }
    }

    return remember(ubatch);
}

void llama_kv_headwise::apply_full() {
    reserving = true;

    for (auto & c : windows) {
        const uint32_t n_stream = c->kv->get_n_stream();

        c->n_kv = c->kv->get_size();

        c->sinfo = {};
        c->sinfo.s0 = 0;
        c->sinfo.s1 = n_stream - 1;
        c->sinfo.resize(n_stream);
        for (uint32_t s = 0; s < n_stream; ++s) {
            c->sinfo.strm[s] = s;
        }
    }
}
