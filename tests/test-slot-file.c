// Slot files: what is written comes back, and whatever somebody puts into one, each part is held against all others.

#include "slot-fixture.h"
#include "testing.h"

static struct slot_fixture f;
static struct slot_bytes   g_file;
static struct hwkv_error   g_err;

// Reads and checks the file; blocks has room for n_block of them.
static int run(uint32_t n_block) {
    struct slot_taken taken  = { .n_max = n_block };
    struct hwkv_slot  slot   = { 0 };
    struct hwkv_slot_source source = { slot_read_bytes, &g_file, g_file.size, slot_take, &taken };
    g_file.at = 0;
    memset(&g_err, 0, sizeof(g_err));
    int status = hwkv_slot_read(&slot, &source, &f.expect, &g_err);
    if (status == 0) {
        CHECK_EQ_INT(slot.tokens_size % sizeof(int32_t), 0);
        static int32_t tokens[65536 / 4];
        if (slot.tokens_size > 0) {
            memcpy(tokens, slot.tokens, slot.tokens_size);
        }
        const uint32_t n = (uint32_t) slot.tokens_size / 4;
        status = hwkv_slot_check(&slot, &f.expect, tokens, n, (int32_t) n, &g_err);
    }
    hwkv_slot_free(&slot);
    slot_taken_free(&taken);
    return status;
}

static int write_and_run(void) {
    g_file.size = 0;
    const uint64_t size = hwkv_slot_write(&f.slot, &f.expect.id, slot_write_bytes, &g_file);
    CHECK_EQ_INT(size, g_file.size);
    CHECK_EQ_INT(size, hwkv_slot_write(&f.slot, &f.expect.id, NULL, NULL));
    return run(512);
}

// the file as it is now is refused for this reason
static void refused(int status, const char * reason) {
    CHECK(status != 0);
    const bool found = strstr(g_err.msg, reason) != NULL;
    CHECK(found);
    if (!found) {
        fprintf(stderr, "    found \"%s\", expected \"%s\"\n", g_err.msg, reason);
    }
}

static void test_what_is_written_comes_back(void) {
    for (uint32_t n = 0; n <= SLOT_N_CTX; n++) {
        for (int draft = 0; draft < 2; draft++) {
            slot_make(&f, n, n, draft);
            CHECK_EQ_INT(write_and_run(), 0);
            slot_make(&f, n, n / 2, draft);
            CHECK_EQ_INT(write_and_run(), 0);
        }
    }
}

static void test_the_head(void) {
    slot_make(&f, 20, 20, false);
    CHECK_EQ_INT(write_and_run(), 0);
    const struct slot_bytes whole = g_file;
    for (size_t n = 0; n < whole.size; n++) {
        g_file.size = n;
        refused(run(512), n < 8 ? "no slot file" : "truncated");
    }
    for (size_t i = 0; i < whole.size; i++) {
        g_file = whole;
        g_file.data[i] ^= 1;
        refused(run(512), i < 8 ? "no slot file" : i < 16 ? "version" : i < 24 ? "found" : "checksum");
    }
    g_file = whole;
    g_file.data[g_file.size++] = 0;
    refused(run(512), "expected");

    f.expect.id.text[HWKV_SLOT_MODEL] = "other";
    g_file = whole;
    refused(run(512), "another model");
    f.expect.id.text[HWKV_SLOT_MODEL] = "model";
    f.expect.n_ctx = 3;
    refused(run(512), "found about 20 tokens, expected at most the 3 that a slot of this server holds");
    f.expect.n_ctx = 12; // within the room for the numbers before the tokens
    refused(run(512), "expected at most");
}

