#include "seqcalib-statistics.h"

#include "tool-json.h"
#include "tool-print.h"

#include <math.h>
#include <string.h>

#define N_DEMANDING 10

struct stats {
    FILE                       * out;
    const struct hwkv_policy   * policy;
    const struct hwkv_geometry * geo;
    const struct hwkv_entry    * codebook;
    int32_t                      n_codebook;
    int32_t                      below;                // the last entry that is cheaper than the reference
    bool                         used[HWKV_CODE_MAX];  // by any point: other entries get no column
    int                          width[HWKV_CODE_MAX]; // of the column
};

//
// text
//

static const char * score_name(double score, char buf[16]) {
    if (isnan(score)) {
        return "-";
    }
    snprintf(buf, 16, "%.4f", score);
    return buf;
}

static const char * rule_name(const struct hwkv_point * point, char buf[32]) {
    if (point->tau > 0.0) {
        snprintf(buf, 32, "tau %.6g", point->tau);
        return buf;
    }
    return point->method;
}

//
// validation: an object that may hold anything
//

static void put_numbers(FILE * out, const char * label, const struct hwkv_json * object, const char * const * keys) {
    bool any = false;
    for (; *keys; keys++) {
        const double value = tool_json_number(tool_json_member(object, *keys));
        if (!isnan(value)) {
            if (!any) {
                fprintf(out, "  %-16s", label);
            }
            fprintf(out, "%s%s %.6g", any ? ", " : "", *keys, value);
            any = true;
        }
    }
    fputs(any ? "\n" : "", out);
}

static void print_validation(FILE * out, const struct hwkv_point * point) {
    if (!point->validation) {
        fprintf(out, "\nvalidation: none\n");
        return;
    }
    struct hwkv_json * v = NULL;
    hwkv_json_parse(&v, point->validation, strlen(point->validation), NULL); // the library has checked it
    const struct hwkv_json * source = tool_json_member(v, "source");

    fprintf(out, "\nvalidation\n");
    if (source && hwkv_json_type(source) == HWKV_JSON_STRING && hwkv_json_string(source)[0]) {
        fprintf(out, "  %-16s", "text");
        tool_put_text(out, hwkv_json_string(source));
        fputc('\n', out);
    }
    put_numbers(out, "sample",      v,                                  (const char * const []) { "context", "n_seq", "n_chat", "n_positions", NULL });
    put_numbers(out, "perplexity",  tool_json_member(v, "perplexity"),  (const char * const []) { "full", "policy", "change", NULL });
    put_numbers(out, "KL",          tool_json_member(v, "kl"),          (const char * const []) { "mean", "p99", "max", NULL });
    put_numbers(out, "top token",   v,                                  (const char * const []) { "same_top", NULL });
    put_numbers(out, "head cosine", tool_json_member(v, "head_cosine"), (const char * const []) { "mean", "min", NULL });
    hwkv_json_free(v);
}

//
// entries
//

static double unit_score(const struct stats * s, const struct hwkv_point * point, int32_t unit, int32_t ic) {
    const double * scores = hwkv_point_scores(point, s->policy, "cosine");
    return scores ? scores[(int64_t) unit * s->n_codebook + ic] : (double) NAN;
}

static const char * entry_word(const struct stats * s) {
    return hwkv_policy_has_types(s->policy) ? "entry" : "window";
}

static int column_width(const struct hwkv_entry * entry, int least) {
    char name[HWKV_ENTRY_SIZE];
    const int n = (int) strlen(hwkv_entry_format(entry, name));
    return n > least ? n : least;
}

// For a column of entries that points have.
static int width_of_used(const struct stats * s) {
    int res = 8;
    for (int32_t ic = 0; ic < s->n_codebook; ic++) {
        res = s->used[ic] && s->width[ic] > res ? s->width[ic] : res;
    }
    return res;
}

static void put_entry_header(const struct stats * s) {
    char name[HWKV_ENTRY_SIZE];
    for (int32_t ic = 0; ic < s->n_codebook; ic++) {
        if (s->used[ic]) {
            fprintf(s->out, " %*s", s->width[ic], hwkv_entry_format(&s->codebook[ic], name));
        }
    }
    fputc('\n', s->out);
}

static void put_entry_counts(const struct stats * s, const int32_t * entries, int32_t n) {
    int32_t counts[HWKV_CODE_MAX] = { 0 };
    for (int32_t i = 0; i < n; i++) {
        counts[entries[i]]++;
    }
    for (int32_t ic = 0; ic < s->n_codebook; ic++) {
        char text[16] = ".";
        if (counts[ic] > 0) {
            snprintf(text, sizeof(text), "%d", counts[ic]);
        }
        if (s->used[ic]) {
            fprintf(s->out, " %*s", s->width[ic], text);
        }
    }
    fputc('\n', s->out);
}

