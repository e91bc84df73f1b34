#include "hwkv.h"
#include "testing.h"

static void test_threshold__takes_the_cheapest_that_clears(void) {
    const double scores[4] = { 0.90, 0.97, 0.995, 1.0 };
    CHECK_EQ_INT(hwkv_select_threshold(scores, 4, 0.5), 0);
    CHECK_EQ_INT(hwkv_select_threshold(scores, 4, 0.97), 1);
    CHECK_EQ_INT(hwkv_select_threshold(scores, 4, 0.99), 2);
    CHECK_EQ_INT(hwkv_select_threshold(scores, 4, 1.0), 3);
    // scores need not rise with the window: the first that clears wins
    const double bumpy[3] = { 0.99, 0.5, 1.0 };
    CHECK_EQ_INT(hwkv_select_threshold(bumpy, 3, 0.98), 0);
    // nor must the reference come last: a full history in a wider type is dearer
    const double wide[4] = { 0.9, 0.95, 1.0, 1.0 };
    CHECK_EQ_INT(hwkv_select_threshold(wide, 4, 0.99), 2);
    CHECK_EQ_INT(hwkv_select_threshold(wide, 4, 1.0), 2);
    const double only_full[1] = { 1.0 };
    CHECK_EQ_INT(hwkv_select_threshold(only_full, 1, 0.1), 0);
}

static void test_budget__floor_then_rate_then_order(void) {
    const struct hwkv_record grid[5] = {
        { 0.40, 0.95 }, { 0.60, 0.98 }, { 0.55, 0.98 }, { 0.55, 0.98 }, { 0.90, 0.999 },
    };
    CHECK_EQ_INT(hwkv_select_budget(grid, 5, 1.00), 4);
    CHECK_EQ_INT(hwkv_select_budget(grid, 5, 0.60), 2); // same floor as 1 at a lower rate, first of its twin
    CHECK_EQ_INT(hwkv_select_budget(grid, 5, 0.50), 0);
    CHECK_EQ_INT(hwkv_select_budget(grid, 5, 0.40), 0); // at the budget is within it
    CHECK_EQ_INT(hwkv_select_budget(grid, 5, 0.39), -1);
    CHECK_EQ_INT(hwkv_select_budget(grid, 0, 1.0), -1);
}

static void test_binary__keeps_the_neediest_full(void) {
    // units x codebook; entry 0 decides
    const double scores[12] = { 0.9, 1, 1, 0.5, 1, 1, 0.7, 1, 1, 0.5, 1, 1 };
    int32_t entries[4];
    struct hwkv_split split = { scores, 4, 3, 0, 2, 0.25 };
    CHECK_EQ_INT(hwkv_select_binary(entries, &split, NULL), 0);
    CHECK_EQ_INT(entries[0], 0);
    CHECK_EQ_INT(entries[1], 2); // ties go to the lower unit
    CHECK_EQ_INT(entries[2], 0);
    CHECK_EQ_INT(entries[3], 0);
    split.ratio = 0.75;
    CHECK_EQ_INT(hwkv_select_binary(entries, &split, NULL), 0);
    CHECK_EQ_INT(entries[0], 0);
    CHECK_EQ_INT(entries[1], 2);
    CHECK_EQ_INT(entries[2], 2);
    CHECK_EQ_INT(entries[3], 2);
    // the reference need not be the last entry
    split.reference = 1;
    CHECK_EQ_INT(hwkv_select_binary(entries, &split, NULL), 0);
    CHECK_EQ_INT(entries[0], 0);
    CHECK_EQ_INT(entries[3], 1);
    split.ratio = 1.5;
    CHECK_ERR(hwkv_select_binary(entries, &split, NULL), HWKV_ERR_RANGE);
    split = (struct hwkv_split) { scores, 4, 3, 2, 2, 0.5 };
    CHECK_ERR(hwkv_select_binary(entries, &split, NULL), HWKV_ERR_ARG);
    split = (struct hwkv_split) { scores, 4, 3, 0, 3, 0.5 };
    CHECK_ERR(hwkv_select_binary(entries, &split, NULL), HWKV_ERR_ARG);
    split = (struct hwkv_split) { NULL, 4, 3, 0, 2, 0.5 };
    CHECK_ERR(hwkv_select_binary(entries, &split, NULL), HWKV_ERR_ARG);
}

int main(void) {
    test_threshold__takes_the_cheapest_that_clears();
    test_budget__floor_then_rate_then_order();
    test_binary__keeps_the_neediest_full();
    return testing_result();
}
