/* jinja_scope.c - which variable a name means, settled when the template is parsed.
 *
 * This walk goes through the whole tree, opens scopes and functions, and gives every name its slot. What a scope does
 * with its names is found before, by the walk of jinja_symbols.c. */
#include "jinja/builtins/jinja_builtin.h"
#include "jinja/jinja_symbols.h"
#include "jinja/syntax/jinja_ast.h"

struct frame {
    struct jinja *j;
    struct symbols symbols;
    bool toplevel;
    bool soft;    // in a branch: an unknown filter only matters once it is used
    bool in_loop; // break may stand here
    bool in_for;  // anywhere inside a loop, also through macros
};

static void walk(struct frame *f, struct node *n);
static void walk_child(void *arg, struct node *child) { walk(arg, child); }

static void walk_list(struct frame *f, const struct nodes *list) {
    for (size_t i = 0; i < list->n; i++)
        walk(f, list->item[i]);
}

static struct frame inner_frame(struct frame *f) {
    struct frame inner = {.j = f->j, .in_loop = f->in_loop, .in_for = f->in_for};
    inner.symbols =
        (struct symbols){.j = f->j, .parent = &f->symbols, .fn = f->symbols.fn, .level = f->symbols.level + 1};
    return inner;
}

/* An inner frame that is a function of its own. */
static struct frame function_frame(struct frame *f) {
    struct frame inner = inner_frame(f);
    struct frame_function *fn = jinja_alloc(f->j, sizeof *fn);
    fn->parent = f->symbols.fn;
    fn->depth = fn->parent->depth + 1;
    inner.symbols.fn = fn;
    inner.in_loop = false;
    return inner;
}

static struct slot slot_from(const struct frame_function *here, const struct ref *r) {
    return (struct slot){here->depth - r->fn->depth, r->index};
}

static struct slot resolve(struct frame *f, struct str id) {
    const struct ref *r = symbols_find(&f->symbols, id);
    BUG_IF(!r); // analyze saw every name that walk meets
    return slot_from(f->symbols.fn, r);
}

static struct scope scope_of(struct frame *f) {
    const struct symbols *s = &f->symbols;
    struct scope scope = {.loads = jinja_calloc(f->j, s->n_loads, sizeof *scope.loads), .n = s->n_loads};
    for (size_t i = 0; i < s->n_loads; i++) {
        const struct pending_load *p = &s->loads[i];
        scope.loads[i] = (struct load){.kind = p->kind, .index = p->self.index, .name = p->self.id};
        if (p->kind == LOAD_ALIAS)
            scope.loads[i].from = slot_from(s->fn, &p->from);
    }
    return scope;
}

static struct function *function_of(struct frame *f) {
    struct function *fn = jinja_alloc(f->j, sizeof *fn);
    fn->scope = scope_of(f);
    return fn;
}

/* Only once everything in it was walked, for inner scopes add slots. */
static void count_slots(struct frame *f, struct function *fn) { fn->n_slots = f->symbols.fn->n; }

/* Whether a body reads `name` before it makes that name its own; as Jinja's UndeclaredNameVisitor. */
struct mention {
    const char *name;
    bool found, shadowed;
};

static void look_for_mention(void *arg, struct node *n) {
    struct mention *m = arg;
    if (m->found || m->shadowed || n->kind == NODE_BLOCK)
        return;
    if (n->kind == NODE_NAME && str_eq(jval_text(n->name.id), str_of(m->name))) {
        m->found = !n->name.store;
        m->shadowed = n->name.store;
        return;
    }
    node_children(n, look_for_mention, m);
}

static bool mentions(const struct nodes *body, const char *name) {
    struct mention m = {.name = name};
    for (size_t i = 0; i < body->n; i++)
        look_for_mention(&m, body->item[i]);
    return m.found;
}

static bool has_param(const struct node *n, const char *name) {
    for (size_t i = 0; i < n->macro.params.n; i++)
        if (str_eq(jval_text(n->macro.params.item[i]->name.id), str_of(name)))
            return true;
    return false;
}

