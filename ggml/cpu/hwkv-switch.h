// A kernel that is on unless the environment says 0.

#ifndef HWKV_SWITCH_H
#define HWKV_SWITCH_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#define HWKV_SWITCH_UNKNOWN (-1) // the environment has not been asked

static inline bool hwkv_switch_is_on(atomic_int * state, const char * name) {
    int on = atomic_load_explicit(state, memory_order_relaxed);
    if (on == HWKV_SWITCH_UNKNOWN) {
        const char * env = getenv(name);
        on = env == NULL || strcmp(env, "0") != 0;
        atomic_store(state, on);
    }
    return on;
}

#endif // HWKV_SWITCH_H
