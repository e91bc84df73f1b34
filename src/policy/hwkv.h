// HeadWiseKV: policies that give every physical KV head its own residency window.
//
// This is the whole public C API. It needs no llama.cpp and no ggml: policies, costs and memory plans can be
// read, made and checked anywhere. The bridge into llama.cpp (llama-hwkv-*.h) builds on it.
//
// ---------------------------------------------------------------------------------------------------------
// The policy file, version 2
//
// A policy is one JSON object (RFC 8259, UTF-8, at most HWKV_FILE_MAX bytes, nested at most HWKV_DEPTH_MAX deep).
// Reading is strict: an unknown, missing or duplicate key, a wrong type or an inconsistent number is an error.
// policies/policy.schema.json says the same as a JSON Schema.
//
//   format            "headwisekv-policy"
//   version           2; what version 1 has instead is told below
//   model             the model the entries were chosen for
//     architecture      as in the GGUF, e.g. "qwen35"
//     name              free text
//     fingerprint       64 hex digits: sha256 over architecture, geometry, tokenizer, tensor names and shapes;
//                       "" binds the policy to the geometry only
//     type_fingerprint  64 hex digits: sha256 over tensor names and types (the quantisation); "" = not recorded
//     n_layer           all layers of the model
//     layers            the full-attention layers in execution order, each an object
//       layer             index in the model, ascending
//       n_head, n_head_kv query heads and physical KV heads; n_head is a multiple of n_head_kv
//       head_dim_k, head_dim_v
//   context           C: the context length the scores, retention and bytes refer to
//   cache_types       {"k": "f16", "v": "f16"}: the types of the reference, and of a cache under entries without types
//   codebook          the entries a head can be given, all of one kind, none twice:
//                       windows alone     [256, 1024, "full"]: their types are left to the cache, or
//                       windows and types ["256:q4_0", "256:q8_0", "1024:q8_0/q4_0", "full:f16"]: of K and V, one where both are the same.
//                       Finite windows are below C. Entries stand in the order of the bytes that they take at C, if all heads have them; equal
//                       bytes by window, then by precision, of K before V: q4_0 iq4_nl q4_1 q5_0 q5_1 q8_0 bf16 f16 f32. One of them is the
//                       reference: full, with the types of cache_types where entries have types
//   sinks             s: a finite window w holds the first s positions and the w - s newest; s is below every window
//   operating_points  ordered, at least one, each an object
//     name              unique
//     tau               similarity floor in (0, 1] of a calibrated point, or
//     method            how the entries were chosen otherwise; exactly one of the two
//     budget, lambda    optional, both or neither, beside a method: the bytes that were to be used, and the price of a byte that came out
//     retention         R_C: the bytes divided by those of the reference for every head
//     retention_tokens  the mean of r_C(w)/C over the KV heads
//     retention_query   R^Q_C: the same mean over the query heads
//     min_score         the lowest score of a chosen entry; present exactly when there are scores of the kind "cosine" at C
//     bytes             N_C: nominal bytes at context C
//     artifact_id       64 hex digits that name the inputs of this point (no time, no path)
//     entries           matrix layer x KV head; each is written as in the codebook
//     scores            optional object: what each entry does to each head, kind -> layer x KV head x codebook, or
//                       kind -> {"4096": layer x KV head x codebook, ...} by context; without contexts they are at C.
//                       A kind is 1 to 31 of a-z, 0-9, _ and -. "cosine", and what begins with "cosine-", is a similarity of -1 to 1,
//                       and the reference has exactly 1; any other kind is a loss of at least 0, and the reference has exactly 0
//     validation        optional object: results on held-out text; kept, not interpreted
//   selected          the name of the point to use unless another is asked for
//   calibration       optional object
//     text              where the text came from
//     text_sha256       64 hex digits
//     seed, n_seq, n_query
//     query_rule        how query positions were drawn, e.g. "last-quarter"
//     tool              program and version
//   extensions        optional object: kept, not interpreted
//
// Version 1 is read, and written as version 2. It has windows alone; its points have "windows" where version 2 has "entries", "scores" that are
// the matrix of the kind "cosine" at C, and no budget, lambda, retention_tokens and retention_query.
//
// A window w is w positions including the current one. w >= n_ctx at run time means the full history.
// ---------------------------------------------------------------------------------------------------------
//
// Conventions: functions that can fail return 0 or a negative HWKV_ERR_*, put results in *out (NULL on failure)
// and explain in *err (may be NULL). Returned pointers live as long as their parent. Nothing here prints, exits
// or reads the environment. Objects may be used by several threads as long as nobody writes.

