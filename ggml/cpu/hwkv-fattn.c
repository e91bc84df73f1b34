// Cuts a flash attention call into items, hands them to a kernel and puts the results together.

#include "hwkv-fattn-impl.h"

#include <float.h>
#include <math.h>
#include <stdatomic.h>
#include <string.h>

#define LOG2_E 1.44269504f

#define MIN(a, b) ((a) < (b) ? (a) : (b))
#define MAX(a, b) ((a) > (b) ? (a) : (b))

#define ALIGN 64

#define HEADS_SIZE 1024 // bytes of a key's heads that one item takes: 64 keys and values stay in the smallest L2

#define SHORT_TOKENS 63 // as many over as many keys are computed one by one
#define SHORT_KEYS   512

#define PARTIAL_MAX ((size_t) 4 << 20) // bytes of partial results

//
// kernels
//

static atomic_int kernel_chosen;

static const struct hwkv_fattn_kernel * kernel_at(int32_t i) {
    const struct hwkv_fattn_kernel * found[4] = { NULL };
    int32_t n = 0;
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512vl")) {
        found[n++] = &hwkv_fattn_kernel_avx512;
    }
    // every CPU with FMA has F16C; compilers before gcc 11 cannot ask for it
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
        found[n++] = &hwkv_fattn_kernel_avx2;
    }
#elif defined(__aarch64__)
    found[n++] = &hwkv_fattn_kernel_neon;
#endif
    found[n++] = &hwkv_fattn_kernel_c;
    return i >= 0 && i < n ? found[i] : NULL;
}

const char * hwkv_fattn_kernel_name(int32_t i) {
    const struct hwkv_fattn_kernel * kernel = kernel_at(i);
    return kernel ? kernel->name : NULL;
}

bool hwkv_fattn_kernel_set(int32_t i) {
    if (kernel_at(i) == NULL) {
        return false;
    }
    atomic_store(&kernel_chosen, i);
    return true;
}

static const struct hwkv_fattn_kernel * kernel_now(void) {
    return kernel_at(atomic_load_explicit(&kernel_chosen, memory_order_relaxed));
}

//
// plan
//

static int32_t div_up(int32_t a, int32_t b) {
    return (a + b - 1) / b;
}

static bool dim_ok(const struct hwkv_fattn_kv * kv) {
    return kv->dim >= 16 && kv->dim <= 1024 && kv->dim % (kv->type == HWKV_FATTN_F16 ? 16 : 32) == 0;
}

// rows of all query heads that share a KV head
static int32_t rows_of_head(const struct hwkv_fattn * f) {
    return f->n_token * (f->n_head / f->n_head_kv);
}

static size_t partial_floats(const struct hwkv_fattn * f, int32_t n_row) {
    return (size_t) n_row * (size_t) (f->v.dim + 2);
}

// KV heads that one item takes: with few rows several, if their rows lie side by side, so that memory is read in one stream
static int32_t heads_of_item(const struct hwkv_fattn * f, int32_t n_row) {
    const bool adjacent = f->k.nb_head < f->k.nb_key && f->v.nb_head < f->v.nb_key;
    int32_t n = 1;
    for (int32_t i = 2; adjacent && n_row <= kernel_now()->n_row_few && i <= HWKV_FATTN_HEADS; i++) {
        if (f->n_head_kv % i == 0 && (size_t) i * MAX(f->k.nb_head, f->v.nb_head) <= HEADS_SIZE) {
            n = i;
        }
    }
    return n;
}

// partial results that may be kept of each row
static int32_t chunks_max(const struct hwkv_fattn * f) {
    const size_t n = PARTIAL_MAX / (sizeof(float) * partial_floats(f, rows_of_head(f)) * (size_t) (f->n_head_kv * f->n_stream));
    return (int32_t) MIN(n, (size_t) INT32_MAX);
}