//
// parts
//

static void print_head(const struct stats * s) {
    const struct hwkv_calibration * calib = hwkv_policy_calibration(s->policy);
    int32_t n_head = 0;
    for (int32_t jl = 0; jl < s->geo->n_full; jl++) {
        n_head += s->geo->layers[jl].n_head;
    }
    fprintf(s->out, "model     ");
    tool_put_text(s->out, s->geo->name[0] ? s->geo->name : "unnamed");
    fprintf(s->out, " (");
    tool_put_text(s->out, s->geo->architecture);
    fprintf(s->out, ")\nlayers    %d, %d with full attention: %d KV heads for %d query heads\n", s->geo->n_layer, s->geo->n_full,
            hwkv_policy_n_unit(s->policy), n_head);
    fprintf(s->out, "context   %d, cache K %s, V %s, sinks %d\n", hwkv_policy_context(s->policy),
            hwkv_type_name(hwkv_policy_type_k(s->policy)), hwkv_type_name(hwkv_policy_type_v(s->policy)), hwkv_policy_sinks(s->policy));
    fprintf(s->out, "text      ");
    if (calib) {
        tool_put_text(s->out, calib->text);
        fprintf(s->out, " (sequences %d, queries each %d, seed %lld)\n", calib->n_seq, calib->n_query, (long long) calib->seed);
    } else {
        fprintf(s->out, "none, not calibrated\n");
    }
}

static void print_points(const struct stats * s) {
    int name_width = 4;
    int rule_width = 10;
    char rule[32];
    char score[16];
    for (int32_t ip = 0; ip < hwkv_policy_n_point(s->policy); ip++) {
        const struct hwkv_point * point = hwkv_policy_point(s->policy, ip);
        const int wn = tool_text_width(point->name);
        const int wr = tool_text_width(rule_name(point, rule));
        name_width = wn > name_width ? wn : name_width;
        rule_width = wr > rule_width ? wr : rule_width;
    }
    fprintf(s->out, "\noperating points (* is the default): what is kept, the lowest score, heads per %s\n", entry_word(s));
    fprintf(s->out, "  %-*s  %-*s %7s %7s %7s %9s", name_width, "name", rule_width, "tau/method", "R_C", "R^Q", "Phi", "MiB");
    put_entry_header(s);
    for (int32_t ip = 0; ip < hwkv_policy_n_point(s->policy); ip++) {
        const struct hwkv_point * point = hwkv_policy_point(s->policy, ip);
        fputs(ip == hwkv_policy_selected(s->policy) ? "* " : "  ", s->out);
        tool_put_column(s->out, point->name, name_width + 2);
        tool_put_column(s->out, rule_name(point, rule), rule_width);
        fprintf(s->out, " %6.2f%% %6.2f%% %7s %9.2f", 100.0 * point->retention,
                100.0 * point->retention_query, score_name(point->min_score, score), tool_mib(point->bytes));
        put_entry_counts(s, point->entries, hwkv_policy_n_unit(s->policy));
    }
}

static void print_layer(const struct stats * s, const struct hwkv_point * point, int32_t jl) {
    const struct hwkv_layer * layer = &s->geo->layers[jl];
    const int32_t unit  = hwkv_policy_unit(s->policy, jl, 0);
    const struct hwkv_cache cache = { hwkv_policy_context(s->policy), hwkv_policy_type_k(s->policy), hwkv_policy_type_v(s->policy) };
    const double all = (double) hwkv_cost_head(layer, &s->codebook[hwkv_policy_reference(s->policy)], &cache);
    double kept = 0.0;
    double low  = (double) NAN;
    double sum  = 0.0;
    for (int32_t ih = 0; ih < layer->n_head_kv; ih++) {
        const int32_t ic    = point->entries[unit + ih];
        const double  score = unit_score(s, point, unit + ih, ic);
        kept += (double) hwkv_cost_head(layer, &s->codebook[ic], &cache) / all;
        low   = fmin(low, score);
        sum  += score;
    }
    char text[2][16];
    fprintf(s->out, "  %5d %6d %6.2f%% %9s %9s", layer->il, layer->n_head_kv, 100.0 * kept / layer->n_head_kv,
            score_name(low, text[0]), score_name(sum / layer->n_head_kv, text[1]));
    put_entry_counts(s, point->entries + unit, layer->n_head_kv);
}

// Does unit a need more than b? The later entry of the codebook; then the worse score at the last one that is cheaper than the reference.
static bool needs_more(const struct stats * s, const struct hwkv_point * point, int32_t a, int32_t b) {
    if (point->entries[a] != point->entries[b]) {
        return point->entries[a] > point->entries[b];
    }
    return unit_score(s, point, a, s->below) < unit_score(s, point, b, s->below);
}

