#pragma once

// Saves a slot under a KV policy to a file and brings it back (the format: hwkv-slot-file.h).

#include "server-kv-blocks.h"
#include "server-task.h"

#include <list>
#include <memory>
#include <string>
#include <vector>

// a model by its fingerprint and samples of its file: two trainings of one shape differ
std::string server_kv_model_id(const std::string & fingerprint, const std::string & path);

class server_kv_slot_file {
public:
    // what a file and a server must agree on
    struct identity {
        std::string model;
        std::string cache;
        std::string policy; // windows and types
    };

    server_kv_slot_file(llama_context * ctx, llama_context * ctx_dft, int id_slot, identity id) :
        ctx(ctx), ctx_dft(ctx_dft), id_slot(id_slot), id(std::move(id)) {}

    // Bytes written. The file is the old one until it is the whole new one. Throws std::runtime_error, std::invalid_argument for a name.
    size_t save(const std::string & path, const std::vector<char> & packed, const server_tokens & tokens,
                const std::list<common_prompt_checkpoint> & checkpoints) const;

    // Where checkpoints go, and how many bytes of them there may be: those for which there is no room are left out.
    struct destination {
        std::shared_ptr<server_kv_blocks> store;
        size_t limit;
        int    n_ctx;
        bool   has_mtmd;
    };

    // Bytes read. Nothing of the slot is touched before all of the file has been held against itself and this server. Throws
    // std::runtime_error, and then the slot is as it was.
    size_t restore(const std::string & path, server_prompt & prompt, const destination & to) const;

private:
    llama_context * ctx;
    llama_context * ctx_dft;
    int             id_slot;
    identity        id;
};
