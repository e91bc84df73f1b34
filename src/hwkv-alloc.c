#include "hwkv-impl.h"

#include <stdlib.h>
#include <string.h>

static void * (*g_alloc)(size_t)   = malloc;
static void   (*g_release)(void *) = free;

void hwkv_set_allocator(void * (*alloc)(size_t size), void (*release)(void * ptr)) {
    g_alloc   = alloc   ? alloc   : malloc;
    g_release = release ? release : free;
    hwkv_json_set_hooks(alloc, release);
}

void * hwkv_alloc(size_t n, size_t size) {
    if (size != 0 && n > SIZE_MAX / size) {
        return NULL;
    }
    const size_t total = n * size > 0 ? n * size : 1;
    void * ptr = g_alloc(total);
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

char * hwkv_strdup(const char * text) {
    const size_t size = strlen(text) + 1;
    char * copy = hwkv_alloc(size, 1);
    if (copy) {
        memcpy(copy, text, size);
    }
    return copy;
}

const char * hwkv_quote(char * buf, const char * text, size_t n) {
    buf[0] = '"';
    hwkv_copy(buf + 1, n + 1, text);
    strcat(buf, strlen(text) > n ? "...\"" : "\"");
    return buf;
}

void hwkv_copy(char * dst, size_t dst_size, const char * text) {
    size_t n = strlen(text);
    if (n >= dst_size) {
        n = dst_size - 1;
        while (n > 0 && ((unsigned char) text[n] & 0xC0) == 0x80) {
            n--;
        }
    }
    memcpy(dst, text, n);
    dst[n] = '\0';
}
