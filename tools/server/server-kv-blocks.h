#pragma once

// Where the bytes of context checkpoints are kept. Two checkpoints of a conversation have most of their rows in common,
// at other places of the serialized state: it is cut where its content says so, and equal pieces are kept once.

#include "common-kv-policy.h"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <unordered_map>
#include <vector>

struct server_kv_block {
    uint64_t hash;
    uint64_t mark; // of the last count() that met it
    uint32_t size;
    uint32_t refs;

    uint8_t       * data()       { return reinterpret_cast<uint8_t *>(this + 1); }
    const uint8_t * data() const { return reinterpret_cast<const uint8_t *>(this + 1); }
};

class server_kv_blocks {
public:
    ~server_kv_blocks();

    // a reference to the block with this content, made if there is none and the store stays within `limit`, else null; at most 4 GiB
    server_kv_block * take(const uint8_t * data, size_t size, size_t limit = SIZE_MAX);
    void release(server_kv_block * block);

    static size_t size_of(size_t size); // of a block with so many bytes

    size_t size()    const { return n_bytes; } // with what the bookkeeping takes
    size_t n_packed() const { return n_live; }

private:
    friend struct server_kv_packed;
    friend class server_kv_count;

    std::unordered_multimap<uint64_t, server_kv_block *> blocks; // by hash

    size_t   n_bytes = 0;
    size_t   n_live  = 0; // checkpoints
    uint64_t mark    = 0;
};

// what a checkpoint holds instead of its bytes
struct server_kv_packed : common_kv_packed {
    explicit server_kv_packed(std::shared_ptr<server_kv_blocks> store);
    ~server_kv_packed() override;

    server_kv_packed(const server_kv_packed &) = delete;
    server_kv_packed & operator=(const server_kv_packed &) = delete;

    // bytes that no other checkpoint has
    size_t size_alone() const;

    std::shared_ptr<server_kv_blocks> store;

    std::vector<server_kv_block *> tgt; // null: not made yet
    std::vector<server_kv_block *> dft;

    uint64_t mark = 0;     // of the tokens it was made from (llama_kv_policy_mark)
    bool     turn = false; // made at the start of a user's turn
};

// Cuts a stream of bytes into blocks, with no more of it in memory than the next few.
class server_kv_cutter {
public:
    using block_fn = std::function<void(const uint8_t * data, size_t size)>;

    explicit server_kv_cutter(block_fn fn) : fn(std::move(fn)) {}

    void write(const void * data, size_t size);
    void finish();

private:
    void cut_all(size_t n_ahead);

    block_fn fn;
    std::vector<uint8_t> ahead; // not cut yet
};

// bytes of several checkpoints together
class server_kv_count {
public:
    explicit server_kv_count(server_kv_blocks & store) : store(store) {}

    void add(const server_kv_packed & packed);

    size_t n_bytes  = 0;
    size_t n_shared = 0; // of them in two or more of the checkpoints

private:
    server_kv_blocks & store;
    uint64_t first = 0; // mark of the first checkpoint
};
