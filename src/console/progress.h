/* progress.h - one line on stderr that tells how far a long piece of work is; silent unless stderr is a terminal.
 *
 *     perplexity  [=========>           ]  43%  7.1k/16.3k tokens  512 tokens/s  18.0 s left
 *
 * The line is redrawn at most ten times a second, so progress_step may be called in the innermost loop. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct progress {
    const char *what, *unit; // "perplexity", "tokens"; unit NULL means bytes
    int64_t total;           // of units; 0: not known, and then no bar and no time left is shown
    int64_t done, start_us, drawn_us;
    bool shown;
};

/* what and unit are borrowed until progress_end. Nothing appears during the first half second, so that short
 * work stays quiet. */
void progress_begin(struct progress *p, const char *what, const char *unit, int64_t total);
void progress_step(struct progress *p, int64_t done); // done so far, not since the last step
void progress_end(struct progress *p); // wipes the line; a struct that was never begun is fine when zeroed

/* For gyre_options.load_step, with a zeroed struct as load_context: shows how far weights are loaded. Where stderr
 * is no terminal, it gets a line every five seconds. Ends with progress_end. */
void progress_of_load(void *progress, int64_t done, int64_t total);

/* The line as it would be drawn `elapsed` seconds after the start, at most width columns; 0: without a bar, as long
 * as it gets. */
void progress_line(const struct progress *p, double elapsed, int width, char *out, int out_bytes);
