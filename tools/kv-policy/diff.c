// llama-kv-policy diff: exit codes as diff has them, 0 same, 1 different, 2 trouble

#include "kv-policy.h"

#include <string.h>

#define EXIT_TROUBLE 2

struct side {
    const char         * file;
    const char         * point_name;
    struct hwkv_policy * policy;
    int32_t              ip;
};

static bool side_load(struct side * side) {
    struct hwkv_error err;
    if (hwkv_policy_load(&side->policy, side->file, &err) != HWKV_OK) {
        fail_file(side->file, &err);
        return false;
    }
    side->ip = find_point(side->file, side->policy, side->point_name);
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
    print_text(stdout, side->file);
    printf(" point ");
    print_text(stdout, point->name);
    const int32_t context = hwkv_policy_context(side->policy);
    const double  query   = hwkv_retention_query(hwkv_policy_geometry(side->policy), point->windows, context);
    printf(": context %d, sinks %d, R_C %.2f%%, R^Q %.2f%%, %.2f MiB\n", context, hwkv_policy_sinks(side->policy), 100.0 * point->retention,
           100.0 * query, mib(point->bytes));
}

static int print_diff(const struct side * a, const struct side * b) {
    const struct hwkv_geometry * geo = hwkv_policy_geometry(a->policy);
    const int32_t * wa = hwkv_policy_point(a->policy, a->ip)->windows;
    const int32_t * wb = hwkv_policy_point(b->policy, b->ip)->windows;

    print_side("---", a);
    print_side("+++", b);

    int32_t n_longer  = 0;
    int32_t n_shorter = 0;
    for (int32_t row = 0; row < geo->n_full; row++) {
        for (int32_t ih = 0; ih < geo->layers[row].n_head_kv; ih++) {
            const int32_t i = hwkv_policy_unit(a->policy, row, ih);
            if (wa[i] == wb[i]) {
                continue;
            }
            char na[16];
            char nb[16];
            printf("layer %4d head %4d: %10s -> %10s\n", geo->layers[row].il, ih, window_name(wa[i], na), window_name(wb[i], nb));
            *(wb[i] > wa[i] ? &n_longer : &n_shorter) += 1;
        }
    }
    printf("%d of %d heads differ: %d longer, %d shorter in the second\n", n_longer + n_shorter,
           hwkv_policy_n_unit(a->policy), n_longer, n_shorter);

    // the same window with other sinks holds other positions
    const int32_t sa = hwkv_policy_sinks(a->policy);
    const int32_t sb = hwkv_policy_sinks(b->policy);
    if (sa != sb) {
        printf("sinks differ: %d -> %d\n", sa, sb);
    }
    if (finish_stdout(EXIT_OK) != EXIT_OK) {
        return EXIT_TROUBLE;
    }
    return n_longer + n_shorter == 0 && sa == sb ? EXIT_OK : EXIT_FAIL;
}

int cmd_diff(int argc, char ** argv) {
    struct side  a = { 0 };
    struct side  b = { 0 };
    const char * files[2] = { NULL, NULL };

    const struct opt opts[] = {
        { "--point-a", NULL, OPT_STRING, &a.point_name, 0, 0 },
        { "--point-b", NULL, OPT_STRING, &b.point_name, 0, 0 },
    };
    struct opt_set set = { "diff", opts, sizeof(opts) / sizeof(opts[0]), files, 2, 0 };
    if (!args_read(&set, argc, argv)) {
        return EXIT_USAGE;
    }
    if (set.n_words < 2) {
        return fail_usage("diff", "found %d policy files, expected 2", set.n_words);
    }
    a.file = files[0];
    b.file = files[1];

    int code = EXIT_TROUBLE;
    if (side_load(&a) && side_load(&b)) {
        const struct hwkv_geometry * ga = hwkv_policy_geometry(a.policy);
        const struct hwkv_geometry * gb = hwkv_policy_geometry(b.policy);
        if (!same_heads(ga, gb)) {
            fail_text("%s: for other layers or heads than %s, nothing to compare", b.file, a.file);
        } else {
            if (strcmp(ga->fingerprint, gb->fingerprint) != 0) {
                warn_text("%s and %s are bound to different models of the same geometry", a.file, b.file);
            }
            code = print_diff(&a, &b);
        }
    }
    hwkv_policy_free(a.policy);
    hwkv_policy_free(b.policy);
    return code;
}
