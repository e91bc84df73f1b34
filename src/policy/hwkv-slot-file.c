// Writing and reading the file of a slot.

#include "hwkv-slot-file.h"

#include "hwkv-hash.h"
#include "hwkv-impl.h"

#include <string.h>

static const char     MAGIC[8] = { 'H', 'W', 'K', 'V', 'S', 'L', 'O', 'T' };
static const uint32_t VERSION  = 4;

#define PIECE (1u << 20) // of the file, and what the hash goes over

// far more than anybody keeps
#define CHECKPOINTS_MAX 4096u
#define SPEC_MAX        (1u << 20)

#define HASH_MAX (256u << 20) // of a file that is wrong anyway: more of it is not read just to know whether its hash is wrong too

//
// writing
//

struct writer {
    hwkv_slot_write_fn write;
    void             * arg;
    uint64_t           n;
    uint64_t           hash;
    uint8_t          * piece;   // [PIECE], NULL: count only
    size_t             n_piece;
    bool               ok;
};

static void flush(struct writer * w) {
    if (w->ok && w->n_piece > 0) {
        w->hash = hwkv_hash(w->piece, w->n_piece, w->hash);
        w->ok   = w->write(w->piece, w->n_piece, w->arg);
    }
    w->n_piece = 0;
}

static void put(struct writer * w, const void * data, uint64_t size) {
    const uint8_t * p = data;
    w->n += size;
    while (w->piece && w->ok && size > 0) {
        const size_t k = size < PIECE - w->n_piece ? (size_t) size : PIECE - w->n_piece;
        memcpy(w->piece + w->n_piece, p, k);
        w->n_piece += k;
        if (w->n_piece == PIECE) {
            flush(w);
        }
        p    += k;
        size -= k;
    }
}

static void put_u32(struct writer * w, uint32_t x) {
    put(w, &x, sizeof(x));
}

static void put_bytes(struct writer * w, const void * data, uint64_t size) {
    put(w, &size, sizeof(size));
    put(w, data, size);
}

static void put_all(struct writer * w, const struct hwkv_slot * slot, const struct hwkv_slot_id * id, uint64_t size) {
    put(w, MAGIC, sizeof(MAGIC));
    put_u32(w, VERSION);
    put_u32(w, id->state_version);
    put(w, &size, sizeof(size));
    for (int i = 0; i < HWKV_SLOT_N_ID; i++) {
        put_u32(w, (uint32_t) strlen(id->text[i]));
        put(w, id->text[i], strlen(id->text[i]));
    }
    put_bytes(w, slot->tokens, slot->tokens_size);
    for (int i = 0; i < 2; i++) {
        put_bytes(w, slot->state[i], slot->state_size[i]);
    }
    put_u32(w, slot->n_checkpoint);
    put_u32(w, slot->n_block);
    for (uint32_t i = 0; i < slot->n_block; i++) {
        put_u32(w, slot->blocks[i].size);
        put(w, slot->blocks[i].data, slot->blocks[i].size);
    }
    for (uint32_t i = 0; i < slot->n_checkpoint; i++) {
        const struct hwkv_slot_checkpoint * c = &slot->checkpoints[i];
        put(w, &c->n_tokens, sizeof(c->n_tokens));
        put(w, &c->pos_min,  sizeof(c->pos_min));
        put(w, &c->pos_max,  sizeof(c->pos_max));
        put_u32(w, c->turn);
        for (int k = 0; k < 2; k++) {
            put_u32(w, c->n_block[k]);
            put(w, c->blocks[k], sizeof(uint32_t) * (uint64_t) c->n_block[k]);
        }
        put_bytes(w, c->spec, c->spec_size);
    }
}