// most query rows of a tile: what the cache holds
static int32_t rows_max(const struct hwkv_fattn * f) {
    return f->k.dim + f->v.dim <= 256 ? HWKV_FATTN_ROWS : HWKV_FATTN_ROWS / 2;
}

// The tokens of a short prompt are computed as if each came alone. Their bits then don't depend on what is in the same batch, and
// an answer is the same whether its prompt was reused or not, as with ggml's own loop. A longer prompt would pay for that.
static bool is_short(const struct hwkv_fattn * f) {
    return f->n_token <= SHORT_TOKENS && f->n_kv <= SHORT_KEYS && f->n_head / f->n_head_kv <= rows_max(f) &&
           chunks_max(f) >= SHORT_KEYS / (2 * HWKV_FATTN_KEYS);
}

bool hwkv_fattn_plan_init(struct hwkv_fattn_plan * plan, const struct hwkv_fattn * f) {
    if (f->n_token < 1 || f->n_head < 1 || f->n_head_kv < 1 || f->n_stream < 1 || f->n_kv < 1 || f->n_head % f->n_head_kv != 0 ||
        !dim_ok(&f->k) || !dim_ok(&f->v) || f->n_token > INT32_MAX / f->n_head || rows_of_head(f) > INT32_MAX / 4096) {
        return false;
    }
    const bool    alone  = is_short(f);
    const int32_t n_part = alone ? f->n_token : 1; // whose rows have tiles of their own
    const int32_t n_all  = rows_of_head(f) / n_part;
    plan->n_tile = div_up(n_all, rows_max(f));
    plan->n_row  = MIN(rows_max(f), div_up(div_up(n_all, plan->n_tile), 16) * 16);
    plan->n_row  = MIN(plan->n_row, n_all);
    plan->n_tile = div_up(n_all, plan->n_row) * n_part;
    plan->n_head = heads_of_item(f, n_all);

    // Items for many threads even if there is one token only, but not so many that merging them counts.
    const int32_t n_base = plan->n_tile * (f->n_head_kv / plan->n_head) * f->n_stream;
    int32_t n_chunk = alone ? div_up(32, f->n_head_kv / plan->n_head) : div_up(f->n_token <= 8 ? 32 : 16, n_base);
    n_chunk = MIN(n_chunk, div_up(f->n_kv, 2 * HWKV_FATTN_KEYS));
    n_chunk = MAX(1, MIN(n_chunk, chunks_max(f)));
    plan->n_key   = div_up(div_up(f->n_kv, n_chunk), HWKV_FATTN_KEYS) * HWKV_FATTN_KEYS;
    plan->n_chunk = div_up(f->n_kv, plan->n_key);
    plan->n_item  = n_base * plan->n_chunk;

    const int32_t n_rows    = plan->n_head * plan->n_row;
    const size_t  n_scratch = kernel_now()->scratch(n_rows, f->k.dim, f->v.dim) + partial_floats(f, n_rows);
    plan->scratch_size = (n_scratch * sizeof(float) + 2 * ALIGN - 1) / ALIGN * ALIGN;
    plan->partial_size = plan->n_chunk > 1 ? sizeof(float) * partial_floats(f, n_rows) * (size_t) plan->n_item : 0;
    return true;
}

size_t hwkv_fattn_plan_size(const struct hwkv_fattn_plan * plan, int32_t n_thread) {
    return ALIGN + plan->scratch_size * (size_t) n_thread + plan->partial_size;
}

static float * work_at(void * work, size_t offset) {
    const uintptr_t base = ((uintptr_t) work + ALIGN - 1) / ALIGN * ALIGN;
    return (float *) (base + offset);
}

static float * partial_of(const struct hwkv_fattn * f, const struct hwkv_fattn_plan * plan, void * work, int32_t nth, int32_t item) {
    return work_at(work, plan->scratch_size * (size_t) nth) + partial_floats(f, plan->n_head * plan->n_row) * (size_t) item;
}

//
// items
//

