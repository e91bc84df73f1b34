// The error filler, and what it makes of text.

#include "hwkv-error.h"
#include "testing.h"

static void test_fail__fills_an_error(void) {
    struct hwkv_error err;
    memset(&err, 0xA5, sizeof(err));
    CHECK_ERR(hwkv_fail(&err, HWKV_ERR_RANGE, "$.sinks", "found %d, expected %s", 7, "less"), HWKV_ERR_RANGE);
    CHECK_EQ_INT(err.code, HWKV_ERR_RANGE);
    CHECK_EQ_INT(err.line, 0);
    CHECK_EQ_INT(err.column, 0);
    CHECK_STR(err.path, "$.sinks");
    CHECK_STR(err.msg, "found 7, expected less");
    CHECK_ERR(hwkv_fail(&err, HWKV_ERR_IO, NULL, "no path"), HWKV_ERR_IO);
    CHECK_STR(err.path, "");
    CHECK_ERR(hwkv_fail(NULL, HWKV_ERR_IO, "$", "nobody asks"), HWKV_ERR_IO);
}

static void test_fail__is_one_line_of_whole_characters(void) {
    struct hwkv_error err;
    hwkv_fail(&err, HWKV_ERR_VALUE, "$.a\tb", "one\ntwo\r\x01three\x7f");
    CHECK_STR(err.path, "$.a b");
    CHECK_STR(err.msg, "one two  three ");
    // characters of three bytes, from every offset
    char text[2000];
    for (size_t n = 0; n < 3; n++) {
        memset(text, 'x', n);
        for (size_t i = n; i + 3 < sizeof(text); i += 3) {
            memcpy(text + i, "\xe2\x82\xac", 4);
        }
        hwkv_fail(&err, HWKV_ERR_VALUE, text, "%s", text);
        CHECK(hwkv_is_utf8(err.msg) && hwkv_is_utf8(err.path));
        CHECK(strlen(err.msg) > sizeof(err.msg) - 4 && strlen(err.path) > sizeof(err.path) - 4);
    }
}

static void test_copy__cuts_at_a_character(void) {
    char buf[8];
    hwkv_copy(buf, sizeof(buf), "fits in");
    CHECK_STR(buf, "fits in");
    hwkv_copy(buf, sizeof(buf), "does not");
    CHECK_STR(buf, "does no");
    hwkv_copy(buf, sizeof(buf), "five-\xe2\x82\xac");
    CHECK_STR(buf, "five-");
    hwkv_copy(buf, 1, "nothing");
    CHECK_STR(buf, "");
}

static void test_quote__tells_that_it_cut(void) {
    char buf[5 + 6];
    CHECK_STR(hwkv_quote(buf, "", 5), "\"\"");
    CHECK_STR(hwkv_quote(buf, "whole", 5), "\"whole\"");
    CHECK_STR(hwkv_quote(buf, "longer", 5), "\"longe...\"");
    CHECK_STR(hwkv_quote(buf, "abcd\xc3\xa9", 5), "\"abcd...\"");
}

// bytes of a code point
static size_t encode(char out[4], uint32_t c) {
    if (c < 0x80) {
        out[0] = (char) c;
        return 1;
    }
    const size_t n = c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
    for (size_t i = n - 1; i > 0; i--) {
        out[i] = (char) (0x80 | (c & 0x3F));
        c >>= 6;
    }
    out[0] = (char) ((0xF00 >> n & 0xFF) | c);
    return n;
}

// Every code point is a character of its length, and cut it is none. The other first bytes and pairs are none at all.
static void test_utf8__is_what_encoding_gives(void) {
    static bool pair[256][256]; // that begin a character
    bool all   = true;
    bool whole = true;
    for (uint32_t c = 0; c <= 0x10FFFF; c++) {
        char bytes[4];
        const size_t n         = encode(bytes, c);
        const bool   surrogate = c >= 0xD800 && c <= 0xDFFF;
        all   = all   && hwkv_utf8_length(bytes, n) == (surrogate ? 0 : n);
        whole = whole && hwkv_utf8_length(bytes, n - 1) == 0;
        if (n > 1 && !surrogate) {
            pair[(unsigned char) bytes[0]][(unsigned char) bytes[1]] = true;
        }
    }
    CHECK(all);
    CHECK(whole);
    for (int a = 0x80; a < 256; a++) {
        for (int b = 0; b < 256; b++) {
            const char bytes[4] = { (char) a, (char) b, '\x80', '\x80' };
            CHECK_EQ_INT(hwkv_utf8_length(bytes, 4) > 0, pair[a][b]);
        }
    }
    CHECK_EQ_INT(hwkv_utf8_length("\xe2\x82" "a", 3), 0);
    CHECK_EQ_INT(hwkv_utf8_length("\xf0\x9f\x98" "a", 4), 0);
    CHECK_EQ_INT(hwkv_utf8_length("", 0), 0);
    CHECK(hwkv_is_utf8(""));
    CHECK(hwkv_is_utf8("a\xc3\xa9\xf0\x9f\x98\x80"));
    CHECK(!hwkv_is_utf8("a\xc3\xa9\xf0\x9f\x98"));
    CHECK(!hwkv_is_utf8("caf\xe9"));
}

int main(void) {
    test_fail__fills_an_error();
    test_fail__is_one_line_of_whole_characters();
    test_copy__cuts_at_a_character();
    test_quote__tells_that_it_cut();
    test_utf8__is_what_encoding_gives();
    return testing_result();
}
