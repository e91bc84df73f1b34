// How an entry of a codebook is spelled, in files, on command lines and in messages alike.

#include "hwkv-impl.h"

#include <stdio.h>
#include <string.h>

struct hwkv_entry hwkv_entry_of_window(int32_t window) {
    return (struct hwkv_entry) { window, HWKV_TYPE_CACHE, HWKV_TYPE_CACHE };
}

bool hwkv_entry_has_types(const struct hwkv_entry * entry) {
    return entry->type_k != HWKV_TYPE_CACHE || entry->type_v != HWKV_TYPE_CACHE;
}

bool hwkv_entry_equal(const struct hwkv_entry * a, const struct hwkv_entry * b) {
    return a->window == b->window && a->type_k == b->type_k && a->type_v == b->type_v;
}

char * hwkv_entry_format(const struct hwkv_entry * entry, char buf[HWKV_ENTRY_SIZE]) {
    char window[16] = "full";
    if (entry->window != HWKV_FULL) {
        snprintf(window, sizeof(window), "%d", (int) entry->window);
    }
    // one of the two is open in no codebook, but maybe in a message that says so
    const char * k = entry->type_k == HWKV_TYPE_CACHE ? "-" : hwkv_type_name(entry->type_k);
    const char * v = entry->type_v == HWKV_TYPE_CACHE ? "-" : hwkv_type_name(entry->type_v);
    if (!hwkv_entry_has_types(entry)) {
        hwkv_copy(buf, HWKV_ENTRY_SIZE, window);
    } else if (entry->type_k == entry->type_v) {
        snprintf(buf, HWKV_ENTRY_SIZE, "%s:%s", window, k);
    } else {
        snprintf(buf, HWKV_ENTRY_SIZE, "%s:%s/%s", window, k, v);
    }
    return buf;
}

//
// reading
//

static int fail_entry(struct hwkv_error * err, int code, const char * text, const char * expected) {
    char found[68];
    return hwkv_fail(err, code, NULL, "found %s, expected %s", hwkv_quote(found, text, 60), expected);
}

// Digits without a leading zero, of a number from 1 to HWKV_FULL - 1. HWKV_ERR_VALUE: something else.
int hwkv_parse_count(int32_t * out, const char * text, size_t n) {
    if (n == 0 || text[0] == '0' || strspn(text, "0123456789") < n) {
        return n == 1 && text[0] == '0' ? HWKV_ERR_RANGE : HWKV_ERR_VALUE;
    }
    int64_t value = 0;
    for (size_t i = 0; i < n; i++) {
        value = 10 * value + (text[i] - '0');
        if (value >= HWKV_FULL) {
            return HWKV_ERR_RANGE;
        }
    }
    *out = (int32_t) value;
    return 0;
}

// The type that n bytes name; -1 if they name none.
static int type_of(const char * text, size_t n) {
    char name[16];
    if (n == 0 || n >= sizeof(name)) {
        return -1;
    }
    memcpy(name, text, n);
    name[n] = '\0';
    return hwkv_type_from_name(name);
}

static int parse_types(struct hwkv_entry * entry, const char * types, const char * text, struct hwkv_error * err) {
    const size_t n_k = strcspn(types, "/");
    const bool   two = types[n_k] == '/';
    const int type_k = type_of(types, n_k);
    const int type_v = two ? type_of(types + n_k + 1, strlen(types + n_k + 1)) : type_k;
    if (type_k < 0 || type_v < 0) {
        return fail_entry(err, HWKV_ERR_VALUE, text, "types of " HWKV_TYPE_NAMES);
    }
    entry->type_k = (enum hwkv_type) type_k;
    entry->type_v = (enum hwkv_type) type_v;
    if (two && type_k == type_v) {
        char once[HWKV_ENTRY_SIZE];
        return fail_entry(err, HWKV_ERR_VALUE, text, hwkv_entry_format(entry, once));
    }
    return 0;
}

int hwkv_entry_parse(struct hwkv_entry * entry, const char * text, struct hwkv_error * err) {
    if (!entry || !text) {
        return hwkv_fail(err, HWKV_ERR_ARG, NULL, "found NULL, expected the text of an entry");
    }
    const size_t n = strcspn(text, ":");
    struct hwkv_entry res = hwkv_entry_of_window(HWKV_FULL);
    if (n != 4 || memcmp(text, "full", 4) != 0) {
        const int status = hwkv_parse_count(&res.window, text, n);
        if (status) {
            return fail_entry(err, status, text, "a positive 32-bit integer or full, and types after a colon as in 256:q8_0");
        }
    }
    if (text[n] == ':') {
        const int status = parse_types(&res, text + n + 1, text, err);
        if (status) {
            return status;
        }
    }
    *entry = res;
    return 0;
}
