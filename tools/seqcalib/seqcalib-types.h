// --types: which cache types heads may be given.

#ifndef SC_TYPES_H
#define SC_TYPES_H

#include "seqcalib-codebook.h"

struct llama_model;

struct sc_types {
    struct sc_pairs pairs; // none: the default
    bool            cache; // left to the cache
};

// For the table of options.
int sc_types_read(void * target, const char * list, struct hwkv_error * err);

struct sc_types_params {
    const struct llama_model   * model;
    const struct hwkv_geometry * geo;
    int32_t                      n_ctx;
    int32_t                      n_ubatch;
    struct sc_pair               cache; // -ctk and -ctv
};

// What was asked for, held against the model and its devices; without that the default, and in note, if it is not all of that, a line about
// what is left out.
int sc_types_settle(struct sc_types * types, const struct sc_types_params * params, char * note, size_t note_size, struct hwkv_error * err);

// How the caches of a codebook's types rotate their rows.
int sc_types_rotation(struct sc_codebook * codebook, const struct sc_types_params * params, struct hwkv_error * err);

#endif // SC_TYPES_H