static void print_demanding(const struct stats * s, const struct hwkv_point * point) {
    int32_t rows[N_DEMANDING];
    int32_t units[N_DEMANDING];
    int32_t n = 0;
    for (int32_t jl = 0; jl < s->geo->n_full; jl++) {
        for (int32_t ih = 0; ih < s->geo->layers[jl].n_head_kv; ih++) {
            const int32_t unit = hwkv_policy_unit(s->policy, jl, ih);
            int32_t at = n;
            while (at > 0 && needs_more(s, point, unit, units[at - 1])) {
                at--;
            }
            if (at < N_DEMANDING) {
                n += n < N_DEMANDING;
                memmove(units + at + 1, units + at, (size_t) (n - at - 1) * sizeof(units[0]));
                memmove(rows  + at + 1, rows  + at, (size_t) (n - at - 1) * sizeof(rows[0]));
                units[at] = unit;
                rows [at] = jl;
            }
        }
    }
    const int width = width_of_used(s);
    const int first = column_width(&s->codebook[0], 8);
    const int last  = column_width(&s->codebook[s->below], 8);
    char text[3][HWKV_ENTRY_SIZE];
    fprintf(s->out, "\nmost demanding heads: %s, its score, and the scores at %s\n", entry_word(s),
            hwkv_policy_has_types(s->policy) ? "the cheapest entry and at the last that is cheaper than the reference" : "the shortest and the longest finite window");
    fprintf(s->out, "  %5s %6s %*s %8s", "layer", "head", width, entry_word(s), "score");
    fprintf(s->out, " %*s", first, hwkv_entry_format(&s->codebook[0], text[0]));
    fprintf(s->out, " %*s\n", last, hwkv_entry_format(&s->codebook[s->below], text[0]));
    for (int32_t i = 0; i < n; i++) {
        const int32_t ic = point->entries[units[i]];
        fprintf(s->out, "  %5d %6d %*s", s->geo->layers[rows[i]].il, units[i] - hwkv_policy_unit(s->policy, rows[i], 0), width,
                hwkv_entry_format(&s->codebook[ic], text[0]));
        fprintf(s->out, " %8s %*s %*s\n", score_name(unit_score(s, point, units[i], ic), text[0]), first,
                score_name(unit_score(s, point, units[i], 0), text[1]), last, score_name(unit_score(s, point, units[i], s->below), text[2]));
    }
}

static void print_point(const struct stats * s, const struct hwkv_point * point) {
    char rule[32];
    fprintf(s->out, "\n== ");
    tool_put_text(s->out, point->name);
    fprintf(s->out, " (");
    tool_put_text(s->out, rule_name(point, rule));
    fprintf(s->out, ")\n");
    if (point->budget > 0) {
        fprintf(s->out, "budget %.2f MiB, the next MiB would have saved a loss of %.3g (lambda)\n", tool_mib(point->budget), point->lambda * 1048576.0);
    }
    fprintf(s->out, "\nlayers: share of the cache kept, lowest and mean score of what is chosen, heads per %s\n", entry_word(s));
    fprintf(s->out, "  %5s %6s %7s %9s %9s", "layer", "heads", "kept", "min", "mean");
    put_entry_header(s);
    for (int32_t jl = 0; jl < s->geo->n_full; jl++) {
        print_layer(s, point, jl);
    }
    if (hwkv_point_scores(point, s->policy, "cosine")) {
        print_demanding(s, point);
    }
    print_validation(s->out, point);
}

void sc_statistics(FILE * out, const struct hwkv_policy * policy, int32_t ip) {
    struct stats s = { .out = out, .policy = policy, .geo = hwkv_policy_geometry(policy) };
    s.codebook = hwkv_policy_codebook(policy, &s.n_codebook);

    const int32_t reference = hwkv_policy_reference(policy);
    s.below = reference > 0 ? reference - 1 : 0;
    for (int32_t ic = 0; ic < s.n_codebook; ic++) {
        s.width[ic] = column_width(&s.codebook[ic], 7);
    }
    const int32_t n_point = hwkv_policy_n_point(policy);
    for (int32_t i = 0; i < n_point; i++) {
        for (int32_t unit = 0; unit < hwkv_policy_n_unit(policy); unit++) {
            s.used[hwkv_policy_point(policy, i)->entries[unit]] = true;
        }
    }
    print_head(&s);
    print_points(&s);
    for (int32_t i = 0; i < n_point; i++) {
        if (ip == -1 || ip == i) {
            print_point(&s, hwkv_policy_point(policy, i));
        }
    }
}
