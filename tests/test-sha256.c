#include "hwkv.h"
#include "testing.h"

#include <stdlib.h>

static void hash(const char * text, size_t size, size_t piece, char hex[65]) {
    struct hwkv_sha256 s;
    hwkv_sha256_init(&s);
    for (size_t at = 0; at < size; at += piece) {
        hwkv_sha256_update(&s, text + at, size - at < piece ? size - at : piece);
    }
    hwkv_sha256_final(&s, hex);
}

// the examples of FIPS 180-4's companion document
static void test_sha256__known_answers(void) {
    char hex[65];
    hash("", 0, 1, hex);
    CHECK_STR(hex, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    hash("abc", 3, 3, hex);
    CHECK_STR(hex, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    const char * two = "abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq";
    hash(two, strlen(two), 7, hex);
    CHECK_STR(hex, "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
}

static void test_sha256__million_in_any_pieces(void) {
    const size_t n = 1000000;
    char * text = malloc(n);
    memset(text, 'a', n);
    const size_t pieces[] = { 1000000, 63, 64, 65, 1 };
    for (size_t i = 0; i < sizeof(pieces) / sizeof(pieces[0]); i++) {
        char hex[65];
        hash(text, n, pieces[i], hex);
        CHECK_STR(hex, "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
    }
    free(text);
}

static void test_sha256__fields_do_not_run_together(void) {
    struct hwkv_sha256 s;
    char a[65];
    char b[65];
    hwkv_sha256_init(&s);
    hwkv_sha256_string(&s, "ab");
    hwkv_sha256_string(&s, "c");
    hwkv_sha256_final(&s, a);
    hwkv_sha256_init(&s);
    hwkv_sha256_string(&s, "a");
    hwkv_sha256_string(&s, "bc");
    hwkv_sha256_final(&s, b);
    CHECK(strcmp(a, b) != 0);
}

int main(void) {
    test_sha256__known_answers();
    test_sha256__million_in_any_pieces();
    test_sha256__fields_do_not_run_together();
    return testing_result();
}
