// A driver for fuzz targets that needs no libFuzzer. An input depends on the seed and its number alone, so that
// any of them can be made again.
//
// usage: fuzz-policy [--seconds N] [--seed S] [--only NUMBER] DIR...

// scandir, clock_gettime and sigaction
#define _POSIX_C_SOURCE 200809L

#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

extern uint64_t fuzz_n_good;
int LLVMFuzzerTestOneInput(const uint8_t * data, size_t size);

#define SIZE_LIMIT 65536

struct file {
    uint8_t * data;
    size_t    size;
};

static struct file * g_files;
static size_t        g_n_files;
static size_t        g_dir_start[64]; // first file of each directory, and the end of the last
static size_t        g_n_dirs;
static uint64_t      g_seed   = 1;
static uint64_t      g_number = 0;
static volatile sig_atomic_t g_stop;

//
// random numbers: splitmix64, started anew for every input
//

static uint64_t g_state;

static uint64_t next_random(void) {
    uint64_t z = (g_state += 0x9E3779B97F4A7C15u);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

static size_t below(size_t n) {
    return n > 0 ? (size_t) (next_random() % n) : 0;
}

// Every directory is chosen as often, so that a few good files are not lost among many bad ones.
static size_t choose_file(void) {
    const size_t dir = below(g_n_dirs);
    return g_dir_start[dir] + below(g_dir_start[dir + 1] - g_dir_start[dir]);
}

//
// mutations
//

struct input {
    uint8_t data[SIZE_LIMIT];
    size_t  size;
};

static const char * const dictionary[] = {
    "{", "}", "[", "]", ",", ":", "\"", "\\", "\\u0000", "\\ud800", "\\udc00", "\\ud83d\\ude00", "\\n", "//", "\n", "\xff", "\xc3\xa9", "\xef\xbb\xbf",
    "true", "false", "null", "NaN", "Infinity", "-", "{}", "[]", "[[", "]]", "[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[", "\"full\"", "\"\"",
    "\"format\":", "\"version\":", "\"model\":", "\"context\":", "\"codebook\":", "\"sinks\":", "\"operating_points\":", "\"selected\":",
    "\"name\":", "\"tau\":", "\"method\":", "\"windows\":", "\"scores\":", "\"retention\":", "\"min_score\":", "\"bytes\":", "\"artifact_id\":",
    "\"validation\":{},", "\"extensions\":{\"x\":[1,{}]},", "\"layer\":", "\"n_head_kv\":", "\"f16\"", "\"q8_0\"",
};

static const char * const numbers[] = {
    "0", "-0", "1", "-1", "2", "3", "4", "32", "64", "128", "255", "256", "257", "512", "1023", "1024", "1025", "4096", "65535", "65536", "65537",
    "2147483645", "2147483646", "2147483647", "2147483648", "4294967295", "4294967296", "9007199254740991", "9007199254740992", "9007199254740993",
    "9223372036854775807", "18446744073709551616", "0.5", "0.1", "0.30000000000000004", "0.9999999999999999", "1.0000000000000002", "1.5", "1e0",
    "1e-1", "1e2", "1e15", "1e16", "1e300", "1.7976931348623157e308", "1e309", "1e999", "1e-400", "5e-324", "-1e-5", "1E+2", "01", "1.", ".1",
    "0.1234567890123456789012345678901234567890123456789012345678", "0.12345678901234567890123456789012345678901234567890123456789012345",
};

// Puts n bytes in the place of old bytes at `at`, if there is room.
static void replace(struct input * in, size_t at, size_t old, const void * bytes, size_t n) {
    if (at > in->size || old > in->size - at || in->size - old + n > SIZE_LIMIT) {
        return;
    }
    memmove(in->data + at + n, in->data + at + old, in->size - at - old);
    memcpy(in->data + at, bytes, n);
    in->size = in->size - old + n;
}

static bool is_number_char(uint8_t c) {
    return (c >= '0' && c <= '9') || c == '.' || c == '-' || c == '+' || c == 'e' || c == 'E';
}

// The number at or after a random place; false if there is none.
static bool find_number(const struct input * in, size_t * at, size_t * n) {
    size_t i = below(in->size);
    while (i < in->size && !(in->data[i] >= '0' && in->data[i] <= '9')) {
        i++;
    }
    while (i > 0 && i < in->size && is_number_char(in->data[i - 1])) {
        i--;
    }
    *at = i;
    while (i < in->size && is_number_char(in->data[i])) {
        i++;
    }
    *n = i - *at;
    return *n > 0;
}

// A piece that starts and ends at a place where JSON could be cut.
static void find_piece(const uint8_t * data, size_t size, size_t * at, size_t * n) {
    size_t from = below(size);
    while (from < size && !strchr("{[\",", data[from])) {
        from++;
    }
    size_t to = from + below(from < size ? (size - from < 200 ? size - from : 200) : 0);
    while (to < size && !strchr("]},\"", data[to])) {
        to++;
    }
    *at = from;
    *n  = to > from ? to - from : 0;
}

static void mutate_text(struct input * in, int kind) {
    uint8_t piece[SIZE_LIMIT];
    size_t  at = below(in->size);
    size_t  n  = 0;
    const char * word = dictionary[below(sizeof(dictionary) / sizeof(dictionary[0]))];
    switch (kind) {
        case 0: // insert a token
            replace(in, at, 0, word, strlen(word));
            break;
        case 1: // a token in the place of a piece
            find_piece(in->data, in->size, &at, &n);
            replace(in, at, n, word, strlen(word));
            break;
        case 2: // a number in the place of another
            if (find_number(in, &at, &n)) {
                const char * number = numbers[below(sizeof(numbers) / sizeof(numbers[0]))];
                replace(in, at, n, number, strlen(number));
            }
            break;
        case 3: // drop a piece
            find_piece(in->data, in->size, &at, &n);
            replace(in, at, n, "", 0);
            break;
        default: { // a piece of this or another file, doubled or in the place of another
            const struct file * file = kind == 4 ? &g_files[choose_file()] : &(struct file) { in->data, in->size };
            find_piece(file->data, file->size, &at, &n);
            n = n < sizeof(piece) ? n : sizeof(piece);
            memcpy(piece, file->data + at, n);
            const size_t n_piece = n;
            find_piece(in->data, in->size, &at, &n);
            replace(in, at, next_random() % 2 ? n : 0, piece, n_piece);
            break;
        }
    }
}

static void mutate(struct input * in) {
    // bytes can only break JSON; numbers keep it whole and get furthest
    static const int kinds[] = { 0, 1, 2, 2, 2, 2, 3, 4, 5 };
    const size_t at   = below(in->size);
    const size_t kind = below(4 + sizeof(kinds) / sizeof(kinds[0]));
    if (in->size == 0) {
        mutate_text(in, 0);
    } else if (kind >= 4) {
        mutate_text(in, kinds[kind - 4]);
    } else if (kind == 0) {
        in->data[at] ^= (uint8_t) (1u << below(8));
    } else if (kind == 1) {
        in->data[at] = (uint8_t) next_random();
    } else if (kind == 2) {
        in->data[at] = (uint8_t) "0123456789-.eE\"\\{}[]:, \ntfn"[below(28)];
    } else if (next_random() % 4 == 0) {
        in->size = at;
    } else {
        mutate_text(in, 5);
    }
}

// The first inputs are the files as they are, the others a file with a few mutations, fewer more often.
static void make_input(struct input * in, uint64_t number) {
    g_state = g_seed * 0xD1342543DE82EF95u + number;
    const struct file * file = &g_files[number < g_n_files ? number : choose_file()];
    in->size = file->size;
    memcpy(in->data, file->data, file->size);
    if (number < g_n_files) {
        return;
    }
    const size_t n = 1 + below(1 + below(8));
    for (size_t i = 0; i < n; i++) {
        mutate(in);
    }
}

// in a buffer of exactly its size, so that ASan sees a read past the end
static void run_input(const struct input * in) {
    uint8_t * data = malloc(in->size > 0 ? in->size : 1);
    if (!data) {
        fprintf(stderr, "fuzz-policy: cannot get %zu bytes\n", in->size);
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
    static const char head[] = "fuzz-policy: the input is printed and run again with --seed ";
    p -= sizeof(head) - 1;
    memcpy(p, head, sizeof(head) - 1);
    if (write(STDERR_FILENO, p, (size_t) (text + sizeof(text) - p)) < 0) {
        _exit(1);
    }
}

static void on_crash(int signal_number) {
    if (signal_number == SIGALRM) {
        static const char slow[] = "fuzz-policy: an input takes over a minute\n";
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

static int filter_file(const struct dirent * entry) {
    const size_t n = strlen(entry->d_name);
    return n > 5 && strcmp(entry->d_name + n - 5, ".json") == 0;
}

static bool add_file(const char * path) {
    static uint8_t buffer[SIZE_LIMIT];
    FILE * stream = fopen(path, "rb");
    struct file * grown = realloc(g_files, (g_n_files + 1) * sizeof(*g_files));
    if (!stream || !grown) {
        fprintf(stderr, "fuzz-policy: %s: cannot read: %s\n", path, strerror(errno));
        return false;
    }
    g_files = grown;
    struct file file = { NULL, fread(buffer, 1, sizeof(buffer), stream) };
    fclose(stream);
    file.data = malloc(file.size + 1);
    if (!file.data) {
        return false;
    }
    memcpy(file.data, buffer, file.size);
    g_files[g_n_files++] = file;
    return true;
}

static bool add_dir(const char * dir) {
    struct dirent ** names = NULL;
    const int n = scandir(dir, &names, filter_file, alphasort);
    if (n < 1 || g_n_dirs + 1 == sizeof(g_dir_start) / sizeof(g_dir_start[0])) {
        fprintf(stderr, "fuzz-policy: %s: %s\n", dir, n < 0 ? strerror(errno) : "found no file or too many directories, expected some *.json");
        free(names);
        return false;
    }
    bool ok = true;
    for (int i = 0; i < n; i++) {
        char path[4096];
        snprintf(path, sizeof(path), "%s/%s", dir, names[i]->d_name);
        ok = ok && add_file(path);
        free(names[i]);
    }
    free(names);
    g_dir_start[++g_n_dirs] = g_n_files;
    return ok;
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double) t.tv_sec + 1e-9 * (double) t.tv_nsec;
}

static int run_all(double seconds) {
    static struct input in;
    const double start = now();
    double       said  = start;
    for (g_number = 0; !g_stop; g_number++) {
        if (g_number % 256 == 0) {
            alarm(60);
            const double t = now();
            if (t - start >= seconds && g_number >= g_n_files) {
                break;
            }
            if (t - said >= 10.0) {
                said = t;
                fprintf(stderr, "fuzz-policy: %.0f s, %llu inputs, %llu good\n", t - start, (unsigned long long) g_number,
                        (unsigned long long) fuzz_n_good);
            }
        }
        make_input(&in, g_number);
        run_input(&in);
    }
    printf("seed %llu, %.0f s: %llu inputs, %llu of them policies\n", (unsigned long long) g_seed, now() - start,
           (unsigned long long) g_number, (unsigned long long) fuzz_n_good);
    if (fuzz_n_good == 0 || fuzz_n_good == g_number) {
        fprintf(stderr, "fuzz-policy: found %s policies, expected good and bad inputs\n", fuzz_n_good ? "only" : "no");
        return 1;
    }
    return 0;
}

static int usage(void) {
    fprintf(stderr, "usage: fuzz-policy [--seconds N] [--seed S] [--only NUMBER] DIR...\n");
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
    for (int i = 1; i < argc; i++) {
        if (strncmp(argv[i], "--", 2) != 0) {
            if (!add_dir(argv[i])) {
                return 1;
            }
            continue;
        }
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
    if (g_n_files == 0) {
        return usage();
    }
    set_handlers();
    int status = 0;
    if (has_only) {
        static struct input in;
        g_number = only;
        make_input(&in, only);
        fwrite(in.data, 1, in.size, stdout);
        fflush(stdout);
        run_input(&in);
    } else {
        status = run_all((double) seconds);
    }
    for (size_t i = 0; i < g_n_files; i++) {
        free(g_files[i].data);
    }
    free(g_files);
    return status;
}
