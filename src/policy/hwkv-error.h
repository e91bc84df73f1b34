// Filling errors, and the text that goes into them.
//
// Shared by library, bridge and tools, not part of the public API.

#ifndef HWKV_ERROR_H
#define HWKV_ERROR_H

#include "hwkv.h"

#define HWKV_PRINTF(fmt, args) __attribute__((format(printf, fmt, args)))

#ifdef __cplusplus
extern "C" {
#endif

// Fills err, if it is not NULL, and returns code. path may be NULL. What is too long is cut at a whole character, and control
// characters become spaces: a message is one line.
int hwkv_fail(struct hwkv_error * err, int code, const char * path, const char * fmt, ...) HWKV_PRINTF(4, 5);

// Copies text into a field of dst_size > 0 bytes; what does not fit is cut at a whole UTF-8 character.
void hwkv_copy(char * dst, size_t dst_size, const char * text);

// For messages: text in quotes, cut to n bytes at a whole character. buf needs n + 6 bytes. Returns buf.
const char * hwkv_quote(char * buf, const char * text, size_t n);

// Bytes of the UTF-8 character that begins a text of n bytes; 0 if there is none (no bytes left, cut off, overlong, a surrogate,
// beyond U+10FFFF).
size_t hwkv_utf8_length(const char * text, size_t n);
bool   hwkv_is_utf8    (const char * text);

#ifdef __cplusplus
}
#endif

#endif // HWKV_ERROR_H
