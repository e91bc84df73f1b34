#include "seqcalib-work.h"

#include "hwkv-error.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MAGIC "headwisekv-seqcalib-work 1"

struct sc_work {
    FILE * file;
    char   path[];
};

static int io_error(const struct sc_work * work, const char * what, struct hwkv_error * err) {
    return hwkv_fail(err, HWKV_ERR_IO, work->path, "work file: %s: %s", what, strerror(errno));
}

// A line ends in a mark of its content: a line without one was cut short.
static void mark_of(const char * line, size_t n, char mark[9]) {
    struct hwkv_sha256 s;
    char hex[65];
    hwkv_sha256_init(&s);
    hwkv_sha256_update(&s, line, n);
    hwkv_sha256_final(&s, hex);
    memcpy(mark, hex, 8);
    mark[8] = '\0';
}

static int put_line(struct sc_work * work, const char * line, size_t n, struct hwkv_error * err) {
    char mark[9];
    mark_of(line, n, mark);
    if (fwrite(line, 1, n, work->file) != n || fprintf(work->file, " %s\n", mark) < 0 || fflush(work->file) != 0 || fsync(fileno(work->file)) != 0) {
        return io_error(work, "cannot write", err);
    }
    return HWKV_OK;
}

static int read_layer(char * text, const struct sc_work_reader * reader, struct hwkv_error * err) {
    char * at;
    const int32_t  jl  = (int32_t) strtol(text, &at, 10);
    const uint64_t mask = strtoull(at, &at, 16);
    const int32_t  n    = (int32_t) strtol(at, &at, 10);
    if (jl < 0 || n < 1 || n > HWKV_HEAD_MAX*HWKV_CODE_MAX) {
        return HWKV_ERR_PARSE;
    }

    double * scores = malloc(sizeof(*scores)*(size_t) n);
    if (!scores) {
        return hwkv_fail(err, HWKV_ERR_NOMEM, NULL, "out of memory");
    }
    for (int32_t i = 0; i < n; i++) {
        scores[i] = strtod(at, &at);
    }
    const int status = *at == '\0' ? reader->layer(reader->user, jl, mask, scores, n, err) : HWKV_ERR_PARSE;
    free(scores);
    return status;
}

// HWKV_ERR_PARSE: the line is damaged, *err is not set.
static int read_line(char * line, size_t n, const char * key, bool first, const struct sc_work_reader * reader, struct hwkv_error * err) {
    char mark[9];
    if (n < 10 || line[n - 1] != '\n' || line[n - 10] != ' ') {
        return HWKV_ERR_PARSE;
    }
    line[n - 1]  = '\0';
    line[n - 10] = '\0';
    mark_of(line, n - 10, mark);
    if (strcmp(mark, line + n - 9) != 0) {
        return HWKV_ERR_PARSE;
    }

    if (first) {
        return strcmp(line + sizeof(MAGIC), key) == 0 ? HWKV_OK :
            hwkv_fail(err, HWKV_ERR_MISMATCH, NULL, "work file: found another model, text or setting, expected the run that is resumed");
    }
    if (line[0] == 'L') {
        return read_layer(line + 1, reader, err);
    }
    char * json;
    const int32_t ip = (int32_t) strtol(line + 1, &json, 10);
    return line[0] == 'V' && *json == ' ' ? reader->validation(reader->user, ip, json + 1, err) : HWKV_ERR_PARSE;
}

static int begin(struct sc_work * work, const char * key, struct hwkv_error * err) {
    char line[sizeof(MAGIC) + 80];
    if (ftruncate(fileno(work->file), 0) != 0) {
        return io_error(work, "cannot write", err);
    }
    rewind(work->file);
    const int n = snprintf(line, sizeof(line), MAGIC " %s", key);
    return put_line(work, line, (size_t) n, err);
}

