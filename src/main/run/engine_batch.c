/* engine_batch.c - see engine_batch.h. */
#include "main/run/engine_batch.h"

#include "console/terminal.h"
#include "main/run/batch.h"

#include <stdio.h>
#include <stdlib.h>

/* A line that was read and not answered yet. */
struct entry {
    void *job; // NULL: begin failed
    bool done;
    struct error err; // its answer, if not OK
    struct entry *next;
};

struct batch {
    struct gyre *g;
    const struct batch_verb *verb;
    void *arg;
    struct line_reader reader;
    bool no_more, flush_each;
    struct entry *head, *tail; // in the order of the lines
    int n_open, max_open;
    struct buf out;
};

static enum status begin_line(struct batch *b, struct str line, struct entry *e) {
    json_t *value;
    TRY(batch_parse(&b->reader, line, NULL, &value, &e->err));
    enum status st = b->verb->begin(b->arg, b->g, value, e, &e->job, &e->err);
    json_decref(value);
    return st;
}

static void read_lines(struct batch *b) {
    struct str line;
    while (!b->no_more && b->n_open < b->max_open) {
        enum line_state state = line_reader_next(&b->reader, b->n_open == 0, &line);
        b->no_more = state == LINE_NO_MORE;
        if (state != LINE_HERE)
            return;
        struct entry *e = xcalloc(1, sizeof *e);
        e->done = begin_line(b, line, e) != OK;
        *(b->tail ? &b->tail->next : &b->head) = e;
        b->tail = e;
        b->n_open++;
    }
}

static void compute(struct batch *b) {
    enum { EVENTS = 128 };
    struct gyre_event events[EVENTS];
    int n = gyre_poll(b->g, events, EVENTS);
    for (int i = 0; i < n; i++) {
        struct entry *e = events[i].user;
        struct error err = {0};
        if (b->verb->take(e->job, b->g, &events[i], &err) != OK && e->err.status == OK)
            e->err = err;
        e->done |= events[i].kind == GYRE_DONE;
    }
}

static void write_answer(struct batch *b, const struct entry *e) {
    buf_clear(&b->out);
    if (e->err.status == OK)
        b->verb->answer(e->job, &b->out);
    else
        batch_put_error(&b->out, &e->err);
    buf_push(&b->out, '\n');
    terminal_print(stdout, buf_view(&b->out));
    if (b->flush_each)
        fflush(stdout);
}

static void drop_head(struct batch *b) {
    struct entry *e = b->head;
    b->head = e->next;
    if (!b->head)
        b->tail = NULL;
    b->n_open--;
    if (e->job)
        b->verb->free(e->job);
    free(e);
}

int engine_batch(struct gyre *g, const struct batch_verb *verb, void *arg) {
    struct batch b = {.g = g, .verb = verb, .arg = arg, .flush_each = !line_reader_is_file()};
    b.max_open = 2 * gyre_info(g)->max_seqs;
    while (!ferror(stdout) && (!b.no_more || b.head)) {
        read_lines(&b);
        if (gyre_busy(g))
            compute(&b);
        while (b.head && b.head->done) {
            write_answer(&b, b.head);
            drop_head(&b);
        }
    }
    int failed = b.reader.failed;
    while (b.head) // standard output failed, which main() says
        drop_head(&b);
    line_reader_release(&b.reader);
    buf_release(&b.out);
    return batch_input_failed(failed);
}
