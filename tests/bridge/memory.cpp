// What a context takes of every kind of memory. C++, because llama.cpp tells it in a map.

#include "llama-ext.h"

#include "ggml-backend.h"

#include <cstdio>

extern "C" {
#include "harness.h"
}

extern "C" void print_memory(const llama_context * ctx) {
    const char * separator = "";

    printf("[");
    for (const auto & [buft, size] : llama_get_memory_breakdown(ctx)) {
        printf("%s{\"name\": \"%s\", \"host\": %s, \"weights\": %zu, \"context\": %zu, \"compute\": %zu}", separator, ggml_backend_buft_name(buft),
                ggml_backend_buft_is_host(buft) ? "true" : "false", size.model, size.context, size.compute);
        separator = ", ";
    }
    printf("]");
}
