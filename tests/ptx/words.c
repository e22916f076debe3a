/* words.c - see words.h. */
#include "words.h"

#include <ctype.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

_Noreturn void bad(const struct reader *r, const char *format, ...) {
    va_list rest;
    fprintf(stderr, "ptx: %s:%d: ", r->file, r->line);
    va_start(rest, format);
    vfprintf(stderr, format, rest);
    va_end(rest);
    fputc('\n', stderr);
    exit(1);
}

void *wanted(void *p) {
    if (!p) {
        fputs("ptx: no memory\n", stderr);
        exit(1);
    }
    return p;
}

static void skip_space(struct reader *r) {
    while (r->at < r->end) {
        if (*r->at == '\n') {
            r->line++, r->at++;
        } else if (isspace((unsigned char)*r->at)) {
            r->at++;
        } else if (r->end - r->at > 1 && r->at[0] == '/' && r->at[1] == '/') {
            while (r->at < r->end && *r->at != '\n')
                r->at++;
        } else if (r->end - r->at > 1 && r->at[0] == '/' && r->at[1] == '*') {
            while (r->at < r->end && !(r->at[0] == '*' && r->at + 1 < r->end && r->at[1] == '/')) {
                r->line += *r->at == '\n';
                r->at++;
            }
            r->at = r->at + 2 < r->end ? r->at + 2 : r->end;
        } else {
            return;
        }
    }
}

static bool in_word(int c) { return isalnum(c) || c == '_' || c == '$' || c == '%' || c == '.'; }

/* The next word or mark; of n == 0 at the end. "a::b" is one word. */
struct word next_word(struct reader *r) {
    skip_space(r);
    struct word w = {r->at, 0};
    if (r->at == r->end)
        return w;
    if (*r->at == '"') {
        do
            r->at++;
        while (r->at < r->end && *r->at != '"');
        r->at += r->at < r->end;
    } else if (in_word((unsigned char)*r->at)) {
        for (;;) {
            if (r->at < r->end && in_word((unsigned char)*r->at))
                r->at++;
            else if (r->end - r->at > 1 && r->at[0] == ':' && r->at[1] == ':')
                r->at += 2;
            else
                break;
        }
    } else {
        r->at++;
    }
    w.n = (uint32_t)(r->at - w.at);
    return w;
}

struct word peek_word(const struct reader *r) {
    struct reader ahead = *r;
    return next_word(&ahead);
}

bool is(struct word w, const char *text) { return w.n == strlen(text) && !memcmp(w.at, text, w.n); }
bool same(struct word a, struct word b) { return a.n == b.n && !memcmp(a.at, b.at, a.n); }
bool begins(struct word w, const char *text) { return w.n >= strlen(text) && !memcmp(w.at, text, strlen(text)); }
char *copy_of(struct word w) {
    char *s = wanted(malloc(w.n + 1));
    memcpy(s, w.at, w.n);
    s[w.n] = 0;
    return s;
}

void expect(struct reader *r, const char *mark) {
    struct word w = next_word(r);
    if (!is(w, mark))
        bad(r, "'%s' is wanted, not '%.*s'", mark, (int)w.n, w.at);
}

uint64_t number_of(struct reader *r, struct word w) {
    char text[64], *end;
    if (w.n >= sizeof text)
        bad(r, "a number of %u characters", w.n);
    memcpy(text, w.at, w.n);
    text[w.n] = 0;
    errno = 0;
    if (text[0] == '0' && (text[1] == 'f' || text[1] == 'F' || text[1] == 'd' || text[1] == 'D')) {
        uint64_t v = strtoull(text + 2, &end, 16);
        if (!*end)
            return v;
    }
    uint64_t v = strtoull(text, &end, 0);
    if (*end == 'U')
        end++;
    if (!*end && !errno)
        return v;
    union {
        float f;
        uint32_t bits;
    } x = {strtof(text, &end)};
    if (*end)
        bad(r, "'%s' is no number", text);
    return x.bits;
}

/* Of a type, ".b32" or behind a dot in a mnemonic; 0: it is none. */
int bits_of_type(struct word w) {
    static const struct {
        const char *name;
        int bits;
    } TYPES[] = {{"pred", 1}, {"b8", 8},   {"u8", 8},   {"s8", 8},   {"b16", 16},  {"u16", 16},   {"s16", 16},
                 {"f16", 16}, {"b32", 32}, {"u32", 32}, {"s32", 32}, {"f32", 32},  {"f16x2", 32}, {"bf16x2", 32},
                 {"b64", 64}, {"u64", 64}, {"s64", 64}, {"f64", 64}, {"b128", 128}};
    for (size_t i = 0; i < sizeof TYPES / sizeof *TYPES; i++)
        if (is(w, TYPES[i].name))
            return TYPES[i].bits;
    return 0;
}
int bits_of_directive(struct word w) {
    return w.n > 1 && *w.at == '.' ? bits_of_type((struct word){w.at + 1, w.n - 1}) : 0;
}

/* The part of a mnemonic behind its last dot that is a type; 0 bits: there is none. */
int bits_of_mnemonic(struct word name) {
    for (uint32_t end = name.n; end > 0;) {
        uint32_t dot = end;
        while (dot > 0 && name.at[dot - 1] != '.')
            dot--;
        int bits = bits_of_type((struct word){name.at + dot, end - dot});
        if (bits || dot == 0)
            return bits;
        end = dot - 1;
    }
    return 0;
}

void *grown(void *at, int n, size_t size) {
    return (n & (n - 1)) == 0 ? wanted(realloc(at, (size_t)(n ? 2 * n : 1) * size)) : at;
}

void skip_until(struct reader *r, const char *mark) {
    for (;;) {
        struct word w = next_word(r);
        if (w.n == 0)
            bad(r, "the file ends before '%s'", mark);
        if (is(w, mark))
            return;
    }
}
