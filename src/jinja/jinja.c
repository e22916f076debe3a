/* jinja.c - see jinja.h. */
#include "jinja/jinja.h"

#include "base/clock.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

enum { STEPS_PER_CLOCK = 2048 };

void jinja_fail(struct jinja *j, enum status status, const char *format, ...) {
    char sentence[sizeof j->err->text];
    va_list args;
    va_start(args, format);
    vsnprintf(sentence, sizeof sentence, format, args);
    va_end(args);
    fail(j->err, status, "%s:%d: %s", j->name, j->line, sentence);
    longjmp(j->exit, (int)status);
}

static size_t or_default(size_t given, size_t fallback) { return given ? given : fallback; }

void jinja_begin(struct jinja *j, const char *name, const struct template_limits *given, struct error *err) {
    *j = (struct jinja){.name = name, .line = 1, .err = err, .out = &j->first};
    j->limits = (struct template_limits){
        .max_steps = given->max_steps ? given->max_steps : 200 * 1000 * 1000,
        .max_depth = given->max_depth ? given->max_depth : 1000,
        .max_output_bytes = or_default(given->max_output_bytes, (size_t)64 << 20),
        .max_memory_bytes = or_default(given->max_memory_bytes, (size_t)256 << 20),
        .max_time_us = given->max_time_us ? given->max_time_us : 5 * 1000 * 1000,
    };
    j->deadline_us = clock_us() + j->limits.max_time_us;
}

void *jinja_alloc(struct jinja *j, size_t n_bytes) {
    if (n_bytes > j->limits.max_memory_bytes || j->arena.used + j->sink_bytes > j->limits.max_memory_bytes - n_bytes)
        jinja_fail(j, ERR_LIMIT, "the template needs more than %zu bytes of memory", j->limits.max_memory_bytes);
    return arena_alloc(&j->arena, n_bytes);
}

void *jinja_calloc(struct jinja *j, size_t n, size_t size) {
    size_t n_bytes;
    if (!size_mul(n, size, &n_bytes))
        n_bytes = SIZE_MAX;
    return jinja_alloc(j, n_bytes);
}

void jinja_steps_over(struct jinja *j) {
    if (j->steps > j->limits.max_steps)
        jinja_fail(j, ERR_LIMIT, "the template takes more than %llu steps", (unsigned long long)j->limits.max_steps);
    if (clock_us() > j->deadline_us)
        jinja_fail(j, ERR_LIMIT, "the template takes longer than %.3g seconds", (double)j->limits.max_time_us * 1e-6);
    j->clock_at = MIN(j->steps + STEPS_PER_CLOCK, j->limits.max_steps + 1);
}

void jinja_too_deep(struct jinja *j) {
    jinja_fail(j, ERR_LIMIT, "the template nests more than %d levels of statements, expressions, macros or values",
               j->limits.max_depth);
}

static bool is_output(const struct jinja *j) { return j->out == &j->first; }

static void account(struct jinja *j, size_t n) {
    if (is_output(j)) {
        if (n > j->limits.max_output_bytes || j->out->buf->len - j->out_start > j->limits.max_output_bytes - n)
            jinja_fail(j, ERR_LIMIT, "the template prints more than %zu bytes", j->limits.max_output_bytes);
        return;
    }
    if (n > j->limits.max_memory_bytes || j->arena.used + j->sink_bytes > j->limits.max_memory_bytes - n)
        jinja_fail(j, ERR_LIMIT, "the template needs more than %zu bytes of memory", j->limits.max_memory_bytes);
    j->sink_bytes += n;
}

void jinja_emit(struct jinja *j, struct str text) {
    account(j, text.len);
    buf_str(j->out->buf, text);
}

void jinja_emit_times(struct jinja *j, struct str text, int64_t n) {
    size_t total;
    if (n <= 0 || !text.len)
        return;
    if (!size_mul(text.len, (size_t)n, &total))
        total = SIZE_MAX;
    account(j, total);
    buf_reserve(j->out->buf, total);
    for (int64_t i = 0; i < n; i++)
        buf_str(j->out->buf, text);
}

void jinja_emit_cp(struct jinja *j, int32_t cp) {
    char bytes[4];
    jinja_emit(j, (struct str){bytes, (size_t)utf8_encode((uint32_t)cp, bytes)});
}

void jinja_emitf(struct jinja *j, const char *format, ...) {
    char text[512]; // numbers and names of our own; a double with %f has at most 309 digits before the point
    va_list args;
    va_start(args, format);
    int n = vsnprintf(text, sizeof text, format, args);
    va_end(args);
    BUG_IF(n < 0 || (size_t)n >= sizeof text);
    jinja_emit(j, (struct str){text, (size_t)n});
}

void sink_open(struct jinja *j) {
    struct sink *s = j->out->above;
    if (!s) {
        s = jinja_alloc(j, sizeof *s);
        s->buf = &s->own;
        s->below = j->out;
        j->out->above = s;
    }
    buf_clear(s->buf);
    j->out = s;
}

struct str sink_close(struct jinja *j) {
    struct sink *s = j->out;
    BUG_IF(s == &j->first);
    j->sink_bytes -= s->buf->len;
    j->out = s->below;
    return buf_view(s->buf);
}

void sinks_release(struct jinja *j) {
    for (struct sink *s = j->first.above; s; s = s->above)
        buf_release(&s->own);
}
