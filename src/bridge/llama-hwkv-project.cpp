#include "llama-hwkv-project.h"

#include "ggml-backend.h"
#include "ggml.h"

#include <algorithm>
#include <cstring>

static bool is_leaf(const ggml_tensor * t) {
    return t->op == GGML_OP_NONE && !(t->flags & GGML_TENSOR_FLAG_INPUT);
}

static bool is_view(const ggml_tensor * t) {
    return t->op == GGML_OP_RESHAPE || t->op == GGML_OP_VIEW || t->op == GGML_OP_PERMUTE || t->op == GGML_OP_TRANSPOSE || t->op == GGML_OP_CONT || t->op == GGML_OP_CPY;
}

// The first node from i on that reads a tensor as the result it is, and what else it reads.
static ggml_tensor * reader_of(const std::vector<ggml_tensor *> & nodes, size_t & i, const ggml_tensor * t, ggml_tensor ** other) {
    for (; i < nodes.size(); ++i) {
        auto * node = nodes[i];
        for (int j = 0; j < 2; ++j) {
            if (node->src[j] == t) {
                *other = node->src[1 - j];
                return node;
            }
        }
    }
    return nullptr;
}

// From the attention to the sum with the stream. False at the first thing that is none of what a projection may have.
bool llama_hwkv_projection::follow(const std::vector<ggml_tensor *> & nodes, ggml_tensor * fattn) {
    const int64_t n_out = fattn->ne[0]*fattn->ne[1];

    ggml_tensor * other = nullptr;
    bool   picked = false;
    size_t i      = 0;
    for (auto * cur = reader_of(nodes, i, fattn, &other); cur; cur = reader_of(nodes, ++i, cur, &other)) {
        if (is_view(cur)) {
            continue;
        }
        if (cur->op == GGML_OP_GET_ROWS && weight) {
            picked = true; // the last layer goes on with the tokens whose output is wanted
            continue;
        }
        const bool computed = other && !is_leaf(other);
        if (cur->op == GGML_OP_MUL_MAT && !weight) {
            if (other->flags & GGML_TENSOR_FLAG_INPUT) {
                continue; // rotated back
            }
            if (cur->src[0] != other || computed || other->ne[0] != n_out || other->ne[2] != 1) {
                return false;
            }
            weight = other;
        } else if (cur->op == GGML_OP_MUL && !weight && computed && !gate) {
            if (ggml_nelements(other)*fattn->ne[0] != ggml_nelements(fattn) && ggml_nelements(other) != ggml_nelements(fattn)) {
                return false;
            }
            gate = other;
        } else if (cur->op == GGML_OP_MUL && weight && !computed) {
            factors.push_back(other);
        } else if (cur->op == GGML_OP_SCALE && weight) {
            float bias;
            float by;
            memcpy(&by,   (const float *) cur->op_params,     sizeof(by));
            memcpy(&bias, (const float *) cur->op_params + 1, sizeof(bias));
            if (bias != 0.0f) {
                return false;
            }
            scale *= by;
        } else if (cur->op == GGML_OP_RMS_NORM && weight && !norm) {
            norm  = true;
            scale = 1.0f;
            factors.clear(); // single factors before a norm change nothing; others are rare, and small beside it
        } else if (cur->op == GGML_OP_ADD && weight) {
            if (computed) {
                stream = picked && other->op == GGML_OP_GET_ROWS ? other->src[0] : other;
                return stream->type == GGML_TYPE_F32 && ggml_is_contiguous(stream) && stream->ne[0] == weight->ne[1] && ggml_nrows(stream) == fattn->ne[2]*fattn->ne[3];
            }
        } else {
            return false;
        }
    }
    return false;
}

void llama_hwkv_projection::find(const std::vector<ggml_tensor *> & nodes, ggml_tensor * fattn) {
    *this = {};
    if (!follow(nodes, fattn)) {
        *this = {};
    }
}

std::vector<ggml_tensor *> llama_hwkv_projection::tensors() const {
    std::vector<ggml_tensor *> res;
    for (auto * t : { gate, stream }) {
        if (t) {
            res.push_back(t);
        }
    }
    return res;
}

//
// C API
//

static void to_float(const ggml_tensor * t, float * dst) {
    std::vector<uint8_t> data(ggml_nbytes(t));
    ggml_backend_tensor_get(t, data.data(), 0, data.size());
    for (int64_t ir = 0; ir < ggml_nrows(t); ++ir) {
        const auto * row = data.data() + ir*t->nb[1];
        if (t->type == GGML_TYPE_F32) {
            memcpy(dst + ir*t->ne[0], row, t->ne[0]*sizeof(float));
        } else {
            ggml_get_type_traits(t->type)->to_float(row, dst + ir*t->ne[0], t->ne[0]);
        }
    }
}

bool llama_hwkv_tracer_get_project(const llama_hwkv_tracer * tracer, llama_hwkv_project_shape * shape) {
    const auto & p = llama_hwkv_projection_of(tracer);
    *shape = { p.gate != nullptr, p.norm };
    return p.weight != nullptr;
}

void llama_hwkv_tracer_get_weight(const llama_hwkv_tracer * tracer, float * dst) {
    to_float(llama_hwkv_projection_of(tracer).weight, dst);
}

void llama_hwkv_tracer_get_factors(const llama_hwkv_tracer * tracer, float * dst) {
    const auto & p = llama_hwkv_projection_of(tracer);
    const int64_t n_embd = p.weight->ne[1];
    std::fill(dst, dst + n_embd, p.scale);

    std::vector<float> by(n_embd);
    for (const auto * t : p.factors) {
        to_float(t, by.data());
        for (int64_t i = 0; i < n_embd; ++i) {
            dst[i] *= by[i%ggml_nelements(t)];
        }
    }
}

void llama_hwkv_tracer_get_gate(const llama_hwkv_tracer * tracer, float * dst) {
    const auto * gate = llama_hwkv_projection_of(tracer).gate;
    const auto shape  = llama_hwkv_tracer_shape(tracer);

    const int64_t n_values = ggml_nelements(gate);
    const int64_t n_each   = (int64_t) shape.n_tokens*shape.n_head*shape.head_dim_v/n_values; // 1, or one for a head
    std::vector<float> values(n_values);
    ggml_backend_tensor_get(gate, values.data(), 0, ggml_nbytes(gate));
    for (int64_t i = 0; i < n_values*n_each; ++i) {
        dst[i] = values[i/n_each];
    }
}

void llama_hwkv_tracer_get_stream(const llama_hwkv_tracer * tracer, float * dst) {
    const auto * stream = llama_hwkv_projection_of(tracer).stream;
    ggml_backend_tensor_get(stream, dst, 0, ggml_nbytes(stream));
}
