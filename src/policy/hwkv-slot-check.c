// Does everything in a slot fit together?

#include "hwkv-impl.h"
#include "hwkv-slot-file.h"

#include <string.h>

struct memory {
    const uint8_t * p;
    uint64_t        left;
};

static bool read_memory(void * dst, uint64_t size, void * arg) {
    struct memory * m = arg;
    if (size > m->left) {
        return false;
    }
    if (dst && size > 0) {
        memcpy(dst, m->p, (size_t) size);
    }
    m->p    += size;
    m->left -= size;
    return true;
}

// the bytes of blocks, one after the other
struct chain {
    const struct hwkv_slot * slot;
    const uint32_t * blocks;
    uint32_t         n_block;
    uint32_t         i;
    uint32_t         at; // in block i
};

static bool read_chain(void * dst, uint64_t size, void * arg) {
    struct chain * c = arg;
    uint8_t      * p = dst;
    while (size > 0 && c->i < c->n_block) {
        const struct hwkv_slot_block * block = &c->slot->blocks[c->blocks[c->i]];
        const uint32_t k = size < block->size - c->at ? (uint32_t) size : block->size - c->at;
        if (p) {
            memcpy(p, block->data + c->at, k);
            p += k;
        }
        size  -= k;
        c->at += k;
        if (c->at == block->size) {
            c->at = 0;
            c->i++;
        }
    }
    return size == 0;
}

bool hwkv_slot_has(const struct hwkv_slot * slot, const struct hwkv_slot_checkpoint * checkpoint) {
    for (int k = 0; k < 2; k++) {
        for (uint32_t i = 0; i < checkpoint->n_block[k]; i++) {
            if (!slot->blocks[checkpoint->blocks[k][i]].data) {
                return false;
            }
        }
    }
    return true;
}

static int check_checkpoint(const struct hwkv_slot * slot, const struct hwkv_slot_expect * expect, const struct hwkv_slot_checkpoint * c,
                            struct hwkv_state_want want, struct hwkv_history * history, struct hwkv_error * err) {
    want.checkpoint = true;
    want.n_tokens   = (uint32_t) c->n_tokens;
    want.n_pos      = c->pos_max + 1;
    for (int k = 0; k < 2; k++) {
        struct chain chain = { slot, c->blocks[k], c->n_block[k], 0, 0 };
        want.is_draft = k == 1;
        if (!expect->shape[k]) {
            if (c->n_block[k] > 0) {
                return hwkv_fail(err, HWKV_ERR_VALUE, NULL, "found a draft's checkpoint, expected none");
            }
            continue;
        }
        const int status = hwkv_state_check(expect->shape[k], &want, history, read_chain, &chain, err);
        if (status) {
            return status;
        }
    }
    return 0;
}

static int check_checkpoints(const struct hwkv_slot * slot, const struct hwkv_slot_expect * expect, struct hwkv_state_want want,
                             struct hwkv_history * history, struct hwkv_error * err) {
    int64_t before = 0;
    for (uint32_t i = 0; i < slot->n_checkpoint; i++) {
        const struct hwkv_slot_checkpoint * c = &slot->checkpoints[i];
        if (c->n_tokens <= before || c->n_tokens > (int64_t) want.n_tokens) {
            return hwkv_fail(err, HWKV_ERR_VALUE, NULL, "found a checkpoint at %lld tokens after one at %lld, expected rising numbers up to %u",
                             (long long) c->n_tokens, (long long) before, want.n_tokens);
        }
        // its last position is that of its last token
        if (c->pos_min < 0 || c->pos_max != history->items[c->n_tokens - 1].pos) {
            return hwkv_fail(err, HWKV_ERR_VALUE, NULL, "found a checkpoint at %lld tokens with positions from %d to %d", (long long) c->n_tokens,
                             c->pos_min, c->pos_max);
        }
        const int status = hwkv_slot_has(slot, c) ? check_checkpoint(slot, expect, c, want, history, err) : 0;
        if (status) {
            return status;
        }
        before = c->n_tokens;
    }
    return 0;
}

int hwkv_slot_check(const struct hwkv_slot * slot, const struct hwkv_slot_expect * expect, const int32_t * tokens, uint32_t n_tokens, int32_t n_pos,
                    struct hwkv_error * err) {
    if (n_tokens > expect->n_ctx || n_pos < 0 || (uint32_t) n_pos > n_tokens) {
        return hwkv_fail(err, HWKV_ERR_RANGE, NULL, "found %u tokens, expected at most the %u that a slot of this server holds", n_tokens, expect->n_ctx);
    }
    struct hwkv_history    history = { 0 };
    struct hwkv_state_want want    = { .tokens = tokens, .n_tokens = n_tokens, .n_pos = n_pos };
    int status = 0;
    for (int i = 0; i < 2 && status == 0; i++) {
        struct memory memory = { slot->state[i], slot->state_size[i] };
        want.is_draft = i == 1;
        if (expect->shape[i]) {
            status = hwkv_state_check(expect->shape[i], &want, &history, read_memory, &memory, err);
        } else if (memory.left > 0) {
            status = hwkv_fail(err, HWKV_ERR_VALUE, NULL, "found a draft's state, expected none");
        }
    }
    if (status == 0) {
        status = check_checkpoints(slot, expect, want, &history, err);
    }
    hwkv_history_free(&history);
    return status;
}
