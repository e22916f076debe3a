/* gbnf.c - reads llama.cpp's GBNF. See front.h.
 *
 * Rules are `name ::= alternatives`; the whole text is `root`. Literals, classes and their escapes, groups, . * + ?
 * {m,n}, comments, and special tokens (<[1234]>, <|name|>, with ! before: another special token). Left recursion, which
 * llama.cpp refuses, is taken; alternatives may begin a line. */
#include "base/buf.h"
#include "grammar/front/char_ranges.h"
#include "grammar/front/ebnf.h"
#include "grammar/rx_pool.h"

#include <stdlib.h>

enum { MAX_DEPTH = 200 };

struct gbnf {
    struct str text;
    size_t at;
    struct ebnf *ebnf;
    struct ir *ir;
    struct error *err;
    int depth;
    uint32_t n_items;
};

struct list {
    ebnf_id *at;
    size_t n, cap;
};

static void put(struct list *l, ebnf_id id) {
    if (l->n == l->cap) {
        l->cap = l->cap ? l->cap * 2 : 8;
        l->at = xrealloc(l->at, l->cap, sizeof *l->at);
    }
    l->at[l->n++] = id;
}

static char peek(const struct gbnf *g) { return g->at < g->text.len ? g->text.ptr[g->at] : '\0'; }

#define BAD(g, st, ...) gbnf_bad(g, st, __VA_ARGS__)
static enum status gbnf_bad(const struct gbnf *g, enum status st, const char *what, struct str name) {
    size_t line = 1;
    for (size_t i = 0; i < g->at && i < g->text.len; i++)
        line += g->text.ptr[i] == '\n';
    return fail(g->err, st, "the GBNF grammar, line %zu: %s%.*s", line, what, (int)MIN(name.len, 100), name.ptr);
}
static const struct str no_name = {"", 0};

/* White space and comments; lines: ends of lines too. */
static void skip(struct gbnf *g, bool lines) {
    while (g->at < g->text.len) {
        char c = peek(g);
        if (c == '#')
            while (g->at < g->text.len && peek(g) != '\n' && peek(g) != '\r')
                g->at++;
        else if (c == ' ' || c == '\t' || (lines && (c == '\n' || c == '\r')))
            g->at++;
        else
            return;
    }
}

static bool in_name(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '_';
}

static struct str take_name(struct gbnf *g) {
    size_t from = g->at;
    while (in_name(peek(g)))
        g->at++;
    return (struct str){g->text.ptr + from, g->at - from};
}

static enum status take_hex(struct gbnf *g, int n, uint32_t *out) {
    *out = 0;
    for (int i = 0; i < n; i++, g->at++) {
        char c = peek(g);
        int v = c >= '0' && c <= '9' ? c - '0' : (c | 32) >= 'a' && (c | 32) <= 'f' ? (c | 32) - 'a' + 10 : -1;
        if (v < 0)
            return BAD(g, ERR_FORMAT, "an escape has too few hexadecimal digits", no_name);
        *out = *out * 16 + (uint32_t)v;
    }
    return *out <= 0x10FFFF ? OK : BAD(g, ERR_FORMAT, "an escape is no character", no_name);
}

/* One character of a literal or class. */
static enum status take_char(struct gbnf *g, uint32_t *out) {
    if (g->at >= g->text.len)
        return BAD(g, ERR_FORMAT, "the text ends within a literal or class", no_name);
    if (peek(g) != '\\') {
        int32_t c;
        g->at += (size_t)utf8_decode(g->text.ptr + g->at, g->text.len - g->at, &c);
        *out = (uint32_t)c;
        return OK;
    }
    g->at++;
    char c = peek(g);
    struct str name = {g->text.ptr + g->at, g->at < g->text.len};
    g->at++;
    switch (c) {
    case 'x': return take_hex(g, 2, out);
    case 'u': return take_hex(g, 4, out);
    case 'U': return take_hex(g, 8, out);
    case 't': *out = '\t'; return OK;
    case 'r': *out = '\r'; return OK;
    case 'n': *out = '\n'; return OK;
    case '\\':
    case '"':
    case '[':
    case ']':
    case '-':
    case '^':
    case '/': *out = (unsigned char)c; return OK;
    default: return BAD(g, ERR_FORMAT, "an escape that is not known: \\", name);
    }
}

