// The only file that knows cJSON. A node of ours is a cJSON item under another name.

#include "hwkv-impl.h"
#include "hwkv-number.h"

#include <cjson/cJSON.h>

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const cJSON * from_node(const struct hwkv_json * node) {
    return (const cJSON *) (const void *) node;
}

static struct hwkv_json * to_node(cJSON * item) {
    return (struct hwkv_json *) (void *) item;
}

void hwkv_json_free(struct hwkv_json * node) {
    cJSON_Delete((cJSON *) (void *) node);
}

//
// strictness that cJSON lacks
//

static int kind(const cJSON * item) {
    return item->type & 0xFF;
}

static int compare_keys(const void * a, const void * b) {
    return strcmp(*(const char * const *) a, *(const char * const *) b);
}

// Sorting keeps an object with a million members from taking forever.
static int check_duplicates(const cJSON * object, size_t n, const struct hwkv_at * at, struct hwkv_error * err) {
    const char ** keys = hwkv_alloc(n, sizeof(*keys));
    if (!keys) {
        return hwkv_fail_at(err, HWKV_ERR_NOMEM, at, "out of memory");
    }
    n = 0;
    for (const cJSON * it = object->child; it; it = it->next) {
        keys[n++] = it->string;
    }
    qsort(keys, n, sizeof(*keys), compare_keys);
    int status = 0;
    for (size_t i = 1; i < n && status == 0; i++) {
        if (strcmp(keys[i - 1], keys[i]) == 0) {
            status = hwkv_fail_at(err, HWKV_ERR_DUPLICATE_KEY, at, "found the key \"%s\" twice, expected it once", keys[i]);
        }
    }
    hwkv_free(keys);
    return status;
}

static int check_tree(cJSON * item, const struct hwkv_at * at, struct hwkv_error * err) {
    if (kind(item) == cJSON_Number && !isfinite(item->valuedouble)) {
        return hwkv_fail_at(err, HWKV_ERR_NOT_FINITE, at, "found a number beyond the range of a double, expected a finite one");
    }
    // cJSON leaves the valueint of arrays and objects zero and would count their children anew each time
    bool leaves = true;
    for (const cJSON * it = item->child; it; it = it->next) {
        item->valueint++;
        leaves = leaves && !it->child && !(kind(it) == cJSON_Number && !isfinite(it->valuedouble));
    }
    const bool object = kind(item) == cJSON_Object;
    int status = object && item->valueint > 1 ? check_duplicates(item, (size_t) item->valueint, at, err) : 0;
    int32_t index = 0;
    for (cJSON * it = leaves ? NULL : item->child; it && status == 0; it = it->next, index++) {
        const struct hwkv_at at_child = { .up = at, .node = to_node(it), .key = object ? it->string : NULL, .index = index };
        status = check_tree(it, &at_child, err);
    }
    return status;
}

int hwkv_json_parse(struct hwkv_json ** out, const char * text, size_t size, struct hwkv_error * err) {
    *out = NULL;
    int status = hwkv_json_scan(text, size, err);
    if (status) {
        return status;
    }
    // the text is known to be good, so all that can fail is memory
    const char * end = NULL;
    const struct hwkv_locale locale = hwkv_locale_enter();
    cJSON * item = cJSON_ParseWithLengthOpts(text, size, &end, false);
    hwkv_locale_leave(locale);
    if (item) {
        const struct hwkv_at at = hwkv_at_root(to_node(item));
        status = check_tree(item, &at, err);
    } else {
        status = hwkv_fail(err, HWKV_ERR_NOMEM, NULL, "out of memory");
    }
    if (status) {
        cJSON_Delete(item);
        return status;
    }
    *out = to_node(item);
    return 0;
}

//
// reading
//

enum hwkv_json_type hwkv_json_type(const struct hwkv_json * node) {
    switch (kind(from_node(node))) {
        case cJSON_Object: return HWKV_JSON_OBJECT;
        case cJSON_Array:  return HWKV_JSON_ARRAY;
        case cJSON_String: return HWKV_JSON_STRING;
        case cJSON_Raw:
        case cJSON_Number: return HWKV_JSON_NUMBER;
        case cJSON_True:
        case cJSON_False:  return HWKV_JSON_BOOL;
        default:           return HWKV_JSON_NULL;
    }
}

