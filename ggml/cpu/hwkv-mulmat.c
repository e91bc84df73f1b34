#include "hwkv-mulmat.h"
#include "hwkv-switch.h"

#include "ggml.h"

#include <string.h>

static atomic_int enabled = HWKV_SWITCH_UNKNOWN;

void hwkv_mul_mat_enable(bool on) {
    atomic_store(&enabled, on);
}

static bool is_enabled(void) {
    return hwkv_switch_is_on(&enabled, "GGML_HWKV_MULMAT");
}

// ggml has kernels for several columns at once for most types of weights, but not for Q4_1. This one keeps its dot product's
// order of additions, so a prompt's bits don't depend on it.

#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__) && defined(__GNUC__)

#include <immintrin.h>

#define BLOCK 32

struct block_w { // Q4_1
    uint16_t d, m;
    uint8_t  q[BLOCK / 2];
};

struct block_y { // Q8_1
    uint16_t d, s;
    int8_t   q[BLOCK];
};

#if defined(__AVX512VL__)
#define ROWS 4 // of a tile, with 32 registers
#else
#define ROWS 2
#endif
#define COLS 4

#define MAX_BLOCKS 1024 // of a column

#define AHEAD 2048 // bytes; a token alone waits for the weights to come from memory, and rows side by side are no stream to the CPU

#define INLINE static inline __attribute__((always_inline)) // constants of a call are constants in it

// scales of a tile's columns, by block
struct scales {
    float d[COLS];
    float s[COLS];
};

static inline __m256 half_to_all(const uint16_t * h) {
    return _mm256_cvtph_ps(_mm_set1_epi16((short) *h));
}

static inline __m256i unpack(const uint8_t * q) {
    const __m128i low = _mm_loadu_si128((const __m128i *) q);
    return _mm256_and_si256(_mm256_set_m128i(_mm_srli_epi16(low, 4), low), _mm256_set1_epi8(15));
}

// sums of four neighbours; exact, as 15*127*4 fits
static inline __m256 dot4(__m256i w, __m256i y) {
#if defined(__AVX512VNNI__) && defined(__AVX512VL__)
    return _mm256_cvtepi32_ps(_mm256_dpbusd_epi32(_mm256_setzero_si256(), w, y));
#else
    return _mm256_cvtepi32_ps(_mm256_madd_epi16(_mm256_maddubs_epi16(w, y), _mm256_set1_epi16(1)));
#endif
}

// in the order of ggml's dot product
static inline float sum8(__m256 x) {
    __m128 r = _mm_add_ps(_mm256_extractf128_ps(x, 1), _mm256_castps256_ps128(x));
    r = _mm_add_ps(r, _mm_movehl_ps(r, r));
    r = _mm_add_ss(r, _mm_movehdup_ps(r));
    return _mm_cvtss_f32(r);
}

// n_row <= ROWS rows from w by n_col <= COLS columns from y
INLINE void tile(int n_row, int n_col, int64_t n_block, const char * w, size_t row_size, const char * y, size_t col_size, const struct scales * scales,
                 float * out, size_t out_stride) {
    __m256 acc[ROWS][COLS];
    __m128 sum[ROWS]; // of the minima, one lane for each column
    for (int r = 0; r < n_row; r++) {
        sum[r] = _mm_setzero_ps();
        for (int c = 0; c < n_col; c++) {
            acc[r][c] = _mm256_setzero_ps();
        }
    }

    for (int64_t b = 0; b < n_block; b++) {
        const __m128 ys = _mm_loadu_ps(scales[b].s);
        if (n_col == 1) {
            const char * next = w + AHEAD + b * n_row * (int64_t) sizeof(struct block_w);
            _mm_prefetch(next, _MM_HINT_T0);
            _mm_prefetch(next + 64, _MM_HINT_T0);
        }
        __m256i wq[ROWS];
        __m256  wd[ROWS];
        for (int r = 0; r < n_row; r++) {
            const struct block_w * block = (const struct block_w *) (w + r * row_size) + b;
            wq[r]  = unpack(block->q);
            wd[r]  = half_to_all(&block->d);
            sum[r] = sum[r] + _mm256_castps256_ps128(half_to_all(&block->m)) * ys; // fused where the dot product's is
        }
        for (int c = 0; c < n_col; c++) {
            const __m256i yq = _mm256_loadu_si256((const __m256i *) ((const struct block_y *) (y + c * col_size) + b)->q);
            const __m256  yd = _mm256_set1_ps(scales[b].d[c]);
            for (int r = 0; r < n_row; r++) {
                acc[r][c] = _mm256_fmadd_ps(_mm256_mul_ps(wd[r], yd), dot4(wq[r], yq), acc[r][c]);
            }
        }
    }

    for (int r = 0; r < n_row; r++) {
        float minima[COLS];
        _mm_storeu_ps(minima, sum[r]);
        for (int c = 0; c < n_col; c++) {
            out[c * out_stride + r] = sum8(acc[r][c]) + minima[c];
        }
    }
}

