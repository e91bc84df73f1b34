#include "server-kv-slot-file.h"

#include "server-stop.h"

#include "common.h"
#include "hwkv.h"
#include "llama.h"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <unordered_map>

#if !defined(_WIN32)
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>
#endif

static const char     MAGIC[8] = { 'H', 'W', 'K', 'V', 'S', 'L', 'O', 'T' };
static const uint32_t VERSION  = 2;

[[noreturn]] static void fail(const std::string & reason) {
    throw std::runtime_error(reason);
}

std::string server_kv_model_id(const std::string & fingerprint, const std::string & path) {
    hwkv_sha256 s;
    hwkv_sha256_init(&s);
    hwkv_sha256_string(&s, fingerprint.c_str());

    std::error_code ec;
    const uint64_t size = std::filesystem::file_size(path, ec);

    std::ifstream file(path, std::ios::binary);
    if (!ec && file) {
        hwkv_sha256_i64(&s, size);

        std::vector<char> sample(4096);
        for (uint64_t i = 0; i < 256; ++i) {
            file.clear();
            file.seekg(size/256*i);
            file.read(sample.data(), sample.size());
            hwkv_sha256_update(&s, sample.data(), file.gcount());
        }
    }

    char hex[65];
    hwkv_sha256_final(&s, hex);
    return hex;
}

//
// writing
//

// a file beside the one it will become
class new_file {
public:
    explicit new_file(const std::string & path) : path(path) {
        const auto p = std::filesystem::path(path);
        temp = (p.parent_path() / ("." + p.filename().string() + ".partial")).string();
#if defined(_WIN32)
        file = fopen(temp.c_str(), "wb");
        if (!file) {
            fail(string_format("cannot write %s: %s", temp.c_str(), strerror(errno)));
        }
#else
        const int fd = open(temp.c_str(), O_WRONLY | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0666);
        if (fd < 0) {
            fail(string_format("cannot write %s: %s", temp.c_str(), strerror(errno)));
        }
        if (flock(fd, LOCK_EX | LOCK_NB) != 0) {
            close(fd);
            fail("another server is saving this file");
        }
        if (ftruncate(fd, 0) != 0 || !(file = fdopen(fd, "wb"))) {
            const int error = errno;
            close(fd);
            fail(string_format("cannot write %s: %s", temp.c_str(), strerror(error)));
        }
#endif
        hwkv_stop_set_file(temp.c_str());
    }

    ~new_file() {
        if (file) {
            std::error_code ec;
            std::filesystem::remove(temp, ec);
            fclose(file);
        }
        hwkv_stop_set_file(nullptr);
    }

    void write(const void * data, size_t size) {
        if (hwkv_stop_requested()) {
            fail("the server is stopping");
        }
        if (fwrite(data, 1, size, file) != size) {
            fail(string_format("cannot write %s: %s", temp.c_str(), strerror(errno)));
        }
    }

    // on disk, then in place of the old one
    void commit() {
        if (fflush(file) != 0
#if !defined(_WIN32)
                || fsync(fileno(file)) != 0
#endif
                ) {
            fail(string_format("cannot write %s: %s", temp.c_str(), strerror(errno)));
        }
#if defined(_WIN32)
        fclose(file);
        file = nullptr;
#endif
        std::error_code ec;
        std::filesystem::rename(temp, path, ec);
        if (ec) {
            fail(string_format("cannot replace %s: %s", path.c_str(), ec.message().c_str()));
        }
#if !defined(_WIN32)
        fclose(file);
        file = nullptr;

        const auto folder = std::filesystem::path(path).parent_path().string();
        const int  fd     = open(folder.empty() ? "." : folder.c_str(), O_RDONLY | O_CLOEXEC);
        if (fd >= 0) {
            fsync(fd);
            close(fd);
        }
#endif
    }

private:
    std::string path;
    std::string temp;
    FILE * file = nullptr;
};

// the hash goes over pieces of this size
static const size_t PIECE = 1 << 20;

