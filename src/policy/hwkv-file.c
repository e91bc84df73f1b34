// Policies in files: read whole with a size limit, written so that no reader ever sees half of one.

// fsync, fileno and getpid
#define _POSIX_C_SOURCE 200809L

#include "hwkv-impl.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static int read_stream(char ** out, size_t * size, FILE * file, struct hwkv_error * err) {
    size_t cap  = 64 * 1024;
    size_t used = 0;
    char * text = hwkv_alloc(cap, 1);
    int status  = text ? 0 : hwkv_fail(err, HWKV_ERR_NOMEM, NULL, "out of memory");
    while (status == 0) {
        used += fread(text + used, 1, cap - used, file);
        if (ferror(file)) {
            status = hwkv_fail(err, HWKV_ERR_IO, NULL, "cannot read: %s", strerror(errno));
        } else if (used > HWKV_FILE_MAX) {
            status = hwkv_fail(err, HWKV_ERR_TOO_LARGE, NULL, "found more than %u bytes, expected at most %u", HWKV_FILE_MAX, HWKV_FILE_MAX);
        } else if (used < cap) {
            break;
        } else {
            const size_t next   = 4 * cap < HWKV_FILE_MAX ? 4 * cap : HWKV_FILE_MAX + 1;
            char       * bigger = hwkv_alloc(next, 1);
            if (bigger) {
                memcpy(bigger, text, used);
                hwkv_free(text);
                text = bigger;
                cap  = next;
            } else {
                status = hwkv_fail(err, HWKV_ERR_NOMEM, NULL, "out of memory");
            }
        }
    }
    if (status) {
        hwkv_free(text);
        return status;
    }
    *out  = text;
    *size = used;
    return 0;
}

int hwkv_policy_parse(struct hwkv_policy ** out, const char * text, size_t size, struct hwkv_error * err) {
    if (!out) {
        return hwkv_fail(err, HWKV_ERR_ARG, NULL, "found NULL, expected a place for the policy");
    }
    *out = NULL;
    if (!text) {
        return hwkv_fail(err, HWKV_ERR_ARG, NULL, "found NULL, expected the text of a policy");
    }
    if (size > HWKV_FILE_MAX) {
        return hwkv_fail(err, HWKV_ERR_TOO_LARGE, NULL, "found %zu bytes, expected at most %u", size, HWKV_FILE_MAX);
    }
    struct hwkv_json * root = NULL;
    int status = hwkv_json_parse(&root, text, size, err);
    if (status == 0) {
        status = hwkv_policy_read_json(out, root, err);
    }
    hwkv_json_free(root);
    if (status == 0) {
        struct hwkv_sha256 s;
        hwkv_sha256_init(&s);
        hwkv_sha256_update(&s, text, size);
        hwkv_sha256_final(&s, (*out)->hash);
    }
    return status;
}

int hwkv_policy_load(struct hwkv_policy ** out, const char * path, struct hwkv_error * err) {
    if (!out) {
        return hwkv_fail(err, HWKV_ERR_ARG, NULL, "found NULL, expected a place for the policy");
    }
    *out = NULL;
    if (!path) {
        return hwkv_fail(err, HWKV_ERR_ARG, NULL, "found NULL, expected a path");
    }
    FILE * file = fopen(path, "rb");
    if (!file) {
        return hwkv_fail(err, HWKV_ERR_IO, NULL, "cannot open: %s", strerror(errno));
    }
    char * text = NULL;
    size_t size = 0;
    int status = read_stream(&text, &size, file, err);
    fclose(file);
    if (status == 0) {
        status = hwkv_policy_parse(out, text, size, err);
        hwkv_free(text);
    }
    return status;
}

// A device or a pipe is written to as it is: renaming a file over it would remove it.
static bool is_special(const char * path) {
    struct stat st;
    return stat(path, &st) == 0 && !S_ISREG(st.st_mode) && !S_ISDIR(st.st_mode);
}

static int write_all(FILE * file, const char * text, bool sync, struct hwkv_error * err) {
    const size_t size = strlen(text);
    const bool ok = fwrite(text, 1, size, file) == size && fflush(file) == 0 && (!sync || fsync(fileno(file)) == 0);
    const int saved = errno;
    if (fclose(file) != 0 || !ok) {
        return hwkv_fail(err, HWKV_ERR_IO, NULL, "cannot write: %s", strerror(ok ? errno : saved));
    }
    return 0;
}

int hwkv_file_write(const char * path, const char * text, struct hwkv_error * err) {
    if (!path || !path[0]) {
        return hwkv_fail(err, HWKV_ERR_ARG, NULL, "expected a path to write to");
    }
    const size_t temp_size = strlen(path) + 32;
    char * temp = hwkv_alloc(temp_size, 1);
    if (!temp) {
        return hwkv_fail(err, HWKV_ERR_NOMEM, NULL, "out of memory");
    }
    snprintf(temp, temp_size, "%s.%ld.tmp", path, (long) getpid());
    const bool special = is_special(path);
    int status = 0;
    FILE * file = fopen(special ? path : temp, "wb");
    if (!file) {
        status = hwkv_fail(err, HWKV_ERR_IO, NULL, "cannot write: %s", strerror(errno));
    } else {
        status = write_all(file, text, !special, err);
        if (status == 0 && !special && rename(temp, path) != 0) {
            status = hwkv_fail(err, HWKV_ERR_IO, NULL, "cannot write: %s", strerror(errno));
        }
        if (status && !special) {
            remove(temp);
        }
    }
    hwkv_free(temp);
    return status;
}

int hwkv_policy_save(const struct hwkv_policy * policy, const char * path, struct hwkv_error * err) {
    if (!path || !path[0]) {
        return hwkv_fail(err, HWKV_ERR_ARG, NULL, "expected a path to write to");
    }
    char * text = NULL;
    int status = hwkv_policy_print(&text, policy, err);
    if (status == 0) {
        status = hwkv_file_write(path, text, err);
        hwkv_free(text);
    }
    return status;
}
