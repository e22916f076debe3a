/* jinja_eval.c - expressions. */
#include "jinja/jinja_eval.h"
#include "jinja/values/jinja_number.h"
#include "jinja/values/jinja_str.h"

enum { FEW_ARGS = 6, FEW_KEYWORDS = 4 };

static jval eval_name(struct jinja *j, const struct node *n) {
    jval v = *slot_at(j, n->name.slot);
    return v.kind == J_MISSING ? jval_undefined(j, jval_text(n->name.id)) : v;
}

static jval eval_seq(struct jinja *j, const struct node *n) {
    jval *items = jinja_calloc(j, n->items.n, sizeof *items);
    for (size_t i = 0; i < n->items.n; i++)
        items[i] = jinja_eval(j, n->items.item[i]);
    return jval_seq(j, n->kind == NODE_LIST ? J_LIST : J_TUPLE, items, n->items.n);
}

static jval eval_dict(struct jinja *j, const struct node *n) {
    jval d = jval_dict(j);
    for (size_t i = 0; i + 1 < n->items.n; i += 2) {
        jval key = jinja_eval(j, n->items.item[i]);
        jdict_set(j, d.d, key, jinja_eval(j, n->items.item[i + 1]));
    }
    return d;
}

static __attribute__((noinline)) jval eval_concat(struct jinja *j, const struct node *n) {
    jval first = jval_to_plain(j, jinja_eval(j, n->items.item[0]));
    // All operands are evaluated before any is printed.
    jval *rest = jinja_calloc(j, n->items.n - 1, sizeof *rest);
    for (size_t i = 1; i < n->items.n; i++)
        rest[i - 1] = jinja_eval(j, n->items.item[i]);
    sink_open(j);
    for (size_t i = 1; i < n->items.n; i++)
        jinja_emit_str(j, rest[i - 1]);
    return first.s->len ? jstr_concat(j, first, jval_borrow(j, sink_close(j))) : jval_of_sink(j);
}

static bool compare(struct jinja *j, enum compare_op op, jval a, jval b) {
    switch (op) {
    case CMP_EQ: return jval_eq(j, a, b);
    case CMP_NE: return !jval_eq(j, a, b);
    case CMP_IN: return jval_in(j, a, b);
    case CMP_NOT_IN: return !jval_in(j, a, b);
    default: return jval_order(j, (enum jorder)op, a, b);
    }
}

/* a < b < c is a < b and b < c */
static jval eval_compare(struct jinja *j, const struct node *n) {
    jval left = jinja_eval(j, n->compare.first);
    for (size_t i = 0; i < n->compare.rest.n; i++) {
        jval right = jinja_eval(j, n->compare.rest.item[i]);
        if (!compare(j, (enum compare_op)n->compare.ops[i], left, right))
            return jval_bool(false);
        left = right;
    }
    return jval_bool(true);
}

static jval eval_cond(struct jinja *j, const struct node *n) {
    if (jval_true(j, jinja_eval(j, n->cond.test)))
        return jinja_eval(j, n->cond.yes);
    if (n->cond.no)
        return jinja_eval(j, n->cond.no);
    return jval_undefined_hint(j, "the inline if-expression evaluated to false and no else section was defined.");
}

static jval eval_or_none(struct jinja *j, const struct node *n) { return n ? jinja_eval(j, n) : jval_none(); }

static jval eval_item(struct jinja *j, const struct node *n) {
    jval obj = jinja_eval(j, n->access.of);
    const struct node *key = n->access.key;
    if (key->kind != NODE_SLICE)
        return jval_getitem(j, obj, jinja_eval(j, key));
    jval start = eval_or_none(j, key->slice.start), stop = eval_or_none(j, key->slice.stop);
    return jval_slice(j, obj, start, stop, eval_or_none(j, key->slice.step));
}

// ---- calls, filters, tests ----

static void eval_rest(struct jinja *j, const struct node *rest, struct jargs *out) {
    struct jlist all = {0};
    struct jiter it;
    for (size_t i = 0; i < out->n; i++)
        jlist_push(j, &all, out->positional[i]);
    jiter_of(j, jinja_eval(j, rest), &it);
    for (jval v; jiter_next(j, &it, &v);)
        jlist_push(j, &all, v);
    out->positional = all.items;
    out->n = all.n;
}

static void eval_keyword_rest(struct jinja *j, const struct node *rest, struct jargs *out) {
    jval more = jinja_eval(j, rest);
    if (more.kind != J_DICT)
        jinja_type_error(j, "argument after ** must be a mapping, not %s", jval_type(more));
    struct keyword *all = jinja_calloc(j, out->n_keyword + more.d->n, sizeof *all);
    if (out->n_keyword)
        memcpy(all, out->keyword, out->n_keyword * sizeof *all);
    for (size_t i = 0; i < more.d->n; i++) {
        const struct jentry *e = &more.d->entries[i];
        if (e->key.kind != J_STR)
            jinja_type_error(j, "keywords must be strings");
        for (size_t k = 0; k < out->n_keyword; k++)
            if (jval_same(all[k].name, e->key))
                jinja_type_error(j, "got multiple values for keyword argument '%.*s'",
                                 STR_ARG(str_excerpt(jval_text(e->key))));
        all[out->n_keyword + i] = (struct keyword){e->key, e->value};
    }
    out->keyword = all;
    out->n_keyword += more.d->n;
}

