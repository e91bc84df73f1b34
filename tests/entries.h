// Codebooks for tests.

#ifndef ENTRIES_H
#define ENTRIES_H

#include "hwkv.h"

// an entry that leaves its types to the cache, in an array's initializer
#define WINDOW(w) { (w), HWKV_TYPE_CACHE, HWKV_TYPE_CACHE }

#endif // ENTRIES_H
