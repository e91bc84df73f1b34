#include "tool-say.h"

#include "tool-json.h"
#include "tool-print.h"

#include "hwkv-version.h"

#include <errno.h>
#include <stdarg.h>
#include <string.h>

static struct {
    const char * name;
    bool         json;
} g_tool = { "", false };

void tool_begin(const char * name, bool json) {
    g_tool.name = name;
    g_tool.json = json;
}

// who: the command of a program that has several, or ""
static void put_line(const char * kind, const char * who, const char * line, const char * hint) {
    if (g_tool.json) {
        struct hwkv_json * object = hwkv_json_new_object();
        hwkv_json_add(object, kind, tool_json_text(line));
        tool_json_print_line(stderr, object);
        return;
    }
    fprintf(stderr, "%s%s%s: %s", g_tool.name, who[0] ? " " : "", who, strcmp(kind, "warning") == 0 ? "warning: " : "");
    tool_put_text(stderr, line);
    fprintf(stderr, "%s\n", hint);
}

HWKV_PRINTF(2, 0)
static void say(const char * kind, const char * fmt, va_list args) {
    char line[1024];
    vsnprintf(line, sizeof(line), fmt, args);
    put_line(kind, "", line, "");
}

void tool_say(const char * kind, const char * fmt, ...) {
    va_list args;
    va_start(args, fmt);
    say(kind, fmt, args);
    va_end(args);
}

int tool_usage(const char * command, const char * fmt, ...) {
    char    line[1024];
    char    hint[128];
    va_list args;
    va_start(args, fmt);
    vsnprintf(line, sizeof(line), fmt, args);
    va_end(args);

    snprintf(hint, sizeof(hint), " (see %s%s%s --help)", g_tool.name, command[0] ? " " : "", command);
    put_line("error", command, line, hint);
    return TOOL_EXIT_USAGE;
}

int tool_fail(const char * fmt, ...) {
    va_list args;
    va_start(args, fmt);
    say("error", fmt, args);
    va_end(args);
    return TOOL_EXIT_FAIL;
}

void tool_warn(const char * fmt, ...) {
    va_list args;
    va_start(args, fmt);
    say("warning", fmt, args);
    va_end(args);
}

int tool_fail_file(const char * file, const struct hwkv_error * err) {
    char text[512];
    return tool_fail("%s: %s", file, hwkv_error_format(err, text, sizeof(text)));
}

int tool_print_version(void) {
    printf("%s: %s\n", g_tool.name, hwkv_version_line());
    return tool_finish(TOOL_EXIT_OK);
}

int tool_finish(int code) {
    errno = 0;
    if (fflush(stdout) != 0 || ferror(stdout)) {
        return tool_fail("stdout: %s", errno ? strerror(errno) : "not everything could be written");
    }
    return code;
}
