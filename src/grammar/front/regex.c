/* regex.c - reads regular expressions as Python and ECMA-262 write them. See front.h.
 *
 * Groups are for grouping; lazy quantifiers are read as greedy ones, as the language is the same. Refused by name,
 * since no regular language says them or nobody needs them: backreferences, lookbehind, word boundaries, atomic groups,
 * possessive quantifiers, conditionals, and the flags m and x. */
#include "grammar/front/regex_tree.h"
#include "grammar/rx_pool.h"

#include <stdarg.h>
#include <stdio.h>

int32_t regex_peek(const struct regex_reader *r) {
    int32_t c;
    if (r->at >= r->text.len)
        return REGEX_NO_CHAR;
    utf8_decode(r->text.ptr + r->at, r->text.len - r->at, &c);
    return c;
}

int32_t regex_take(struct regex_reader *r) {
    int32_t c;
    if (r->at >= r->text.len)
        return REGEX_NO_CHAR;
    r->at += (size_t)utf8_decode(r->text.ptr + r->at, r->text.len - r->at, &c);
    return c;
}

bool regex_take_if(struct regex_reader *r, char c) {
    if (r->at >= r->text.len || r->text.ptr[r->at] != c)
        return false;
    r->at++;
    return true;
}

static bool take_text(struct regex_reader *r, struct str text) {
    if (!str_starts((struct str){r->text.ptr + r->at, r->text.len - r->at}, text))
        return false;
    r->at += text.len;
    return true;
}

enum status regex_bad(struct regex_reader *r, enum status status, const char *format, ...) {
    char text[400];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    return fail(r->err, status, "the regular expression, at byte %zu: %s", r->at, text);
}

enum status regex_check(struct regex_reader *r) {
    enum { READ_A_LOOK = 32 }; // one may take a millisecond
    if (++r->n_read % READ_A_LOOK == 0)
        rx_check_time(r->rx);
    return rx_check(r->rx, r->err);
}

static struct tree *new_tree(struct regex_reader *r, enum tree_kind kind) {
    struct tree *t = arena_alloc(&r->memory, sizeof *t);
    t->kind = kind;
    return t;
}

static struct tree *tree_of_rx(struct regex_reader *r, rx_id rx) {
    struct tree *t = new_tree(r, TREE_RX);
    t->rx = rx;
    return t;
}

struct parts {
    struct tree **at;
    size_t n, cap;
};

static void put_part(struct regex_reader *r, struct parts *parts, struct tree *t) {
    if (parts->n == parts->cap) {
        size_t cap = parts->cap ? parts->cap * 2 : 8;
        struct tree **more = arena_calloc(&r->memory, cap, sizeof *more);
        if (parts->n)
            memcpy(more, parts->at, parts->n * sizeof *more);
        parts->at = more;
        parts->cap = cap;
    }
    parts->at[parts->n++] = t;
}

/* A sequence or alternatives; an expression if all parts are. */
static struct tree *tree_of_parts(struct regex_reader *r, enum tree_kind kind, const struct parts *parts) {
    bool plain = true;
    if (parts->n == 1)
        return parts->at[0];
    for (size_t i = 0; i < parts->n; i++)
        plain &= parts->at[i]->kind == TREE_RX;
    if (!plain) {
        struct tree *t = new_tree(r, kind);
        t->parts = parts->at;
        t->n = parts->n;
        return t;
    }
    rx_id *list = arena_calloc(&r->memory, parts->n + 1, sizeof *list);
    for (size_t i = 0; i < parts->n; i++)
        list[i] = parts->at[i]->rx;
    return tree_of_rx(r, kind == TREE_SEQ ? rx_seq_of(r->rx, list, parts->n) : rx_alt_of(r->rx, list, parts->n));
}

static enum status read_alternatives(struct regex_reader *r, struct tree **out);

// ---- quantifiers ------------------------------------------------------------------------------------------------

static bool take_number(struct regex_reader *r, int32_t *out) {
    bool any = false;
    int64_t n = 0;
    for (int32_t c; (c = regex_peek(r)) >= '0' && c <= '9'; any = true) {
        n = MIN(n * 10 + (c - '0'), INT32_MAX);
        regex_take(r);
    }
    *out = (int32_t)n;
    return any;
}

/* {m}, {m,}, {m,n}, {,n}; false, with nothing taken, for a brace that is only one. */
static bool take_braces(struct regex_reader *r, int32_t *min, int32_t *max) {
    size_t mark = r->at;
    bool low = regex_take_if(r, '{') && take_number(r, min), high = false;
    if (r->at > mark && regex_take_if(r, ',')) {
        high = take_number(r, max);
        if (!high)
            *max = RX_NO_MAX;
        if (!low)
            *min = 0;
        low = low || (high && !(r->flags & REGEX_ECMA));
    } else
        *max = *min;
    if (low && regex_take_if(r, '}'))
        return true;
    r->at = mark;
    return false;
}

