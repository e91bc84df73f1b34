#include "tool-json.h"

#include "tool-print.h"

#include "hwkv.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct hwkv_json * tool_json_text(const char * text) {
    if (!text) {
        return hwkv_json_new_null();
    }
    char * copy = strdup(text);
    if (!copy) {
        return NULL;
    }
    tool_make_utf8(copy);
    struct hwkv_json * node = hwkv_json_new_string(copy);
    free(copy);
    return node;
}

struct hwkv_json * tool_json_measure(double value) {
    char text[32];
    snprintf(text, sizeof(text), "%.9g", value);
    return hwkv_json_new_number(strtod(text, NULL));
}

static bool put(FILE * out, struct hwkv_json * node, int (*print)(char **, const struct hwkv_json *, struct hwkv_error *), const char * end) {
    char     * text = NULL;
    const bool ok   = node && print(&text, node, NULL) == HWKV_OK && fprintf(out, "%s%s", text, end) >= 0;
    hwkv_string_free(text);
    hwkv_json_free(node);
    return ok;
}

bool tool_json_print(FILE * out, struct hwkv_json * node) {
    return put(out, node, hwkv_json_print, "");
}

bool tool_json_print_line(FILE * out, struct hwkv_json * node) {
    return put(out, node, hwkv_json_print_compact, "\n");
}

const struct hwkv_json * tool_json_member(const struct hwkv_json * node, const char * key) {
    return node && hwkv_json_type(node) == HWKV_JSON_OBJECT ? hwkv_json_get(node, key) : NULL;
}

double tool_json_number(const struct hwkv_json * node) {
    return node && hwkv_json_type(node) == HWKV_JSON_NUMBER ? hwkv_json_number(node) : (double) NAN;
}