#ifndef HWKV_H
#define HWKV_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define HWKV_VERSION        "0.1.0"
#define HWKV_POLICY_FORMAT  "headwisekv-policy"
#define HWKV_POLICY_VERSION 2

#define HWKV_FULL      INT32_MAX            // the window "full"
#define HWKV_SINKS_MAX 256
#define HWKV_FILE_MAX  (64u * 1024 * 1024)  // bytes of a policy file
#define HWKV_DEPTH_MAX 32                   // nesting of a policy file
#define HWKV_NAME_MAX  128                  // bytes of a name, with the terminating zero
#define HWKV_LAYER_MAX 4096
#define HWKV_HEAD_MAX  1024
#define HWKV_CODE_MAX  64                   // codebook entries, full ones included
#define HWKV_KIND_MAX  16                   // tables of scores of an operating point
#define HWKV_POINT_MAX 256
#define HWKV_ENTRY_SIZE 48                  // bytes of an entry's spelling, with the terminating zero

//
// errors
//

enum hwkv_err {
    HWKV_OK                =   0,
    HWKV_ERR_ARG           =  -1,  // the caller passed something impossible
    HWKV_ERR_NOMEM         =  -2,
    HWKV_ERR_IO            =  -3,  // a file could not be opened, read or written
    HWKV_ERR_PARSE         =  -4,  // not JSON
    HWKV_ERR_TRUNCATED     =  -5,  // JSON that ends too early
    HWKV_ERR_TOO_LARGE     =  -6,  // over HWKV_FILE_MAX
    HWKV_ERR_TOO_DEEP      =  -7,  // over HWKV_DEPTH_MAX
    HWKV_ERR_UTF8          =  -8,  // not UTF-8
    HWKV_ERR_DUPLICATE_KEY =  -9,
    HWKV_ERR_NOT_FINITE    = -10,  // NaN, Infinity or a number beyond double
    HWKV_ERR_RANGE         = -11,  // a number outside its range, or a fraction where an integer belongs
    HWKV_ERR_TYPE          = -12,  // a JSON value of the wrong type
    HWKV_ERR_UNKNOWN_KEY   = -13,
    HWKV_ERR_MISSING_KEY   = -14,
    HWKV_ERR_VALUE         = -15,  // right type, but contradicts the rest of the file
    HWKV_ERR_VERSION       = -16,  // another format or version
    HWKV_ERR_MISMATCH      = -17,  // the policy is for another model
    HWKV_ERR_BUDGET        = -18,  // no operating point fits the budget
    HWKV_ERR_INTERNAL      = -19,
};

struct hwkv_error {
    int      code;
    uint32_t line;      // 1-based position in the file, 0 if unknown
    uint32_t column;
    char     path[160]; // JSON path such as $.operating_points[1].entries[3][0], or ""
    char     msg[256];  // one line: what was found, what was expected
};

// "HWKV_ERR_TYPE"; "HWKV_ERR_?" for a number that is none
const char * hwkv_err_name(int code);

// One line for people: path or line:column, then the message. Always terminated; returns buf.
char * hwkv_error_format(const struct hwkv_error * err, char * buf, size_t buf_size);

// All memory of the library comes from here, but for what cJSON takes while a text is read or written: its hooks belong to the
// program. Set before anything else and from one thread only; NULLs restore malloc and free. Objects must be freed under the
// allocator that made them.
void hwkv_set_allocator(void * (*alloc)(size_t size), void (*release)(void * ptr));

//
// cache types
//

