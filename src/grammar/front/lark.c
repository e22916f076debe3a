/* lark.c - reads grammars in Lark's EBNF, as llguidance's users write it too. See front.h.
 *
 * The whole text is `start`. Between any two terminals of rules, before the first and after the last, what %ignore
 * names may stand. A text is accepted if there is any way to cut it into terminals, as Lark's complete dynamic lexer
 * does: so priorities, which choose among ways, change nothing. Lazy quantifiers are read as greedy ones.
 *
 * Taken: %import of the library `common`, ranges, ~, [ ], aliases, "..."i, /.../is, special tokens <name> and <[1-3]>,
 * and %json with a schema. Refused by name: templates, %declare, %override, %extend, other libraries, attributes of
 * rules (llguidance's [stop=...]), @grammars, & and ~ of terminals. */
#include "grammar/front/lark_reader.h"

#include <stdlib.h>

static enum status define(struct lark *l, struct str name, ebnf_id body) {
    struct buf full = {0};
    buf_printf(&full, "%s%.*s", l->prefix, STR_ARG(name));
    bool fresh = ebnf_define(l->ebnf, buf_view(&full), body);
    buf_release(&full);
    return fresh ? OK : lark_bad(l, ERR_FORMAT, "a second definition of ", name);
}

static enum status read_definition(struct lark *l) {
    struct str name = lark_take_name(l);
    if (name.len == 0)
        return lark_bad(l, ERR_FORMAT, "a rule must begin here, not ", (struct str){lark_rest(l).ptr, 1});
    if (lark_peek(l) == '{')
        return lark_bad(l, ERR_UNSUPPORTED, "templates are not enforced: ", name);
    if (lark_peek(l) == '[')
        return lark_bad(l, ERR_UNSUPPORTED, "attributes of rules are not enforced: ", name);
    int32_t priority;
    if (lark_take_if(l, STR("."))) {
        lark_take_if(l, STR("-"));
        TRY(lark_take_int(l, &priority));
    }
    lark_skip(l, true);
    if (!lark_take_if(l, STR(":")))
        return lark_bad(l, ERR_FORMAT, "a colon must follow the name ", name);
    l->in_terminal = lark_is_terminal(name);
    ebnf_id body;
    TRY(lark_read_alternatives(l, false, &body));
    l->in_terminal = false;
    return define(l, name, body);
}

static enum status read_statements(struct lark *l);

/* Reads the library once, its names behind "common.". */
static enum status load_common(struct lark *l) {
    if (l->has_common)
        return OK;
    struct lark library = *l;
    library.text = str_of(lark_common);
    library.at = 0;
    library.prefix = "common.";
    TRY(read_statements(&library));
    l->has_common = true;
    return OK;
}

/* Makes `name` the library's terminal. */
static enum status import(struct lark *l, struct str from, struct str name) {
    struct buf full = {0};
    buf_printf(&full, "common.%.*s", STR_ARG(from));
    bool known = ebnf_defined(l->ebnf, buf_view(&full));
    ebnf_id body = ebnf_ref(l->ebnf, buf_view(&full));
    buf_release(&full);
    return known ? define(l, name, body)
                 : lark_bad(l, ERR_UNSUPPORTED, "the library common has no terminal that is enforced: ", from);
}

