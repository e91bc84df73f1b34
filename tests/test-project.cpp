// How the tracer finds the way of a layer's attention into the residual stream, in graphs built by hand.

#include "llama-hwkv-project.h"

#include "testing.h"

#include "ggml-cpp.h"
#include "ggml.h"

#include <vector>

// what the tracer would give
static llama_hwkv_projection g_projection;

const llama_hwkv_projection & llama_hwkv_projection_of(const llama_hwkv_tracer *) {
    return g_projection;
}

llama_hwkv_trace_shape llama_hwkv_tracer_shape(const llama_hwkv_tracer *) {
    llama_hwkv_trace_shape res = {};
    res.n_tokens   = 3;
    res.n_head     = 4;
    res.head_dim_v = 8;
    return res;
}

static const int64_t N_EMBD = 16, N_HEAD = 4, DIM = 8, N_TOKENS = 3;

struct graph {
    ggml_context_ptr ctx { ggml_init({ 1 << 20, nullptr, /*no_alloc =*/ false }) };
    ggml_tensor * embd    = leaf(N_EMBD, 5);
    ggml_tensor * weight  = leaf(N_HEAD*DIM, N_EMBD);
    ggml_tensor * factors = leaf(N_EMBD, 1);
    ggml_tensor * tokens  = ggml_new_tensor_1d(ctx.get(), GGML_TYPE_I32, N_TOKENS);
    ggml_tensor * stream;
    ggml_tensor * fattn;

    graph() {
        ggml_set_input(tokens);
        stream = ggml_get_rows(ctx.get(), embd, tokens);
        auto * q = ggml_new_tensor_3d(ctx.get(), GGML_TYPE_F32, DIM, N_TOKENS, N_HEAD);
        auto * k = ggml_new_tensor_3d(ctx.get(), GGML_TYPE_F16, DIM, 32, N_HEAD);
        auto * v = ggml_new_tensor_3d(ctx.get(), GGML_TYPE_F16, DIM, 32, N_HEAD);
        fattn = ggml_flash_attn_ext(ctx.get(), q, k, v, nullptr, 1.0f, 0.0f, 0.0f);
    }

    ggml_tensor * leaf(int64_t n, int64_t n_row) {
        auto * res = ggml_new_tensor_2d(ctx.get(), GGML_TYPE_F32, n, n_row);
        for (int64_t i = 0; i < n*n_row; ++i) {
            ((float *) res->data)[i] = 1.0f + (float) (i%7);
        }
        return res;
    }

    ggml_tensor * flat() {
        return ggml_reshape_2d(ctx.get(), fattn, N_HEAD*DIM, N_TOKENS);
    }

    llama_hwkv_projection find(ggml_tensor * end) {
        auto * gf = ggml_new_graph(ctx.get());
        ggml_build_forward_expand(gf, end);
        llama_hwkv_projection res;
        res.find({ ggml_graph_nodes(gf), ggml_graph_nodes(gf) + ggml_graph_n_nodes(gf) }, fattn);
        return res;
    }
};

static void test_project__weight_and_stream() {
    graph g;
    auto * ctx = g.ctx.get();
    auto p = g.find(ggml_add(ctx, ggml_mul_mat(ctx, g.weight, g.flat()), g.stream));
    CHECK(p.weight == g.weight && p.stream == g.stream && !p.gate && !p.norm && p.factors.empty());

    // the other way round, with a bias, rotated back before
    auto * rotation = g.leaf(DIM, DIM);
    ggml_set_input(rotation);
    auto * back = ggml_reshape_2d(ctx, ggml_mul_mat(ctx, rotation, g.fattn), N_HEAD*DIM, N_TOKENS);
    p = g.find(ggml_add(ctx, g.stream, ggml_add(ctx, ggml_mul_mat(ctx, g.weight, back), g.factors)));
    CHECK(p.weight == g.weight && p.stream == g.stream && p.factors.empty());
}

static void test_project__rows_that_are_wanted() {
    graph g;
    auto * ctx  = g.ctx.get();
    auto * rows = ggml_new_tensor_1d(ctx, GGML_TYPE_I32, 1);
    ggml_set_input(rows);
    auto * out = ggml_get_rows(ctx, ggml_mul_mat(ctx, g.weight, g.flat()), rows);
    const auto p = g.find(ggml_add(ctx, out, ggml_get_rows(ctx, g.stream, rows)));
    CHECK(p.weight == g.weight && p.stream == g.stream); // of all tokens; what stands there of its own, as rows of an embedding, stays
}

static void test_project__gate() {
    graph g;
    auto * ctx = g.ctx.get();
    for (const int64_t n_each : { DIM, (int64_t) 1 }) { // one for each element, or for each head
        auto * input = ggml_new_tensor_3d(ctx, GGML_TYPE_F32, n_each, N_HEAD, N_TOKENS);
        auto * gate  = ggml_sigmoid(ctx, input);
        auto * gated = ggml_reshape_2d(ctx, ggml_mul(ctx, g.fattn, gate), N_HEAD*DIM, N_TOKENS);
        const auto p = g.find(ggml_add(ctx, ggml_mul_mat(ctx, g.weight, gated), g.stream));
        CHECK(p.weight == g.weight && p.gate == gate);
        CHECK(p.tensors().size() == 2);
    }
}

static void test_project__norm_and_factors() {
    graph g;
    auto * ctx = g.ctx.get();
    // what comes before a norm is gone after it
    auto * out = ggml_scale(ctx, ggml_mul_mat(ctx, g.weight, g.flat()), 5.0f);
    out = ggml_scale(ctx, ggml_mul(ctx, ggml_rms_norm(ctx, out, 1e-6f), g.factors), 0.5f);
    g_projection = g.find(ggml_add(ctx, out, g.stream));
    CHECK(g_projection.norm && g_projection.weight == g.weight && g_projection.stream == g.stream);

    llama_hwkv_project_shape shape;
    CHECK(llama_hwkv_tracer_get_project(nullptr, &shape) && shape.has_norm && !shape.has_gate);
    CHECK_EQ_INT(g_projection.factors.size(), 1);
    CHECK_NEAR(g_projection.scale, 0.5, 0.0);
}

static void test_project__nothing_it_does_not_know() {
    graph g;
    auto * ctx = g.ctx.get();
    CHECK(!g.find(g.flat()).weight);                                                                            // no end
    CHECK(!g.find(ggml_mul_mat(ctx, g.weight, g.flat())).weight);                                               // no stream
    CHECK(!g.find(ggml_add(ctx, ggml_mul_mat(ctx, g.weight, ggml_silu(ctx, g.flat())), g.stream)).weight);      // not linear
    CHECK(!g.find(ggml_add(ctx, ggml_tanh(ctx, ggml_mul_mat(ctx, g.weight, g.flat())), g.stream)).weight);
    CHECK(!g.find(ggml_add(ctx, ggml_mul_mat(ctx, ggml_sigmoid(ctx, g.weight), g.flat()), g.stream)).weight);   // a weight that is computed
    CHECK(!g.find(ggml_mul(ctx, ggml_mul_mat(ctx, g.weight, g.flat()), g.stream)).weight);                      // a product with the stream
    CHECK(g.find(ggml_add(ctx, ggml_mul_mat(ctx, g.weight, g.flat()), g.stream)).weight != nullptr);
}

int main() {
    test_project__weight_and_stream();
    test_project__rows_that_are_wanted();
    test_project__gate();
    test_project__norm_and_factors();
    test_project__nothing_it_does_not_know();
    return testing_result();
}
