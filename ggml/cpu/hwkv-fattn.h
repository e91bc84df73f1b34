// Flash attention on the CPU over plain pointers; hwkv-fattn-ggml.c puts it into ggml.
//
// The work is cut into items: some query rows of one KV head, or all of several, over a range of keys. Threads take items in any order;
// what an item gives does not depend on who computes it, so results are the same for every number of threads. Where
// the keys are cut into several ranges, items leave partial results that hwkv_fattn_merge puts together.

#ifndef HWKV_FATTN_H
#define HWKV_FATTN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum hwkv_fattn_type {
    HWKV_FATTN_F16  = 0,
    HWKV_FATTN_Q8_0 = 1, // blocks of 32: an F16 factor, 32 bytes
    HWKV_FATTN_Q4_0 = 2, // blocks of 32: an F16 factor, 16 bytes: values 0-15 plus 8 in the low halves, 16-31 in the high ones
};

#define HWKV_FATTN_TYPES 3

// K or V: [stream][head][key][dim], rows without gaps, the rest by strides in bytes
struct hwkv_fattn_kv {
    const char         * data;
    enum hwkv_fattn_type type;
    int32_t              dim;
    size_t               nb_key;
    size_t               nb_head;
    size_t               nb_stream;
};

struct hwkv_fattn {
    int32_t n_token;
    int32_t n_head;
    int32_t n_head_kv;
    int32_t n_stream;
    int32_t n_kv;

    const char * q; // F32 [stream][head][token][k.dim]
    size_t       q_nb_token;
    size_t       q_nb_head;
    size_t       q_nb_stream;

    struct hwkv_fattn_kv k;
    struct hwkv_fattn_kv v;

    const char * mask; // F16 [stream % n][head % n][token][key], added to the scores; may be NULL
    int32_t      mask_n_head;
    int32_t      mask_n_stream;
    size_t       mask_nb_token;
    size_t       mask_nb_head;
    size_t       mask_nb_stream;

    const float * sinks; // one score for each head that counts in the softmax and has no value; may be NULL
    float       * dst;   // F32 [stream][token][head][v.dim], no gaps

    float scale;
    float max_bias; // ALiBi, 0: none
    float softcap;  // 0: none
};

// how a call is cut into items; follows from the shapes alone
struct hwkv_fattn_plan {
    int32_t n_head;  // KV heads of an item
    int32_t n_row;   // query rows of each of them, at most
    int32_t n_tile;  // of n_row rows, for each KV head
    int32_t n_chunk; // ranges of keys
    int32_t n_key;   // keys of a range
    int32_t n_item;
    size_t  scratch_size; // bytes for each thread
    size_t  partial_size; // bytes for all of them
};

// false: shapes that this does not do
bool hwkv_fattn_plan_init(struct hwkv_fattn_plan * plan, const struct hwkv_fattn * f);

// bytes of work memory for n_thread threads; any alignment
size_t hwkv_fattn_plan_size(const struct hwkv_fattn_plan * plan, int32_t n_thread);

// one item, by thread ith of nth
void hwkv_fattn_item(const struct hwkv_fattn * f, const struct hwkv_fattn_plan * plan, void * work, int32_t item, int32_t ith, int32_t nth);

// after all items are done: thread ith's share of the rows
void hwkv_fattn_merge(const struct hwkv_fattn * f, const struct hwkv_fattn_plan * plan, void * work, int32_t ith, int32_t nth);

// Kernels this CPU has, the best first; NULL after the last.
const char * hwkv_fattn_kernel_name(int32_t i);

// Uses kernel i from now on (tests; not while something is computed). false: there is no such kernel.
bool hwkv_fattn_kernel_set(int32_t i);

#ifdef __cplusplus
}
#endif

#endif // HWKV_FATTN_H
