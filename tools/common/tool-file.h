// Can files be read and written? Asked before long work.

#ifndef TOOL_FILE_H
#define TOOL_FILE_H

#include "hwkv.h"

// Why a file cannot be read, as an errno; 0 if it can. A directory opens, but does not read.
int tool_check_readable(const char * path);

// 0 or HWKV_ERR_IO, HWKV_ERR_NOMEM. What is there already is not touched. special: a device or pipe will do.
int tool_check_writable(const char * path, bool special, struct hwkv_error * err);

#endif // TOOL_FILE_H
