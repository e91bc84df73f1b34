// llama-kv-policy show

#include "kv-policy.h"

#include "tool-groups.h"
#include "tool-map.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char USAGE[] =
    "usage: llama-kv-policy show FILE [options]\n"
    "\n"
    "Shows a policy: model, operating points, the windows of one point as a map with\n"
    "one row per layer and one symbol per KV head, marked where it has other cache types\n"
    "than the reference, and the memory of its groups at the\n"
    "policy's own context with default settings.\n"
    "\n";

struct show_args {
    const char * file;
    const char * point;
    const char * color;
    bool         all;
};

static int terminal_width(void) {
    int64_t      width   = 0;
    const char * columns = getenv("COLUMNS");
    return columns && tool_parse_int(columns, &width) && width >= 20 && width <= 10000 ? (int) width : tool_columns(stdout, 100);
}

static bool use_color(const char * choice) {
    if (strcmp(choice, "auto") != 0) {
        return strcmp(choice, "always") == 0;
    }
    const char * no_color = getenv("NO_COLOR");
    const char * term     = getenv("TERM");
    return isatty(STDOUT_FILENO) == 1 && !(no_color && no_color[0]) && !(term && strcmp(term, "dumb") == 0);
}

static void print_field(const char * name, const char * value) {
    printf("%-9s ", name);
    tool_put_text(stdout, value[0] ? value : "-");
    fputc('\n', stdout);
}

static void print_model(const struct hwkv_geometry * geo) {
    char text[HWKV_NAME_MAX + 160];
    snprintf(text, sizeof(text), "%s%s%s%s", geo->name, geo->name[0] ? " (" : "", geo->architecture, geo->name[0] ? ")" : "");
    print_field("model", text);

    int32_t n_head = 0;
    int32_t n_unit = 0;
    for (int32_t i = 0; i < geo->n_full; i++) {
        n_head += geo->layers[i].n_head;
        n_unit += geo->layers[i].n_head_kv;
    }
    snprintf(text, sizeof(text), "%d, %d with full attention: %d KV heads for %d query heads", geo->n_layer, geo->n_full, n_unit, n_head);
    print_field("layers", text);
    print_field("bound to", geo->fingerprint[0] ? geo->fingerprint : "any model of this geometry");
}

static void print_head(const char * file, const struct hwkv_policy * policy) {
    print_field("policy", file);
    print_model(hwkv_policy_geometry(policy));

    printf("context   %d\n", hwkv_policy_context(policy));

    int32_t n_codebook;
    const struct hwkv_entry * codebook = hwkv_policy_codebook(policy, &n_codebook);
    printf("codebook ");
    for (int32_t i = 0; i < n_codebook; i++) {
        char name[HWKV_ENTRY_SIZE];
        printf(" %s", hwkv_entry_format(&codebook[i], name));
    }
    printf("\nsinks     %d\n", hwkv_policy_sinks(policy));
    printf("cache     %s/%s\n", hwkv_type_name(hwkv_policy_type_k(policy)), hwkv_type_name(hwkv_policy_type_v(policy)));

    const struct hwkv_calibration * calib = hwkv_policy_calibration(policy);
    if (calib) {
        char text[512];
        snprintf(text, sizeof(text), "%s, %d sequences, %d queries, seed %" PRId64, calib->text, calib->n_seq, calib->n_query, calib->seed);
        print_field("text", text);
        print_field("tool", calib->tool);
    }
}

static void point_method(const struct hwkv_point * point, char * buf, size_t size) {
    if (point->tau > 0) {
        snprintf(buf, size, "tau %.6g", point->tau);
    } else if (point->budget > 0) {
        snprintf(buf, size, "%s, %.6g MiB", point->method, tool_mib(point->budget));
    } else {
        snprintf(buf, size, "%s", point->method);
    }
}

