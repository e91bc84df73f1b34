#include "hwkv-state.h"

#include "hwkv-impl.h"

#include <string.h>

//
// shape
//

// a longer copy of an array, zeroed behind the old elements; NULL when memory is out
static void * grow(void * old, size_t n, size_t size) {
    char * res = hwkv_alloc(n + 1, size);
    if (res && n > 0) {
        memcpy(res, old, n * size);
    }
    if (res) {
        hwkv_free(old);
    }
    return res;
}

struct hwkv_state_part * hwkv_state_add_part(struct hwkv_state_shape * shape) {
    struct hwkv_state_part * parts = grow(shape->parts, shape->n_part, sizeof(*parts));
    if (!parts) {
        return NULL;
    }
    shape->parts = parts;
    return &parts[shape->n_part++];
}

struct hwkv_state_rows * hwkv_state_add_rows(struct hwkv_state_part * part) {
    struct hwkv_state_rows * rows = grow(part->rows, part->n_rows, sizeof(*rows));
    if (!rows) {
        return NULL;
    }
    part->rows = rows;
    return &rows[part->n_rows++];
}

void hwkv_state_free(struct hwkv_state_shape * shape) {
    for (uint32_t i = 0; i < shape->n_part; i++) {
        hwkv_free(shape->parts[i].rows);
    }
    hwkv_free(shape->parts);
    memset(shape, 0, sizeof(*shape));
}

// position, number of sequences, the sequence (recurrent cells have none)
static uint64_t cell_head_size(const struct hwkv_state_part * part) {
    return 8 + part->ext_size + (part->kind == HWKV_STATE_LAST ? 0 : 4);
}

uint64_t hwkv_state_size_max(const struct hwkv_state_shape * shape, bool checkpoint, uint64_t n_tokens) {
    uint64_t size = 0;
    for (uint32_t i = 0; i < shape->n_part; i++) {
        const struct hwkv_state_part * part = &shape->parts[i];
        if (checkpoint && !part->in_checkpoint) {
            continue;
        }
        size += part->head_size;
        if (part->kind == HWKV_STATE_TOKENS) {
            size += 16 + (checkpoint ? 0 : n_tokens * sizeof(struct hwkv_history_item));
            continue;
        }
        const struct hwkv_state_part * cells = part->kind == HWKV_STATE_ROWS ? &shape->parts[part->i_cells] : part;
        const uint64_t n_cells = cells->n_cells < n_tokens ? cells->n_cells : n_tokens;
        if (part == cells) {
            size += 4 + 4 * (uint64_t) part->n_stream + n_cells * cell_head_size(part);
        }
        for (uint32_t k = 0; k < part->n_rows; k++) {
            size += part->rows[k].head_size + n_cells * part->rows[k].cell_size;
        }
    }
    return size;
}

//
// check
//

struct checker {
    const struct hwkv_state_want * want;
    struct hwkv_history * history;
    hwkv_state_read_fn    read;
    void                * arg;
    struct hwkv_error   * err;
    uint8_t             * seen;   // [n_seen] of the positions of a part
    uint32_t              n_seen;
    uint32_t            * n_cells; // [n_part] that a part was found to have
    int32_t               n_pos;  // of a draft it is known after its first part
    bool                  images; // among the tokens
};

static int damaged(struct checker * c, const char * what) {
    return hwkv_fail(c->err, HWKV_ERR_VALUE, NULL, "%s", what);
}

static int get(struct checker * c, void * dst, uint64_t size) {
    return c->read(dst, size, c->arg) ? 0 : damaged(c, "a state ends too early");
}

static int check_bytes(struct checker * c, const uint8_t * expected, uint32_t size) {
    uint8_t found[80];
    const int status = get(c, found, size);
    if (status == 0 && memcmp(found, expected, size) != 0) {
        return damaged(c, "a state is of another kind of cache");
    }
    return status;
}

// the tokens of a checkpoint are those of the whole state
static int check_mark(struct checker * c) {
    uint64_t found[2]; // number, mark
    const int status = get(c, found, sizeof(found));
    if (status) {
        return status;
    }
    if (found[0] != c->want->n_tokens || found[1] != hwkv_history_mark(c->history, c->want->n_tokens)) {
        return damaged(c, "a checkpoint belongs to other tokens");
    }
    return 0;
}

