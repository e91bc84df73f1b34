// Trees that are built, printed and read again.

#include "hwkv-json.h"
#include "testing.h"

#include <stdlib.h>

static void check_print(struct hwkv_json * node, const char * pretty, const char * compact) {
    char * text = NULL;
    CHECK(node != NULL);
    CHECK_EQ_INT(hwkv_json_print_compact(&text, node, NULL), 0);
    CHECK_STR(text, compact);
    hwkv_string_free(text);
    CHECK_EQ_INT(hwkv_json_print(&text, node, NULL), 0);
    CHECK_STR(text, pretty);

    // what is printed is read again as the same, apart from digits that a double has no room for
    struct hwkv_json * again = hwkv_json_new_parsed(text);
    CHECK(again != NULL);
    CHECK_EQ_INT(hwkv_json_type(again), hwkv_json_type(node));
    hwkv_string_free(text);
    if (hwkv_json_type(node) != HWKV_JSON_NUMBER) {
        CHECK_EQ_INT(hwkv_json_print(&text, again, NULL), 0);
        CHECK_STR(text, pretty);
        hwkv_string_free(text);
    } else {
        CHECK_NEAR(hwkv_json_number(again), hwkv_json_number(node), 0.0);
    }
    hwkv_json_free(again);
    hwkv_json_free(node);
}

static void check_value(struct hwkv_json * node, const char * expected) {
    char pretty[64];
    snprintf(pretty, sizeof(pretty), "%s\n", expected);
    check_print(node, pretty, expected);
}

static void test_json__values(void) {
    check_value(hwkv_json_new_null(), "null");
    check_value(hwkv_json_new_bool(true), "true");
    check_value(hwkv_json_new_bool(false), "false");
    check_value(hwkv_json_new_object(), "{}");
    check_value(hwkv_json_new_array(), "[]");
    check_value(hwkv_json_new_string(""), "\"\"");
    check_value(hwkv_json_new_string("a\"b\\c/\n\t\x1f\x7f\xc3\xa9"), "\"a\\\"b\\\\c/\\u000a\\u0009\\u001f\x7f\xc3\xa9\"");
}

static void test_json__numbers(void) {
    check_value(hwkv_json_new_number(0.0), "0");
    check_value(hwkv_json_new_number(-0.0), "0");
    check_value(hwkv_json_new_number(-17.0), "-17");
    check_value(hwkv_json_new_number(0.1), "0.1");
    check_value(hwkv_json_new_number(1.0 / 3.0), "0.3333333333333333");
    check_value(hwkv_json_new_number(0.1 + 0.2), "0.30000000000000004");
    check_value(hwkv_json_new_number(1e300), "1e+300");
    check_value(hwkv_json_new_number((double) NAN), "null");
    check_value(hwkv_json_new_number((double) INFINITY), "null");
    check_value(hwkv_json_new_number(-(double) INFINITY), "null");
}

static void test_json__integers_keep_their_digits(void) {
    check_value(hwkv_json_new_int(0), "0");
    check_value(hwkv_json_new_int(-1), "-1");
    check_value(hwkv_json_new_int(999999999999999), "999999999999999");
    check_value(hwkv_json_new_int(1000000000000000), "1000000000000000");
    check_value(hwkv_json_new_int(-1000000000000000), "-1000000000000000");
    check_value(hwkv_json_new_int(INT64_MAX), "9223372036854775807");
    check_value(hwkv_json_new_int(INT64_MIN), "-9223372036854775808");
    check_value(hwkv_json_new_uint(0), "0");
    check_value(hwkv_json_new_uint(9007199254740993), "9007199254740993"); // between two doubles
    check_value(hwkv_json_new_uint(UINT64_MAX), "18446744073709551615");
    struct hwkv_json * node = hwkv_json_new_int(INT64_MIN);
    CHECK_EQ_INT(hwkv_json_type(node), HWKV_JSON_NUMBER);
    CHECK_NEAR(hwkv_json_number(node), -0x1p63, 0.0);
    hwkv_json_free(node);
}

static void test_json__trees(void) {
    struct hwkv_json * row = hwkv_json_new_array();
    CHECK(hwkv_json_append(row, hwkv_json_new_number(1)) && hwkv_json_append(row, hwkv_json_new_string("full")));
    struct hwkv_json * rows = hwkv_json_new_array();
    CHECK(hwkv_json_append(rows, row));
    struct hwkv_json * root = hwkv_json_new_object();
    CHECK(hwkv_json_add(root, "n", hwkv_json_new_uint(3)) && hwkv_json_add(root, "rows", rows) && hwkv_json_add(root, "none", hwkv_json_new_null()) &&
          hwkv_json_add(root, "kept", hwkv_json_new_parsed("{\"a\": [true, {\"b\": 1.50}]}")));
    check_print(root,
                "{\n  \"n\": 3,\n  \"rows\": [\n    [1,\"full\"]\n  ],\n  \"none\": null,\n  \"kept\": {\n    \"a\": [\n      true,\n      {\"b\": 1.5}\n    ]\n  }\n}\n",
                "{\"n\":3,\"rows\":[[1,\"full\"]],\"none\":null,\"kept\":{\"a\":[true,{\"b\":1.5}]}}");
}

