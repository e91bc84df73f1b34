// Out of memory at every place: the n-th allocation fails, for n = 1, 2, ... until the operation succeeds. Each
// failure must be HWKV_ERR_NOMEM, leak nothing and leave what was there before.

// scandir and mkdtemp
#define _POSIX_C_SOURCE 200809L

#include "entries.h"
#include "hwkv.h"
#include "testing.h"

#include <cjson/cJSON.h>

#include <dirent.h>
#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <unistd.h>

#define PATH_SIZE 1200

//
// an allocator that fails on request
//

static long g_live;      // allocations not yet released
static long g_count;     // allocations since arm()
static long g_fail_at;   // number of the one that fails, 0 for none
static bool g_fail_rest; // and all after it
static bool g_tripped;   // one has failed

static void * alloc_counted(size_t size) {
    g_count++;
    if (g_fail_at > 0 && (g_count == g_fail_at || (g_fail_rest && g_count > g_fail_at))) {
        g_tripped = true;
        return NULL;
    }
    void * ptr = malloc(size);
    if (!ptr) {
        fprintf(stderr, "cannot get %zu bytes\n", size);
        exit(1);
    }
    // nobody may count on fresh memory being zero
    memset(ptr, 0xA5, size);
    g_live++;
    return ptr;
}

static void free_counted(void * ptr) {
    if (ptr) {
        g_live--;
        free(ptr);
    }
}

static void arm(long fail_at, bool fail_rest) {
    g_count     = 0;
    g_fail_at   = fail_at;
    g_fail_rest = fail_rest;
    g_tripped   = false;
}

//
// what the operations work on
//

static char   g_dir[1024];                // for saved files
static char   g_source[PATH_SIZE];        // a policy file with every kind of content of its version
static char * g_reference;                // what it looks like printed
static struct hwkv_policy * g_policy;     // what it is

static const char old_text[] = "the old file";

static void check_text(char * text) {
    CHECK_STR(text, g_reference);
    hwkv_string_free(text);
}

// On success the result is compared with the reference, with the allocator back in order.
static int run_load(struct hwkv_error * err) {
    struct hwkv_policy * policy = g_policy;
    const int status = hwkv_policy_load(&policy, g_source, err);
    CHECK((status == 0) == (policy != NULL));
    if (policy) {
        g_fail_at = 0;
        char * text = NULL;
        CHECK_ERR(hwkv_policy_print(&text, policy, NULL), 0);
        check_text(text);
    }
    hwkv_policy_free(policy);
    return status;
}

static int run_parse_print(struct hwkv_error * err) {
    struct hwkv_policy * policy = g_policy;
    char * text = g_reference;
    int status = hwkv_policy_parse(&policy, g_reference, strlen(g_reference), err);
    CHECK((status == 0) == (policy != NULL));
    if (status == 0) {
        status = hwkv_policy_print(&text, policy, err);
        CHECK((status == 0) == (text != NULL));
        if (text) {
            check_text(text);
        }
    }
    hwkv_policy_free(policy);
    return status;
}

static int count_entries(const char * dir) {
    struct dirent ** names = NULL;
    const int n = scandir(dir, &names, NULL, NULL);
    for (int i = 0; i < n; i++) {
        free(names[i]);
    }
    free(names);
    return n;
}

static void check_file(const char * path, const char * expected) {
    static char found[64 * 1024];
    FILE * file = fopen(path, "rb");
    const size_t n = file ? fread(found, 1, sizeof(found) - 1, file) : 0;
    found[n] = '\0';
    CHECK(file && fclose(file) == 0);
    CHECK_STR(found, expected);
}

static int run_save(struct hwkv_error * err) {
    char path[PATH_SIZE];
    snprintf(path, sizeof(path), "%s/policy.json", g_dir);
    FILE * file = fopen(path, "wb");
    CHECK(file && fputs(old_text, file) >= 0 && fclose(file) == 0);
    const int status = hwkv_policy_save(g_policy, path, err);
    check_file(path, status ? old_text : g_reference);
    CHECK_EQ_INT(count_entries(g_dir), 3); // ".", ".." and the file
    CHECK(remove(path) == 0);
    return status;
}

static const struct hwkv_entry codebook[] = { WINDOW(256), WINDOW(1024), WINDOW(HWKV_FULL) };