// where an item lies; neighbours in memory come one after the other
struct place {
    int32_t head; // the first of plan->n_head
    int32_t chunk, tile, stream;
};

static struct place place_of(const struct hwkv_fattn * f, const struct hwkv_fattn_plan * plan, int32_t item) {
    struct place at;
    const int32_t n_head = f->n_head_kv / plan->n_head;
    at.head   = item % n_head * plan->n_head; item /= n_head;
    at.chunk  = item % plan->n_chunk; item /= plan->n_chunk;
    at.tile   = item % plan->n_tile;
    at.stream = item / plan->n_tile;
    return at;
}

static int32_t item_at(const struct hwkv_fattn * f, const struct hwkv_fattn_plan * plan, struct place at) {
    return ((at.stream * plan->n_tile + at.tile) * plan->n_chunk + at.chunk) * (f->n_head_kv / plan->n_head) + at.head / plan->n_head;
}

static float alibi_slope(const struct hwkv_fattn * f, int32_t head) {
    if (f->max_bias <= 0.0f) {
        return 1.0f;
    }
    int32_t n = 1;
    while (n * 2 <= f->n_head) {
        n *= 2;
    }
    const float exponent = head < n ? (float) (head + 1) : (float) (2 * (head - n) + 1) / 2.0f;
    return exp2f(-f->max_bias / (float) n * exponent);
}

// row r of a KV head's query rows: all heads of the first token, all heads of the second, ...
static void row_of(const struct hwkv_fattn * f, int32_t head_kv, int32_t r, int32_t * token, int32_t * head) {
    const int32_t n_share = f->n_head / f->n_head_kv;
    *token = r / n_share;
    *head  = head_kv * n_share + r % n_share;
}

static void tile_init(struct hwkv_fattn_tile * t, const struct hwkv_fattn * f, const struct hwkv_fattn_plan * plan, struct place at) {
    const int32_t row0 = at.tile * plan->n_row;
    const size_t  is   = (size_t) at.stream;
    const size_t  ih   = (size_t) at.head;
    t->n_head = plan->n_head;
    t->n_row  = MIN(plan->n_row, rows_of_head(f) - row0);
    t->key0  = at.chunk * plan->n_key;
    t->key1  = MIN(t->key0 + plan->n_key, f->n_kv);
    t->k     = f->k.data + is * f->k.nb_stream + ih * f->k.nb_head;
    t->v     = f->v.data + is * f->v.nb_stream + ih * f->v.nb_head;
    t->k_nb   = f->k.nb_key;
    t->v_nb   = f->v.nb_key;
    t->k_nb_head = f->k.nb_head;
    t->v_nb_head = f->v.nb_head;
    t->k_type = f->k.type;
    t->v_type = f->v.type;
    t->dk     = f->k.dim;
    t->dv     = f->v.dim;
    t->q_scale = f->scale * LOG2_E * (f->softcap != 0.0f ? 2.0f / f->softcap : 1.0f);
    t->softcap = f->softcap * LOG2_E;
    for (int32_t r = 0; r < t->n_head * t->n_row; r++) {
        int32_t token, head;
        row_of(f, at.head + r / t->n_row, row0 + r % t->n_row, &token, &head);
        t->q[r] = (const float *) (const void *) (f->q + is * f->q_nb_stream + (size_t) head * f->q_nb_head + (size_t) token * f->q_nb_token);
        t->mask[r]  = NULL;
        t->slope[r] = alibi_slope(f, head) * LOG2_E;
        if (f->mask) {
            t->mask[r] = (const uint16_t *) (const void *) (f->mask + (size_t) (at.stream % f->mask_n_stream) * f->mask_nb_stream +
                (size_t) (head % f->mask_n_head) * f->mask_nb_head + (size_t) token * f->mask_nb_token);
        }
    }
}

