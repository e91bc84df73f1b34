// Allocation by budget, held against all choices there are and against what must be true of any.

#include "hwkv.h"
#include "testing.h"

#include <stdbool.h>
#include <stdlib.h>

#define N_UNIT  96
#define N_ENTRY 16

//
// cases
//

struct problem {
    double   loss [N_UNIT * N_ENTRY];
    uint64_t bytes[N_UNIT * N_ENTRY];
    struct hwkv_allocate_params params;
};

static uint64_t g_state;

static double draw(void) {
    g_state = g_state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (double) (g_state >> 11) / 9007199254740992.0;
}

// Entries from cheap to dear whose losses mostly fall, with ties, with entries that are worse than cheaper ones, and units of different sizes.
static void make_problem(struct problem * p, int32_t n_unit, int32_t n_entry, uint64_t seed) {
    g_state   = seed;
    p->params = (struct hwkv_allocate_params) { .loss = p->loss, .bytes = p->bytes, .n_unit = n_unit, .n_entry = n_entry };
    for (int32_t u = 0; u < n_unit; u++) {
        const double   weight = draw() * draw() * draw();
        const uint64_t size   = 8u << (u % 3);
        uint64_t bytes = size;
        for (int32_t ie = 0; ie < n_entry; ie++) {
            const int32_t at = u * n_entry + ie;
            bytes += draw() < 0.2 ? 0 : size * (uint64_t) (1.0 + 6.0 * draw());
            p->bytes[at] = bytes;
            p->loss [at] = ie == n_entry - 1 ? 0.0 : weight * (draw() < 0.3 ? draw() : 1.0) / (double) (ie + 1);
        }
    }
}

struct totals {
    uint64_t bytes;
    double   loss;
};

static struct totals total(const struct hwkv_allocate_params * p, const int32_t * entries) {
    struct totals res = { 0 };
    for (int32_t u = 0; u < p->n_unit; u++) {
        res.bytes += p->bytes[u * p->n_entry + entries[u]];
        res.loss  += p->loss [u * p->n_entry + entries[u]];
    }
    return res;
}

static uint64_t smallest(const struct hwkv_allocate_params * p) {
    uint64_t res = 0;
    for (int32_t u = 0; u < p->n_unit; u++) {
        uint64_t least = UINT64_MAX;
        for (int32_t ie = 0; ie < p->n_entry; ie++) {
            const uint64_t bytes = p->bytes[u * p->n_entry + ie];
            least = bytes < least ? bytes : least;
        }
        res += least;
    }
    return res;
}

static uint64_t largest_step(const struct hwkv_allocate_params * p) {
    uint64_t res = 0;
    for (int32_t u = 0; u < p->n_unit; u++) {
        const uint64_t step = p->bytes[u * p->n_entry + p->n_entry - 1] - p->bytes[u * p->n_entry];
        res = step > res ? step : res;
    }
    return res;
}

// The least loss within the budget, by trying all.
static double brute_force(const struct hwkv_allocate_params * p, int32_t unit, uint64_t budget) {
    if (unit == p->n_unit) {
        return 0.0;
    }
    double best = (double) INFINITY;
    for (int32_t ie = 0; ie < p->n_entry; ie++) {
        const uint64_t bytes = p->bytes[unit * p->n_entry + ie];
        if (bytes <= budget) {
            best = fmin(best, p->loss[unit * p->n_entry + ie] + brute_force(p, unit + 1, budget - bytes));
        }
    }
    return best;
}

//
// tests
//

