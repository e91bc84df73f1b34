// 1,000 layers x 128 KV heads: everything works at that size. Times are printed, not asserted.

#define _POSIX_C_SOURCE 200809L

#include "entries.h"
#include "hwkv.h"
#include "testing.h"

#include <pthread.h>
#include <stdlib.h>
#include <time.h>

enum { N_LAYER = 1000, N_HEAD = 128, N_CODE = 4 };

static double now_ms(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return 1e3 * (double) t.tv_sec + 1e-6 * (double) t.tv_nsec;
}

static struct hwkv_policy * make_large(const int32_t * entries, double * values) {
    static const struct hwkv_entry codebook[N_CODE] = { WINDOW(8192), WINDOW(16384), WINDOW(32768), WINDOW(HWKV_FULL) };
    struct hwkv_geometry geo;
    CHECK_EQ_INT(hwkv_geometry_init(&geo, N_LAYER, NULL), 0);
    snprintf(geo.architecture, sizeof(geo.architecture), "llama");
    geo.n_layer = N_LAYER;
    for (int32_t i = 0; i < N_LAYER; i++) {
        geo.layers[i] = (struct hwkv_layer) { i, 2 * N_HEAD, N_HEAD, 128, 128 };
    }
    struct hwkv_policy_params params = hwkv_policy_params_default();
    params.geometry   = &geo;
    params.context    = 131072;
    params.codebook   = codebook;
    params.n_codebook = N_CODE;
    struct hwkv_policy * policy = NULL;
    CHECK_EQ_INT(hwkv_policy_init(&policy, &params, NULL), 0);
    hwkv_geometry_free(&geo);
    const struct hwkv_scores scores = { .kind = "cosine", .context = params.context, .values = values };
    const struct hwkv_point_params point = { .name = "p", .method = "seeded", .entries = entries, .scores = &scores, .n_scores = values ? 1 : 0 };
    CHECK_EQ_INT(hwkv_policy_add_point(policy, &point, NULL), 0);
    return policy;
}

struct load {
    const char    * text;
    const int32_t * entries;
    int             n_wrong;
};

static void * load_often(void * arg) {
    struct load * load = arg;
    for (int i = 0; i < 4; i++) {
        struct hwkv_policy * policy = NULL;
        load->n_wrong += hwkv_policy_parse(&policy, load->text, strlen(load->text), NULL) != 0 ||
                         memcmp(hwkv_policy_point(policy, 0)->entries, load->entries, N_LAYER * N_HEAD * sizeof(*load->entries)) != 0;
        hwkv_policy_free(policy);
    }
    return NULL;
}

// cJSON's allocator is global, ours must keep the threads apart
static void test_large__two_threads(const int32_t * entries) {
    struct hwkv_policy * policy = make_large(entries, NULL);
    char * text = NULL;
    CHECK_EQ_INT(hwkv_policy_print(&text, policy, NULL), 0);
    struct load loads[2] = { { text, entries, 0 }, { text, entries, 0 } };
    pthread_t thread;
    CHECK_EQ_INT(pthread_create(&thread, NULL, load_often, &loads[0]), 0);
    load_often(&loads[1]);
    CHECK_EQ_INT(pthread_join(thread, NULL), 0);
    CHECK_EQ_INT(loads[0].n_wrong, 0);
    CHECK_EQ_INT(loads[1].n_wrong, 0);
    hwkv_string_free(text);
    hwkv_policy_free(policy);
}

static void run(const char * what, const int32_t * entries, double * scores) {
    struct hwkv_policy * policy = make_large(entries, scores);
    char * text = NULL;
    double t0 = now_ms();
    CHECK_EQ_INT(hwkv_policy_print(&text, policy, NULL), 0);
    const double t_print = now_ms() - t0;

    struct hwkv_policy * again = NULL;
    struct hwkv_error err = { 0 };
    t0 = now_ms();
    CHECK_EQ_INT(hwkv_policy_parse(&again, text, strlen(text), &err), 0);
    const double t_parse = now_ms() - t0;
    CHECK_STR(err.msg, "");

    struct hwkv_plan * plan = NULL;
    struct hwkv_plan_params params = hwkv_plan_params_default();
    params.n_ctx = 131072;
    t0 = now_ms();
    CHECK_EQ_INT(hwkv_plan_init(&plan, again, 0, &params, NULL), 0);
    const double t_plan = now_ms() - t0;
    if (again && plan) {
        CHECK(memcmp(hwkv_policy_point(again, 0)->entries, entries, N_LAYER * N_HEAD * sizeof(*entries)) == 0);
        CHECK_EQ_INT(hwkv_plan_n_group(plan), N_CODE);
        CHECK(hwkv_plan_size(plan) < hwkv_plan_size_plain(plan));
    }
    printf("%s: %zu bytes, parse %.1f ms, plan %.1f ms, print %.1f ms\n", what, strlen(text), t_parse, t_plan, t_print);
    hwkv_plan_free(plan);
    hwkv_string_free(text);
    hwkv_policy_free(again);
    hwkv_policy_free(policy);
}

int main(void) {
    int32_t * entries = malloc(N_LAYER * N_HEAD * sizeof(*entries));
    double  * scores  = malloc(N_LAYER * N_HEAD * N_CODE * sizeof(*scores));
    uint32_t  state   = 1;
    for (int i = 0; i < N_LAYER * N_HEAD; i++) {
        state = state * 1664525u + 1013904223u;
        entries[i] = (int32_t) (state >> 30);
        for (int c = 0; c < N_CODE; c++) {
            scores[i * N_CODE + c] = c == N_CODE - 1 ? 1.0 : (state >> (4 * c) & 1023) / 1023.0;
        }
    }
    run("windows", entries, NULL);
    run("windows and scores", entries, scores);
    test_large__two_threads(entries);
    free(entries);
    free(scores);
    return testing_result();
}