uint64_t hwkv_slot_write(const struct hwkv_slot * slot, const struct hwkv_slot_id * id, hwkv_slot_write_fn write, void * arg) {
    struct writer count = { .ok = true };
    put_all(&count, slot, id, 0);
    const uint64_t size = count.n + sizeof(count.hash);
    if (!write) {
        return size;
    }
    struct writer w = { .write = write, .arg = arg, .piece = hwkv_alloc_raw(PIECE), .ok = true };
    if (!w.piece) {
        return 0;
    }
    put_all(&w, slot, id, size);
    flush(&w);
    w.ok = w.ok && write(&w.hash, sizeof(w.hash), arg);
    hwkv_free(w.piece);
    return w.ok ? size : 0;
}

//
// reading
//

struct reader {
    const struct hwkv_slot_source * source;
    struct hwkv_error * err;
    uint8_t  * piece;   // [PIECE], or as much as there is
    size_t     n_piece; // bytes in it
    size_t     at;
    uint64_t   left;    // of the file, before its hash, that are not in a piece yet
    uint64_t   hash;
    bool       io_error;
};

static bool next_piece(struct reader * r) {
    const size_t n = r->left < PIECE ? (size_t) r->left : PIECE;
    if (n == 0 || r->io_error) {
        return false;
    }
    if (!r->source->read(r->piece, n, r->source->arg)) {
        r->io_error = true;
        return false;
    }
    r->hash    = hwkv_hash(r->piece, n, r->hash);
    r->left   -= n;
    r->n_piece = n;
    r->at      = 0;
    return true;
}

static uint64_t n_left(const struct reader * r) {
    return r->left + (r->n_piece - r->at);
}

static int get(struct reader * r, void * dst, uint64_t size) {
    if (size > n_left(r)) {
        return hwkv_fail(r->err, HWKV_ERR_VALUE, NULL, "the file ends in the middle of something");
    }
    uint8_t * p = dst;
    while (size > 0) {
        if (r->at == r->n_piece && !next_piece(r)) {
            return hwkv_fail(r->err, HWKV_ERR_IO, NULL, "the file cannot be read");
        }
        const size_t k = size < r->n_piece - r->at ? (size_t) size : r->n_piece - r->at;
        memcpy(p, r->piece + r->at, k);
        r->at += k;
        p     += k;
        size  -= k;
    }
    return 0;
}

// a new array of `size` bytes, all of them in the file
static int get_new(struct reader * r, void * out, uint64_t size) {
    void * res = NULL;
    if (size > n_left(r)) {
        return hwkv_fail(r->err, HWKV_ERR_VALUE, NULL, "the file ends in the middle of something");
    }
    if (size > 0) {
        res = hwkv_alloc_raw((size_t) size);
        if (!res) {
            return hwkv_fail(r->err, HWKV_ERR_NOMEM, NULL, "no memory for %.1f MiB of the file", (double) size / 1024.0 / 1024.0);
        }
    }
    const int status = get(r, res, size);
    if (status) {
        hwkv_free(res);
        res = NULL;
    }
    memcpy(out, &res, sizeof(res));
    return status;
}

static int get_bytes(struct reader * r, uint8_t ** out, uint64_t * size, uint64_t max, const char * what) {
    uint64_t n = 0;
    int status = get(r, &n, sizeof(n));
    if (status == 0 && n > max) {
        status = hwkv_fail(r->err, HWKV_ERR_VALUE, NULL, "found %llu bytes of %s, expected at most %llu", (unsigned long long) n, what,
                           (unsigned long long) max);
    }
    if (status == 0) {
        status = get_new(r, out, n);
    }
    if (status == 0) {
        *size = n;
    }
    return status;
}