/* positional and keyword have room for what the node lists, and one keyword more. */
static struct jargs eval_arguments(struct jinja *j, const struct arguments *a, jval *positional,
                                   struct keyword *keyword, const jval *caller) {
    struct jargs args = {.positional = positional, .keyword = keyword};
    for (size_t i = 0; i < a->positional.n; i++)
        positional[args.n++] = jinja_eval(j, a->positional.item[i]);
    for (size_t i = 0; i < a->keyword.n; i++)
        keyword[args.n_keyword++] = (struct keyword){a->keys[i], jinja_eval(j, a->keyword.item[i])};
    if (caller)
        keyword[args.n_keyword++] = (struct keyword){jval_borrow(j, STR("caller")), *caller};
    if (a->rest)
        eval_rest(j, a->rest, &args);
    if (a->kw_rest)
        eval_keyword_rest(j, a->kw_rest, &args);
    return args;
}

static jval apply(struct jinja *j, const struct node *n, jval of, const struct jargs *args) {
    j->line = n->line; // the arguments may stand on other lines
    if (n->kind == NODE_CALL)
        return jinja_call(j, of, args);
    if (!n->apply.fn)
        jinja_fail(j, ERR_ARG, "No %s named '%.*s' found.", n->kind == NODE_FILTER ? "filter" : "test",
                   STR_ARG(jval_text(n->apply.name)));
    return builtin_call(j, n->apply.fn, of, args);
}

static __attribute__((noinline)) jval apply_few(struct jinja *j, const struct node *n, jval of, const jval *caller) {
    jval positional[FEW_ARGS];
    struct keyword keyword[FEW_KEYWORDS];
    struct jargs args = eval_arguments(j, &n->apply.args, positional, keyword, caller);
    return apply(j, n, of, &args);
}

static __attribute__((noinline)) jval apply_many(struct jinja *j, const struct node *n, jval of, const jval *caller) {
    jval *positional = jinja_calloc(j, n->apply.args.positional.n, sizeof *positional);
    struct keyword *keyword = jinja_calloc(j, n->apply.args.keyword.n + 1, sizeof *keyword);
    struct jargs args = eval_arguments(j, &n->apply.args, positional, keyword, caller);
    return apply(j, n, of, &args);
}

static jval eval_apply(struct jinja *j, const struct node *n, const jval *caller) {
    const struct arguments *a = &n->apply.args;
    jval of = n->apply.of ? jinja_eval(j, n->apply.of) : *j->captured;
    bool few = a->positional.n <= FEW_ARGS && a->keyword.n < FEW_KEYWORDS;
    return few ? apply_few(j, n, of, caller) : apply_many(j, n, of, caller);
}

jval jinja_eval_call(struct jinja *j, const struct node *n, const jval *caller) { return eval_apply(j, n, caller); }

static jval eval(struct jinja *j, const struct node *n) {
    jval left;
    switch (n->kind) {
    case NODE_CONST: return n->constant;
    case NODE_NAME: return eval_name(j, n);
    case NODE_TUPLE:
    case NODE_LIST: return eval_seq(j, n);
    case NODE_DICT: return eval_dict(j, n);
    case NODE_CONCAT: return eval_concat(j, n);
    case NODE_BINARY:
        left = jinja_eval(j, n->binary.left);
        return jval_binary(j, n->binary.op, left, jinja_eval(j, n->binary.right));
    case NODE_AND:
        left = jinja_eval(j, n->binary.left);
        return jval_true(j, left) ? jinja_eval(j, n->binary.right) : left;
    case NODE_OR:
        left = jinja_eval(j, n->binary.left);
        return jval_true(j, left) ? left : jinja_eval(j, n->binary.right);
    case NODE_NOT: return jval_bool(!jval_true(j, jinja_eval(j, n->operand)));
    case NODE_NEGATE: return jval_negate(j, jinja_eval(j, n->operand));
    case NODE_PLUS: return jval_plus(j, jinja_eval(j, n->operand));
    case NODE_COMPARE: return eval_compare(j, n);
    case NODE_COND: return eval_cond(j, n);
    case NODE_ATTR: return jval_getattr(j, jinja_eval(j, n->access.of), n->access.key->constant);
    case NODE_ITEM: return eval_item(j, n);
    case NODE_CALL:
    case NODE_FILTER:
    case NODE_TEST: return eval_apply(j, n, NULL);
    default: break;
    }
    BUG_IF(true); // statements, targets and slices are not expressions: the parser saw to that
    return jval_none();
}

jval jinja_eval(struct jinja *j, const struct node *n) {
    jinja_step(j, 1);
    jinja_enter(j);
    j->line = n->line;
    jval v = eval(j, n);
    jinja_leave(j);
    return v;
}
