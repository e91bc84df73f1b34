// What the memory of a sequence was computed from: which prompts it may serve after everything that llama.cpp does to a sequence.

#include "hwkv-history.h"
#include "hwkv.h"
#include "testing.h"

#include <stdlib.h>

#define N 20

static int32_t g_tokens[N];

static void fill(struct hwkv_history * h, int n) {
    for (int i = 0; i < n; i++) {
        g_tokens[i] = 100 + i;
        CHECK(hwkv_history_add(h, i, (uint32_t) g_tokens[i]));
    }
}

static size_t n_same(const struct hwkv_history * h) {
    return hwkv_history_n_same(h, g_tokens, N);
}

static void test_the_same_tokens_serve(void) {
    struct hwkv_history h = { 0 };
    CHECK_EQ_INT(n_same(&h), 0);
    fill(&h, N);
    CHECK_EQ_INT(n_same(&h), N);
    CHECK_EQ_INT(hwkv_history_n_same(&h, g_tokens, 7), 7);

    int32_t other[N];
    memcpy(other, g_tokens, sizeof(other));
    other[12]++;
    CHECK_EQ_INT(hwkv_history_n_same(&h, other, N), 12);
    other[0] = -1; // an image
    CHECK_EQ_INT(hwkv_history_n_same(&h, other, N), 0);
    CHECK(hwkv_history_is_valid(&h));
    hwkv_history_free(&h);
}

static void test_the_end_can_be_taken_back(void) {
    struct hwkv_history h = { 0 };
    fill(&h, N);
    const uint64_t mark = hwkv_history_mark(&h, 15);
    hwkv_history_remove(&h, 15, INT32_MAX);
    CHECK_EQ_INT(n_same(&h), 15);
    CHECK(hwkv_history_mark(&h, 15) == mark);
    CHECK(hwkv_history_mark(&h, 16) == 0);
    CHECK(hwkv_history_mark(&h, 0) == 0);
    CHECK(hwkv_history_add(&h, 15, 115));
    CHECK(hwkv_history_add(&h, 16, 7));
    CHECK_EQ_INT(n_same(&h), 16);
    hwkv_history_free(&h);
}

// what a context shift does: some are kept, some dropped, the rest moves down
static void test_what_is_moved_serves_no_prompt(void) {
    struct hwkv_history h = { 0 };
    fill(&h, N);
    hwkv_history_remove(&h, 4, 10);
    CHECK_EQ_INT(h.n, 14);
    hwkv_history_shift(&h, 10, N, -6);
    CHECK_EQ_INT(h.n, 14);
    CHECK_EQ_INT(h.items[4].pos, 4);
    CHECK_EQ_INT(h.items[4].what, 110);

    int32_t shifted[14];
    for (int i = 0; i < 14; i++) {
        shifted[i] = (int32_t) h.items[i].what;
    }
    CHECK_EQ_INT(hwkv_history_n_same(&h, shifted, 14), 4);
    // nor does what comes after it
    CHECK(hwkv_history_add(&h, 14, 9));
    CHECK_EQ_INT(h.n_exact, 4);
    CHECK(hwkv_history_is_valid(&h));

    // the same tokens without a shift are told from these
    struct hwkv_history fresh = { 0 };
    for (int i = 0; i < 14; i++) {
        CHECK(hwkv_history_add(&fresh, i, (uint32_t) shifted[i]));
    }
    CHECK(hwkv_history_mark(&fresh, 4) == hwkv_history_mark(&h, 4));
    for (size_t n = 5; n <= 14; n++) {
        CHECK(hwkv_history_mark(&fresh, n) != hwkv_history_mark(&h, n));
    }
    // and once they are taken back, all is as before
    hwkv_history_remove(&h, 4, INT32_MAX);
    CHECK(hwkv_history_add(&h, 4, 104));
    CHECK_EQ_INT(n_same(&h), 5);
    hwkv_history_free(&h);
    hwkv_history_free(&fresh);
}

// pieces of an old prompt put where the new one has them: what n_cache_reuse does
static void test_reused_pieces_serve_no_prompt(void) {
    struct hwkv_history h = { 0 };
    fill(&h, N);
    hwkv_history_remove(&h, 2, 8);
    hwkv_history_shift(&h, 8, 12, -6);
    const int32_t wanted[] = { 100, 101, 108, 109, 110, 111 };
    CHECK_EQ_INT(hwkv_history_n_same(&h, wanted, 6), 2);
    hwkv_history_free(&h);
}

static void test_the_same_moves_have_the_same_mark(void) {
    uint64_t marks[4];
    for (int k = 0; k < 4; k++) {
        struct hwkv_history h = { 0 };
        fill(&h, N);
        if (k == 3) {
            hwkv_history_remove(&h, 5, INT32_MAX);
            for (int i = 5; i < N; i++) {
                CHECK(hwkv_history_add(&h, i, (uint32_t) (i == 6 ? 1 : 100 + i))); // one of those that are dropped is another
            }
        }
        hwkv_history_remove(&h, 4, 10);
        hwkv_history_shift(&h, 10, N, k == 2 ? -5 : -6);
        marks[k] = hwkv_history_mark(&h, 14);
        hwkv_history_free(&h);
    }
    CHECK(marks[0] == marks[1]);
    CHECK(marks[0] != marks[2]);
    CHECK(marks[0] != marks[3]);
}

