#include "server-stop.h"

#include "llama.h"
#include "log.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <string>
#include <thread>

#include <cerrno>
#include <csignal>
#include <cstdint>
#include <poll.h>
#include <unistd.h>

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

static const int PATIENCE_MS = 4000;

// destructors would wait for threads, or abort where one still runs
[[noreturn]] static void end_process(int code) {
    std::lock_guard<std::mutex> lock(g_file_mutex);
    if (!g_file.empty()) {
        remove(g_file.c_str());
    }
    _Exit(code);
}

// the last resort
[[noreturn]] static void end_with_requests() {
    LOG_WRN("srv  %12s: some requests do not end, the server does\n", "stop");
    common_log_flush(common_log_main());
    end_process(0);
}

void hwkv_stop_before_start() {
    for (const int number : { SIGTERM, SIGINT }) {
        signal(number, [](int) { _exit(0); });
    }
}

static int g_pipe[2] = { -1, -1 };

// the signal, or 0 if none came within the time
static int wait_for_signal(int timeout_ms) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(timeout_ms);

    pollfd waiting = { g_pipe[0], POLLIN, 0 };
    int    n;
    do {
        const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(end - std::chrono::steady_clock::now()).count();
        n = poll(&waiting, 1, timeout_ms < 0 ? -1 : (int) std::max<int64_t>(left, 0));
    } while (n < 0 && errno == EINTR);

    int signal = 0;
    if (n > 0 && read(g_pipe[0], &signal, sizeof(signal)) != (ssize_t) sizeof(signal)) {
        return 0;
    }
    return signal;
}

static void end_soon() {
    if (wait_for_signal(PATIENCE_MS) != 0) {
        end_process(1); // somebody is impatient
    }
    end_with_requests();
}

void hwkv_stop_start(const std::function<void(int)> & stop) {
    if (pipe(g_pipe) != 0) {
        g_pipe[1] = -1;
        return;
    }

    // waits until the process ends or a signal comes
    std::thread([stop]() {
        const int signal = wait_for_signal(-1);
        if (signal != 0) {
            std::thread(end_soon).detach(); // `stop` may wait too
            stop(signal);
        }
    }).detach();
}

// nobody would ever stop the server if it can't be sent
static void send_signal(int signal, int code_if_not) {
    const int error = errno;
    if (g_pipe[1] < 0 || write(g_pipe[1], &signal, sizeof(signal)) != (ssize_t) sizeof(signal)) {
        _exit(code_if_not);
    }
    errno = error;
}

void hwkv_stop_notify(int signal) {
    g_requested = true;
    send_signal(signal, 0);
}

void hwkv_stop_at_once(int signal) {
    send_signal(signal, 1);
}
