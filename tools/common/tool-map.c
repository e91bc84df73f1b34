#include "tool-map.h"

#include "tool-print.h"

#include <stdlib.h>
#include <string.h>

#define MAP_ROWS_MAX 64 // more rows are folded, then cut

// Finite windows, ascending; full is F, so no other may be.
static const char SYMBOLS[] = "123456789abcdefghijklmnopqrstuvwxyzABCDEGHIJKLMNOPQRSTUVWXYZ+=#";

// Types of K and V, in the order of the codebook. The reference's have no mark; three kinds that many policies have always have the same.
static const char MARKS[] = "*+-=~^\"!%&@$;,|/<>(){}[]_?abcdefghijklmnopqrstuvwxyz0123456789";

static char usual_mark(const struct hwkv_entry * entry) {
    if (entry->type_k != entry->type_v) {
        return 0;
    }
    return entry->type_k == HWKV_TYPE_Q4_0 ? '.' : entry->type_k == HWKV_TYPE_Q8_0 ? ':' : entry->type_k == HWKV_TYPE_F16 ? '\'' : 0;
}

// 256-colour ramp from short windows (cold) to full (hot), and the readable text on it
static const struct { int back, text; } RAMP[] = {
    { 18, 231 }, { 25, 231 }, { 30, 231 }, { 36, 16 }, { 71, 16 }, { 142, 16 }, { 178, 16 }, { 208, 16 }, { 160, 231 },
};

struct map {
    FILE                       * out;
    const struct hwkv_policy   * policy;
    const struct hwkv_geometry * geo;
    const struct hwkv_point    * point;
    const struct tool_map_params    * params;
    const struct hwkv_entry    * codebook;
    int32_t                      n_codebook;
    int32_t                      n_head_max;
    int                          label_width;
    int                          cell_width; // with a space between heads, if there is room
    int                          symbol_width; // 2 where types have marks
    int32_t                      n_window;
    int32_t                      window_of[HWKV_CODE_MAX]; // place of an entry's window among those of the codebook, full is the last
    char                         mark_of  [HWKV_CODE_MAX];
};

// layers first..last of the geometry look alike
struct map_row {
    int32_t first;
    int32_t last;
};

static bool same_types(const struct hwkv_entry * a, const struct hwkv_entry * b) {
    return a->type_k == b->type_k && a->type_v == b->type_v;
}

// The windows of the codebook, ascending without repeats: the place of each entry's.
static void place_windows(struct map * map) {
    for (int32_t ic = 0; ic < map->n_codebook; ic++) {
        bool new_one = true;
        for (int32_t i = 0; i < map->n_codebook; i++) {
            bool first = true;
            for (int32_t j = 0; j < i; j++) {
                first = first && map->codebook[j].window != map->codebook[i].window;
            }
            map->window_of[ic] += first && map->codebook[i].window < map->codebook[ic].window;
            new_one = new_one && (i >= ic || map->codebook[i].window != map->codebook[ic].window);
        }
        map->n_window += new_one;
    }
}

static void place_marks(struct map * map) {
    const struct hwkv_entry * reference = &map->codebook[hwkv_policy_reference(map->policy)];
    int32_t n = 0;
    for (int32_t ic = 0; ic < map->n_codebook; ic++) {
        const struct hwkv_entry * entry = &map->codebook[ic];
        int32_t same = 0;
        while (!same_types(&map->codebook[same], entry)) {
            same++;
        }
        const char usual = usual_mark(entry);
        map->mark_of[ic] = same < ic ? map->mark_of[same] : same_types(entry, reference) ? ' ' : usual ? usual : MARKS[n++];
        map->symbol_width = map->mark_of[ic] != ' ' ? 2 : map->symbol_width;
    }
}

// Without colour nothing is put after the last head of a row.
static void print_cell(const struct map * map, int32_t ic, int width, bool last) {
    const char symbols[3] = { map->codebook[ic].window == HWKV_FULL ? 'F' : SYMBOLS[map->window_of[ic]], map->mark_of[ic], '\0' };
    const int  used       = map->symbol_width == 1 || (last && symbols[1] == ' ' && !map->params->color) ? 1 : 2;
    width = last && !map->params->color ? used : width;
    if (!map->params->color) {
        fprintf(map->out, "%-*.*s", width, used, symbols);
        return;
    }
    const int n = (int) (sizeof(RAMP) / sizeof(RAMP[0]));
    const int i = map->n_window > 1 ? (int) ((int64_t) map->window_of[ic] * (n - 1) / (map->n_window - 1)) : n - 1;
    fprintf(map->out, "\033[48;5;%d;38;5;%dm%-*.*s\033[0m", RAMP[i].back, RAMP[i].text, width, used, symbols);
}

static const int32_t * layer_entries(const struct map * map, int32_t jl) {
    return map->point->entries + hwkv_policy_unit(map->policy, jl, 0);
}

static bool rows_equal(const struct map * map, int32_t a, int32_t b) {
    const int32_t n = map->geo->layers[a].n_head_kv;
    return n == map->geo->layers[b].n_head_kv && memcmp(layer_entries(map, a), layer_entries(map, b), (size_t) n * sizeof(int32_t)) == 0;
}

