/* line_reader.h - lines of standard input, waiting for them or not: a batch that is being computed must not stop for
 * a program at the other end of the pipe that has nothing to ask yet. */
#pragma once

#include "base/buf.h"
#include "base/status.h"

enum { LINE_MAX_BYTES = 256 << 20 };

struct line_reader {
    struct buf bytes; // read and not handed out, from `start`
    size_t start, scanned;
    size_t number; // of the line handed out last, from 1
    bool too_long; // the line handed out last: what is here is only its end
    bool dropping; // the beginning of the line that is being read was too long to keep
    bool at_end;
    int failed; // errno of a read that failed; the input ends there
};

enum line_state { LINE_HERE, LINE_NOT_YET, LINE_NO_MORE };

/* The next line, without its newline; it lives until the next call. With `wait` never LINE_NOT_YET. A line that is
 * too long comes as too_long. Lines of white space alone are passed over. */
enum line_state line_reader_next(struct line_reader *r, bool wait, struct str *line);

/* Whether standard input is a regular file, so that nobody waits for answers before asking on. */
bool line_reader_is_file(void);

void line_reader_release(struct line_reader *r);
