#include "tool-llama.h"

#include "tool-say.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

volatile sig_atomic_t tool_stop;

static void on_signal(int sig) {
    tool_stop = sig;
}

void tool_catch_signals(void) {
    struct sigaction action = { .sa_handler = on_signal, .sa_flags = (int) SA_RESETHAND };
    sigemptyset(&action.sa_mask);
    sigaction(SIGINT,  &action, NULL);
    sigaction(SIGTERM, &action, NULL);
}

void tool_log_callback(enum ggml_log_level level, const char * text, void * user_data) {
    struct tool_log * log = user_data;
    if (log->verbose && log->json) {
        tool_say("log", "%.*s", (int) strcspn(text, "\n"), text);
    } else if (log->verbose) {
        fputs(text, stderr);
    }
    if (level == GGML_LOG_LEVEL_ERROR && log->error[0] == '\0') {
        snprintf(log->error, sizeof(log->error), "%.*s", (int) strcspn(text, "\n"), text);
    }
}

const char * tool_log_reason(const struct tool_log * log) {
    return log->error[0] ? log->error : "unknown reason";
}

int32_t tool_n_processors(void) {
    const long n = sysconf(_SC_NPROCESSORS_ONLN);
    return n > 0 ? (int32_t) n : 1;
}

// hwkv knows the cache types by ggml's names
enum ggml_type tool_ggml_type(enum hwkv_type type) {
    for (int i = 0; i < GGML_TYPE_COUNT; i++) {
        const char * name = ggml_type_name((enum ggml_type) i);
        if (name && strcmp(name, hwkv_type_name(type)) == 0) {
            return (enum ggml_type) i;
        }
    }
    return GGML_TYPE_F16;
}
