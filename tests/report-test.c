// Runs the HTML report and the statistics of a policy for tests/py/test_report.py.
//
//   report-test html POLICY OUT
//   report-test statistics POLICY [POINT]

#include "seqcalib-report.h"
#include "seqcalib-statistics.h"

#include <stdlib.h>
#include <string.h>

static int fail(const char * file, const struct hwkv_error * err) {
    char text[512];
    fprintf(stderr, "report-test: %s: %s\n", file, hwkv_error_format(err, text, sizeof(text)));
    return 1;
}

int main(int argc, char ** argv) {
    const bool html = argc == 4 && strcmp(argv[1], "html") == 0;
    if (!html && !((argc == 3 || argc == 4) && strcmp(argv[1], "statistics") == 0)) {
        fprintf(stderr, "usage: report-test html POLICY OUT | statistics POLICY [POINT]\n");
        return 2;
    }
    struct hwkv_error    err;
    struct hwkv_policy * policy = NULL;
    if (hwkv_policy_load(&policy, argv[2], &err)) {
        return fail(argv[2], &err);
    }
    int code = 0;
    if (html) {
        code = sc_report_html(argv[3], policy, &err) ? fail(argv[3], &err) : 0;
    } else {
        sc_statistics(stdout, policy, argc == 4 ? atoi(argv[3]) : -1);
    }
    hwkv_policy_free(policy);
    return code;
}
