/* batch.h - the --batch mode of a verb: JSON lines in on standard input, JSON lines out on standard output.
 *
 * One line out for each line in, in order. A line that is faulty, or that the verb refuses, gives
 * {"error":"one sentence"} and the rest go on; lines of white space alone are passed over. Output is flushed
 * after each line unless standard input is a regular file, so that a program at the other end of two pipes
 * can ask and wait. */
#pragma once

#include "base/buf.h"
#include "base/json/json.h"
#include "console/line_reader.h"

/* Answers one line: appends one JSON value, without newline, to out. What was appended before an error is
 * dropped. `line` is borrowed for the call. */
typedef enum status (*batch_answer)(void *arg, const json_t *line, struct buf *out, struct error *err);

/* Runs until the end of standard input, or until standard output takes no more, which main() says. Returns the exit
 * code: 0, or 1 after a sentence on stderr when standard input cannot be read. *numbers has those of the line at hand
 * (json.h); NULL: nobody wants them. */
int batch_run(batch_answer answer, void *arg, struct jv_numbers *numbers);

/* For batches that answer later (engine_batch.h): the value of a line that the reader has just given, which the caller
 * owns; and out as the answer of a line that failed. */
enum status batch_parse(const struct line_reader *r, struct str line, struct jv_numbers *numbers, json_t **out,
                        struct error *err);
void batch_put_error(struct buf *out, const struct error *err);

/* The exit code for the reader's `failed`, after a sentence on stderr if it is not 0. */
int batch_input_failed(int failed);
