#pragma once

// An end that does not wait: SIGTERM and Ctrl-C stop the batch that is being processed.

#include "server-task.h"

#include <functional>

struct llama_context;

// a context whose decoding ends with status 2 once a stop is requested; null is fine
void hwkv_stop_watch(llama_context * ctx);

bool hwkv_stop_requested();

// what requests get that wait for a result
server_task_result_ptr hwkv_stop_result();

// While the model is loaded there is nothing to end but the process.
void hwkv_stop_before_start();

// Called from a signal handler. Nothing there may wait for a lock, so a thread of its own calls `stop`; a server that has
// not ended some seconds later, be it that a client does not read its answer, is ended then.
void hwkv_stop_start(const std::function<void(int)> & stop); // before the handler is set
void hwkv_stop_notify(int signal);
void hwkv_stop_at_once(int signal); // the second one: exit code 1

// a file that is not complete yet and goes when the server is ended; null: none
void hwkv_stop_set_file(const char * path);
