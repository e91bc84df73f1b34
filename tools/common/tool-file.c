#include "tool-file.h"

#include "hwkv-error.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

int tool_check_readable(const char * path) {
    errno = 0;
    FILE    * f   = fopen(path, "rb");
    const int res = !f || (fgetc(f) == EOF && ferror(f)) ? errno : 0;
    if (f) {
        fclose(f);
    }
    return res;
}

int tool_check_writable(const char * path, bool special, struct hwkv_error * err) {
    struct stat st;
    if (stat(path, &st) == 0 && !S_ISREG(st.st_mode)) {
        return special && !S_ISDIR(st.st_mode) ? HWKV_OK : hwkv_fail(err, HWKV_ERR_IO, NULL, "cannot write: not a regular file");
    }

    // files are written beside their place and renamed
    const size_t size = strlen(path) + 32;
    char * temp = malloc(size);
    if (!temp) {
        return hwkv_fail(err, HWKV_ERR_NOMEM, NULL, "out of memory");
    }
    snprintf(temp, size, "%s.%ld.tmp", path, (long) getpid());
    const int fd  = open(temp, O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
    const int res = fd >= 0 ? HWKV_OK : hwkv_fail(err, HWKV_ERR_IO, NULL, "cannot write: %s", strerror(errno));
    if (fd >= 0) {
        close(fd);
        unlink(temp);
    }
    free(temp);
    return res;
}