static enum status read_import(struct lark *l) {
    lark_skip(l, false);
    struct str library = lark_take_name(l);
    if (!str_eq(library, STR("common")))
        return lark_bad(l, ERR_UNSUPPORTED, "only the library common can be imported, not ", library);
    TRY(load_common(l));
    if (lark_take_if(l, STR("."))) {
        struct str name = lark_take_name(l), alias = name;
        lark_skip(l, false);
        if (lark_take_if(l, STR("->"))) {
            lark_skip(l, false);
            alias = lark_take_name(l);
        }
        if (alias.len == 0)
            return lark_bad(l, ERR_FORMAT, "%import wants a name", lark_no_name);
        return import(l, name, alias);
    }
    lark_skip(l, false);
    if (!lark_take_if(l, STR("(")))
        return lark_bad(l, ERR_FORMAT, "%import wants a name", lark_no_name);
    do {
        lark_skip(l, true);
        struct str name = lark_take_name(l);
        if (name.len == 0)
            return lark_bad(l, ERR_FORMAT, "%import wants a name", lark_no_name);
        TRY(import(l, name, name));
        lark_skip(l, true);
    } while (lark_take_if(l, STR(",")));
    return lark_take_if(l, STR(")")) ? OK : lark_bad(l, ERR_FORMAT, "( without )", lark_no_name);
}

static enum status read_ignore(struct lark *l) {
    ebnf_id body;
    l->in_terminal = true;
    TRY(lark_read_alternatives(l, false, &body));
    l->in_terminal = false;
    if (l->n_ignored == l->cap_ignored) {
        l->cap_ignored = l->cap_ignored ? l->cap_ignored * 2 : 8;
        l->ignored = xrealloc(l->ignored, l->cap_ignored, sizeof *l->ignored);
    }
    l->ignored[l->n_ignored++] = body;
    return OK;
}

static enum status read_statement(struct lark *l) {
    if (lark_peek(l) != '%')
        return read_definition(l);
    if (lark_take_if(l, STR("%import")))
        return read_import(l);
    if (lark_take_if(l, STR("%ignore")))
        return read_ignore(l);
    if (lark_take_if(l, STR("%llguidance"))) { // its options: none are enforced, so there may be none
        lark_skip(l, false);
        if (lark_take_if(l, STR("{}")))
            return OK;
        return lark_bad(l, ERR_UNSUPPORTED, "options of %llguidance are not enforced", lark_no_name);
    }
    struct str rest = lark_rest(l);
    const char *end = memchr(rest.ptr, ' ', rest.len);
    return lark_bad(l, ERR_UNSUPPORTED, "this statement is not enforced: ",
                    (struct str){rest.ptr, end ? (size_t)(end - rest.ptr) : rest.len});
}

static enum status read_statements(struct lark *l) {
    for (lark_skip(l, true); l->at < l->text.len; lark_skip(l, true)) {
        TRY(read_statement(l));
        lark_skip(l, false);
        if (l->at < l->text.len && lark_peek(l) != '\n')
            return lark_bad(l, ERR_FORMAT, "what stands here belongs to no rule: ", (struct str){lark_rest(l).ptr, 1});
    }
    return OK;
}

enum status lark_read(struct ir *ir, struct str text, ir_id *out, struct error *err) {
    static const struct grammar_style style = {0};
    struct lark l = {.text = text, .ebnf = ebnf_open(ir), .ir = ir, .err = err, .prefix = "", .style = &style};
    enum status st = utf8_valid(text) ? read_statements(&l) : lark_bad(&l, ERR_FORMAT, "it is not UTF-8", lark_no_name);
    if (st == OK && !ebnf_defined(l.ebnf, STR("start")))
        st = fail(err, ERR_FORMAT, "the Lark grammar has no rule start");
    if (st == OK) {
        ebnf_id ignored =
            l.n_ignored ? ebnf_repeat(l.ebnf, ebnf_alt(l.ebnf, l.ignored, l.n_ignored), 0, IR_NO_MAX) : EBNF_EMPTY;
        ebnf_id whole[] = {ebnf_ref(l.ebnf, STR("start")), ebnf_ref(l.ebnf, STR("%ignored"))};
        ebnf_define(l.ebnf, STR("%ignored"), ignored);
        ebnf_define(l.ebnf, STR("%whole"), ebnf_seq(l.ebnf, whole, 2));
        st = ebnf_finish(l.ebnf, STR("%whole"), out, err);
    }
    ebnf_free(l.ebnf);
    free(l.ignored);
    return st;
}
