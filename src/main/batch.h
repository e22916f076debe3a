/* batch.h - the --batch mode of a verb: JSON lines in on standard input, JSON lines out on standard output.
 *
 * One line out for each line in, in order. A line that is faulty, or that the verb refuses, gives
 * {"error":"one sentence"} and the rest go on; lines of white space alone are passed over. Output is flushed
 * after each line unless standard input is a regular file, so that a program at the other end of two pipes
 * can ask and wait. */
#pragma once

#include "base/buf.h"
#include "base/json.h"

/* Answers one line: appends one JSON value, without newline, to out. What was appended before an error is
 * dropped. `line` is borrowed for the call. */
typedef enum status (*batch_answer)(void *arg, const json_t *line, struct buf *out, struct error *err);

/* Runs until the end of standard input; returns the exit code: 0, or 1 after a sentence on stderr when
 * standard input cannot be read or standard output cannot be written. */
int batch_run(batch_answer answer, void *arg);
