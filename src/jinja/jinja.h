/* jinja.h - one template being parsed or rendered: its memory, its limits, its way out.
 *
 * Faults leave by jinja_fail, which does not return: it jumps back to template_parse or template_render,
 * as Lua does. Everything below allocates from j->arena or writes to sinks that j owns, so nothing leaks,
 * and an expression can return its value instead of a status. Nothing else may be held across a call that
 * takes `struct jinja *`.
 *
 * The layers, each of which includes only those before it:
 *
 *     jinja.h            memory, limits, errors, sinks
 *     jinja_unicode.h    what Python says about a code point
 *     jinja_value.h      values as Python has them: strings, lists, dicts, numbers, iterators
 *     jinja_ast.h        the tree, from jinja_lexer, jinja_parser and jinja_scope
 *     jinja_builtin.h    filters, tests, methods and global functions, in tables
 *     jinja_eval.h       expressions, statements, calls
 *     template.h         the outside */
#pragma once

#include "base/arena.h"
#include "base/buf.h"
#include "base/status.h"
#include "jinja/template.h"

#include <setjmp.h>

struct sink {
    struct buf *buf;    // &own, or the caller's buffer for the outermost
    struct buf own;     // kept for the next use
    struct sink *below; // what was written to before
    struct sink *above; // made by an earlier use, idle now
};

struct activation;
struct jdict;
struct jval;

struct jinja {
    struct arena arena;
    struct template_limits limits; // no zeros
    uint64_t steps;                // so far
    uint64_t clock_at;             // look at the clock when steps gets here
    int64_t deadline_us;
    int depth;
    size_t sink_bytes; // in all sinks but the outermost

    struct sink *out; // where text goes now
    struct sink first;
    size_t out_start; // length of the caller's buffer before we began

    const char *name; // of the template
    int line;         // of what is being done, for errors
    struct error *err;
    struct buf *raised;
    jmp_buf exit;

    const struct tm *now;
    struct jv_numbers *numbers; // of the context
    const struct template *tmpl;
    struct activation *act;      // the running function's variables
    struct jdict *context;       // what the caller gave
    struct jdict *exports;       // what was set at the top level, for blocks
    const struct jval *captured; // the text that a filter block filters
    struct str *large;           // [n_large] digits of integers past 64 bits
    uint32_t n_large, large_cap;
};

/* Empty, with the defaults in place of zeros. The caller sets first.buf and the jump. */
void jinja_begin(struct jinja *j, const char *name, const struct template_limits *given, struct error *err);

/* Fills the error with "name:line: sentence" and leaves. */
_Noreturn void jinja_fail(struct jinja *j, enum status status, const char *format, ...)
    __attribute__((format(printf, 3, 4), cold));

/* As much of a name as fits into a sentence, cut between code points. */
static inline struct str str_excerpt(struct str s) {
    size_t n = MIN(s.len, 80);
    while (n < s.len && n && ((unsigned char)s.ptr[n] & 0xC0) == 0x80)
        n--;
    return (struct str){s.ptr, n};
}

/* Zeroed memory that lives as long as j->arena; leaves when max_memory_bytes is reached. */
void *jinja_alloc(struct jinja *j, size_t n_bytes) __attribute__((returns_nonnull));
void *jinja_calloc(struct jinja *j, size_t n, size_t size) __attribute__((returns_nonnull));

/* Counts n steps of work; leaves when there were too many or the time is over. */
void jinja_steps_over(struct jinja *j);
static inline void jinja_step(struct jinja *j, uint64_t n) {
    j->steps += n;
    if (j->steps >= j->clock_at)
        jinja_steps_over(j);
}

/* Looking through n bytes of text counts too. */
static inline void jinja_step_bytes(struct jinja *j, size_t n) { jinja_step(j, n / 64); }

/* Around everything that calls itself. Not needed on the way out by jinja_fail. */
_Noreturn void jinja_too_deep(struct jinja *j);
static inline void jinja_enter(struct jinja *j) {
    if (++j->depth > j->limits.max_depth)
        jinja_too_deep(j);
}
static inline void jinja_leave(struct jinja *j) { j->depth--; }

/* Text goes to j->out. sink_open diverts it until sink_close takes it away again, as a view that is valid
 * until the next sink_open; the two nest like brackets. */
void jinja_emit(struct jinja *j, struct str text);
static inline void jinja_put(struct jinja *j, char c) { jinja_emit(j, (struct str){&c, 1}); }
void jinja_emit_times(struct jinja *j, struct str text, int64_t n); // nothing when n is negative
void jinja_emit_cp(struct jinja *j, int32_t cp);
void jinja_emitf(struct jinja *j, const char *format, ...) __attribute__((format(printf, 2, 3)));
void sink_open(struct jinja *j);
struct str sink_close(struct jinja *j);
void sinks_release(struct jinja *j);
