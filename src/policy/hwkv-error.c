// The error filler, and the text that goes into errors: cut at whole characters, on one line.

#include "hwkv-error.h"
#include "hwkv-number.h"

#include <stdio.h>
#include <string.h>

const char * hwkv_err_name(int code) {
    switch (code) {
        case HWKV_OK:                return "HWKV_OK";
        case HWKV_ERR_ARG:           return "HWKV_ERR_ARG";
        case HWKV_ERR_NOMEM:         return "HWKV_ERR_NOMEM";
        case HWKV_ERR_IO:            return "HWKV_ERR_IO";
        case HWKV_ERR_PARSE:         return "HWKV_ERR_PARSE";
        case HWKV_ERR_TRUNCATED:     return "HWKV_ERR_TRUNCATED";
        case HWKV_ERR_TOO_LARGE:     return "HWKV_ERR_TOO_LARGE";
        case HWKV_ERR_TOO_DEEP:      return "HWKV_ERR_TOO_DEEP";
        case HWKV_ERR_UTF8:          return "HWKV_ERR_UTF8";
        case HWKV_ERR_DUPLICATE_KEY: return "HWKV_ERR_DUPLICATE_KEY";
        case HWKV_ERR_NOT_FINITE:    return "HWKV_ERR_NOT_FINITE";
        case HWKV_ERR_RANGE:         return "HWKV_ERR_RANGE";
        case HWKV_ERR_TYPE:          return "HWKV_ERR_TYPE";
        case HWKV_ERR_UNKNOWN_KEY:   return "HWKV_ERR_UNKNOWN_KEY";
        case HWKV_ERR_MISSING_KEY:   return "HWKV_ERR_MISSING_KEY";
        case HWKV_ERR_VALUE:         return "HWKV_ERR_VALUE";
        case HWKV_ERR_VERSION:       return "HWKV_ERR_VERSION";
        case HWKV_ERR_MISMATCH:      return "HWKV_ERR_MISMATCH";
        case HWKV_ERR_BUDGET:        return "HWKV_ERR_BUDGET";
        case HWKV_ERR_INTERNAL:      return "HWKV_ERR_INTERNAL";
        default:                     return "HWKV_ERR_?";
    }
}

//
// text
//

void hwkv_copy(char * dst, size_t dst_size, const char * text) {
    size_t n = strlen(text);
    if (n >= dst_size) {
        n = dst_size - 1;
        while (n > 0 && ((unsigned char) text[n] & 0xC0) == 0x80) {
            n--;
        }
    }
    memcpy(dst, text, n);
    dst[n] = '\0';
}

const char * hwkv_quote(char * buf, const char * text, size_t n) {
    buf[0] = '"';
    hwkv_copy(buf + 1, n + 1, text);
    strcat(buf, strlen(text) > n ? "...\"" : "\"");
    return buf;
}

size_t hwkv_utf8_length(const char * text, size_t n) {
    const unsigned char * p = (const unsigned char *) text;
    if (n == 0 || p[0] < 0x80) {
        return n == 0 ? 0 : 1;
    }
    const size_t len = p[0] >= 0xC2 && p[0] <= 0xDF ? 2 : (p[0] & 0xF0) == 0xE0 ? 3 : p[0] >= 0xF0 && p[0] <= 0xF4 ? 4 : 0;
    if (len == 0 || len > n) {
        return 0;
    }
    for (size_t i = 1; i < len; i++) {
        if ((p[i] & 0xC0) != 0x80) {
            return 0;
        }
    }
    // overlong forms, surrogates and what is beyond U+10FFFF
    const bool bad = (p[0] == 0xE0 && p[1] < 0xA0) || (p[0] == 0xED && p[1] > 0x9F) || (p[0] == 0xF0 && p[1] < 0x90) ||
                     (p[0] == 0xF4 && p[1] > 0x8F);
    return bad ? 0 : len;
}

bool hwkv_is_utf8(const char * text) {
    size_t left = strlen(text);
    while (left > 0) {
        const size_t n = hwkv_utf8_length(text, left);
        if (n == 0) {
            return false;
        }
        text += n;
        left -= n;
    }
    return true;
}

//
// errors
//

// Names from a file end up in messages: keep them on one line.
static void one_line(char * text) {
    for (; *text; text++) {
        if ((unsigned char) *text < 0x20 || *text == 0x7f) {
            *text = ' ';
        }
    }
}

int hwkv_fail(struct hwkv_error * err, int code, const char * path, const char * fmt, ...) {
    if (err == NULL) {
        return code;
    }
    memset(err, 0, sizeof(*err));
    err->code = code;
    hwkv_copy(err->path, sizeof(err->path), path ? path : "");

    char    text[1024];
    va_list args;
    va_start(args, fmt);
    hwkv_vsnprintf(text, sizeof(text), fmt, args);
    va_end(args);

    hwkv_copy(err->msg, sizeof(err->msg), text);
    one_line(err->msg);
    one_line(err->path);
    return code;
}

char * hwkv_error_format(const struct hwkv_error * err, char * buf, size_t buf_size) {
    if (buf_size == 0) {
        return buf;
    }
    if (err->path[0]) {
        snprintf(buf, buf_size, "%s: %s", err->path, err->msg);
    } else if (err->line > 0) {
        snprintf(buf, buf_size, "line %u, column %u: %s", (unsigned) err->line, (unsigned) err->column, err->msg);
    } else {
        snprintf(buf, buf_size, "%s", err->msg);
    }
    return buf;
}
