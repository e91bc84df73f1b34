// A strict reader of JSON's grammar that builds nothing: it finds the first fault and says where it is.

#include "hwkv-impl.h"

#include <string.h>

struct scan {
    const unsigned char * text;
    size_t                size;
    size_t                at;
    struct hwkv_error   * err;
};

static int scan_fail(struct scan * s, int code, const char * msg) {
    hwkv_fail(s->err, code, NULL, "%s", msg);
    if (s->err) {
        s->err->line   = 1;
        s->err->column = 1;
        for (size_t i = 0; i < s->at && i < s->size; i++) {
            s->err->column++;
            if (s->text[i] == '\n') {
                s->err->line++;
                s->err->column = 1;
            }
        }
    }
    return code;
}

static int scan_unexpected(struct scan * s, const char * expected) {
    struct hwkv_error text;
    if (s->at >= s->size) {
        hwkv_fail(&text, HWKV_ERR_TRUNCATED, NULL, "the text ends early, expected %s", expected);
        return scan_fail(s, HWKV_ERR_TRUNCATED, text.msg);
    }
    const unsigned char c = s->text[s->at];
    char found[16];
    if (c > 0x20 && c < 0x7f) {
        found[0] = '\'';
        found[1] = (char) c;
        found[2] = '\'';
        found[3] = '\0';
    } else {
        static const char digits[] = "0123456789abcdef";
        memcpy(found, "byte 0x", 7);
        found[7] = digits[c >> 4];
        found[8] = digits[c & 15];
        found[9] = '\0';
    }
    hwkv_fail(&text, HWKV_ERR_PARSE, NULL, "found %s, expected %s", found, expected);
    return scan_fail(s, HWKV_ERR_PARSE, text.msg);
}

static int peek(const struct scan * s) {
    return s->at < s->size ? s->text[s->at] : -1;
}

static void skip_space(struct scan * s) {
    for (int c = peek(s); c == ' ' || c == '\n' || c == '\t' || c == '\r'; c = peek(s)) {
        s->at++;
    }
}

static bool is_digit(int c) {
    return c >= '0' && c <= '9';
}

