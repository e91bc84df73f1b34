#include "hwkv-version.h"

#include "hwkv.h"

// the build says which llama.cpp this is linked into; the library alone has none
#ifdef HWKV_UPSTREAM
#define HWKV_UPSTREAM_TEXT " (" HWKV_UPSTREAM ")"
#else
#define HWKV_UPSTREAM_TEXT ""
#endif

const char * hwkv_version_line(void) {
    return "HeadWiseKV " HWKV_VERSION HWKV_UPSTREAM_TEXT;
}