static void read_scales(int n_col, int64_t n_block, const char * y, size_t col_size, struct scales * scales) {
    if (n_col < COLS) {
        memset(scales, 0, n_block * sizeof(*scales)); // all are read
    }
    for (int c = 0; c < n_col; c++) {
        const struct block_y * block = (const struct block_y *) (y + c * col_size);
        for (int64_t b = 0; b < n_block; b++) {
            uint32_t both;
            memcpy(&both, &block[b].d, sizeof(both));
            const __m128 ds = _mm_cvtph_ps(_mm_cvtsi32_si128((int) both));
            scales[b].d[c] = _mm_cvtss_f32(ds);
            scales[b].s[c] = _mm_cvtss_f32(_mm_movehdup_ps(ds));
        }
    }
}

INLINE void columns(int n_col, const struct ggml_tensor * src0, struct ggml_tensor * dst, const char * y, size_t col_size, int64_t row0, int64_t row1,
                    int64_t col) {
    const int64_t n_block = src0->ne[0] / BLOCK;
    const size_t  stride  = dst->nb[1] / sizeof(float);
    float       * out     = (float *) dst->data + col * stride;

    struct scales scales[MAX_BLOCKS];
    y += col * col_size;
    read_scales(n_col, n_block, y, col_size, scales);

    int64_t row = row0;
    for (; row + ROWS <= row1; row += ROWS) {
        tile(ROWS, n_col, n_block, (const char *) src0->data + row * src0->nb[1], src0->nb[1], y, col_size, scales, out + row, stride);
    }
    for (; row < row1; row++) {
        tile(1, n_col, n_block, (const char *) src0->data + row * src0->nb[1], src0->nb[1], y, col_size, scales, out + row, stride);
    }
}

static bool multiply(struct ggml_tensor * dst, const void * y, size_t col_size, int64_t row0, int64_t row1, int64_t col0, int64_t col1) {
    const struct ggml_tensor * src0 = dst->src[0];
    if (src0->ne[0] > BLOCK * MAX_BLOCKS) {
        return false;
    }

    if (col1 - col0 < COLS) {
        for (int64_t col = col0; col < col1; col++) {
            columns(1, src0, dst, y, col_size, row0, row1, col);
        }
        return true;
    }
    for (int64_t col = col0; col < col1; col += COLS) {
        // the last ones again where they are too few: the same bits
        columns(COLS, src0, dst, y, col_size, row0, row1, col + COLS <= col1 ? col : col1 - COLS);
    }
    return true;
}

#else

static bool multiply(struct ggml_tensor * dst, const void * y, size_t col_size, int64_t row0, int64_t row1, int64_t col0, int64_t col1) {
    (void) dst, (void) y, (void) col_size, (void) row0, (void) row1, (void) col0, (void) col1;
    return false;
}

#endif

bool hwkv_mul_mat(struct ggml_tensor * dst, const void * y, size_t col_size, int64_t row0, int64_t row1, int64_t col0, int64_t col1) {
    const struct ggml_tensor * src0 = dst->src[0];
    const struct ggml_tensor * src1 = dst->src[1];

    return src0->type == GGML_TYPE_Q4_1 && src1->type == GGML_TYPE_F32 && src0->ne[2] * src0->ne[3] == 1 && src1->ne[2] * src1->ne[3] == 1 &&
           is_enabled() && multiply(dst, y, col_size, row0, row1, col0, col1);
}