static int special_param(struct frame *f, const struct node *n, const char *name) {
    if (has_param(n, name) || !mentions(&n->macro.body, name))
        return -1;
    symbols_declare(&f->symbols, str_of(name));
    return symbols_find_own(&f->symbols, str_of(name))->index;
}

static void analyze_macro(struct frame *f, struct node *n) {
    symbols_analyze_list(&f->symbols, &n->macro.params);
    symbols_analyze_list(&f->symbols, &n->macro.defaults);
    symbols_analyze_list(&f->symbols, &n->macro.body);
}

static void check_caller(struct frame *f, const struct node *n) {
    size_t required = n->macro.params.n - n->macro.defaults.n;
    for (size_t i = 0; i < required; i++)
        if (str_eq(jval_text(n->macro.params.item[i]->name.id), STR("caller")) && mentions(&n->macro.body, "caller")) {
            f->j->line = n->line;
            jinja_fail(f->j, ERR_FORMAT,
                       "When defining macros or call blocks the special \"caller\" argument must be omitted or be "
                       "given a default.");
        }
}

static void walk_macro(struct frame *f, struct node *n) {
    struct frame inner = function_frame(f);
    check_caller(f, n);
    analyze_macro(&inner, n);
    n->macro.caller_slot = special_param(&inner, n, "caller");
    n->macro.kwargs_slot = special_param(&inner, n, "kwargs");
    n->macro.varargs_slot = special_param(&inner, n, "varargs");
    analyze_macro(&inner, n);
    n->macro.fn = function_of(&inner);
    walk_list(&inner, &n->macro.params);
    walk_list(&inner, &n->macro.defaults);
    walk_list(&inner, &n->macro.body);
    count_slots(&inner, n->macro.fn);
}

static void walk_for(struct frame *f, struct node *n) {
    f->in_for = true;
    walk(f, n->loop.iter);
    struct frame body = n->loop.recursive ? function_frame(f) : inner_frame(f);
    symbols_declare(&body.symbols, STR("loop"));
    symbols_declare_target(&body.symbols, n->loop.target);
    symbols_analyze_list(&body.symbols, &n->loop.body);
    n->loop.loop = resolve(&body, STR("loop"));
    n->loop.scope = scope_of(&body);

    struct frame otherwise = inner_frame(f);
    otherwise.symbols.fn = body.symbols.fn;
    otherwise.in_loop = !n->loop.recursive && f->in_loop;
    symbols_analyze_list(&otherwise.symbols, &n->loop.otherwise);
    n->loop.otherwise_scope = scope_of(&otherwise);

    body.in_loop = true;
    walk(&body, n->loop.target);
    walk_list(&body, &n->loop.body);
    walk_list(&otherwise, &n->loop.otherwise);
    if (n->loop.recursive) {
        n->loop.fn = jinja_alloc(f->j, sizeof *n->loop.fn);
        count_slots(&body, n->loop.fn);
    }
}

static void walk_loop_test(struct frame *f, struct node *n) {
    struct frame test = function_frame(f);
    symbols_declare_target(&test.symbols, n->loop.test_target);
    symbols_analyze(&test.symbols, n->loop.test);
    n->loop.test_fn = function_of(&test);
    walk(&test, n->loop.test_target);
    walk(&test, n->loop.test);
    count_slots(&test, n->loop.test_fn);
}

static void walk_with(struct frame *f, struct node *n) {
    walk_list(f, &n->with.values);
    struct frame inner = inner_frame(f);
    inner.in_loop = f->in_loop;
    symbols_analyze_list(&inner.symbols, &n->with.targets);
    symbols_analyze_list(&inner.symbols, &n->with.body);
    n->with.scope = scope_of(&inner);
    walk_list(&inner, &n->with.targets);
    walk_list(&inner, &n->with.body);
}

static void walk_set_block(struct frame *f, struct node *n) {
    struct frame inner = inner_frame(f);
    symbols_analyze_list(&inner.symbols, &n->set.body);
    if (n->set.filter)
        symbols_analyze(&inner.symbols, n->set.filter);
    n->set.scope = scope_of(&inner);
    walk(f, n->set.target);
    walk_list(&inner, &n->set.body);
    if (n->set.filter)
        walk(&inner, n->set.filter);
}

