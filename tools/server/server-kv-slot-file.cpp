#include "server-kv-slot-file.h"

#include "server-stop.h"

#include "common.h"
#include "hwkv-hash.h"
#include "hwkv-slot-file.h"
#include "llama-hwkv.h"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <unordered_map>

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

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

static const char * const PARTIAL = ".partial"; // of a file that is being written: hidden, beside the one it will become

// Names that are ours, or would not fit with it. Errors go to clients, so they name files without their folder.
static void check_name(const std::string & name) {
    const std::string end = PARTIAL;
    if (name.size() >= end.size() && name.compare(name.size() - end.size(), end.size(), end) == 0) {
        throw std::invalid_argument("found a filename that ends in " + end + ", expected another: such files are overwritten");
    }
    const size_t max = 255 - 1 - end.size();
    if (name.size() > max) {
        throw std::invalid_argument(string_format("found a filename of %zu bytes, expected at most %zu", name.size(), max));
    }
}

class new_file {
public:
    explicit new_file(const std::string & path) : path(path) {
        const auto p = std::filesystem::path(path);
        name = p.filename().string();
        temp = (p.parent_path() / ("." + name + PARTIAL)).string();
        const int fd = open(temp.c_str(), O_WRONLY | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0666);
        if (fd < 0) {
            fail(string_format("cannot write %s: %s", name.c_str(), strerror(errno)));
        }
        if (flock(fd, LOCK_EX | LOCK_NB) != 0) {
            close(fd);
            fail("another server is saving this file");
        }
        if (ftruncate(fd, 0) != 0 || !(file = fdopen(fd, "wb"))) {
            const int error = errno;
            close(fd);
            fail(string_format("cannot write %s: %s", name.c_str(), strerror(error)));
        }
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
            fail(string_format("cannot write %s: %s", name.c_str(), strerror(errno)));
        }
    }

    // on disk, then in place of the old one
    void commit() {
        if (fflush(file) != 0 || fsync(fileno(file)) != 0) {
            fail(string_format("cannot write %s: %s", name.c_str(), strerror(errno)));
        }
        std::error_code ec;
        std::filesystem::rename(temp, path, ec);
        if (ec) {
            fail(string_format("cannot replace %s: %s", name.c_str(), ec.message().c_str()));
        }
        fclose(file);
        file = nullptr;

        const auto folder = std::filesystem::path(path).parent_path().string();
        const int  fd     = open(folder.empty() ? "." : folder.c_str(), O_RDONLY | O_CLOEXEC);
        if (fd >= 0) {
            fsync(fd);
            close(fd);
        }
    }

private:
    std::string path;
    std::string name;
    std::string temp;
    FILE * file = nullptr;
};

static std::vector<uint8_t> get_state(llama_context * ctx, int id_slot) {
    std::vector<uint8_t> res;
    if (ctx) {
        res.reserve(llama_state_seq_get_size_ext(ctx, id_slot, LLAMA_STATE_SEQ_FLAGS_NONE));
        const auto write = [](const void * data, size_t size, void * arg) {
            const auto * p = static_cast<const uint8_t *>(data);
            auto & to = *static_cast<std::vector<uint8_t> *>(arg);
            to.insert(to.end(), p, p + size);
            return true;
        };
        if (llama_kv_policy_state_write(ctx, id_slot, LLAMA_STATE_SEQ_FLAGS_NONE, write, &res) != res.size()) {
            fail("the state of the slot cannot be read");
        }
    }
    return res;
}

// what this server writes and reads
class expectation {
public:
    expectation(const llama_context * ctx, const llama_context * ctx_dft, const server_kv_slot_file::identity & id, int n_ctx, bool images) {
        if (!llama_kv_policy_state_shape(ctx, &shapes[0]) || (ctx_dft && !llama_kv_policy_state_shape(ctx_dft, &shapes[1]))) {
            fail("slots of this kind of model cannot be saved");
        }
        expect.id       = { { id.model.c_str(), id.cache.c_str(), id.policy.c_str() }, LLAMA_STATE_SEQ_VERSION };
        expect.shape[0] = &shapes[0];
        expect.shape[1] = ctx_dft ? &shapes[1] : nullptr;
        expect.n_ctx    = n_ctx;
        expect.images   = images;
    }