enum hwkv_type {
    HWKV_TYPE_CACHE = -1, // left open: the type that the cache is made with
    HWKV_TYPE_F32,
    HWKV_TYPE_F16,
    HWKV_TYPE_BF16,
    HWKV_TYPE_Q8_0,
    HWKV_TYPE_Q4_0,
    HWKV_TYPE_Q4_1,
    HWKV_TYPE_Q5_0,
    HWKV_TYPE_Q5_1,
    HWKV_TYPE_IQ4_NL,
    HWKV_TYPE_COUNT,
};

const char * hwkv_type_name(enum hwkv_type type);                 // "q8_0"
int          hwkv_type_from_name(const char * name);              // enum hwkv_type, or -1
size_t       hwkv_type_row_size(enum hwkv_type type, int64_t n);  // bytes of n elements; 0 if n is not a whole number of blocks

//
// model geometry
//

// il is the index of a layer among all of the model, jl that among its full-attention layers.
struct hwkv_layer {
    int32_t il;
    int32_t n_head;
    int32_t n_head_kv;
    int32_t head_dim_k;
    int32_t head_dim_v;
};

struct hwkv_geometry {
    char    architecture[64];
    char    name[HWKV_NAME_MAX];
    char    fingerprint[65];
    char    type_fingerprint[65];
    int32_t n_layer;     // all layers
    int32_t n_full;      // full-attention layers
    int32_t v_width_max; // widest V row of any layer in elements (llama.cpp pads V to it without flash attention); 0: of the full-attention layers

    struct hwkv_layer * layers; // [n_full], owned
};

int  hwkv_geometry_init(struct hwkv_geometry * geo, int32_t n_full, struct hwkv_error * err); // zeroed, layers allocated
int  hwkv_geometry_copy(struct hwkv_geometry * dst, const struct hwkv_geometry * src, struct hwkv_error * err);
int  hwkv_geometry_validate(const struct hwkv_geometry * geo, struct hwkv_error * err);
void hwkv_geometry_free(struct hwkv_geometry * geo); // frees the layers, not geo

// The cache that is spoken of: its context, and its types for entries that leave them open.
struct hwkv_cache {
    int64_t        n_ctx;
    enum hwkv_type type_k;
    enum hwkv_type type_v;
};

//
// codebook
//

// What a head can be given. Points name entries by their index in the codebook; nothing is looked up by a window.
struct hwkv_entry {
    int32_t        window; // HWKV_FULL, or finite with its sinks
    enum hwkv_type type_k; // HWKV_TYPE_CACHE: left to the cache, in all entries of a codebook for both K and V, or in none
    enum hwkv_type type_v;
};

struct hwkv_entry hwkv_entry_of_window(int32_t window); // types left open
bool              hwkv_entry_has_types(const struct hwkv_entry * entry); // of its own
bool              hwkv_entry_equal    (const struct hwkv_entry * a, const struct hwkv_entry * b);
// The entry as a cache takes it: full where the window is not below the context, the cache's types where they were left open.
struct hwkv_entry hwkv_entry_settle   (const struct hwkv_entry * entry, const struct hwkv_cache * cache);

// The spelling of the file: "256", "full", "256:q8_0", "full:q8_0/q4_0".
int    hwkv_entry_parse (struct hwkv_entry * entry, const char * text, struct hwkv_error * err);
char * hwkv_entry_format(const struct hwkv_entry * entry, char buf[HWKV_ENTRY_SIZE]); // returns buf

// Brings entries into the order of the file: by the bytes they take if all heads have them, then by window, then by precision. An entry that
// is there twice is an error, and what no codebook can have.
int     hwkv_codebook_sort     (struct hwkv_entry * codebook, int32_t n, const struct hwkv_geometry * geo, const struct hwkv_cache * cache, struct hwkv_error * err);
// The entry that scores and shares refer to: full, with types left open or the cache's. -1: there is none.
int32_t hwkv_codebook_reference(const struct hwkv_entry * codebook, int32_t n, const struct hwkv_cache * cache);

//
// policy
//

struct hwkv_policy;

// What a calibration leaves for the record. Empty text_sha256 means there was none.
struct hwkv_calibration {
    char    text[256];
    char    text_sha256[65];
    int64_t seed;
    int32_t n_seq;
    int32_t n_query;
    char    query_rule[64];
    char    tool[64];
};

