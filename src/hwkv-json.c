// The only file that knows cJSON. A node of ours is a cJSON item under another name.

#include "hwkv-impl.h"

#include <cjson/cJSON.h>

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

void hwkv_json_set_hooks(void * (*alloc)(size_t size), void (*release)(void * ptr)) {
    cJSON_Hooks hooks = { alloc, release };
    cJSON_InitHooks(alloc && release ? &hooks : NULL);
}

void hwkv_json_free(struct hwkv_json * node) {
    cJSON_Delete((cJSON *) (void *) node);
}

//
// strictness that cJSON lacks
//

static int compare_keys(const void * a, const void * b) {
    return strcmp(*(const char * const *) a, *(const char * const *) b);
}

// Sorting keeps an object with a million members from taking forever.
static int check_duplicates(const cJSON * object, const char * path, struct hwkv_error * err) {
    size_t n = 0;
    for (const cJSON * it = object->child; it; it = it->next) {
        n++;
    }
    if (n < 2) {
        return 0;
    }
    const char ** keys = hwkv_alloc(n, sizeof(*keys));
    if (!keys) {
        return hwkv_fail(err, HWKV_ERR_NOMEM, path, "out of memory");
    }
    n = 0;
    for (const cJSON * it = object->child; it; it = it->next) {
        keys[n++] = it->string;
    }
    qsort(keys, n, sizeof(*keys), compare_keys);
    int status = 0;
    for (size_t i = 1; i < n && status == 0; i++) {
        if (strcmp(keys[i - 1], keys[i]) == 0) {
            status = hwkv_fail(err, HWKV_ERR_DUPLICATE_KEY, path, "found the key \"%s\" twice, expected it once", keys[i]);
        }
    }
    hwkv_free(keys);
    return status;
}

static int check_tree(const cJSON * item, char * path, size_t path_size, struct hwkv_error * err) {
    if (cJSON_IsNumber(item) && !isfinite(item->valuedouble)) {
        return hwkv_fail(err, HWKV_ERR_NOT_FINITE, path, "found a number beyond the range of a double, expected a finite one");
    }
    int status = cJSON_IsObject(item) ? check_duplicates(item, path, err) : 0;
    const size_t end = strlen(path);
    size_t i = 0;
    for (const cJSON * it = item->child; it && status == 0; it = it->next, i++) {
        // a path is worth building only for what can be at fault
        if (it->child || (cJSON_IsNumber(it) && !isfinite(it->valuedouble))) {
            if (cJSON_IsObject(item)) {
                snprintf(path + end, path_size - end, ".");
                hwkv_copy(path + strlen(path), path_size - strlen(path), it->string);
            } else {
                snprintf(path + end, path_size - end, "[%zu]", i);
            }
            status = check_tree(it, path, path_size, err);
            path[end] = '\0';
        }
    }
    return status;
}

int hwkv_json_parse(struct hwkv_json ** out, const char * text, size_t size, struct hwkv_error * err) {
    *out = NULL;
    int status = hwkv_scan(text, size, err);
    if (status) {
        return status;
    }
    // the text is known to be good, so all that can fail is memory
    const char * end  = NULL;
    cJSON      * item = cJSON_ParseWithLengthOpts(text, size, &end, false);
    if (!item) {
        return hwkv_fail(err, HWKV_ERR_NOMEM, NULL, "out of memory");
    }
    char path[sizeof(err->path)] = "$";
    status = check_tree(item, path, sizeof(path), err);
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
    const cJSON * item = from_node(node);
    if (cJSON_IsObject(item)) {
        return HWKV_JSON_OBJECT;
    }
    if (cJSON_IsArray(item)) {
        return HWKV_JSON_ARRAY;
    }
    if (cJSON_IsString(item)) {
        return HWKV_JSON_STRING;
    }
    if (cJSON_IsNumber(item)) {
        return HWKV_JSON_NUMBER;
    }
    return cJSON_IsBool(item) ? HWKV_JSON_BOOL : HWKV_JSON_NULL;
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

double hwkv_json_number(const struct hwkv_json * node) {
    return from_node(node)->valuedouble;
}

int32_t hwkv_json_size(const struct hwkv_json * node) {
    return cJSON_GetArraySize(from_node(node));
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

struct hwkv_json * hwkv_json_new_number(double value) {
    return to_node(cJSON_CreateNumber(value));
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