    ~expectation() {
        hwkv_state_free(&shapes[0]);
        hwkv_state_free(&shapes[1]);
    }

    expectation(const expectation &) = delete;
    expectation & operator=(const expectation &) = delete;

    void check(const hwkv_slot & slot, const server_tokens & tokens) const {
        hwkv_error err = {};
        if (hwkv_slot_check(&slot, &expect, tokens.empty() ? nullptr : &tokens[0], tokens.size(), tokens.pos_next(), &err) != 0) {
            fail(err.msg);
        }
    }

    hwkv_slot_expect expect = {};

private:
    hwkv_state_shape shapes[2] = {};
};

// a slot as the file has it, over memory that others own
struct slot_image {
    hwkv_slot slot = {};

    std::vector<hwkv_slot_block>       blocks;
    std::vector<hwkv_slot_checkpoint>  checkpoints;
    std::vector<std::vector<uint32_t>> lists;

    void add(const std::list<common_prompt_checkpoint> & list) {
        std::unordered_map<const server_kv_block *, uint32_t> index; // in the order of their first use

        lists.reserve(2*list.size());
        for (const auto & checkpoint : list) {
            const auto * packed = static_cast<const server_kv_packed *>(checkpoint.packed.get());

            auto & out = checkpoints.emplace_back();
            out = {};
            out.n_tokens  = checkpoint.n_tokens;
            out.pos_min   = checkpoint.pos_min;
            out.pos_max   = checkpoint.pos_max;
            out.turn      = packed->turn;
            out.spec      = const_cast<uint8_t *>(checkpoint.data_spec.data());
            out.spec_size = checkpoint.data_spec.size();

            const std::vector<server_kv_block *> * const from[] = { &packed->tgt, &packed->dft };
            for (int k = 0; k < 2; ++k) {
                auto & to = lists.emplace_back();
                for (const auto * block : *from[k]) {
                    const auto [it, is_new] = index.emplace(block, blocks.size());
                    if (is_new) {
                        blocks.push_back({ block->data(), block->size });
                    }
                    to.push_back(it->second);
                }
                out.n_block[k] = to.size();
                out.blocks[k]  = to.data();
            }
        }

        slot.blocks       = blocks.data();
        slot.n_block      = blocks.size();
        slot.checkpoints  = checkpoints.data();
        slot.n_checkpoint = checkpoints.size();
    }
};

size_t server_kv_slot_file::save(const std::string & path, const std::vector<char> & packed, const server_tokens & tokens,
        const std::list<common_prompt_checkpoint> & checkpoints) const {
    check_name(std::filesystem::path(path).filename().string());

    const expectation expected(ctx, ctx_dft, id, tokens.size(), tokens.has_mtmd);

    auto text      = packed;
    auto state     = get_state(ctx,     id_slot);
    auto state_dft = get_state(ctx_dft, id_slot);

    slot_image image;
    image.slot.tokens        = reinterpret_cast<uint8_t *>(text.data());
    image.slot.tokens_size   = text.size();
    image.slot.state[0]      = state.data();
    image.slot.state_size[0] = state.size();
    image.slot.state[1]      = state_dft.data();
    image.slot.state_size[1] = state_dft.size();
    image.add(checkpoints);

    // what could not be restored is not saved
    expected.check(image.slot, tokens);

    new_file file(path);

    std::string reason = "no memory";
    struct sink {
        new_file    & file;
        std::string & reason;
    } to = { file, reason };

    const auto write = [](const void * data, size_t size, void * arg) {
        auto & to = *static_cast<sink *>(arg);
        try {
            to.file.write(data, size);
            return true;
        } catch (const std::exception & e) {
            to.reason = e.what();
            return false;
        }
    };
    const size_t n = hwkv_slot_write(&image.slot, &expected.expect.id, write, &to);
    if (n == 0) {
        fail(reason);
    }
    file.commit();

    return n;
}

//
// reading
//

// blocks in the store, in the order of the file
struct taker {
    server_kv_packed & blocks;
    server_kv_blocks & store;
    size_t             limit;

