// Fuzz target for the policy reader: whatever the bytes, there is a policy that survives a round trip and can be
// planned, or a well-formed error. Built with libFuzzer, or with fuzz-main.c where that is missing.

#include "fuzz.h"
#include "hwkv.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char * const fuzz_name   = "fuzz-policy";
const char * const fuzz_inputs = "policies";
uint64_t           fuzz_n_good;

static void fail(const char * what, const struct hwkv_error * err) {
    fprintf(stderr, "fuzz-policy: %s", what);
    if (err) {
        fprintf(stderr, ": %s, path \"%s\", \"%s\"", hwkv_err_name(err->code), err->path, err->msg);
    }
    fprintf(stderr, "\n");
    abort();
}

static bool is_one_line(const char * text, size_t size) {
    for (size_t i = 0; i < size; i++) {
        if (text[i] == '\0') {
            return true;
        }
        if ((unsigned char) text[i] < 0x20) {
            return false;
        }
    }
    return false;
}

static void check_error(const struct hwkv_error * err, int status) {
    if (err->code != status || err->msg[0] == '\0' || !is_one_line(err->msg, sizeof(err->msg)) || !is_one_line(err->path, sizeof(err->path))) {
        fail("the error is not well-formed", err);
    }
    // memory is not out, and text can be wrong in no other way than these
    if (status > HWKV_ERR_PARSE || status < HWKV_ERR_VERSION) {
        fail("the error has an impossible code", err);
    }
}

// What any policy promises about its codebook: its spelling, its order and its reference.
static void check_codebook(const struct hwkv_policy * policy) {
    int32_t n = 0;
    const struct hwkv_entry * codebook = hwkv_policy_codebook(policy, &n);
    const struct hwkv_cache   cache    = { hwkv_policy_context(policy), hwkv_policy_type_k(policy), hwkv_policy_type_v(policy) };
    struct hwkv_entry sorted[HWKV_CODE_MAX];
    struct hwkv_error err = { 0 };
    for (int32_t i = 0; i < n; i++) {
        char name[HWKV_ENTRY_SIZE];
        struct hwkv_entry again;
        if (hwkv_entry_parse(&again, hwkv_entry_format(&codebook[i], name), &err) || memcmp(&again, &codebook[i], sizeof(again)) != 0) {
            fail("an entry is not spelled as it is read", &err);
        }
        sorted[n - 1 - i] = codebook[i];
    }
    if (hwkv_codebook_sort(sorted, n, hwkv_policy_geometry(policy), &cache, &err) || memcmp(sorted, codebook, (size_t) n * sizeof(*codebook)) != 0) {
        fail("the codebook is not in order", &err);
    }
    const int32_t reference = hwkv_policy_reference(policy);
    if (reference != hwkv_codebook_reference(codebook, n, &cache) || reference < 0 || codebook[reference].window != HWKV_FULL) {
        fail("the codebook has no reference", NULL);
    }
}

static void check_point(const struct hwkv_policy * policy, const struct hwkv_point * point) {
    int32_t n = 0;
    hwkv_policy_codebook(policy, &n);
    for (int32_t i = 0; i < point->n_scores; i++) {
        const struct hwkv_scores * table = &point->scores[i];
        const double expected = strncmp(table->kind, "cosine", 6) == 0 && (table->kind[6] == '\0' || table->kind[6] == '-') ? 1.0 : 0.0;
        for (int32_t u = 0; u < hwkv_policy_n_unit(policy); u++) {
            if (table->values[(size_t) u * (size_t) n + (size_t) hwkv_policy_reference(policy)] != expected) {
                fail("the reference has another score than it must", NULL);
            }
        }
    }
    if ((hwkv_point_scores(point, policy, "cosine") != NULL) != (point->min_score >= -2.0) || (point->budget > 0) != (point->lambda >= 0.0)) {
        fail("min_score is without scores, or a budget without lambda", NULL);
    }
    // no share can be more than all; bytes can, in types that are wider than the reference's
    if (!(point->retention > 0.0) || !(point->retention_tokens > 0.0 && point->retention_tokens <= 1.0) ||
        !(point->retention_query > 0.0 && point->retention_query <= 1.0) || (!hwkv_policy_has_types(policy) && point->retention > 1.0)) {
        fail("a share is out of its range", NULL);
    }
}

