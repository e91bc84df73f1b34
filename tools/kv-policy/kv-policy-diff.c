// llama-kv-policy diff: exit codes as diff has them, 0 same, 1 different, 2 trouble

#include "kv-policy.h"

#include <string.h>

#define EXIT_TROUBLE 2

static const char USAGE[] =
    "usage: llama-kv-policy diff FILE FILE [options]\n"
    "\n"
    "Lists the heads whose windows or types differ. Exit code: 0 same, 1 different, 2 trouble.\n"
    "\n";

struct side {
    const char         * file;
    const char         * point_name;
    struct hwkv_policy * policy;
    int32_t              ip;
};

static bool side_load(struct side * side) {
    struct hwkv_error err;
    if (hwkv_policy_load(&side->policy, side->file, &err) != HWKV_OK) {
        tool_fail_file(side->file, &err);
        return false;
    }
    side->ip = kvp_find_point(side->file, side->policy, side->point_name);
    return side->ip >= 0;
}

// Windows can be compared when they are about the same heads.
static bool same_heads(const struct hwkv_geometry * a, const struct hwkv_geometry * b) {
    if (strcmp(a->architecture, b->architecture) != 0 || a->n_layer != b->n_layer || a->n_full != b->n_full) {
        return false;
    }
    return memcmp(a->layers, b->layers, (size_t) a->n_full * sizeof(*a->layers)) == 0;
}

static void print_side(const char * mark, const struct side * side) {
    const struct hwkv_point * point = hwkv_policy_point(side->policy, side->ip);

    printf("%s ", mark);
    tool_put_text(stdout, side->file);
    printf(" point ");
    tool_put_text(stdout, point->name);
    const int32_t context = hwkv_policy_context(side->policy);
    printf(": context %d, sinks %d, R_C %.2f%%, R^Q %.2f%%, %.2f MiB\n", context, hwkv_policy_sinks(side->policy), 100.0 * point->retention,
           100.0 * point->retention_query, tool_mib(point->bytes));
}

// An entry of a side; beside a policy whose entries have types, with the types that this one's leave to the cache.
static struct hwkv_entry compared(const struct side * side, int32_t unit, bool types) {
    struct hwkv_entry entry = hwkv_policy_codebook(side->policy, NULL)[hwkv_policy_point(side->policy, side->ip)->entries[unit]];
    if (types && !hwkv_entry_has_types(&entry)) {
        entry.type_k = hwkv_policy_type_k(side->policy);
        entry.type_v = hwkv_policy_type_v(side->policy);
    }
    return entry;
}

static int print_diff(const struct side * a, const struct side * b) {
    const struct hwkv_geometry * geo = hwkv_policy_geometry(a->policy);

    print_side("---", a);
    print_side("+++", b);

    int32_t n_differ  = 0;
    int32_t n_longer  = 0;
    int32_t n_shorter = 0;
    int32_t n_types   = 0;
    const bool types  = hwkv_policy_has_types(a->policy) || hwkv_policy_has_types(b->policy);
    for (int32_t jl = 0; jl < geo->n_full; jl++) {
        for (int32_t ih = 0; ih < geo->layers[jl].n_head_kv; ih++) {
            const struct hwkv_entry ea = compared(a, hwkv_policy_unit(a->policy, jl, ih), types);
            const struct hwkv_entry eb = compared(b, hwkv_policy_unit(b->policy, jl, ih), types);
            if (hwkv_entry_equal(&ea, &eb)) {
                continue;
            }
            char na[HWKV_ENTRY_SIZE];
            char nb[HWKV_ENTRY_SIZE];
            printf("layer %4d head %4d: %10s -> %10s\n", geo->layers[jl].il, ih, hwkv_entry_format(&ea, na), hwkv_entry_format(&eb, nb));
            n_differ  += 1;
            n_longer  += eb.window > ea.window;
            n_shorter += eb.window < ea.window;
            n_types   += eb.type_k != ea.type_k || eb.type_v != ea.type_v;
        }
    }
    printf("%d of %d heads differ: %d longer, %d shorter in the second", n_differ, hwkv_policy_n_unit(a->policy), n_longer, n_shorter);
    if (types) {
        printf(", %d with other types", n_types);
    }
    fputc('\n', stdout);

    // the same window with other sinks holds other positions
    const int32_t sa = hwkv_policy_sinks(a->policy);
    const int32_t sb = hwkv_policy_sinks(b->policy);
    if (sa != sb) {
        printf("sinks differ: %d -> %d\n", sa, sb);
    }
    if (tool_finish(TOOL_EXIT_OK) != TOOL_EXIT_OK) {
        return EXIT_TROUBLE;
    }
    return n_differ == 0 && sa == sb ? TOOL_EXIT_OK : TOOL_EXIT_FAIL;
}

struct diff_args {
    const char * files[2];
    const char * point_a;
    const char * point_b;
};

#define AT(member) offsetof(struct diff_args, member)

static const struct tool_option OPTIONS[] = {
    { "--point-a", NULL, TOOL_STRING, AT(point_a), .value = "NAME|N",
      .help = "operating point of the first (default: the selected one)" },
    { "--point-b", NULL, TOOL_STRING, AT(point_b), .value = "NAME|N",
      .help = "operating point of the second (default: the selected one)" },
};

int kvp_diff(int argc, char ** argv) {
    struct diff_args args = { { NULL, NULL }, NULL, NULL };
    struct tool_args line = {
        .usage = USAGE, .options = OPTIONS, .n_option = sizeof(OPTIONS) / sizeof(OPTIONS[0]),
        .words = args.files, .max_word = 2, .target = &args,
    };
    int code = kvp_read_args(&line, "diff", argc, argv);
    if (code >= 0) {
        return code;
    }
    if (line.n_word < 2) {
        return tool_usage("diff", "found %d policy files, expected 2", line.n_word);
    }
    struct side a = { .file = args.files[0], .point_name = args.point_a };
    struct side b = { .file = args.files[1], .point_name = args.point_b };

    code = EXIT_TROUBLE;
    if (side_load(&a) && side_load(&b)) {
        const struct hwkv_geometry * ga = hwkv_policy_geometry(a.policy);
        const struct hwkv_geometry * gb = hwkv_policy_geometry(b.policy);
        if (!same_heads(ga, gb)) {
            tool_fail("%s: for other layers or heads than %s, nothing to compare", b.file, a.file);
        } else {
            if (strcmp(ga->fingerprint, gb->fingerprint) != 0) {
                tool_warn("%s and %s are bound to different models of the same geometry", a.file, b.file);
            }
            code = print_diff(&a, &b);
        }
    }
    hwkv_policy_free(a.policy);
    hwkv_policy_free(b.policy);
    return code;
}
