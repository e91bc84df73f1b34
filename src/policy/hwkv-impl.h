// Shared by the hwkv-*.c files, not part of the API.

#ifndef HWKV_IMPL_H
#define HWKV_IMPL_H

#include "hwkv-error.h"
#include "hwkv-json.h"

// hwkv-alloc.c

void * hwkv_alloc    (size_t n, size_t size); // zeroed; NULL on overflow or when memory is out
void * hwkv_alloc_raw(size_t size);           // not zeroed
void   hwkv_free     (void * ptr);            // NULL is fine

// hwkv-json-scan.c

// Checks that text is strict JSON and UTF-8 within the depth limit; cJSON alone accepts more than JSON.
int hwkv_json_scan(const char * text, size_t size, struct hwkv_error * err);

// hwkv-json.c

// What was given to hwkv_json_new_int or hwkv_json_new_uint where a double does not print it; else NULL.
const char * hwkv_json_digits(const struct hwkv_json * node);

// hwkv-policy.c

struct hwkv_policy {
    struct hwkv_geometry    geo;
    int32_t                 context;
    int32_t                 sinks;
    struct hwkv_entry       codebook[HWKV_CODE_MAX];
    int32_t                 n_codebook;
    int32_t                 reference;    // index in the codebook
    enum hwkv_type          type_k;
    enum hwkv_type          type_v;
    int32_t               * unit_start;   // [n_full + 1] first unit of each layer
    struct hwkv_point     * points;      // [HWKV_POINT_MAX] at most, grown
    int32_t                 n_point;
    int32_t                 cap_point;
    int32_t                 selected;
    bool                    has_calib;
    struct hwkv_calibration calib;
    char                  * extensions;
    char                    hash[65];
};

struct hwkv_cache hwkv_policy_cache(const struct hwkv_policy * policy); // that its scores, retention and bytes refer to

// hwkv-sha256.c

bool hwkv_is_hex64(const char * text); // a hash as text

// hwkv-entry.c

#define HWKV_TYPE_NAMES "f32, f16, bf16, q8_0, q4_0, q4_1, q5_0, q5_1 or iq4_nl" // in messages

// n bytes that are digits without a leading zero, of a number from 1 to HWKV_FULL - 1; else HWKV_ERR_RANGE, or HWKV_ERR_VALUE if they are no
// number.
int hwkv_parse_count(int32_t * out, const char * text, size_t n);

// hwkv-codebook.c

// The codebook of a policy to be made, in its order and with the reference, and its sinks.
int hwkv_codebook_validate(const struct hwkv_policy_params * params, struct hwkv_error * err);

// hwkv-scores.c

#define HWKV_KIND_COSINE   "cosine"
#define HWKV_KIND_EXPECTED "1 to 31 of a-z, 0-9, _ and -"

bool         hwkv_kind_is_valid (const char * kind);
const char * hwkv_score_expected(const char * kind, bool is_reference, double value); // where the value can't be; else NULL

int  hwkv_scores_validate(const struct hwkv_policy * policy, const struct hwkv_scores * scores, int32_t n, const char * path, struct hwkv_error * err);
// Tables of n_value numbers each, by kind, then context. Free them with hwkv_scores_free.
int  hwkv_scores_copy    (struct hwkv_scores ** out, const struct hwkv_scores * scores, int32_t n, size_t n_value, struct hwkv_error * err);
void hwkv_scores_free    (struct hwkv_scores * scores, int32_t n);

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
int hwkv_read_window(int32_t * out, const struct hwkv_at * at, struct hwkv_error * err);           // a positive integer or "full"
int hwkv_read_entry (struct hwkv_entry * out, const struct hwkv_at * at, int version, struct hwkv_error * err); // that, or with types from version 2 on

// Members that are known to be there. |min| and |max| are at most 2^53.
int hwkv_read_int64(int64_t * out, const struct hwkv_at * object, const char * key, int64_t min, int64_t max, struct hwkv_error * err);
int hwkv_read_int32(int32_t * out, const struct hwkv_at * object, const char * key, int32_t min, int32_t max, struct hwkv_error * err);
int hwkv_read_text (char * out, size_t out_size, const struct hwkv_at * object, const char * key, struct hwkv_error * err);
int hwkv_read_hash (char out[65], const struct hwkv_at * object, const char * key, bool may_be_empty, struct hwkv_error * err);

// hwkv-point.c

// Adds a point whose validation is one JSON object as compact text, or NULL; it is taken over, and freed when this fails.
int hwkv_policy_put_point(struct hwkv_policy * policy, const struct hwkv_point_params * params, char * validation, struct hwkv_error * err);

// hwkv-scores-read.c, hwkv-point-read.c, hwkv-policy-read.c

// The scores of a point, as a file of this version has them. The tables are allocated one by one; free them with hwkv_free, also when this fails.
int hwkv_scores_read(struct hwkv_scores tables[HWKV_KIND_MAX], int32_t * n, const struct hwkv_policy * policy, const struct hwkv_at * at, int version,
                     struct hwkv_error * err);

// A matrix layer x KV head, whatever its elements are.
int hwkv_expect_matrix(const struct hwkv_geometry * geo, const struct hwkv_at * at, struct hwkv_error * err);

int hwkv_policy_read_points(struct hwkv_policy * policy, const struct hwkv_at * at, int version, struct hwkv_error * err);
int hwkv_policy_read_json(struct hwkv_policy ** out, const struct hwkv_json * root, struct hwkv_error * err);

#endif // HWKV_IMPL_H