static void test_allocate__takes_what_gains_most_for_a_byte(void) {
    // 10 bytes buy the first head 8, the second 3, then the first another 2
    const double   loss [6] = { 10, 2, 0, 3, 0, 0 };
    const uint64_t bytes[6] = { 10, 20, 30, 10, 20, 30 };
    struct hwkv_allocate_params params = { .loss = loss, .bytes = bytes, .n_unit = 2, .n_entry = 3 };
    const struct { uint64_t budget; int32_t a; int32_t b; double lambda; } expected[] = {
        { 20, 0, 0, 0.8 }, { 29, 0, 0, 0.8 }, { 30, 1, 0, 0.3 }, { 40, 1, 1, 0.2 }, { 50, 2, 1, 0.0 }, { 1000, 2, 1, 0.0 },
    };
    for (size_t i = 0; i < sizeof(expected) / sizeof(expected[0]); i++) {
        int32_t entries[2];
        struct hwkv_allocation found;
        params.budget = expected[i].budget;
        CHECK_ERR(hwkv_allocate(&found, entries, &params, NULL), 0);
        CHECK_EQ_INT(entries[0], expected[i].a);
        CHECK_EQ_INT(entries[1], expected[i].b);
        CHECK_NEAR(found.lambda, expected[i].lambda, 1e-15);
        CHECK_EQ_INT(found.bytes, total(&params, entries).bytes);
        CHECK_NEAR(found.loss, total(&params, entries).loss, 1e-15);
    }
}

static void test_allocate__exchanges_one_step_for_another(void) {
    // the first head's 5 for 5 bytes gives way to the second's 8 for 10
    const double   loss [4] = { 5, 0, 8, 0 };
    const uint64_t bytes[4] = { 1, 6, 1, 11 };
    const struct hwkv_allocate_params params = { .loss = loss, .bytes = bytes, .n_unit = 2, .n_entry = 2, .budget = 12 };
    int32_t entries[2];
    struct hwkv_allocation found;
    CHECK_ERR(hwkv_allocate(&found, entries, &params, NULL), 0);
    CHECK_EQ_INT(entries[0], 0);
    CHECK_EQ_INT(entries[1], 1);
    CHECK_EQ_INT(found.bytes, 12);
}

static void test_allocate__ties_go_to_the_lower_unit_and_entry(void) {
    double   loss [8];
    uint64_t bytes[8];
    for (int32_t i = 0; i < 8; i++) {
        loss [i] = i % 2 ? 0.0 : 1.0;
        bytes[i] = i % 2 ? 3 : 1;
    }
    struct hwkv_allocate_params params = { .loss = loss, .bytes = bytes, .n_unit = 4, .n_entry = 2, .budget = 8 };
    int32_t entries[4];
    struct hwkv_allocation found;
    CHECK_ERR(hwkv_allocate(&found, entries, &params, NULL), 0);
    CHECK(entries[0] == 1 && entries[1] == 1 && entries[2] == 0 && entries[3] == 0);

    // entries that are the same: the first
    const double   same_loss [3] = { 1, 1, 1 };
    const uint64_t same_bytes[3] = { 5, 5, 5 };
    params = (struct hwkv_allocate_params) { .loss = same_loss, .bytes = same_bytes, .n_unit = 1, .n_entry = 3, .budget = 100 };
    CHECK_ERR(hwkv_allocate(&found, entries, &params, NULL), 0);
    CHECK_EQ_INT(entries[0], 0);
    CHECK_NEAR(found.lambda, 0.0, 0.0);
}

static void test_allocate__against_all_choices(void) {
    static struct problem p;
    int32_t n_best = 0;
    int32_t n      = 0;
    for (uint64_t seed = 1; seed <= 150; seed++) {
        make_problem(&p, 1 + (int32_t) (seed % 5), 2 + (int32_t) (seed % 4), seed);
        const uint64_t least = smallest(&p.params);
        for (int32_t part = 0; part < 8; part++) {
            int32_t entries[N_UNIT];
            struct hwkv_allocation found;
            p.params.budget = least + (uint64_t) (0.1 * part * (double) least * 3.0);
            CHECK_ERR(hwkv_allocate(&found, entries, &p.params, NULL), 0);
            const double best = brute_force(&p.params, 0, p.params.budget);
            CHECK(found.bytes <= p.params.budget);
            CHECK(found.loss >= best - 1e-12);
            // what the whole budget would save at the price cannot be more than the best does
            CHECK(found.loss <= best + found.lambda * (double) largest_step(&p.params) + 1e-12);
            n_best += found.loss <= best + 1e-12;
            n++;
        }
    }
    printf("the best of all choices in %d of %d small cases\n", (int) n_best, (int) n);
    CHECK(n_best >= n * 9 / 10);
}