// counts, then writes: the size stands in the head
class writer {
public:
    explicit writer(new_file * file) : file(file) {}

    void put(const void * data, size_t size) {
        n += size;
        const auto * p = static_cast<const uint8_t *>(data);
        while (file && size > 0) {
            const size_t k = std::min(size, PIECE - piece.size());
            piece.insert(piece.end(), p, p + k);
            if (piece.size() == PIECE) {
                flush();
            }
            p    += k;
            size -= k;
        }
    }

    // ends the file with its hash
    void finish() {
        n += sizeof(hash);
        if (file) {
            flush();
            file->write(&hash, sizeof(hash));
        }
    }

    template <typename T>
    void num(T x) {
        put(&x, sizeof(x));
    }

    void text(const std::string & s) {
        num<uint32_t>(s.size());
        put(s.data(), s.size());
    }

    template <typename T>
    void bytes(const std::vector<T> & v) {
        num<uint64_t>(v.size()*sizeof(T));
        put(v.data(), v.size()*sizeof(T));
    }

    uint64_t n = 0;

private:
    void flush() {
        if (!piece.empty()) {
            hash = server_kv_hash(piece.data(), piece.size(), hash);
            file->write(piece.data(), piece.size());
            piece.clear();
        }
    }

    new_file * file;
    uint64_t   hash = 0;
    std::vector<uint8_t> piece;
};

static std::vector<uint8_t> get_state(llama_context * ctx, int id_slot) {
    std::vector<uint8_t> res;
    if (ctx) {
        res.resize(llama_state_seq_get_size_ext(ctx, id_slot, LLAMA_STATE_SEQ_FLAGS_NONE));
        if (res.empty() || llama_state_seq_get_data_ext(ctx, res.data(), res.size(), id_slot, LLAMA_STATE_SEQ_FLAGS_NONE) != res.size()) {
            fail("the state of the slot cannot be read");
        }
    }
    return res;
}

size_t server_kv_slot_file::save(const std::string & path, const std::vector<char> & tokens, const server_prompt & prompt) const {
    const auto state     = get_state(ctx,     id_slot);
    const auto state_dft = get_state(ctx_dft, id_slot);

    // blocks in the order of their first use
    std::vector<const server_kv_block *> blocks;
    std::unordered_map<const server_kv_block *, uint32_t> index;
    for (const auto & checkpoint : prompt.checkpoints) {
        const auto * packed = static_cast<const server_kv_packed *>(checkpoint.packed.get());
        for (const auto * list : { &packed->tgt, &packed->dft }) {
            for (const auto * block : *list) {
                if (index.emplace(block, blocks.size()).second) {
                    blocks.push_back(block);
                }
            }
        }
    }

    const auto write = [&](writer & out, uint64_t size) {
        out.put(MAGIC, sizeof(MAGIC));
        out.num<uint32_t>(VERSION);
        out.num<uint32_t>(LLAMA_STATE_SEQ_VERSION);
        out.num<uint64_t>(size);

        out.text(id.windows);
        out.text(id.model);
        out.text(id.cache);

        out.bytes(tokens);
        out.bytes(state);
        out.bytes(state_dft);

        out.num<uint32_t>(blocks.size());
        for (const auto * block : blocks) {
            out.num<uint32_t>(block->size);
            out.put(block->data(), block->size);
        }

        out.num<uint32_t>(prompt.checkpoints.size());
        for (const auto & checkpoint : prompt.checkpoints) {
            const auto * packed = static_cast<const server_kv_packed *>(checkpoint.packed.get());

            out.num<int64_t >(checkpoint.n_tokens);
            out.num<int32_t >(checkpoint.pos_min);
            out.num<int32_t >(checkpoint.pos_max);
            out.num<uint32_t>(packed->turn);
            for (const auto * list : { &packed->tgt, &packed->dft }) {
                out.num<uint32_t>(list->size());
                for (const auto * block : *list) {
                    out.num<uint32_t>(index[block]);
                }
            }
            out.bytes(checkpoint.data_spec);
        }

        out.finish();
    };

    writer count(nullptr);
    write(count, 0);

    new_file file(path);
    writer out(&file);
    write(out, count.n);
    file.commit();

    return out.n;
}

