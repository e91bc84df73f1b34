// How entries are spelled: what is read, what is written, and what is refused with which words.

#include "hwkv.h"
#include "testing.h"

#define TYPES "expected types of f32, f16, bf16, q8_0, q4_0, q4_1, q5_0, q5_1 or iq4_nl"
#define COUNT "expected a positive 32-bit integer or full, and types after a colon as in 256:q8_0"

static void test_entry__reads_what_it_writes(void) {
    static const int32_t windows[] = { 1, 9, 10, 256, 65536, HWKV_FULL - 1, HWKV_FULL };
    char buf[HWKV_ENTRY_SIZE];
    for (size_t i = 0; i < sizeof(windows) / sizeof(windows[0]); i++) {
        for (int k = HWKV_TYPE_CACHE; k < HWKV_TYPE_COUNT; k++) {
            for (int v = HWKV_TYPE_CACHE; v < HWKV_TYPE_COUNT; v++) {
                if ((k == HWKV_TYPE_CACHE) != (v == HWKV_TYPE_CACHE)) {
                    continue; // no codebook has such
                }
                const struct hwkv_entry entry = { windows[i], (enum hwkv_type) k, (enum hwkv_type) v };
                struct hwkv_entry found = { 0 };
                struct hwkv_error err   = { 0 };
                CHECK(hwkv_entry_format(&entry, buf) == buf);
                CHECK_EQ_INT(hwkv_entry_parse(&found, buf, &err), 0);
                CHECK(found.window == entry.window && found.type_k == entry.type_k && found.type_v == entry.type_v);
            }
        }
    }
}

static void check_spelling(const char * text, int32_t window, enum hwkv_type type_k, enum hwkv_type type_v) {
    struct hwkv_entry entry = { 0 };
    struct hwkv_error err   = { 0 };
    char buf[HWKV_ENTRY_SIZE];
    CHECK_EQ_INT(hwkv_entry_parse(&entry, text, &err), 0);
    CHECK(entry.window == window && entry.type_k == type_k && entry.type_v == type_v);
    CHECK_STR(hwkv_entry_format(&entry, buf), text);
}

static void test_entry__spellings(void) {
    check_spelling("256", 256, HWKV_TYPE_CACHE, HWKV_TYPE_CACHE);
    check_spelling("full", HWKV_FULL, HWKV_TYPE_CACHE, HWKV_TYPE_CACHE);
    check_spelling("256:q8_0", 256, HWKV_TYPE_Q8_0, HWKV_TYPE_Q8_0);
    check_spelling("1024:q8_0/q4_0", 1024, HWKV_TYPE_Q8_0, HWKV_TYPE_Q4_0);
    check_spelling("full:f16", HWKV_FULL, HWKV_TYPE_F16, HWKV_TYPE_F16);
    check_spelling("full:iq4_nl/bf16", HWKV_FULL, HWKV_TYPE_IQ4_NL, HWKV_TYPE_BF16);
}

// What only a message shows is told apart too, and fits.
static void test_entry__impossible_ones_have_names(void) {
    char buf[HWKV_ENTRY_SIZE];
    CHECK_STR(hwkv_entry_format(&(struct hwkv_entry) { 256, HWKV_TYPE_CACHE, HWKV_TYPE_Q8_0 }, buf), "256:-/q8_0");
    CHECK_STR(hwkv_entry_format(&(struct hwkv_entry) { 256, HWKV_TYPE_Q8_0, HWKV_TYPE_CACHE }, buf), "256:q8_0/-");
    CHECK_STR(hwkv_entry_format(&(struct hwkv_entry) { INT32_MIN, HWKV_TYPE_COUNT, HWKV_TYPE_F16 }, buf), "-2147483648:?/f16");
}

static void test_entry__refuses(void) {
    static const struct {
        const char * text;
        int          code;
        const char * msg;
    } bad[] = {
        { "",                   HWKV_ERR_VALUE, "found \"\", " COUNT },
        { "Full",               HWKV_ERR_VALUE, "found \"Full\", " COUNT },
        { "fulll",              HWKV_ERR_VALUE, "found \"fulll\", " COUNT },
        { "ful:f16",            HWKV_ERR_VALUE, "found \"ful:f16\", " COUNT },
        { ":f16",               HWKV_ERR_VALUE, "found \":f16\", " COUNT },
        { "-1",                 HWKV_ERR_VALUE, "found \"-1\", " COUNT },
        { "+1:f16",             HWKV_ERR_VALUE, "found \"+1:f16\", " COUNT },
        { " 1",                 HWKV_ERR_VALUE, "found \" 1\", " COUNT },
        { "1 ",                 HWKV_ERR_VALUE, "found \"1 \", " COUNT },
        { "01",                 HWKV_ERR_VALUE, "found \"01\", " COUNT },
        { "1.0:f16",            HWKV_ERR_VALUE, "found \"1.0:f16\", " COUNT },
        { "0",                  HWKV_ERR_RANGE, "found \"0\", " COUNT },
        { "0:f16",              HWKV_ERR_RANGE, "found \"0:f16\", " COUNT },
        { "2147483647",         HWKV_ERR_RANGE, "found \"2147483647\", " COUNT },
        { "18446744073709551872:f16", HWKV_ERR_RANGE, "found \"18446744073709551872:f16\", " COUNT },
        { "256:",               HWKV_ERR_VALUE, "found \"256:\", " TYPES },
        { "256:q8",             HWKV_ERR_VALUE, "found \"256:q8\", " TYPES },
        { "256:q8_0 ",          HWKV_ERR_VALUE, "found \"256:q8_0 \", " TYPES },
        { "256:F16",            HWKV_ERR_VALUE, "found \"256:F16\", " TYPES },
        { "256:f16/",           HWKV_ERR_VALUE, "found \"256:f16/\", " TYPES },
        { "256:/f16",           HWKV_ERR_VALUE, "found \"256:/f16\", " TYPES },
        { "256:f16/q8_0/q4_0",  HWKV_ERR_VALUE, "found \"256:f16/q8_0/q4_0\", " TYPES },
        { "256:f16:q8_0",       HWKV_ERR_VALUE, "found \"256:f16:q8_0\", " TYPES },
        { "256:q8_0/q8_0",      HWKV_ERR_VALUE, "found \"256:q8_0/q8_0\", expected 256:q8_0" },
        { "full:f16/f16",       HWKV_ERR_VALUE, "found \"full:f16/f16\", expected full:f16" },
        { "256:aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", HWKV_ERR_VALUE,
          "found \"256:aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa...\", " TYPES },
    };
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        struct hwkv_entry entry = { 7, HWKV_TYPE_F32, HWKV_TYPE_F32 };
        struct hwkv_error err   = { 0 };
        CHECK_ERR(hwkv_entry_parse(&entry, bad[i].text, &err), bad[i].code);
        CHECK_EQ_INT(err.code, bad[i].code);
        CHECK_STR(err.msg, bad[i].msg);
        CHECK(entry.window == 7 && entry.type_k == HWKV_TYPE_F32); // as it was
    }
    struct hwkv_entry entry;
    CHECK_ERR(hwkv_entry_parse(&entry, NULL, NULL), HWKV_ERR_ARG);
    CHECK_ERR(hwkv_entry_parse(NULL, "256", NULL), HWKV_ERR_ARG);
}

int main(void) {
    test_entry__reads_what_it_writes();
    test_entry__spellings();
    test_entry__impossible_ones_have_names();
    test_entry__refuses();
    return testing_result();
}
