// Shared by the hwkv-*.c files, not part of the API.

#ifndef HWKV_IMPL_H
#define HWKV_IMPL_H

#include "hwkv.h"

#if defined(__GNUC__)
#define HWKV_PRINTF(fmt, args) __attribute__((format(printf, fmt, args)))
#else
#define HWKV_PRINTF(fmt, args)
#endif

// hwkv-error.c

// Fill err (if not NULL) and return code. path may be NULL.
int hwkv_fail(struct hwkv_error * err, int code, const char * path, const char * fmt, ...) HWKV_PRINTF(4, 5);

// hwkv-alloc.c

void * hwkv_alloc    (size_t n, size_t size); // zeroed; NULL on overflow or when memory is out
void * hwkv_alloc_raw(size_t size);           // not zeroed
void   hwkv_free     (void * ptr);            // NULL is fine
char * hwkv_strdup   (const char * text);
// Copies text into a fixed field; what does not fit is cut at a whole UTF-8 character.
void   hwkv_copy     (char * dst, size_t dst_size, const char * text);
// For messages: text in quotes, cut to n bytes at a whole character. buf needs n + 6 bytes.
const char * hwkv_quote(char * buf, const char * text, size_t n);

// Memory that is taken piece by piece and released at once. Starts zeroed; pieces are not.
struct hwkv_arena {
    struct hwkv_chunk * chunks; // the newest first
    char              * at;     // the free end of the newest
    size_t              left;
    void              * last;   // the newest piece
};

void * hwkv_arena_alloc(struct hwkv_arena * arena, size_t size); // NULL when memory is out
void   hwkv_arena_undo (struct hwkv_arena * arena, void * ptr);  // gives ptr back if it is the newest piece
void   hwkv_arena_free (struct hwkv_arena * arena);

// hwkv-scan.c

// Checks that text is strict JSON and UTF-8 within the depth limit; cJSON alone accepts more than JSON.
int  hwkv_scan(const char * text, size_t size, struct hwkv_error * err);
bool hwkv_is_utf8(const char * text);

// hwkv-json.c: the only file that sees cJSON

struct hwkv_json; // a node

enum hwkv_json_type { HWKV_JSON_NULL, HWKV_JSON_BOOL, HWKV_JSON_NUMBER, HWKV_JSON_STRING, HWKV_JSON_ARRAY, HWKV_JSON_OBJECT };

// Parses strictly: scan, no duplicate keys, no numbers beyond double.
int  hwkv_json_parse(struct hwkv_json ** out, const char * text, size_t size, struct hwkv_error * err);
void hwkv_json_free (struct hwkv_json * node);
// The same for large texts: the nodes are in the arena, and cannot become part of another tree.
int  hwkv_json_parse_in(struct hwkv_json ** out, struct hwkv_arena * arena, const char * text, size_t size, struct hwkv_error * err);
void hwkv_json_free_in (struct hwkv_json * node, struct hwkv_arena * arena);
// Makes cJSON take its memory from hwkv_set_allocator's.
void hwkv_json_set_hooks(void);

enum hwkv_json_type      hwkv_json_type  (const struct hwkv_json * node);
const char             * hwkv_json_type_name(enum hwkv_json_type type);
const struct hwkv_json * hwkv_json_child (const struct hwkv_json * node);  // first element or member
const struct hwkv_json * hwkv_json_next  (const struct hwkv_json * node);
const char             * hwkv_json_key   (const struct hwkv_json * node);
const struct hwkv_json * hwkv_json_get   (const struct hwkv_json * object, const char * key);
const char             * hwkv_json_string(const struct hwkv_json * node);
bool                     hwkv_json_is_true(const struct hwkv_json * node);
double                   hwkv_json_number(const struct hwkv_json * node);
int32_t                  hwkv_json_size  (const struct hwkv_json * node);  // of a parsed array or object

// Builders return NULL when memory is out. The add functions take over `value` even when they fail, and accept NULL
// (then they fail), so that calls can be chained and checked once.
struct hwkv_json * hwkv_json_new_object(void);
struct hwkv_json * hwkv_json_new_array (void);
struct hwkv_json * hwkv_json_new_string(const char * text);
struct hwkv_json * hwkv_json_new_number(double value);
bool hwkv_json_add   (struct hwkv_json * object, const char * key, struct hwkv_json * value);
bool hwkv_json_append(struct hwkv_json * array, struct hwkv_json * value);