static int check_tokens(struct checker * c) {
    const struct hwkv_state_want * want = c->want;
    if (want->checkpoint) {
        return check_mark(c);
    }
    uint64_t found[2]; // number, number of exact ones
    int status = get(c, found, sizeof(found));
    if (status) {
        return status;
    }
    if (found[0] != want->n_tokens || found[1] > found[0]) {
        return damaged(c, "the state belongs to other tokens");
    }
    struct hwkv_history * h = c->history;
    hwkv_history_free(h);
    if (!hwkv_history_reserve(h, want->n_tokens)) {
        return hwkv_fail(c->err, HWKV_ERR_NOMEM, NULL, "out of memory");
    }
    if (want->n_tokens > 0) {
        status = get(c, h->items, want->n_tokens * sizeof(*h->items));
    }
    if (status) {
        return status;
    }
    h->n       = want->n_tokens;
    h->n_exact = (size_t) found[1];
    bool same = hwkv_history_is_valid(h);
    for (uint32_t i = 0; i < want->n_tokens && same; i++) {
        const bool opaque = h->items[i].what & HWKV_HISTORY_OPAQUE;
        same = h->items[i].pos < want->n_pos && (want->tokens[i] < 0 ? opaque : h->items[i].what == (uint32_t) want->tokens[i]);
    }
    return same ? 0 : damaged(c, "the state belongs to other tokens");
}

static bool is_seen(const struct checker * c, int32_t pos) {
    return c->seen[pos / 8] >> (pos % 8) & 1;
}

// every position at most once, unless there are images, and none that the sequence has not
static int read_cells(struct checker * c, const struct hwkv_state_part * part, uint32_t n) {
    memset(c->seen, 0, (c->n_seen + 7) / 8);
    const uint32_t n_seq = part->kind == HWKV_STATE_LAST ? 0 : 1;
    for (uint32_t i = 0; i < n; i++) {
        struct {
            int32_t  pos;
            uint32_t n_seq;
        } cell;
        int status = get(c, &cell, sizeof(cell));
        if (status == 0 && cell.n_seq != n_seq) {
            status = damaged(c, "a cell belongs to more than one sequence");
        }
        if (status == 0) {
            status = get(c, NULL, part->ext_size + 4 * (uint64_t) n_seq);
        }
        if (status) {
            return status;
        }
        if (cell.pos < 0 || cell.pos >= c->n_pos || (is_seen(c, cell.pos) && !c->images)) {
            return damaged(c, "a cell has a position that it cannot have");
        }
        c->seen[cell.pos / 8] |= (uint8_t) (1u << cell.pos % 8);
    }
    return 0;
}

static bool holds(const struct checker * c, int32_t from, int32_t to) {
    for (int32_t pos = from; pos < to; pos++) {
        if (!is_seen(c, pos)) {
            return false;
        }
    }
    return true;
}

static int check_positions(struct checker * c, const struct hwkv_state_part * part, uint32_t n) {
    const int32_t n_pos = c->n_pos;
    // what was moved by a context shift may have left holes in a ring: it serves no prompt anyway
    const bool    exact = !c->want->is_draft && c->history->n_exact >= c->want->n_tokens;
    bool          ok    = true;
    switch (part->kind) {
        case HWKV_STATE_ALL:
            ok = c->images ? n == c->want->n_tokens : n == (uint32_t) n_pos && holds(c, 0, n_pos);
            break;
        case HWKV_STATE_RING:
            if (exact && !c->images) {
                const int32_t oldest = hwkv_rule_oldest(part->rule, n_pos);
                ok = holds(c, 0, hwkv_rule_n_sinks(part->rule, oldest)) && holds(c, oldest, n_pos);
            }
            break;
        case HWKV_STATE_NEWEST:
        case HWKV_STATE_LAST:
            ok = c->want->is_draft || (n_pos == 0 ? n == 0 : n > 0 && is_seen(c, n_pos - 1));
            break;
        case HWKV_STATE_TOKENS:
        case HWKV_STATE_ROWS:
            break;
    }
    return ok ? 0 : damaged(c, "a state does not hold the positions of its tokens");
}

