// How `llama-kv-policy make` chooses windows.

#include "kv-policy-make.h"

#include <stdlib.h>
#include <string.h>

#define FIELD_MAX 64

static int32_t parse_window(const char * text, int32_t context) {
    int64_t value;
    if (strcmp(text, "full") == 0) {
        return HWKV_FULL;
    }
    return tool_parse_int(text, &value) && value > 0 && value < context ? (int32_t) value : -1;
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

    while (tool_next_field(&list, field, sizeof(field))) {
        const int32_t window = parse_window(field, make->args.context);
        if (window < 0) {
            return tool_usage("make", "--windows: entry %d is '%s', expected full or a whole number from 1 to %d", n + 1, field,
                              make->args.context - 1);
        }
        if (n < make->geo->n_full) {
            rows[n] = window;
        }
        n++;
    }
    if (n != make->geo->n_full) {
        return tool_usage("make", "--windows: found %d entries, expected one for each of the %d full-attention layers", n,
                          make->geo->n_full);
    }
    return TOOL_EXIT_OK;
}

// The different windows among [n_full] rows, ascending, then full. An exit code.
static int collect_windows(const int32_t * rows, int32_t n_full, struct hwkv_entry * codebook, int32_t * n_codebook) {
    int32_t * sorted = malloc((size_t) n_full * sizeof(*sorted));
    if (!sorted) {
        return tool_fail("out of memory");
    }
    memcpy(sorted, rows, (size_t) n_full * sizeof(*sorted));
    qsort(sorted, (size_t) n_full, sizeof(*sorted), compare_windows);

    int32_t n = 0;
    for (int32_t i = 0; i < n_full; i++) {
        if (sorted[i] != HWKV_FULL && (i == 0 || sorted[i] != sorted[i - 1])) {
            if (n < HWKV_CODE_MAX - 1) {
                codebook[n] = hwkv_entry_of_window(sorted[i]);
            }
            n++;
        }
    }
    free(sorted);
    if (n > HWKV_CODE_MAX - 1) {
        return tool_usage("make", "--windows: found %d different windows, expected at most %d", n, HWKV_CODE_MAX - 1);
    }
    codebook[n++] = hwkv_entry_of_window(HWKV_FULL);
    *n_codebook = n;
    return TOOL_EXIT_OK;
}

// The windows come from the command line: this is where they become entries.
static void choose_rows(struct make * make, const int32_t * rows, const struct hwkv_entry * codebook) {
    for (int32_t jl = 0, i = 0; jl < make->geo->n_full; jl++) {
        int32_t ic = 0;
        while (codebook[ic].window != rows[jl]) {
            ic++;
        }
        for (int32_t ih = 0; ih < make->geo->layers[jl].n_head_kv; ih++) {
            make->entries[i++] = ic;
        }
    }
}

static int layers_codebook(struct make * make, struct hwkv_entry * codebook, int32_t * n_codebook) {
    int32_t * rows = malloc((size_t) make->geo->n_full * sizeof(*rows));
    if (!rows) {
        return tool_fail("out of memory");
    }
    int code = read_layer_windows(make, rows);
    if (code == TOOL_EXIT_OK) {
        code = collect_windows(rows, make->geo->n_full, codebook, n_codebook);
    }
    if (code == TOOL_EXIT_OK) {
        choose_rows(make, rows, codebook);
    }
    free(rows);
    return code;
}

int make_codebook(struct make * make, struct hwkv_entry * codebook, int32_t * n_codebook) {
    if (make->source) {
        const struct hwkv_entry * source = hwkv_policy_codebook(make->source, n_codebook);
        memcpy(codebook, source, (size_t) *n_codebook * sizeof(*codebook));
        return TOOL_EXIT_OK;
    }
    if (make->args.method == MAKE_LAYERS) {
        return layers_codebook(make, codebook, n_codebook);
    }
    if (make->args.window >= make->args.context) {
        return tool_usage("make", "--window: found %d, expected less than the context %d", make->args.window, make->args.context);
    }
    codebook[0] = hwkv_entry_of_window(make->args.window);
    codebook[1] = hwkv_entry_of_window(HWKV_FULL);
    *n_codebook = 2;
    for (int32_t i = 0; i < make->n_unit; i++) {
        make->entries[i] = 0;
    }
    return TOOL_EXIT_OK;
}

