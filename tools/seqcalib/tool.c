#include "tool.h"

#include <stdio.h>
#include <string.h>

volatile sig_atomic_t sc_stop;

static void on_signal(int sig) {
    sc_stop = sig;
}

void sc_catch_signals(void) {
    struct sigaction action = { .sa_handler = on_signal, .sa_flags = (int) SA_RESETHAND };
    sigemptyset(&action.sa_mask);
    sigaction(SIGINT,  &action, NULL);
    sigaction(SIGTERM, &action, NULL);
}

void sc_log_callback(enum ggml_log_level level, const char * text, void * user_data) {
    struct sc_log * log = user_data;
    if (log->verbose && log->say) {
        log->say("log", "%.*s", (int) strcspn(text, "\n"), text);
    } else if (log->verbose) {
        fputs(text, stderr);
    }
    if (level == GGML_LOG_LEVEL_ERROR && log->error[0] == '\0') {
        snprintf(log->error, sizeof(log->error), "%s", text);
        log->error[strcspn(log->error, "\n")] = '\0';
    }
}
