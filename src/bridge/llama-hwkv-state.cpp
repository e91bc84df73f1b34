// A sequence's state in pieces: upstream's way needs a buffer for all of it, beside the rows and beside what keeps them.

#include "llama-hwkv.h"

#include "hwkv-state.h"
#include "llama-context.h"
#include "llama-impl.h"
#include "llama-io.h"
#include "llama-kv-headwise.h"
#include "llama-memory.h"
#include "llama-model.h"

#include <algorithm>
#include <stdexcept>
#include <vector>

static const size_t PIECE = 1 << 20; // of tensors that are not in the host's memory

static uint8_t * host_data(const ggml_tensor * tensor, size_t offset) {
    return ggml_backend_buffer_is_host(tensor->buffer) ? static_cast<uint8_t *>(tensor->data) + offset : nullptr;
}

// calls fn(at, size) for a range, piece by piece
template <typename F>
static void in_pieces(size_t offset, size_t size, F && fn) {
    for (size_t i = 0; i < size; i += PIECE) {
        fn(offset + i, std::min(PIECE, size - i));
    }
}

class io_write_pieces : public llama_io_write_i {
public:
    io_write_pieces(llama_kv_policy_write_fn fn, void * arg) : fn(fn), arg(arg) {}

    void write(const void * src, size_t size) override {
        if (!fn(src, size, arg)) {
            throw std::runtime_error("the state is not wanted any more");
        }
        n += size;
    }

    void write_tensor(ggml_tensor * tensor, size_t offset, size_t size) override {
        if (const auto * data = host_data(tensor, offset)) {
            write(data, size);
            return;
        }
        in_pieces(offset, size, [&](size_t at, size_t k) {
            piece.resize(k);
            ggml_backend_tensor_get(tensor, piece.data(), at, k);
            write(piece.data(), k);
        });
    }

    size_t n_bytes() override { return n; }

private:
    llama_kv_policy_write_fn fn;
    void * arg;
    size_t n = 0;
    std::vector<uint8_t> piece;
};

class io_read_pieces : public llama_io_read_i {
public:
    io_read_pieces(llama_kv_policy_read_fn fn, void * arg) : fn(fn), arg(arg) {}

    void read(void * dst, size_t size) override {
        if (!fn(dst, size, arg)) {
            throw std::runtime_error("the state ends too early");
        }
        n += size;
    }

    void read_tensor(ggml_tensor * tensor, size_t offset, size_t size) override {
        if (auto * data = host_data(tensor, offset)) {
            read(data, size);
            return;
        }
        in_pieces(offset, size, [&](size_t at, size_t k) {
            piece.resize(k);
            read(piece.data(), k);
            ggml_backend_tensor_set(tensor, piece.data(), at, k);
        });
    }

    size_t n_bytes() override { return n; }

private:
    llama_kv_policy_read_fn fn;
    void * arg;
    size_t n = 0;
    std::vector<uint8_t> piece;
};

size_t llama_kv_policy_state_write(llama_context * ctx, llama_seq_id seq_id, llama_state_seq_flags flags, llama_kv_policy_write_fn fn, void * arg) {
    try {
        ctx->synchronize();
        io_write_pieces io(fn, arg);
        llama_get_memory(ctx)->state_write(io, seq_id, flags);
        return io.n_bytes();
    } catch (const std::exception & e) {
        LLAMA_LOG_ERROR("%s: %s\n", __func__, e.what());
        return 0;
    }
}

size_t llama_kv_policy_state_read(llama_context * ctx, llama_seq_id seq_id, llama_state_seq_flags flags, llama_kv_policy_read_fn fn, void * arg) {
    try {
        ctx->synchronize();
        io_read_pieces io(fn, arg);
        llama_get_memory(ctx)->state_read(io, seq_id, flags);
        return io.n_bytes();
    } catch (const std::exception & e) {
        LLAMA_LOG_ERROR("%s: %s\n", __func__, e.what());
        return 0;
    }
}

bool llama_kv_policy_state_shape(const llama_context * ctx, hwkv_state_shape * shape) {
    try {
        llama_kv_headwise::describe_state(llama_get_memory(ctx), ctx->get_model().hparams, *shape);
        return true;
    } catch (const std::exception & e) {
        LLAMA_LOG_ERROR("%s: %s\n", __func__, e.what());
        hwkv_state_free(shape);
        return false;
    }
}