static enum status read_literal(struct gbnf *g, ebnf_id *out) {
    struct rx_pool *rx = ir_rx(g->ir);
    struct buf text = {0};
    enum status st = OK;
    g->at++;
    while (st == OK && peek(g) != '"') {
        uint32_t c;
        char bytes[4];
        st = take_char(g, &c);
        if (st == OK && c >= 0xD800 && c <= 0xDFFF)
            st = BAD(g, ERR_FORMAT, "half a surrogate pair is no character", no_name);
        if (st == OK)
            buf_append(&text, bytes, (size_t)utf8_encode(c, bytes));
    }
    g->at++;
    if (st == OK)
        *out = ebnf_rx(g->ebnf, rx_bytes(rx, buf_view(&text)));
    buf_release(&text);
    return st;
}

static enum status read_class(struct gbnf *g, ebnf_id *out) {
    struct rx_pool *rx = ir_rx(g->ir);
    struct char_ranges set = {0};
    enum status st = OK;
    g->at++;
    bool negated = peek(g) == '^';
    g->at += negated;
    while (st == OK && peek(g) != ']') {
        uint32_t first, last;
        st = take_char(g, &first);
        last = first;
        if (st == OK && peek(g) == '-' && g->at + 1 < g->text.len && g->text.ptr[g->at + 1] != ']') {
            g->at++;
            st = take_char(g, &last);
        }
        if (st == OK && last < first)
            st = BAD(g, ERR_FORMAT, "a range of a class ends before it begins", no_name);
        if (st == OK)
            char_ranges_put(&set, first, last);
    }
    g->at++;
    if (st == OK)
        *out = ebnf_rx(g->ebnf, negated ? rx_not_class(rx, set.at, set.n) : rx_class(rx, set.at, set.n));
    char_ranges_release(&set);
    return st;
}

/* <name> or <[id]>. Behind !, any token but that one: another special one, or text, of which each character is one
 * here, so that !<name>* is what it is with tokens. */
static enum status read_token(struct gbnf *g, ebnf_id *out) {
    bool none_of = peek(g) == '!';
    g->at += none_of;
    struct str rest = {g->text.ptr + g->at, g->text.len - g->at};
    const char *end = rest.len && rest.ptr[0] == '<' ? memchr(rest.ptr, '>', rest.len) : NULL;
    if (!end || memchr(rest.ptr, '\n', (size_t)(end - rest.ptr)))
        return BAD(g, ERR_FORMAT, "a special token without >", no_name);
    struct str name = {rest.ptr, (size_t)(end - rest.ptr) + 1};
    struct ir_token token = {.name = name, .id = -1};
    g->at += name.len;
    if (name.len >= 5 && name.ptr[1] == '[' && name.ptr[name.len - 2] == ']') {
        long id = 0;
        for (size_t i = 2; i < name.len - 2; i++) {
            if (name.ptr[i] < '0' || name.ptr[i] > '9' || id > 1 << 28)
                return BAD(g, ERR_FORMAT, "no id of a token: ", name);
            id = id * 10 + (name.ptr[i] - '0');
        }
        token = (struct ir_token){.id = (int32_t)id};
    }
    ir_id text = ir_terminal(g->ir, rx_any_char(ir_rx(g->ir)));
    *out = ebnf_ir(g->ebnf, none_of ? ir_alt(g->ir, text, ir_not_tokens(g->ir, &token, 1)) : ir_token(g->ir, token));
    return OK;
}

static enum status take_number(struct gbnf *g, int32_t *out) {
    int64_t n = 0;
    if (peek(g) < '0' || peek(g) > '9')
        return BAD(g, ERR_FORMAT, "a repeat wants a number", no_name);
    for (; peek(g) >= '0' && peek(g) <= '9'; g->at++)
        n = MIN(n * 10 + (peek(g) - '0'), INT32_MAX);
    *out = (int32_t)n;
    return OK;
}

static enum status read_repeats(struct gbnf *g, ebnf_id *item, bool lines) {
    for (;;) {
        int32_t min = 0, max = IR_NO_MAX;
        switch (peek(g)) {
        case '*': break;
        case '+': min = 1; break;
        case '?': max = 1; break;
        case '{':
            g->at++;
            skip(g, lines);
            if (peek(g) != ',')
                TRY(take_number(g, &min));
            skip(g, lines);
            max = min;
            if (peek(g) == ',') {
                g->at++;
                skip(g, lines);
                max = IR_NO_MAX;
                if (peek(g) != '}')
                    TRY(take_number(g, &max));
                skip(g, lines);
            }
            if (peek(g) != '}')
                return BAD(g, ERR_FORMAT, "{ without }", no_name);
            if (max != IR_NO_MAX && max < min)
                return BAD(g, ERR_FORMAT, "a repeat whose most is less than its least", no_name);
            break;
        default: return OK;
        }
        g->at++;
        *item = ebnf_repeat(g->ebnf, *item, min, max);
        skip(g, lines);
    }
}