static void test_allocate__is_the_best_at_a_price(void) {
    static struct problem p;
    for (uint64_t seed = 1; seed <= 60; seed++) {
        make_problem(&p, N_UNIT, N_ENTRY, seed);
        const double price = 0.001 * draw() * draw();
        int32_t chosen[N_UNIT];
        for (int32_t u = 0; u < N_UNIT; u++) {
            chosen[u] = 0;
            for (int32_t ie = 1; ie < N_ENTRY; ie++) {
                const int32_t at = u * N_ENTRY;
                if (p.loss[at + ie] + price * (double) p.bytes[at + ie] < p.loss[at + chosen[u]] + price * (double) p.bytes[at + chosen[u]]) {
                    chosen[u] = ie;
                }
            }
        }
        // nothing loses less in as many bytes than the choice at a price
        const struct totals expected = total(&p.params, chosen);
        int32_t entries[N_UNIT];
        struct hwkv_allocation found;
        p.params.budget = expected.bytes;
        CHECK_ERR(hwkv_allocate(&found, entries, &p.params, NULL), 0);
        CHECK_NEAR(found.loss, expected.loss, 1e-12);
        CHECK(found.lambda <= price + 1e-15);
    }
}

static void test_allocate__uses_the_budget(void) {
    static struct problem p;
    for (uint64_t seed = 1; seed <= 20; seed++) {
        make_problem(&p, N_UNIT, N_ENTRY, seed);
        // more bytes always help, if little
        for (int32_t u = 0; u < N_UNIT; u++) {
            for (int32_t ie = N_ENTRY - 2; ie >= 0; ie--) {
                double * loss = &p.loss[u * N_ENTRY + ie];
                *loss = fmax(*loss, loss[1] + 1e-9 * (double) (p.bytes[u * N_ENTRY + ie + 1] - p.bytes[u * N_ENTRY + ie]));
            }
        }
        const uint64_t least = smallest(&p.params);
        const uint64_t step  = largest_step(&p.params);
        double   last_loss = (double) INFINITY;
        for (p.params.budget = least; p.params.budget < 8 * least; p.params.budget += step) {
            int32_t entries[N_UNIT];
            struct hwkv_allocation found;
            CHECK_ERR(hwkv_allocate(&found, entries, &p.params, NULL), 0);
            CHECK(found.bytes <= p.params.budget);
            CHECK(found.loss <= last_loss);
            CHECK(found.lambda >= 0.0);
            bool all_best = true;
            for (int32_t u = 0; u < N_UNIT; u++) {
                all_best = all_best && p.loss[u * N_ENTRY + entries[u]] == 0.0;
            }
            CHECK(all_best || (double) found.bytes >= 0.98 * (double) p.params.budget);
            last_loss = found.loss;
        }
    }
}

static void test_allocate__leaves_fixed_units_alone(void) {
    static struct problem p;
    for (uint64_t seed = 1; seed <= 20; seed++) {
        make_problem(&p, N_UNIT, N_ENTRY, seed);
        int32_t entries[N_UNIT];
        int32_t rest   [N_UNIT];
        uint64_t fixed = 0;
        p.params.n_fixed = 40;
        for (int32_t u = 0; u < p.params.n_fixed; u++) {
            entries[u] = (int32_t) (draw() * N_ENTRY);
            rest[u]    = entries[u];
            fixed += p.bytes[u * N_ENTRY + entries[u]];
        }
        struct hwkv_allocate_params above = p.params;
        above.loss    += p.params.n_fixed * N_ENTRY;
        above.bytes   += p.params.n_fixed * N_ENTRY;
        above.n_unit  -= p.params.n_fixed;
        above.n_fixed  = 0;
        above.budget   = 3 * smallest(&above);
        p.params.budget = fixed + above.budget;

        struct hwkv_allocation all;
        struct hwkv_allocation alone;
        CHECK_ERR(hwkv_allocate(&all, entries, &p.params, NULL), 0);
        CHECK_ERR(hwkv_allocate(&alone, rest + p.params.n_fixed, &above, NULL), 0);
        CHECK(memcmp(entries, rest, sizeof(entries)) == 0);
        CHECK_EQ_INT(all.bytes, fixed + alone.bytes);
        CHECK_NEAR(all.lambda, alone.lambda, 0.0);

        // nothing left to choose
        p.params.n_fixed = N_UNIT;
        CHECK_ERR(hwkv_allocate(&all, entries, &p.params, NULL), 0);
        CHECK(memcmp(entries, rest, sizeof(entries)) == 0);
    }
}

