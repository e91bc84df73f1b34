// Fuzz target for slot files: bytes of a good file are altered, its sizes and its hash made right again, as somebody who means harm
// would do. Whatever comes, it is refused with a reason or fits together.

#include "fuzz.h"
#include "slot-fixture.h"

#include <stdio.h>

const char * const fuzz_name   = "fuzz-slot-file";
const char * const fuzz_inputs = "slot files";
uint64_t           fuzz_n_good;

static struct slot_fixture g_slot;

static void fail(const char * what, const struct hwkv_error * err) {
    fprintf(stderr, "fuzz-slot-file: %s: %s\n", what, err->msg);
    abort();
}

//
// the target
//

// Tokens of the server's own format may be anything; here they are numbers.
static int check(const struct hwkv_slot * slot, struct hwkv_error * err) {
    static int32_t tokens[FUZZ_SIZE_MAX / 4];
    const uint32_t n = (uint32_t) (slot->tokens_size / 4);
    if (slot->tokens_size > 0) {
        memcpy(tokens, slot->tokens, 4 * (size_t) n);
    }
    return hwkv_slot_check(slot, &g_slot.expect, tokens, n, (int32_t) n, err);
}

// what a server relies on once a file was accepted
static void check_good(const struct hwkv_slot * slot, const struct hwkv_error * err) {
    const uint64_t n_tokens = slot->tokens_size / 4;
    int64_t before = 0;
    for (uint32_t i = 0; i < slot->n_checkpoint; i++) {
        const struct hwkv_slot_checkpoint * c = &slot->checkpoints[i];
        if (c->n_tokens <= before || (uint64_t) c->n_tokens > n_tokens || c->pos_max != c->n_tokens - 1) {
            fail("checkpoints are out of order", err);
        }
        before = c->n_tokens;
        for (int k = 0; k < 2; k++) {
            for (uint32_t j = 0; j < c->n_block[k]; j++) {
                if (c->blocks[k][j] >= slot->n_block) {
                    fail("a block is not there", err);
                }
            }
        }
    }
    if (slot->state_size[0] > hwkv_state_size_max(&g_slot.shapes[0], false, n_tokens)) {
        fail("a state is larger than it can be", err);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t * data, size_t size) {
    static struct slot_bytes file;
    if (!g_slot.shapes[0].parts) {
        slot_fixture_init(&g_slot);
        slot_make(&g_slot, 0, 0, true);
    }
    file.size = file.at = 0;
    slot_put(&file, data, size);
    slot_seal(&file);

    struct hwkv_error       err    = { 0 };
    struct hwkv_slot        slot   = { 0 };
    struct slot_taken       taken  = { .n_max = size % 4 == 0 ? 3 : 512 }; // sometimes there is little room
    struct hwkv_slot_source source = { slot_read_bytes, &file, file.size, slot_take, &taken };
    int status = hwkv_slot_read(&slot, &source, &g_slot.expect, &err);
    if (status == 0) {
        status = check(&slot, &err);
    }
    if (status == 0) {
        fuzz_n_good++;
        check_good(&slot, &err);
    } else if (status != err.code || err.msg[0] == '\0') {
        fail("an error without a reason", &err);
    }
    hwkv_slot_free(&slot);
    slot_taken_free(&taken);
    return 0;
}

//
// inputs
//

bool fuzz_begin(int argc, char ** argv) {
    (void) argv;
    slot_fixture_init(&g_slot);
    return argc == 0;
}

size_t fuzz_n_seeds(void) {
    return SLOT_N_CTX;
}

void fuzz_end(void) {
    slot_fixture_free(&g_slot);
}

static uint64_t odd_number(void) {
    static const uint64_t odd[] = { 0, 1, 2, 7, 8, 16, 47, 48, 49, 255, 1024, 16384, 16385, 65535, 0x7fffffff, 0x80000000, 0xffffffff, 1ull << 32, 1ull << 40,
                                    UINT64_MAX / 16, UINT64_MAX };
    return fuzz_random() % 4 ? odd[fuzz_below(sizeof(odd) / sizeof(odd[0]))] : fuzz_random();
}

// before the file is written: what stands in it is well formed and does not fit
static void alter_slot(struct slot_fixture * f) {
    struct hwkv_slot * s = &f->slot;
    struct hwkv_slot_checkpoint * c = s->n_checkpoint > 0 ? &s->checkpoints[fuzz_below(s->n_checkpoint)] : NULL;
    switch (fuzz_below(9)) {
        case 0: s->tokens_size = 4 * fuzz_below(SLOT_N_CTX + 1); break;
        case 1: s->state_size[0] = fuzz_below(s->state_size[0] + 8); break;
        case 2: s->n_checkpoint = (uint32_t) fuzz_below(s->n_checkpoint + 1); break;
        case 3: f->tokens[fuzz_below(f->n_tokens)] ^= 1 << fuzz_below(8); break;
        case 4: if (c) { c->n_tokens = (int64_t) odd_number(); } break;
        case 5: if (c) { c->pos_max = (int32_t) fuzz_below(SLOT_N_CTX); c->n_tokens = c->pos_max + 1; } break;
        case 6: if (c) { c->n_block[0] = (uint32_t) fuzz_below(c->n_block[0] + 1); } break;
        case 7: if (c && c->n_block[0] > 0) { c->blocks[0][fuzz_below(c->n_block[0])] = (uint32_t) fuzz_below(s->n_block + 1); } break;
        default: if (c) { struct hwkv_slot_checkpoint * d = &s->checkpoints[fuzz_below(s->n_checkpoint)], t = *c; *c = *d; *d = t; } break;
    }
}

// after it was written: any bytes
static void alter_bytes(struct fuzz_input * in) {
    if (in->size < 32) {
        return;
    }
    const size_t   at = fuzz_below(in->size - 8);
    const uint64_t x  = odd_number();
    switch (fuzz_below(6)) {
        case 0: in->data[at] ^= (uint8_t) (1u << fuzz_below(8)); break;
        case 1: in->data[at] = (uint8_t) x; break;
        case 2: memcpy(in->data + at, &x, 4); break;
        case 3: memcpy(in->data + at, &x, 8); break;
        case 4: in->size = 32 + fuzz_below(in->size - 32); break;
        default: { // drop a piece
            const size_t n = fuzz_below(in->size - at < 64 ? in->size - at : 64);
            memmove(in->data + at, in->data + at + n, in->size - at - n);
            in->size -= n;
            break;
        }
    }
}

void fuzz_make(struct fuzz_input * in, uint64_t number) {
    static struct slot_bytes file;
    const uint32_t n = number < SLOT_N_CTX ? (uint32_t) number : (uint32_t) fuzz_below(SLOT_N_CTX);
    slot_make(&g_slot, n, fuzz_random() % 4 ? n : (uint32_t) fuzz_below(n + 1), true);
    const size_t n_slot = number < SLOT_N_CTX ? 0 : fuzz_below(3);
    for (size_t i = 0; i < n_slot; i++) {
        alter_slot(&g_slot);
    }
    file.size = 0;
    hwkv_slot_write(&g_slot.slot, &g_slot.expect.id, slot_write_bytes, &file);
    memcpy(in->data, file.data, file.size);
    in->size = file.size;
    const size_t n_bytes = number < SLOT_N_CTX ? 0 : fuzz_below(n_slot > 0 ? 2 : 5);
    for (size_t i = 0; i < n_bytes; i++) {
        alter_bytes(in);
    }
}
