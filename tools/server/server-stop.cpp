#include "server-stop.h"

#include "llama.h"
#include "log.h"

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <string>
#include <thread>

#if !defined(_WIN32)
#include <cerrno>
#include <csignal>
#include <unistd.h>
#endif

static std::atomic<bool> g_requested { false };

bool hwkv_stop_requested() {
    return g_requested.load(std::memory_order_relaxed);
}

void hwkv_stop_watch(llama_context * ctx) {
    if (ctx) {
        llama_set_abort_callback(ctx, [](void *) { return hwkv_stop_requested(); }, nullptr);
    }
}

server_task_result_ptr hwkv_stop_result() {
    auto res = std::make_unique<server_task_result_error>();
    res->err_type = ERROR_TYPE_UNAVAILABLE;
    res->err_msg  = "the server is stopping";
    return res;
}

static std::mutex  g_file_mutex;
static std::string g_file;

void hwkv_stop_set_file(const char * path) {
    std::lock_guard<std::mutex> lock(g_file_mutex);
    g_file = path ? path : "";
}

// the last resort
static void end_soon() {
    std::this_thread::sleep_for(std::chrono::seconds(4));

    LOG_WRN("srv  %12s: some requests do not end, the server does\n", "stop");
    common_log_flush(common_log_main());

    std::lock_guard<std::mutex> lock(g_file_mutex);
    if (!g_file.empty()) {
        remove(g_file.c_str());
    }
    _Exit(0);
}

#if defined(_WIN32)

// a console handler has a thread of its own
static std::function<void(int)> g_stop;

void hwkv_stop_before_start() {
}

void hwkv_stop_start(const std::function<void(int)> & stop) {
    g_stop = stop;
}

void hwkv_stop_notify(int signal) {
    g_requested = true;
    g_stop(signal);
    std::thread(end_soon).detach();
}

#else

void hwkv_stop_before_start() {
    for (const int number : { SIGTERM, SIGINT }) {
        signal(number, [](int) { _exit(0); });
    }
}

static int g_pipe[2] = { -1, -1 };

void hwkv_stop_start(const std::function<void(int)> & stop) {
    if (pipe(g_pipe) != 0) {
        g_pipe[1] = -1;
        return;
    }

    // waits until the process ends or a signal comes
    std::thread([stop]() {
        int     signal = 0;
        ssize_t n;
        do {
            n = read(g_pipe[0], &signal, sizeof(signal));
        } while (n < 0 && errno == EINTR);

        if (n == (ssize_t) sizeof(signal)) {
            std::thread(end_soon).detach(); // `stop` may wait too
            stop(signal);
        }
    }).detach();
}

void hwkv_stop_notify(int signal) {
    g_requested = true;

    const int error = errno;
    if (g_pipe[1] < 0 || write(g_pipe[1], &signal, sizeof(signal)) != (ssize_t) sizeof(signal)) {
        _exit(0); // nobody would ever stop the server
    }
    errno = error;
}

#endif
