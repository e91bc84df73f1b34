// llama-kv-policy: look at, check, make and compare policies.

#include "kv-policy.h"

#include "hwkv-version.h"

#include <string.h>

struct command {
    const char * name;
    int (*run)(int argc, char ** argv);
};

static const struct command COMMANDS[] = {
    { "show",  cmd_show  },
    { "check", cmd_check },
    { "make",  cmd_make  },
    { "diff",  cmd_diff  },
};

// --help anywhere before "--" wins over everything else on the line
static bool asks_help(int argc, char ** argv) {
    for (int i = 0; i < argc && strcmp(argv[i], "--") != 0; i++) {
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) {
            return true;
        }
    }
    return false;
}

static int print_help(const char * command) {
    fputs(help_text(command), stdout);
    return finish_stdout(EXIT_OK);
}

int main(int argc, char ** argv) {
    if (argc < 2) {
        return fail_usage("", "no command given, expected show, check, make or diff");
    }
    if (strcmp(argv[1], "--version") == 0) {
        printf("%s: %s\n", TOOL_NAME, hwkv_version_line());
        return finish_stdout(EXIT_OK);
    }
    if (asks_help(1, argv + 1)) {
        return print_help("");
    }
    for (size_t i = 0; i < sizeof(COMMANDS) / sizeof(COMMANDS[0]); i++) {
        if (strcmp(argv[1], COMMANDS[i].name) == 0) {
            if (asks_help(argc - 2, argv + 2)) {
                return print_help(argv[1]);
            }
            return COMMANDS[i].run(argc - 2, argv + 2);
        }
    }
    if (argv[1][0] == '-') {
        return fail_usage("", "unknown option '%s'", argv[1]);
    }
    return fail_usage("", "found command '%s', expected show, check, make or diff", argv[1]);
}
