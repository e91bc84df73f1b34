// A policy as one HTML page that needs nothing else: no network, no other file.

#ifndef SC_REPORT_H
#define SC_REPORT_H

#include "hwkv.h"

// Writes beside path, syncs and renames: path is either the old file or the whole new one. A path that is no regular
// file (a pipe, /dev/stdout) is written as it is.
int sc_report_html(const char * path, const struct hwkv_policy * policy, struct hwkv_error * err);

#endif // SC_REPORT_H
