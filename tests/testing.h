// Checks for plain C test programs: a failed check is printed and counted, main returns testing_result().

#ifndef TESTING_H
#define TESTING_H

#include <math.h>
#include <stdio.h>
#include <string.h>

static int testing_n_checks = 0;
static int testing_n_failed = 0;

static inline void testing_report(int ok, const char * file, int line, const char * what) {
    testing_n_checks++;
    if (!ok) {
        testing_n_failed++;
        fprintf(stderr, "%s:%d: check failed: %s\n", file, line, what);
    }
}

#define CHECK(cond) testing_report(!!(cond), __FILE__, __LINE__, #cond)

#define CHECK_EQ_INT(a, b)                                                                              \
    do {                                                                                                \
        const long long testing_a = (long long) (a);                                                    \
        const long long testing_b = (long long) (b);                                                    \
        testing_report(testing_a == testing_b, __FILE__, __LINE__, #a " == " #b);                       \
        if (testing_a != testing_b) {                                                                   \
            fprintf(stderr, "    found %lld, expected %lld\n", testing_a, testing_b);                   \
        }                                                                                               \
    } while (0)

#define CHECK_STR(a, b)                                                                                 \
    do {                                                                                                \
        const char * testing_a = (a);                                                                   \
        const char * testing_b = (b);                                                                   \
        const int    testing_ok = testing_a && testing_b && strcmp(testing_a, testing_b) == 0;          \
        testing_report(testing_ok, __FILE__, __LINE__, #a " == " #b);                                   \
        if (!testing_ok) {                                                                              \
            fprintf(stderr, "    found \"%s\", expected \"%s\"\n", testing_a ? testing_a : "(null)",    \
                    testing_b ? testing_b : "(null)");                                                  \
        }                                                                                               \
    } while (0)

#define CHECK_NEAR(a, b, eps)                                                                           \
    do {                                                                                                \
        const double testing_a = (a);                                                                   \
        const double testing_b = (b);                                                                   \
        const int    testing_ok = fabs(testing_a - testing_b) <= (eps);                                 \
        testing_report(testing_ok, __FILE__, __LINE__, #a " near " #b);                                 \
        if (!testing_ok) {                                                                              \
            fprintf(stderr, "    found %.17g, expected %.17g\n", testing_a, testing_b);                 \
        }                                                                                               \
    } while (0)

// the call must return this error code
#define CHECK_ERR(call, code) CHECK_EQ_INT(call, code)

// a program without a single check has not tested anything
static inline int testing_result(void) {
    printf("%d checks, %d failed\n", testing_n_checks, testing_n_failed);
    return testing_n_failed > 0 || testing_n_checks == 0;
}

#endif // TESTING_H
