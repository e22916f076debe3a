/* batch.c - see batch.h. */
#include "main/batch.h"

#include <errno.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

enum { LINE_MAX_BYTES = 256 << 20 };

/* Reads up to the next newline, which is left out, into line. False at the end of the input. A line that is too
 * long is read to its end, keeping LINE_MAX_BYTES + 1 bytes of it. */
static bool read_line(FILE *in, struct buf *line) {
    buf_clear(line);
    int c;
    bool any = false;
    while ((c = getc_unlocked(in)) != EOF) {
        any = true;
        if (c == '\n')
            return true;
        if (line->len <= LINE_MAX_BYTES)
            buf_push(line, (char)c);
    }
    return any;
}

static bool is_blank(struct str s) {
    for (size_t i = 0; i < s.len; i++)
        if (!strchr(" \t\r", s.ptr[i]) || !s.ptr[i])
            return false;
    return true;
}

static enum status answer_line(struct str line, size_t number, batch_answer answer, void *arg, struct buf *out, struct error *err) {
    char where[40];
    snprintf(where, sizeof where, "line %zu", number);
    if (line.len > LINE_MAX_BYTES)
        return fail(err, ERR_LIMIT, "%s: longer than %d bytes", where, LINE_MAX_BYTES);
    json_t *value;
    TRY(jv_parse(line, where, 0, &value, err));
    enum status st = answer(arg, value, out, err);
    json_decref(value);
    return st;
}

static void put_error(struct buf *out, const struct error *err) {
    buf_clear(out);
    buf_str(out, STR("{\"error\":"));
    buf_json_string(out, str_of(err->text));
    buf_push(out, '}');
}

int batch_run(batch_answer answer, void *arg) {
    struct stat info;
    bool flush_each = fstat(STDIN_FILENO, &info) != 0 || !S_ISREG(info.st_mode);
    struct buf line = {0}, out = {0};
    size_t number = 0;
    while (!ferror(stdout) && read_line(stdin, &line)) {
        number++;
        if (is_blank(buf_view(&line)))
            continue;
        struct error err = {0};
        buf_clear(&out);
        if (answer_line(buf_view(&line), number, answer, arg, &out, &err) != OK)
            put_error(&out, &err);
        buf_push(&out, '\n');
        fwrite(out.ptr, 1, out.len, stdout);
        if (flush_each)
            fflush(stdout);
    }
    buf_release(&line);
    buf_release(&out);
    if (ferror(stdin)) {
        fprintf(stderr, "gyre: standard input cannot be read: %s\n", strerror(errno));
        return 1;
    }
    if (fflush(stdout) != 0 || ferror(stdout)) {
        fprintf(stderr, "gyre: standard output cannot be written: %s\n", strerror(errno));
        return 1;
    }
    return 0;
}