// What every entry does to every head, by one measure and at one context.
struct hwkv_scores {
    char     kind[32];
    int32_t  context;
    double * values;               // [n_unit][n_codebook]
};

struct hwkv_point {
    char         name[HWKV_NAME_MAX];
    double       tau;              // 0 if the point has a method instead
    char         method[HWKV_NAME_MAX];
    uint64_t     budget;           // bytes; 0 if there was none
    double       lambda;           // NAN without a budget
    double       retention;        // R_C
    double       retention_tokens; // mean of r_C(w)/C over KV heads
    double       retention_query;  // R^Q_C
    double       min_score;        // NAN without scores of the kind "cosine" at C
    uint64_t     bytes;            // N_C
    char         artifact_id[65];
    int32_t    * entries;          // [n_unit] index in the codebook, layer by layer, head by head
    struct hwkv_scores * scores;   // [n_scores] by kind, then context
    int32_t      n_scores;
    char       * validation;       // JSON object text, or NULL
};

struct hwkv_policy_params {
    const struct hwkv_geometry * geometry; // copied
    int32_t         context;
    int32_t         sinks;
    const struct hwkv_entry * codebook;    // copied; in the order of hwkv_codebook_sort, with the reference
    int32_t         n_codebook;
    enum hwkv_type  type_k;                // of the reference, and of a cache under entries without types
    enum hwkv_type  type_v;
};

struct hwkv_policy_params hwkv_policy_params_default(void);

// An empty policy; add at least one point before saving.
int  hwkv_policy_init (struct hwkv_policy ** out, const struct hwkv_policy_params * params, struct hwkv_error * err);
int  hwkv_policy_load (struct hwkv_policy ** out, const char * path, struct hwkv_error * err);
int  hwkv_policy_parse(struct hwkv_policy ** out, const char * text, size_t size, struct hwkv_error * err);
void hwkv_policy_free (struct hwkv_policy * policy);

// Writes text beside path, syncs and renames: path is either the old file or the whole new one. A device or a pipe is
// written to as it is.
int  hwkv_file_write  (const char * path, const char * text, struct hwkv_error * err);
int  hwkv_policy_save (const struct hwkv_policy * policy, const char * path, struct hwkv_error * err);
// The same bytes as a string; free with hwkv_string_free.
int  hwkv_policy_print(char ** out, const struct hwkv_policy * policy, struct hwkv_error * err);
void hwkv_string_free (char * text);

// entries: [hwkv_policy_n_unit] and scores are copied. Exactly one of tau > 0 and method != NULL; a budget only beside a method.
// Retention, bytes and min_score are computed. artifact_id NULL: a hash of the policy's own content.
struct hwkv_point_params {
    const char    * name;
    double          tau;
    const char    * method;
    uint64_t        budget;      // 0: none
    double          lambda;      // 0 or NAN without a budget
    const int32_t * entries;
    const struct hwkv_scores * scores; // [n_scores], no kind twice at one context
    int32_t         n_scores;
    const char    * artifact_id;
    const char    * validation;  // JSON object text or NULL
};
int hwkv_policy_add_point(struct hwkv_policy * policy, const struct hwkv_point_params * params, struct hwkv_error * err);
int hwkv_policy_select   (struct hwkv_policy * policy, const char * name, struct hwkv_error * err);
int hwkv_policy_set_calibration(struct hwkv_policy * policy, const struct hwkv_calibration * calib, struct hwkv_error * err);
int hwkv_policy_set_validation (struct hwkv_policy * policy, int32_t ip, const char * json, struct hwkv_error * err);
int hwkv_policy_set_extensions (struct hwkv_policy * policy, const char * json, struct hwkv_error * err);

