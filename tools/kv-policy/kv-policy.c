// llama-kv-policy: look at, check, make and compare policies.

#include "kv-policy.h"

#include <string.h>

// README.md shows this and the help of every command; a test compares them.
static const char HELP[] =
    "usage: llama-kv-policy COMMAND ...\n"
    "\n"
    "Policies give every KV head of a model its own window, and maybe its own cache types.\n"
    "\n"
    "commands\n"
    "  show FILE               head map, operating points and memory of a policy\n"
    "  check FILE -m MODEL     does it fit this model, what will it take and save\n"
    "  make METHOD -o FILE     make a policy without calibrating one\n"
    "  diff FILE FILE          which heads have other windows or types\n"
    "\n"
    "  COMMAND --help          the options of a command\n"
    "  --version               the version of this program\n"
    "\n"
    "exit code: 0 ok, 1 failed, 2 wrong usage, 3 no such operating point\n"
    "           (diff: 0 same, 1 different, 2 trouble)\n";

struct command {
    const char * name;
    int (*run)(int argc, char ** argv);
};

static const struct command COMMANDS[] = {
    { "show",  kvp_show  },
    { "check", kvp_check },
    { "make",  kvp_make  },
    { "diff",  kvp_diff  },
};

int kvp_read_args(struct tool_args * args, const char * command, int argc, char ** argv) {
    args->column = KVP_HELP_COLUMN;
    // help wins over everything else on the line
    if (tool_args_has(argc, argv, "--help", "-h")) {
        tool_args_help(args, stdout);
        return tool_finish(TOOL_EXIT_OK);
    }
    struct hwkv_error err;
    return tool_args_read(args, argc, argv, &err) == HWKV_OK ? -1 : tool_usage(command, "%s", err.msg);
}

int32_t kvp_find_point(const char * file, const struct hwkv_policy * policy, const char * name) {
    int32_t           ip;
    struct hwkv_error err;
    if (hwkv_policy_choose_point(&ip, policy, name, &err) != HWKV_OK) {
        tool_fail_file(file, &err);
    }
    return ip;
}

int main(int argc, char ** argv) {
    tool_begin("llama-kv-policy", false);

    if (argc < 2) {
        return tool_usage("", "no command given, expected show, check, make or diff");
    }
    if (strcmp(argv[1], "--version") == 0) {
        return tool_print_version();
    }
    if (tool_args_has(1, argv + 1, "--help", "-h")) {
        fputs(HELP, stdout);
        return tool_finish(TOOL_EXIT_OK);
    }
    for (size_t i = 0; i < sizeof(COMMANDS) / sizeof(COMMANDS[0]); i++) {
        if (strcmp(argv[1], COMMANDS[i].name) == 0) {
            return COMMANDS[i].run(argc - 2, argv + 2);
        }
    }
    if (argv[1][0] == '-') {
        return tool_usage("", "unknown option '%s'", argv[1]);
    }
    return tool_usage("", "found command '%s', expected show, check, make or diff", argv[1]);
}
