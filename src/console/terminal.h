/* terminal.h - whether somebody is watching, how wide their window is, and sizes as people read them. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "base/str.h"

bool terminal_is(FILE *stream);

/* Writes text that a model or a peer made. On a terminal, what would steer it (base/str.h) and what is not UTF-8
 * becomes '?', but for newlines and tabs; anywhere else every byte is written as it is. A piece holds whole
 * characters. */
void terminal_print(FILE *stream, struct str text);

/* Writes a line of ours that quotes a name. What would steer a terminal becomes '?' everywhere: a log is looked at on
 * one. */
void terminal_say(FILE *stream, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Columns of the terminal behind stream: $COLUMNS, else what the terminal says, else 80; 20 to 1000. */
int terminal_width(FILE *stream);

/* May stream be coloured? On a terminal only, and neither when NO_COLOR is set to anything (no-color.org) nor
 * when TERM is dumb. */
bool terminal_colours(FILE *stream);

/* The escape sequence that begins a style on stream, or "" where colours are not wanted. */
enum style { STYLE_NONE, STYLE_BOLD, STYLE_DIM, STYLE_RED, STYLE_GREEN, STYLE_YELLOW, STYLE_CYAN };
const char *terminal_style(FILE *stream, enum style style);

/* "15.2 GiB", "512 B": three figures, powers of 1024. */
struct human {
    char text[32];
};
struct human human_bytes(double bytes);

/* "7.62 B", "494 M", "4096": three figures, powers of 1000 with the short-scale letters of parameter counts
 * (k, M, B, T); below 10,000 exact. */
struct human human_count(double count);

/* "3.1 s", "2:07", "1:02:40"; below a second "420 ms". */
struct human human_seconds(double seconds);
