/* stop_filter.c - see stop_filter.h. One Knuth-Morris-Pratt automaton a string, fed byte by byte. */
#include "text/stop_filter.h"

#include "base/status.h"

#include <stdlib.h>

static void init_string(struct stop_string *s, const char *text) {
    *s = (struct stop_string){.text = xstrdup(text), .len = strlen(text)};
    BUG_IF(s->len == 0);
    s->border = xcalloc(s->len, sizeof *s->border);
    size_t k = 0;
    for (size_t i = 1; i < s->len; i++) {
        while (k > 0 && text[i] != text[k])
            k = (size_t)s->border[k - 1];
        k += text[i] == text[k];
        s->border[i] = (int32_t)k;
    }
}

void stop_filter_init(struct stop_filter *f, const char *const *strings, size_t n) {
    *f = (struct stop_filter){.strings = xcalloc(n, sizeof *f->strings), .n = n};
    for (size_t i = 0; i < n; i++)
        init_string(&f->strings[i], strings[i]);
}

void stop_filter_release(struct stop_filter *f) {
    for (size_t i = 0; i < f->n; i++) {
        free(f->strings[i].text);
        free(f->strings[i].border);
    }
    free(f->strings);
    buf_release(&f->held);
    *f = (struct stop_filter){0};
}

/* True when the string is complete. */
static bool match_byte(struct stop_string *s, char c) {
    while (s->n_matched > 0 && c != s->text[s->n_matched])
        s->n_matched = (size_t)s->border[s->n_matched - 1];
    s->n_matched += c == s->text[s->n_matched];
    return s->n_matched == s->len;
}

/* The length of the longest string that ends with this byte; 0: none does. */
static size_t match_all(struct stop_filter *f, char c) {
    size_t longest = 0;
    for (size_t i = 0; i < f->n; i++)
        if (match_byte(&f->strings[i], c))
            longest = MAX(longest, f->strings[i].len);
    return longest;
}

/* Gives the first n bytes that are held. */
static void let_go(struct stop_filter *f, size_t n, struct buf *out) {
    buf_append(out, f->held.ptr, n);
    memmove(f->held.ptr, f->held.ptr + n, f->held.len - n);
    f->held.len -= n;
}

bool stop_filter_feed(struct stop_filter *f, struct str piece, struct buf *out) {
    if (f->n == 0) {
        buf_str(out, piece);
        return false;
    }
    for (size_t i = 0; i < piece.len && !f->stopped; i++) {
        buf_push(&f->held, piece.ptr[i]);
        size_t matched = match_all(f, piece.ptr[i]);
        if (matched > 0) {
            f->stopped = true;
            let_go(f, f->held.len - matched, out);
        }
    }
    if (f->stopped || f->held.len == 0)
        return f->stopped;
    size_t keep = 0;
    for (size_t i = 0; i < f->n; i++)
        keep = MAX(keep, f->strings[i].n_matched);
    let_go(f, f->held.len - keep, out);
    return false;
}

int stop_filter_met(const struct stop_filter *f) {
    int met = -1;
    for (size_t i = 0; i < f->n && f->stopped; i++)
        if (f->strings[i].n_matched == f->strings[i].len && (met < 0 || f->strings[i].len > f->strings[met].len))
            met = (int)i;
    return met;
}

void stop_filter_finish(struct stop_filter *f, struct buf *out) {
    if (!f->stopped && f->held.len > 0)
        let_go(f, f->held.len, out);
}
