/* kl_divergence.c - see kl_divergence.h. */
#include "main/run/kl_divergence.h"

#include "base/buf.h"
#include "base/file.h"
#include "console/interrupt.h"
#include "console/progress.h"
#include "main/flags/engine_flags.h"
#include "main/model/model_text.h"
#include "main/run/kl_stats.h"
#include "quantize/output.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

static const char magic[8] = "_logits_";
enum { HEAD_BYTES = 20 };

/* What is done with the distribution behind a position of a window: log_p [n_vocab], `next` the token that is there. */
struct run {
    const struct kl_job *job;
    int n_vocab;
    int64_t window, n_windows;
    int32_t *sequence; // [window]
    float *log_p;      // [n_vocab]
    enum status (*row)(struct run *r, int32_t next, struct error *err);
    void (*window_done)(struct run *r, int64_t i);
    struct output file;    // writing
    struct buf out;        // likewise: what goes there next
    const char *rows;      // reading: the next row of the file
    struct kl_stats stats; // likewise
    struct progress progress;
};

static int64_t first_row(const struct run *r) { return r->window / 2; }
static size_t row_bytes(int n_vocab) { return 8 + 2 * (size_t)((n_vocab + 1) / 2 * 2); }
static size_t rows_bytes(const struct run *r) {
    return (size_t)(r->n_windows * (r->window - 1 - first_row(r))) * row_bytes(r->n_vocab);
}

/* ---- windows ---- */

static enum status take_row(struct run *r, const struct gyre_event *e, const int32_t *tokens, struct error *err) {
    if (e->position < first_row(r) || e->position > r->window - 2)
        return OK;
    if (!e->logits)
        return fail(err, ERR_UNSUPPORTED, "a vocabulary of %d tokens is too small to be compared", r->n_vocab);
    double sum = 0;
    float most = e->logits[0];
    for (int i = 1; i < r->n_vocab; i++)
        most = MAX(most, e->logits[i]);
    for (int i = 0; i < r->n_vocab; i++)
        sum += (double)expf(e->logits[i] - most);
    for (int i = 0; i < r->n_vocab; i++)
        r->log_p[i] = e->logits[i] - most - (float)log(sum);
    return r->row(r, tokens[e->position + 1], err);
}

static enum status run_window(struct run *r, int64_t i, const int32_t *tokens, struct error *err) {
    enum { EVENTS = 64 };
    struct gyre_request q = gyre_request_default(r->job->g);
    struct gyre_event events[EVENTS];
    struct gyre_error e;
    uint64_t id;
    bool open = true;
    memcpy(r->sequence, tokens + i * r->window, (size_t)r->window * sizeof *tokens);
    if (r->job->bos >= 0)
        r->sequence[0] = r->job->bos;
    q.prompt = r->sequence, q.n_prompt = r->window, q.max_tokens = 0, q.score_prompt = true;
    q.score_from = first_row(r), q.n_prompt_top_logprobs = r->n_vocab;
    if (gyre_submit(r->job->g, &q, &id, &e) != 0)
        return engine_fault(&e, err);
    while (open) {
        int n = gyre_poll(r->job->g, events, EVENTS);
        for (int k = 0; k < n; k++) {
            if (events[k].kind == GYRE_DONE && events[k].finish == GYRE_FAILED)
                return fail(err, ERR_DEVICE, "%s", events[k].error);
            open = open && events[k].kind != GYRE_DONE;
            if (events[k].kind == GYRE_PROMPT)
                TRY(take_row(r, &events[k], tokens + i * r->window, err));
        }
    }
    progress_step(&r->progress, (i + 1) * r->window);
    if (r->window_done)
        r->window_done(r, i);
    return OK;
}

static enum status run_windows(struct run *r, const int32_t *tokens, struct error *err) {
    enum status st = OK;
    r->sequence = xcalloc((size_t)r->window, sizeof *r->sequence);
    r->log_p = xcalloc((size_t)r->n_vocab, sizeof *r->log_p);
    progress_begin(&r->progress, "perplexity", "tokens", r->n_windows * r->window);
    for (int64_t i = 0; i < r->n_windows && st == OK; i++)
        st = run_window(r, i, tokens, err);
    progress_end(&r->progress);
    free(r->sequence), free(r->log_p);
    return st;
}

/* ---- writing ---- */

static void put_u32(struct buf *out, uint32_t v) {
    char bytes[4] = {(char)v, (char)(v >> 8), (char)(v >> 16), (char)(v >> 24)};
    buf_append(out, bytes, sizeof bytes);
}

static enum status put_out(struct run *r, struct error *err) {
    enum status st = output_write(&r->file, r->out.ptr, r->out.len, err);
    buf_clear(&r->out);
    return st;
}

/* Codes from the least log-probability that counts, 16 below the largest, to the largest. */
static enum status write_row(struct run *r, int32_t next, struct error *err) {
    (void)next;
    if (interrupt_taken())
        return fail(err, ERR_IO, "interrupted: nothing was written");
    float most = r->log_p[0], least = r->log_p[0];
    for (int i = 1; i < r->n_vocab; i++) {
        most = MAX(most, r->log_p[i]);
        least = MIN(least, r->log_p[i]);
    }
    least = MAX(least, most - 16);
    float scale = (most - least) / 65535;
    buf_append(&r->out, &scale, 4);
    buf_append(&r->out, &least, 4);
    for (int i = 0; i < (r->n_vocab + 1) / 2 * 2; i++) {
        float x = i < r->n_vocab && scale > 0 ? (r->log_p[i] - least) / scale : 0;
        uint16_t code = (uint16_t)(x > 0 ? x + 0.5f : 0);
        buf_append(&r->out, &code, 2);
    }
    return put_out(r, err);
}

