// The bridge's view of a model must not depend on how the model was loaded, nor on what memory it has.
// usage: test-bridge-model [MODEL...]; without arguments it writes and uses a small model of its own.

#include "llama-hwkv.h"
#include "llama-hwkv-model.h"
#include "testing.h"

#include "ggml-backend.h"
#include "ggml.h"
#include "gguf.h"
#include "llama.h"

#include <stdlib.h>

#define N_EMBD  32
#define N_FF    64
#define N_LAYER 3
#define N_HEAD  4
#define N_KV    2
#define D_HEAD  16
#define N_VOCAB 264

static void log_nothing(enum ggml_log_level level, const char * text, void * user_data) {
    (void) level;
    (void) text;
    (void) user_data;
}

//
// a small model of llama's kind with tied embeddings
//

struct writer {
    struct gguf_context * gguf;
    struct ggml_context * ggml;
    enum ggml_type        type; // of the matrices
    const char          * arch;
};

static const char * key_of(const struct writer * w, const char * name, char buf[64]) {
    snprintf(buf, 64, "%s.%s", w->arch, name);
    return buf;
}

static void set_u32(const struct writer * w, const char * name, uint32_t value) {
    char key[64];
    gguf_set_val_u32(w->gguf, key_of(w, name, key), value);
}

static void set_f32(const struct writer * w, const char * name, float value) {
    char key[64];
    gguf_set_val_f32(w->gguf, key_of(w, name, key), value);
}

static void add_matrix(struct writer * w, const char * name, int64_t ne0, int64_t ne1) {
    struct ggml_tensor * t = ne1 > 0 ? ggml_new_tensor_2d(w->ggml, w->type, ne0, ne1) : ggml_new_tensor_1d(w->ggml, GGML_TYPE_F32, ne0);
    memset(t->data, 0, ggml_nbytes(t));
    ggml_set_name(t, name);
    gguf_add_tensor(w->gguf, t);
}

static void add_layer_matrix(struct writer * w, int il, const char * name, int64_t ne0, int64_t ne1) {
    char full[64];
    snprintf(full, sizeof(full), "blk.%d.%s.weight", il, name);
    add_matrix(w, full, ne0, ne1);
}

static void add_tensors(struct writer * w) {
    add_matrix(w, "token_embd.weight", N_EMBD, N_VOCAB);
    add_matrix(w, "output_norm.weight", N_EMBD, 0);
    for (int il = 0; il < N_LAYER; il++) {
        add_layer_matrix(w, il, "attn_norm", N_EMBD, 0);
        add_layer_matrix(w, il, "attn_q", N_EMBD, N_HEAD * D_HEAD);
        add_layer_matrix(w, il, "attn_k", N_EMBD, N_KV * D_HEAD);
        add_layer_matrix(w, il, "attn_v", N_EMBD, N_KV * D_HEAD);
        add_layer_matrix(w, il, "attn_output", N_HEAD * D_HEAD, N_EMBD);
        add_layer_matrix(w, il, "ffn_norm", N_EMBD, 0);
        add_layer_matrix(w, il, "ffn_gate", N_EMBD, N_FF);
        add_layer_matrix(w, il, "ffn_up", N_EMBD, N_FF);
        add_layer_matrix(w, il, "ffn_down", N_FF, N_EMBD);
    }
}

// extra: the text of the last token
static void add_vocab(struct writer * w, const char * extra) {
    static char  texts[N_VOCAB][16];
    const char * tokens[N_VOCAB];
    float        scores[N_VOCAB];
    int32_t      types[N_VOCAB];

    for (int i = 0; i < N_VOCAB; i++) {
        snprintf(texts[i], sizeof(texts[i]), i < 3 ? "<special%d>" : i < 259 ? "<0x%02X>" : "word%d", i < 3 ? i : i < 259 ? i - 3 : i);
        tokens[i] = i == N_VOCAB - 1 ? extra : texts[i];
        scores[i] = 0.0f;
        types[i]  = i == 0 ? 2 : i < 3 ? 3 : i < 259 ? 6 : 1; // unknown, control, byte, normal
    }
    gguf_set_val_str(w->gguf, "tokenizer.ggml.model", "llama");
    gguf_set_arr_str(w->gguf, "tokenizer.ggml.tokens", tokens, N_VOCAB);
    gguf_set_arr_data(w->gguf, "tokenizer.ggml.scores", GGUF_TYPE_FLOAT32, scores, N_VOCAB);
    gguf_set_arr_data(w->gguf, "tokenizer.ggml.token_type", GGUF_TYPE_INT32, types, N_VOCAB);
}

