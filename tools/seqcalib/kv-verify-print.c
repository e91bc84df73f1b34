// The table and the JSON document of llama-kv-verify.

#include "kv-verify.h"

#include <inttypes.h>
#include <math.h>
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

static void fill_row(char cells[N_COLUMNS][CELL_WIDTH], const struct verify_point * vp, const struct sc_verify_result * result) {
    const struct sc_verify_stats * s = &result->all;
    snprintf(cells[0], CELL_WIDTH, "%s",    vp->point->name);
    snprintf(cells[1], CELL_WIDTH, "%.4f",  vp->retention);
    snprintf(cells[2], CELL_WIDTH, "%.2f",  (double) vp->bytes / (1024.0 * 1024.0));
    snprintf(cells[3], CELL_WIDTH, "%.4f",  s->ppl_full);
    snprintf(cells[4], CELL_WIDTH, "%.4f",  s->ppl_policy);
    snprintf(cells[5], CELL_WIDTH, "%+.3f", 100.0 * (s->ppl_policy / s->ppl_full - 1.0));
    snprintf(cells[6], CELL_WIDTH, "%.6f",  s->kl_mean);
    snprintf(cells[7], CELL_WIDTH, "%.6f",  sc_verify_kl_error(result));
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

void verify_print_table(FILE * out, const struct verify * verify) {
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

    const struct sc_verify_result * first = &verify->results[0];
    print_text(out, sc_base_name(verify->args->model));
    fprintf(out, ", ");
    print_text(out, sc_base_name(verify->args->policy));
    fprintf(out, ", ");
    print_text(out, verify->text.source);
    fprintf(out, ": %d chunk%s of %d tokens, %" PRId64 " positions, cache %s/%s, full cache %.2f MiB%s\n\n", first->n_chunk,
            first->n_chunk == 1 ? "" : "s", verify->n_ctx, first->n_positions, hwkv_type_name(verify->type_k), hwkv_type_name(verify->type_v),
            (double) verify->bytes_full / (1024.0 * 1024.0), verify->complete ? "" : " (stopped)");
    print_rows(out, rows, verify->n_point + 1, first->n_chunk > 1);
    free(rows);
}

static void print_chunks(FILE * out, const struct sc_verify_result * result) {
    fprintf(out, "      \"chunks\": [");
    for (int32_t i = 0; i < result->n_chunk; i++) {
        fprintf(out, "%s\n        {", i > 0 ? "," : "");
        sc_verify_stats_json(out, &result->chunks[i]);
        fprintf(out, "}");
    }
    fprintf(out, "\n      ]\n");
}

static void print_point(FILE * out, const struct verify * verify, int32_t i) {
    const struct verify_point     * vp     = &verify->points[i];
    const struct sc_verify_result * result = &verify->results[i];
    const double                    error  = sc_verify_kl_error(result);

    const struct llama_vocab * vocab  = llama_model_get_vocab(verify->model);
    const int32_t              n_chat = verify->args->parse_special ? sc_verify_n_chat(vocab, verify->tokens, result->n_chunk, verify->n_ctx) : 0;

    fprintf(out, "    {\n      \"name\": ");
    sc_json_string(out, vp->point->name);
    fprintf(out, ",\n      \"retention\": %.9g,\n      \"kv_bytes\": %" PRIu64 ",\n", vp->retention, vp->bytes);
    char * json = sc_verify_json(result, &verify->text, verify->n_ctx, n_chat);
    fprintf(out, "      \"validation\": %s,\n", json ? json : "null");
    free(json);
    if (isnan(error)) {
        fprintf(out, "      \"kl_mean_error\": null,\n");
    } else {
        fprintf(out, "      \"kl_mean_error\": %.9g,\n", error);
    }
    print_chunks(out, result);
    fprintf(out, "    }");
}

void verify_print_json(FILE * out, const struct verify * verify) {
    fprintf(out, "{\n  \"policy\": ");
    sc_json_string(out, sc_base_name(verify->args->policy));
    fprintf(out, ",\n  \"policy_sha256\": \"%s\",\n  \"model\": ", hwkv_policy_hash(verify->policy));
    sc_json_string(out, sc_base_name(verify->args->model));
    fprintf(out, ",\n  \"context\": %d,\n  \"cache_types\": {\"k\": \"%s\", \"v\": \"%s\"},\n", verify->n_ctx, hwkv_type_name(verify->type_k),
            hwkv_type_name(verify->type_v));
    fprintf(out, "  \"kv_bytes_full\": %" PRIu64 ",\n  \"complete\": %s,\n  \"points\": [", verify->bytes_full, verify->complete ? "true" : "false");
    for (int32_t i = 0; i < verify->n_point; i++) {
        fprintf(out, "%s\n", i > 0 ? "," : "");
        print_point(out, verify, i);
    }
    fprintf(out, "\n  ]\n}\n");
}
