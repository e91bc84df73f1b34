#include "hwkv-impl.h"

#include <stdarg.h>
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
    vsnprintf(text, sizeof(text), fmt, args);
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
