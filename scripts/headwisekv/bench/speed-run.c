// One row of the speed bench as a process that loads a model once and measures whenever it is asked. Built against
// our llama.cpp and against the pristine package.
//
// usage: speed-run MODEL N-CTX THREADS CPUS POLICY|none       CPUS: numbers with commas, one thread on each
//
// The first line on stdout describes the context; then each line on stdin is answered by one JSON line on stdout:
//   fill N FILE             process tokens until the sequence has N, save its state
//   clear                   start again
//   run N-PREFILL N-DECODE FILE|-
//                           from the state in FILE (-: an empty sequence) process N-PREFILL tokens at once, then from the
//                           same state N-DECODE one by one; the answer has the seconds of both

#include "llama.h"
#include "ggml-backend.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define N_BATCH     2048
#define REQUEST_MAX 4096

struct run {
    struct llama_model     * model;
    struct llama_context   * ctx;
    struct ggml_threadpool * pool;
    int32_t                  n_vocab;
    uint32_t                 seed;
};

static double g_kv_mib;   // sum of the cache buffers that the log names
static int    g_n_nodes;  // those that compute something

// llama.cpp tells the size of its cache nowhere but in its log
static void on_log(enum ggml_log_level level, const char * text, void * user_data) {
    (void) user_data;
    const char * at = strstr(text, "KV buffer size =");
    if (at != NULL) {
        g_kv_mib += atof(at + strlen("KV buffer size ="));
    }
    if (level == GGML_LOG_LEVEL_ERROR) {
        fputs(text, stderr);
    }
}

static bool count_node(struct ggml_tensor * node, bool ask, void * user_data) {
    (void) user_data;
    const bool empty = node->op == GGML_OP_NONE || node->op == GGML_OP_VIEW || node->op == GGML_OP_RESHAPE || node->op == GGML_OP_PERMUTE ||
                       node->op == GGML_OP_TRANSPOSE;
    g_n_nodes += ask && !empty;
    return false;
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double) t.tv_sec + 1e-9 * (double) t.tv_nsec;
}

static long peak_rss_kib(void) {
    char line[256];
    long kib = 0;
    FILE * file = fopen("/proc/self/status", "r");
    while (file != NULL && fgets(line, sizeof(line), file) != NULL) {
        if (sscanf(line, "VmHWM: %ld", &kib) == 1) {
            break;
        }
    }
    if (file != NULL) {
        fclose(file);
    }
    return kib;
}

static llama_token next_token(struct run * run) {
    run->seed = run->seed * 1664525u + 1013904223u;
    return (llama_token) ((run->seed >> 8) % (uint32_t) run->n_vocab);
}

// n tokens, at most n_batch at a time
static bool feed(struct run * run, int32_t n, int32_t n_batch) {
    static llama_token tokens[N_BATCH];
    while (n > 0) {
        const int32_t n_now = n < n_batch ? n : n_batch;
        for (int32_t i = 0; i < n_now; i++) {
            tokens[i] = next_token(run);
        }
        if (llama_decode(run->ctx, llama_batch_get_one(tokens, n_now)) != 0) {
            fprintf(stderr, "speed-run: llama_decode failed\n");
            return false;
        }
        llama_synchronize(run->ctx);
        n -= n_now;
    }
    return true;
}

static bool go_to(struct run * run, const char * state) {
    llama_memory_clear(llama_get_memory(run->ctx), false);
    run->seed = 1;
    llama_token none;
    size_t n = 0;
    if (strcmp(state, "-") != 0 && llama_state_seq_load_file(run->ctx, state, 0, &none, 1, &n) == 0) {
        fprintf(stderr, "speed-run: cannot load the state %s\n", state);
        return false;
    }
    return true;
}

static bool do_run(struct run * run, const char * state, int32_t n_prefill, int32_t n_decode) {
    double prefill = 0.0, decode = 0.0;
    if (n_prefill > 0) {
        if (!go_to(run, state)) {
            return false;
        }
        const double start = now();
        if (!feed(run, n_prefill, N_BATCH)) {
            return false;
        }
        prefill = now() - start;
    }
    if (n_decode > 0) {
        // the first step builds the graph that the others reuse
        if (!go_to(run, state) || !feed(run, 1, 1)) {
            return false;
        }
        const double start = now();
        if (!feed(run, n_decode, 1)) {
            return false;
        }
        decode = now() - start;
    }
    printf("{\"prefill_s\": %.9f, \"decode_s\": %.9f, \"peak_rss_kib\": %ld}\n", prefill, decode, peak_rss_kib());
    return true;
}

static bool do_fill(struct run * run, int32_t n, const char * state) {
    const llama_token none = 0;
    const int32_t n_have = llama_memory_seq_pos_max(llama_get_memory(run->ctx), 0) + 1;
    if (!feed(run, n - n_have, N_BATCH)) {
        return false;
    }
    if (llama_state_seq_save_file(run->ctx, state, 0, &none, 0) == 0) {
        fprintf(stderr, "speed-run: cannot save the state %s\n", state);
        return false;
    }
    printf("{\"n_tokens\": %d}\n", n);
    return true;
}

