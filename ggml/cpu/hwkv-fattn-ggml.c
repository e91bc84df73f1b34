// Flash attention nodes of ggml as calls of hwkv-fattn.h.

#include "hwkv-fattn-ggml.h"
#include "hwkv-fattn.h"
#include "hwkv-switch.h"

#include "ggml-cpu-impl.h"
#include "ggml-impl.h"

#include <stdatomic.h>
#include <string.h>

static atomic_int enabled = HWKV_SWITCH_UNKNOWN;

void hwkv_fattn_enable(bool on) {
    atomic_store(&enabled, on);
}

static bool is_enabled(void) {
    return hwkv_switch_is_on(&enabled, "GGML_HWKV_FATTN");
}

static bool type_from_ggml(enum hwkv_fattn_type * to, enum ggml_type type) {
    switch (type) {
        case GGML_TYPE_F16:  *to = HWKV_FATTN_F16;  return true;
        case GGML_TYPE_Q8_0: *to = HWKV_FATTN_Q8_0; return true;
        case GGML_TYPE_Q4_0: *to = HWKV_FATTN_Q4_0; return true;
        default:             return false;
    }
}

static bool kv_from_tensor(struct hwkv_fattn_kv * kv, const struct ggml_tensor * t) {
    if (!type_from_ggml(&kv->type, t->type) || t->nb[0] != ggml_type_size(t->type) || t->ne[0] > 1024) {
        return false;
    }
    kv->data      = t->data;
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

// one node of a call, ready to be computed
struct job {
    struct hwkv_fattn      f;
    struct hwkv_fattn_plan plan;
    void                 * work;
};

static bool job_init(struct job * job, const struct ggml_tensor * dst) {
    return is_enabled() && from_tensor(&job->f, dst) && hwkv_fattn_plan_init(&job->plan, &job->f);
}

size_t hwkv_fattn_work_size(const struct ggml_tensor * dst, int n_task) {
    struct job job;
    return job_init(&job, dst) ? hwkv_fattn_plan_size(&job.plan, n_task) : 0;
}

// Items in the order of the jobs, to each thread neighbours that have the same number of keys in all.
static void run_shares(const struct job * jobs, int n, int ith, int nth) {
    int64_t total = 0;
    for (int j = 0; j < n; j++) {
        total += (int64_t) jobs[j].plan.n_item * jobs[j].plan.n_key * jobs[j].plan.n_head;
    }
    const int64_t begin = total * ith / nth;
    const int64_t end   = total * (ith + 1) / nth;
    int64_t at = 0;
    for (int j = 0; j < n; j++) {
        const int64_t step = (int64_t) jobs[j].plan.n_key * jobs[j].plan.n_head;
        for (int32_t i = 0; i < jobs[j].plan.n_item; i++, at += step) {
            if (at >= begin && at < end) {
                hwkv_fattn_item(&jobs[j].f, &jobs[j].plan, jobs[j].work, i, ith, nth);
            }
        }
    }
}

// Masks make items unequal: whoever is free takes the next, the long ones at the end first.
static void run_free(const struct job * jobs, int n, const struct ggml_compute_params * params) {
    const int ith = params->ith;
    const int nth = params->nth;
    int32_t total = 0;
    for (int j = 0; j < n; j++) {
        total += jobs[j].plan.n_item;
    }
    if (ith == 0) {
        ggml_threadpool_chunk_set(params->threadpool, nth);
    }
    ggml_barrier(params->threadpool);
    for (int32_t i = ith; i < total; i = ggml_threadpool_chunk_add(params->threadpool, 1)) {
        int32_t item = total - 1 - i;
        int j = 0;
        while (item >= jobs[j].plan.n_item) {
            item -= jobs[j++].plan.n_item;
        }
        hwkv_fattn_item(&jobs[j].f, &jobs[j].plan, jobs[j].work, item, ith, nth);
    }
}

int hwkv_fattn_forward(const struct ggml_compute_params * params, struct ggml_tensor * const * dst, int n, int n_min) {
    struct job jobs[HWKV_FATTN_NODES];
    size_t size = 0;
    bool   merge = false;
    int    n_job = 0;
    while (n_job < n && n_job < HWKV_FATTN_NODES && !params->use_ref) {
        struct job * job = &jobs[n_job];
        if (!job_init(job, dst[n_job]) || job->f.n_token != jobs[0].f.n_token ||
            size + hwkv_fattn_plan_size(&job->plan, params->nth) > params->wsize) {
            break;
        }
        job->work = (char *) params->wdata + size;
        size  += hwkv_fattn_plan_size(&job->plan, params->nth);
        merge  = merge || job->plan.n_chunk > 1;
        n_job += 1;
    }
    if (n_job < n_min) {
        return 0;
    }
    if (jobs[0].f.n_token <= 8 || params->nth == 1) {
        run_shares(jobs, n_job, params->ith, params->nth);
    } else {
        run_free(jobs, n_job, params);
    }
    if (merge) {
        ggml_barrier(params->threadpool);
        for (int j = 0; j < n_job; j++) {
            hwkv_fattn_merge(&jobs[j].f, &jobs[j].plan, jobs[j].work, params->ith, params->nth);
        }
    }
    return n_job;
}

bool hwkv_fattn_forward_one(const struct ggml_compute_params * params, struct ggml_tensor * dst) {
    return hwkv_fattn_forward(params, &dst, 1, 1) == 1;
}