static void walk_filter_block(struct frame *f, struct node *n) {
    struct frame inner = inner_frame(f);
    symbols_analyze_list(&inner.symbols, &n->filtered.body);
    symbols_analyze(&inner.symbols, n->filtered.filter);
    n->filtered.scope = scope_of(&inner);
    walk_list(&inner, &n->filtered.body);
    walk(&inner, n->filtered.filter);
}

/* A block sees the context and what was set at the top level, nothing of the places around it. */
static void walk_block(struct frame *f, struct node *n) {
    struct frame_function *fn = jinja_alloc(f->j, sizeof *fn);
    struct frame inner = {.j = f->j, .symbols = {.j = f->j, .fn = fn}};
    symbols_analyze_list(&inner.symbols, &n->block.body);
    n->block.fn = function_of(&inner);
    walk_list(&inner, &n->block.body);
    count_slots(&inner, n->block.fn);
}

static void walk_name(struct frame *f, struct node *n) {
    if (n->name.store && !n->name.param && f->in_for && n->kind == NODE_NAME &&
        str_eq(jval_text(n->name.id), STR("loop")))
        jinja_fail(f->j, ERR_FORMAT, "Can't assign to special loop variable in for-loop target");
    n->name.slot = resolve(f, jval_text(n->name.id));
    n->name.export = n->name.store && f->toplevel;
}

static void walk_apply(struct frame *f, struct node *n) {
    if (n->kind != NODE_CALL && !n->apply.fn && !f->soft)
        jinja_fail(f->j, ERR_FORMAT, "No %s named '%.*s'.", n->kind == NODE_FILTER ? "filter" : "test",
                   STR_ARG(jval_text(n->apply.name)));
    node_children(n, walk_child, f);
}

static void walk_soft(struct frame *f, struct node *n) {
    bool soft = f->soft;
    f->soft = true;
    node_children(n, walk_child, f);
    f->soft = soft;
}

static void walk(struct frame *f, struct node *n) {
    bool in_for = f->in_for;
    jinja_enter(f->j);
    f->j->line = n->line;
    switch (n->kind) {
    case NODE_NAME:
    case NODE_NSREF: walk_name(f, n); break;
    case NODE_CALL:
    case NODE_FILTER:
    case NODE_TEST: walk_apply(f, n); break;
    case NODE_IF:
    case NODE_COND: walk_soft(f, n); break;
    case NODE_FOR:
        walk_for(f, n);
        if (n->loop.test)
            walk_loop_test(f, n);
        break;
    case NODE_MACRO:
        walk_name(f, n->macro.target);
        walk_macro(f, n);
        break;
    case NODE_CALL_BLOCK:
        walk_macro(f, n);
        walk(f, n->macro.call);
        break;
    case NODE_GENERATION: walk_macro(f, n); break;
    case NODE_SET_BLOCK: walk_set_block(f, n); break;
    case NODE_FILTER_BLOCK: walk_filter_block(f, n); break;
    case NODE_WITH: walk_with(f, n); break;
    case NODE_BLOCK: walk_block(f, n); break;
    case NODE_BREAK:
    case NODE_CONTINUE:
        if (!f->in_loop)
            jinja_fail(f->j, ERR_FORMAT,
                       n->kind == NODE_BREAK ? "'break' outside loop" : "'continue' not properly in loop");
        break;
    default: node_children(n, walk_child, f);
    }
    f->in_for = in_for;
    jinja_leave(f->j);
}

void jinja_number_variables(struct jinja *j, struct template *t) {
    struct frame_function fn = {0};
    struct frame root = {.j = j, .symbols = {.j = j, .fn = &fn}, .toplevel = true};
    symbols_analyze_list(&root.symbols, &t->body);
    t->fn.scope = scope_of(&root);
    walk_list(&root, &t->body);
    t->fn.n_slots = fn.n;
}
