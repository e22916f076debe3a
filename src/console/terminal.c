/* terminal.c - see terminal.h. */
#include "console/terminal.h"

#include "base/status.h"

#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

bool terminal_is(FILE *stream) { return isatty(fileno(stream)) == 1; }

/* Newlines of a text are its own; in a line of ours that quotes it one would begin another line. */
static void print_harmless(FILE *stream, struct str text, bool is_line) {
    for (size_t i = 0; i < text.len;) {
        int32_t cp;
        int n = utf8_decode(text.ptr + i, text.len - i, &cp);
        bool breaks = cp == '\n' && (!is_line || i + 1 == text.len);
        if (code_point_steers(cp) && !breaks && cp != '\t')
            fputc('?', stream);
        else
            fwrite(text.ptr + i, 1, (size_t)n, stream);
        i += (size_t)n;
    }
}

void terminal_print(FILE *stream, struct str text) {
    if (terminal_is(stream))
        print_harmless(stream, text, false);
    else
        fwrite(text.ptr, 1, text.len, stream);
}

void terminal_say(FILE *stream, const char *format, ...) {
    char line[8192];
    va_list args;
    va_start(args, format);
    int n = vsnprintf(line, sizeof line, format, args);
    va_end(args);
    print_harmless(stream, (struct str){line, (size_t)MIN(MAX(n, 0), (int)sizeof line - 1)}, true);
    if (n >= (int)sizeof line)
        fputc('\n', stream);
}

int terminal_width(FILE *stream) {
    const char *columns = getenv("COLUMNS");
    long width = columns ? strtol(columns, NULL, 10) : 0;
    struct winsize size;
    if (width <= 0 && ioctl(fileno(stream), TIOCGWINSZ, &size) == 0)
        width = size.ws_col;
    if (width <= 0)
        width = 80;
    return (int)MIN(MAX(width, 20), 1000);
}

bool terminal_colours(FILE *stream) {
    const char *none = getenv("NO_COLOR"), *term = getenv("TERM");
    return terminal_is(stream) && !(none && *none) && !(term && strcmp(term, "dumb") == 0);
}

const char *terminal_style(FILE *stream, enum style style) {
    static const char *const codes[] = {
        [STYLE_NONE] = "\033[0m",   [STYLE_BOLD] = "\033[1m",    [STYLE_DIM] = "\033[2m",   [STYLE_RED] = "\033[31m",
        [STYLE_GREEN] = "\033[32m", [STYLE_YELLOW] = "\033[33m", [STYLE_CYAN] = "\033[36m",
    };
    return terminal_colours(stream) ? codes[style] : "";
}

/* Divides by `step` until three figures are left, and writes them with the unit reached. */
static struct human three_figures(double value, double step, const char *const *units, size_t n_units) {
    struct human h;
    size_t u = 0;
    // 999.5 would print as 1000 of its unit.
    while (u + 1 < n_units && value >= (step == 1000 ? 999.5 : 1023.5)) {
        value /= step;
        u++;
    }
    int decimals = u == 0 || value >= 99.95 ? 0 : value >= 9.995 ? 1 : 2;
    snprintf(h.text, sizeof h.text, "%.*f%s%s", decimals, value, *units[u] ? " " : "", units[u]);
    return h;
}

struct human human_bytes(double bytes) {
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
    return three_figures(bytes, 1024, units, ARRAY_LEN(units));
}

struct human human_count(double count) {
    static const char *const units[] = {"", "k", "M", "B", "T"};
    struct human h;
    if (count < 10000) {
        snprintf(h.text, sizeof h.text, "%.0f", count);
        return h;
    }
    return three_figures(count, 1000, units, ARRAY_LEN(units));
}

struct human human_seconds(double seconds) {
    struct human h;
    if (!(seconds < 360000)) // also not a number: the rate is not known yet
        return (struct human){"--"};
    long whole = lround(seconds);
    if (seconds < 0.9995)
        snprintf(h.text, sizeof h.text, "%.0f ms", seconds * 1000);
    else if (seconds < 59.95)
        snprintf(h.text, sizeof h.text, "%.1f s", seconds);
    else if (whole < 3600)
        snprintf(h.text, sizeof h.text, "%ld:%02ld", whole / 60, whole % 60);
    else
        snprintf(h.text, sizeof h.text, "%ld:%02ld:%02ld", whole / 3600, whole / 60 % 60, whole % 60);
    return h;
}