static void test_copies(void) {
    struct hwkv_history a = { 0 };
    struct hwkv_history b = { 0 };
    fill(&a, N);
    CHECK(hwkv_history_copy(&b, &a, 0, INT32_MAX));
    CHECK_EQ_INT(n_same(&b), N);
    CHECK(hwkv_history_mark(&b, N) == hwkv_history_mark(&a, N));

    // a second copy of the end after the same beginning
    hwkv_history_remove(&b, 9, INT32_MAX);
    CHECK(hwkv_history_copy(&b, &a, 9, 15));
    CHECK_EQ_INT(n_same(&b), 15);

    // after another beginning the same tokens are not the same rows
    struct hwkv_history c = { 0 };
    for (int i = 0; i < 9; i++) {
        CHECK(hwkv_history_add(&c, i, (uint32_t) (i == 3 ? 5 : 100 + i)));
    }
    CHECK(hwkv_history_copy(&c, &a, 9, 15));
    CHECK_EQ_INT(c.n, 15);
    CHECK_EQ_INT(c.n_exact, 9);

    // nor without one
    struct hwkv_history d = { 0 };
    CHECK(hwkv_history_copy(&d, &a, 9, 15));
    CHECK_EQ_INT(d.n_exact, 0);
    CHECK(hwkv_history_copy(&a, &a, 0, INT32_MAX));
    CHECK_EQ_INT(n_same(&a), N);
    hwkv_history_free(&a);
    hwkv_history_free(&b);
    hwkv_history_free(&c);
    hwkv_history_free(&d);
}

// tokens of an image share a position, those after it leave some out
static void test_images(void) {
    struct hwkv_history h = { 0 };
    fill(&h, 3);
    for (uint32_t i = 0; i < 4; i++) {
        CHECK(hwkv_history_add(&h, 3, HWKV_HISTORY_OPAQUE | i));
    }
    CHECK(hwkv_history_add(&h, 5, 105));
    CHECK_EQ_INT(h.n, 8);
    CHECK_EQ_INT(h.n_exact, 8);
    CHECK_EQ_INT(n_same(&h), 3);
    CHECK(hwkv_history_is_valid(&h));
    hwkv_history_remove(&h, 3, 4);
    CHECK_EQ_INT(h.n, 4);
    CHECK_EQ_INT(h.n_exact, 3);
    hwkv_history_free(&h);
}

static void test_odd_calls(void) {
    struct hwkv_history h = { 0 };
    hwkv_history_remove(&h, 0, INT32_MAX);
    hwkv_history_shift(&h, 0, INT32_MAX, 3);
    hwkv_history_divide(&h, 0, INT32_MAX, 2);
    fill(&h, N);
    hwkv_history_remove(&h, 9, 5);
    hwkv_history_shift(&h, 0, N, 0);
    hwkv_history_divide(&h, 0, N, 1);
    CHECK_EQ_INT(n_same(&h), N);

    hwkv_history_shift(&h, 0, 5, -2); // two fall below 0
    CHECK_EQ_INT(h.n, N - 2);
    CHECK_EQ_INT(h.n_exact, 0);
    hwkv_history_free(&h);

    fill(&h, N);
    hwkv_history_shift(&h, 3, 6, 10); // over others: their order is lost
    CHECK_EQ_INT(h.n_exact, 3);
    CHECK(hwkv_history_is_valid(&h));
    hwkv_history_free(&h);

    fill(&h, N);
    hwkv_history_divide(&h, 8, 16, 2);
    CHECK(h.n_exact <= 8);
    CHECK(hwkv_history_is_valid(&h));
    hwkv_history_free(&h);

    fill(&h, N);
    CHECK(hwkv_history_add(&h, 7, 1)); // a row is written again
    CHECK_EQ_INT(n_same(&h), 8);
    CHECK_EQ_INT(h.n, 9);
    hwkv_history_free(&h);
}

static void test_one_from_a_file_is_checked(void) {
    struct hwkv_history h = { 0 };
    fill(&h, N);
    h.items[9].mark++;
    CHECK(!hwkv_history_is_valid(&h));
    h.items[9].mark--;
    h.items[9].what++;
    CHECK(!hwkv_history_is_valid(&h));
    h.items[9].what--;
    h.n_exact = N + 1;
    CHECK(!hwkv_history_is_valid(&h));
    h.n_exact = N;
    h.items[0].pos = -1;
    CHECK(!hwkv_history_is_valid(&h));
    hwkv_history_free(&h);
}

//
// no memory
//

static int g_left;

static void * few(size_t size) {
    return g_left-- > 0 ? malloc(size) : NULL;
}

static void test_no_memory_changes_nothing(void) {
    hwkv_set_allocator(few, free);
    g_left = 1;
    struct hwkv_history h = { 0 };
    CHECK(hwkv_history_add(&h, 0, 1));
    CHECK(!hwkv_history_add(&h, 1, 2));
    CHECK_EQ_INT(h.n, 1);
    struct hwkv_history copy = { 0 };
    CHECK(!hwkv_history_copy(&copy, &h, 0, INT32_MAX));
    CHECK_EQ_INT(copy.n, 0);
    hwkv_history_free(&h);
    hwkv_set_allocator(NULL, NULL);
}

int main(void) {
    test_the_same_tokens_serve();
    test_the_end_can_be_taken_back();
    test_what_is_moved_serves_no_prompt();
    test_reused_pieces_serve_no_prompt();
    test_the_same_moves_have_the_same_mark();
    test_copies();
    test_images();
    test_odd_calls();
    test_one_from_a_file_is_checked();
    test_no_memory_changes_nothing();
    return testing_result();
}
