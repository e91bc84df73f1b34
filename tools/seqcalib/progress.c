// A progress line.

#if !defined(_WIN32)
#define _DEFAULT_SOURCE // struct winsize
#endif

#include "progress.h"

#include "text.h"

#include <math.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#if !defined(_WIN32)
#include <sys/ioctl.h>
#include <unistd.h>
#endif

#define BAR_WIDTH 24

enum view { VIEW_NONE, VIEW_BAR, VIEW_LINES, VIEW_JSON };

struct sc_progress {
    FILE    * out;
    enum view view;
    bool      running;
    bool      drawn;     // the bar is on the screen
    double    total;
    double    done;
    double    skipped;
    double    t_start;
    double    t_next;    // no output before this time
    char      stage[128];
};

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double) t.tv_sec + 1e-9 * (double) t.tv_nsec;
}

static bool is_terminal(FILE * out) {
#if defined(_WIN32)
    (void) out;
    return false;
#else
    const char * term = getenv("TERM");
    return isatty(fileno(out)) == 1 && term && strcmp(term, "dumb") != 0;
#endif
}

static int terminal_width(FILE * out) {
#if !defined(_WIN32)
    struct winsize size;
    if (ioctl(fileno(out), TIOCGWINSZ, &size) == 0 && size.ws_col >= 20) {
        return size.ws_col;
    }
#endif
    (void) out;
    return 80;
}

struct sc_progress * sc_progress_init(FILE * out, enum sc_progress_mode mode) {
    struct sc_progress * p = calloc(1, sizeof(*p));
    if (p) {
        p->out   = out;
        p->view  = mode == SC_PROGRESS_NONE ? VIEW_NONE : mode == SC_PROGRESS_JSON ? VIEW_JSON : is_terminal(out) ? VIEW_BAR : VIEW_LINES;
    }
    return p;
}

void sc_progress_free(struct sc_progress * p) {
    if (p) {
        sc_progress_end(p);
        free(p);
    }
}

// Seconds left, NAN while nothing is known.
static double time_left(const struct sc_progress * p, double elapsed) {
    const double fresh = p->done - p->skipped;
    return fresh > 0.0 ? fmax(p->total - p->done, 0.0) * elapsed / fresh : (double) NAN;
}

static double share_done(const struct sc_progress * p) {
    return p->total > 0.0 ? fmin(p->done / p->total, 1.0) : 0.0;
}

static const char * format_time(double seconds, char buf[32]) {
    if (isnan(seconds)) {
        return "?";
    }
    const long s = seconds < 1e9 ? (long) (seconds + 0.5) : 1000000000L;
    if (s < 3600) {
        snprintf(buf, 32, "%ld:%02ld", s / 60, s % 60);
    } else {
        snprintf(buf, 32, "%ld:%02ld:%02ld", s / 3600, s / 60 % 60, s % 60);
    }
    return buf;
}

static void erase_bar(struct sc_progress * p) {
    if (p->drawn) {
        fputs("\r\033[K", p->out);
        p->drawn = false;
    }
}

static void draw_bar(struct sc_progress * p, double elapsed) {
    char bar[BAR_WIDTH + 1], passed[32], left[32], line[320];

    const int n = (int) (share_done(p) * BAR_WIDTH);
    memset(bar, '.', BAR_WIDTH);
    memset(bar, '#', (size_t) n);
    bar[BAR_WIDTH] = '\0';

    snprintf(line, sizeof(line), "[%s] %3d%%  %s, %s left  %s", bar, (int) (100.0 * share_done(p)), format_time(elapsed, passed),
             format_time(time_left(p, elapsed), left), p->stage);
    // a full line would wrap and could not be rewritten
    const size_t max = (size_t) terminal_width(p->out) - 1;
    size_t len = 0;
    for (size_t columns = 0, step = 1; line[len] && columns < max && step > 0; columns++) {
        step = sc_utf8_length(line + len, strlen(line + len));
        len += step;
    }
    fprintf(p->out, "\r\033[K%.*s", (int) len, line);
    p->drawn = true;
}

static void draw_line(struct sc_progress * p, double elapsed) {
    char passed[32], left[32];
    fprintf(p->out, "%3d%%  %s, %s left  %s\n", (int) (100.0 * share_done(p)), format_time(elapsed, passed),
            format_time(time_left(p, elapsed), left), p->stage);
}

static void draw_json(struct sc_progress * p, double elapsed) {
    const double left  = time_left(p, elapsed);
    int          layer = 0;

    fprintf(p->out, "{\"stage\": ");
    sc_json_string(p->out, p->stage);
    if (sscanf(p->stage, "layer %d", &layer) == 1) {
        fprintf(p->out, ", \"layer\": %d", layer);
    } else {
        fprintf(p->out, ", \"layer\": null");
    }
    fprintf(p->out, ", \"done\": %.9g, \"total\": %.9g, \"elapsed_s\": %.3f, \"eta_s\": ", p->done, p->total, elapsed);
    if (isnan(left)) {
        fprintf(p->out, "null}\n");
    } else {
        fprintf(p->out, "%.3f}\n", left);
    }
}

static void draw(struct sc_progress * p, bool force) {
    const double t = now();
    if (!p->running || p->view == VIEW_NONE || (t < p->t_next && !force)) {
        return;
    }
    switch (p->view) {
        case VIEW_BAR:   draw_bar (p, t - p->t_start); p->t_next = t +  0.1; break;
        case VIEW_LINES: draw_line(p, t - p->t_start); p->t_next = t + 10.0; break;
        case VIEW_JSON:  draw_json(p, t - p->t_start); p->t_next = t +  0.5; break;
        case VIEW_NONE:  break;
    }
    fflush(p->out);
}

void sc_progress_start(struct sc_progress * p, double total) {
    if (p) {
        p->total    = total;
        p->done     = 0.0;
        p->skipped  = 0.0;
        p->running  = true;
        p->t_start  = now();
        p->t_next   = p->t_start + (p->view == VIEW_LINES ? 3.0 : 0.0);
        p->stage[0] = '\0';
    }
}

void sc_progress_skip(struct sc_progress * p, double units) {
    if (p) {
        p->done    += units;
        p->skipped += units;
    }
}

void sc_progress_add(struct sc_progress * p, double units) {
    if (p) {
        p->done += units;
        draw(p, false);
    }
}

void sc_progress_stage(struct sc_progress * p, const char * text) {
    if (p) {
        snprintf(p->stage, sizeof(p->stage), "%s", text);
        draw(p, false);
    }
}

void sc_progress_line(struct sc_progress * p, const char * fmt, ...) {
    if (!p || p->view == VIEW_NONE) {
        return;
    }
    char line[1024];
    va_list args;
    va_start(args, fmt);
    vsnprintf(line, sizeof(line), fmt, args);
    va_end(args);

    const bool redraw = p->drawn;
    erase_bar(p);
    if (p->view == VIEW_JSON) {
        fprintf(p->out, "{\"message\": ");
        sc_json_string(p->out, line);
        fprintf(p->out, "}\n");
    } else {
        fprintf(p->out, "%s\n", line);
    }
    if (redraw) {
        draw(p, true);
    }
    fflush(p->out);
}

void sc_progress_end(struct sc_progress * p) {
    if (p && p->running) {
        if (p->view == VIEW_JSON) {
            draw(p, true);
        }
        erase_bar(p);
        fflush(p->out);
        p->running = false;
    }
}
