// Typed reading of JSON nodes. Nothing here builds a path unless it has something to say about it.

#include "hwkv-impl.h"
#include "hwkv-number.h"

#include <stdio.h>
#include <string.h>

struct hwkv_at hwkv_at_root(const struct hwkv_json * node) {
    return (struct hwkv_at) { .node = node };
}

struct hwkv_at hwkv_at_member(const struct hwkv_at * object, const char * key) {
    return (struct hwkv_at) { .up = object, .node = hwkv_json_get(object->node, key), .key = key };
}

struct hwkv_at hwkv_at_element(const struct hwkv_at * array, const struct hwkv_json * node, int32_t index) {
    return (struct hwkv_at) { .up = array, .node = node, .index = index };
}

// Returns the length. A key is cut at a whole character where it does not fit.
static size_t path_text(char * path, size_t size, const struct hwkv_at * at) {
    if (!at->up) {
        hwkv_copy(path, size, "$");
        return 1;
    }
    const size_t n = path_text(path, size, at->up);
    if (at->key) {
        snprintf(path + n, size - n, ".");
        hwkv_copy(path + strlen(path), size - strlen(path), at->key);
    } else {
        snprintf(path + n, size - n, "[%d]", (int) at->index);
    }
    return strlen(path);
}

int hwkv_fail_at(struct hwkv_error * err, int code, const struct hwkv_at * at, const char * fmt, ...) {
    if (!err) {
        return code;
    }
    char path[sizeof(err->path)];
    char text[1024];
    path_text(path, sizeof(path), at);
    va_list args;
    va_start(args, fmt);
    hwkv_vsnprintf(text, sizeof(text), fmt, args);
    va_end(args);
    return hwkv_fail(err, code, path, "%s", text);
}

int hwkv_expect_type(const struct hwkv_at * at, enum hwkv_json_type type, struct hwkv_error * err) {
    const enum hwkv_json_type found = hwkv_json_type(at->node);
    if (found != type) {
        return hwkv_fail_at(err, HWKV_ERR_TYPE, at, "found %s, expected %s", hwkv_json_type_name(found), hwkv_json_type_name(type));
    }
    return 0;
}

int hwkv_expect_keys(const struct hwkv_at * at, const struct hwkv_key * keys, size_t n, struct hwkv_error * err) {
    const int status = hwkv_expect_type(at, HWKV_JSON_OBJECT, err);
    if (status) {
        return status;
    }
    for (const struct hwkv_json * it = hwkv_json_child(at->node); it; it = hwkv_json_next(it)) {
        bool known = false;
        for (size_t i = 0; i < n && !known; i++) {
            known = strcmp(keys[i].name, hwkv_json_key(it)) == 0;
        }
        if (!known) {
            char found[108];
            return hwkv_fail_at(err, HWKV_ERR_UNKNOWN_KEY, at, "found the key %s, expected only the keys of the format",
                                hwkv_quote(found, hwkv_json_key(it), 100));
        }
    }
    for (size_t i = 0; i < n; i++) {
        if (keys[i].required && !hwkv_json_get(at->node, keys[i].name)) {
            return hwkv_fail_at(err, HWKV_ERR_MISSING_KEY, at, "found no key \"%s\", expected one", keys[i].name);
        }
    }
    return 0;
}

int hwkv_expect_size(const struct hwkv_at * at, int32_t n, const char * what, struct hwkv_error * err) {
    const int status = hwkv_expect_type(at, HWKV_JSON_ARRAY, err);
    if (status) {
        return status;
    }
    const int32_t found = hwkv_json_size(at->node);
    if (found != n) {
        return hwkv_fail_at(err, HWKV_ERR_VALUE, at, "found %d entries, expected %d, one for each %s", (int) found, (int) n, what);
    }
    return 0;
}

int hwkv_read_number(double * out, const struct hwkv_at * at, struct hwkv_error * err) {
    const int status = hwkv_expect_type(at, HWKV_JSON_NUMBER, err);
    if (status == 0) {
        *out = hwkv_json_number(at->node);
    }
    return status;
}

static int fail_window(int code, const struct hwkv_at * at, struct hwkv_error * err) {
    static const char expected[] = "expected a positive 32-bit integer or \"full\"";
    const enum hwkv_json_type type = hwkv_json_type(at->node);
    if (type == HWKV_JSON_NUMBER) {
        return hwkv_fail_at(err, code, at, "found %.17g, %s", hwkv_json_number(at->node), expected);
    }
    if (type == HWKV_JSON_STRING) {
        char found[68];
        return hwkv_fail_at(err, code, at, "found %s, %s", hwkv_quote(found, hwkv_json_string(at->node), 60), expected);
    }
    return hwkv_fail_at(err, code, at, "found %s, %s", hwkv_json_type_name(type), expected);
}

