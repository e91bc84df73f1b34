// The table and the JSON document of llama-kv-verify.

#include "kv-verify.h"

#include "tool-json.h"
#include "tool-print.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define N_COLUMNS  10
#define CELL_WIDTH HWKV_NAME_MAX

static const char * const HEADER[N_COLUMNS] = {
    "point", "R_C", "KV MiB", "PPL full", "PPL policy", "change %", "KL mean", "+-", "KL 99%", "same top %",
};

// The standard error has no meaning with one chunk, so it has no column then.
#define COLUMN_ERROR 7

// Characters of a cell; a bar would end it.
static int cell_width(const char * text) {
    int n = 0;
    for (; *text; text++) {
        n += (*text & 0xC0) != 0x80;
        n += *text == '|';
    }
    return n;
}

static void print_cell(FILE * out, const char * text, int width, bool left) {
    const int pad = width - cell_width(text);
    fprintf(out, "| %*s", left ? 0 : pad, "");
    for (; *text; text++) {
        fprintf(out, "%s%c", *text == '|' ? "\\" : "", (unsigned char) *text < 0x20 ? '?' : *text);
    }
    fprintf(out, "%*s ", left ? pad : 0, "");
}

static void fill_row(char cells[N_COLUMNS][CELL_WIDTH], const struct kvv_point * vp, const struct tool_compare_result * result) {
    const struct tool_compare_stats * s = &result->all;
    snprintf(cells[0], CELL_WIDTH, "%s",    vp->point->name);
    snprintf(cells[1], CELL_WIDTH, "%.4f",  vp->retention);
    snprintf(cells[2], CELL_WIDTH, "%.2f",  tool_mib(vp->bytes));
    snprintf(cells[3], CELL_WIDTH, "%.4f",  s->ppl_full);
    snprintf(cells[4], CELL_WIDTH, "%.4f",  s->ppl_policy);
    snprintf(cells[5], CELL_WIDTH, "%+.3f", 100.0 * (s->ppl_policy / s->ppl_full - 1.0));
    snprintf(cells[6], CELL_WIDTH, "%.6f",  s->kl_mean);
    snprintf(cells[7], CELL_WIDTH, "%.6f",  tool_compare_kl_error(result));
    snprintf(cells[8], CELL_WIDTH, "%.6f",  s->kl_p99);
    snprintf(cells[9], CELL_WIDTH, "%.3f",  100.0 * s->same_top);
}

static void print_rows(FILE * out, char (*rows)[N_COLUMNS][CELL_WIDTH], int32_t n_row, bool with_error) {
    int width[N_COLUMNS];
    for (int c = 0; c < N_COLUMNS; c++) {
        width[c] = 3;
        for (int32_t r = 0; r < n_row; r++) {
            const int n = cell_width(rows[r][c]);
            width[c] = n > width[c] ? n : width[c];
        }
    }
    for (int32_t r = 0; r < n_row; r++) {
        for (int c = 0; c < N_COLUMNS; c++) {
            if (c != COLUMN_ERROR || with_error) {
                print_cell(out, rows[r][c], width[c], c == 0);
            }
        }
        fprintf(out, "|\n");
        // the line below the header says how Markdown aligns a column
        for (int c = 0; c < N_COLUMNS && r == 0; c++) {
            if (c != COLUMN_ERROR || with_error) {
                fprintf(out, "|%s", c == 0 ? ":" : "-");
                for (int i = 0; i < width[c]; i++) {
                    fputc('-', out);
                }
                fputc(c == 0 ? '-' : ':', out);
            }
        }
        fprintf(out, "%s", r == 0 ? "|\n" : "");
    }
}