    static const uint8_t * take(const uint8_t * data, uint32_t size, void * arg) {
        auto & self = *static_cast<taker *>(arg);
        self.blocks.tgt.push_back(nullptr);
        try {
            self.blocks.tgt.back() = self.store.take(data, size, self.limit);
        } catch (const std::bad_alloc &) {
        }
        return self.blocks.tgt.back() ? self.blocks.tgt.back()->data() : nullptr;
    }
};

static FILE * open_file(const std::string & path, uint64_t & size) {
    std::error_code ec;
    if (!std::filesystem::is_regular_file(std::filesystem::symlink_status(path, ec))) { // a link may lead anywhere
        fail("there is no such file");
    }
    size = std::filesystem::file_size(path, ec);

    auto * file = ec ? nullptr : fopen(path.c_str(), "rb");
    if (!file) {
        fail("the file cannot be read");
    }
    return file;
}

// the bytes of a state, in order
class state_source {
public:
    explicit state_source(size_t size) : size(size), left(size) {}
    virtual ~state_source() = default;

    bool read(void * dst, size_t n) {
        if (n > left || !get(static_cast<uint8_t *>(dst), n)) {
            return false;
        }
        left -= n;
        return true;
    }

    const size_t size;
    size_t       left;

private:
    virtual bool get(uint8_t * dst, size_t n) = 0;
};

class state_in_memory : public state_source {
public:
    explicit state_in_memory(const std::vector<uint8_t> & data) : state_source(data.size()), p(data.data()) {}

private:
    bool get(uint8_t * dst, size_t n) override {
        memcpy(dst, p, n);
        p += n;
        return true;
    }

    const uint8_t * p;
};

// Read again after it was checked, so that it need not stay in memory beside the state that it replaces. A piece is used only if it is
// what was checked.
class state_in_file : public state_source {
public:
    state_in_file(FILE * file, const hwkv_slot & slot, int k) : state_source(slot.state_size[k]), file(file), at(slot.state_at[k]) {
        for (size_t i = 0; i < size; i += PIECE) {
            hashes.push_back(hwkv_hash(slot.state[k] + i, std::min(PIECE, size - i), 0));
        }
    }

    bool changed = false;

private:
    static constexpr size_t PIECE = 1024*1024;

    bool next_piece() {
        if (i_piece == 0 && fseeko(file, at, SEEK_SET) != 0) {
            return false;
        }
        piece.resize(std::min(PIECE, size - i_piece*PIECE));
        changed = fread(piece.data(), 1, piece.size(), file) != piece.size() || hwkv_hash(piece.data(), piece.size(), 0) != hashes[i_piece];
        done    = 0;
        i_piece++;
        return !changed;
    }

    bool get(uint8_t * dst, size_t n) override {
        while (n > 0) {
            if (done == piece.size() && !next_piece()) {
                return false;
            }
            const size_t k = std::min(n, piece.size() - done);
            memcpy(dst, piece.data() + done, k);
            dst  += k;
            n    -= k;
            done += k;
        }
        return true;
    }

    FILE * file;
    off_t  at;

    std::vector<uint64_t> hashes;
    std::vector<uint8_t>  piece;
    size_t                i_piece = 0;
    size_t                done    = 0; // bytes of the piece
};

// an empty state empties the sequence
static bool set_state(llama_context * ctx, int id_slot, state_source & from) {
    if (!ctx) {
        return true;
    }
    llama_memory_seq_rm(llama_get_memory(ctx), id_slot, -1, -1);

    const auto read = [](void * dst, size_t n, void * arg) { return static_cast<state_source *>(arg)->read(dst, n); };

    return from.size == 0 || (llama_kv_policy_state_read(ctx, id_slot, LLAMA_STATE_SEQ_FLAGS_NONE, read, &from) == from.size && from.left == 0);
}

static bool set_state(llama_context * ctx, int id_slot, const std::vector<uint8_t> & data) {
    state_in_memory from(data);
    return set_state(ctx, id_slot, from);
}

