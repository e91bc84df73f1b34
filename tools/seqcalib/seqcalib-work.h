// The work file: what a calibration has decided so far, one line at a time, so that a killed run can go on.

#ifndef SC_WORK_H
#define SC_WORK_H

#include "hwkv.h"

struct sc_work;

// What was decided in an earlier run. Each returns 0 or fails with *err.
struct sc_work_reader {
    void * user;
    int (*layer)     (void * user, int32_t jl, uint64_t mask, const double * scores, int32_t n_score, struct hwkv_error * err);
    int (*validation)(void * user, int32_t ip, const char * json, struct hwkv_error * err);
};

// key names the inputs of the run: a file with another one is refused. Without reader the file begins anew. Lines that
// a kill cut short are dropped. HWKV_ERR_IO: unusable, or another process works on it. HWKV_ERR_PARSE: what is there is
// no work file; it is left as it is.
int  sc_work_open (struct sc_work ** out, const char * path, const char * key, const struct sc_work_reader * reader, struct hwkv_error * err);
void sc_work_close(struct sc_work * work, bool remove); // NULL is fine

// On disk when they return. NULL as work does nothing.
int sc_work_layer     (struct sc_work * work, int32_t jl, uint64_t mask, const double * scores, int32_t n_score, struct hwkv_error * err);
int sc_work_validation(struct sc_work * work, int32_t ip, const char * json, struct hwkv_error * err);

#endif // SC_WORK_H