void kvv_print_table(FILE * out, const struct kvv_run * verify) {
    char (*rows)[N_COLUMNS][CELL_WIDTH] = calloc((size_t) verify->n_point + 1, sizeof(*rows));
    if (!rows) {
        return;
    }
    for (int c = 0; c < N_COLUMNS; c++) {
        snprintf(rows[0][c], CELL_WIDTH, "%s", HEADER[c]);
    }
    for (int32_t i = 0; i < verify->n_point; i++) {
        fill_row(rows[i + 1], &verify->points[i], &verify->results[i]);
    }

    const struct tool_compare_result * first = &verify->results[0];
    tool_put_text(out, tool_base_name(verify->args->model));
    fprintf(out, ", ");
    tool_put_text(out, tool_base_name(verify->args->policy));
    fprintf(out, ", ");
    tool_put_text(out, verify->text.source);
    fprintf(out, ": %d chunk%s of %d tokens, %" PRId64 " positions, cache %s/%s, full cache %.2f MiB%s\n\n", first->n_chunk,
            first->n_chunk == 1 ? "" : "s", verify->n_ctx, first->n_positions, hwkv_type_name(verify->type_k), hwkv_type_name(verify->type_v),
            tool_mib(verify->bytes_full), verify->complete ? "" : " (stopped)");
    print_rows(out, rows, verify->n_point + 1, first->n_chunk > 1);
    free(rows);
}

//
// JSON
//

static struct hwkv_json * chunks_json(const struct tool_compare_result * result) {
    struct hwkv_json * array = hwkv_json_new_array();
    for (int32_t i = 0; i < result->n_chunk; i++) {
        struct hwkv_json * object = hwkv_json_new_object();
        const bool ok = tool_compare_add_stats(object, &result->chunks[i]);
        if (!hwkv_json_append(array, object) || !ok) {
            hwkv_json_free(array);
            return NULL;
        }
    }
    return array;
}

static struct hwkv_json * point_json(const struct kvv_run * verify, int32_t i) {
    const struct kvv_point           * vp     = &verify->points[i];
    const struct tool_compare_result * result = &verify->results[i];

    const struct llama_vocab * vocab  = llama_model_get_vocab(verify->model);
    const int32_t              n_chat = verify->args->parse_special ? tool_compare_n_chat(vocab, verify->tokens, result->n_chunk, verify->n_ctx) : 0;

    struct hwkv_json * object = hwkv_json_new_object();
    const bool ok = hwkv_json_add(object, "name",          hwkv_json_new_string(vp->point->name)) &&
                    hwkv_json_add(object, "retention",     tool_json_measure(vp->retention)) &&
                    hwkv_json_add(object, "kv_bytes",      hwkv_json_new_uint(vp->bytes)) &&
                    hwkv_json_add(object, "validation",    tool_compare_json(result, &verify->text, verify->n_ctx, n_chat)) &&
                    hwkv_json_add(object, "kl_mean_error", tool_json_measure(tool_compare_kl_error(result))) &&
                    hwkv_json_add(object, "chunks",        chunks_json(result));
    if (!ok) {
        hwkv_json_free(object);
        return NULL;
    }
    return object;
}

struct hwkv_json * kvv_json(const struct kvv_run * verify) {
    struct hwkv_json * object = hwkv_json_new_object();
    struct hwkv_json * types  = hwkv_json_new_object();
    struct hwkv_json * points = hwkv_json_new_array();

    bool ok = hwkv_json_add(types, "k", hwkv_json_new_string(hwkv_type_name(verify->type_k))) &&
              hwkv_json_add(types, "v", hwkv_json_new_string(hwkv_type_name(verify->type_v)));
    for (int32_t i = 0; i < verify->n_point && ok; i++) {
        ok = hwkv_json_append(points, point_json(verify, i));
    }
    ok = ok && hwkv_json_add(object, "policy",        tool_json_text(tool_base_name(verify->args->policy))) &&
               hwkv_json_add(object, "policy_sha256", hwkv_json_new_string(hwkv_policy_hash(verify->policy))) &&
               hwkv_json_add(object, "model",         tool_json_text(tool_base_name(verify->args->model))) &&
               hwkv_json_add(object, "context",       hwkv_json_new_int(verify->n_ctx));
    ok = hwkv_json_add(object, "cache_types", types) && ok;
    ok = ok && hwkv_json_add(object, "kv_bytes_full", hwkv_json_new_uint(verify->bytes_full)) &&
               hwkv_json_add(object, "complete",      hwkv_json_new_bool(verify->complete));
    ok = hwkv_json_add(object, "points", points) && ok;
    if (!ok) {
        hwkv_json_free(object);
        return NULL;
    }
    return object;
}
