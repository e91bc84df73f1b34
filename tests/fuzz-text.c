// Inputs for the fuzz target of a JSON reader: files of some directories with a few mutations.

// scandir
#define _POSIX_C_SOURCE 200809L

#include "fuzz.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct file {
    uint8_t * data;
    size_t    size;
};

static struct file * g_files;
static size_t        g_n_files;
static size_t        g_dir_start[64]; // first file of each directory, and the end of the last
static size_t        g_n_dirs;

// Every directory is chosen as often, so that a few good files are not lost among many bad ones.
static size_t choose_file(void) {
    const size_t dir = fuzz_below(g_n_dirs);
    return g_dir_start[dir] + fuzz_below(g_dir_start[dir + 1] - g_dir_start[dir]);
}

//
// mutations
//

static const char * const dictionary[] = {
    "{", "}", "[", "]", ",", ":", "\"", "\\", "\\u0000", "\\ud800", "\\udc00", "\\ud83d\\ude00", "\\n", "//", "\n", "\xff", "\xc3\xa9", "\xef\xbb\xbf",
    "true", "false", "null", "NaN", "Infinity", "-", "{}", "[]", "[[", "]]", "[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[", "\"full\"", "\"\"",
    "\"format\":", "\"version\":", "\"model\":", "\"context\":", "\"codebook\":", "\"sinks\":", "\"operating_points\":", "\"selected\":",
    "\"name\":", "\"tau\":", "\"method\":", "\"windows\":", "\"scores\":", "\"retention\":", "\"min_score\":", "\"bytes\":", "\"artifact_id\":",
    "\"validation\":{},", "\"extensions\":{\"x\":[1,{}]},", "\"layer\":", "\"n_head_kv\":", "\"f16\"", "\"q8_0\"",
    "\"entries\":", "\"budget\":", "\"lambda\":", "\"retention_tokens\":", "\"retention_query\":", "\"cosine\":", "\"cosine-", "\"loss\":", "\"512\":",
    "\"full:f16\"", "\"256:q8_0\"", "\"256:q8_0/q4_0\"", ":q4_0", "/q4_0", "f32", "bf16", "iq4_nl",
};

static const char * const numbers[] = {
    "0", "-0", "1", "-1", "2", "3", "4", "32", "64", "128", "255", "256", "257", "512", "1023", "1024", "1025", "4096", "65535", "65536", "65537",
    "2147483645", "2147483646", "2147483647", "2147483648", "4294967295", "4294967296", "9007199254740991", "9007199254740992", "9007199254740993",
    "9223372036854775807", "18446744073709551616", "0.5", "0.1", "0.30000000000000004", "0.9999999999999999", "1.0000000000000002", "1.5", "1e0",
    "1e-1", "1e2", "1e15", "1e16", "1e300", "1.7976931348623157e308", "1e309", "1e999", "1e-400", "5e-324", "-1e-5", "1E+2", "01", "1.", ".1",
    "0.1234567890123456789012345678901234567890123456789012345678", "0.12345678901234567890123456789012345678901234567890123456789012345",
};

// Puts n bytes in the place of old bytes at `at`, if there is room.
static void replace(struct fuzz_input * in, size_t at, size_t old, const void * bytes, size_t n) {
    if (at > in->size || old > in->size - at || in->size - old + n > FUZZ_SIZE_MAX) {
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
static bool find_number(const struct fuzz_input * in, size_t * at, size_t * n) {
    size_t i = fuzz_below(in->size);
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
    size_t from = fuzz_below(size);
    while (from < size && !strchr("{[\",", data[from])) {
        from++;
    }
    size_t to = from + fuzz_below(from < size ? (size - from < 200 ? size - from : 200) : 0);
    while (to < size && !strchr("]},\"", data[to])) {
        to++;
    }
    *at = from;
    *n  = to > from ? to - from : 0;
}

static void mutate_text(struct fuzz_input * in, int kind) {
    uint8_t piece[FUZZ_SIZE_MAX];
    size_t  at = fuzz_below(in->size);
    size_t  n  = 0;
    const char * word = dictionary[fuzz_below(sizeof(dictionary) / sizeof(dictionary[0]))];
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
                const char * number = numbers[fuzz_below(sizeof(numbers) / sizeof(numbers[0]))];
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
            replace(in, at, fuzz_random() % 2 ? n : 0, piece, n_piece);
            break;
        }
    }
}

static void mutate(struct fuzz_input * in) {
    // bytes can only break JSON; numbers keep it whole and get furthest
    static const int kinds[] = { 0, 1, 2, 2, 2, 2, 3, 4, 5 };
    const size_t at   = fuzz_below(in->size);
    const size_t kind = fuzz_below(4 + sizeof(kinds) / sizeof(kinds[0]));
    if (in->size == 0) {
        mutate_text(in, 0);
    } else if (kind >= 4) {
        mutate_text(in, kinds[kind - 4]);
    } else if (kind == 0) {
        in->data[at] ^= (uint8_t) (1u << fuzz_below(8));
    } else if (kind == 1) {
        in->data[at] = (uint8_t) fuzz_random();
    } else if (kind == 2) {
        in->data[at] = (uint8_t) "0123456789-.eE\"\\{}[]:, \ntfn"[fuzz_below(28)];
    } else if (fuzz_random() % 4 == 0) {
        in->size = at;
    } else {
        mutate_text(in, 5);
    }
}

// The first inputs are the files as they are, the others a file with a few mutations, fewer more often.
void fuzz_make(struct fuzz_input * in, uint64_t number) {
    const struct file * file = &g_files[number < g_n_files ? number : choose_file()];
    in->size = file->size;
    memcpy(in->data, file->data, file->size);
    if (number < g_n_files) {
        return;
    }
    const size_t n = 1 + fuzz_below(1 + fuzz_below(8));
    for (size_t i = 0; i < n; i++) {
        mutate(in);
    }
}

//
// files
//

static int filter_file(const struct dirent * entry) {
    const size_t n = strlen(entry->d_name);
    return n > 5 && strcmp(entry->d_name + n - 5, ".json") == 0;
}

static bool add_file(const char * path) {
    static uint8_t buffer[FUZZ_SIZE_MAX];
    FILE * stream = fopen(path, "rb");
    struct file * grown = realloc(g_files, (g_n_files + 1) * sizeof(*g_files));
    if (!stream || !grown) {
        fprintf(stderr, "%s: %s: cannot read: %s\n", fuzz_name, path, strerror(errno));
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
        fprintf(stderr, "%s: %s: %s\n", fuzz_name, dir, n < 0 ? strerror(errno) : "found no file or too many directories, expected some *.json");
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

bool fuzz_begin(int argc, char ** argv) {
    bool ok = argc > 0;
    for (int i = 0; i < argc && ok; i++) {
        ok = add_dir(argv[i]);
    }
    return ok;
}

size_t fuzz_n_seeds(void) {
    return g_n_files;
}

void fuzz_end(void) {
    for (size_t i = 0; i < g_n_files; i++) {
        free(g_files[i].data);
    }
    free(g_files);
}
