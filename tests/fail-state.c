// Preloaded into llama-server: the checkpoint that is restored next breaks off after HWKV_TEST_BREAK_AT bytes, as it would when the cache
// has no room for it.

// RTLD_NEXT
#define _GNU_SOURCE

#include "llama-hwkv.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

struct limited {
    llama_kv_policy_read_fn fn;
    void                  * arg;
    size_t                  left;
};

static bool read_limited(void * data, size_t size, void * arg) {
    struct limited * from = arg;
    if (size > from->left) {
        return false;
    }
    from->left -= size;
    return from->fn(data, size, from->arg);
}

size_t llama_kv_policy_state_read(struct llama_context * ctx, llama_seq_id seq_id, llama_state_seq_flags flags, llama_kv_policy_read_fn fn, void * arg) {
    size_t (*real)(struct llama_context *, llama_seq_id, llama_state_seq_flags, llama_kv_policy_read_fn, void *);
    // POSIX lets a pointer to an object hold one to a function; C has no cast for it
    void * symbol = dlsym(RTLD_NEXT, "llama_kv_policy_state_read");
    memcpy(&real, &symbol, sizeof(real));

    const char * at = getenv("HWKV_TEST_BREAK_AT");
    if (!at || !(flags & LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY)) {
        return real(ctx, seq_id, flags, fn, arg);
    }
    struct limited from = { fn, arg, (size_t) strtoull(at, NULL, 10) };
    unsetenv("HWKV_TEST_BREAK_AT"); // the next one is whole
    return real(ctx, seq_id, flags, read_limited, &from);
}
