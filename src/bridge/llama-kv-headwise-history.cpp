// Which tokens the rows of every sequence were computed from. All ways into the memory pass here: a batch, a copy, a saved state.

#include "llama-kv-headwise.h"

#include "llama-batch.h"
#include "llama-impl.h"
#include "llama-io.h"

#include <cstring>
#include <stdexcept>

void llama_kv_headwise::for_sequences(llama_seq_id seq_id, const std::function<void(hwkv_history & h)> & fn) const {
    const llama_seq_id n = owner->get_n_seq_max();
    for (llama_seq_id s = seq_id < 0 ? 0 : seq_id; s < (seq_id < 0 ? n : seq_id + 1); ++s) {
        fn(histories[s]);
    }
}

// Moving a cell moves it for all that have it.
void llama_kv_headwise::for_sharing(llama_seq_id seq_id, const std::function<void(hwkv_history & h)> & fn) const {
    const llama_seq_id n = owner->get_n_seq_max();

    const auto & cells = owner->get_cells(seq_id);

    std::vector<bool> shares(n, false);
    for (const auto & [pos, idx] : cells.seq_pos_get(seq_id)) {
        GGML_UNUSED(pos);
        for (llama_seq_id s = 0; s < n && cells.seq_count(idx) > 1; ++s) {
            shares[s] = shares[s] || cells.seq_has(idx, s);
        }
    }
    shares[seq_id] = true;

    for (llama_seq_id s = 0; s < n; ++s) {
        if (shares[s]) {
            fn(histories[s]);
        }
    }
}

static uint32_t hash_embd(const float * embd, size_t n) {
    uint64_t h = n;
    for (size_t i = 0; i < n; ++i) {
        uint32_t bits;
        memcpy(&bits, embd + i, sizeof(bits));
        h = (h ^ bits)*0x9e3779b97f4a7c15ull;
        h ^= h >> 29;
    }
    return (uint32_t) (h >> 32) | HWKV_HISTORY_OPAQUE;
}

bool llama_kv_headwise::remember(const llama_ubatch & ubatch) {
    for (uint32_t i = 0; i < ubatch.n_tokens; ++i) {
        // rows of embeddings may be wider, never narrower
        const uint32_t what = ubatch.token ? (uint32_t) ubatch.token[i] : hash_embd(ubatch.embd + (size_t) i*owner->hparams.n_embd, owner->hparams.n_embd);

        for (int32_t j = 0; j < ubatch.n_seq_id[i]; ++j) {
            if (!hwkv_history_add(&histories[ubatch.seq_id[i][j]], ubatch.pos[i], what)) {
                LLAMA_LOG_ERROR("%s: no memory\n", __func__);
                return false;
            }
        }
    }
    return true;
}

void llama_kv_headwise::write_histories(llama_io_write_i & io, llama_seq_id seq_id, llama_state_seq_flags flags) const {
    for_sequences(seq_id, [&](hwkv_history & h) {
        const uint64_t n = h.n;
        io.write(&n, sizeof(n));

        // the rest of the memory stays: the mark tells whether it is still the same
        if (flags & LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY) {
            const uint64_t mark = hwkv_history_mark(&h, n);
            io.write(&mark, sizeof(mark));
            return;
        }

        const uint64_t n_exact = h.n_exact;
        io.write(&n_exact, sizeof(n_exact));
        if (n > 0) { // else there are no items, not even an address
            io.write(h.items, n*sizeof(*h.items));
        }
    });
}

void llama_kv_headwise::read_histories(llama_io_read_i & io, llama_seq_id seq_id, llama_state_seq_flags flags) {
    for_sequences(seq_id, [&](hwkv_history & h) {
        uint64_t n = 0;
        io.read(&n, sizeof(n));

        if (flags & LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY) {
            uint64_t mark = 0;
            io.read(&mark, sizeof(mark));
            if (n > h.n || mark != hwkv_history_mark(&h, n)) {
                throw std::runtime_error("the state belongs to other tokens than the sequence");
            }
            return;
        }

        hwkv_history_free(&h);

        uint64_t n_exact = 0;
        io.read(&n_exact, sizeof(n_exact));
        if (n > owner->get_size() || !hwkv_history_reserve(&h, n)) {
            throw std::runtime_error(format("found a state of %llu tokens, expected at most %u", (unsigned long long) n, owner->get_size()));
        }
        if (n > 0) {
            io.read(h.items, n*sizeof(*h.items));
        }
        h.n       = n;
        h.n_exact = n_exact;
        if (!hwkv_history_is_valid(&h)) {
            hwkv_history_free(&h);
            throw std::runtime_error("the state's tokens are damaged");
        }
    });
}
