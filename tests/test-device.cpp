// What a device is asked for a group, and what is made of its answers.

#include "llama-kv-headwise-device.h"

#include "ggml-backend-impl.h"
#include "testing.h"

#include <cstring>
#include <functional>
#include <vector>

static std::function<bool(const ggml_tensor *)> g_can;

static bool supports_op(ggml_backend_dev_t, const ggml_tensor * op) {
    return g_can(op);
}

// a device that can do what `can` says
static ggml_backend_dev_t device(std::function<bool(const ggml_tensor *)> can) {
    static ggml_backend_device dev = {};
    dev.iface.supports_op = supports_op;
    g_can = std::move(can);
    return &dev;
}

static bool is_attention(const ggml_tensor * op) {
    return op->op == GGML_OP_FLASH_ATTN_EXT;
}

// of 2 KV heads with 3 query heads each
static llama_kv_headwise_attn group(ggml_type type_k, ggml_type type_v, int64_t head_dim, int64_t n_cells) {
    llama_kv_headwise_attn res;
    res.type_k     = type_k;
    res.type_v     = type_v;
    res.head_dim_k = res.head_dim_v = head_dim;
    res.n_head_kv  = 2;
    res.n_head_q   = 6;
    res.n_cells    = n_cells;
    res.n_batch    = 32;
    return res;
}

static void test_device__with_everything() {
    auto * dev = device([](const ggml_tensor *) { return true; });

    const auto attn = group(GGML_TYPE_IQ4_NL, GGML_TYPE_F16, 64, 320);
    CHECK(llama_kv_headwise_can_store(dev, attn));
    CHECK(llama_kv_headwise_can_attend(dev, attn, true));
    CHECK(llama_kv_headwise_types(dev, attn, true) == "f32, f16, bf16, q8_0, q5_1, q5_0, q4_1, q4_0 or iq4_nl");
    CHECK(llama_kv_headwise_types(dev, attn, false) == "f32, f16 or bf16");
    // blocks of 32 do not divide the head
    CHECK(llama_kv_headwise_types(dev, group(GGML_TYPE_F16, GGML_TYPE_F16, 40, 320), true) == "f32, f16 or bf16");
}

static void test_device__types_it_has_no_kernel_for() {
    auto * dev = device([](const ggml_tensor * op) {
        return !is_attention(op) || (op->src[1]->type == op->src[2]->type && (op->src[1]->type == GGML_TYPE_F16 || op->src[1]->type == GGML_TYPE_Q8_0));
    });

    CHECK(llama_kv_headwise_can_attend(dev, group(GGML_TYPE_Q8_0, GGML_TYPE_Q8_0, 64, 256), true));
    for (const auto type_v : { GGML_TYPE_IQ4_NL, GGML_TYPE_Q8_0 }) {
        const auto attn = group(type_v == GGML_TYPE_Q8_0 ? GGML_TYPE_F16 : type_v, type_v, 64, 256);
        CHECK(llama_kv_headwise_can_store(dev, attn));
        CHECK(!llama_kv_headwise_can_decode(dev, attn, true));
        CHECK(!llama_kv_headwise_can_attend(dev, attn, true));
        // F32 is attended to as F16
        CHECK(llama_kv_headwise_types(dev, attn, true) == "f32, f16 or q8_0");
    }
}

static void test_device__cells_it_has_no_kernel_for() {
    auto * dev = device([](const ggml_tensor * op) { return !is_attention(op) || op->src[1]->ne[0] < 512 || op->src[1]->ne[1] % 256 == 0; });

    auto attn = group(GGML_TYPE_F16, GGML_TYPE_F16, 512, 320);
    CHECK(!llama_kv_headwise_can_decode(dev, attn, true));
    CHECK(llama_kv_headwise_types(dev, attn, true).empty());

    attn.n_cells = 512;
    CHECK(llama_kv_headwise_can_attend(dev, attn, true));
    attn.n_staged = 32; // beside the ring
    CHECK(llama_kv_headwise_can_decode(dev, attn, true));
    CHECK(!llama_kv_headwise_can_attend(dev, attn, true));
    attn.n_staged = 256;
    CHECK(llama_kv_headwise_can_attend(dev, attn, true));
}

