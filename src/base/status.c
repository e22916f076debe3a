/* status.c - see status.h. */
#include "base/status.h"

#include "base/guard.h"
#include "base/str.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void clean_sentence(char *text) {
    size_t n = strlen(text);
    // A cut in the middle of a UTF-8 sequence would make JSON error bodies invalid.
    size_t back = 0;
    while (back < 4 && back < n && ((unsigned char)text[n - 1 - back] & 0xC0) == 0x80)
        back++;
    if (back < n) {
        unsigned char lead = (unsigned char)text[n - 1 - back];
        size_t want = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : lead >= 0xC0 ? 2 : 1;
        if (want > back + 1)
            text[n - 1 - back] = '\0';
    }
    // Bytes of a broken file are quoted in sentences; these go into logs, terminals and JSON all the same.
    size_t kept = 0;
    for (size_t i = 0, length = strlen(text); i < length;) {
        int32_t cp;
        int step = utf8_decode(text + i, length - i, &cp);
        if (code_point_steers(cp)) {
            text[kept++] = '?';
        } else {
            memmove(text + kept, text + i, (size_t)step);
            kept += (size_t)step;
        }
        i += (size_t)step;
    }
    text[kept] = '\0';
}

/* Appends what fits; a sentence that loses its end is still better than none. */
static void append_cut(char *text, size_t size, const char *more) {
    size_t n = strlen(text), m = strlen(more);
    m = MIN(m, size - 1 - n);
    memcpy(text + n, more, m);
    text[n + m] = '\0';
}

static void write_fault(struct error *err, enum status status, const char *format, va_list args) {
    vsnprintf(err->text, sizeof err->text, format, args);
    clean_sentence(err->text);
    err->status = status;
    err->field[0] = '\0';
}

enum status fail(struct error *err, enum status status, const char *format, ...) {
    if (err) {
        va_list args;
        va_start(args, format);
        write_fault(err, status, format, args);
        va_end(args);
    }
    return status;
}

enum status fail_field(struct error *err, enum status status, const char *field, const char *format, ...) {
    if (err) {
        va_list args;
        va_start(args, format);
        write_fault(err, status, format, args);
        va_end(args);
        if (strlen(field) < sizeof err->field)
            memcpy(err->field, field, strlen(field) + 1);
    }
    return status;
}

enum status fail_within(struct error *err, enum status status, const char *format, ...) {
    if (err) {
        char inner[sizeof err->text];
        memcpy(inner, err->text, sizeof inner);
        va_list args;
        va_start(args, format);
        int n = vsnprintf(err->text, sizeof err->text, format, args);
        va_end(args);
        if (n >= 0)
            append_cut(err->text, sizeof err->text, ": ");
        append_cut(err->text, sizeof err->text, inner);
        clean_sentence(err->text);
        err->status = status;
    }
    return status;
}

const char *status_name(enum status status) {
    switch (status) {
    case OK: return "ok";
    case ERR_IO: return "io";
    case ERR_FORMAT: return "format";
    case ERR_UNSUPPORTED: return "unsupported";
    case ERR_ARG: return "argument";
    case ERR_FULL: return "full";
    case ERR_MEMORY: return "memory";
    case ERR_LIMIT: return "limit";
    case ERR_DEVICE: return "device";
    }
    return "unknown";
}

void bug(const char *file, int line, const char *condition) {
    fprintf(stderr, "gyre: BUG at %s:%d: %s\n", file, line, condition);
    abort();
}

_Thread_local int alloc_guard_depth;

_Thread_local struct alloc_scope *alloc_scope;

_Noreturn void alloc_failed(size_t n_bytes) {
    struct alloc_scope *scope = alloc_scope;
    if (scope) {
        alloc_scope = scope->outer;
        if (scope->held)
            pthread_mutex_unlock(scope->held);
        longjmp(scope->env, 1);
    }
    fprintf(stderr, "gyre: out of memory (%zu bytes)\n", n_bytes);
    _exit(1);
}

void *xmalloc(size_t n_bytes) {
    BUG_IF(alloc_guard_depth > 0);
    void *p = malloc(n_bytes ? n_bytes : 1);
    if (!p)
        alloc_failed(n_bytes);
    return p;
}

void *xcalloc(size_t n, size_t size) {
    BUG_IF(alloc_guard_depth > 0);
    void *p = calloc(n ? n : 1, size ? size : 1);
    if (!p)
        alloc_failed(n * size);
    return p;
}

void *xrealloc(void *ptr, size_t n, size_t size) {
    size_t n_bytes;
    BUG_IF(alloc_guard_depth > 0);
    if (!size_mul(n, size, &n_bytes))
        alloc_failed(SIZE_MAX);
    void *p = realloc(ptr, n_bytes ? n_bytes : 1);
    if (!p)
        alloc_failed(n_bytes);
    return p;
}

char *xstrdup(const char *s) {
    size_t n = strlen(s) + 1;
    return memcpy(xmalloc(n), s, n);
}