const struct hwkv_geometry    * hwkv_policy_geometry   (const struct hwkv_policy * policy);
const struct hwkv_calibration * hwkv_policy_calibration(const struct hwkv_policy * policy); // NULL if none
const struct hwkv_entry * hwkv_policy_codebook(const struct hwkv_policy * policy, int32_t * n); // n may be NULL
int32_t            hwkv_policy_reference (const struct hwkv_policy * policy);             // index of the entry that scores and shares refer to
bool               hwkv_policy_has_types (const struct hwkv_policy * policy);             // entries have types of their own
int32_t            hwkv_policy_context   (const struct hwkv_policy * policy);
int32_t            hwkv_policy_sinks     (const struct hwkv_policy * policy);
enum hwkv_type     hwkv_policy_type_k    (const struct hwkv_policy * policy);
enum hwkv_type     hwkv_policy_type_v    (const struct hwkv_policy * policy);
int32_t            hwkv_policy_n_unit    (const struct hwkv_policy * policy);             // all (layer, KV head) pairs
int32_t            hwkv_policy_unit      (const struct hwkv_policy * policy, int32_t jl, int32_t ih); // index of a pair
int32_t            hwkv_policy_n_point   (const struct hwkv_policy * policy);
int32_t            hwkv_policy_selected  (const struct hwkv_policy * policy);
// By name, or by 0-based number when no point has that name; -1 if there is none.
int32_t            hwkv_policy_find_point(const struct hwkv_policy * policy, const char * name_or_number);
// The same for what a user asks for: NULL is the selected point, and HWKV_ERR_ARG tells the points there are.
int                hwkv_policy_choose_point(int32_t * ip, const struct hwkv_policy * policy, const char * name_or_number, struct hwkv_error * err);
const struct hwkv_point * hwkv_policy_point(const struct hwkv_policy * policy, int32_t ip);
// The table of a kind at the policy's context, [n_unit][n_codebook]; NULL if there is none.
const double     * hwkv_point_scores     (const struct hwkv_point * point, const struct hwkv_policy * policy, const char * kind);
const char       * hwkv_policy_extensions(const struct hwkv_policy * policy);             // JSON text or NULL
const char       * hwkv_policy_hash      (const struct hwkv_policy * policy);             // sha256 of the file's bytes; "" if it was not read from one

// Does the policy fit this model? Other geometry, tokenizer or tensors: HWKV_ERR_MISMATCH. Only other tensor types:
// 0 with *warning set (static text), or HWKV_ERR_MISMATCH when strict. warning may be NULL.
int hwkv_policy_check_model(const struct hwkv_policy * policy, const struct hwkv_geometry * model, bool strict, const char ** warning, struct hwkv_error * err);

// May a user choose the cache's types beside this policy? HWKV_ERR_ARG where entries have their own; option is what chose them, as in "-ctk".
int hwkv_policy_check_types_option(const struct hwkv_policy * policy, const char * option, struct hwkv_error * err);

//
// cost (paper: nominal storage and normalised retention)
//

int64_t  hwkv_retained (int32_t window, int64_t n_ctx);                                                                     // r_C(w)
uint64_t hwkv_cost_head(const struct hwkv_layer * layer, const struct hwkv_entry * entry, const struct hwkv_cache * cache); // n_lh,C(w)

// entries laid out as in struct hwkv_point; NULL: every head full, in the cache's types, which is what R_C is a share of
uint64_t hwkv_cost            (const struct hwkv_geometry * geo, const struct hwkv_entry * codebook, const int32_t * entries, const struct hwkv_cache * cache); // N_C(a)
double   hwkv_retention       (const struct hwkv_geometry * geo, const struct hwkv_entry * codebook, const int32_t * entries, const struct hwkv_cache * cache); // R_C(a)
double   hwkv_retention_tokens(const struct hwkv_geometry * geo, const struct hwkv_entry * codebook, const int32_t * entries, int64_t n_ctx); // mean of r_C(w)/C over KV heads
double   hwkv_retention_query (const struct hwkv_geometry * geo, const struct hwkv_entry * codebook, const int32_t * entries, int64_t n_ctx); // R^Q_C(a): the same over query heads

//
// selection
//

// The first codebook entry with score >= tau, which is the cheapest; the reference has 1 and always does. scores: [n_codebook].
int32_t hwkv_select_threshold(const double * scores, int32_t n_codebook, double tau);

