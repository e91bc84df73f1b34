// Shared by the files of llama-kv-policy.

#ifndef KV_POLICY_H
#define KV_POLICY_H

#include "tool-args.h"
#include "tool-llama.h"
#include "tool-memory.h"
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
    struct llama_model * llama;  // measures contexts, with the devices there are
    struct tool_log      log;    // why one cannot be made
};

#define KVP_NO_DEVICE -2 // for n_gpu_layers

// Loads the metadata only, no weights; the geometry is the same with and without devices. n_gpu_layers: -1 for all. False: a line about it
// is on stderr.
bool kvp_model_load(struct kvp_model * model, const char * path, int32_t n_gpu_layers, bool verbose);
void kvp_model_free(struct kvp_model * model);

// kv-policy-memory.c

// A context under the operating point as llama-server would make it, of sizes only. False: the reason is in the model's log.
bool kvp_memory_measure(struct tool_memory * memory, struct kvp_model * model, const struct hwkv_policy * policy, int32_t ip,
                        struct hwkv_plan_params * params, int32_t n_batch, int32_t n_ubatch);

// The commands, one file each; argv starts after the command's name.

int kvp_show (int argc, char ** argv);
int kvp_check(int argc, char ** argv);
int kvp_make (int argc, char ** argv);
int kvp_diff (int argc, char ** argv);

#endif // KV_POLICY_H