static void test_checkpoints_are_held_against_the_tokens(void) {
    slot_make(&f, 40, 40, false);
    f.checkpoints[1].n_tokens = 15;
    refused(write_and_run(), "found a checkpoint at 15 tokens with positions");
    slot_make(&f, 40, 40, false);
    f.checkpoints[1].n_tokens = 15;
    f.checkpoints[1].pos_max  = 14;
    refused(write_and_run(), "other tokens");
    slot_make(&f, 40, 40, false);
    f.checkpoints[1].n_tokens = 8;
    refused(write_and_run(), "rising");
    slot_make(&f, 40, 40, false);
    f.checkpoints[0].n_tokens = 0;
    refused(write_and_run(), "rising");
    slot_make(&f, 40, 40, false);
    f.checkpoints[4].n_tokens = 41;
    refused(write_and_run(), "rising");
    slot_make(&f, 40, 40, false);
    f.checkpoints[4].n_tokens = INT64_MAX;
    refused(write_and_run(), "rising");
    slot_make(&f, 40, 40, false);
    f.checkpoints[0].pos_min = -1;
    refused(write_and_run(), "positions");

    // reversed
    slot_make(&f, 40, 40, false);
    for (int i = 0; i < 2; i++) {
        const struct hwkv_slot_checkpoint c = f.checkpoints[i];
        f.checkpoints[i]     = f.checkpoints[4 - i];
        f.checkpoints[4 - i] = c;
    }
    refused(write_and_run(), "rising");

    // the blocks of another one
    slot_make(&f, 40, 40, false);
    f.checkpoints[1].blocks[0]  = f.checkpoints[2].blocks[0];
    f.checkpoints[1].n_block[0] = f.checkpoints[2].n_block[0];
    refused(write_and_run(), "other tokens");
    slot_make(&f, 40, 40, false);
    f.checkpoints[1].n_block[0] = 0;
    refused(write_and_run(), "ends too early");
    slot_make(&f, 40, 40, false);
    f.lists[1][0][f.checkpoints[1].n_block[0]++] = 0;
    refused(write_and_run(), "more bytes");
    slot_make(&f, 40, 40, false);
    f.lists[1][0][0] = f.slot.n_block;
    refused(write_and_run(), "expected one of");
    slot_make(&f, 40, 40, true);
    f.expect.shape[1] = NULL;
    refused(write_and_run(), "draft");
}

static void test_no_room_for_blocks(void) {
    slot_make(&f, 40, 40, false);
    CHECK_EQ_INT(write_and_run(), 0);
    for (uint32_t n = 0; n < f.slot.n_block; n++) {
        CHECK_EQ_INT(run(n), 0);
    }
}

// offset in a state of the first cell of a part's second stream
static size_t cell_at(uint32_t i_part) {
    struct slot_bytes b = { .size = 0 };
    struct hwkv_state_shape before = { f.shapes[0].parts, i_part };
    slot_put_state(&b, &before, &f.history, f.n_tokens, false);
    return b.size + (f.shapes[0].parts[i_part].n_stream > 0 ? 12 : 4);
}

static void poke(size_t at, uint32_t x) {
    memcpy(f.states[0].data + at, &x, sizeof(x));
}

