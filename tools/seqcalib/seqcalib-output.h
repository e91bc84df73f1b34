// From a finished calibration to a policy file.

#ifndef SC_OUTPUT_H
#define SC_OUTPUT_H

#include "seqcalib-allocate.h"
#include "seqcalib-calibrate.h"
#include "seqcalib-options.h"

#include "tool-text.h"

// A hash of everything a point depends on. goal: its tau, or its budget in bytes.
void sc_artifact_id(const struct sc_input * in, double goal, char hex[65]);

struct sc_result {
    const struct sc_calib    * calib;
    const struct sc_allocate * alloc; // NULL: points by tau
    const struct tool_text   * text;
};

// *selected is false when a budget was given and no point fits it; then the cheapest point is the policy's choice.
int sc_make_policy(struct hwkv_policy ** out, bool * selected, const struct sc_result * result, const struct sc_options * opt, struct hwkv_error * err);

// A line for each point: tau, R_C, floor, bytes, and the held-out check where there is one.
void sc_print_points(struct tool_progress * progress, const struct hwkv_policy * policy);

#endif // SC_OUTPUT_H
