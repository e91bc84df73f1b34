// How `llama-kv-policy make` chooses windows.

#include "kv-policy-make.h"

#include <stdlib.h>
#include <string.h>

#define FIELD_MAX 64

// The place of an entry in a codebook, where it is put if it is not there. -1: there is no room.
static int32_t put_entry(struct hwkv_entry * codebook, int32_t * n, const struct hwkv_entry * entry) {
    for (int32_t i = 0; i < *n; i++) {
        if (hwkv_entry_equal(&codebook[i], entry)) {
            return i;
        }
    }
    if (*n == HWKV_CODE_MAX) {
        return -1;
    }
    codebook[*n] = *entry;
    return (*n)++;
}

// A window of the command line as an entry, with the types of --types where it has none. An exit code.
static int check_entry(const struct make * make, struct hwkv_entry * entry, const char * option) {
    char name[HWKV_ENTRY_SIZE];
    if (entry->window != HWKV_FULL && entry->window >= make->args.context) {
        return tool_usage("make", "%s: found %s, expected less than the context %d", option, hwkv_entry_format(entry, name), make->args.context);
    }
    if (make->args.types.given && hwkv_entry_has_types(entry)) {
        return tool_usage("make", "%s: found %s beside --types, expected one of the two", option, hwkv_entry_format(entry, name));
    }
    *entry = make_with_types(make, *entry);
    return TOOL_EXIT_OK;
}

// One entry per full-attention layer. rows: [n_full]
static int read_layers(const struct make * make, struct hwkv_entry * rows) {
    const char * list = make->args.windows;
    char         field[FIELD_MAX];
    int32_t      n = 0;

    while (tool_next_field(&list, field, sizeof(field))) {
        struct hwkv_entry entry;
        struct hwkv_error err;
        if (hwkv_entry_parse(&entry, field, &err) != HWKV_OK) {
            return tool_usage("make", "--windows: entry %d: %s", n + 1, err.msg);
        }
        const int code = check_entry(make, &entry, "--windows");
        if (code != TOOL_EXIT_OK) {
            return code;
        }
        if (n < make->geo->n_full) {
            rows[n] = entry;
        }
        n++;
    }
    if (n != make->geo->n_full) {
        return tool_usage("make", "--windows: found %d entries, expected one for each of the %d full-attention layers", n,
                          make->geo->n_full);
    }
    return TOOL_EXIT_OK;
}

// The codebook of [n_full] rows, and the entries of all heads. An exit code.
static int choose_rows(struct make * make, const struct hwkv_entry * rows, struct hwkv_entry * codebook, int32_t * n_codebook,
                       const struct hwkv_cache * cache) {
    int32_t n = 0;
    for (int32_t jl = 0; jl < make->geo->n_full; jl++) {
        if (put_entry(codebook, &n, &rows[jl]) < 0) {
            return tool_usage("make", "--windows: found more than %d different entries, expected at most that", HWKV_CODE_MAX);
        }
    }
    const int code = make_finish_codebook(make, codebook, &n, cache);
    for (int32_t jl = 0, i = 0; jl < make->geo->n_full && code == TOOL_EXIT_OK; jl++) {
        const int32_t ic = put_entry(codebook, &n, &rows[jl]);
        for (int32_t ih = 0; ih < make->geo->layers[jl].n_head_kv; ih++) {
            make->entries[i++] = ic;
        }
    }
    *n_codebook = n;
    return code;
}

// The reference among the entries, and all in their order.
int make_finish_codebook(const struct make * make, struct hwkv_entry * codebook, int32_t * n, const struct hwkv_cache * cache) {
    struct hwkv_entry full  = hwkv_entry_of_window(HWKV_FULL);
    struct hwkv_error err;
    if (hwkv_entry_has_types(&codebook[0])) {
        full = hwkv_entry_settle(&full, cache);
    }
    if (put_entry(codebook, n, &full) < 0) {
        char name[HWKV_ENTRY_SIZE];
        return tool_usage("make", "found %d entries besides the reference %s, expected at most %d", *n, hwkv_entry_format(&full, name), HWKV_CODE_MAX - 1);
    }
    return hwkv_codebook_sort(codebook, *n, make->geo, cache, &err) == HWKV_OK ? TOOL_EXIT_OK : tool_usage("make", "%s", err.msg);
}

int make_codebook(struct make * make, struct hwkv_entry * codebook, int32_t * n_codebook, const struct hwkv_cache * cache) {
    if (make->args.method == MAKE_RETYPE) {
        return make_retype_codebook(make, codebook, n_codebook, cache);
    }
    if (make->source) {
        const struct hwkv_entry * source = hwkv_policy_codebook(make->source, n_codebook);
        memcpy(codebook, source, (size_t) *n_codebook * sizeof(*codebook));
        return TOOL_EXIT_OK;
    }
    struct hwkv_entry * rows = calloc((size_t) make->geo->n_full, sizeof(*rows));
    if (!rows) {
        return tool_fail("out of memory");
    }
    int code = make->args.method == MAKE_LAYERS ? read_layers(make, rows) : check_entry(make, &make->args.window, "--window");
    for (int32_t jl = 0; jl < make->geo->n_full && make->args.method != MAKE_LAYERS; jl++) {
        rows[jl] = make->args.window;
    }
    if (code == TOOL_EXIT_OK) {
        code = choose_rows(make, rows, codebook, n_codebook, cache);
    }
    free(rows);
    return code;
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
    char    window[HWKV_ENTRY_SIZE];
    int32_t ic = 0;
    hwkv_entry_format(&make->args.window, window);
    while (ic < n_codebook && !hwkv_entry_equal(&codebook[ic], &make->args.window)) {
        ic++;
    }
    if (ic == n_codebook || ic == hwkv_policy_reference(make->policy)) {
        return tool_usage("make", "--window: found %s, expected an entry of the codebook of %s beside the reference", window, make->args.scores);
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
    snprintf(name, sizeof(name), "duo-%s-%.6g", window, make->args.ratio);
    snprintf(method, sizeof(method), "binary split: %.6g full, others %s", make->args.ratio, window);
    return add_point(make, make->args.name ? make->args.name : name, method, source);
}

int make_points(struct make * make) {
    char name[HWKV_NAME_MAX] = "layers";
    char window[HWKV_ENTRY_SIZE];
    const char * method = "one window per layer";
    hwkv_entry_format(&make->args.window, window);

    switch (make->args.method) {
        case MAKE_THRESHOLD:
            return add_thresholds(make);
        case MAKE_DUO:
            return add_duo(make);
        case MAKE_RETYPE:
            return make_retype_points(make);
        case MAKE_UNIFORM:
            method = "uniform";
            snprintf(name, sizeof(name), "uniform-%s", window);
            break;
        case MAKE_STREAMING:
            method = "streaming: sinks and a uniform window";
            snprintf(name, sizeof(name), "streaming-%s", window);
            break;
        default:
            break;
    }
    return add_point(make, make->args.name ? make->args.name : name, method, NULL);
}