static int read_ids(struct reader * r, const struct hwkv_slot_id * expect) {
    static const char * const what[] = { "with another model", "with another kind of cache", "under another KV policy" };
    for (int i = 0; i < HWKV_SLOT_N_ID; i++) {
        char     text[256];
        uint32_t size   = 0;
        int      status = get(r, &size, sizeof(size));
        if (status == 0 && size >= sizeof(text)) {
            status = hwkv_fail(r->err, HWKV_ERR_VALUE, NULL, "found an id of %u bytes, expected at most %zu", size, sizeof(text) - 1);
        }
        if (status == 0) {
            status = get(r, text, size);
        }
        if (status) {
            return status;
        }
        text[size] = '\0';
        if (strcmp(text, expect->text[i]) != 0) {
            char found[110];
            char want[110];
            return hwkv_fail(r->err, HWKV_ERR_MISMATCH, NULL, "the file was saved %s: found %s, expected %s", what[i], hwkv_quote(found, text, 100),
                             hwkv_quote(want, expect->text[i], 100));
        }
    }
    return 0;
}

static int read_blocks(struct reader * r, struct hwkv_slot * slot, uint32_t n) {
    slot->blocks = hwkv_alloc(n > 0 ? n : 1, sizeof(*slot->blocks));
    uint8_t * data = hwkv_alloc_raw(HWKV_SLOT_BLOCK_MAX);
    int status = slot->blocks && data ? 0 : hwkv_fail(r->err, HWKV_ERR_NOMEM, NULL, "out of memory");
    for (uint32_t i = 0; i < n && status == 0; i++) {
        uint32_t size = 0;
        status = get(r, &size, sizeof(size));
        if (status == 0 && (size == 0 || size > HWKV_SLOT_BLOCK_MAX)) {
            status = hwkv_fail(r->err, HWKV_ERR_VALUE, NULL, "found a block of %u bytes, expected 1 to %u", size, HWKV_SLOT_BLOCK_MAX);
        }
        if (status == 0) {
            status = get(r, data, size);
        }
        if (status == 0) {
            slot->blocks[i].data = r->source->take(data, size, r->source->take_arg);
            slot->blocks[i].size = size;
            slot->n_block        = i + 1;
        }
    }
    hwkv_free(data);
    return status;
}

// a draft goes by its own cells
static uint64_t state_max(const struct hwkv_slot_expect * expect, int i, bool checkpoint) {
    return expect->shape[i] ? hwkv_state_size_max(expect->shape[i], checkpoint, i == 0 ? expect->n_ctx : UINT32_MAX) : 0;
}

static int read_checkpoint(struct reader * r, struct hwkv_slot_checkpoint * c, const struct hwkv_slot_expect * expect, uint32_t n_block) {
    int status = get(r, &c->n_tokens, sizeof(c->n_tokens));
    status = status ? status : get(r, &c->pos_min, sizeof(c->pos_min));
    status = status ? status : get(r, &c->pos_max, sizeof(c->pos_max));
    status = status ? status : get(r, &c->turn, sizeof(c->turn));
    for (int k = 0; k < 2 && status == 0; k++) {
        uint32_t n = 0;
        status = get(r, &n, sizeof(n));
        if (status == 0 && n > state_max(expect, k, true) / HWKV_SLOT_BLOCK_MIN + 1) {
            status = hwkv_fail(r->err, HWKV_ERR_VALUE, NULL, "found %u blocks in a checkpoint, which are more than it can have", n);
        }
        status = status ? status : get_new(r, &c->blocks[k], sizeof(uint32_t) * (uint64_t) n);
        for (uint32_t i = 0; i < n && status == 0; i++) {
            if (c->blocks[k][i] >= n_block) {
                status = hwkv_fail(r->err, HWKV_ERR_VALUE, NULL, "found block %u, expected one of %u", c->blocks[k][i], n_block);
            }
        }
        c->n_block[k] = status ? 0 : n;
    }
    return status ? status : get_bytes(r, &c->spec, &c->spec_size, SPEC_MAX, "a speculator's state");
}

static int read_checkpoints(struct reader * r, struct hwkv_slot * slot, const struct hwkv_slot_expect * expect, uint32_t n) {
    slot->checkpoints = hwkv_alloc(n > 0 ? n : 1, sizeof(*slot->checkpoints));
    int status = slot->checkpoints ? 0 : hwkv_fail(r->err, HWKV_ERR_NOMEM, NULL, "out of memory");
    for (uint32_t i = 0; i < n && status == 0; i++) {
        slot->n_checkpoint = i + 1;
        status = read_checkpoint(r, &slot->checkpoints[i], expect, slot->n_block);
    }
    return status;
}

