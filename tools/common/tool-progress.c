#include "tool-progress.h"

#include "tool-json.h"
#include "tool-print.h"

#include <math.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define BAR_WIDTH 24

enum view { VIEW_NONE, VIEW_BAR, VIEW_LINES, VIEW_JSON };

struct tool_progress {
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
    const char * term = getenv("TERM");
    return isatty(fileno(out)) == 1 && term && strcmp(term, "dumb") != 0;
}

struct tool_progress * tool_progress_init(FILE * out, enum tool_progress_mode mode) {
    struct tool_progress * p = calloc(1, sizeof(*p));
    if (p) {
        p->out   = out;
        p->view  = mode == TOOL_PROGRESS_NONE ? VIEW_NONE : mode == TOOL_PROGRESS_JSON ? VIEW_JSON : is_terminal(out) ? VIEW_BAR : VIEW_LINES;
    }
    return p;
}

void tool_progress_free(struct tool_progress * p) {
    if (p) {
        tool_progress_end(p);
        free(p);
    }
}

// Seconds left, NAN while nothing is known.
static double time_left(const struct tool_progress * p, double elapsed) {
    const double fresh = p->done - p->skipped;
    return fresh > 0.0 ? fmax(p->total - p->done, 0.0) * elapsed / fresh : (double) NAN;
}

static double share_done(const struct tool_progress * p) {
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

static void erase_bar(struct tool_progress * p) {
    if (p->drawn) {
        fputs("\r\033[K", p->out);
        p->drawn = false;
    }
}

static void draw_bar(struct tool_progress * p, double elapsed) {
    char bar[BAR_WIDTH + 1], passed[32], left[32], line[320];

    const int n = (int) (share_done(p) * BAR_WIDTH);
    memset(bar, '.', BAR_WIDTH);
    memset(bar, '#', (size_t) n);
    bar[BAR_WIDTH] = '\0';

    snprintf(line, sizeof(line), "[%s] %3d%%  %s, %s left  %s", bar, (int) (100.0 * share_done(p)), format_time(elapsed, passed),
             format_time(time_left(p, elapsed), left), p->stage);
    // a full line would wrap and could not be rewritten
    const int max = tool_columns(p->out, 80) - 1;
    size_t len = 0;
    for (int columns = 0; line[len]; len++) {
        columns += ((unsigned char) line[len] & 0xC0) != 0x80;
        if (columns > max) {
            break;
        }
    }
    fprintf(p->out, "\r\033[K%.*s", (int) len, line);
    p->drawn = true;
}

static void draw_line(struct tool_progress * p, double elapsed) {
    char passed[32], left[32];
    fprintf(p->out, "%3d%%  %s, %s left  %s\n", (int) (100.0 * share_done(p)), format_time(elapsed, passed),
            format_time(time_left(p, elapsed), left), p->stage);
}

static struct hwkv_json * milliseconds(double seconds) {
    return hwkv_json_new_number(round(seconds * 1e3) / 1e3); // null while nothing is known
}

static void draw_json(struct tool_progress * p, double elapsed) {
    int        layer     = 0;
    const bool has_layer = sscanf(p->stage, "layer %d", &layer) == 1;

    struct hwkv_json * object = hwkv_json_new_object();
    hwkv_json_add(object, "stage",     tool_json_text(p->stage));
    hwkv_json_add(object, "layer",     has_layer ? hwkv_json_new_int(layer) : hwkv_json_new_null());
    hwkv_json_add(object, "done",      tool_json_measure(p->done));
    hwkv_json_add(object, "total",     tool_json_measure(p->total));
    hwkv_json_add(object, "elapsed_s", milliseconds(elapsed));
    hwkv_json_add(object, "eta_s",     milliseconds(time_left(p, elapsed)));
    tool_json_print_line(p->out, object);
}

static void draw(struct tool_progress * p, bool force) {
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

void tool_progress_start(struct tool_progress * p, double total) {
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

void tool_progress_skip(struct tool_progress * p, double units) {
    if (p) {
        p->done    += units;
        p->skipped += units;
    }
}

void tool_progress_add(struct tool_progress * p, double units) {
    if (p) {
        p->done += units;
        draw(p, false);
    }
}

void tool_progress_stage(struct tool_progress * p, const char * text) {
    if (p) {
        snprintf(p->stage, sizeof(p->stage), "%s", text);
        draw(p, false);
    }
}

void tool_progress_line(struct tool_progress * p, const char * fmt, ...) {
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
        struct hwkv_json * object = hwkv_json_new_object();
        hwkv_json_add(object, "message", tool_json_text(line));
        tool_json_print_line(p->out, object);
    } else {
        fprintf(p->out, "%s\n", line);
    }
    if (redraw) {
        draw(p, true);
    }
    fflush(p->out);
}

void tool_progress_end(struct tool_progress * p) {
    if (p && p->running) {
        if (p->view == VIEW_JSON) {
            draw(p, true);
        }
        erase_bar(p);
        fflush(p->out);
        p->running = false;
    }
}
