// What the commands say, and how.

#include "kv-policy.h"

#include <errno.h>
#include <stdarg.h>
#include <string.h>

static void say(const char * prefix, const char * fmt, va_list args) {
    char line[1024];
    vsnprintf(line, sizeof(line), fmt, args);

    fprintf(stderr, "%s: %s", TOOL_NAME, prefix);
    print_text(stderr, line);
    fputc('\n', stderr);
}

int fail_usage(const char * command, const char * fmt, ...) {
    char line[1024];
    va_list args;
    va_start(args, fmt);
    vsnprintf(line, sizeof(line), fmt, args);
    va_end(args);

    const bool is_tool = command[0] == '\0';
    fprintf(stderr, "%s%s%s: ", TOOL_NAME, is_tool ? "" : " ", command);
    print_text(stderr, line);
    fprintf(stderr, " (see %s%s%s --help)\n", TOOL_NAME, is_tool ? "" : " ", command);
    return EXIT_USAGE;
}

int fail_text(const char * fmt, ...) {
    va_list args;
    va_start(args, fmt);
    say("", fmt, args);
    va_end(args);
    return EXIT_FAIL;
}

void warn_text(const char * fmt, ...) {
    va_list args;
    va_start(args, fmt);
    say("warning: ", fmt, args);
    va_end(args);
}

int fail_file(const char * file, const struct hwkv_error * err) {
    char text[512];
    return fail_text("%s: %s", file, hwkv_error_format(err, text, sizeof(text)));
}

void print_text(FILE * out, const char * text) {
    for (const unsigned char * p = (const unsigned char *) text; *p; p++) {
        // C1 controls are two bytes in UTF-8, 0xC2 0x80..0x9F
        if (p[0] == 0xC2 && p[1] >= 0x80 && p[1] <= 0x9F) {
            fputc('?', out);
            p++;
        } else {
            fputc(*p < 0x20 || *p == 0x7F ? '?' : *p, out);
        }
    }
}

void print_json(FILE * out, const char * text) {
    fputc('"', out);
    for (const unsigned char * p = (const unsigned char *) text; *p; p++) {
        if (*p == '"' || *p == '\\') {
            fprintf(out, "\\%c", *p);
        } else if (*p < 0x20) {
            fprintf(out, "\\u%04x", *p);
        } else {
            fputc(*p, out);
        }
    }
    fputc('"', out);
}

double mib(uint64_t bytes) {
    return (double) bytes / (1024.0 * 1024.0);
}

const char * window_name(int32_t window, char buf[16]) {
    if (window == HWKV_FULL) {
        return "full";
    }
    snprintf(buf, 16, "%d", window);
    return buf;
}

int finish_stdout(int code) {
    errno = 0;
    if (fflush(stdout) != 0 || ferror(stdout)) {
        return fail_text("stdout: %s", errno ? strerror(errno) : "not everything could be written");
    }
    return code;
}

int32_t find_point(const char * file, const struct hwkv_policy * policy, const char * name) {
    int32_t           ip;
    struct hwkv_error err;
    if (hwkv_policy_choose_point(&ip, policy, name, &err) != HWKV_OK) {
        fail_file(file, &err);
    }
    return ip;
}
