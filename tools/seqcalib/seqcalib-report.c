// The page is report.html with the title, the policy's JSON and report.js put in. Both files are embedded by embed.cmake.

#include "seqcalib-report.h"

#include "hwkv-error.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

extern const char sc_report_html_text[];
extern const char sc_report_js_text[];

// Both write every byte of text that is markup to somebody as something that is not.

static void put_html(FILE * file, const char * text) {
    for (; *text; text++) {
        switch (*text) {
            case '&': fputs("&amp;",  file); break;
            case '<': fputs("&lt;",   file); break;
            case '>': fputs("&gt;",   file); break;
            case '"': fputs("&quot;", file); break;
            default:  fputc(*text,    file); break;
        }
    }
}

// In JSON a '<' is always inside a string, where it may be written as an escape: no </script> and no <!-- can appear.
static void put_json(FILE * file, const char * text) {
    for (const char * p; (p = strchr(text, '<')); text = p + 1) {
        fwrite(text, 1, (size_t) (p - text), file);
        fputs("\\u003c", file);
    }
    fputs(text, file);
}

static void put_title(FILE * file, const struct hwkv_policy * policy) {
    const struct hwkv_geometry * geo = hwkv_policy_geometry(policy);
    fputs("Head windows of ", file);
    put_html(file, geo->name[0] ? geo->name : geo->architecture);
}

// The template up to the marker; returns what follows it, or NULL when the template lacks it.
static const char * put_until(FILE * file, const char * text, const char * marker) {
    const char * at = text ? strstr(text, marker) : NULL;
    if (!at) {
        return NULL;
    }
    fwrite(text, 1, (size_t) (at - text), file);
    return at + strlen(marker);
}

static int put_page(FILE * file, const struct hwkv_policy * policy, const char * json, struct hwkv_error * err) {
    const char * rest = put_until(file, sc_report_html_text, "{{title}}");
    put_title(file, policy);
    rest = put_until(file, rest, "{{policy}}");
    put_json(file, json);
    rest = put_until(file, rest, "{{script}}");
    fputs(sc_report_js_text, file);
    if (!rest) {
        return hwkv_fail(err, HWKV_ERR_INTERNAL, NULL, "report.html lacks a marker, expected {{title}}, {{policy}} and {{script}} in this order");
    }
    fputs(rest, file);
    return 0;
}

int sc_report_html(const char * path, const struct hwkv_policy * policy, struct hwkv_error * err) {
    if (!path || !path[0]) {
        return hwkv_fail(err, HWKV_ERR_ARG, NULL, "expected a path to write to");
    }
    if (!policy) {
        return hwkv_fail(err, HWKV_ERR_ARG, NULL, "found NULL, expected a policy");
    }
    char * json = NULL;
    int status = hwkv_policy_print(&json, policy, err);
    if (status != 0) {
        return status;
    }

    char * page = NULL;
    size_t size = 0;
    FILE * file = open_memstream(&page, &size);
    if (file) {
        status = put_page(file, policy, json, err);
    }
    if (!file || fclose(file) != 0) {
        status = hwkv_fail(err, HWKV_ERR_NOMEM, NULL, "out of memory");
    }
    if (status == 0) {
        status = hwkv_file_write(path, page, err);
    }
    free(page);
    hwkv_string_free(json);
    return status;
}
