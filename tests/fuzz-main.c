// A driver for fuzz targets that needs no libFuzzer. An input depends on the seed and its number alone, so that
// any of them can be made again.
//
// usage: fuzz-NAME [--seconds N] [--seed S] [--only NUMBER] [DIR...]

// clock_gettime and sigaction
#define _POSIX_C_SOURCE 200809L

#include "fuzz.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static uint64_t g_seed   = 1;
static uint64_t g_number = 0;
static volatile sig_atomic_t g_stop;

//
// random numbers: splitmix64, started anew for every input
//

static uint64_t g_state;

uint64_t fuzz_random(void) {
    uint64_t z = (g_state += 0x9E3779B97F4A7C15u);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

size_t fuzz_below(size_t n) {
    return n > 0 ? (size_t) (fuzz_random() % n) : 0;
}

static void make_input(struct fuzz_input * in, uint64_t number) {
    g_state = g_seed * 0xD1342543DE82EF95u + number;
    fuzz_make(in, number);
}

// in a buffer of exactly its size, so that ASan sees a read past the end
static void run_input(const struct fuzz_input * in) {
    uint8_t * data = malloc(in->size > 0 ? in->size : 1);
    if (!data) {
        fprintf(stderr, "%s: cannot get %zu bytes\n", fuzz_name, in->size);
        exit(1);
    }
    memcpy(data, in->data, in->size);
    LLVMFuzzerTestOneInput(data, in->size);
    free(data);
}

//
// the program
//

// Says how to get the input again. Called from a signal handler: write and nothing else.
static void print_number(void) {
    char   text[160];
    char * p = text + sizeof(text);
    *--p = '\n';
    for (uint64_t v = g_number, first = 1; v > 0 || first; v /= 10, first = 0) {
        *--p = (char) ('0' + v % 10);
    }
    static const char only[] = " --only ";
    p -= sizeof(only) - 1;
    memcpy(p, only, sizeof(only) - 1);
    for (uint64_t v = g_seed, first = 1; v > 0 || first; v /= 10, first = 0) {
        *--p = (char) ('0' + v % 10);
    }
    static const char head[] = ": the input is printed and run again with --seed ";
    p -= sizeof(head) - 1;
    memcpy(p, head, sizeof(head) - 1);
    p -= strlen(fuzz_name);
    memcpy(p, fuzz_name, strlen(fuzz_name));
    if (write(STDERR_FILENO, p, (size_t) (text + sizeof(text) - p)) < 0) {
        _exit(1);
    }
}

static void on_crash(int signal_number) {
    if (signal_number == SIGALRM) {
        static const char slow[] = "an input takes over a minute\n";
        if (write(STDERR_FILENO, slow, sizeof(slow) - 1) < 0) {
            _exit(1);
        }
    }
    print_number();
    _exit(1);
}

static void on_interrupt(int signal_number) {
    (void) signal_number;
    g_stop = 1;
}

// Sanitizers ask for these. Their findings are to end in SIGABRT, so that on_crash sees them too.
const char * __asan_default_options(void);
const char * __ubsan_default_options(void);

const char * __asan_default_options(void) {
    return "abort_on_error=1";
}

const char * __ubsan_default_options(void) {
    return "abort_on_error=1:print_stacktrace=1";
}

static void set_handlers(void) {
    static const int crashes[] = { SIGABRT, SIGALRM, SIGSEGV, SIGBUS, SIGFPE };
    for (size_t i = 0; i < sizeof(crashes) / sizeof(crashes[0]); i++) {
        // a sanitizer that has taken a signal has more to say and aborts after it
        struct sigaction crash = { .sa_handler = on_crash };
        struct sigaction old;
        if (sigaction(crashes[i], NULL, &old) == 0 && old.sa_handler == SIG_DFL) {
            sigaction(crashes[i], &crash, NULL);
        }
    }
    struct sigaction stop = { .sa_handler = on_interrupt };
    sigaction(SIGINT, &stop, NULL);
    sigaction(SIGTERM, &stop, NULL);
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double) t.tv_sec + 1e-9 * (double) t.tv_nsec;
}

static int run_all(double seconds) {
    static struct fuzz_input in;
    const double start = now();
    double       said  = start;
    for (g_number = 0; !g_stop; g_number++) {
        if (g_number % 256 == 0) {
            alarm(60);
            const double t = now();
            if (t - start >= seconds && g_number >= fuzz_n_seeds()) {
                break;
            }
            if (t - said >= 10.0) {
                said = t;
                fprintf(stderr, "%s: %.0f s, %llu inputs, %llu good\n", fuzz_name, t - start, (unsigned long long) g_number,
                        (unsigned long long) fuzz_n_good);
            }
        }
        make_input(&in, g_number);
        run_input(&in);
    }
    printf("seed %llu, %.0f s: %llu inputs, %llu of them %s\n", (unsigned long long) g_seed, now() - start, (unsigned long long) g_number,
           (unsigned long long) fuzz_n_good, fuzz_inputs);
    if (fuzz_n_good == 0 || fuzz_n_good == g_number) {
        fprintf(stderr, "%s: found %s %s, expected good and bad inputs\n", fuzz_name, fuzz_n_good ? "only" : "no", fuzz_inputs);
        return 1;
    }
    return 0;
}

static int usage(void) {
    fprintf(stderr, "usage: %s [--seconds N] [--seed S] [--only NUMBER] [DIR...]\n", fuzz_name);
    return 2;
}

// a plain number and nothing after it
static bool read_option(const char * text, uint64_t * value) {
    char * end = NULL;
    errno = 0;
    *value = text && text[0] >= '0' && text[0] <= '9' ? strtoull(text, &end, 10) : 0;
    return end && *end == '\0' && errno == 0;
}

int main(int argc, char ** argv) {
    uint64_t seconds = 10;
    uint64_t only    = 0;
    bool     has_only = false;
    int      i        = 1;
    for (; i < argc && strncmp(argv[i], "--", 2) == 0; i++) {
        uint64_t * value = strcmp(argv[i], "--seconds") == 0 ? &seconds : strcmp(argv[i], "--seed") == 0 ? &g_seed : NULL;
        if (strcmp(argv[i], "--only") == 0) {
            value    = &only;
            has_only = true;
        }
        i++;
        if (!value || i >= argc || !read_option(argv[i], value)) {
            return usage();
        }
    }
    if (!fuzz_begin(argc - i, argv + i)) {
        return usage();
    }
    set_handlers();
    int status = 0;
    if (has_only) {
        static struct fuzz_input in;
        g_number = only;
        make_input(&in, only);
        fwrite(in.data, 1, in.size, stdout);
        fflush(stdout);
        run_input(&in);
    } else {
        status = run_all((double) seconds);
    }
    fuzz_end();
    return status;
}