static bool take_quantifier(struct regex_reader *r, int32_t *min, int32_t *max) {
    *min = *max = 0;
    if (regex_take_if(r, '*'))
        *max = RX_NO_MAX;
    else if (regex_take_if(r, '+'))
        *min = 1, *max = RX_NO_MAX;
    else if (regex_take_if(r, '?'))
        *max = 1;
    else
        return take_braces(r, min, max);
    return true;
}

static enum status read_quantified(struct regex_reader *r, struct tree *atom, struct tree **out) {
    int32_t min, max;
    *out = atom;
    if (!take_quantifier(r, &min, &max))
        return OK;
    if (atom->kind >= TREE_START)
        return regex_bad(r, ERR_UNSUPPORTED, "^, $ or a lookahead within a repeat is not enforced");
    if (max != RX_NO_MAX && max < min)
        return regex_bad(r, ERR_FORMAT, "a repeat of %d to %d", min, max);
    if (!regex_take_if(r, '?') && regex_take_if(r, '+'))
        return regex_bad(r, ERR_UNSUPPORTED, "possessive quantifiers are not enforced");
    int32_t more;
    size_t mark = r->at;
    if (take_quantifier(r, &more, &more)) {
        r->at = mark;
        return regex_bad(r, ERR_FORMAT, "a repeat of a repeat");
    }
    if (atom->kind == TREE_RX) {
        *out = tree_of_rx(r, rx_repeat(r->rx, atom->rx, min, max));
        return OK;
    }
    struct tree *t = new_tree(r, TREE_REPEAT);
    t->parts = arena_calloc(&r->memory, 1, sizeof *t->parts);
    t->parts[0] = atom;
    t->n = 1;
    t->min = min;
    t->max = max;
    *out = t;
    return OK;
}

// ---- groups -----------------------------------------------------------------------------------------------------

/* The flags of (?i) and (?i-s:, behind their (?. */
static enum status take_flags(struct regex_reader *r) {
    bool off = false;
    for (;; regex_take(r)) {
        int32_t c = regex_peek(r);
        unsigned flag = c == 'i' ? REGEX_IGNORE_CASE : c == 's' ? REGEX_DOT_ALL : c == 'a' ? REGEX_ECMA : 0;
        if (c == '-' && !off)
            off = true;
        else if (flag)
            r->flags = off ? r->flags & ~flag : r->flags | flag;
        else if (c == ')' || c == ':')
            return OK;
        else if (c == 'm' || c == 'x')
            return regex_bad(r, ERR_UNSUPPORTED, "the flag %c is not enforced", (int)c);
        else if (c != 'u')
            return regex_bad(r, ERR_FORMAT, "(? followed by what is not known");
    }
}

static enum status take_group_name(struct regex_reader *r) {
    for (int32_t c; (c = regex_take(r)) != '>';)
        if (c == REGEX_NO_CHAR || c == ')')
            return regex_bad(r, ERR_FORMAT, "a name of a group without >");
    return OK;
}

/* What a group is, behind its (. look: TREE_AHEAD or TREE_NOT_AHEAD, TREE_RX for a plain one. closed: it was (?i) or a
 * comment. */
static enum status read_group_kind(struct regex_reader *r, enum tree_kind *look, bool *closed, unsigned *outer) {
    *look = TREE_RX;
    *closed = false;
    if (!regex_take_if(r, '?'))
        return OK;
    if (take_text(r, STR("<=")) || take_text(r, STR("<!")))
        return regex_bad(r, ERR_UNSUPPORTED, "lookbehind is not enforced");
    if (take_text(r, STR("P=")))
        return regex_bad(r, ERR_UNSUPPORTED, "the backreference (?P= is not enforced: it is no regular language");
    if (take_text(r, STR("P>")) || take_text(r, STR("&")) || take_text(r, STR("R")) || take_text(r, STR("(")))
        return regex_bad(r, ERR_UNSUPPORTED, "recursion and conditionals are not enforced");
    if (take_text(r, STR(">")))
        return regex_bad(r, ERR_UNSUPPORTED, "atomic groups are not enforced");
    if (take_text(r, STR("P<")) || take_text(r, STR("<")))
        return take_group_name(r);
    if (take_text(r, STR("=")) || take_text(r, STR("!"))) {
        *look = r->text.ptr[r->at - 1] == '=' ? TREE_AHEAD : TREE_NOT_AHEAD;
        return OK;
    }
    if (regex_take_if(r, '#')) {
        for (int32_t c; (c = regex_take(r)) != ')';)
            if (c == REGEX_NO_CHAR)
                return regex_bad(r, ERR_FORMAT, "a comment without )");
        *closed = true;
        return OK;
    }
    TRY(take_flags(r));
    *closed = regex_take(r) == ')';
    if (*closed)
        *outer = r->flags; // to the end of the group that it stands in
    return OK;
}