struct hwkv_record { double retention; double min_score; };
// The paper's budget rule: retention <= budget, then highest floor, then lowest retention, then first. -1: none fits.
int32_t hwkv_select_budget(const struct hwkv_record * records, int32_t n, double budget);

// DuoAttention projection: the share `ratio` of units with the lowest score at codebook entry `ic` gets the entry `reference`,
// the others get `ic`. Ties go to the lower unit. entries: [n_unit] out.
struct hwkv_split {
    const double * scores;     // [n_unit][n_codebook]
    int32_t        n_unit;
    int32_t        n_codebook;
    int32_t        ic;
    int32_t        reference;
    double         ratio;
};
int hwkv_select_binary(int32_t * entries, const struct hwkv_split * split, struct hwkv_error * err);

//
// allocation: entries for a number of bytes
//

struct hwkv_allocate_params {
    const double   * loss;    // [n_unit][n_entry] what a unit loses under an entry, at least 0; losses add up
    const uint64_t * bytes;   // [n_unit][n_entry] what it takes
    int32_t          n_unit;
    int32_t          n_entry; // at most HWKV_CODE_MAX
    int32_t          n_fixed; // the first units have their entries already, which are paid for like the others
    uint64_t         budget;  // bytes of all units
};

struct hwkv_allocation {
    uint64_t bytes;
    double   loss;
    double   lambda;          // the price of a byte: loss that the next one would have saved; 0: all that units can use is there
};

// The entries with the least loss found within the budget: every unit takes the one with the least loss + lambda x bytes, at the lambda that spends
// the budget, and what is left over buys what gains the most, also by exchange. The same input gives the same choice. entries: [n_unit], of which the
// fixed ones are given. A budget that exceeds another by the largest difference of a unit's entries never loses more. HWKV_ERR_BUDGET: not even the
// smallest allocation fits; it is in *out and in entries.
int hwkv_allocate(struct hwkv_allocation * out, int32_t * entries, const struct hwkv_allocate_params * params, struct hwkv_error * err);

//
// plan: what the runtime allocates
//

struct hwkv_plan_params {
    uint32_t       n_ctx;       // as given to llama.cpp; rounded up to 256 as it does
    uint32_t       n_seq_max;
    bool           kv_unified;
    bool           flash_attn;
    enum hwkv_type type_k;
    enum hwkv_type type_v;
    uint32_t       n_pad;       // cells of a finite group are a multiple of this: 64 on a CPU, 256 where a GPU holds some of them
    uint32_t       n_rollback;  // positions per sequence that can be taken back, at most its context
    int32_t        v_width_max; // as in the model's geometry, which a policy file does not carry; 0: the policy's
    uint32_t       n_ubatch;    // tokens of a batch that rings may get room for where that takes less than scratch memory: on a GPU; 0: none
};

struct hwkv_plan_params hwkv_plan_params_default(void); // 4096, 1, true, true, f16, f16, 64, 64, 0, 0

// The heads that have the same entry.
struct hwkv_group {
    struct hwkv_entry entry; // as the runtime takes it: full where the window is not below the context, types settled
    int32_t  ic;        // of the codebook: the last of the entries that come to this
    int32_t  n_layer;   // layers with heads in this group
    int32_t  n_head;    // KV heads over all layers
    uint32_t n_cells;   // per stream
    uint32_t n_room;    // tokens of a batch that its cells have room for; a larger one is attended to beside them, in scratch memory
    uint64_t k_size;    // bytes over all layers and streams
    uint64_t v_size;
};

struct hwkv_plan;

// Groups of one operating point: full ones first, then ascending windows; the codebook's order among equal windows. Windows >= the
// context of a sequence are full. Windows alone never take more bytes than the plain cache: that is HWKV_ERR_INTERNAL.
int  hwkv_plan_init(struct hwkv_plan ** out, const struct hwkv_policy * policy, int32_t ip, const struct hwkv_plan_params * params, struct hwkv_error * err);
void hwkv_plan_free(struct hwkv_plan * plan);