// A conversation that is too long for this server is told by its tokens, which everybody understands.
static int read_tokens(struct reader * r, struct hwkv_slot * slot, const struct hwkv_slot_expect * expect) {
    // with some numbers before them; images come with data of their own
    const uint64_t max    = expect->images ? (uint64_t) 1 << 30 : 4 * (uint64_t) expect->n_ctx + 64;
    uint64_t       size   = 0;
    int            status = get(r, &size, sizeof(size));
    if (status == 0 && size > max) {
        status = hwkv_fail(r->err, HWKV_ERR_RANGE, NULL, "found about %llu tokens, expected at most the %u that a slot of this server holds",
                           (unsigned long long) size / 4, expect->n_ctx);
    }
    status = status ? status : get_new(r, &slot->tokens, size);
    slot->tokens_size = status ? 0 : size;
    return status;
}

static int read_state(struct reader * r, struct hwkv_slot * slot, int i, const struct hwkv_slot_expect * expect) {
    const int status = get_bytes(r, &slot->state[i], &slot->state_size[i], state_max(expect, i, false), i == 0 ? "the state" : "the draft's state");
    slot->state_at[i] = r->source->size - sizeof(r->hash) - n_left(r) - slot->state_size[i];
    return status;
}

static int read_all(struct reader * r, struct hwkv_slot * slot, const struct hwkv_slot_expect * expect) {
    uint32_t n_checkpoint = 0;
    uint32_t n_block      = 0;
    int status = read_ids(r, &expect->id);
    status = status ? status : read_tokens(r, slot, expect);
    status = status ? status : read_state(r, slot, 0, expect);
    status = status ? status : read_state(r, slot, 1, expect);
    status = status ? status : get(r, &n_checkpoint, sizeof(n_checkpoint));
    status = status ? status : get(r, &n_block, sizeof(n_block));
    if (status == 0 && (n_checkpoint > CHECKPOINTS_MAX || n_block > n_left(r) / HWKV_SLOT_BLOCK_MIN + 2 * n_checkpoint)) {
        status = hwkv_fail(r->err, HWKV_ERR_VALUE, NULL, "found %u checkpoints in %u blocks, which are more than the file has room for", n_checkpoint,
                           n_block);
    }
    status = status ? status : read_blocks(r, slot, n_block);
    status = status ? status : read_checkpoints(r, slot, expect, n_checkpoint);
    if (status == 0 && n_left(r) > 0) {
        status = hwkv_fail(r->err, HWKV_ERR_VALUE, NULL, "found %llu bytes after the last checkpoint", (unsigned long long) n_left(r));
    }
    return status;
}