int hwkv_read_window(int32_t * out, const struct hwkv_at * at, struct hwkv_error * err) {
    const enum hwkv_json_type type = hwkv_json_type(at->node);
    if (type == HWKV_JSON_STRING) {
        *out = HWKV_FULL;
        return strcmp(hwkv_json_string(at->node), "full") == 0 ? 0 : fail_window(HWKV_ERR_VALUE, at, err);
    }
    if (type != HWKV_JSON_NUMBER) {
        return fail_window(HWKV_ERR_TYPE, at, err);
    }
    const double value = hwkv_json_number(at->node);
    if (!(value >= 1.0 && value < (double) HWKV_FULL) || value != (double) (int32_t) value) {
        return fail_window(HWKV_ERR_RANGE, at, err);
    }
    *out = (int32_t) value;
    return 0;
}

// Types where the entry has some: a window alone is a number or "full".
static int read_typed_entry(struct hwkv_entry * out, const struct hwkv_at * at, struct hwkv_error * err) {
    const char      * text = hwkv_json_string(at->node);
    struct hwkv_error why  = { 0 };
    const int status = hwkv_entry_parse(out, text, &why);
    if (status) {
        return hwkv_fail_at(err, status, at, "%s", why.msg);
    }
    if (out->window != HWKV_FULL && !hwkv_entry_has_types(out)) {
        return hwkv_fail_at(err, HWKV_ERR_VALUE, at, "found \"%s\", expected the number %d or types after a colon", text, (int) out->window);
    }
    return 0;
}

int hwkv_read_entry(struct hwkv_entry * out, const struct hwkv_at * at, int version, struct hwkv_error * err) {
    const enum hwkv_json_type type = hwkv_json_type(at->node);
    if (version > 1 && type == HWKV_JSON_STRING) {
        return read_typed_entry(out, at, err);
    }
    if (version > 1 && type != HWKV_JSON_NUMBER) {
        return hwkv_fail_at(err, HWKV_ERR_TYPE, at, "found %s, expected a positive 32-bit integer, \"full\" or a string such as \"256:q8_0\"",
                            hwkv_json_type_name(type));
    }
    int32_t window = 0;
    const int status = hwkv_read_window(&window, at, err);
    *out = hwkv_entry_of_window(window);
    return status;
}

// cJSON's own integers saturate, so they are taken from the double, which holds them exactly.
int hwkv_read_int64(int64_t * out, const struct hwkv_at * object, const char * key, int64_t min, int64_t max, struct hwkv_error * err) {
    const struct hwkv_at at = hwkv_at_member(object, key);
    double value = 0.0;
    const int status = hwkv_read_number(&value, &at, err);
    if (status) {
        return status;
    }
    if (!(value >= (double) min && value <= (double) max) || value != (double) (int64_t) value) {
        return hwkv_fail_at(err, HWKV_ERR_RANGE, &at, "found %.17g, expected an integer from %lld to %lld", value, (long long) min,
                            (long long) max);
    }
    *out = (int64_t) value;
    return 0;
}

int hwkv_read_int32(int32_t * out, const struct hwkv_at * object, const char * key, int32_t min, int32_t max, struct hwkv_error * err) {
    int64_t value = 0;
    const int status = hwkv_read_int64(&value, object, key, min, max, err);
    *out = (int32_t) value;
    return status;
}

static int read_string(const char ** out, const struct hwkv_at * at, struct hwkv_error * err) {
    const int status = hwkv_expect_type(at, HWKV_JSON_STRING, err);
    *out = status ? NULL : hwkv_json_string(at->node);
    return status;
}

int hwkv_read_text(char * out, size_t out_size, const struct hwkv_at * object, const char * key, struct hwkv_error * err) {
    const struct hwkv_at at = hwkv_at_member(object, key);
    const char * text = NULL;
    const int status = read_string(&text, &at, err);
    if (status) {
        return status;
    }
    if (strlen(text) >= out_size) {
        return hwkv_fail_at(err, HWKV_ERR_RANGE, &at, "found a string of %zu bytes, expected at most %zu", strlen(text), out_size - 1);
    }
    hwkv_copy(out, out_size, text);
    return 0;
}

int hwkv_read_hash(char out[65], const struct hwkv_at * object, const char * key, bool may_be_empty, struct hwkv_error * err) {
    const struct hwkv_at at = hwkv_at_member(object, key);
    const char * text = NULL;
    const int status = read_string(&text, &at, err);
    if (status) {
        return status;
    }
    if (!hwkv_is_hex64(text) && !(may_be_empty && text[0] == '\0')) {
        char found[88];
        return hwkv_fail_at(err, HWKV_ERR_VALUE, &at, "found %s, expected 64 lower-case hex digits%s", hwkv_quote(found, text, 80),
                            may_be_empty ? " or \"\"" : "");
    }
    hwkv_copy(out, 65, text);
    return 0;
}