// rows: [n_full]; returns how many were made
static int32_t fold_rows(const struct map * map, struct map_row * rows) {
    const bool fold = !map->params->all && map->geo->n_full > MAP_ROWS_MAX;
    int32_t n = 0;
    for (int32_t jl = 0; jl < map->geo->n_full; jl++) {
        if (fold && n > 0 && rows_equal(map, rows[n - 1].first, jl)) {
            rows[n - 1].last = jl;
        } else {
            rows[n++] = (struct map_row) { jl, jl };
        }
    }
    return n;
}

// the heads' numbers, written downwards
static void print_header(const struct map * map, int32_t ih0, int32_t ih1) {
    int32_t power = 1;
    while (power * 10 < ih1) {
        power *= 10;
    }
    for (; power > 0; power /= 10) {
        fprintf(map->out, "  %*s  ", map->label_width, power == 1 ? "layer" : "");
        for (int32_t ih = ih0; ih < ih1; ih++) {
            const bool blank = power > 1 && ih < power;
            fprintf(map->out, "%c%*s", blank ? ' ' : (char) ('0' + ih / power % 10), ih + 1 < ih1 ? map->cell_width - 1 : 0, "");
        }
        fputc('\n', map->out);
    }
}

static void print_row(const struct map * map, const struct map_row * row, int32_t ih0, int32_t ih1) {
    char label[32];
    const int32_t il = map->geo->layers[row->first].il;
    if (row->first == row->last) {
        snprintf(label, sizeof(label), "%d", il);
    } else {
        snprintf(label, sizeof(label), "%d-%d", il, map->geo->layers[row->last].il);
    }
    fprintf(map->out, "  %*s", map->label_width, label);

    const int32_t   n_head  = map->geo->layers[row->first].n_head_kv;
    const int32_t * entries = layer_entries(map, row->first);
    for (int32_t ih = ih0; ih < ih1 && ih < n_head; ih++) {
        const bool last = ih + 1 == ih1 || ih + 1 == n_head;
        fputs(ih == ih0 ? "  " : "", map->out);
        print_cell(map, entries[ih], map->cell_width, last);
    }
    fputc('\n', map->out);
}

static void print_legend(const struct map * map) {
    int32_t n_heads[HWKV_CODE_MAX] = { 0 };
    for (int32_t i = 0; i < hwkv_policy_n_unit(map->policy); i++) {
        n_heads[map->point->entries[i]]++;
    }

    int column = 0;
    for (int32_t ic = 0; ic < map->n_codebook; ic++) {
        char text[96];
        char name[HWKV_ENTRY_SIZE];
        if (n_heads[ic] == 0) {
            continue;
        }
        const char * entry = hwkv_entry_format(&map->codebook[ic], name);
        const int    len   = map->symbol_width + snprintf(text, sizeof(text), " %s: %d head%s", entry, n_heads[ic], n_heads[ic] == 1 ? "" : "s");
        if (column > 0 && column + 3 + len > map->params->width) {
            fputc('\n', map->out);
            column = 0;
        }
        fputs(column > 0 ? "   " : "  ", map->out);
        print_cell(map, ic, map->symbol_width, false);
        fputs(text, map->out);
        column += (column > 0 ? 3 : 2) + len;
    }
    fputc('\n', map->out);
}

static void print_block(const struct map * map, const struct map_row * rows, int32_t n_rows, int32_t ih0, int32_t ih1) {
    const int32_t n_shown = map->params->all || n_rows <= MAP_ROWS_MAX ? n_rows : MAP_ROWS_MAX;

    print_header(map, ih0, ih1);
    for (int32_t i = 0; i < n_shown; i++) {
        print_row(map, &rows[i], ih0, ih1);
    }
    if (n_shown < n_rows) {
        fprintf(map->out, "  ... %d more layers, --all shows them\n", map->geo->n_full - rows[n_shown].first);
    }
}

bool tool_map_print(FILE * out, const struct hwkv_policy * policy, int32_t ip, const struct tool_map_params * params) {
    struct map map = {
        .out = out, .policy = policy, .geo = hwkv_policy_geometry(policy), .point = hwkv_policy_point(policy, ip), .params = params, .symbol_width = 1,
    };
    map.codebook = hwkv_policy_codebook(policy, &map.n_codebook);
    place_windows(&map);
    place_marks(&map);

    for (int32_t jl = 0; jl < map.geo->n_full; jl++) {
        if (map.geo->layers[jl].n_head_kv > map.n_head_max) {
            map.n_head_max = map.geo->layers[jl].n_head_kv;
        }
    }

    struct map_row * rows = malloc((size_t) map.geo->n_full * sizeof(*rows));
    if (!rows) {
        return false;
    }
    const int32_t n_rows = fold_rows(&map, rows);

    map.label_width = n_rows < map.geo->n_full ? 9 : 5;

    // too many heads for the terminal: no spaces, then blocks of heads below each other
    const int room = params->width - map.label_width - 4;
    map.cell_width = map.symbol_width + (map.n_head_max * (map.symbol_width + 1) <= room);
    int32_t per_block = map.n_head_max;
    if (per_block * map.cell_width > room) {
        per_block = room / map.cell_width >= 32 ? room / map.cell_width / 16 * 16 : 16;
    }

    for (int32_t ih = 0; ih < map.n_head_max; ih += per_block) {
        const int32_t end = ih + per_block < map.n_head_max ? ih + per_block : map.n_head_max;
        fputs(ih > 0 ? "\n" : "", out);
        print_block(&map, rows, n_rows, ih, end);
    }
    fputc('\n', out);
    print_legend(&map);
    free(rows);
    return true;
}
