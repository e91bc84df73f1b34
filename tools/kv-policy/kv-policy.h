// Shared by the files of llama-kv-policy.

#ifndef KV_POLICY_H
#define KV_POLICY_H

#include "tool-args.h"
#include "tool-print.h"
#include "tool-say.h"

#include "hwkv.h"

#define KVP_HELP_COLUMN 26

// kv-policy.c

// Reads the arguments of a command. -1 to go on, else the exit code: help is on stdout or a line about a mistake on stderr.
int kvp_read_args(struct tool_args * args, const char * command, int argc, char ** argv);

// The operating point asked for by name or number, the selected one if NULL. -1: none; a line is on stderr.
int32_t kvp_find_point(const char * file, const struct hwkv_policy * policy, const char * name);

// kv-policy-model.c

struct kvp_model {
    struct hwkv_geometry geo;
    int32_t              n_ctx_train;
};

// Loads the metadata only, no weights. False: a line about it is on stderr.
bool kvp_model_load(struct kvp_model * model, const char * path, bool verbose);
void kvp_model_free(struct kvp_model * model);

// The commands, one file each; argv starts after the command's name.

int kvp_show (int argc, char ** argv);
int kvp_check(int argc, char ** argv);
int kvp_make (int argc, char ** argv);
int kvp_diff (int argc, char ** argv);

#endif // KV_POLICY_H