// A failure anywhere in a chain of calls leaks nothing and is seen at its end.
static void test_json__failures(void) {
    CHECK(hwkv_json_new_parsed("{\"a\": }") == NULL);
    CHECK(hwkv_json_new_parsed("") == NULL);
    CHECK(!hwkv_json_add(NULL, "a", hwkv_json_new_null()));
    CHECK(!hwkv_json_append(NULL, hwkv_json_new_string("x")));
    struct hwkv_json * node = hwkv_json_new_object();
    CHECK(!hwkv_json_add(node, "a", NULL));
    hwkv_json_free(node);
    node = hwkv_json_new_array();
    CHECK(!hwkv_json_append(node, NULL));
    hwkv_json_free(node);
    hwkv_json_free(NULL);
}

static void test_json__reads(void) {
    static const char text[] = "{\"a\": null, \"b\": [1, 2.5, \"x\"], \"c\": true, \"d\": false, \"e\": {}}";
    struct hwkv_json * root = NULL;
    CHECK_EQ_INT(hwkv_json_parse(&root, text, strlen(text), NULL), 0);
    CHECK_EQ_INT(hwkv_json_type(root), HWKV_JSON_OBJECT);
    CHECK_EQ_INT(hwkv_json_size(root), 5);
    CHECK_EQ_INT(hwkv_json_type(hwkv_json_get(root, "a")), HWKV_JSON_NULL);
    CHECK(hwkv_json_is_true(hwkv_json_get(root, "c")) && !hwkv_json_is_true(hwkv_json_get(root, "d")));
    CHECK(hwkv_json_get(root, "A") == NULL);
    const struct hwkv_json * b = hwkv_json_get(root, "b");
    CHECK_STR(hwkv_json_key(b), "b");
    CHECK_EQ_INT(hwkv_json_size(b), 3);
    const struct hwkv_json * it = hwkv_json_child(b);
    CHECK_NEAR(hwkv_json_number(it), 1.0, 0.0);
    it = hwkv_json_next(it);
    CHECK_NEAR(hwkv_json_number(it), 2.5, 0.0);
    it = hwkv_json_next(it);
    CHECK_STR(hwkv_json_string(it), "x");
    CHECK(hwkv_json_next(it) == NULL);
    CHECK_STR(hwkv_json_type_name(hwkv_json_type(b)), "an array");
    hwkv_json_free(root);
}

//
// memory
//

static long g_live;
static long g_left;

static void * alloc_few(size_t size) {
    if (g_left-- <= 0) {
        return NULL;
    }
    g_live++;
    return malloc(size);
}

static void free_counted(void * ptr) {
    g_live--;
    free(ptr);
}

static int build(void) {
    struct hwkv_json * root = hwkv_json_new_object();
    struct hwkv_json * list = hwkv_json_new_array();
    char * text = NULL;
    bool   ok   = hwkv_json_append(list, hwkv_json_new_uint(UINT64_MAX)) && hwkv_json_append(list, hwkv_json_new_string("x")) &&
                  hwkv_json_append(list, hwkv_json_new_bool(true)) && hwkv_json_append(list, hwkv_json_new_null());
    ok = hwkv_json_add(root, "list", list) && ok && hwkv_json_add(root, "kept", hwkv_json_new_parsed("{\"a\":[1]}"));
    const int status = ok ? hwkv_json_print(&text, root, NULL) : HWKV_ERR_NOMEM;
    CHECK((status == 0) == (text != NULL));
    hwkv_string_free(text);
    hwkv_json_free(root);
    return status;
}

static void test_json__out_of_memory(void) {
    hwkv_set_allocator(alloc_few, free_counted);
    int status = HWKV_ERR_NOMEM;
    for (long n = 0; status != 0 && n < 100; n++) {
        g_left = n;
        status = build();
        CHECK(status == 0 || status == HWKV_ERR_NOMEM);
        CHECK_EQ_INT(g_live, 0);
    }
    CHECK_EQ_INT(status, 0);
    hwkv_set_allocator(NULL, NULL);
}

int main(void) {
    test_json__values();
    test_json__numbers();
    test_json__integers_keep_their_digits();
    test_json__trees();
    test_json__failures();
    test_json__reads();
    test_json__out_of_memory();
    return testing_result();
}
