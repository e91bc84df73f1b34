// How llama.cpp writes the state of a sequence, told in numbers: what its state_write functions do, part by part.

#include "llama-kv-headwise.h"

#include "llama-kv-cache-iswa.h"
#include "llama-memory-hybrid-iswa.h"
#include "llama-memory-hybrid.h"
#include "llama-memory-recurrent.h"

#include <cstring>
#include <new>
#include <stdexcept>

template <typename T>
static T & need(T * p) {
    if (!p) {
        throw std::bad_alloc();
    }
    return *p;
}

// numbers as they are written, one after the other
template <size_t N>
static void put(uint8_t (&head)[N], uint32_t & size, const void * data, size_t n) {
    GGML_ASSERT(size + n <= N);
    memcpy(head + size, data, n);
    size += n;
}

template <size_t N, typename T>
static void put(uint8_t (&head)[N], uint32_t & size, T x) {
    put(head, size, &x, sizeof(x));
}

static void add_rows(hwkv_state_part & part, const ggml_tensor * t, uint64_t row_size) {
    auto & rows = need(hwkv_state_add_rows(&part));
    put<16, int32_t >(rows.head, rows.head_size, t->type);
    put<16, uint64_t>(rows.head, rows.head_size, row_size);
    rows.cell_size = row_size;
}

void llama_kv_headwise::describe_rows(const llama_kv_cache & kv, hwkv_state_part & part) {
    put<80, uint32_t>(part.head, part.head_size, kv.v_trans ? 1 : 0);
    put<80, uint32_t>(part.head, part.head_size, kv.layers.size());

    for (const auto & layer : kv.layers) {
        add_rows(part, layer.k_stream[0], ggml_row_size(layer.k_stream[0]->type, kv.hparams.n_embd_k_gqa(layer.il)));
    }
    for (const auto & layer : kv.layers) {
        const auto * v = layer.v_stream[0];
        if (!v) {
            continue;
        }

        const uint32_t n_embd = kv.hparams.n_embd_v_gqa(layer.il);
        if (!kv.v_trans) {
            add_rows(part, v, ggml_row_size(v->type, n_embd));
            continue;
        }

        auto & rows = need(hwkv_state_add_rows(&part));
        put<16, int32_t >(rows.head, rows.head_size, v->type);
        put<16, uint32_t>(rows.head, rows.head_size, ggml_type_size(v->type));
        put<16, uint32_t>(rows.head, rows.head_size, n_embd);
        rows.cell_size = ggml_type_size(v->type)*n_embd;
    }
}

void llama_kv_headwise::describe_cache(const llama_kv_cache & kv, hwkv_state_kind kind, bool in_checkpoint, hwkv_rule rule, hwkv_state_shape & shape) {
    auto & part = need(hwkv_state_add_part(&shape));

    part.kind          = kind;
    part.in_checkpoint = in_checkpoint;
    part.n_stream      = kv.n_stream;
    part.n_cells       = kv.get_size();
    part.ext_size      = kv.has_cell_ext() ? sizeof(llama_kv_cell_ext) : 0;
    part.rule          = rule;

    describe_rows(kv, part);
}

static const hwkv_rule FULL = hwkv_rule_of(HWKV_FULL, 0);

void llama_kv_headwise::describe_attn(const llama_kv_cache & kv, bool in_checkpoint, hwkv_state_shape & shape) {
    if (kv.other) {
        return; // another context's cells
    }

    const auto * hw = kv.get_headwise();

    describe_cache(kv, HWKV_STATE_ALL, in_checkpoint && !hw, FULL, shape);
    if (hw) {
        hw->describe_groups(shape.n_part - 1, shape);
    }
}

// after the owner's positions, which are the part i_owner
void llama_kv_headwise::describe_groups(uint32_t i_owner, hwkv_state_shape & shape) const {
    auto & tokens = need(hwkv_state_add_part(&shape));
    tokens.kind          = HWKV_STATE_TOKENS;
    tokens.in_checkpoint = true;
    put<80, uint32_t>(tokens.head, tokens.head_size, LLAMA_KV_HEADWISE_MAGIC);
    put(tokens.head, tokens.head_size, setup.state_id.data(), setup.state_id.size());

    for (const auto & c : windows) {
        uint32_t i_cells = i_owner;
        if (c->is_ring()) {
            i_cells = shape.n_part;
            describe_cache(*c->kv, HWKV_STATE_RING, true, c->rule, shape);
        }
        for (const auto * g : c->groups) {
            if (g->kv.get() != c->kv) {
                auto & part = need(hwkv_state_add_part(&shape));
                part.kind          = HWKV_STATE_ROWS;
                part.in_checkpoint = c->is_ring();
                part.i_cells       = i_cells;
                describe_rows(*g->kv, part);
            }
        }
    }
}

static void describe_recurrent(const llama_memory_recurrent & mem, const llama_hparams & hparams, hwkv_state_shape & shape) {
    auto & part = need(hwkv_state_add_part(&shape));

    part.kind          = HWKV_STATE_LAST;
    part.in_checkpoint = true;
    part.n_cells       = mem.size;

    put<80, uint32_t>(part.head, part.head_size, 0); // not transposed
    put<80, uint32_t>(part.head, part.head_size, hparams.n_layer());

    for (uint32_t il = 0; il < hparams.n_layer(); ++il) {
        if (const auto * r = mem.r_l[il]) {
            add_rows(part, r, ggml_row_size(r->type, hparams.n_embd_r()));

            if (const auto * p = mem.p_l[il]) {
                auto & rows = need(hwkv_state_add_rows(&part));
                rows.cell_size = ggml_row_size(p->type, hparams.ple_conv_state());
                put<16, uint64_t>(rows.head, rows.head_size, rows.cell_size);
            }
        }
    }
    for (uint32_t il = 0; il < hparams.n_layer(); ++il) {
        if (const auto * s = mem.s_l[il]) {
            add_rows(part, s, ggml_row_size(s->type, hparams.n_embd_s()));
        }
    }
}

void llama_kv_headwise::describe_state(llama_memory_i * mem, const llama_hparams & hparams, hwkv_state_shape & shape) {
    const auto add_iswa = [&](const llama_kv_cache_iswa & iswa) {
        describe_attn(*iswa.get_base(), false, shape);
        if (!iswa.get_swa()->other) {
            describe_cache(*iswa.get_swa(), HWKV_STATE_NEWEST, true, FULL, shape);
        }
    };

    if (auto * kv = dynamic_cast<llama_kv_cache *>(mem)) {
        describe_attn(*kv, true, shape);
    } else if (auto * iswa = dynamic_cast<llama_kv_cache_iswa *>(mem)) {
        add_iswa(*iswa);
    } else if (auto * hybrid = dynamic_cast<llama_memory_hybrid *>(mem)) {
        describe_attn(*hybrid->get_mem_attn(), false, shape);
        describe_recurrent(*hybrid->get_mem_recr(), hparams, shape);
    } else if (auto * hybrid_iswa = dynamic_cast<llama_memory_hybrid_iswa *>(mem)) {
        add_iswa(*hybrid_iswa->get_mem_attn());
        describe_recurrent(*hybrid_iswa->get_mem_recr(), hparams, shape);
    } else if (auto * recr = dynamic_cast<llama_memory_recurrent *>(mem)) {
        describe_recurrent(*recr, hparams, shape);
    } else {
        throw std::runtime_error("the states of this kind of memory are not known");
    }
}