// The results of one row over n ranges of keys, part_size floats apart: largest scores, sums and values. Adds them up, with
// the sink, divides and writes the row to dst.
static void row_finish(const struct hwkv_fattn * f, int32_t stream, int32_t token, int32_t head, const float * m, const float * s,
                       const float * o, int32_t n, size_t part_size) {
    const size_t row = ((size_t) stream * (size_t) f->n_token + (size_t) token) * (size_t) f->n_head + (size_t) head;
    float * out = f->dst + row * (size_t) f->v.dim;
    float   top = f->sinks ? f->sinks[head] * LOG2_E : -FLT_MAX;
    for (int32_t i = 0; i < n; i++) {
        top = MAX(top, m[(size_t) i * part_size]);
    }
    float sum = f->sinks ? exp2f(f->sinks[head] * LOG2_E - top) : 0.0f;
    memset(out, 0, sizeof(float) * (size_t) f->v.dim);
    for (int32_t i = 0; i < n; i++) {
        const size_t at     = (size_t) i * part_size;
        const float  factor = exp2f(m[at] - top);
        for (int32_t d = 0; factor != 0.0f && d < f->v.dim; d++) {
            out[d] += o[at + (size_t) d] * factor;
        }
        sum += s[at] * factor;
    }
    const float factor = sum == 0.0f ? 0.0f : 1.0f / sum;
    for (int32_t d = 0; d < f->v.dim; d++) {
        out[d] *= factor;
    }
}

void hwkv_fattn_item(const struct hwkv_fattn * f, const struct hwkv_fattn_plan * plan, void * work, int32_t item, int32_t ith, int32_t nth) {
    const struct hwkv_fattn_kernel * kernel = kernel_now();
    const struct place at = place_of(f, plan, item);
    struct hwkv_fattn_tile t;
    tile_init(&t, f, plan, at);

    float * scratch = work_at(work, plan->scratch_size * (size_t) ith);
    float * partial = plan->n_chunk > 1 ? partial_of(f, plan, work, nth, item) : scratch;
    const int32_t n_rows = plan->n_head * plan->n_row;
    t.scratch = plan->n_chunk > 1 ? scratch : scratch + partial_floats(f, n_rows);
    t.o       = partial + 2 * n_rows;
    kernel->run(&t);

    if (plan->n_chunk > 1) {
        memcpy(partial,          t.m, sizeof(float) * (size_t) (t.n_head * t.n_row));
        memcpy(partial + n_rows, t.s, sizeof(float) * (size_t) (t.n_head * t.n_row));
        return;
    }
    for (int32_t r = 0; r < t.n_head * t.n_row; r++) {
        int32_t token, head;
        row_of(f, at.head + r / t.n_row, at.tile * plan->n_row + r % t.n_row, &token, &head);
        row_finish(f, at.stream, token, head, &t.m[r], &t.s[r], t.o + r * t.dv, 1, 0);
    }
}

void hwkv_fattn_merge(const struct hwkv_fattn * f, const struct hwkv_fattn_plan * plan, void * work, int32_t ith, int32_t nth) {
    const int32_t n_all  = rows_of_head(f);
    const int32_t n_rows = plan->n_head * plan->n_row;
    for (int32_t i = ith; plan->n_chunk > 1 && i < n_all * f->n_head_kv * f->n_stream; i += nth) {
        struct place at;
        at.tile   = i % n_all / plan->n_row;
        at.head   = i / n_all % f->n_head_kv;
        at.stream = i / n_all / f->n_head_kv;
        at.chunk  = 0;
        const int32_t row     = at.head % plan->n_head * plan->n_row + i % n_all % plan->n_row;
        const float * partial = partial_of(f, plan, work, nth, item_at(f, plan, at));
        int32_t token, head;
        row_of(f, at.head, i % n_all, &token, &head);
        row_finish(f, at.stream, token, head, partial + row, partial + n_rows + row, partial + 2 * n_rows + row * f->v.dim, plan->n_chunk,
                   partial_floats(f, n_rows) * (size_t) (f->n_head_kv / plan->n_head));
    }
}
