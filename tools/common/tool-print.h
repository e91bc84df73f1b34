// Text for people: names from files that can't steer a terminal, columns, and the names of windows.

#ifndef TOOL_PRINT_H
#define TOOL_PRINT_H

#include "hwkv.h"

#include <stdio.h>

#ifdef __cplusplus
extern "C" {
#endif

// Control characters become '?'. Returns the columns it takes: characters, not bytes.
int  tool_put_text  (FILE * out, const char * text);
int  tool_text_width(const char * text);
void tool_put_column(FILE * out, const char * text, int width); // to the left, filled with spaces

// Bytes that are no UTF-8 become '?': the name of a file may have some.
void tool_make_utf8(char * text);

const char * tool_window_name(int32_t window, char buf[16]); // "full" or the number
double       tool_mib        (uint64_t bytes);
const char * tool_base_name  (const char * path);            // what is after the last slash

// Columns of a terminal, or fallback if it has none that can be used.
int tool_columns(FILE * out, int fallback);

#ifdef __cplusplus
}
#endif

#endif // TOOL_PRINT_H