//
// reading
//

struct bytes_view {
    const uint8_t * data = nullptr;
    size_t          size = 0;
};

class reader {
public:
    reader(const uint8_t * data, size_t size) : p(data), end(data + size) {}

    const uint8_t * take(uint64_t size) {
        if (size > (uint64_t) (end - p)) {
            fail("the file is damaged");
        }
        const auto * res = p;
        p += size;
        return res;
    }

    template <typename T>
    T num() {
        T res;
        memcpy(&res, take(sizeof(T)), sizeof(T));
        return res;
    }

    std::string text() {
        const auto size = num<uint32_t>();
        return std::string(reinterpret_cast<const char *>(take(size)), size);
    }

    bytes_view bytes() {
        const auto size = num<uint64_t>();
        return { take(size), size };
    }

    bool at_end() const { return p == end; }

private:
    const uint8_t * p;
    const uint8_t * end;
};

static std::vector<uint8_t> read_all(const std::string & path) {
    std::error_code ec;
    if (!std::filesystem::is_regular_file(std::filesystem::symlink_status(path, ec))) { // a link may lead anywhere
        fail("there is no such file");
    }
    const uint64_t size = std::filesystem::file_size(path, ec);

    std::ifstream file(path, std::ios::binary);
    if (ec || !file) {
        fail("the file cannot be read");
    }

    std::vector<uint8_t> res;
    try {
        res.resize(size);
    } catch (const std::bad_alloc &) {
        fail(string_format("no memory for a file of %.1f MiB", size/1024.0/1024.0));
    }
    if (size > 0 && !file.read(reinterpret_cast<char *>(res.data()), size)) {
        fail("the file cannot be read");
    }
    return res;
}

// The head tells a file of another kind and a short one from a damaged one.
static void check_whole(const std::vector<uint8_t> & data) {
    const size_t n_head = sizeof(MAGIC) + 2*sizeof(uint32_t) + sizeof(uint64_t);

    if (data.size() < sizeof(MAGIC) || memcmp(data.data(), MAGIC, sizeof(MAGIC)) != 0) {
        fail("this is no slot file of a server with a KV policy");
    }
    if (data.size() < n_head + sizeof(uint64_t)) {
        fail(string_format("the file is truncated: found %zu bytes", data.size()));
    }

    reader in(data.data() + sizeof(MAGIC), n_head - sizeof(MAGIC));

    const auto version       = in.num<uint32_t>();
    const auto version_state = in.num<uint32_t>();
    if (version != VERSION || version_state != LLAMA_STATE_SEQ_VERSION) {
        fail(string_format("found version %u.%u of slot files, expected %u.%u", version, version_state, VERSION, (unsigned) LLAMA_STATE_SEQ_VERSION));
    }

    const auto size = in.num<uint64_t>();
    if (size > data.size()) {
        fail(string_format("the file is truncated: found %zu bytes, expected %llu", data.size(), (unsigned long long) size));
    }

    const size_t n = data.size() - sizeof(uint64_t);

    uint64_t hash = 0;
    for (size_t i = 0; i < n; i += PIECE) {
        hash = server_kv_hash(data.data() + i, std::min(PIECE, n - i), hash);
    }
    if (size != data.size() || memcmp(data.data() + n, &hash, sizeof(hash)) != 0) {
        fail("the file is damaged: its checksum does not match");
    }
}

static void expect_same(const std::string & found, const std::string & expected, const char * what) {
    if (found != expected) {
        fail(string_format("the file was saved %s: found %s, expected %s", what, found.c_str(), expected.c_str()));
    }
}

static bool set_state(llama_context * ctx, int id_slot, bytes_view state) {
    if (!ctx) {
        return true;
    }
    llama_memory_seq_rm(llama_get_memory(ctx), id_slot, -1, -1);
    return state.size == 0 || llama_state_seq_set_data_ext(ctx, state.data, state.size, id_slot, LLAMA_STATE_SEQ_FLAGS_NONE) == state.size;
}