static void check_plan(const struct hwkv_policy * policy, int32_t ip, const struct hwkv_plan_params * params) {
    struct hwkv_error  err  = { 0 };
    struct hwkv_plan * plan = NULL;
    const int status = hwkv_plan_init(&plan, policy, ip, params, &err);
    if (status) {
        if (plan || (status != HWKV_ERR_RANGE && status != HWKV_ERR_VALUE)) {
            fail("the plan fails", &err);
        }
        return;
    }
    int32_t n_head = 0;
    for (int32_t ig = 0; ig < hwkv_plan_n_group(plan); ig++) {
        int32_t n_group = 0;
        for (int32_t jl = 0; jl < hwkv_policy_geometry(policy)->n_full; jl++) {
            int32_t n = 0;
            const int32_t * heads = hwkv_plan_heads(plan, ig, jl, &n);
            for (int32_t i = 0; i < n; i++) {
                if (hwkv_plan_group_of(plan, jl, heads[i]) != ig) {
                    fail("a head is in two groups", NULL);
                }
            }
            n_group += n;
        }
        if (n_group < 1 || n_group != hwkv_plan_group(plan, ig)->n_head) {
            fail("a group has another number of heads than it says", NULL);
        }
        n_head += n_group;
    }
    // types of the entries' own may be wider than the cache's
    if (n_head != hwkv_policy_n_unit(policy) || (!hwkv_policy_has_types(policy) && hwkv_plan_size(plan) > hwkv_plan_size_plain(plan))) {
        fail("the plan has lost a head or takes more than the plain cache", NULL);
    }
    hwkv_plan_free(plan);
}

static void check_plans(const struct hwkv_policy * policy) {
    struct hwkv_plan_params params[4];
    for (int i = 0; i < 4; i++) {
        params[i] = hwkv_plan_params_default();
    }
    params[1].n_ctx      = 1;
    params[1].n_rollback = 0;
    params[1].n_pad      = 1;
    params[2].n_ctx      = 1000001;
    params[2].n_seq_max  = 7;
    params[2].kv_unified = false;
    params[2].flash_attn = false;
    params[2].type_k     = HWKV_TYPE_Q8_0;
    params[3].n_ctx      = 131072;
    params[3].n_seq_max  = 4;
    params[3].type_v     = HWKV_TYPE_Q4_0;
    for (int32_t ip = 0; ip < hwkv_policy_n_point(policy) && ip < 8; ip++) {
        for (int i = 0; i < 4; i++) {
            check_plan(policy, ip, &params[i]);
        }
    }
}

int LLVMFuzzerTestOneInput(const uint8_t * data, size_t size) {
    struct hwkv_error    err    = { 0 };
    struct hwkv_policy * policy = NULL;
    struct hwkv_policy * again  = NULL;
    char * first  = NULL;
    char * second = NULL;
    const int status = hwkv_policy_parse(&policy, (const char *) data, size, &err);
    if ((status == 0) != (policy != NULL)) {
        fail("status and result disagree", &err);
    }
    if (status) {
        check_error(&err, status);
        return 0;
    }
    fuzz_n_good++;
    if (hwkv_policy_print(&first, policy, &err) || hwkv_policy_parse(&again, first, strlen(first), &err) ||
        hwkv_policy_print(&second, again, &err)) {
        fail("a policy does not survive the round trip", &err);
    }
    if (strcmp(first, second) != 0) {
        fail("a policy printed twice is not the same", NULL);
    }
    check_codebook(policy);
    for (int32_t ip = 0; ip < hwkv_policy_n_point(policy); ip++) {
        check_point(policy, hwkv_policy_point(policy, ip));
    }
    check_plans(policy);
    hwkv_string_free(first);
    hwkv_string_free(second);
    hwkv_policy_free(policy);
    hwkv_policy_free(again);
    return 0;
}
