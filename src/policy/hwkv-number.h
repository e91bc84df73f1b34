// Numbers to text and back, the same whatever locale the program has set.
//
// Shared by library, bridge and tools, not part of the public API.

#ifndef HWKV_NUMBER_H
#define HWKV_NUMBER_H

#include "hwkv-error.h"

#include <stdarg.h>

#ifdef __cplusplus
extern "C" {
#endif

// As their namesakes do in the C locale.
int    hwkv_snprintf (char * buf, size_t size, const char * fmt, ...) HWKV_PRINTF(3, 4);
int    hwkv_vsnprintf(char * buf, size_t size, const char * fmt, va_list args);
double hwkv_strtod   (const char * text, char ** end);

// Between the two the calling thread's locale is C, for code that is not ours. They may be nested.
struct hwkv_locale {
    void * c;      // NULL where there was no memory for it: nothing changes then
    void * before;
};

struct hwkv_locale hwkv_locale_enter(void);
void               hwkv_locale_leave(struct hwkv_locale locale);

#ifdef __cplusplus
}
#endif

#endif // HWKV_NUMBER_H
