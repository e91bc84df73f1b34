// Hashes for tables and files; not against forgery. Part of the library, not of its public API.

#ifndef HWKV_HASH_H
#define HWKV_HASH_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

uint64_t hwkv_mix (uint64_t x);                                    // a permutation that spreads every bit over all
uint64_t hwkv_hash(const void * data, size_t size, uint64_t seed); // any change in the data changes it

#ifdef __cplusplus
}
#endif

#endif // HWKV_HASH_H
