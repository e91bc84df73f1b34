// What the tools need on top of the library's JSON: text of any origin, numbers for people, and printing.

#ifndef TOOL_JSON_H
#define TOOL_JSON_H

#include "hwkv-json.h"

#include <stdio.h>

// NULL gives null. Bytes that are no UTF-8 become '?'.
struct hwkv_json * tool_json_text(const char * text);

// Rounded to 9 significant digits, null if it is not finite.
struct hwkv_json * tool_json_measure(double value);

// Print and free a tree; NULL prints nothing. False: memory was out or out could not be written.
bool tool_json_print     (FILE * out, struct hwkv_json * node);
bool tool_json_print_line(FILE * out, struct hwkv_json * node); // on one line

// For objects that may hold anything: the member or NULL, of NULL too; the number or NAN.
const struct hwkv_json * tool_json_member(const struct hwkv_json * node, const char * key);
double                   tool_json_number(const struct hwkv_json * node);

#endif // TOOL_JSON_H
