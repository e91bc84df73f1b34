// JSON trees: read strictly, built, printed. cJSON is behind it, in hwkv-json.c alone.
//
// Shared by library, bridge and tools, not part of the public API.

#ifndef HWKV_JSON_H
#define HWKV_JSON_H

#include "hwkv.h"

#ifdef __cplusplus
extern "C" {
#endif

struct hwkv_json; // a node

enum hwkv_json_type { HWKV_JSON_NULL, HWKV_JSON_BOOL, HWKV_JSON_NUMBER, HWKV_JSON_STRING, HWKV_JSON_ARRAY, HWKV_JSON_OBJECT };

// One value of RFC 8259 in UTF-8 and nothing after it, nested at most HWKV_DEPTH_MAX deep, without duplicate keys and numbers
// beyond double. Free the tree with hwkv_json_free.
int  hwkv_json_parse(struct hwkv_json ** out, const char * text, size_t size, struct hwkv_error * err);
void hwkv_json_free (struct hwkv_json * node); // NULL is fine

//
// reading
//

enum hwkv_json_type      hwkv_json_type     (const struct hwkv_json * node);
const char             * hwkv_json_type_name(enum hwkv_json_type type);                             // "a string", for messages
const struct hwkv_json * hwkv_json_child    (const struct hwkv_json * node);                        // first element or member, or NULL
const struct hwkv_json * hwkv_json_next     (const struct hwkv_json * node);                        // the one after it, or NULL
const char             * hwkv_json_key      (const struct hwkv_json * node);                        // of a member
const struct hwkv_json * hwkv_json_get      (const struct hwkv_json * object, const char * key);    // NULL if there is none
const char             * hwkv_json_string   (const struct hwkv_json * node);                        // of a string
bool                     hwkv_json_is_true  (const struct hwkv_json * node);
double                   hwkv_json_number   (const struct hwkv_json * node);                        // of a number
int32_t                  hwkv_json_size     (const struct hwkv_json * node);                        // elements or members of what was parsed

//
// building
//

// These return NULL when memory is out. Text must be UTF-8.
struct hwkv_json * hwkv_json_new_object(void);
struct hwkv_json * hwkv_json_new_array (void);
struct hwkv_json * hwkv_json_new_null  (void);
struct hwkv_json * hwkv_json_new_bool  (bool value);
struct hwkv_json * hwkv_json_new_string(const char * text);
struct hwkv_json * hwkv_json_new_number(double value);      // printed so that reading gives it back; null if it is not finite
struct hwkv_json * hwkv_json_new_int   (int64_t value);     // printed with all its digits
struct hwkv_json * hwkv_json_new_uint  (uint64_t value);
struct hwkv_json * hwkv_json_new_parsed(const char * text); // JSON text that was kept, to stand in a tree; NULL also if it is none

// These take over `value` even when they fail, and fail when it or the container is NULL, so that calls can be chained and
// checked once. A key must not be added twice.
bool hwkv_json_add   (struct hwkv_json * object, const char * key, struct hwkv_json * value);
bool hwkv_json_append(struct hwkv_json * array, struct hwkv_json * value);

//
// printing
//

// The same tree always gives the same bytes. Free them with hwkv_string_free.
int hwkv_json_print        (char ** out, const struct hwkv_json * node, struct hwkv_error * err); // indented, ends with a line break
int hwkv_json_print_compact(char ** out, const struct hwkv_json * node, struct hwkv_error * err); // one line without spaces

#ifdef __cplusplus
}
#endif

#endif // HWKV_JSON_H