static enum status read_alternatives(struct gbnf *g, bool nested, ebnf_id *out);

static enum status read_item(struct gbnf *g, bool *any, ebnf_id *out) {
    enum { ITEMS_A_LOOK = 32 };
    char c = peek(g);
    *any = true;
    if (++g->n_items % ITEMS_A_LOOK == 0)
        rx_check_time(ir_rx(g->ir));
    TRY(rx_check(ir_rx(g->ir), g->err));
    if (c == '"')
        return read_literal(g, out);
    if (c == '[')
        return read_class(g, out);
    if (c == '<' || c == '!')
        return read_token(g, out);
    if (c == '.') {
        g->at++;
        *out = ebnf_rx(g->ebnf, rx_any_char(ir_rx(g->ir)));
        return OK;
    }
    if (c == '(') {
        g->at++;
        if (++g->depth > MAX_DEPTH)
            return BAD(g, ERR_LIMIT, "groups are nested too deep", no_name);
        skip(g, true);
        TRY(read_alternatives(g, true, out));
        g->depth--;
        if (peek(g) != ')')
            return BAD(g, ERR_FORMAT, "( without )", no_name);
        g->at++;
        return OK;
    }
    *any = in_name(c);
    if (*any)
        *out = ebnf_ref(g->ebnf, take_name(g));
    return OK;
}

/* Whether a line goes on behind this place: in a group always, else if the next line begins with |. */
static void skip_to_bar(struct gbnf *g) {
    size_t mark = g->at;
    skip(g, true);
    if (peek(g) != '|')
        g->at = mark;
}

static enum status read_sequence(struct gbnf *g, bool nested, ebnf_id *out) {
    struct list parts = {0};
    enum status st = OK;
    for (bool any = true; st == OK && any;) {
        ebnf_id item = EBNF_EMPTY;
        st = read_item(g, &any, &item);
        if (st != OK || !any)
            break;
        skip(g, nested);
        st = read_repeats(g, &item, nested);
        put(&parts, item);
    }
    *out = ebnf_seq(g->ebnf, parts.at, parts.n);
    free(parts.at);
    return st;
}

static enum status read_alternatives(struct gbnf *g, bool nested, ebnf_id *out) {
    struct list parts = {0};
    enum status st = OK;
    for (bool more = true; st == OK && more;) {
        ebnf_id one = EBNF_EMPTY;
        st = read_sequence(g, nested, &one);
        put(&parts, one);
        skip_to_bar(g);
        more = peek(g) == '|';
        if (more) {
            g->at++;
            skip(g, true);
        }
    }
    *out = ebnf_alt(g->ebnf, parts.at, parts.n);
    free(parts.at);
    return st;
}

static enum status read_rule(struct gbnf *g) {
    struct str name = take_name(g);
    if (name.len == 0)
        return BAD(g, ERR_FORMAT, "a rule must begin here, not ", (struct str){g->text.ptr + g->at, 1});
    skip(g, false);
    if (!str_starts((struct str){g->text.ptr + g->at, g->text.len - g->at}, STR("::=")))
        return BAD(g, ERR_FORMAT, "::= must follow the name of rule ", name);
    g->at += 3;
    skip(g, true);
    ebnf_id body;
    TRY(read_alternatives(g, false, &body));
    if (!ebnf_define(g->ebnf, name, body))
        return BAD(g, ERR_FORMAT, "a second definition of rule ", name);
    skip(g, false);
    if (g->at < g->text.len && peek(g) != '\n' && peek(g) != '\r')
        return BAD(g, ERR_FORMAT, "what stands here belongs to no rule: ", (struct str){g->text.ptr + g->at, 1});
    return OK;
}

enum status gbnf_read(struct ir *ir, struct str text, ir_id *out, struct error *err) {
    struct gbnf g = {.text = text, .ebnf = ebnf_open(ir), .ir = ir, .err = err};
    enum status st = utf8_valid(text) ? OK : BAD(&g, ERR_FORMAT, "it is not UTF-8", no_name);
    for (skip(&g, true); st == OK && g.at < text.len; skip(&g, true))
        st = read_rule(&g);
    if (st == OK && !ebnf_defined(g.ebnf, STR("root")))
        st = fail(err, ERR_FORMAT, "the GBNF grammar has no rule root");
    if (st == OK)
        st = ebnf_finish(g.ebnf, STR("root"), out, err);
    ebnf_free(g.ebnf);
    return st;
}
