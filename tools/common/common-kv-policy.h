#pragma once

// --kv-policy and its companions for every tool that takes the common arguments.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

struct common_arg;
struct common_params;
struct llama_context;
struct llama_context_params;
struct llama_model_params;

struct common_kv_policy {
    std::string path;
    std::string point;
    int32_t     rollback  = 64;
    bool        strict    = false;
    bool        allow_cpu = false;
    bool        dry_run   = false;
    std::string types_option; // by which the user chose cache types, "" for none

    int32_t checkpoint_mib = -1; // llama-server's context checkpoints, -1: half of what the policy saves

    // drafted tokens are taken back too; the strings must outlive the call that takes cparams
    void apply(llama_context_params & cparams, int32_t n_draft_max) const;

    // once the context is there: a line for each window, a total, and what slots that share it cost
    void report(const llama_context * ctx) const;

    // Before a model is loaded. With dry_run: print what would be allocated where, and exit. Else: keep the reason for which a
    // policy is refused from here on; it becomes the tool's last line.
    void run_dry(common_params & params, const llama_model_params & mparams, const llama_context_params & cparams) const;

    // After --fit: it takes what a context needs to be proportional to its length. With windows it is more at first and less later,
    // so that a context in between, which it has not measured, can be too much.
    void fit(common_params & params, const llama_model_params & mparams, llama_context_params & cparams) const;
};

// Bytes of a context checkpoint that are kept elsewhere, so that checkpoints can share them.
struct common_kv_packed {

    virtual ~common_kv_packed() = default;
};

// Keeps the reason for which a policy is refused from here on; it becomes the last line of a tool without the common arguments.
void common_kv_policy_watch();

// options: those that are there, which are to have -ctk and -ctv
void common_kv_policy_add_args(const std::function<void(common_arg)> & add_opt, std::vector<common_arg> & options);