// hwkv-print.c

int hwkv_json_print        (char ** out, const struct hwkv_json * node, struct hwkv_error * err);
int hwkv_json_print_compact(char ** out, const struct hwkv_json * node, struct hwkv_error * err);

// hwkv-policy.c

struct hwkv_policy {
    struct hwkv_geometry    geo;
    int32_t                 context;
    int32_t                 sinks;
    struct hwkv_entry       codebook[HWKV_CODE_MAX];
    int32_t                 n_codebook;
    enum hwkv_type          type_k;
    enum hwkv_type          type_v;
    int32_t               * row_start;   // [n_full + 1] first unit of each layer
    struct hwkv_point     * points;      // [HWKV_POINT_MAX] at most, grown
    int32_t                 n_point;
    int32_t                 cap_point;
    int32_t                 selected;
    bool                    has_calib;
    struct hwkv_calibration calib;
    char                  * extensions;
    char                    hash[65];
};

bool              hwkv_is_hex64    (const char * text);
struct hwkv_cache hwkv_policy_cache(const struct hwkv_policy * policy); // that its scores, retention and bytes refer to

// hwkv-cost.c

// The entry as a cache takes it: full where the window is not below the context, the cache's types where they were left open.
struct hwkv_entry hwkv_entry_settle   (const struct hwkv_entry * entry, const struct hwkv_cache * cache);
bool              hwkv_entry_has_types(const struct hwkv_entry * entry); // of its own

// hwkv-field.c: typed reading with JSON paths

// A node and how it was reached; the path becomes text only when something is wrong there.
struct hwkv_at {
    const struct hwkv_at   * up;    // NULL: the root
    const struct hwkv_json * node;
    const char             * key;   // NULL: an element
    int32_t                  index;
};

struct hwkv_key {
    const char * name;
    bool         required;
};

struct hwkv_at hwkv_at_root   (const struct hwkv_json * node);
struct hwkv_at hwkv_at_member (const struct hwkv_at * object, const char * key); // its node is NULL if there is none
struct hwkv_at hwkv_at_element(const struct hwkv_at * array, const struct hwkv_json * node, int32_t index);

int hwkv_fail_at(struct hwkv_error * err, int code, const struct hwkv_at * at, const char * fmt, ...) HWKV_PRINTF(4, 5);

int hwkv_expect_type(const struct hwkv_at * at, enum hwkv_json_type type, struct hwkv_error * err);
int hwkv_expect_keys(const struct hwkv_at * at, const struct hwkv_key * keys, size_t n, struct hwkv_error * err); // an object with no others
int hwkv_expect_size(const struct hwkv_at * at, int32_t n, const char * what, struct hwkv_error * err);           // an array

int hwkv_read_number(double * out, const struct hwkv_at * at, struct hwkv_error * err);
int hwkv_read_window(int32_t * out, const struct hwkv_at * at, struct hwkv_error * err); // a positive integer or "full"

// Members that are known to be there. |min| and |max| are at most 2^53.
int hwkv_read_int64(int64_t * out, const struct hwkv_at * object, const char * key, int64_t min, int64_t max, struct hwkv_error * err);
int hwkv_read_int32(int32_t * out, const struct hwkv_at * object, const char * key, int32_t min, int32_t max, struct hwkv_error * err);
int hwkv_read_text (char * out, size_t out_size, const struct hwkv_at * object, const char * key, struct hwkv_error * err);
int hwkv_read_hash (char out[65], const struct hwkv_at * object, const char * key, bool may_be_empty, struct hwkv_error * err);

// hwkv-point-read.c, hwkv-policy-read.c

int hwkv_policy_read_points(struct hwkv_policy * policy, const struct hwkv_at * at, struct hwkv_error * err);
int hwkv_policy_read_json(struct hwkv_policy ** out, const struct hwkv_json * root, struct hwkv_error * err);

#endif // HWKV_IMPL_H
