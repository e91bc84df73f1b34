// States: the positions of every cells once, then the rows of all stores over them.

#include "llama-kv-headwise.h"

#include "llama-impl.h"
#include "llama-io.h"

#include <stdexcept>

// the cells of a stream that a sequence has, or any one has (-1), in the order in which llama.cpp writes them
static std::vector<std::pair<uint32_t, uint32_t>> cell_ranges(const llama_kv_cells & cells, llama_seq_id seq_id) {
    std::vector<std::pair<uint32_t, uint32_t>> res;
    for (uint32_t i = 0; i < cells.size(); ++i) {
        if (cells.is_empty(i) || (seq_id != -1 && !cells.seq_has(i, seq_id))) {
            continue;
        }
        if (res.empty() || res.back().second != i) {
            res.push_back({ i, i });
        }
        res.back().second++;
    }
    return res;
}

void llama_kv_headwise::write_rows(llama_io_write_i & io, const group & g, llama_seq_id seq_id) const {
    for (uint32_t s = 0; s < g.kv->get_n_stream(); ++s) {
        const llama_kv_cache::cell_ranges_t ranges = { s, cell_ranges(g.kv->v_cells[s], seq_id) };
        if (!ranges.data.empty()) {
            g.kv->state_write_data(io, ranges);
        }
    }
}

void llama_kv_headwise::read_rows(llama_io_read_i & io, const group & g, llama_seq_id seq_id, const slot_info_vec_t & sinfos) {
    for (uint32_t s = 0; s < sinfos.size(); ++s) {
        if (sinfos[s].empty()) {
            continue;
        }
        const uint32_t strm = seq_id == -1 ? s : g.kv->seq_to_stream[seq_id];
        if (!g.kv->state_read_data(io, strm, sinfos[s].size(), sinfos[s])) {
            throw std::runtime_error("the rows of a state do not fit the cache");
        }
    }
}

void llama_kv_headwise::state_write(llama_io_write_i & io, llama_seq_id seq_id, llama_state_seq_flags flags) const {
    const uint32_t magic = LLAMA_KV_HEADWISE_MAGIC;

    io.write(&magic, sizeof(magic));
    io.write(setup.state_id.data(), setup.state_id.size());

    write_histories(io, seq_id, flags);

    for (const auto & c : windows) {
        if (c->is_ring()) {
            trim(*c, {}, true);
            c->kv->state_write(io, seq_id, flags); // with the rows of the store that keeps the ring
        } else if (flags & LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY) {
            continue; // full history stays where it is
        }
        for (const auto * g : c->groups) {
            if (g->kv.get() != c->kv) {
                write_rows(io, *g, seq_id);
            }
        }
    }
}

void llama_kv_headwise::read_cells(llama_io_read_i & io, const cells & c, llama_seq_id seq_id, llama_state_seq_flags flags, const slot_info_vec_t & sinfos) {
    slot_info_vec_t places = sinfos;
    if (c.is_ring()) {
        // room for what comes: the other sequences keep only what they need
        trim(c, {}, true);
        c.kv->state_read_sinfo(io, seq_id, flags, &places, nullptr);
    } else if (flags & LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY) {
        return;
    }
    for (const auto * g : c.groups) {
        if (g->kv.get() != c.kv) {
            read_rows(io, *g, seq_id, places);
        }
    }
}

void llama_kv_headwise::state_read(llama_io_read_i & io, llama_seq_id seq_id, llama_state_seq_flags flags, const slot_info_vec_t & sinfos) {
    uint32_t    magic = 0;
    std::string id(setup.state_id.size(), '\0');

    io.read(&magic, sizeof(magic));
    if (magic == LLAMA_KV_HEADWISE_MAGIC) {
        io.read(id.data(), id.size());
    }
    if (id != setup.state_id) {
        throw std::runtime_error("the state was saved under another KV policy");
    }

    try {
        read_histories(io, seq_id, flags);

        for (const auto & c : windows) {
            read_cells(io, *c, seq_id, flags, sinfos);
        }
    } catch (...) {
        // half a state is none
        owner->state_clear(seq_id);
        throw;
    }
}

void llama_kv_headwise::state_clear(llama_seq_id seq_id) {
    if (seq_id == -1) {
        clear(true);
        return;
    }

    for (const auto & c : windows) {
        const uint32_t strm  = c->kv->seq_to_stream[seq_id];
        const auto   & cells = c->kv->v_cells[strm];

        // a cell that another sequence still uses keeps its rows
        slot_info sinfo;
        sinfo.s0 = strm;
        sinfo.s1 = strm;
        sinfo.resize(1);
        sinfo.strm[0] = strm;
        for (uint32_t i = 0; i < cells.size(); ++i) {
            if (cells.seq_has(i, seq_id) && cells.seq_count(i) == 1) {
                sinfo.idxs[0].push_back(i);
            }
        }

        for (const auto * g : c->groups) {
            g->kv->state_clear(seq_id, strm, sinfo);
        }
    }
}