static server_tokens get_tokens(const hwkv_slot & slot, bool has_mtmd, const llama_context * ctx) {
    if (slot.tokens_size % sizeof(llama_token) != 0) {
        fail("the file's tokens are damaged");
    }
    llama_tokens packed(slot.tokens_size/sizeof(llama_token));
    if (!packed.empty()) {
        memcpy(packed.data(), slot.tokens, slot.tokens_size);
    }

    auto res = server_tokens::deserialize(packed, has_mtmd);
    if (!res.validate(ctx)) {
        fail("the file has tokens that the model does not know");
    }
    return res;
}

static void get_checkpoints(const hwkv_slot & slot, const server_kv_packed & blocks, const std::shared_ptr<server_kv_blocks> & store,
        std::list<common_prompt_checkpoint> & list) {
    for (uint32_t i = 0; i < slot.n_checkpoint; ++i) {
        const auto & from = slot.checkpoints[i];
        if (!hwkv_slot_has(&slot, &from)) {
            continue;
        }

        auto packed = std::make_shared<server_kv_packed>(store);
        packed->turn = from.turn != 0;

        std::vector<server_kv_block *> * const to[] = { &packed->tgt, &packed->dft };
        for (int k = 0; k < 2; ++k) {
            for (uint32_t j = 0; j < from.n_block[k]; ++j) {
                to[k]->push_back(blocks.tgt[from.blocks[k][j]]);
                to[k]->back()->refs++;
            }
        }

        auto & checkpoint = list.emplace_back();
        checkpoint.n_tokens = from.n_tokens;
        checkpoint.pos_min  = from.pos_min;
        checkpoint.pos_max  = from.pos_max;
        checkpoint.packed   = packed;
        if (from.spec_size > 0) {
            checkpoint.data_spec.assign(from.spec, from.spec + from.spec_size);
        }
    }
}

size_t server_kv_slot_file::restore(const std::string & path, server_prompt & prompt, const destination & to) const {
    check_name(std::filesystem::path(path).filename().string());

    uint64_t size = 0;
    const std::unique_ptr<FILE, int (*)(FILE *)> file(open_file(path, size), fclose);

    const expectation expected(ctx, ctx_dft, id, to.n_ctx, to.has_mtmd);

    server_kv_packed blocks(to.store);
    taker take = { blocks, *to.store, to.limit };

    hwkv_slot_source source = {};
    source.read     = [](void * dst, size_t n, void * arg) { return fread(dst, 1, n, static_cast<FILE *>(arg)) == n; };
    source.arg      = file.get();
    source.size     = size;
    source.take     = taker::take;
    source.take_arg = &take;

    hwkv_slot  slot = {};
    hwkv_error err  = {};
    const std::unique_ptr<hwkv_slot, void (*)(hwkv_slot *)> guard(&slot, hwkv_slot_free);
    if (hwkv_slot_read(&slot, &source, &expected.expect, &err) != 0) {
        fail(err.msg);
    }

    server_prompt restored;
    restored.tokens = get_tokens(slot, to.has_mtmd, ctx);
    expected.check(slot, restored.tokens);
    get_checkpoints(slot, blocks, to.store, restored.checkpoints);

    state_in_file from    (file.get(), slot, 0);
    state_in_file from_dft(file.get(), slot, 1);
    hwkv_slot_drop_states(&slot);

    // other slots may hold the cells it needs, which only trying tells
    const auto old     = prompt.tokens.empty() ? std::vector<uint8_t>() : get_state(ctx,     id_slot);
    const auto old_dft = prompt.tokens.empty() ? std::vector<uint8_t>() : get_state(ctx_dft, id_slot);

    if (!set_state(ctx, id_slot, from) || !set_state(ctx_dft, id_slot, from_dft)) {
        if (!set_state(ctx, id_slot, old) || !set_state(ctx_dft, id_slot, old_dft)) {
            set_state(ctx,     id_slot, {});
            set_state(ctx_dft, id_slot, {});
            prompt.clear();
        }
        if (from.changed || from_dft.changed) {
            fail("the file was changed while it was read");
        }
        fail(string_format("the cache has no room for its %zu tokens beside the other slots", restored.tokens.size()));
    }

    prompt = std::move(restored);

    return size;
}