static enum status write_head(struct run *r, struct error *err) {
    size_t n_tokens = (size_t)(r->n_windows * r->window);
    TRY(output_check_room(r->job->path, HEAD_BYTES + n_tokens * 4 + rows_bytes(r), err));
    TRY(output_begin(&r->file, r->job->path, err));
    buf_append(&r->out, magic, sizeof magic);
    put_u32(&r->out, (uint32_t)r->window);
    put_u32(&r->out, (uint32_t)r->n_vocab);
    put_u32(&r->out, (uint32_t)r->n_windows);
    buf_append(&r->out, r->job->tokens, n_tokens * sizeof *r->job->tokens);
    return put_out(r, err);
}

enum status kl_write_base(const struct kl_job *job, struct error *err) {
    struct run r = {.job = job, .n_vocab = gyre_info(job->g)->vocab_size, .window = job->window, .row = write_row};
    r.n_windows = job->n_tokens / job->window;
    interrupt_catch(); // a file that is begun would be left
    enum status st = write_head(&r, err);
    if (st == OK)
        st = run_windows(&r, job->tokens, err);
    if (st == OK)
        st = output_commit(&r.file, err);
    interrupt_release();
    if (st == OK)
        printf("%s: %lld windows of %lld tokens\n", job->path, (long long)r.n_windows, (long long)r.window);
    output_abandon(&r.file);
    buf_release(&r.out);
    return st;
}

/* ---- reading ---- */

static uint32_t u32_at(const char *p) {
    uint32_t v;
    memcpy(&v, p, sizeof v);
    return v;
}

static enum status check_file(const struct file_map *map, struct run *r, struct error *err) {
    const char *path = r->job->path, *p = map->bytes;
    if (map->n_bytes < HEAD_BYTES || memcmp(p, magic, sizeof magic) != 0)
        return fail(err, ERR_FORMAT, "%s: does not begin with _logits_, so it is no base file", path);
    r->window = u32_at(p + 8), r->n_windows = u32_at(p + 16);
    int64_t n_vocab = u32_at(p + 12);
    if (n_vocab != r->n_vocab)
        return fail(err, ERR_ARG, "%s: is of a vocabulary of %lld tokens, the model has %d", path, (long long)n_vocab,
                    r->n_vocab);
    if (r->window < KL_WINDOW_MIN || r->window > KL_WINDOW_MAX || r->n_windows < 1)
        return fail(err, ERR_FORMAT, "%s: has %lld windows of %lld tokens; taken are 1 or more, of %d to %d", path,
                    (long long)r->n_windows, (long long)r->window, KL_WINDOW_MIN, KL_WINDOW_MAX);
    size_t tokens = (size_t)(r->window * r->n_windows) * 4;
    if (map->n_bytes - HEAD_BYTES < tokens || map->n_bytes - HEAD_BYTES - tokens < rows_bytes(r))
        return fail(err, ERR_FORMAT, "%s: ends within its rows: it is cut short", path);
    r->rows = p + HEAD_BYTES + tokens;
    for (int64_t i = 0; i < r->window * r->n_windows; i++)
        if (u32_at(p + HEAD_BYTES + 4 * i) >= (uint32_t)r->n_vocab)
            return fail(err, ERR_FORMAT, "%s: token %lld is %u, of a vocabulary of %d", path, (long long)i,
                        u32_at(p + HEAD_BYTES + 4 * i), r->n_vocab);
    return OK;
}

static enum status compare_row(struct run *r, int32_t next, struct error *err) {
    (void)err;
    kl_stats_add(&r->stats, r->rows, r->log_p, r->n_vocab, next);
    r->rows += row_bytes(r->n_vocab);
    return OK;
}

static void print_window(struct run *r, int64_t i) {
    progress_end(&r->progress);
    kl_stats_print_line(&r->stats, i + 1);
}

enum status kl_compare(const struct kl_job *job, struct error *err) {
    struct file_map map;
    struct run r = {
        .job = job, .n_vocab = gyre_info(job->g)->vocab_size, .row = compare_row, .window_done = print_window};
    TRY(file_map_open(&map, job->path, 0, err));
    enum status st = check_file(&map, &r, err);
    int32_t *tokens = NULL;
    if (st == OK) {
        tokens = xcalloc((size_t)(r.window * r.n_windows), sizeof *tokens);
        memcpy(tokens, map.bytes + HEAD_BYTES, (size_t)(r.window * r.n_windows) * sizeof *tokens);
        kl_stats_print_head();
        st = run_windows(&r, tokens, err);
    }
    if (st == OK && file_map_damaged(&map))
        st = fail(err, ERR_IO, "%s: the file became shorter while it was read", job->path);
    if (st == OK)
        kl_stats_print(&r.stats);
    kl_stats_release(&r.stats);
    free(tokens);
    file_map_close(&map);
    return st;
}
