#include "server-kv-blocks.h"

#include "hwkv-hash.h"
#include "hwkv-slot-file.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <new>

// Blocks are cut where a rolling hash of the last 64 bytes has MASK's bits zero: about 3 KiB with the smallest size.
static const size_t   BLOCK_MIN = HWKV_SLOT_BLOCK_MIN;
static const size_t   BLOCK_MAX = HWKV_SLOT_BLOCK_MAX;
static const uint64_t MASK      = ((1ull << 11) - 1) << 53;

// a block's header, its node in the table and the allocator's own
static const size_t BLOCK_EXTRA = sizeof(server_kv_block) + 72;

server_kv_blocks::~server_kv_blocks() {
    for (auto & [hash, block] : blocks) {
        free(block);
    }
}

size_t server_kv_blocks::size_of(size_t size) {
    return size + BLOCK_EXTRA;
}

server_kv_block * server_kv_blocks::take(const uint8_t * data, size_t size, size_t limit) {
    const uint64_t hash = hwkv_hash(data, size, 0);

    const auto range = blocks.equal_range(hash);
    for (auto it = range.first; it != range.second; ++it) {
        auto * block = it->second;
        if (block->size == size && memcmp(block->data(), data, size) == 0) {
            block->refs++;
            return block;
        }
    }

    if (n_bytes + size_of(size) > limit) {
        return nullptr;
    }

    auto * block = static_cast<server_kv_block *>(malloc(sizeof(server_kv_block) + size));
    if (!block) {
        throw std::bad_alloc();
    }
    *block = { hash, 0, (uint32_t) size, 1 };
    memcpy(block->data(), data, size);

    try {
        blocks.emplace(hash, block);
    } catch (...) {
        free(block);
        throw;
    }
    n_bytes += size_of(size);

    return block;
}

void server_kv_blocks::release(server_kv_block * block) {
    if (--block->refs > 0) {
        return;
    }

    const auto range = blocks.equal_range(block->hash);
    for (auto it = range.first; it != range.second; ++it) {
        if (it->second == block) {
            blocks.erase(it);
            break;
        }
    }
    n_bytes -= size_of(block->size);
    free(block);
}

// random numbers, one for each value of a byte
struct gear_table {
    uint64_t v[256];

    gear_table() {
        for (uint64_t i = 0; i < 256; ++i) {
            v[i] = hwkv_mix((i + 1)*0x9e3779b97f4a7c15ull);
        }
    }
};

static size_t cut(const uint8_t * data, size_t size) {
    static const gear_table gear;

    const size_t end = std::min(size, BLOCK_MAX);

    uint64_t h = 0;
    for (size_t i = BLOCK_MIN - 64; i < end; ++i) {
        h = (h << 1) + gear.v[data[i]];
        if ((h & MASK) == 0 && i + 1 >= BLOCK_MIN) {
            return i + 1;
        }
    }
    return end;
}

void server_kv_cutter::write(const void * data, size_t size) {
    const auto * p = static_cast<const uint8_t *>(data);

    while (size > 0) {
        const size_t n = std::min(size, 16*BLOCK_MAX - ahead.size());
        ahead.insert(ahead.end(), p, p + n);
        if (ahead.size() == 16*BLOCK_MAX) {
            cut_all(BLOCK_MAX); // where a block ends does not depend on how the bytes came
        }
        p    += n;
        size -= n;
    }
}

void server_kv_cutter::finish() {
    cut_all(1);
}

// as long as there are so many bytes
void server_kv_cutter::cut_all(size_t n_ahead) {
    size_t i = 0;
    while (ahead.size() - i >= n_ahead) {
        const size_t n = cut(ahead.data() + i, ahead.size() - i);
        fn(ahead.data() + i, n);
        i += n;
    }
    ahead.erase(ahead.begin(), ahead.begin() + i);
}

server_kv_packed::server_kv_packed(std::shared_ptr<server_kv_blocks> store) : store(std::move(store)) {
    this->store->n_live++;
}

server_kv_packed::~server_kv_packed() {
    for (const auto * blocks : { &tgt, &dft }) {
        for (auto * block : *blocks) {
            if (block) {
                store->release(block);
            }
        }
    }
    store->n_live--;
}

size_t server_kv_packed::size_alone() const {
    size_t res = 0;
    for (const auto * blocks : { &tgt, &dft }) {
        for (const auto * block : *blocks) {
            res += block && block->refs == 1 ? server_kv_blocks::size_of(block->size) : 0;
        }
    }
    return res;
}

void server_kv_count::add(const server_kv_packed & packed) {
    const uint64_t mark = ++store.mark;
    if (first == 0) {
        first = mark;
    }

    for (const auto * blocks : { &packed.tgt, &packed.dft }) {
        for (auto * block : *blocks) {
            // below `first`: not met yet; at `mark`: twice in one checkpoint; the highest bit: known to be shared
            const uint64_t seen = block->mark & ~(1ull << 63);

            if (seen < first) {
                n_bytes += server_kv_blocks::size_of(block->size);
                block->mark = mark;
            } else if (seen != mark && block->mark == seen) {
                n_shared += server_kv_blocks::size_of(block->size);
                block->mark = mark | (1ull << 63);
            }
        }
    }
}
