// The retention rule against sets of positions, for every small window, position and rollback.

#include "hwkv-rule.h"
#include "testing.h"

enum { SINKS = 4, RECENT = 6, POSITIONS = 24 }; // exclusive ends

// Its positions one by one: the first ones and the newest ones, or all.
struct seen {
    bool recent[POSITIONS];
    bool any   [POSITIONS];
    int  n;
};

static struct seen seen_by(struct hwkv_rule rule, int32_t pos) {
    struct seen s = { 0 };
    for (int32_t i = 0; i < POSITIONS && i <= pos; i++) {
        if (hwkv_rule_is_full(rule) || i < rule.recent) {
            s.recent[pos - i] = true;
        }
    }
    for (int32_t key = 0; key <= pos; key++) {
        s.any[key] = s.recent[key] || key < rule.sinks;
        s.n += s.any[key];
    }
    return s;
}

static void check_query(struct hwkv_rule rule, int32_t pos) {
    const struct seen s = seen_by(rule, pos);
    int32_t oldest  = pos;
    int32_t n_sinks = 0;
    for (int32_t key = pos; key >= 0; key--) {
        oldest = s.recent[key] ? key : oldest;
    }
    for (int32_t key = 0; key < POSITIONS; key++) {
        CHECK_EQ_INT(hwkv_rule_sees(rule, pos, key), key > pos || s.any[key]); // causality is not asked
        n_sinks += key < pos && key < rule.sinks;
    }
    CHECK_EQ_INT(hwkv_rule_oldest  (rule, pos), oldest);
    CHECK_EQ_INT(hwkv_rule_sees_all(rule, pos), s.n == pos + 1);
    CHECK_EQ_INT(hwkv_rule_n_sinks (rule, pos), n_sinks);
    CHECK_EQ_INT(hwkv_rule_n_needed(rule, pos), s.n - 1); // without itself
    CHECK_EQ_INT(hwkv_rule_n_held  (rule, pos + 1), s.n);
    CHECK_EQ_INT(hwkv_rule_holds_all(rule, pos + 1), s.n == pos + 1);
}

// What is kept is exactly what some query still to come sees.
static void check_keep(struct hwkv_rule rule, int32_t first, int32_t last, uint32_t n_rollback) {
    bool needed[POSITIONS] = { false };
    for (int32_t query = 0; query < POSITIONS; query++) {
        if (query >= first || query + (int32_t) n_rollback > last) {
            const struct seen s = seen_by(rule, query);
            for (int32_t key = 0; key <= query; key++) {
                needed[key] = needed[key] || s.any[key];
            }
        }
    }
    const int32_t from = hwkv_rule_keep_from(rule, first, last, n_rollback);
    CHECK(from >= 0);
    for (int32_t key = 0; key <= last; key++) {
        CHECK_EQ_INT(hwkv_rule_keeps(rule, from, key), needed[key]);
    }
}

static bool can_go_on(struct hwkv_rule rule, const bool * held, int32_t pos) {
    const struct seen s = seen_by(rule, pos);
    for (int32_t key = 0; key < pos; key++) {
        if (s.any[key] && !held[key]) {
            return false;
        }
    }
    return true;
}

static void check_pos_min(struct hwkv_rule rule, int32_t lo, int32_t n_first, int32_t last) {
    bool held[POSITIONS] = { false };
    for (int32_t pos = 0; pos <= last; pos++) {
        held[pos] = pos < n_first || pos >= lo;
    }
    const int32_t min = hwkv_rule_pos_min(rule, lo, n_first);
    for (int32_t pos = 0; pos <= last + 1; pos++) {
        CHECK(pos <= min || can_go_on(rule, held, pos));
    }
    // and it is no higher than it must be; what sees nothing but itself could go on anywhere
    if (n_first >= rule.sinks && rule.recent > 1 && min > 0 && min <= last + 1) {
        CHECK(!can_go_on(rule, held, min));
    }
}

// The most that a sequence holds is after a token was added, before anything older was let go for it.
static void check_cells(struct hwkv_rule rule, uint32_t n_rollback) {
    uint64_t most = 0;
    for (int32_t last = 0; last < POSITIONS; last++) {
        const int32_t from = hwkv_rule_keep_from(rule, last + 1, last, n_rollback);
        uint64_t      n    = 1;
        for (int32_t pos = 0; pos <= last; pos++) {
            n += hwkv_rule_keeps(rule, from, pos);
        }
        most = n > most ? n : most;
    }
    CHECK_EQ_INT(hwkv_rule_n_cells(rule, n_rollback, 1), most);
    CHECK_EQ_INT(hwkv_rule_n_cells(rule, n_rollback, 3), 3 * most);
}

