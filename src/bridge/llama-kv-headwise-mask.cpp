// What a ubatch finds in the cells, and the masks that follow from it.

#include "llama-kv-headwise-input.h"

#include "llama-batch.h"
#include "llama-cparams.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <system_error>
#include <thread>

#ifdef __SSE2__
#include <emmintrin.h>
#endif

// one more column; positions that go on where the last run ends make it longer
template <typename R>
static void add_col(std::vector<R> & runs, uint32_t col, llama_pos pos) {
    if (!runs.empty()) {
        auto & last = runs.back();
        if (last.col + last.count == col && last.pos + (llama_pos) last.count == pos) {
            last.count++;
            return;
        }
    }
    runs.push_back({ col, 1, pos });
}

// 2D place of a token in an image
static llama_kv_cell_ext place_of(const llama_ubatch & ubatch, uint32_t i) {
    llama_kv_cell_ext res;
    res.x = ubatch.pos[i + ubatch.n_tokens*2];
    res.y = ubatch.pos[i + ubatch.n_tokens];
    return res;
}

static bool has_seq(const llama_ubatch & ubatch, uint32_t i, llama_seq_id seq_id) {
    const auto * ids = ubatch.seq_id[i];
    return std::find(ids, ids + ubatch.n_seq_id[i], seq_id) != ids + ubatch.n_seq_id[i];
}

// Text has a position for each token: then no place decides.
template <typename C>
static void drop_distinct(std::vector<C> & cols) {
    std::sort(cols.begin(), cols.end(), [](const C & a, const C & b) { return a.pos < b.pos; });
    if (std::adjacent_find(cols.begin(), cols.end(), [](const C & a, const C & b) { return a.pos == b.pos; }) == cols.end()) {
        cols.clear();
    }
}

void llama_kv_headwise::look(cells & c, const llama_ubatch & ubatch) const {
    c.n_kv = c.kv->get_n_kv(c.sinfo);

    const bool alone = c.kv->get_n_seq_max() == 1; // then a cell that holds something is its

    c.runs.resize(ubatch.n_seqs_unq);
    c.near.resize(ubatch.n_seqs_unq);
    for (uint32_t u = 0; u < ubatch.n_seqs_unq; ++u) {
        const llama_seq_id seq_id = ubatch.seq_id_unq[u];
        const auto & cells = c.kv->v_cells[c.kv->seq_to_stream[seq_id]];

        auto & runs = c.runs[u];
        runs.clear();
        for (uint32_t j = 0; j < c.n_kv; ++j) {
            if (!cells.is_empty(j) && (alone || cells.seq_has(j, seq_id))) {
                add_col(runs, j, cells.pos_get(j));
            }
        }

        c.near[u].clear();
        if (ubatch.is_pos_2d()) {
            look_near(c, ubatch, u);
        }
        if (c.staged) {
            look_beside(c, ubatch, u);
        }
        drop_distinct(c.near[u]);
    }
}

// the cells at positions of the ubatch: in order, so that none but those are looked at
void llama_kv_headwise::look_near(cells & c, const llama_ubatch & ubatch, uint32_t u) const {
    const llama_seq_id seq_id = ubatch.seq_id_unq[u];
    const auto & cells = c.kv->v_cells[c.kv->seq_to_stream[seq_id]];

    const auto [first, last] = std::minmax_element(ubatch.pos, ubatch.pos + ubatch.n_tokens);

    const auto & held = cells.seq_pos_get(seq_id);
    for (auto it = held.lower_bound({ *first, 0 }); it != held.end() && it->first <= *last; ++it) {
        if (it->second < c.n_kv) {
            c.near[u].push_back({ it->second, it->first, cells.ext_get(it->second) });
        }
    }
}

// the tokens of the same stream stand beside the ring
void llama_kv_headwise::look_beside(cells & c, const llama_ubatch & ubatch, uint32_t u) const {
    const llama_seq_id seq_id = ubatch.seq_id_unq[u];

    const uint32_t n_strm = c.sinfo.n_stream();
    const uint32_t n_row  = ubatch.n_tokens/n_strm;
    const uint32_t i0     = n_strm == 1 ? 0 : u*n_row;

    for (uint32_t k = 0; k < n_row; ++k) {
        if (has_seq(ubatch, i0 + k, seq_id)) {
            add_col(c.runs[u], c.n_kv + k, ubatch.pos[i0 + k]);
            if (ubatch.is_pos_2d()) {
                c.near[u].push_back({ c.n_kv + k, ubatch.pos[i0 + k], place_of(ubatch, i0 + k) });
            }
        }
    }
}

//
// masks
//

bool llama_kv_headwise::is_causal(const llama_cparams & cparams) const {
    return cparams.causal_attn || owner->hparams.non_causal_type == LLAMA_NON_CAUSAL_TYPE_SWA_ONLY;
}