static void test_device__rows_it_cannot_write() {
    auto * dev = device([](const ggml_tensor * op) { return op->op != GGML_OP_SET_ROWS || op->type == GGML_TYPE_F16; });

    CHECK(llama_kv_headwise_can_store(dev, group(GGML_TYPE_F16, GGML_TYPE_F16, 64, 256)));
    CHECK(!llama_kv_headwise_can_store(dev, group(GGML_TYPE_Q8_0, GGML_TYPE_F16, 64, 256)));
    CHECK(!llama_kv_headwise_can_store(dev, group(GGML_TYPE_F16, GGML_TYPE_Q8_0, 64, 256)));
    CHECK(llama_kv_headwise_types(dev, group(GGML_TYPE_Q8_0, GGML_TYPE_F16, 64, 256), true) == "f16");
}

static void test_device__batches_it_has_no_kernel_for() {
    const auto attn = group(GGML_TYPE_F16, GGML_TYPE_F16, 64, 256);

    auto * dev = device([](const ggml_tensor * op) { return !is_attention(op) || op->src[0]->ne[1] == 1; });
    CHECK(llama_kv_headwise_can_decode(dev, attn, true));
    CHECK(!llama_kv_headwise_can_attend(dev, attn, true));
}

static void test_device__staging_it_cannot_do() {
    for (const auto missing : { GGML_OP_CONCAT, GGML_OP_PAD, GGML_OP_CPY }) {
        auto * dev = device([=](const ggml_tensor * op) { return op->op != missing; });
        auto attn = group(GGML_TYPE_Q8_0, GGML_TYPE_Q8_0, 64, 256);
        CHECK(llama_kv_headwise_can_attend(dev, attn, true));
        attn.n_staged = 256;
        CHECK(!llama_kv_headwise_can_attend(dev, attn, true));
    }
}

static void test_device__sees_what_the_graph_has() {
    std::vector<std::vector<int64_t>> seen; // tokens and cells
    auto * dev = device([&](const ggml_tensor * op) {
        if (!is_attention(op)) {
            return true;
        }
        const auto * q = op->src[0];
        const auto * k = op->src[1];
        const auto * v = op->src[2];
        const auto * m = op->src[3];

        float softcap;
        memcpy(&softcap, (const float *) op->op_params + 2, sizeof(softcap));

        seen.push_back({ q->ne[1], k->ne[1] });
        return q->type == GGML_TYPE_F32 && q->ne[0] == 64 && q->ne[2] == 6 && q->ne[3] == 2 && k->type == GGML_TYPE_Q8_0 && k->ne[0] == 64 &&
            k->ne[2] == 2 && k->ne[3] == 2 && k->nb[1] == 2*ggml_row_size(GGML_TYPE_Q8_0, 64) && v->type == GGML_TYPE_F16 && v->ne[0] == 96 &&
            m->type == GGML_TYPE_F16 && m->ne[0] == k->ne[1] && m->ne[1] == q->ne[1] && op->src[4]->ne[0] == 6 && softcap == 30.0f;
    });

    auto attn = group(GGML_TYPE_Q8_0, GGML_TYPE_F16, 64, 1024);
    attn.head_dim_v  = 96;
    attn.n_stream    = 2;
    attn.n_staged    = 256;
    attn.softcap     = 30.0f;
    attn.sink_logits = true;
    CHECK(llama_kv_headwise_can_attend(dev, attn, true));
    CHECK((seen == std::vector<std::vector<int64_t>> { { 1, 256 }, { 1, 1024 }, { 32, 256 }, { 32, 1280 } }));
}

static void test_device__without_flash_attention() {
    auto * dev = device([](const ggml_tensor * op) { return !is_attention(op); });

    const auto attn = group(GGML_TYPE_Q8_0, GGML_TYPE_F16, 64, 320);
    CHECK(!llama_kv_headwise_can_attend(dev, attn, true));
    CHECK(llama_kv_headwise_can_attend(dev, attn, false));

    dev = device([](const ggml_tensor * op) { return op->op != GGML_OP_SOFT_MAX; });
    CHECK(!llama_kv_headwise_can_attend(dev, attn, false));
}

int main() {
    test_device__with_everything();
    test_device__types_it_has_no_kernel_for();
    test_device__cells_it_has_no_kernel_for();
    test_device__rows_it_cannot_write();
    test_device__batches_it_has_no_kernel_for();
    test_device__staging_it_cannot_do();
    test_device__sees_what_the_graph_has();
    test_device__without_flash_attention();
    return testing_result();
}