const char * hwkv_json_type_name(enum hwkv_json_type type) {
    static const char * const names[] = { "null", "a boolean", "a number", "a string", "an array", "an object" };
    return names[type];
}

const struct hwkv_json * hwkv_json_child(const struct hwkv_json * node) {
    return to_node(from_node(node)->child);
}

const struct hwkv_json * hwkv_json_next(const struct hwkv_json * node) {
    return to_node(from_node(node)->next);
}

const char * hwkv_json_key(const struct hwkv_json * node) {
    return from_node(node)->string;
}

const struct hwkv_json * hwkv_json_get(const struct hwkv_json * object, const char * key) {
    return to_node(cJSON_GetObjectItemCaseSensitive(from_node(object), key));
}

const char * hwkv_json_string(const struct hwkv_json * node) {
    return from_node(node)->valuestring;
}

bool hwkv_json_is_true(const struct hwkv_json * node) {
    return cJSON_IsTrue(from_node(node));
}

const char * hwkv_json_digits(const struct hwkv_json * node) {
    return kind(from_node(node)) == cJSON_Raw ? from_node(node)->valuestring : NULL;
}

double hwkv_json_number(const struct hwkv_json * node) {
    const char * digits = hwkv_json_digits(node);
    return digits ? strtod(digits, NULL) : from_node(node)->valuedouble;
}

int32_t hwkv_json_size(const struct hwkv_json * node) {
    return from_node(node)->valueint;
}

//
// building
//

struct hwkv_json * hwkv_json_new_object(void) {
    return to_node(cJSON_CreateObject());
}

struct hwkv_json * hwkv_json_new_array(void) {
    return to_node(cJSON_CreateArray());
}

struct hwkv_json * hwkv_json_new_string(const char * text) {
    return to_node(cJSON_CreateString(text));
}

struct hwkv_json * hwkv_json_new_null(void) {
    return to_node(cJSON_CreateNull());
}

struct hwkv_json * hwkv_json_new_bool(bool value) {
    return to_node(cJSON_CreateBool(value));
}

struct hwkv_json * hwkv_json_new_number(double value) {
    return isfinite(value) ? to_node(cJSON_CreateNumber(value)) : hwkv_json_new_null();
}

// A double holds what has up to 15 digits; more are kept as text.
static struct hwkv_json * new_integer(uint64_t size, bool negative) {
    const uint64_t limit = UINT64_C(1000000000000000);
    if (size < limit) {
        return hwkv_json_new_number(negative ? -(double) size : (double) size);
    }
    char text[24];
    snprintf(text, sizeof(text), "%s%" PRIu64, negative ? "-" : "", size);
    return to_node(cJSON_CreateRaw(text));
}

struct hwkv_json * hwkv_json_new_int(int64_t value) {
    return new_integer(value < 0 ? 0 - (uint64_t) value : (uint64_t) value, value < 0);
}

struct hwkv_json * hwkv_json_new_uint(uint64_t value) {
    return new_integer(value, false);
}

struct hwkv_json * hwkv_json_new_parsed(const char * text) {
    struct hwkv_json * node = NULL;
    hwkv_json_parse(&node, text, strlen(text), NULL);
    return node;
}

bool hwkv_json_add(struct hwkv_json * object, const char * key, struct hwkv_json * value) {
    cJSON * item = (cJSON *) (void *) value;
    if (object && item && cJSON_AddItemToObject((cJSON *) (void *) object, key, item)) {
        return true;
    }
    cJSON_Delete(item);
    return false;
}

bool hwkv_json_append(struct hwkv_json * array, struct hwkv_json * value) {
    cJSON * item = (cJSON *) (void *) value;
    if (array && item && cJSON_AddItemToArray((cJSON *) (void *) array, item)) {
        return true;
    }
    cJSON_Delete(item);
    return false;
}
