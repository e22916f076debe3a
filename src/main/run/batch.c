/* batch.c - see batch.h. */
#include "main/run/batch.h"

#include "console/terminal.h"
#include "main/flags/flags.h"

#include <stdio.h>

enum status batch_parse(const struct line_reader *r, struct str line, struct jv_numbers *numbers, json_t **out,
                        struct error *err) {
    char where[40];
    size_t budget = JV_MAX_BYTES;
    snprintf(where, sizeof where, "line %zu", r->number);
    if (r->too_long)
        return fail(err, ERR_LIMIT, "%s: longer than %d bytes", where, LINE_MAX_BYTES);
    return jv_parse_numbers(line, where, 0, &budget, numbers, out, err);
}

void batch_put_error(struct buf *out, const struct error *err) {
    buf_clear(out);
    buf_str(out, STR("{\"error\":"));
    buf_json_string(out, str_of(err->text));
    buf_push(out, '}');
}

int batch_input_failed(int failed) {
    struct error err;
    if (failed == 0)
        return 0;
    fail(&err, ERR_IO, "standard input: cannot read: %s", strerror(failed));
    return verb_failed(&err);
}

struct batch {
    batch_answer answer;
    void *arg;
    struct jv_numbers *numbers;
};

static enum status answer_line(const struct batch *b, const struct line_reader *r, struct str line, struct buf *out,
                               struct error *err) {
    json_t *value;
    enum status st = batch_parse(r, line, b->numbers, &value, err);
    if (st == OK)
        st = b->answer(b->arg, value, out, err);
    json_decref(value);
    if (b->numbers)
        jv_numbers_release(b->numbers);
    return st;
}

int batch_run(batch_answer answer, void *arg, struct jv_numbers *numbers) {
    struct batch batch = {answer, arg, numbers};
    bool flush_each = !line_reader_is_file();
    struct line_reader reader = {0};
    struct buf out = {0};
    struct str line;
    while (!ferror(stdout) && line_reader_next(&reader, true, &line) == LINE_HERE) {
        struct error err = {0};
        buf_clear(&out);
        if (answer_line(&batch, &reader, line, &out, &err) != OK)
            batch_put_error(&out, &err);
        buf_push(&out, '\n');
        terminal_print(stdout, buf_view(&out));
        if (flush_each)
            fflush(stdout);
    }
    int failed = reader.failed;
    line_reader_release(&reader);
    buf_release(&out);
    return batch_input_failed(failed);
}
