// Flash attention nodes of ggml as calls of hwkv-fattn.h.

#include "hwkv-fattn-ggml.h"
#include "hwkv-fattn.h"

#include "ggml-cpu-impl.h"
#include "ggml-impl.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

static atomic_int enabled = -1; // -1: the environment has not been asked

void hwkv_fattn_enable(bool on) {
    atomic_store(&enabled, on);
}

static bool is_enabled(void) {
    int on = atomic_load_explicit(&enabled, memory_order_relaxed);
    if (on < 0) {
        const char * env = getenv("GGML_HWKV_FATTN");
        on = env == NULL || strcmp(env, "0") != 0;
        atomic_store(&enabled, on);
    }
    return on;
}

static bool kv_from_tensor(struct hwkv_fattn_kv * kv, const struct ggml_tensor * t) {
    if ((t->type != GGML_TYPE_F16 && t->type != GGML_TYPE_Q8_0) || t->nb[0] != ggml_type_size(t->type) || t->ne[0] > 1024) {
        return false;
    }
    kv->data      = t->data;
    kv->type      = t->type == GGML_TYPE_F16 ? HWKV_FATTN_F16 : HWKV_FATTN_Q8_0;
    kv->dim       = (int32_t) t->ne[0];
    kv->nb_key    = t->nb[1];
    kv->nb_head   = t->nb[2];
    kv->nb_stream = t->nb[3];
    return true;
}

static bool mask_ok(const struct ggml_tensor * mask, const struct ggml_tensor * q, const struct ggml_tensor * k) {
    return mask->type == GGML_TYPE_F16 && mask->nb[0] == sizeof(uint16_t) && mask->ne[0] >= k->ne[1] && mask->ne[1] >= q->ne[1];
}

static bool shapes_ok(const struct ggml_tensor * dst) {
    const struct ggml_tensor * q    = dst->src[0];
    const struct ggml_tensor * k    = dst->src[1];
    const struct ggml_tensor * v    = dst->src[2];
    const struct ggml_tensor * mask = dst->src[3];
    if (q->type != GGML_TYPE_F32 || q->nb[0] != sizeof(float) || (q->nb[1] | q->nb[2] | q->nb[3]) % sizeof(float) != 0) {
        return false;
    }
    if (q->ne[0] != k->ne[0] || k->ne[1] != v->ne[1] || k->ne[2] != v->ne[2] || k->ne[3] != q->ne[3] || v->ne[3] != q->ne[3]) {
        return false;
    }
    if (ggml_nelements(q) >= INT32_MAX || k->ne[1] >= INT32_MAX / 2) {
        return false;
    }
    return ggml_is_contiguous(dst) && (mask == NULL || mask_ok(mask, q, k));
}

static bool from_tensor(struct hwkv_fattn * f, const struct ggml_tensor * dst) {
    const struct ggml_tensor * q    = dst->src[0];
    const struct ggml_tensor * mask = dst->src[3];
    memset(f, 0, sizeof(*f));
    if (!shapes_ok(dst) || !kv_from_tensor(&f->k, dst->src[1]) || !kv_from_tensor(&f->v, dst->src[2])) {
        return false;
    }
    f->n_token     = (int32_t) q->ne[1];
    f->n_head      = (int32_t) q->ne[2];
    f->n_stream    = (int32_t) q->ne[3];
    f->n_head_kv   = (int32_t) dst->src[1]->ne[2];
    f->n_kv        = (int32_t) dst->src[1]->ne[1];
    f->q           = q->data;
    f->q_nb_token  = q->nb[1];
    f->q_nb_head   = q->nb[2];
    f->q_nb_stream = q->nb[3];
    if (mask) {
        f->mask           = mask->data;
        f->mask_n_head    = (int32_t) mask->ne[2];
        f->mask_n_stream  = (int32_t) mask->ne[3];
        f->mask_nb_token  = mask->nb[1];
        f->mask_nb_head   = mask->nb[2];
        f->mask_nb_stream = mask->nb[3];
    }
    f->sinks = dst->src[4] ? dst->src[4]->data : NULL;
    f->dst   = dst->data;
    memcpy(&f->scale,    (const float *) dst->op_params + 0, sizeof(float));
    memcpy(&f->max_bias, (const float *) dst->op_params + 1, sizeof(float));
    memcpy(&f->softcap,  (const float *) dst->op_params + 2, sizeof(float));
    return true;
}

size_t hwkv_fattn_work_size(const struct ggml_tensor * dst, int n_task) {
    struct hwkv_fattn      f;
    struct hwkv_fattn_plan plan;
    return is_enabled() && from_tensor(&f, dst) && hwkv_fattn_plan_init(&plan, &f) ? hwkv_fattn_plan_size(&plan, n_task) : 0;
}

bool hwkv_fattn_forward(const struct ggml_compute_params * params, struct ggml_tensor * dst) {
    struct hwkv_fattn      f;
    struct hwkv_fattn_plan plan;
    if (params->use_ref || !is_enabled() || !from_tensor(&f, dst) || !hwkv_fattn_plan_init(&plan, &f) ||
        hwkv_fattn_plan_size(&plan, params->nth) > params->wsize) {
        return false;
    }
    const int ith = params->ith;
    const int nth = params->nth;
    if (f.n_token <= 8 || nth == 1) {
        // items of the same size: each thread takes neighbours
        const int32_t end = (int32_t) ((int64_t) plan.n_item * (ith + 1) / nth);
        for (int32_t i = (int32_t) ((int64_t) plan.n_item * ith / nth); i < end; i++) {
            hwkv_fattn_item(&f, &plan, params->wdata, i, ith, nth);
        }
    } else {
        // masks make items unequal: whoever is free takes the next, the long ones at the end first
        if (ith == 0) {
            ggml_threadpool_chunk_set(params->threadpool, nth);
        }
        ggml_barrier(params->threadpool);
        for (int32_t i = ith; i < plan.n_item; i = ggml_threadpool_chunk_add(params->threadpool, 1)) {
            hwkv_fattn_item(&f, &plan, params->wdata, plan.n_item - 1 - i, ith, nth);
        }
    }
    if (plan.n_chunk > 1) {
        ggml_barrier(params->threadpool);
        hwkv_fattn_merge(&f, &plan, params->wdata, ith, nth);
    }
    return true;
}