static void test_states_are_held_against_the_tokens(void) {
    // all, first ring, sliding window, recurrent: cells begin with the newest position
    static const uint32_t parts[] = { SLOT_ALL, SLOT_RING, SLOT_NEWEST, SLOT_LAST };
    for (size_t i = 0; i < 4; i++) {
        static const uint32_t positions[] = { 40, 0xffffffffu, 0x7fffffffu, 1000, 38 };
        for (size_t k = 0; k < 5; k++) {
            slot_make(&f, 40, 40, false);
            poke(cell_at(parts[i]), positions[k]);
            refused(write_and_run(), "position");
        }
        slot_make(&f, 40, 40, false);
        poke(cell_at(parts[i]) + 4, 2); // sequences
        refused(write_and_run(), "more than one sequence");
        slot_make(&f, 40, 40, false);
        poke(cell_at(parts[i]) - 4, 1u << 30); // cells
        refused(write_and_run(), "found 1073741824 cells");
        slot_make(&f, 40, 40, false);
        poke(cell_at(parts[i]) - 4, 0);
        CHECK(write_and_run() != 0);
        if (f.shapes[0].parts[parts[i]].n_stream > 0) {
            slot_make(&f, 40, 40, false);
            poke(cell_at(parts[i]) - 8, 1); // in the first stream too
            CHECK(write_and_run() != 0);
            slot_make(&f, 40, 40, false);
            poke(cell_at(parts[i]) - 12, 3); // streams
            refused(write_and_run(), "another kind of cache");
        }
    }

    // further stores over the cells of another part
    for (uint32_t i = 0; i < f.shapes[0].n_part; i++) {
        if (f.shapes[0].parts[i].kind == HWKV_STATE_ROWS) {
            slot_make(&f, 40, 40, false);
            poke(cell_at(i) - 4, 7); // rows have no cells: this is the first thing that is there
            refused(write_and_run(), "another kind of cache");
        }
    }

    // no cells at all
    slot_make(&f, 40, 40, false);
    f.states[0].size = 0;
    struct hwkv_history none = { 0 };
    slot_put_state(&f.states[0], &f.shapes[0], &none, 0, false);
    f.slot.state_size[0] = f.states[0].size;
    refused(write_and_run(), "positions of its tokens");

    // the last cell of the second ring is a sink: a ring without it is none, unless things were moved
    for (uint32_t n_exact = 0; n_exact <= 40; n_exact += 40) {
        slot_make(&f, 40, n_exact, false);
        const struct hwkv_state_part * ring = &f.shapes[0].parts[SLOT_RING_2];
        const size_t last = cell_at(SLOT_RING_2) + 6 * (12 + ring->ext_size); // 5 recent ones and two sinks
        uint32_t pos = 99;
        memcpy(&pos, f.states[0].data + last, sizeof(pos));
        CHECK_EQ_INT(pos, 0);
        poke(last, 20);
        if (n_exact == 40) {
            refused(write_and_run(), "positions of its tokens");
        } else {
            CHECK_EQ_INT(write_and_run(), 0);
        }
    }

    // another token, in the list or in the state
    slot_make(&f, 40, 40, false);
    f.tokens[11]++;
    refused(write_and_run(), "other tokens");
    slot_make(&f, 40, 40, false);
    f.slot.tokens_size -= 4;
    refused(write_and_run(), "position");
    slot_make(&f, 40, 40, false);
    f.slot.tokens_size = 0;
    CHECK(write_and_run() != 0);
    slot_make(&f, 40, 40, false);
    f.slot.state_size[0] -= 1;
    refused(write_and_run(), "ends too early");
    slot_make(&f, 40, 40, false);
    f.slot.state_size[0] += 1;
    refused(write_and_run(), "more bytes");
    slot_make(&f, 40, 40, true);
    f.slot.state_size[1] = 0;
    refused(write_and_run(), "ends too early");
}

// sizes in a file with a right hash that would need far more memory than there is
static void test_sizes_are_not_believed(void) {
    static const uint64_t sizes[] = { UINT64_MAX, UINT64_MAX / 2, 1ull << 40, 1ull << 32, 1ull << 31, 1000000, 40000 };
    slot_make(&f, 40, 40, true);
    CHECK_EQ_INT(write_and_run(), 0);
    const struct slot_bytes whole = g_file;
    for (size_t at = 24; at + 8 < whole.size; at++) {
        for (size_t k = 0; k < 7; k++) {
            g_file = whole;
            memcpy(g_file.data + at, &sizes[k], sizeof(sizes[k]));
            slot_seal(&g_file);
            run(512); // ASan limits what it may ask for
        }
    }
    CHECK(g_file.size == whole.size);
}

//
// no memory
//

static int g_left;

static void * few(size_t size) {
    return g_left-- > 0 ? malloc(size) : NULL;
}

static void test_no_memory(void) {
    slot_make(&f, 40, 40, true);
    CHECK_EQ_INT(write_and_run(), 0);
    hwkv_set_allocator(few, free);
    int n = 0;
    int status = -1;
    for (; n < 1000 && status != 0; n++) {
        g_left = n;
        status = run(512);
        CHECK(status == 0 || status == HWKV_ERR_NOMEM);
    }
    CHECK(n > 10 && n < 1000);
    g_left = 0;
    CHECK_EQ_INT(hwkv_slot_write(&f.slot, &f.expect.id, slot_write_bytes, &g_file), 0);
    hwkv_set_allocator(NULL, NULL);
}

int main(void) {
    slot_fixture_init(&f);
    test_what_is_written_comes_back();
    test_the_head();
    test_checkpoints_are_held_against_the_tokens();
    test_no_room_for_blocks();
    test_states_are_held_against_the_tokens();
    test_sizes_are_not_believed();
    test_no_memory();
    slot_fixture_free(&f);
    return testing_result();
}
