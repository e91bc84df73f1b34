#include "hwkv-history.h"

#include "hwkv-hash.h"
#include "hwkv-impl.h"

#include <string.h>

// operations that leave items where they were not computed
enum { OP_REMOVE = 1, OP_SHIFT, OP_DIVIDE, OP_COPY };

static uint64_t chain(uint64_t mark, int32_t pos, uint32_t what) {
    // never 0, which says that there is none
    return hwkv_mix(hwkv_mix(mark + 0x9e3779b97f4a7c15u) ^ ((uint64_t) (uint32_t) pos << 32 | what)) | 1;
}

static uint64_t mark_before(const struct hwkv_history * h, size_t i) {
    return i > 0 ? h->items[i - 1].mark : 0;
}

// the first item at or after a position
static size_t find(const struct hwkv_history * h, int32_t pos) {
    size_t lo = 0;
    size_t hi = h->n;
    while (lo < hi) {
        const size_t mid = lo + (hi - lo) / 2;
        if (h->items[mid].pos < pos) {
            lo = mid + 1;
        } else {
            hi = mid;
        }
    }
    return lo;
}

// Items from i on are not what their tokens alone would give. Their marks say by which operation and from what they came, so that
// equal marks still mean equal rows.
static void taint(struct hwkv_history * h, size_t i, int op, int32_t a, int32_t b, uint64_t from) {
    if (i >= h->n) {
        return;
    }
    uint64_t mark = chain(hwkv_mix(from ^ mark_before(h, i)) + (uint64_t) op, a, (uint32_t) b);
    for (size_t k = i; k < h->n; k++) {
        mark = chain(mark ^ h->items[k].mark, h->items[k].pos, h->items[k].what);
        h->items[k].mark = mark;
    }
    h->n_exact = h->n_exact < i ? h->n_exact : i;
}

// Positions that descend cannot be searched: what comes after is forgotten.
static void check_order(struct hwkv_history * h) {
    for (size_t i = 1; i < h->n; i++) {
        if (h->items[i].pos < h->items[i - 1].pos) {
            h->n       = i;
            h->n_exact = h->n_exact < i ? h->n_exact : i;
            return;
        }
    }
}

void hwkv_history_free(struct hwkv_history * h) {
    hwkv_free(h->items);
    memset(h, 0, sizeof(*h));
}

bool hwkv_history_reserve(struct hwkv_history * h, size_t n) {
    if (n <= h->n_max) {
        return true;
    }
    const size_t n_max = n > 2 * h->n_max ? n : 2 * h->n_max;
    struct hwkv_history_item * items = hwkv_alloc(n_max, sizeof(*items));
    if (!items) {
        return false;
    }
    if (h->n > 0) {
        memcpy(items, h->items, h->n * sizeof(*items));
    }
    hwkv_free(h->items);
    h->items = items;
    h->n_max = n_max;
    return true;
}

bool hwkv_history_add(struct hwkv_history * h, int32_t pos, uint32_t what) {
    // a row that is written again at an older position has the old ones after it
    const size_t i = find(h, pos == INT32_MAX ? pos : pos + 1);
    if (i < h->n) {
        hwkv_history_remove(h, h->items[i].pos, INT32_MAX);
    }
    if (!hwkv_history_reserve(h, h->n + 1)) {
        return false;
    }
    const bool exact = h->n_exact == h->n;
    h->items[h->n] = (struct hwkv_history_item) { pos, what, chain(mark_before(h, h->n), pos, what) };
    h->n++;
    h->n_exact += exact;
    return true;
}

bool hwkv_history_copy(struct hwkv_history * dst, const struct hwkv_history * src, int32_t p0, int32_t p1) {
    const size_t first = find(src, p0);
    const size_t last  = find(src, p1);
    if (dst == src || first == last) {
        return true;
    }
    if (!hwkv_history_reserve(dst, find(dst, p0) + (last - first))) {
        return false;
    }
    hwkv_history_remove(dst, p0, INT32_MAX);

    // after the same items the copied ones are as exact as in the source
    const size_t n    = dst->n;
    const bool   same = n == first && mark_before(dst, n) == mark_before(src, first);

    memcpy(dst->items + n, src->items + first, (last - first) * sizeof(*dst->items));
    dst->n += last - first;
    if (same) {
        dst->n_exact = src->n_exact < last ? src->n_exact : last;
    } else {
        taint(dst, n, OP_COPY, p0, p1, mark_before(src, first));
    }
    return true;
}

void hwkv_history_remove(struct hwkv_history * h, int32_t p0, int32_t p1) {
    const size_t first = find(h, p0);
    const size_t last  = find(h, p1);
    if (first >= last) {
        return;
    }
    const uint64_t from = h->items[last - 1].mark;
    memmove(h->items + first, h->items + last, (h->n - last) * sizeof(*h->items));
    h->n      -= last - first;
    h->n_exact = h->n_exact < first ? h->n_exact : first;
    taint(h, first, OP_REMOVE, p0, p1, from);
}

void hwkv_history_shift(struct hwkv_history * h, int32_t p0, int32_t p1, int32_t shift) {
    const size_t first = find(h, p0);
    const size_t last  = find(h, p1);
    if (first >= last || shift == 0) {
        return;
    }
    for (size_t i = first; i < last; i++) {
        h->items[i].pos += shift;
    }
    taint(h, first, OP_SHIFT, p0, shift, (uint64_t) (uint32_t) p1);
    // what is moved below 0 is gone
    size_t n_gone = 0;
    while (first + n_gone < last && h->items[first + n_gone].pos < 0) {
        n_gone++;
    }
    memmove(h->items + first, h->items + first + n_gone, (h->n - first - n_gone) * sizeof(*h->items));
    h->n -= n_gone;
    check_order(h);
}

void hwkv_history_divide(struct hwkv_history * h, int32_t p0, int32_t p1, int32_t d) {
    const size_t first = find(h, p0);
    const size_t last  = find(h, p1);
    if (first >= last || d == 1) {
        return;
    }
    for (size_t i = first; i < last; i++) {
        h->items[i].pos /= d;
    }
    taint(h, first, OP_DIVIDE, p0, d, (uint64_t) (uint32_t) p1);
    check_order(h);
}

size_t hwkv_history_n_same(const struct hwkv_history * h, const int32_t * tokens, size_t n) {
    const size_t n_max = n < h->n_exact ? n : h->n_exact;
    size_t i = 0;
    while (i < n_max && h->items[i].pos == (int32_t) i && h->items[i].what == (uint32_t) tokens[i] && tokens[i] >= 0) {
        i++;
    }
    return i;
}

uint64_t hwkv_history_mark(const struct hwkv_history * h, size_t n) {
    return n > 0 && n <= h->n ? h->items[n - 1].mark : 0;
}

bool hwkv_history_is_valid(const struct hwkv_history * h) {
    if (h->n_exact > h->n) {
        return false;
    }
    for (size_t i = 0; i < h->n; i++) {
        const struct hwkv_history_item * item = &h->items[i];
        if (item->pos < (i > 0 ? h->items[i - 1].pos : 0)) {
            return false;
        }
        if (i < h->n_exact && item->mark != chain(mark_before(h, i), item->pos, item->what)) {
            return false;
        }
    }
    return true;
}