static int write_model(const char * path, const char * arch, enum ggml_type type, const char * extra_token) {
    const struct ggml_init_params params = { .mem_size = 4u << 20 };
    struct writer w = { gguf_init_empty(), ggml_init(params), type, arch };

    gguf_set_val_str(w.gguf, "general.architecture", arch);
    gguf_set_val_str(w.gguf, "general.name", "bridge test");
    set_u32(&w, "context_length", 512);
    set_u32(&w, "embedding_length", N_EMBD);
    set_u32(&w, "block_count", N_LAYER);
    set_u32(&w, "feed_forward_length", N_FF);
    set_u32(&w, "attention.head_count", N_HEAD);
    set_u32(&w, "attention.head_count_kv", N_KV);
    set_u32(&w, "attention.key_length", D_HEAD);
    set_u32(&w, "attention.value_length", D_HEAD);
    set_u32(&w, "rope.dimension_count", D_HEAD);
    set_f32(&w, "attention.layer_norm_rms_epsilon", 1e-5f);
    add_vocab(&w, extra_token);
    add_tensors(&w);

    const int ok = gguf_write_to_file(w.gguf, path, false);
    gguf_free(w.gguf);
    ggml_free(w.ggml);
    return ok;
}

//
// checks
//

// The geometry under these parameters; n_full is 0 if it could not be had.
static struct hwkv_geometry geometry_of(const char * path, struct llama_model_params params) {
    struct hwkv_geometry geo = { .n_full = 0 };
    struct hwkv_error    err = { .code = 0 };

    struct llama_model * model = llama_model_load_from_file(path, params);
    CHECK(model != NULL);
    if (model) {
        const int res = llama_hwkv_model_geometry(model, &geo, &err);
        CHECK_EQ_INT(res, HWKV_OK);
        if (res != HWKV_OK) {
            fprintf(stderr, "    %s: %s\n", path, err.msg);
        }
        llama_model_free(model);
    }
    return geo;
}

static void check_same(const struct hwkv_geometry * a, const struct hwkv_geometry * b) {
    CHECK_STR(a->architecture, b->architecture);
    CHECK_STR(a->name, b->name);
    CHECK_STR(a->fingerprint, b->fingerprint);
    CHECK_STR(a->type_fingerprint, b->type_fingerprint);
    CHECK_EQ_INT(a->n_layer, b->n_layer);
    CHECK_EQ_INT(a->v_width_max, b->v_width_max);
    CHECK_EQ_INT(a->n_full, b->n_full);
    for (int32_t i = 0; i < a->n_full && i < b->n_full; i++) {
        CHECK(memcmp(&a->layers[i], &b->layers[i], sizeof(a->layers[i])) == 0);
    }
}

static void test_geometry__is_the_same_for_every_load(const char * path) {
    struct llama_model_params params = llama_model_default_params();
    params.load_mode = LLAMA_LOAD_MODE_NONE;
    params.no_alloc  = true;
    struct hwkv_geometry meta = geometry_of(path, params);
    CHECK_EQ_INT(strlen(meta.fingerprint), 64);
    CHECK_EQ_INT(strlen(meta.type_fingerprint), 64);
    CHECK(meta.n_full > 0);

    // a second context for the same names: what offloading does to tied tensors
    const struct llama_model_tensor_buft_override overrides[] = {
        { "blk\\.1\\..*", ggml_backend_cpu_buffer_type() },
        { NULL, NULL },
    };
    const struct { enum llama_load_mode mode; bool extra, mtp, override; } loads[] = {
        { LLAMA_LOAD_MODE_NONE, true,  false, false },
        { LLAMA_LOAD_MODE_NONE, false, false, false },
        { LLAMA_LOAD_MODE_MMAP, true,  false, false },
        { LLAMA_LOAD_MODE_MMAP, true,  true,  false },
        { LLAMA_LOAD_MODE_NONE, true,  false, true  },
    };
    for (size_t i = 0; i < sizeof(loads) / sizeof(loads[0]); i++) {
        params = llama_model_default_params();
        params.load_mode             = loads[i].mode;
        params.use_extra_bufts       = loads[i].extra;
        params.load_mtp              = loads[i].mtp;
        params.tensor_buft_overrides = loads[i].override ? overrides : NULL;
        struct hwkv_geometry geo = geometry_of(path, params);
        check_same(&meta, &geo);
        hwkv_geometry_free(&geo);
    }
    hwkv_geometry_free(&meta);
}