// scored: the point whose scores it takes along, or NULL
static int add_point(struct make * make, const char * name, const char * method, const struct hwkv_point * scored) {
    struct hwkv_error err;
    const struct hwkv_point_params params = {
        .name = name, .method = method, .entries = make->entries, .scores = scored ? scored->scores : NULL, .n_scores = scored ? scored->n_scores : 0,
    };
    if (hwkv_policy_add_point(make->policy, &params, &err) != HWKV_OK) {
        return tool_fail_file(make->args.out, &err);
    }
    return TOOL_EXIT_OK;
}

static int add_threshold(struct make * make, const char * text, bool only) {
    const struct hwkv_point * source = hwkv_policy_point(make->source, make->source_ip);
    double tau;
    if (!tool_parse_number(text, &tau) || tau <= 0.0 || tau > 1.0) {
        return tool_usage("make", "--tau: found '%s', expected numbers above 0 and at most 1, separated by commas", text);
    }

    int32_t n_codebook;
    hwkv_policy_codebook(make->policy, &n_codebook);
    const double * scores = hwkv_point_scores(source, make->source, "cosine");
    for (int32_t i = 0; i < make->n_unit; i++) {
        make->entries[i] = hwkv_select_threshold(scores + (size_t) i * (size_t) n_codebook, n_codebook, tau);
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
    return add_point(make, name, method, source);
}

static int add_thresholds(struct make * make) {
    const char * list = make->args.taus;
    const bool   only = strchr(list, ',') == NULL;
    char         field[FIELD_MAX];

    while (tool_next_field(&list, field, sizeof(field))) {
        const int code = add_threshold(make, field, only);
        if (code != TOOL_EXIT_OK) {
            return code;
        }
    }
    return TOOL_EXIT_OK;
}

static int add_duo(struct make * make) {
    const struct hwkv_point * source = hwkv_policy_point(make->source, make->source_ip);

    int32_t n_codebook;
    const struct hwkv_entry * codebook = hwkv_policy_codebook(make->policy, &n_codebook);
    int32_t ic = 0;
    while (ic < n_codebook && codebook[ic].window != make->args.window) {
        ic++;
    }
    if (ic == n_codebook) {
        return tool_usage("make", "--window: found %d, expected a finite window of the codebook of %s", make->args.window, make->args.scores);
    }

    struct hwkv_error err;
    const struct hwkv_split split = {
        .scores     = hwkv_point_scores(source, make->source, "cosine"),
        .n_unit     = make->n_unit,
        .n_codebook = n_codebook,
        .ic         = ic,
        .reference  = hwkv_policy_reference(make->policy),
        .ratio      = make->args.ratio,
    };
    if (hwkv_select_binary(make->entries, &split, &err) != HWKV_OK) {
        return tool_fail_file(make->args.scores, &err);
    }
    char name[HWKV_NAME_MAX];
    char method[HWKV_NAME_MAX];
    snprintf(name, sizeof(name), "duo-%d-%.6g", make->args.window, make->args.ratio);
    snprintf(method, sizeof(method), "binary split: %.6g full, others %d", make->args.ratio, make->args.window);
    return add_point(make, make->args.name ? make->args.name : name, method, source);
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
            snprintf(name, sizeof(name), "uniform-%d", make->args.window);
            break;
        case MAKE_STREAMING:
            method = "streaming: sinks and a uniform window";
            snprintf(name, sizeof(name), "streaming-%d", make->args.window);
            break;
        default:
            break;
    }
    return add_point(make, make->args.name ? make->args.name : name, method, NULL);
}
