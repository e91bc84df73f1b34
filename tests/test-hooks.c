// A program that uses cJSON with memory of its own loads libllama: cJSON goes on using it, and so does a policy that is read.
//
//   test-hooks LIBLLAMA POLICY

#include "testing.h"

#include <cjson/cJSON.h>

#include <dlfcn.h>
#include <stdlib.h>

static long g_n_alloc;
static long g_n_live;

static void * count_alloc(size_t size) {
    g_n_alloc++;
    g_n_live++;
    return malloc(size);
}

static void count_free(void * ptr) {
    g_n_live -= ptr != NULL;
    free(ptr);
}

static void check_own_json(void) {
    const long before = g_n_alloc;
    cJSON * item = cJSON_Parse("{\"a\": [1, 2, \"three\"]}");
    CHECK(item != NULL);
    CHECK(g_n_alloc > before);
    cJSON_Delete(item);
    CHECK_EQ_INT(g_n_live, 0);
}

int main(int argc, char ** argv) {
    if (argc != 3) {
        fprintf(stderr, "usage: test-hooks LIBLLAMA POLICY\n");
        return 2;
    }
    cJSON_Hooks hooks = { .malloc_fn = count_alloc, .free_fn = count_free };
    cJSON_InitHooks(&hooks);
    check_own_json();

    void * lib = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
    if (!lib) {
        fprintf(stderr, "%s\n", dlerror());
        return 1;
    }
    check_own_json();

    int  (*load)(void ** out, const char * path, void * err);
    void (*release)(void * policy);
    // POSIX lets a pointer to an object hold one to a function; C has no cast for it
    void * symbol = dlsym(lib, "hwkv_policy_load");
    memcpy(&load, &symbol, sizeof(load));
    symbol = dlsym(lib, "hwkv_policy_free");
    memcpy(&release, &symbol, sizeof(release));
    CHECK(load && release);
    if (load && release) {
        void * policy = NULL;
        CHECK_EQ_INT(load(&policy, argv[2], NULL), 0);
        release(policy);
        CHECK_EQ_INT(g_n_live, 0); // nothing of the parser outlives the call
    }
    check_own_json();
    return testing_result();
}
