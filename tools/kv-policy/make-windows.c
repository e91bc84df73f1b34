// How `llama-kv-policy make` chooses windows.

#include "make.h"

#include <stdlib.h>
#include <string.h>

#define FIELD_MAX 64

// The next field of a comma-separated list. False at the end; an over-long field is cut, no valid one is that long.
static bool next_field(const char ** list, char field[FIELD_MAX]) {
    if (!*list) {
        return false;
    }
    const size_t len = strcspn(*list, ",");
    snprintf(field, FIELD_MAX, "%.*s", (int) (len < FIELD_MAX ? len : FIELD_MAX - 1), *list);
    *list = (*list)[len] == ',' ? *list + len + 1 : NULL;
    return true;
}

static int32_t parse_window(const char * text, int32_t context) {
    int64_t value;
    if (strcmp(text, "full") == 0) {
        return HWKV_FULL;
    }
    return parse_int(text, &value) && value > 0 && value < context ? (int32_t) value : -1;
}

static int compare_windows(const void * a, const void * b) {
    const int32_t x = *(const int32_t *) a;
    const int32_t y = *(const int32_t *) b;
    return (x > y) - (x < y);
}

// One window per full-attention layer. rows: [n_full]
static int read_layer_windows(const struct make * make, int32_t * rows) {
    const char * list = make->args.windows;
    char         field[FIELD_MAX];
    int32_t      n = 0;

    while (next_field(&list, field)) {
        const int32_t window = parse_window(field, (int32_t) make->args.context);
        if (window < 0) {
            return fail_usage("make", "--windows: entry %d is '%s', expected full or a whole number from 1 to %lld", n + 1, field,
                              (long long) make->args.context - 1);
        }
        if (n < make->geo->n_full) {
            rows[n] = window;
        }
        n++;
    }
    if (n != make->geo->n_full) {
        return fail_usage("make", "--windows: found %d entries, expected one for each of the %d full-attention layers", n,
                          make->geo->n_full);
    }
    return EXIT_OK;
}

static int layers_codebook(struct make * make, int32_t * codebook, int32_t * n_codebook) {
    int32_t * rows = malloc((size_t) make->geo->n_full * sizeof(*rows));
    if (!rows) {
        return fail_text("out of memory");
    }
    const int code = read_layer_windows(make, rows);
    if (code != EXIT_OK) {
        free(rows);
        return code;
    }

    for (int32_t row = 0, i = 0; row < make->geo->n_full; row++) {
        for (int32_t ih = 0; ih < make->geo->layers[row].n_head_kv; ih++) {
            make->windows[i++] = rows[row];
        }
    }

    qsort(rows, (size_t) make->geo->n_full, sizeof(*rows), compare_windows);
    int32_t n = 0;
    int32_t n_distinct = 0;
    for (int32_t row = 0; row < make->geo->n_full; row++) {
        if (rows[row] != HWKV_FULL && (row == 0 || rows[row] != rows[row - 1])) {
            n_distinct++;
            if (n < HWKV_CODE_MAX - 1) {
                codebook[n++] = rows[row];
            }
        }
    }
    free(rows);
    if (n_distinct != n) {
        return fail_usage("make", "--windows: found %d different windows, expected at most %d", n_distinct, HWKV_CODE_MAX - 1);
    }
    codebook[n++] = HWKV_FULL;
    *n_codebook = n;
    return EXIT_OK;
}

int make_codebook(struct make * make, int32_t * codebook, int32_t * n_codebook) {
    if (make->source) {
        const int32_t * source = hwkv_policy_codebook(make->source, n_codebook);
        memcpy(codebook, source, (size_t) *n_codebook * sizeof(*codebook));
        return EXIT_OK;
    }
    if (make->args.method == MAKE_LAYERS) {
        return layers_codebook(make, codebook, n_codebook);
    }
    if (make->args.window >= make->args.context) {
        return fail_usage("make", "--window: found %lld, expected less than the context %lld", (long long) make->args.window,
                          (long long) make->args.context);
    }
    codebook[0] = (int32_t) make->args.window;
    codebook[1] = HWKV_FULL;
    *n_codebook = 2;
    for (int32_t i = 0; i < make->n_unit; i++) {
        make->windows[i] = codebook[0];
    }
    return EXIT_OK;
}