static int check_rows(struct checker * c, const struct hwkv_state_part * part, uint32_t n) {
    int status = check_bytes(c, part->head, part->head_size);
    for (uint32_t k = 0; k < part->n_rows && status == 0; k++) {
        status = check_bytes(c, part->rows[k].head, part->rows[k].head_size);
        if (status == 0) {
            status = get(c, NULL, n * part->rows[k].cell_size);
        }
    }
    return status;
}

// The cells of one stream and their rows. A stream without cells has nothing after their number, a recurrent part the rest all the same.
static int check_cells(struct checker * c, const struct hwkv_state_part * part, uint32_t n) {
    if (part->kind == HWKV_STATE_LAST && n > 1) {
        return damaged(c, "a sequence has more than one recurrent state");
    }
    int status = read_cells(c, part, n);
    if (status == 0) {
        status = check_positions(c, part, n);
    }
    if (status || (n == 0 && part->kind != HWKV_STATE_LAST)) {
        return status;
    }
    return check_rows(c, part, n);
}

static int check_part(struct checker * c, const struct hwkv_state_part * part, uint32_t * n_cells) {
    if (part->kind == HWKV_STATE_TOKENS) {
        const int status = check_bytes(c, part->head, part->head_size);
        return status ? status : check_tokens(c);
    }
    if (part->kind == HWKV_STATE_ROWS) {
        return c->n_cells[part->i_cells] > 0 ? check_rows(c, part, c->n_cells[part->i_cells]) : 0;
    }
    uint32_t n_stream = 1;
    if (part->n_stream > 0) {
        const int status = get(c, &n_stream, sizeof(n_stream));
        if (status || n_stream != part->n_stream) {
            return status ? status : damaged(c, "a state is of another kind of cache");
        }
    }
    bool found = false; // the stream of the sequence
    for (uint32_t s = 0; s < n_stream; s++) {
        uint32_t  n      = 0;
        const int status = get(c, &n, sizeof(n));
        if (status) {
            return status;
        }
        if (n == 0 && (found || s + 1 < n_stream)) {
            continue;
        }
        if (n > part->n_cells) {
            return hwkv_fail(c->err, HWKV_ERR_VALUE, NULL, "found %u cells, expected at most %u", n, part->n_cells);
        }
        if (found) {
            return damaged(c, "a state has cells in two streams");
        }
        found    = true;
        *n_cells = n;
        if (c->want->is_draft && part->kind == HWKV_STATE_ALL) {
            c->n_pos = (int32_t) n;
        }
        const int bad = check_cells(c, part, n);
        if (bad) {
            return bad;
        }
    }
    return 0;
}

int hwkv_state_check(const struct hwkv_state_shape * shape, const struct hwkv_state_want * want, struct hwkv_history * history,
                     hwkv_state_read_fn read, void * arg, struct hwkv_error * err) {
    struct checker c = { .want = want, .history = history, .read = read, .arg = arg, .err = err, .n_pos = want->n_pos };

    for (uint32_t i = 0; i < want->n_tokens && !c.images; i++) {
        c.images = want->tokens[i] < 0;
    }
    // a draft goes by its own cells
    c.n_seen = (uint32_t) want->n_pos;
    for (uint32_t i = 0; i < shape->n_part && want->is_draft; i++) {
        c.n_seen = shape->parts[i].n_cells > c.n_seen ? shape->parts[i].n_cells : c.n_seen;
    }
    if (want->is_draft) {
        c.n_pos = (int32_t) c.n_seen;
    }
    c.seen    = hwkv_alloc((size_t) c.n_seen / 8 + 1, 1);
    c.n_cells = hwkv_alloc((size_t) shape->n_part + 1, sizeof(*c.n_cells));
    if (!c.seen || !c.n_cells) {
        hwkv_free(c.seen);
        hwkv_free(c.n_cells);
        return hwkv_fail(err, HWKV_ERR_NOMEM, NULL, "out of memory");
    }
    int status = 0;
    for (uint32_t i = 0; i < shape->n_part && status == 0; i++) {
        if (shape->parts[i].in_checkpoint || !want->checkpoint) {
            status = check_part(&c, &shape->parts[i], &c.n_cells[i]);
        }
    }
    uint8_t more;
    if (status == 0 && read(&more, 1, arg)) {
        status = damaged(&c, "a state has more bytes than it should");
    }
    hwkv_free(c.seen);
    hwkv_free(c.n_cells);
    return status;
}
