// What fuzz-main.c and the maker of a target's inputs know of each other.

#ifndef FUZZ_H
#define FUZZ_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define FUZZ_SIZE_MAX 65536

struct fuzz_input {
    uint8_t data[FUZZ_SIZE_MAX];
    size_t  size;
};

// of the target
extern const char * const fuzz_name;   // of the program
extern const char * const fuzz_inputs; // what good inputs are
extern uint64_t           fuzz_n_good;
int LLVMFuzzerTestOneInput(const uint8_t * data, size_t size);

// of the maker: the rest of the command line; false: a fault, which it has told, or nothing to begin with
bool   fuzz_begin(int argc, char ** argv);
size_t fuzz_n_seeds(void); // the first inputs are as they are
void   fuzz_make(struct fuzz_input * in, uint64_t number);
void   fuzz_end(void);

// of the driver: random numbers that depend on seed and number of the input alone
uint64_t fuzz_random(void);
size_t   fuzz_below(size_t n); // 0 if n is 0

#endif // FUZZ_H