size_t server_kv_slot_file::restore(const std::string & path, server_prompt & prompt, int n_ctx, bool has_mtmd,
        const std::shared_ptr<server_kv_blocks> & store) const {
    const auto data = read_all(path);
    check_whole(data);

    const size_t n_head = sizeof(MAGIC) + 2*sizeof(uint32_t) + sizeof(uint64_t);
    reader in(data.data() + n_head, data.size() - n_head - sizeof(uint64_t));

    expect_same(in.text(), id.windows, "under another KV policy");
    expect_same(in.text(), id.model,   "with another model");
    expect_same(in.text(), id.cache,   "with another kind of cache");

    const auto packed_tokens = in.bytes();
    const auto state         = in.bytes();
    const auto state_dft     = in.bytes();

    if (packed_tokens.size % sizeof(llama_token) != 0) {
        fail("the file is damaged");
    }
    llama_tokens packed(packed_tokens.size/sizeof(llama_token));
    memcpy(packed.data(), packed_tokens.data, packed_tokens.size);

    server_prompt restored;
    restored.tokens = server_tokens::deserialize(packed, has_mtmd);
    if (restored.tokens.size() > (size_t) n_ctx) {
        fail(string_format("found %zu tokens, expected at most the %d of a slot", restored.tokens.size(), n_ctx));
    }
    if (!restored.tokens.validate(ctx)) {
        fail("the file has tokens that the model does not know");
    }

    // blocks find those the server has already
    server_kv_packed blocks(store);
    for (auto n = in.num<uint32_t>(); n > 0; --n) {
        const auto size = in.num<uint32_t>();
        const auto * bytes = in.take(size);
        blocks.tgt.push_back(nullptr);
        blocks.tgt.back() = store->take(bytes, size);
    }

    for (auto n = in.num<uint32_t>(); n > 0; --n) {
        auto & checkpoint = restored.checkpoints.emplace_back();
        auto   packed     = std::make_shared<server_kv_packed>(store);

        checkpoint.n_tokens = in.num<int64_t>();
        checkpoint.pos_min  = in.num<int32_t>();
        checkpoint.pos_max  = in.num<int32_t>();
        packed->turn        = in.num<uint32_t>() != 0;
        for (auto * list : { &packed->tgt, &packed->dft }) {
            for (auto k = in.num<uint32_t>(); k > 0; --k) {
                const auto i = in.num<uint32_t>();
                if (i >= blocks.tgt.size()) {
                    fail("the file is damaged");
                }
                list->push_back(blocks.tgt[i]);
                list->back()->refs++;
            }
        }
        const auto spec = in.bytes();
        checkpoint.data_spec.assign(spec.data, spec.data + spec.size);

        if (checkpoint.n_tokens < 0 || checkpoint.n_tokens > (int64_t) restored.tokens.size()) {
            fail("the file is damaged");
        }
        checkpoint.packed = packed;
    }

    if (!in.at_end()) {
        fail("the file is damaged");
    }

    // other slots may hold the cells it needs, which only trying tells
    const auto old     = prompt.tokens.empty() ? std::vector<uint8_t>() : get_state(ctx,     id_slot);
    const auto old_dft = prompt.tokens.empty() ? std::vector<uint8_t>() : get_state(ctx_dft, id_slot);

    if (!set_state(ctx, id_slot, state) || !set_state(ctx_dft, id_slot, state_dft)) {
        if (!set_state(ctx, id_slot, { old.data(), old.size() }) || !set_state(ctx_dft, id_slot, { old_dft.data(), old_dft.size() })) {
            set_state(ctx,     id_slot, {});
            set_state(ctx_dft, id_slot, {});
            prompt.clear();
        }
        fail("the cache has no room for it beside the other slots");
    }

    prompt = std::move(restored);

    return data.size();
}
