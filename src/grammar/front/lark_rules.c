/* lark_rules.c - what stands behind the colon of a rule or terminal of Lark. See lark_reader.h. */
#include "grammar/front/lark_reader.h"

#include <stdlib.h>

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

ebnf_id lark_ref(struct lark *l, struct str name) {
    struct buf full = {0};
    buf_printf(&full, "%s%.*s", l->prefix, STR_ARG(name));
    ebnf_id out = ebnf_ref(l->ebnf, buf_view(&full));
    buf_release(&full);
    return out;
}

/* A terminal where a rule uses it: what is ignored may stand before. */
static ebnf_id lexeme(struct lark *l, ebnf_id terminal) {
    if (l->in_terminal)
        return terminal;
    return ebnf_seq(l->ebnf, (ebnf_id[]){ebnf_ref(l->ebnf, STR("%ignored")), terminal}, 2);
}

static enum status read_literal(struct lark *l, ebnf_id *out) {
    rx_id rx = RX_NEVER, to;
    uint32_t first, last;
    TRY(lark_read_string(l, &rx, &first));
    if (lark_take_if(l, STR(".."))) {
        if (lark_peek(l) != '"')
            return lark_bad(l, ERR_FORMAT, "a range wants two strings", lark_no_name);
        TRY(lark_read_string(l, &to, &last));
        if (first == UINT32_MAX || last == UINT32_MAX || last < first)
            return lark_bad(l, ERR_FORMAT, "a range wants two characters, the smaller one first", lark_no_name);
        rx = rx_class(ir_rx(l->ir), &(struct code_range){first, last}, 1);
    }
    *out = lexeme(l, ebnf_rx(l->ebnf, rx));
    return OK;
}

static enum status read_name(struct lark *l, ebnf_id *out) {
    struct str name = lark_take_name(l);
    bool terminal = lark_is_terminal(name);
    if (l->in_terminal && !terminal)
        return lark_bad(l, ERR_FORMAT, "a terminal cannot be made of a rule: ", name);
    if (lark_peek(l) == '{')
        return lark_bad(l, ERR_UNSUPPORTED, "templates are not enforced: ", name);
    *out = lark_ref(l, name);
    if (terminal)
        *out = lexeme(l, *out);
    return OK;
}

static enum status read_group(struct lark *l, const char *close, ebnf_id *out) {
    l->at++;
    if (++l->depth > LARK_MAX_DEPTH)
        return lark_bad(l, ERR_LIMIT, "groups are nested too deep", lark_no_name);
    TRY(lark_read_alternatives(l, true, out));
    l->depth--;
    lark_skip(l, true);
    if (!lark_take_if(l, str_of(close)))
        return lark_bad(l, ERR_FORMAT, "a group is not closed by ", str_of(close));
    if (*close == ']')
        *out = ebnf_repeat(l->ebnf, *out, 0, 1);
    return OK;
}

static enum status read_percent(struct lark *l, ebnf_id *out) {
    if (lark_take_if(l, STR("%json"))) {
        TRY(lark_read_json(l, out));
        *out = lexeme(l, *out);
        return OK;
    }
    return lark_bad(l, ERR_UNSUPPORTED,
                    "this is not enforced: ", (struct str){lark_rest(l).ptr, MIN(8, lark_rest(l).len)});
}

static enum status read_atom(struct lark *l, bool *any, ebnf_id *out) {
    *any = true;
    rx_id rx = RX_NEVER;
    switch (lark_peek(l)) {
    case '"': return read_literal(l, out);
    case '/':
        TRY(lark_read_regex(l, &rx));
        *out = lexeme(l, ebnf_rx(l->ebnf, rx));
        return OK;
    case '(': return read_group(l, ")", out);
    case '[': return read_group(l, "]", out);
    case '<':
        if (l->in_terminal)
            return lark_bad(l, ERR_UNSUPPORTED, "a special token within a terminal is not enforced", lark_no_name);
        TRY(lark_read_token(l, out));
        *out = lexeme(l, *out);
        return OK;
    case '%': return read_percent(l, out);
    case '@': return lark_bad(l, ERR_UNSUPPORTED, "other grammars by @ are not enforced", lark_no_name);
    case '&':
    case '~': return lark_bad(l, ERR_UNSUPPORTED, "& and ~ of terminals are not enforced", lark_no_name);
    default: break;
    }
    size_t mark = l->at;
    struct str name = lark_take_name(l);
    l->at = mark;
    *any = name.len > 0;
    return *any ? read_name(l, out) : OK;
}

static enum status read_repeat(struct lark *l, ebnf_id *item) {
    int32_t min = 0, max = IR_NO_MAX;
    switch (lark_peek(l)) {
    case '*': break;
    case '+': min = 1; break;
    case '?': max = 1; break;
    default: {
        lark_skip(l, false);
        if (!lark_take_if(l, STR("~")))
            return OK;
        lark_skip(l, false);
        TRY(lark_take_int(l, &min));
        max = min;
        lark_skip(l, false);
        if (lark_take_if(l, STR(".."))) {
            lark_skip(l, false);
            TRY(lark_take_int(l, &max));
        }
        if (max < min)
            return lark_bad(l, ERR_FORMAT, "a repeat whose most is less than its least", lark_no_name);
        *item = ebnf_repeat(l->ebnf, *item, min, max);
        return OK;
    }
    }
    l->at++;
    *item = ebnf_repeat(l->ebnf, *item, min, max);
    return OK;
}

static enum status read_sequence(struct lark *l, bool nested, ebnf_id *out) {
    struct list parts = {0};
    enum status st = OK;
    for (bool any = true; st == OK && any;) {
        ebnf_id item = EBNF_EMPTY;
        lark_skip(l, nested);
        st = read_atom(l, &any, &item);
        if (st == OK && any)
            st = read_repeat(l, &item);
        if (st == OK && any)
            put(&parts, item);
    }
    if (st == OK && lark_take_if(l, STR("->"))) { // a name in the tree
        lark_skip(l, false);
        if (lark_take_name(l).len == 0)
            st = lark_bad(l, ERR_FORMAT, "-> wants a name", lark_no_name);
    }
    *out = ebnf_seq(l->ebnf, parts.at, parts.n);
    free(parts.at);
    return st;
}

/* Whether a | comes, perhaps at the beginning of a later line. */
static bool take_bar(struct lark *l) {
    size_t mark = l->at;
    lark_skip(l, true);
    if (lark_take_if(l, STR("|")))
        return true;
    l->at = mark;
    return false;
}

enum status lark_read_alternatives(struct lark *l, bool nested, ebnf_id *out) {
    struct list parts = {0};
    enum status st;
    take_bar(l);
    do {
        ebnf_id one = EBNF_EMPTY;
        st = read_sequence(l, nested, &one);
        put(&parts, one);
    } while (st == OK && take_bar(l));
    *out = ebnf_alt(l->ebnf, parts.at, parts.n);
    free(parts.at);
    return st;
}
