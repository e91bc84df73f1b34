#include "hwkv-impl.h"

#include <stdlib.h>
#include <string.h>

static void * (*g_alloc)(size_t)   = malloc;
static void   (*g_release)(void *) = free;

void hwkv_set_allocator(void * (*alloc)(size_t size), void (*release)(void * ptr)) {
    g_alloc   = alloc   ? alloc   : malloc;
    g_release = release ? release : free;
    hwkv_json_set_hooks();
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

//
// arena
//

struct hwkv_chunk {
    struct hwkv_chunk * next;
    size_t              size;    // of data
    max_align_t         data[];
};

void * hwkv_arena_alloc(struct hwkv_arena * arena, size_t size) {
    const size_t unit = _Alignof(max_align_t);
    if (size > SIZE_MAX / 4) {
        return NULL;
    }
    size = (size + unit - 1) / unit * unit;
    if (size > arena->left) {
        // twice as large each time: few chunks for much text, little memory for little text
        const size_t wanted = arena->chunks ? 2 * arena->chunks->size : 4096;
        const size_t grown  = wanted > size ? wanted : size;
        struct hwkv_chunk * chunk = hwkv_alloc_raw(sizeof(*chunk) + grown);
        if (!chunk) {
            return NULL;
        }
        chunk->next   = arena->chunks;
        chunk->size   = grown;
        arena->chunks = chunk;
        arena->at     = (char *) chunk->data;
        arena->left   = grown;
    }
    arena->last  = arena->at;
    arena->at   += size;
    arena->left -= size;
    return arena->last;
}

void hwkv_arena_undo(struct hwkv_arena * arena, void * ptr) {
    if (ptr && ptr == arena->last) {
        arena->left += (size_t) (arena->at - (char *) ptr);
        arena->at    = ptr;
        arena->last  = NULL;
    }
}

void hwkv_arena_free(struct hwkv_arena * arena) {
    while (arena->chunks) {
        struct hwkv_chunk * next = arena->chunks->next;
        hwkv_free(arena->chunks);
        arena->chunks = next;
    }
    *arena = (struct hwkv_arena) { 0 };
}