static void print_points(const struct hwkv_policy * policy) {
    const int32_t n = hwkv_policy_n_point(policy);
    char method[HWKV_NAME_MAX + 32];

    int name_width   = tool_text_width("name");
    int method_width = tool_text_width("chosen by");
    for (int32_t ip = 0; ip < n; ip++) {
        const struct hwkv_point * point = hwkv_policy_point(policy, ip);
        point_method(point, method, sizeof(method));
        name_width   = tool_text_width(point->name) > name_width ? tool_text_width(point->name) : name_width;
        method_width = tool_text_width(method) > method_width ? tool_text_width(method) : method_width;
    }

    printf("\noperating points (* selected)\n");
    printf("  %3s   %-*s  %-*s %8s %8s %9s %12s\n", "no.", name_width, "name", method_width, "chosen by", "R_C", "R^Q", "min score", "MiB");
    for (int32_t ip = 0; ip < n; ip++) {
        const struct hwkv_point * point = hwkv_policy_point(policy, ip);

        char score[32] = "-";
        if (!isnan(point->min_score)) {
            snprintf(score, sizeof(score), "%.4f", point->min_score);
        }
        point_method(point, method, sizeof(method));

        printf("  %3d %c ", ip, ip == hwkv_policy_selected(policy) ? '*' : ' ');
        tool_put_column(stdout, point->name, name_width + 2);
        tool_put_column(stdout, method, method_width);
        printf(" %7.2f%% %7.2f%% %9s %12.2f\n", 100.0 * point->retention,
               100.0 * point->retention_query, score, tool_mib(point->bytes));
    }
}

static int print_policy(const struct show_args * args, const struct hwkv_policy * policy) {
    const int32_t ip = kvp_find_point(args->file, policy, args->point);
    if (ip < 0) {
        return TOOL_EXIT_NO_POINT;
    }
    struct hwkv_plan * plan = NULL;
    struct hwkv_error  err;
    const struct hwkv_plan_params params = tool_plan_params(policy);
    if (hwkv_plan_init(&plan, policy, ip, &params, &err) != HWKV_OK) {
        return tool_fail_file(args->file, &err);
    }

    print_head(args->file, policy);
    print_points(policy);

    printf("\nwindows of ");
    tool_put_text(stdout, hwkv_policy_point(policy, ip)->name);
    printf(": layers as rows, KV heads as columns\n");
    const struct tool_map_params map = { .color = use_color(args->color), .all = args->all, .width = terminal_width() };
    if (!tool_map_print(stdout, policy, ip, &map)) {
        tool_fail("out of memory: the head map is left out");
    }

    printf("\nmemory of ");
    tool_put_text(stdout, hwkv_policy_point(policy, ip)->name);
    fputc('\n', stdout);
    tool_plan_print(stdout, plan);
    fputc('\n', stdout);
    tool_groups_print(stdout, plan, NULL);

    hwkv_plan_free(plan);
    return tool_finish(TOOL_EXIT_OK);
}

#define AT(member) offsetof(struct show_args, member)

static const struct tool_option OPTIONS[] = {
    { "--point", NULL, TOOL_STRING, AT(point), .value = "NAME|N", .help = "operating point (default: the selected one)" },
    { "--color", NULL, TOOL_STRING, AT(color), .value = "WHEN",
      .help = "auto, always or never (default: auto, a terminal without NO_COLOR)" },
    { "--all",   NULL, TOOL_FLAG,   AT(all), .help = "every layer; else over 64 layers equal neighbours are folded" },
};

int kvp_show(int argc, char ** argv) {
    struct show_args args = { .color = "auto" };
    struct tool_args line = {
        .usage = USAGE, .options = OPTIONS, .n_option = sizeof(OPTIONS) / sizeof(OPTIONS[0]),
        .words = &args.file, .max_word = 1, .target = &args,
    };

    int code = kvp_read_args(&line, "show", argc, argv);
    if (code >= 0) {
        return code;
    }
    if (line.n_word == 0) {
        return tool_usage("show", "no policy file given");
    }
    if (strcmp(args.color, "auto") != 0 && strcmp(args.color, "always") != 0 && strcmp(args.color, "never") != 0) {
        return tool_usage("show", "--color: found '%s', expected auto, always or never", args.color);
    }

    struct hwkv_policy * policy = NULL;
    struct hwkv_error    err;
    if (hwkv_policy_load(&policy, args.file, &err) != HWKV_OK) {
        return tool_fail_file(args.file, &err);
    }
    code = print_policy(&args, policy);
    hwkv_policy_free(policy);
    return code;
}
