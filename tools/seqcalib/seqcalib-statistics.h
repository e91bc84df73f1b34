// What a policy says about its model, as text for the terminal.

#ifndef SC_STATISTICS_H
#define SC_STATISTICS_H

#include "hwkv.h"

#include <stdio.h>

// A table of all operating points, then the layers, the most demanding heads and the validation of point ip, or of
// every point when ip is -1.
void sc_statistics(FILE * out, const struct hwkv_policy * policy, int32_t ip);

#endif // SC_STATISTICS_H
