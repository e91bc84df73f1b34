#include "hwkv-impl.h"

#include <stdlib.h>
#include <string.h>

static void * (*g_alloc)(size_t)   = malloc;
static void   (*g_release)(void *) = free;

void hwkv_set_allocator(void * (*alloc)(size_t size), void (*release)(void * ptr)) {
    g_alloc   = alloc   ? alloc   : malloc;
    g_release = release ? release : free;
}

void * hwkv_alloc_raw(size_t size) {
    return g_alloc(size);
}

void * hwkv_alloc(size_t n, size_t size) {
    if (size != 0 && n > SIZE_MAX / size) {
        return NULL;
    }
    const size_t total = n * size > 0 ? n * size : 1;
    void * ptr = hwkv_alloc_raw(total);
    if (ptr) {
        memset(ptr, 0, total);
    }
    return ptr;
}

void hwkv_free(void * ptr) {
    if (ptr) {
        g_release(ptr);
    }
}

void hwkv_string_free(char * text) {
    hwkv_free(text);
}