// Everything up to the first damaged line; the rest is cut off.
static int read_all(struct sc_work * work, const char * key, const struct sc_work_reader * reader, struct hwkv_error * err) {
    char  * line = NULL;
    size_t  size = 0;
    long    good = 0;
    int     status = HWKV_OK;
    ssize_t n;

    while (status == HWKV_OK && (n = getline(&line, &size, work->file)) > 0) {
        status = read_line(line, (size_t) n, key, good == 0, reader, err);
        if (status == HWKV_OK) {
            good = ftell(work->file);
        }
    }
    free(line);

    if (status == HWKV_ERR_PARSE && good == 0) {
        return begin(work, key, err);
    }
    if (status != HWKV_OK && status != HWKV_ERR_PARSE) {
        return status;
    }
    if (ftruncate(fileno(work->file), good) != 0 || fseek(work->file, good, SEEK_SET) != 0) {
        return io_error(work, "cannot write", err);
    }
    return HWKV_OK;
}

// Nothing yet, or at least the beginning of a first line: whatever else it is, it is not ours to overwrite.
static int check_ours(struct sc_work * work, bool * empty, struct hwkv_error * err) {
    char start[sizeof(MAGIC)];
    const size_t n = fread(start, 1, sizeof(MAGIC) - 1, work->file);
    if (ferror(work->file)) {
        return io_error(work, "cannot read", err);
    }
    rewind(work->file);
    *empty = n == 0;
    return memcmp(start, MAGIC, n) == 0 ? HWKV_OK : hwkv_fail(err, HWKV_ERR_PARSE, work->path, "not a work file of llama-seqcalib, expected one or none");
}

int sc_work_open(struct sc_work ** out, const char * path, const char * key, const struct sc_work_reader * reader, struct hwkv_error * err) {
    *out = NULL;

    struct sc_work * work = calloc(1, sizeof(*work) + strlen(path) + 1);
    if (!work) {
        return hwkv_fail(err, HWKV_ERR_NOMEM, NULL, "out of memory");
    }
    strcpy(work->path, path);

    const int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    work->file = fd >= 0 ? fdopen(fd, "r+") : NULL;
    if (!work->file) {
        const int status = io_error(work, "cannot open", err);
        if (fd >= 0) {
            close(fd);
        }
        free(work);
        return status;
    }

    struct flock lock = { .l_type = F_WRLCK, .l_whence = SEEK_SET };
    bool empty = true;
    int status;
    if (fcntl(fd, F_SETLK, &lock) == 0) {
        status = check_ours(work, &empty, err);
    } else if (errno == EACCES || errno == EAGAIN) {
        status = hwkv_fail(err, HWKV_ERR_IO, path, "work file: another run is working on it");
    } else {
        status = io_error(work, "cannot lock", err);
    }
    if (status == HWKV_OK) {
        status = reader && !empty ? read_all(work, key, reader, err) : begin(work, key, err);
    }

    if (status == HWKV_OK) {
        *out = work;
    } else {
        sc_work_close(work, false);
    }
    return status;
}

void sc_work_close(struct sc_work * work, bool remove) {
    if (work) {
        if (remove) {
            unlink(work->path);
        }
        fclose(work->file);
        free(work);
    }
}

int sc_work_layer(struct sc_work * work, int32_t jl, uint64_t mask, const double * scores, int32_t n_score, struct hwkv_error * err) {
    if (!work) {
        return HWKV_OK;
    }
    // hexadecimal: read back to the last bit
    const size_t size = 64 + 32*(size_t) n_score;
    char * line = malloc(size);
    if (!line) {
        return hwkv_fail(err, HWKV_ERR_NOMEM, NULL, "out of memory");
    }
    size_t n = (size_t) snprintf(line, size, "L %" PRId32 " %" PRIx64 " %" PRId32, jl, mask, n_score);
    for (int32_t i = 0; i < n_score; i++) {
        n += (size_t) snprintf(line + n, size - n, " %a", scores[i]);
    }
    const int status = put_line(work, line, n, err);
    free(line);
    return status;
}

int sc_work_validation(struct sc_work * work, int32_t ip, const char * json, struct hwkv_error * err) {
    if (!work) {
        return HWKV_OK;
    }
    const size_t size = strlen(json) + 32;
    char * line = malloc(size);
    if (!line) {
        return hwkv_fail(err, HWKV_ERR_NOMEM, NULL, "out of memory");
    }
    const int n = snprintf(line, size, "V %" PRId32 " %s", ip, json);
    const int status = put_line(work, line, (size_t) n, err);
    free(line);
    return status;
}