static int add_point(struct make * make, const char * name, const char * method, const double * scores) {
    struct hwkv_error err;
    const struct hwkv_point_params params = { .name = name, .method = method, .windows = make->windows, .scores = scores };
    if (hwkv_policy_add_point(make->policy, &params, &err) != HWKV_OK) {
        return fail_file(make->args.out, &err);
    }
    return EXIT_OK;
}

static int add_threshold(struct make * make, const char * text, bool only) {
    const struct hwkv_point * source = hwkv_policy_point(make->source, make->source_ip);
    double tau;
    if (!parse_ratio(text, &tau) || tau <= 0.0 || tau > 1.0) {
        return fail_usage("make", "--tau: found '%s', expected numbers above 0 and at most 1, separated by commas", text);
    }

    int32_t n_codebook;
    const int32_t * codebook = hwkv_policy_codebook(make->policy, &n_codebook);
    for (int32_t i = 0; i < make->n_unit; i++) {
        make->windows[i] = codebook[hwkv_select_threshold(source->scores + (size_t) i * (size_t) n_codebook, n_codebook, tau)];
    }

    // a name that is too long is refused, not cut
    char name[HWKV_NAME_MAX + FIELD_MAX];
    char method[HWKV_NAME_MAX];
    if (make->args.name && only) {
        snprintf(name, sizeof(name), "%s", make->args.name);
    } else {
        snprintf(name, sizeof(name), "%s-%s", make->args.name ? make->args.name : "threshold", text);
    }
    snprintf(method, sizeof(method), "threshold %s on stored scores", text);
    return add_point(make, name, method, source->scores);
}

static int add_thresholds(struct make * make) {
    const char * list = make->args.taus;
    const bool   only = strchr(list, ',') == NULL;
    char         field[FIELD_MAX];

    while (next_field(&list, field)) {
        const int code = add_threshold(make, field, only);
        if (code != EXIT_OK) {
            return code;
        }
    }
    return EXIT_OK;
}

static int add_duo(struct make * make) {
    const struct hwkv_point * source = hwkv_policy_point(make->source, make->source_ip);

    int32_t n_codebook;
    const int32_t * codebook = hwkv_policy_codebook(make->policy, &n_codebook);
    int32_t ic = 0;
    while (ic < n_codebook - 1 && codebook[ic] != make->args.window) {
        ic++;
    }
    if (ic == n_codebook - 1) {
        return fail_usage("make", "--window: found %lld, expected a finite window of the codebook of %s", (long long) make->args.window,
                          make->args.scores);
    }

    struct hwkv_error err;
    if (hwkv_select_binary(make->windows, source->scores, make->n_unit, codebook, n_codebook, ic, make->args.ratio, &err) != HWKV_OK) {
        return fail_file(make->args.scores, &err);
    }
    char name[HWKV_NAME_MAX];
    char method[HWKV_NAME_MAX];
    snprintf(name, sizeof(name), "duo-%d-%.6g", codebook[ic], make->args.ratio);
    snprintf(method, sizeof(method), "binary split: %.6g full, others %d", make->args.ratio, codebook[ic]);
    return add_point(make, make->args.name ? make->args.name : name, method, source->scores);
}

int make_points(struct make * make) {
    char name[HWKV_NAME_MAX] = "layers";
    const char * method = "one window per layer";

    switch (make->args.method) {
        case MAKE_THRESHOLD:
            return add_thresholds(make);
        case MAKE_DUO:
            return add_duo(make);
        case MAKE_UNIFORM:
            method = "uniform";
            snprintf(name, sizeof(name), "uniform-%lld", (long long) make->args.window);
            break;
        case MAKE_STREAMING:
            method = "streaming: sinks and a uniform window";
            snprintf(name, sizeof(name), "streaming-%lld", (long long) make->args.window);
            break;
        default:
            break;
    }
    return add_point(make, make->args.name ? make->args.name : name, method, NULL);
}
