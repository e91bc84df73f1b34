#define _DEFAULT_SOURCE // struct winsize

#include "tool-print.h"

#include "hwkv-error.h"

#include <string.h>
#include <sys/ioctl.h>

int tool_put_text(FILE * out, const char * text) {
    int width = 0;
    for (const unsigned char * p = (const unsigned char *) text; *p; p++) {
        const bool c1 = p[0] == 0xC2 && p[1] >= 0x80 && p[1] <= 0x9F; // a control character of two bytes
        p += c1;
        fputc(c1 || *p < 0x20 || *p == 0x7F ? '?' : *p, out);
        width += c1 || (*p & 0xC0) != 0x80;
    }
    return width;
}

int tool_text_width(const char * text) {
    int width = 0;
    for (; *text; text++) {
        width += ((unsigned char) *text & 0xC0) != 0x80;
    }
    return width;
}

void tool_put_column(FILE * out, const char * text, int width) {
    const int used = tool_put_text(out, text);
    fprintf(out, "%*s", used < width ? width - used : 0, "");
}

void tool_make_utf8(char * text) {
    for (size_t left = strlen(text), n; left > 0; left -= n, text += n) {
        n = hwkv_utf8_length(text, left);
        if (n == 0) {
            *text = '?';
            n = 1;
        }
    }
}

const char * tool_window_name(int32_t window, char buf[16]) {
    if (window == HWKV_FULL) {
        return "full";
    }
    snprintf(buf, 16, "%d", window);
    return buf;
}

double tool_mib(uint64_t bytes) {
    return (double) bytes / (1024.0 * 1024.0);
}

const char * tool_base_name(const char * path) {
    const char * slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

int tool_columns(FILE * out, int fallback) {
    struct winsize size;
    return ioctl(fileno(out), TIOCGWINSZ, &size) == 0 && size.ws_col >= 20 ? size.ws_col : fallback;
}