static void test_allocate__says_the_smallest(void) {
    static struct problem p;
    make_problem(&p, 10, 5, 7);
    p.params.budget = smallest(&p.params);
    int32_t entries[10];
    struct hwkv_allocation found;
    struct hwkv_error err;
    CHECK_ERR(hwkv_allocate(&found, entries, &p.params, &err), 0);
    CHECK_EQ_INT(found.bytes, p.params.budget);

    char number[32];
    snprintf(number, sizeof(number), "%llu", (unsigned long long) p.params.budget);
    p.params.budget--;
    CHECK_ERR(hwkv_allocate(&found, entries, &p.params, &err), HWKV_ERR_BUDGET);
    CHECK(strstr(err.msg, number) != NULL);
    CHECK_EQ_INT(found.bytes, p.params.budget + 1);
    CHECK_EQ_INT(total(&p.params, entries).bytes, p.params.budget + 1);
}

static void test_allocate__refuses_what_is_no_loss(void) {
    double   loss [4] = { 1, 0, 1, 0 };
    uint64_t bytes[4] = { 1, 2, 1, 2 };
    struct hwkv_allocate_params params = { .loss = loss, .bytes = bytes, .n_unit = 2, .n_entry = 2, .budget = 10 };
    int32_t entries[2] = { 0, 0 };
    struct hwkv_allocation found;
    const double bad[] = { -1.0, (double) NAN, (double) INFINITY };
    for (size_t i = 0; i < 3; i++) {
        loss[2] = bad[i];
        CHECK_ERR(hwkv_allocate(&found, entries, &params, NULL), HWKV_ERR_NOT_FINITE);
    }
    loss[2]  = 1;
    bytes[1] = UINT64_MAX;
    CHECK_ERR(hwkv_allocate(&found, entries, &params, NULL), HWKV_ERR_RANGE);
    bytes[1] = 2;
    CHECK_ERR(hwkv_allocate(NULL, entries, &params, NULL), HWKV_ERR_ARG);
    CHECK_ERR(hwkv_allocate(&found, NULL, &params, NULL), HWKV_ERR_ARG);
    CHECK_ERR(hwkv_allocate(&found, entries, NULL, NULL), HWKV_ERR_ARG);
    params.n_fixed = 3;
    CHECK_ERR(hwkv_allocate(&found, entries, &params, NULL), HWKV_ERR_ARG);
    params.n_fixed = 1;
    entries[0]     = 2;
    CHECK_ERR(hwkv_allocate(&found, entries, &params, NULL), HWKV_ERR_ARG);
    entries[0]     = 1;
    CHECK_ERR(hwkv_allocate(&found, entries, &params, NULL), 0);
    params.n_entry = HWKV_CODE_MAX + 1;
    CHECK_ERR(hwkv_allocate(&found, entries, &params, NULL), HWKV_ERR_ARG);
}

int main(void) {
    test_allocate__takes_what_gains_most_for_a_byte();
    test_allocate__exchanges_one_step_for_another();
    test_allocate__ties_go_to_the_lower_unit_and_entry();
    test_allocate__against_all_choices();
    test_allocate__is_the_best_at_a_price();
    test_allocate__uses_the_budget();
    test_allocate__leaves_fixed_units_alone();
    test_allocate__says_the_smallest();
    test_allocate__refuses_what_is_no_loss();
    return testing_result();
}
