/* line_reader.c - see line_reader.h. */
#include "console/line_reader.h"

#include <errno.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

enum { READ_BYTES = 64 << 10 };

static bool is_blank(struct str s) {
    for (size_t i = 0; i < s.len; i++)
        if (!strchr(" \t\r", s.ptr[i]) || !s.ptr[i])
            return false;
    return true;
}

static bool input_is_ready(void) {
    struct pollfd fd = {.fd = STDIN_FILENO, .events = POLLIN};
    return poll(&fd, 1, 0) != 0;
}

/* Moves what is not handed out to the front and reads more behind it. */
static void read_more(struct line_reader *r) {
    memmove(r->bytes.ptr, r->bytes.ptr + r->start, r->bytes.len - r->start);
    r->bytes.len -= r->start;
    r->scanned -= r->start;
    r->start = 0;
    buf_reserve(&r->bytes, READ_BYTES);
    ssize_t n;
    do
        n = read(STDIN_FILENO, r->bytes.ptr + r->bytes.len, READ_BYTES);
    while (n < 0 && errno == EINTR);
    if (n > 0) {
        r->bytes.len += (size_t)n;
        return;
    }
    r->at_end = true;
    r->failed = n < 0 ? errno : 0;
}

/* A line of what was read: up to the newline, or the rest of the input. */
static bool cut_line(struct line_reader *r, struct str *line) {
    char *newline = memchr(r->bytes.ptr + r->scanned, '\n', r->bytes.len - r->scanned);
    if (!newline && !(r->at_end && (r->start < r->bytes.len || r->dropping))) {
        r->scanned = r->bytes.len;
        return false;
    }
    size_t end = newline ? (size_t)(newline - r->bytes.ptr) : r->bytes.len;
    *line = (struct str){r->bytes.ptr + r->start, end - r->start};
    r->start = r->scanned = newline ? end + 1 : end;
    r->number++;
    r->too_long = r->dropping;
    r->dropping = false;
    return true;
}

/* Forgets the beginning of a line that has grown too long; its end is still looked for. */
static void drop_long_line(struct line_reader *r) {
    if (r->bytes.len - r->start <= LINE_MAX_BYTES)
        return;
    r->dropping = true;
    r->start = r->scanned = r->bytes.len;
}

enum line_state line_reader_next(struct line_reader *r, bool wait, struct str *line) {
    buf_reserve(&r->bytes, 1);
    for (;;) {
        while (cut_line(r, line))
            if (r->too_long || !is_blank(*line))
                return LINE_HERE;
        if (r->at_end)
            return LINE_NO_MORE;
        drop_long_line(r);
        if (!wait && !input_is_ready())
            return LINE_NOT_YET;
        read_more(r);
    }
}

bool line_reader_is_file(void) {
    struct stat info;
    return fstat(STDIN_FILENO, &info) == 0 && S_ISREG(info.st_mode);
}

void line_reader_release(struct line_reader *r) {
    buf_release(&r->bytes);
    *r = (struct line_reader){0};
}