static const int32_t entries[] = { 0, 1, 2, 0 };
static double        cosines[] = { 0.96, 0.99, 1, 0.5, 0.97, 1, 0.2, 0.9, 1, 0.95, 0.96, 1 };
static double        losses[]  = { 0.5, 0.25, 0, 7, 6, 0, 1e-9, 0, 0, 3, 1e9, 0 };

static const struct hwkv_scores scores[] = { { "loss", 4096, losses }, { "cosine", 4096, cosines }, { "loss", 512, losses } };

static int build_empty(struct hwkv_policy ** policy, struct hwkv_error * err) {
    struct hwkv_geometry geo;
    int status = hwkv_geometry_init(&geo, 2, err);
    CHECK((status == 0) == (geo.layers != NULL));
    if (status) {
        return status;
    }
    snprintf(geo.architecture, sizeof(geo.architecture), "llama");
    geo.n_layer = 2;
    for (int32_t i = 0; i < 2; i++) {
        geo.layers[i] = (struct hwkv_layer) { .il = i, .n_head = 4, .n_head_kv = 2, .head_dim_k = 64, .head_dim_v = 64 };
    }
    struct hwkv_policy_params params = hwkv_policy_params_default();
    params.geometry   = &geo;
    params.context    = 4096;
    params.codebook   = codebook;
    params.n_codebook = 3;
    status = hwkv_policy_init(policy, &params, err);
    hwkv_geometry_free(&geo);
    return status;
}

// Five points, so that their array grows; after a failure the points added before are still there.
static int run_build(struct hwkv_error * err) {
    struct hwkv_policy * policy = NULL;
    int status = build_empty(&policy, err);
    CHECK((status == 0) == (policy != NULL));
    int32_t n = 0;
    for (; n < 5 && status == 0; n++) {
        char name[16];
        snprintf(name, sizeof(name), "p%d", (int) n);
        const struct hwkv_point_params point = {
            .name = name, .tau = 0.95, .entries = entries, .scores = scores, .n_scores = n % 2 ? 3 : 0, .validation = n % 2 ? NULL : "{\"kl\": [0.1]}",
        };
        status = hwkv_policy_add_point(policy, &point, err);
        CHECK_EQ_INT(hwkv_policy_n_point(policy), status ? n : n + 1);
    }
    for (int32_t i = 0; policy && i < hwkv_policy_n_point(policy); i++) {
        const struct hwkv_point * point = hwkv_policy_point(policy, i);
        CHECK(point->name[1] == '0' + i);
        CHECK(memcmp(point->entries, entries, sizeof(entries)) == 0);
        CHECK_EQ_INT(point->n_scores, i % 2 ? 3 : 0);
        CHECK(i % 2 ? memcmp(point->scores[0].values, cosines, sizeof(cosines)) == 0 : !point->scores);
        CHECK(i % 2 == 0 || memcmp(point->scores[2].values, losses, sizeof(losses)) == 0);
        CHECK(i % 2 ? !point->validation : strcmp(point->validation, "{\"kl\":[0.1]}") == 0);
    }
    hwkv_policy_free(policy);
    return status;
}

// A replacement that fails keeps the old text.
static int run_replace(struct hwkv_error * err) {
    struct hwkv_policy * policy = g_policy;
    char before[2][512];
    snprintf(before[0], sizeof(before[0]), "%s", hwkv_policy_extensions(policy));
    snprintf(before[1], sizeof(before[1]), "%s", hwkv_policy_point(policy, 1)->validation);
    int status = hwkv_policy_set_extensions(policy, before[0], err);
    CHECK_STR(hwkv_policy_extensions(policy), before[0]);
    if (status == 0) {
        status = hwkv_policy_set_validation(policy, 1, before[1], err);
        CHECK_STR(hwkv_policy_point(policy, 1)->validation, before[1]);
    }
    return status;
}

static int run_plan(struct hwkv_error * err) {
    struct hwkv_plan_params params = hwkv_plan_params_default();
    struct hwkv_plan * plan = (struct hwkv_plan *) (void *) g_policy;
    const int status = hwkv_plan_init(&plan, g_policy, 0, &params, err);
    CHECK((status == 0) == (plan != NULL));
    if (plan) {
        CHECK_EQ_INT(hwkv_plan_n_group(plan), 3);
        CHECK_EQ_INT(hwkv_plan_group(plan, 0)->entry.window, HWKV_FULL);
    }
    hwkv_plan_free(plan);
    return status;
}

