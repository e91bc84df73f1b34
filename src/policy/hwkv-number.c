// uselocale and newlocale
#define _POSIX_C_SOURCE 200809L

#include "hwkv-number.h"

#include <locale.h>
#include <stdio.h>
#include <stdlib.h>

// The program's own setlocale is left alone: other threads may be printing.
struct hwkv_locale hwkv_locale_enter(void) {
    struct hwkv_locale locale = { .c = newlocale(LC_ALL_MASK, "C", (locale_t) 0) };
    if (locale.c) {
        locale.before = uselocale(locale.c);
    }
    return locale;
}

void hwkv_locale_leave(struct hwkv_locale locale) {
    if (locale.c) {
        uselocale(locale.before);
        freelocale(locale.c);
    }
}

int hwkv_vsnprintf(char * buf, size_t size, const char * fmt, va_list args) {
    const struct hwkv_locale locale = hwkv_locale_enter();
    const int n = vsnprintf(buf, size, fmt, args);
    hwkv_locale_leave(locale);
    return n;
}

int hwkv_snprintf(char * buf, size_t size, const char * fmt, ...) {
    va_list args;
    va_start(args, fmt);
    const int n = hwkv_vsnprintf(buf, size, fmt, args);
    va_end(args);
    return n;
}

double hwkv_strtod(const char * text, char ** end) {
    const struct hwkv_locale locale = hwkv_locale_enter();
    const double value = strtod(text, end);
    hwkv_locale_leave(locale);
    return value;
}