static enum status read_group(struct regex_reader *r, struct tree **out) {
    enum tree_kind look;
    bool closed;
    unsigned outer = r->flags;
    TRY(read_group_kind(r, &look, &closed, &outer));
    *out = tree_of_rx(r, RX_EMPTY);
    if (closed)
        return OK;
    if (++r->depth > REGEX_MAX_DEPTH)
        return regex_bad(r, ERR_LIMIT, "groups are nested deeper than %d", REGEX_MAX_DEPTH);
    struct tree *inner;
    TRY(read_alternatives(r, &inner));
    r->depth--;
    r->flags = outer;
    if (!regex_take_if(r, ')'))
        return regex_bad(r, ERR_FORMAT, "( without )");
    *out = inner;
    if (look != TREE_RX) {
        *out = new_tree(r, look);
        (*out)->parts = arena_calloc(&r->memory, 1, sizeof inner);
        (*out)->parts[0] = inner;
        (*out)->n = 1;
    }
    return OK;
}

// ---- atoms ------------------------------------------------------------------------------------------------------

static struct tree *dot(struct regex_reader *r) {
    static const struct code_range ends[] = {{'\n', '\n'}, {'\r', '\r'}, {0x2028, 0x2029}};
    if (r->flags & REGEX_DOT_ALL)
        return tree_of_rx(r, rx_any_char(r->rx));
    return tree_of_rx(r, rx_not_class(r->rx, ends, r->flags & REGEX_ECMA ? 3 : 1));
}

static enum status read_atom(struct regex_reader *r, struct tree **out) {
    struct char_ranges set = {0};
    enum status st = OK;
    int32_t c = regex_take(r);
    switch (c) {
    case '(': return read_group(r, out);
    case '.': *out = dot(r); return OK;
    case '^': *out = new_tree(r, TREE_START); return OK;
    case '$': *out = new_tree(r, TREE_END); return OK;
    case '[':
        st = regex_class(r, &set);
        c = REGEX_NO_CHAR;
        break;
    case '\\':
        if (regex_peek(r) == 'A' || regex_peek(r) == 'Z' || regex_peek(r) == 'z') {
            *out = new_tree(r, regex_take(r) == 'A' ? TREE_START : TREE_END);
            return OK;
        }
        st = regex_escape(r, &set, false, &c);
        break;
    case '*':
    case '+':
    case '?': return regex_bad(r, ERR_FORMAT, "%c has nothing to repeat", (int)c);
    case REGEX_NO_CHAR: return regex_bad(r, ERR_FORMAT, "it is not UTF-8");
    default: break;
    }
    if (st == OK && c != REGEX_NO_CHAR) {
        char_ranges_put(&set, (uint32_t)c, (uint32_t)c);
        if (r->flags & REGEX_IGNORE_CASE)
            char_ranges_fold(&set);
    }
    *out = tree_of_rx(r, regex_rx_of(r, &set));
    return st;
}

static enum status read_sequence(struct regex_reader *r, struct tree **out) {
    struct parts parts = {0};
    while (r->at < r->text.len && r->text.ptr[r->at] != '|' && r->text.ptr[r->at] != ')') {
        struct tree *atom = NULL, *quantified = NULL;
        TRY(regex_check(r));
        TRY(read_atom(r, &atom));
        TRY(read_quantified(r, atom, &quantified));
        put_part(r, &parts, quantified);
    }
    *out = tree_of_parts(r, TREE_SEQ, &parts);
    return OK;
}

static enum status read_alternatives(struct regex_reader *r, struct tree **out) {
    struct parts parts = {0};
    do {
        struct tree *one;
        TRY(read_sequence(r, &one));
        put_part(r, &parts, one);
    } while (regex_take_if(r, '|'));
    *out = tree_of_parts(r, TREE_ALT, &parts);
    return OK;
}

enum status regex_read_rx(struct rx_pool *rx, struct str pattern, unsigned flags, rx_id *out, struct error *err) {
    struct regex_reader r = {.rx = rx, .text = pattern, .flags = flags, .err = err};
    struct tree *tree;
    *out = RX_NEVER;
    enum status st = utf8_valid(pattern) ? read_alternatives(&r, &tree) : regex_bad(&r, ERR_FORMAT, "it is not UTF-8");
    if (st == OK && r.at < r.text.len)
        st = regex_bad(&r, ERR_FORMAT, ") without (");
    if (st == OK) {
        r.flags = flags;
        st = regex_language(&r, tree, out);
    }
    if (st == OK)
        st = rx_check(rx, err);
    arena_release(&r.memory);
    return st;
}

enum status regex_read(struct ir *ir, struct str pattern, ir_id *out, struct error *err) {
    rx_id rx;
    TRY(regex_read_rx(ir_rx(ir), pattern, 0, &rx, err));
    *out = ir_of_rx(ir, rx);
    return ir_check(ir, err);
}