static int hex_value(int c) {
    if (is_digit(c)) {
        return c - '0';
    }
    if (c >= 'a' && c <= 'f') {
        return c - 'a' + 10;
    }
    return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

// Four hex digits after \u; -1 with the error set.
static int scan_hex4(struct scan * s, int * status) {
    int value = 0;
    for (int i = 0; i < 4; i++) {
        const int v = hex_value(peek(s));
        if (v < 0) {
            *status = scan_unexpected(s, "four hex digits after \\u");
            return -1;
        }
        value = value * 16 + v;
        s->at++;
    }
    return value;
}

static int scan_unicode_escape(struct scan * s) {
    int status = 0;
    const int hi = scan_hex4(s, &status);
    if (status) {
        return status;
    }
    if (hi == 0) {
        return scan_fail(s, HWKV_ERR_PARSE, "found \\u0000, expected text without zero characters");
    }
    if (hi >= 0xDC00 && hi <= 0xDFFF) {
        return scan_fail(s, HWKV_ERR_PARSE, "found a low surrogate alone, expected a pair");
    }
    if (hi < 0xD800 || hi > 0xDBFF) {
        return 0;
    }
    if (s->at >= s->size || (s->text[s->at] == '\\' && s->at + 1 >= s->size)) {
        s->at = s->size;
        return scan_unexpected(s, "the second half of a surrogate pair");
    }
    if (peek(s) != '\\' || s->text[s->at + 1] != 'u') {
        return scan_fail(s, HWKV_ERR_PARSE, "found a high surrogate alone, expected a pair");
    }
    s->at += 2;
    const int lo = scan_hex4(s, &status);
    if (status) {
        return status;
    }
    if (lo < 0xDC00 || lo > 0xDFFF) {
        return scan_fail(s, HWKV_ERR_PARSE, "found a high surrogate alone, expected a pair");
    }
    return 0;
}

static int scan_string(struct scan * s) {
    s->at++; // the opening quote
    for (;;) {
        const int c = peek(s);
        if (c < 0) {
            return scan_unexpected(s, "the end of a string");
        }
        if (c < 0x20) {
            return scan_unexpected(s, "no control characters in a string");
        }
        s->at++;
        if (c == '"') {
            return 0;
        }
        if (c != '\\') {
            continue;
        }
        const int e = peek(s);
        if (e <= 0 || !strchr("\"\\/bfnrtu", e)) {
            return scan_unexpected(s, "an escape such as \\n or \\u0041");
        }
        s->at++;
        if (e == 'u') {
            const int status = scan_unicode_escape(s);
            if (status) {
                return status;
            }
        }
    }
}

static int scan_digits(struct scan * s) {
    if (!is_digit(peek(s))) {
        return scan_unexpected(s, "a digit");
    }
    while (is_digit(peek(s))) {
        s->at++;
    }
    return 0;
}

static int scan_number(struct scan * s) {
    const size_t start = s->at;
    int status = 0;
    if (peek(s) == '-') {
        s->at++;
        if (peek(s) == 'I' || peek(s) == 'N') {
            return scan_fail(s, HWKV_ERR_NOT_FINITE, "found a number that is not finite, expected a finite one");
        }
    }
    if (peek(s) == '0') {
        s->at++;
        if (is_digit(peek(s))) {
            return scan_unexpected(s, "no digit after a leading zero");
        }
    } else if ((status = scan_digits(s)) != 0) {
        return status;
    }
    if (peek(s) == '.') {
        s->at++;
        if ((status = scan_digits(s)) != 0) {
            return status;
        }
    }
    if (peek(s) == 'e' || peek(s) == 'E') {
        s->at++;
        if (peek(s) == '+' || peek(s) == '-') {
            s->at++;
        }
        if ((status = scan_digits(s)) != 0) {
            return status;
        }
    }
    // cJSON cuts longer numbers silently
    if (s->at - start > 60) {
        return scan_fail(s, HWKV_ERR_RANGE, "found a number of over 60 characters, expected a shorter one");
    }
    return 0;
}

static int scan_word(struct scan * s) {
    static const char * const words[] = { "true", "false", "null" };
    static const char * const bad[]   = { "NaN", "nan", "Infinity", "inf" };
    const size_t left = s->size - s->at;
    for (size_t i = 0; i < 3; i++) {
        const size_t n = strlen(words[i]);
        if (left >= n && memcmp(s->text + s->at, words[i], n) == 0) {
            s->at += n;
            return 0;
        }
        if (left < n && memcmp(s->text + s->at, words[i], left) == 0) {
            s->at = s->size;
            return scan_unexpected(s, words[i]);
        }
    }
    for (size_t i = 0; i < 4; i++) {
        const size_t n = strlen(bad[i]);
        if (left >= n && memcmp(s->text + s->at, bad[i], n) == 0) {
            return scan_fail(s, HWKV_ERR_NOT_FINITE, "found a number that is not finite, expected a finite one");
        }
    }
    return scan_unexpected(s, "a JSON value");
}

static int scan_scalar(struct scan * s) {
    const int c = peek(s);
    if (c == '"') {
        return scan_string(s);
    }
    if (c == '-' || is_digit(c)) {
        return scan_number(s);
    }
    return c < 0 ? scan_unexpected(s, "a JSON value") : scan_word(s);
}

// "key" :
static int scan_key(struct scan * s) {
    skip_space(s);
    if (peek(s) != '"') {
        return scan_unexpected(s, "a key in double quotes");
    }
    const int status = scan_string(s);
    if (status) {
        return status;
    }
    skip_space(s);
    if (peek(s) != ':') {
        return scan_unexpected(s, "':'");
    }
    s->at++;
    return 0;
}

// One value and, after it, all closing brackets and the comma that may follow. open[] is the stack of brackets.
static int scan_values(struct scan * s) {
    char open[HWKV_DEPTH_MAX];
    int  depth  = 0;
    int  status = 0;
    for (;;) {
        skip_space(s);
        const int c = peek(s);
        if (c == '{' || c == '[') {
            if (depth == HWKV_DEPTH_MAX) {
                return scan_fail(s, HWKV_ERR_TOO_DEEP, "found nesting deeper than 32, expected at most that");
            }
            open[depth++] = (char) c;
            s->at++;
            skip_space(s);
            if (peek(s) != (c == '{' ? '}' : ']')) {
                if (c == '{' && (status = scan_key(s)) != 0) {
                    return status;
                }
                continue;
            }
        } else if ((status = scan_scalar(s)) != 0) {
            return status;
        }
        for (;;) {
            if (depth == 0) {
                return 0;
            }
            const bool object = open[depth - 1] == '{';
            skip_space(s);
            const int next = peek(s);
            if (next == (object ? '}' : ']')) {
                s->at++;
                depth--;
                continue;
            }
            if (next != ',') {
                return scan_unexpected(s, object ? "',' or '}'" : "',' or ']'");
            }
            s->at++;
            if (object && (status = scan_key(s)) != 0) {
                return status;
            }
            break;
        }
    }
}

int hwkv_json_scan(const char * text, size_t size, struct hwkv_error * err) {
    struct scan s = { (const unsigned char *) text, size, 0, err };
    while (s.at < size) {
        // most text is ASCII: eight bytes at once
        uint64_t eight;
        if (size - s.at >= sizeof(eight)) {
            memcpy(&eight, s.text + s.at, sizeof(eight));
            if ((eight & 0x8080808080808080u) == 0) {
                s.at += sizeof(eight);
                continue;
            }
        }
        const size_t n = hwkv_utf8_length(text + s.at, size - s.at);
        if (n == 0) {
            return scan_fail(&s, HWKV_ERR_UTF8, "found bytes that are not UTF-8, expected UTF-8 text");
        }
        s.at += n;
    }
    s.at = 0;
    const int status = scan_values(&s);
    if (status) {
        return status;
    }
    skip_space(&s);
    return s.at == size ? 0 : scan_unexpected(&s, "the end of the text");
}
