/* request_log.c - see request_log.h. */
#include "api/request_log.h"

#include "api/record.h"
#include "base/guard.h"
#include "engine/telemetry.h"
#include "gyre.h"

#include <poll.h>
#include <time.h>
#include <unistd.h>

void request_log_init(struct request_log *log, int fd, enum request_log_format format) {
    *log = (struct request_log){.fd = fd, .format = format};
    pthread_mutex_init(&log->lock, NULL);
}

void request_log_release(struct request_log *log) { pthread_mutex_destroy(&log->lock); }

static void append_time(struct buf *out, int64_t unix_us) {
    time_t seconds = (time_t)(unix_us / 1000000);
    struct tm t;
    char text[32];
    gmtime_r(&seconds, &t);
    strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%S", &t);
    buf_printf(out, "%s.%03dZ", text, (int)(unix_us / 1000 % 1000));
}

// ---- fields, in either form -------------------------------------------------------------------------------------

/* Where fields go: name=value, or "name":value. */
struct fields {
    struct buf *out;
    bool json;
};

static void field_name(const struct fields *f, const char *name) {
    buf_printf(f->out, f->json ? ",\"%s\":" : " %s=", name);
}

static bool is_plain(const char *s) {
    size_t n = strspn(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.:/[]@+");
    return n > 0 && s[n] == '\0';
}

/* What a client chose is quoted unless it is plain, so that nobody can write a line or a field of his own. */
static void text_value(const struct fields *f, const char *value) {
    if (!f->json && is_plain(value))
        buf_str(f->out, str_of(value));
    else
        buf_json_string(f->out, str_of(value));
}

static void text_field(const struct fields *f, const char *name, const char *value) {
    if (!value || !*value)
        return;
    field_name(f, name);
    text_value(f, value);
}

static void int_field(const struct fields *f, const char *name, int64_t value) {
    field_name(f, name);
    buf_printf(f->out, "%lld", (long long)value);
}

static void ms_field(const struct fields *f, const char *name, int64_t us) {
    field_name(f, name);
    buf_printf(f->out, "%.3f", (double)us * 1e-3);
}

static void generation_fields(const struct fields *f, const struct record_entry *e) {
    if (e->n_choices > 1)
        int_field(f, "choices", e->n_choices);
    int_field(f, "prompt", e->n_prompt);
    int_field(f, "cached", e->n_cached);
    int_field(f, "generated", e->n_generated);
    ms_field(f, "queue_ms", e->queue_us);
    if (e->first_token_us)
        ms_field(f, "ttft_ms", e->first_token_us);
}

static void end_fields(const struct fields *f, const struct record_entry *e) {
    ms_field(f, "total_ms", e->total_us);
    text_field(f, "finish", e->finish);
    text_field(f, "ended", e->ended);
}

static void name_fields(const struct fields *f, const struct record_entry *e) {
    text_field(f, "request_id", e->request_id);
    text_field(f, "id", e->id);
    text_field(f, "client", e->client);
    text_field(f, "key", e->key);
}

void record_append_json(struct buf *out, const struct record_entry *e) {
    struct fields f = {out, true};
    buf_str(out, STR("{\"time\":\""));
    append_time(out, e->began_unix_us);
    buf_push(out, '"');
    if (e->ended)
        int_field(&f, "status", e->status);
    else
        text_field(&f, "state", !e->generates ? "open" : e->started ? "running" : "queued");
    text_field(&f, "method", e->method);
    text_field(&f, "endpoint", e->path);
    name_fields(&f, e);
    if (e->generates) {
        generation_fields(&f, e);
        ms_field(&f, "predicted_queue_ms", e->predicted_us);
        text_field(&f, "queue_reason", queue_reason_name(e->queue_reason));
        int_field(&f, "steps", e->n_steps);
        if (e->n_steps > 0) {
            field_name(&f, "mean_batch");
            buf_printf(out, "%.2f", (double)e->sum_batch / (double)e->n_steps);
            int_field(&f, "max_batch", e->max_batch);
            text_field(&f, "cache_miss", gyre_cache_miss_name((enum gyre_cache_miss)e->cache_miss));
        }
        int_field(&f, "preemptions", e->n_preempted);
        if (e->grammar_us > 0)
            ms_field(&f, "grammar_ms", e->grammar_us);
    }
    int_field(&f, "body_bytes", (int64_t)e->body_bytes);
    int_field(&f, "sent_bytes", (int64_t)e->sent_bytes);
    end_fields(&f, e);
    buf_push(out, '}');
}

static void append_text(struct buf *out, const struct record_entry *e) {
    struct fields f = {out, false};
    append_time(out, e->began_unix_us);
    buf_printf(out, " %d %s ", e->status, e->method);
    text_value(&f, e->path);
    name_fields(&f, e);
    if (e->generates)
        generation_fields(&f, e);
    end_fields(&f, e);
}

// ---- writing ----------------------------------------------------------------------------------------------------

/* A pipe that reports room takes PIPE_BUF bytes at once, and no line is longer. */
static bool has_room(int fd) {
    struct pollfd p = {.fd = fd, .events = POLLOUT};
    return poll(&p, 1, 0) == 1 && (p.revents & POLLOUT);
}

static void write_line(struct request_log *log, const struct record_entry *e) {
    struct buf line = {0};
    if (log->format == REQUEST_LOG_JSON)
        record_append_json(&line, e);
    else
        append_text(&line, e);
    buf_push(&line, '\n');
    pthread_mutex_lock(&log->lock);
    if (!has_room(log->fd) || write(log->fd, line.ptr, line.len) != (ssize_t)line.len)
        atomic_fetch_add(&log->n_dropped, 1);
    pthread_mutex_unlock(&log->lock);
    buf_release(&line);
}

void request_log_write(struct request_log *log, const struct record_entry *e) {
    struct alloc_scope scope;
    if (log->format == REQUEST_LOG_OFF)
        return;
    alloc_scope_begin(&scope);
    if (setjmp(scope.env) != 0) {
        atomic_fetch_add(&log->n_dropped, 1);
        return;
    }
    write_line(log, e);
    alloc_scope_end(&scope);
}