// What a batch of n_tokens fills at most, with what must be kept beside it.
static uint64_t most_with_batch(struct hwkv_rule rule, uint32_t n_rollback, int32_t n_tokens) {
    uint64_t most = 0;
    for (int32_t first = 0; first < POSITIONS; first++) {
        const int32_t from = hwkv_rule_keep_from(rule, first, first + n_tokens - 1, n_rollback);
        uint64_t      n    = (uint64_t) n_tokens;
        for (int32_t pos = 0; pos < first; pos++) {
            n += hwkv_rule_keeps(rule, from, pos);
        }
        most = n > most ? n : most;
    }
    return most;
}

static void check_room(struct hwkv_rule rule, uint32_t n_rollback) {
    for (uint32_t n_slack = 0; n_slack < 4; n_slack++) {
        const uint64_t cells = hwkv_rule_n_cells(rule, n_rollback, 1) + n_slack;
        const int32_t  room  = (int32_t) hwkv_rule_n_room(n_rollback, n_slack);
        for (int32_t n = 1; n <= room; n++) {
            CHECK(most_with_batch(rule, n_rollback, n) <= cells);
        }
        CHECK(most_with_batch(rule, n_rollback, room + 1) > cells);
    }
}

static void check_rule(struct hwkv_rule rule) {
    for (int32_t pos = 0; pos < POSITIONS; pos++) {
        check_query(rule, pos);
    }
    for (int32_t last = 0; last < POSITIONS - 1; last++) {
        for (int32_t first = 0; first <= last + 1; first++) {
            for (uint32_t n_rollback = 0; n_rollback < POSITIONS; n_rollback++) {
                check_keep(rule, first, last, n_rollback);
            }
        }
        for (int32_t lo = 0; lo <= last; lo++) {
            for (int32_t n_first = 0; n_first <= last; n_first++) {
                check_pos_min(rule, lo, n_first, last);
            }
        }
    }
}

static void test_rule__finite(void) {
    for (int32_t sinks = 0; sinks < SINKS; sinks++) {
        for (int32_t recent = 1; recent < RECENT; recent++) {
            const struct hwkv_rule rule = hwkv_rule_of(sinks + recent, sinks);
            CHECK_EQ_INT(rule.sinks, sinks);
            CHECK_EQ_INT(rule.recent, recent);
            CHECK_EQ_INT(hwkv_rule_window(rule), sinks + recent);
            CHECK(!hwkv_rule_is_full(rule));
            check_rule(rule);
            for (uint32_t n_rollback = 0; n_rollback < 8; n_rollback++) {
                check_cells(rule, n_rollback);
                check_room(rule, n_rollback);
            }
        }
    }
}

static void test_rule__full(void) {
    const struct hwkv_rule rule = hwkv_rule_of(HWKV_FULL, 4);
    CHECK(hwkv_rule_is_full(rule));
    CHECK_EQ_INT(hwkv_rule_window(rule), HWKV_FULL);
    CHECK_EQ_INT(rule.sinks, 0); // all positions are alike
    check_rule(rule);
    CHECK_EQ_INT(hwkv_rule_n_held(rule, (int64_t) 1 << 40), (int64_t) 1 << 40);
    CHECK(hwkv_rule_n_cells(rule, 0, 1) >= INT32_MAX);
}

// Nothing overflows, whatever a caller asks.
static void test_rule__large_numbers(void) {
    const struct hwkv_rule wide = hwkv_rule_of(HWKV_FULL - 1, 256);
    const struct hwkv_rule full = hwkv_rule_of(HWKV_FULL, 0);
    CHECK_EQ_INT(hwkv_rule_oldest(wide, INT32_MAX), 258);
    CHECK_EQ_INT(hwkv_rule_n_needed(wide, INT32_MAX), INT32_MAX - 258 + 256);
    CHECK_EQ_INT(hwkv_rule_keep_from(wide, INT32_MAX, INT32_MAX, UINT32_MAX), 0);
    CHECK_EQ_INT(hwkv_rule_keep_from(hwkv_rule_of(8, 4), INT32_MAX, INT32_MAX, 0), INT32_MAX - 3);
    CHECK_EQ_INT(hwkv_rule_pos_min(wide, INT32_MAX, 256), INT32_MAX);
    CHECK_EQ_INT(hwkv_rule_pos_min(full, INT32_MAX, 0), INT32_MAX);
    CHECK_EQ_INT(hwkv_rule_pos_min(hwkv_rule_of(8, 4), INT32_MAX - 1, 4), INT32_MAX);
    CHECK_EQ_INT(hwkv_rule_n_cells(wide, INT32_MAX, 65536), (int64_t) 65536 * (2 * (int64_t) INT32_MAX - 1));
    CHECK_EQ_INT(hwkv_rule_n_cells(full, INT32_MAX, 65536), (int64_t) 65536 * 2 * INT32_MAX);
    CHECK_EQ_INT(hwkv_rule_n_held(wide, INT64_MAX), HWKV_FULL - 1);
}

int main(void) {
    test_rule__finite();
    test_rule__full();
    test_rule__large_numbers();
    return testing_result();
}