int32_t                   hwkv_plan_n_group   (const struct hwkv_plan * plan);
const struct hwkv_group * hwkv_plan_group     (const struct hwkv_plan * plan, int32_t ig);
// KV heads of a layer in a group, ascending; *n may be 0.
const int32_t           * hwkv_plan_heads     (const struct hwkv_plan * plan, int32_t ig, int32_t jl, int32_t * n);
int32_t                   hwkv_plan_group_of  (const struct hwkv_plan * plan, int32_t jl, int32_t ih);
const struct hwkv_plan_params * hwkv_plan_params_of(const struct hwkv_plan * plan); // what it was made with
uint32_t                  hwkv_plan_n_stream  (const struct hwkv_plan * plan);
uint32_t                  hwkv_plan_n_ctx_seq (const struct hwkv_plan * plan);  // context of one sequence
uint64_t                  hwkv_plan_size      (const struct hwkv_plan * plan);  // bytes of all groups
uint64_t                  hwkv_plan_size_plain(const struct hwkv_plan * plan);  // bytes of llama.cpp's own cache for the same layers
bool                      hwkv_plan_is_plain  (const struct hwkv_plan * plan);  // one full group of the cache's types: llama.cpp's own cache serves it

//
// replay: attention outputs under every candidate window, from one trace
//

// One KV head of one traced layer. Positions are 0-based and contiguous: row i of k and v is position i.
struct hwkv_trace_head {
    int32_t       n_pos;       // rows of k and v
    int32_t       n_q_head;    // query heads that share the KV head
    int32_t       dim_k;
    int32_t       dim_v;
    const float * k;           // [n_pos][dim_k], as the cache rounds them
    const float * v;           // [n_pos][dim_v]
    float         scale;       // of the logits
    float         softcap;     // c > 0: logits become c*tanh(logit/c)
    const float * sink_logit;  // [n_q_head] extra logit without a value in the softmax (learned attention sinks), or NULL
};

struct hwkv_replay_params {
    const struct hwkv_entry * codebook; // windows ascend, the last one is full; types are not looked at
    int32_t         n_codebook;
    int32_t         sinks;     // a finite window w is the first `sinks` and the w - sinks newest positions
    int32_t         n_thread;  // the same numbers come out whatever it is
};

// q: [n_query][n_q_head][dim_k], at positions pos: [n_query], in any order; out: [n_query][n_q_head][n_codebook][dim_v];
// mass: [n_query][n_q_head][n_codebook] attention mass of the full history that the window omits, or NULL.
// A query at position t sees [0, t]; under a window w <= t only [0, sinks) and [t - (w - sinks) + 1, t].
// NaN or infinity in what is seen is HWKV_ERR_NOT_FINITE; logits too large for a float count as the largest.
int hwkv_replay(const struct hwkv_trace_head * head, const struct hwkv_replay_params * params, const float * q, const int32_t * pos,
                int32_t n_query, float * out, float * mass, struct hwkv_error * err);

// Stabilised cosine of the paper: vectors of norm <= 1e-12 count as zero; both zero 1, one zero 0. Sums in double, in
// index order; equal vectors give exactly 1.
double hwkv_cosine(const float * a, const float * b, int32_t n);

// n unique values of [first, first + count), ascending, all of them if n >= count; from (seed, stream) by a generator of
// our own, so that the same numbers come everywhere. Returns how many.
int32_t hwkv_sample(int32_t * out, int32_t n, int32_t first, int32_t count, uint64_t seed, uint64_t stream);

//
// sha256
//

struct hwkv_sha256 { uint32_t h[8]; uint64_t n; unsigned char buf[64]; };

void hwkv_sha256_init  (struct hwkv_sha256 * s);
void hwkv_sha256_update(struct hwkv_sha256 * s, const void * data, size_t size);
void hwkv_sha256_string(struct hwkv_sha256 * s, const char * text);  // with its terminating zero, so that fields can't run together
void hwkv_sha256_i64   (struct hwkv_sha256 * s, int64_t value);      // little endian
void hwkv_sha256_final (struct hwkv_sha256 * s, char hex[65]);

#ifdef __cplusplus
}
#endif

#endif // HWKV_H
