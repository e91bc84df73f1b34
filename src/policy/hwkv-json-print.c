// JSON text from a tree. Numbers are written so that reading gives the same double back, rows of matrices stand on
// lines of their own, and the same tree always gives the same bytes.

#include "hwkv-impl.h"
#include "hwkv-number.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct text {
    char * data;
    size_t size;
    size_t cap;
    bool   failed; // out of memory: later calls do nothing
};

static void put(struct text * t, const char * s, size_t n) {
    if (t->failed) {
        return;
    }
    if (t->size + n + 1 > t->cap) {
        const size_t cap  = 2 * (t->size + n + 1) + 1024;
        char       * data = hwkv_alloc(cap, 1);
        if (!data) {
            t->failed = true;
            return;
        }
        if (t->data) {
            memcpy(data, t->data, t->size);
            hwkv_free(t->data);
        }
        t->data = data;
        t->cap  = cap;
    }
    memcpy(t->data + t->size, s, n);
    t->size += n;
}

static void put_text(struct text * t, const char * s) {
    put(t, s, strlen(s));
}

static void put_string(struct text * t, const char * s) {
    put(t, "\"", 1);
    for (; *s; s++) {
        const unsigned char c = (unsigned char) *s;
        char buf[8];
        if (c == '"' || c == '\\') {
            buf[0] = '\\';
            buf[1] = *s;
            put(t, buf, 2);
        } else if (c < 0x20) {
            snprintf(buf, sizeof(buf), "\\u%04x", (unsigned) c);
            put(t, buf, 6);
        } else {
            put(t, s, 1);
        }
    }
    put(t, "\"", 1);
}

static void put_number(struct text * t, const struct hwkv_json * node) {
    const double value  = hwkv_json_number(node);
    const char * digits = hwkv_json_digits(node);
    char buf[32];
    if (digits) {
        put_text(t, digits);
        return;
    }
    if (value == floor(value) && fabs(value) < 1e15) {
        snprintf(buf, sizeof(buf), "%.0f", value == 0.0 ? 0.0 : value);
    } else {
        for (int precision = 15; precision <= 17; precision++) {
            snprintf(buf, sizeof(buf), "%.*g", precision, value);
            if (strtod(buf, NULL) == value) {
                break;
            }
        }
    }
    put_text(t, buf);
}

static void put_break(struct text * t, int indent) {
    put(t, "\n", 1);
    for (int i = 0; i < indent; i++) {
        put(t, "  ", 2);
    }
}

static bool is_container(const struct hwkv_json * node) {
    const enum hwkv_json_type type = hwkv_json_type(node);
    return type == HWKV_JSON_ARRAY || type == HWKV_JSON_OBJECT;
}

static bool has_container(const struct hwkv_json * node) {
    for (const struct hwkv_json * it = hwkv_json_child(node); it; it = hwkv_json_next(it)) {
        if (is_container(it)) {
            return true;
        }
    }
    return false;
}

// Members of an object and containers in an array take a line each; a row of a matrix and a flat object in an array stay
// on theirs. indent < 0: everything on one line, without spaces.
static void put_node(struct text * t, const struct hwkv_json * node, int indent, bool in_array) {
    switch (hwkv_json_type(node)) {
        case HWKV_JSON_NULL:   put_text(t, "null"); return;
        case HWKV_JSON_BOOL:   put_text(t, hwkv_json_is_true(node) ? "true" : "false"); return;
        case HWKV_JSON_NUMBER: put_number(t, node); return;
        case HWKV_JSON_STRING: put_string(t, hwkv_json_string(node)); return;
        default:               break;
    }
    const bool object = hwkv_json_type(node) == HWKV_JSON_OBJECT;
    const struct hwkv_json * child = hwkv_json_child(node);
    const bool broken = indent >= 0 && child && (has_container(node) || (object && !in_array));
    const bool rows   = broken && !object && hwkv_json_type(child) == HWKV_JSON_ARRAY;
    put(t, object ? "{" : "[", 1);
    for (; child; child = hwkv_json_next(child)) {
        if (broken) {
            put_break(t, indent + 1);
        }
        if (object) {
            put_string(t, hwkv_json_key(child));
            put_text(t, indent >= 0 ? ": " : ":");
        }
        put_node(t, child, rows ? -1 : indent < 0 ? indent : indent + 1, !object);
        if (hwkv_json_next(child)) {
            put_text(t, broken || indent < 0 ? "," : ", ");
        }
    }
    if (broken) {
        put_break(t, indent);
    }
    put(t, object ? "}" : "]", 1);
}

static int print(char ** out, const struct hwkv_json * node, int indent, struct hwkv_error * err) {
    struct text t = { 0 };
    const struct hwkv_locale locale = hwkv_locale_enter();
    put_node(&t, node, indent, false);
    hwkv_locale_leave(locale);
    if (indent >= 0) {
        put(&t, "\n", 1);
    }
    put(&t, "", 1);
    if (t.failed) {
        hwkv_free(t.data);
        *out = NULL;
        return hwkv_fail(err, HWKV_ERR_NOMEM, NULL, "out of memory");
    }
    *out = t.data;
    return 0;
}

int hwkv_json_print(char ** out, const struct hwkv_json * node, struct hwkv_error * err) {
    return print(out, node, 0, err);
}

int hwkv_json_print_compact(char ** out, const struct hwkv_json * node, struct hwkv_error * err) {
    return print(out, node, -1, err);
}