static struct hwkv_geometry own_geometry(enum ggml_type type, const char * extra_token) {
    const char * path = "test-bridge-model-other.gguf";
    struct llama_model_params params = llama_model_default_params();
    params.load_mode = LLAMA_LOAD_MODE_NONE;
    params.no_alloc  = true;
    CHECK(write_model(path, "llama", type, extra_token));
    struct hwkv_geometry geo = geometry_of(path, params);
    remove(path);
    return geo;
}

static void test_geometry__has_the_model_s_numbers(void) {
    struct hwkv_geometry geo = own_geometry(GGML_TYPE_F32, "last");
    CHECK_STR(geo.architecture, "llama");
    CHECK_STR(geo.name, "bridge test");
    CHECK_EQ_INT(geo.n_layer, N_LAYER);
    CHECK_EQ_INT(geo.n_full, N_LAYER);
    CHECK_EQ_INT(geo.v_width_max, N_KV * D_HEAD);
    for (int32_t i = 0; i < geo.n_full; i++) {
        CHECK_EQ_INT(geo.layers[i].il, i);
        CHECK_EQ_INT(geo.layers[i].n_head, N_HEAD);
        CHECK_EQ_INT(geo.layers[i].n_head_kv, N_KV);
        CHECK_EQ_INT(geo.layers[i].head_dim_k, D_HEAD);
        CHECK_EQ_INT(geo.layers[i].head_dim_v, D_HEAD);
    }
    hwkv_geometry_free(&geo);
}

static void test_fingerprint__sees_types_and_tokens(void) {
    struct hwkv_geometry base  = own_geometry(GGML_TYPE_F32, "last");
    struct hwkv_geometry types = own_geometry(GGML_TYPE_F16, "last");
    struct hwkv_geometry token = own_geometry(GGML_TYPE_F32, "other");

    CHECK_STR(base.fingerprint, types.fingerprint);
    CHECK(strcmp(base.type_fingerprint, types.type_fingerprint) != 0);
    CHECK(strcmp(base.fingerprint, token.fingerprint) != 0);
    CHECK_STR(base.type_fingerprint, token.type_fingerprint);

    hwkv_geometry_free(&base);
    hwkv_geometry_free(&types);
    hwkv_geometry_free(&token);
}

static void test_geometry__refuses_null(void) {
    struct hwkv_geometry geo;
    struct hwkv_error    err;
    CHECK_ERR(llama_hwkv_model_geometry(NULL, &geo, &err), HWKV_ERR_ARG);
    CHECK_EQ_INT(err.code, HWKV_ERR_ARG);
    CHECK(geo.layers == NULL);
    CHECK_ERR(llama_hwkv_model_geometry(NULL, NULL, NULL), HWKV_ERR_ARG);
}

// A model that keeps nothing between two batches: everything that is asked of the memory has an answer.
static void test_context__without_memory(void) {
    const char * path = "test-bridge-model-none.gguf";
    CHECK(write_model(path, "llada", GGML_TYPE_F32, "last"));
    struct llama_model * model = llama_model_load_from_file(path, llama_model_default_params());
    CHECK(model != NULL);
    struct llama_context_params params = llama_context_default_params();
    params.n_ctx     = 64;
    params.n_threads = 1;
    struct llama_context * ctx = model ? llama_init_from_model(model, params) : NULL;
    CHECK(ctx != NULL);
    if (ctx) {
        CHECK(llama_get_memory(ctx) == NULL);
        CHECK(llama_kv_policy_can_resume(ctx, 0, 0));
        CHECK(!llama_kv_policy_can_resume(ctx, 0, 1));
        CHECK_EQ_INT(llama_kv_policy_lost_window(ctx, 0, 1), HWKV_FULL);
        CHECK_EQ_INT(llama_kv_policy_cache_size(ctx), 0);
        CHECK(!llama_kv_policy_plan(ctx));
        CHECK_STR(llama_kv_policy_state_id(ctx), "");
        llama_free(ctx);
    }
    if (model) {
        llama_model_free(model);
    }
    remove(path);
}

int main(int argc, char ** argv) {
    llama_log_set(log_nothing, NULL);
    llama_backend_init();

    test_geometry__refuses_null();
    for (int i = 1; i < argc; i++) {
        test_geometry__is_the_same_for_every_load(argv[i]);
    }
    if (argc == 1) {
        const char * path = "test-bridge-model.gguf";
        CHECK(write_model(path, "llama", GGML_TYPE_F16, "last"));
        test_geometry__is_the_same_for_every_load(path);
        remove(path);
        test_geometry__has_the_model_s_numbers();
        test_fingerprint__sees_types_and_tokens();
        test_context__without_memory();
    }

    llama_backend_free();
    return testing_result();
}
