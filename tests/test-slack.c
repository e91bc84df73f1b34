// Room for a batch or scratch memory: small cases by hand, then all choices against the one that is taken.

#include "hwkv-slack.h"
#include "testing.h"

#include <stdbool.h>
#include <string.h>

enum { RINGS = 4 };

static struct hwkv_ring ring(uint32_t n_cells, uint32_t n_cells_slack, uint64_t cell_size, uint64_t scratch_size) {
    return (struct hwkv_ring) { 0, n_cells, n_cells_slack, cell_size, scratch_size };
}

// Slack of 256 cells in 8 layers, or the 8448 cells and a batch of 512 once.
static void test_slack__takes_the_cheaper(void) {
    struct hwkv_ring one = ring(8448, 8704, 8 * 1024, 1024);
    hwkv_slack_choose(&one, 1, 512);
    CHECK_EQ_INT(one.n_cells, 8704);

    one = ring(8448, 8704, 40 * 1024, 1024); // 40 layers: 10 MiB of slack, 8.75 MiB of scratch memory
    hwkv_slack_choose(&one, 1, 512);
    CHECK_EQ_INT(one.n_cells, 8448);

    one = ring(1024, 1280, 1024, 1024); // a fifth would be slack
    hwkv_slack_choose(&one, 1, 512);
    CHECK_EQ_INT(one.n_cells, 1024);

    one = ring(4096, 4096, 1024, 1024); // has room already
    hwkv_slack_choose(&one, 1, 512);
    CHECK_EQ_INT(one.n_cells, 4096);
    hwkv_slack_choose(NULL, 0, 512);
}

// Slack for the smaller ring alone would change nothing: the larger one's scratch memory is there.
static void test_slack__begins_with_the_largest(void) {
    struct hwkv_ring two[2] = { ring(8448, 8704, 8 * 1024, 1024), ring(33024, 33280, 200 * 1024, 1024) };
    hwkv_slack_choose(two, 2, 512);
    CHECK_EQ_INT(two[0].n_cells, 8448);
    CHECK_EQ_INT(two[1].n_cells, 33024);

    two[1].cell_size = 8 * 1024;
    hwkv_slack_choose(two, 2, 512);
    CHECK_EQ_INT(two[0].n_cells, 8704);
    CHECK_EQ_INT(two[1].n_cells, 33280);
}

// Bytes of slack and of the largest staged ring when the rings whose bits are set get slack.
static uint64_t size_of(const struct hwkv_ring * rings, uint32_t set, uint32_t n_tokens) {
    uint64_t slack   = 0;
    uint64_t scratch = 0;
    for (int ir = 0; ir < RINGS; ir++) {
        const uint64_t more = rings[ir].n_cells_slack - rings[ir].n_cells;
        if (set & (1u << ir)) {
            slack += more * rings[ir].cell_size;
        } else if (more > 0 && (rings[ir].n_cells + n_tokens) * rings[ir].scratch_size > scratch) {
            scratch = (rings[ir].n_cells + n_tokens) * rings[ir].scratch_size;
        }
    }
    return slack + scratch;
}

static bool allowed(const struct hwkv_ring * rings, uint32_t set) {
    for (int ir = 0; ir < RINGS; ir++) {
        const uint64_t more = rings[ir].n_cells_slack - rings[ir].n_cells;
        if ((set & (1u << ir)) && more * 8 > rings[ir].n_cells_slack) {
            return false;
        }
    }
    return true;
}

static uint32_t draw(uint32_t * state, uint32_t n) {
    *state = *state * 1664525u + 1013904223u;
    return (uint32_t) (((uint64_t) (*state >> 8) * n) >> 24);
}

static void test_slack__no_choice_takes_less(void) {
    uint32_t state = 3;
    int      n_mixed = 0;
    for (int n = 0; n < 3000; n++) {
        struct hwkv_ring rings[RINGS];
        for (int ir = 0; ir < RINGS; ir++) {
            const uint32_t n_cells = 256 * (1 + draw(&state, 64));
            const uint64_t scratch = 64 * (1 + draw(&state, 8));
            rings[ir] = ring(n_cells, n_cells + 256 * draw(&state, 3), scratch * (1 + draw(&state, 60)), scratch);
        }
        struct hwkv_ring chosen[RINGS];
        uint32_t set = 0;
        memcpy(chosen, rings, sizeof(rings));
        hwkv_slack_choose(chosen, RINGS, 512);
        for (int ir = 0; ir < RINGS; ir++) {
            CHECK(chosen[ir].n_cells == rings[ir].n_cells || chosen[ir].n_cells == rings[ir].n_cells_slack);
            set |= chosen[ir].n_cells != rings[ir].n_cells ? 1u << ir : 0;
        }
        CHECK(allowed(rings, set));
        n_mixed += set != 0 && size_of(rings, set, 512) > 0;
        for (uint32_t other = 0; other < 1u << RINGS; other++) {
            CHECK(!allowed(rings, other) || size_of(rings, set, 512) <= size_of(rings, other, 512));
        }
    }
    CHECK(n_mixed > 100);
}

int main(void) {
    test_slack__takes_the_cheaper();
    test_slack__begins_with_the_largest();
    test_slack__no_choice_takes_less();
    return testing_result();
}
