#pragma once

// The file of a saved slot under a KV policy: its tokens, the state of all its heads and its checkpoints.
//
// All numbers in the machine's byte order.
//
//   "HWKVSLOT"  u32 version  u32 version of llama.cpp's states  u64 size of the file
//   text: id of the windows, id of the model, description of the cache      each: u32 size, bytes
//   bytes: tokens, state, state of the draft                                each: u64 size, bytes
//   u32 number of blocks                                                     each: u32 size, bytes
//   u32 number of checkpoints                                                each: i64 tokens, i32 first and last position, u32 turn,
//                                                                                  blocks of the state, of the draft's state
//                                                                                  (u32 count, u32 indices), bytes of the speculator
//   u64 hash of all bytes before it

#include "server-kv-blocks.h"
#include "server-task.h"

#include <memory>
#include <string>
#include <vector>

// a model by its fingerprint and samples of its file: two trainings of one shape differ
std::string server_kv_model_id(const std::string & fingerprint, const std::string & path);

class server_kv_slot_file {
public:
    // what a file and a server must agree on
    struct identity {
        std::string windows;
        std::string model;
        std::string cache;
    };

    server_kv_slot_file(llama_context * ctx, llama_context * ctx_dft, int id_slot, identity id) :
        ctx(ctx), ctx_dft(ctx_dft), id_slot(id_slot), id(std::move(id)) {}

    // Bytes written. The file is the old one until it is the whole new one. Throws std::runtime_error.
    size_t save(const std::string & path, const std::vector<char> & tokens, const server_prompt & prompt) const;

    // Bytes read. Throws std::runtime_error, and then the slot is as it was.
    size_t restore(const std::string & path, server_prompt & prompt, int n_ctx, bool has_mtmd, const std::shared_ptr<server_kv_blocks> & store) const;

private:
    llama_context * ctx;
    llama_context * ctx_dft;
    int             id_slot;
    identity        id;
};