static int run_geometry_copy(struct hwkv_error * err) {
    struct hwkv_geometry copy;
    const int status = hwkv_geometry_copy(&copy, hwkv_policy_geometry(g_policy), err);
    CHECK((status == 0) == (copy.layers != NULL));
    if (status == 0) {
        CHECK(copy.n_full == 2 && copy.layers[1].n_head == 6);
    }
    hwkv_geometry_free(&copy);
    return status;
}

static int run_allocate(struct hwkv_error * err) {
    const uint64_t bytes[] = { 1, 2, 3, 1, 2, 3, 1, 2, 3, 1, 2, 3 };
    const struct hwkv_allocate_params params = { .loss = losses, .bytes = bytes, .n_unit = 4, .n_entry = 3, .budget = 8 };
    struct hwkv_allocation found;
    int32_t chosen[4];
    const int status = hwkv_allocate(&found, chosen, &params, err);
    CHECK(status || (found.bytes == 8 && chosen[1] == 2 && chosen[3] == 2));
    return status;
}

//
// the loop
//

// How many allocations the operation makes, each of which has failed once.
static long fail_each(const char * name, int (*run)(struct hwkv_error * err), bool fail_rest) {
    const int before = testing_n_failed;
    for (long n = 1; n < 100000; n++) {
        const long live = g_live;
        struct hwkv_error err = { 0 };
        arm(n, fail_rest);
        const int  status  = run(&err);
        const bool tripped = g_tripped;
        arm(0, false);
        // a replaced text changes nothing in number
        CHECK_EQ_INT(g_live, live);
        CHECK_ERR(status, tripped ? HWKV_ERR_NOMEM : 0);
        CHECK_EQ_INT(err.code, tripped ? HWKV_ERR_NOMEM : 0);
        CHECK(!tripped || err.msg[0] != '\0');
        if (testing_n_failed > before) {
            fprintf(stderr, "    in %s, allocation %ld%s\n", name, n, fail_rest ? " and all after it" : "");
            return n;
        }
        if (!tripped) {
            return n - 1;
        }
    }
    CHECK(!"the operation never succeeds");
    return 0;
}

static void test_operations(void) {
    static const struct {
        const char * name;
        int (*run)(struct hwkv_error * err);
    } operations[] = {
        { "load",          run_load          },
        { "parse+print",   run_parse_print   },
        { "save",          run_save          },
        { "init+add",      run_build         },
        { "replace",       run_replace       },
        { "plan",          run_plan          },
        { "geometry_copy", run_geometry_copy },
        { "allocate",      run_allocate      },
    };
    for (size_t i = 0; i < sizeof(operations) / sizeof(operations[0]); i++) {
        const long once = fail_each(operations[i].name, operations[i].run, false);
        const long rest = fail_each(operations[i].name, operations[i].run, true);
        CHECK(once > 0 && once == rest);
        printf("%-14s %5ld allocations\n", operations[i].name, once);
    }
}

// Everything with one file of policy-ok.
static void test_file(const char * name) {
    struct hwkv_error err = { 0 };
    snprintf(g_source, sizeof(g_source), "%s/policy-ok/%s", HWKV_TEST_DATA, name);
    if (hwkv_policy_load(&g_policy, g_source, &err) || hwkv_policy_print(&g_reference, g_policy, &err)) {
        fprintf(stderr, "%s: %s\n", g_source, err.msg);
        exit(1);
    }
    printf("%s\n", name);
    test_operations();
    hwkv_string_free(g_reference);
    hwkv_policy_free(g_policy);
    CHECK_EQ_INT(g_live, 0);
}

int main(void) {
    const char * tmp = getenv("TMPDIR");
    snprintf(g_dir, sizeof(g_dir), "%s/hwkv-alloc-XXXXXX", tmp && tmp[0] ? tmp : "/tmp");
    if (!mkdtemp(g_dir)) {
        fprintf(stderr, "%s: cannot make a directory: %s\n", g_dir, strerror(errno));
        return 1;
    }
    // the library leaves cJSON's hooks to the program, which is this one
    hwkv_set_allocator(alloc_counted, free_counted);
    cJSON_InitHooks(&(cJSON_Hooks) { .malloc_fn = alloc_counted, .free_fn = free_counted });
    test_file("calibrated.json"); // version 1
    test_file("typed.json");      // version 2
    hwkv_set_allocator(NULL, NULL);
    cJSON_InitHooks(NULL);
    CHECK(rmdir(g_dir) == 0);
    return testing_result();
}
