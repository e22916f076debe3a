/* progress.c - see progress.h. */
#include "console/progress.h"

#include "base/clock.h"
#include "base/status.h"
#include "console/terminal.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { QUIET_US = 500000, REDRAW_US = 100000, LOG_US = 5000000, MAX_LINE = 1024 };

void progress_begin(struct progress *p, const char *what, const char *unit, int64_t total) {
    *p = (struct progress){
        .what = what, .unit = unit, .total = total, .start_us = clock_us(), .shown = terminal_is(stderr)};
    p->drawn_us = p->start_us + QUIET_US - REDRAW_US;
}

static struct human amount(const struct progress *p, double units) {
    return p->unit ? human_count(units) : human_bytes(units);
}

static void draw_bar(double fraction, int cells, char *out) {
    int full = (int)(fraction * cells);
    out[0] = '[';
    for (int i = 0; i < cells; i++)
        out[1 + i] = i < full ? '=' : i == full ? '>' : ' ';
    strcpy(out + 1 + cells, "]");
}

void progress_line(const struct progress *p, double elapsed, int width, char *out, int out_bytes) {
    enum { MOST = 24, FEWEST = 6 };
    const char *space = p->unit ? " " : "", *unit = p->unit ? p->unit : "";
    double rate = elapsed > 0 ? (double)p->done / elapsed : 0;
    char share[16] = "", of[40] = "", left[48] = "", tail[256], bar[MOST + 5] = "";
    double fraction = p->total > 0 ? MIN(1.0, (double)p->done / (double)p->total) : 0;
    if (p->total > 0) {
        snprintf(share, sizeof share, "%3d%%  ", (int)(100 * fraction));
        snprintf(of, sizeof of, "/%s", amount(p, (double)p->total).text);
        snprintf(left, sizeof left, "  %s left",
                 human_seconds(rate > 0 ? (double)(p->total - p->done) / rate : NAN).text);
    }
    snprintf(tail, sizeof tail, "%s%s%s%s%s  %s%s%s/s%s", share, amount(p, (double)p->done).text, of, space, unit,
             amount(p, rate).text, space, unit, left);
    int cells = MIN(MOST, width - (int)strlen(p->what) - (int)strlen(tail) - 6); // the bar takes what the figures leave
    if (p->total > 0 && cells >= FEWEST) {
        draw_bar(fraction, cells, bar);
        strcat(bar, "  ");
    }
    snprintf(out, (size_t)out_bytes, "%s  %s%s", p->what, bar, tail);
    if (width > 0 && (int)strlen(out) > width) // a line that wraps could not be wiped
        out[width] = '\0';
}

void progress_step(struct progress *p, int64_t done) {
    p->done = done;
    if (!p->shown)
        return;
    int64_t now = clock_us();
    if (now - p->drawn_us < REDRAW_US)
        return;
    p->drawn_us = now;
    char line[MAX_LINE];
    progress_line(p, (double)(now - p->start_us) * 1e-6, MIN(terminal_width(stderr) - 1, MAX_LINE - 1), line,
                  sizeof line);
    fprintf(stderr, "\r\033[K%s", line);
    fflush(stderr);
}

/* In a log: a line every LOG_US. */
static void log_step(struct progress *p, int64_t done) {
    int64_t now = clock_us();
    p->done = done;
    if (now - p->drawn_us < LOG_US)
        return;
    p->drawn_us = now;
    char line[MAX_LINE];
    progress_line(p, (double)(now - p->start_us) * 1e-6, 0, line, sizeof line);
    fprintf(stderr, "gyre: %s\n", line);
}

void progress_of_load(void *progress, int64_t done, int64_t total) {
    struct progress *p = progress;
    if (!p->what || total != p->total) { // files are read, and then copies made
        progress_end(p);
        progress_begin(p, "loading weights", NULL, total);
        if (!p->shown)
            p->drawn_us = p->start_us;
    }
    if (p->shown)
        progress_step(p, done);
    else
        log_step(p, done);
}

void progress_end(struct progress *p) {
    if (p->shown && p->drawn_us > p->start_us + QUIET_US - REDRAW_US) {
        fputs("\r\033[K", stderr);
        fflush(stderr);
    }
    p->shown = false;
}