namespace {

// masks from this size on don't stay in the processor's caches until they are read
constexpr size_t LARGE_MASK = 8u << 20;

// threads that fill such a mask: a few write as fast as memory takes it
constexpr uint32_t N_THREAD_MAX = 4;

// Clears memory past the caches: what is there need not be read first, which is half of the traffic.
void clear_past_caches(void * data, size_t size) {
#ifdef __SSE2__
    auto *     to   = (char *) data;
    const auto head = std::min<size_t>(-(uintptr_t) to % sizeof(__m128i), size);
    memset(to, 0, head);
    for (to += head, size -= head; size >= sizeof(__m128i); to += sizeof(__m128i), size -= sizeof(__m128i)) {
        _mm_stream_si128((__m128i *) to, _mm_setzero_si128());
    }
    memset(to, 0, size);
#else
    memset(data, 0, size);
#endif
}

// other threads see what went past the caches only after this
void finish_clearing() {
#ifdef __SSE2__
    _mm_sfence();
#endif
}

// writes a row from left to right, every column once; what is kept is zero
template <typename T>
class row_writer {
public:
    row_writer(T * data, T drop, bool large) : data(data), drop(drop), clear(large ? clear_past_caches : clear_here) {}

    // keeps the columns of a run whose positions are in [p0, p1)
    template <typename R>
    void keep_range(const R & run, int64_t p0, int64_t p1) {
        const int64_t from = std::max<int64_t>(p0 - run.pos, 0) + run.col;
        const int64_t to   = std::min<int64_t>(p1 - run.pos, run.count) + run.col;
        if (to > std::max<int64_t>(from, done)) {
            finish(from);
            clear(data + done, (to - done)*sizeof(T));
            done = to;
        }
    }

    void finish(int64_t n_col) {
        if (n_col > done) {
            std::fill(data + done, data + n_col, drop);
            done = n_col;
        }
    }

private:
    static void clear_here(void * data, size_t size) {
        memset(data, 0, size);
    }

    T     * data;
    const T drop;
    void (* clear)(void *, size_t);
    int64_t done = 0;
};

} // namespace

template <typename T> static T dropped();
template <> float       dropped() { return -INFINITY; }
template <> ggml_fp16_t dropped() { return ggml_fp32_to_fp16(-INFINITY); }

template <typename T>
void llm_graph_input_headwise::fill_rows(const llama_kv_headwise::cells & c, ggml_tensor * dst, const llama_ubatch & ubatch, uint32_t i0, uint32_t i1) const {
    const int64_t n_col = dst->ne[0];
    const bool    is_2d = ubatch.is_pos_2d();
    const bool    large = ggml_nbytes(dst) >= LARGE_MASK;
    const T       drop  = dropped<T>();

    for (uint32_t i = i0; i < i1; ++i) {
        const llama_pos p1 = ubatch.pos[i];
        const auto      u  = ubatch.seq_idx[ubatch.seq_id[i][0]];

        // what it sees: the sinks, and from here to there
        const int64_t oldest = hwkv_rule_oldest(c.rule, p1);
        const int64_t end    = causal ? (int64_t) p1 + 1 : std::numeric_limits<int64_t>::max();
        const int64_t sinks  = std::min<int64_t>(c.rule.sinks, std::min(oldest, end));

        T * data = (T *) dst->data + i*n_col;

        row_writer<T> row(data, drop, large);
        for (const auto & run : c.runs[u]) {
            row.keep_range(run, 0, sinks);
            row.keep_range(run, oldest, end);
        }
        row.finish(n_col);

        if (is_2d && causal) {
            const auto place = place_of(ubatch, i);
            for (const auto & col : c.near[u]) {
                if (col.pos == p1 && col.ext.is_2d_gt(place.x, place.y)) {
                    data[col.col] = drop;
                }
            }
        }
    }
    finish_clearing();
}

// Calls fn(i0, i1) for parts of [0, n) side by side.
template <typename F>
static void in_parts(uint32_t n, uint32_t n_thread, F && fn) {
    std::vector<std::thread> others;
    uint32_t done = 0;
    try {
        for (uint32_t ith = 1; ith < n_thread; ++ith) {
            const uint32_t end = (uint64_t) n*ith/n_thread;
            others.emplace_back(fn, done, end);
            done = end;
        }
    } catch (const std::system_error &) {
        // no more threads: the rest is done here
    }
    fn(done, n);
    for (auto & thread : others) {
        thread.join();
    }
}

void llm_graph_input_headwise::fill_mask(const llama_kv_headwise::cells & c, ggml_tensor * dst, const llama_ubatch & ubatch) const {
    GGML_ASSERT(ggml_backend_buffer_is_host(dst->buffer));

    const uint32_t n = ggml_nbytes(dst) >= LARGE_MASK ? std::min({ n_thread, ubatch.n_tokens, N_THREAD_MAX }) : 1;

    in_parts(ubatch.n_tokens, n, [&](uint32_t i0, uint32_t i1) {
        if (dst->type == GGML_TYPE_F16) {
            fill_rows<ggml_fp16_t>(c, dst, ubatch, i0, i1);
        } else {
            fill_rows<float>(c, dst, ubatch, i0, i1);
        }
    });
}