static bool serve(struct run * run) {
    char line[REQUEST_MAX], state[REQUEST_MAX];
    int32_t a, b;
    while (fgets(line, sizeof(line), stdin) != NULL) {
        bool ok = true;
        if (sscanf(line, "fill %d %4095[^\n]", &a, state) == 2) {
            ok = do_fill(run, a, state);
        } else if (strcmp(line, "clear\n") == 0) {
            ok = go_to(run, "-");
            printf("{}\n");
        } else if (sscanf(line, "run %d %d %4095[^\n]", &a, &b, state) == 3) {
            ok = do_run(run, state, a, b);
        } else {
            fprintf(stderr, "speed-run: found the request %.*s, expected fill, clear or run\n", (int) strcspn(line, "\n"), line);
            ok = false;
        }
        if (!ok) {
            return false;
        }
        fflush(stdout);
    }
    return true;
}

// one thread for each CPU of the list, kept there
static bool attach_threads(struct run * run, int32_t n_threads, const char * cpus) {
    ggml_backend_dev_t cpu = ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU);
    if (cpu == NULL) {
        fprintf(stderr, "speed-run: ggml has no CPU backend\n");
        return false;
    }
    // two steps, because C has no cast from a data pointer to a function
    struct ggml_threadpool * (*pool_new)(struct ggml_threadpool_params *);
    void * address = ggml_backend_reg_get_proc_address(ggml_backend_dev_backend_reg(cpu), "ggml_threadpool_new");
    memcpy(&pool_new, &address, sizeof(pool_new));

    struct ggml_threadpool_params params = ggml_threadpool_params_default(n_threads);
    const char * at = cpus;
    for (int32_t i = 0; i < n_threads; i++) {
        char * end;
        const long n = strtol(at, &end, 10);
        if (end == at || n < 0 || n >= GGML_MAX_N_THREADS) {
            fprintf(stderr, "speed-run: found CPUs %s, expected %d numbers with commas\n", cpus, n_threads);
            return false;
        }
        params.cpumask[n] = true;
        at = end + (*end == ',');
    }
    params.strict_cpu = true;
    run->pool = pool_new(&params);
    if (run->pool == NULL) {
        fprintf(stderr, "speed-run: cannot start %d threads\n", n_threads);
        return false;
    }
    llama_attach_threadpool(run->ctx, run->pool, NULL);
    return true;
}

static struct llama_context * new_context(const struct run * run, struct llama_context_params params) {
    g_kv_mib = 0.0;
    struct llama_context * ctx = llama_init_from_model(run->model, params);
    if (ctx == NULL) {
        fprintf(stderr, "speed-run: cannot create a context\n");
    }
    return ctx;
}

// Nodes of the graph of one decode step that compute something, views left out, or -1. In a context of its own: the callback costs time.
static int count_nodes(struct run * run, struct llama_context_params params) {
    params.cb_eval = count_node;
    run->ctx = new_context(run, params);
    if (run->ctx == NULL) {
        return -1;
    }
    bool ok = feed(run, 1, 1);
    g_n_nodes = 0;
    ok = ok && feed(run, 1, 1);
    llama_free(run->ctx);
    run->ctx = NULL;
    return ok ? g_n_nodes : -1;
}

int main(int argc, char ** argv) {
    if (argc != 6) {
        fprintf(stderr, "usage: speed-run MODEL N-CTX THREADS CPUS POLICY|none\n");
        return 2;
    }
    llama_log_set(on_log, NULL);
    llama_backend_init();
    struct run run = { 0 };
    run.model = llama_model_load_from_file(argv[1], llama_model_default_params());
    if (run.model == NULL) {
        fprintf(stderr, "speed-run: cannot load the model %s\n", argv[1]);
        return 1;
    }
    run.n_vocab = llama_vocab_n_tokens(llama_model_get_vocab(run.model));

    struct llama_context_params params = llama_context_default_params();
    params.n_ctx           = (uint32_t) atoi(argv[2]);
    params.n_batch         = N_BATCH;
    params.n_threads       = atoi(argv[3]);
    params.n_threads_batch = params.n_threads;
    params.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_ENABLED;
    if (strcmp(argv[5], "none") != 0) {
#ifdef SPEED_RUN_POLICY
        params.kv_policy = argv[5];
#else
        fprintf(stderr, "speed-run: found the policy %s, expected none: this is the pristine llama.cpp\n", argv[5]);
        return 2;
#endif
    }

    const int n_nodes = count_nodes(&run, params);
    if (n_nodes >= 0) {
        run.ctx = new_context(&run, params);
    }
    bool ok = run.ctx != NULL && attach_threads(&run, params.n_threads, argv[4]);
    if (ok) {
        printf("{\"kv_mib\": %.2f, \"n_nodes\": %d, \"n_layer\": %d, \"n_ctx\": %u, \"weights_bytes\": %llu}\n", g_kv_mib, n_nodes,
               llama_model_n_layer(run.model), llama_n_ctx(run.ctx), (unsigned long long) llama_model_size(run.model));
        fflush(stdout);
        ok = serve(&run);
    }
    llama_free(run.ctx);
    llama_model_free(run.model);
    return ok ? 0 : 1;
}