// The head tells a file of another kind and a short one from a damaged one, before anything of it is read.
static int read_head(struct reader * r, const struct hwkv_slot_expect * expect) {
    const uint64_t size = r->source->size;
    struct {
        char     magic[8];
        uint32_t version;
        uint32_t state_version;
        uint64_t size;
    } head;
    const size_t n = size < sizeof(head) ? (size_t) size : sizeof(head);
    memset(&head, 0, sizeof(head));
    if (!r->source->read(&head, n, r->source->arg)) {
        return hwkv_fail(r->err, HWKV_ERR_IO, NULL, "the file cannot be read");
    }
    if (memcmp(head.magic, MAGIC, sizeof(MAGIC)) != 0) {
        return hwkv_fail(r->err, HWKV_ERR_VALUE, NULL, "this is no slot file of a server with a KV policy");
    }
    if (size < sizeof(head) + sizeof(r->hash)) {
        return hwkv_fail(r->err, HWKV_ERR_VALUE, NULL, "the file is truncated: found %llu bytes", (unsigned long long) size);
    }
    if (head.version != VERSION || head.state_version != expect->id.state_version) {
        return hwkv_fail(r->err, HWKV_ERR_VERSION, NULL, "found version %u.%u of slot files, expected %u.%u", head.version, head.state_version, VERSION,
                         expect->id.state_version);
    }
    if (head.size > size) {
        return hwkv_fail(r->err, HWKV_ERR_VALUE, NULL, "the file is truncated: found %llu bytes, expected %llu", (unsigned long long) size,
                         (unsigned long long) head.size);
    }
    if (head.size < size) {
        return hwkv_fail(r->err, HWKV_ERR_VALUE, NULL, "the file is damaged: found %llu bytes, expected %llu", (unsigned long long) size,
                         (unsigned long long) head.size);
    }
    // the hash goes over pieces from the first byte on
    memcpy(r->piece, &head, sizeof(head));
    const size_t first = size - sizeof(r->hash) < PIECE ? (size_t) (size - sizeof(r->hash)) : PIECE;
    if (!r->source->read(r->piece + sizeof(head), first - sizeof(head), r->source->arg)) {
        return hwkv_fail(r->err, HWKV_ERR_IO, NULL, "the file cannot be read");
    }
    r->hash    = hwkv_hash(r->piece, first, 0);
    r->n_piece = first;
    r->at      = sizeof(head);
    r->left    = size - sizeof(r->hash) - first;
    return 0;
}

// Damage by accident shows in the hash as well: then that is the reason, whatever it led to.
static int check_hash(struct reader * r, int status) {
    if (r->io_error || (status != 0 && r->left > HASH_MAX) || (status != 0 && status != HWKV_ERR_VALUE && status != HWKV_ERR_MISMATCH && status != HWKV_ERR_RANGE)) {
        return status;
    }
    while (r->left > 0) {
        if (!next_piece(r)) {
            return hwkv_fail(r->err, HWKV_ERR_IO, NULL, "the file cannot be read");
        }
    }
    uint64_t hash = 0;
    if (!r->source->read(&hash, sizeof(hash), r->source->arg)) {
        return hwkv_fail(r->err, HWKV_ERR_IO, NULL, "the file cannot be read");
    }
    if (hash != r->hash) {
        return hwkv_fail(r->err, HWKV_ERR_VALUE, NULL, "the file is damaged: its checksum does not match");
    }
    return status;
}

int hwkv_slot_read(struct hwkv_slot * slot, const struct hwkv_slot_source * source, const struct hwkv_slot_expect * expect, struct hwkv_error * err) {
    memset(slot, 0, sizeof(*slot));
    struct reader r = { .source = source, .err = err, .piece = hwkv_alloc_raw(source->size < PIECE ? (size_t) source->size + 1 : PIECE) };
    if (!r.piece) {
        return hwkv_fail(err, HWKV_ERR_NOMEM, NULL, "out of memory");
    }
    int status = read_head(&r, expect);
    if (status == 0) {
        status = read_all(&r, slot, expect);
        status = check_hash(&r, status);
    }
    hwkv_free(r.piece);
    return status;
}

void hwkv_slot_drop_states(struct hwkv_slot * slot) {
    for (int i = 0; i < 2; i++) {
        hwkv_free(slot->state[i]);
        slot->state[i] = NULL;
    }
}

void hwkv_slot_free(struct hwkv_slot * slot) {
    for (uint32_t i = 0; i < slot->n_checkpoint; i++) {
        hwkv_free(slot->checkpoints[i].blocks[0]);
        hwkv_free(slot->checkpoints[i].blocks[1]);
        hwkv_free(slot->checkpoints[i].spec);
    }
    hwkv_free(slot->checkpoints);
    hwkv_free(slot->blocks);
    hwkv_free(slot->tokens);
    hwkv_slot_drop_states(slot);
    memset(slot, 0, sizeof(*slot));
}
