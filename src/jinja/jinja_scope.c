/* jinja_scope.c - which variable a name means, settled when the template is parsed.
 *
 * Two walks. The first (`analyze`) goes through the part of the tree that belongs to one scope and notes for
 * each name whether it is read or written first there; from that follows what the scope does on entry (its
 * loads). The second (`walk`) goes through the whole tree, opens scopes and functions, and gives every name
 * its slot. The rules are those of Jinja's idtracking.py; a name is one variable for each pair of function
 * and level of nesting, so that two loops side by side share theirs, as they do in Jinja's Python. */
#include "jinja/builtins/jinja_builtin.h"
#include "jinja/syntax/jinja_ast.h"

struct frame_function {
    struct frame_function *parent;
    int depth;
    struct frame_slot {
        struct str id;
        int level;
    } * slots; // [n]
    int n, cap;
};

struct ref {
    struct str id;
    struct frame_function *fn;
    int index;
};

struct pending_load {
    enum load_kind kind;
    struct ref self, from;
};

/* The names of one scope. While one branch of an {% if %} is walked, `base` has what was known before it. */
struct symbols {
    struct jinja *j;
    struct symbols *parent, *base;
    struct frame_function *fn;
    int level;
    struct ref *refs;
    struct pending_load *loads;
    struct str *stores;
    size_t n_refs, cap_refs, n_loads, cap_loads, n_stores, cap_stores;
};

static void *grow(struct jinja *j, void *old, size_t n, size_t *cap, size_t size) {
    if (n < *cap)
        return old;
    *cap = *cap ? *cap * 2 : 4;
    void *grown = jinja_calloc(j, *cap, size);
    if (n)
        memcpy(grown, old, n * size);
    return grown;
}

// ---- what is known of a name ----

static const struct ref *find_own_ref(const struct symbols *s, struct str id) {
    for (; s; s = s->base)
        for (size_t i = 0; i < s->n_refs; i++)
            if (str_eq(s->refs[i].id, id))
                return &s->refs[i];
    return NULL;
}

static const struct symbols *root_of(const struct symbols *s) {
    while (s->base)
        s = s->base;
    return s;
}

static const struct ref *find_ref(const struct symbols *s, struct str id) {
    for (; s; s = root_of(s)->parent) {
        const struct ref *r = find_own_ref(s, id);
        if (r)
            return r;
    }
    return NULL;
}

static const struct ref *find_outer_ref(const struct symbols *s, struct str id) {
    const struct symbols *parent = root_of(s)->parent;
    return parent ? find_ref(parent, id) : NULL;
}

static bool is_stored(const struct symbols *s, struct str id) {
    for (; s; s = s->base)
        for (size_t i = 0; i < s->n_stores; i++)
            if (str_eq(s->stores[i], id))
                return true;
    return false;
}

static int slot_of(struct jinja *j, struct frame_function *fn, struct str id, int level) {
    for (int i = 0; i < fn->n; i++)
        if (fn->slots[i].level == level && str_eq(fn->slots[i].id, id))
            return i;
    size_t cap = (size_t)fn->cap;
    fn->slots = grow(j, fn->slots, (size_t)fn->n, &cap, sizeof *fn->slots);
    fn->cap = (int)cap;
    fn->slots[fn->n] = (struct frame_slot){id, level};
    return fn->n++;
}

static void set_ref(struct symbols *s, struct ref r) {
    for (size_t i = 0; i < s->n_refs; i++)
        if (str_eq(s->refs[i].id, r.id)) {
            s->refs[i] = r;
            return;
        }
    s->refs = grow(s->j, s->refs, s->n_refs, &s->cap_refs, sizeof *s->refs);
    s->refs[s->n_refs++] = r;
}

static void set_load(struct symbols *s, struct pending_load load) {
    for (size_t i = 0; i < s->n_loads; i++)
        if (s->loads[i].self.fn == load.self.fn && s->loads[i].self.index == load.self.index) {
            s->loads[i] = load;
            return;
        }
    s->loads = grow(s->j, s->loads, s->n_loads, &s->cap_loads, sizeof *s->loads);
    s->loads[s->n_loads++] = load;
}

static void add_store(struct symbols *s, struct str id) {
    if (is_stored(s, id))
        return;
    s->stores = grow(s->j, s->stores, s->n_stores, &s->cap_stores, sizeof *s->stores);
    s->stores[s->n_stores++] = id;
}

static void define(struct symbols *s, struct str id, enum load_kind kind, const struct ref *from) {
    struct pending_load load = {.kind = kind,
                                .self = {.id = id, .fn = s->fn, .index = slot_of(s->j, s->fn, id, s->level)}};
    if (from)
        load.from = *from;
    set_ref(s, load.self);
    set_load(s, load);
}

static void declare_parameter(struct symbols *s, struct str id) {
    add_store(s, id);
    define(s, id, LOAD_PARAMETER, NULL);
}

static void note_store(struct symbols *s, struct str id) {
    add_store(s, id);
    if (find_own_ref(s, id))
        return;
    const struct ref *outer = find_outer_ref(s, id);
    define(s, id, outer ? LOAD_ALIAS : LOAD_UNSET, outer);
}

static void note_load(struct symbols *s, struct str id) {
    if (!find_ref(s, id))
        define(s, id, LOAD_RESOLVE, NULL);
}

// ---- the first walk ----

static void analyze(struct symbols *s, struct node *n);

static void analyze_child(void *arg, struct node *child) { analyze(arg, child); }

static void analyze_list(struct symbols *s, const struct nodes *list) {
    for (size_t i = 0; i < list->n; i++)
        analyze(s, list->item[i]);
}

static struct symbols branch_of(struct symbols *s) {
    return (struct symbols){.j = s->j, .base = s, .fn = s->fn, .level = s->level};
}

/* A name that only some branches set is, on entry, what it is outside. */
static void merge_branch(struct symbols *s, const struct symbols *branch) {
    for (size_t i = 0; i < branch->n_refs; i++)
        set_ref(s, branch->refs[i]);
    for (size_t i = 0; i < branch->n_loads; i++)
        set_load(s, branch->loads[i]);
}

static void merge_stores(struct symbols *s, const struct symbols *branch) {
    for (size_t i = 0; i < branch->n_stores; i++) {
        struct str id = branch->stores[i];
        if (is_stored(s, id))
            continue;
        const struct ref *self = find_ref(s, id), *outer = find_outer_ref(s, id);
        add_store(s, id);
        struct pending_load load = {.kind = outer ? LOAD_ALIAS : LOAD_RESOLVE, .self = *self};
        if (outer)
            load.from = *outer;
        set_load(s, load);
    }
}

static void merge(struct symbols *s, struct symbols *branches, size_t n) {
    for (size_t i = 0; i < n; i++)
        merge_branch(s, &branches[i]);
    for (size_t i = 0; i < n; i++)
        merge_stores(s, &branches[i]);
}

static void analyze_if(struct symbols *s, struct node *n) {
    enum { BODY, ELIFS, ELSE, N_BRANCHES };
    analyze(s, n->branch.tests[0]);
    struct symbols branches[N_BRANCHES] = {branch_of(s), branch_of(s), branch_of(s)};
    analyze_list(&branches[BODY], &n->branch.bodies[0]);
    for (size_t i = 1; i < n->branch.n; i++) { // all elifs share one branch, each with its body as a branch of that
        analyze(&branches[ELIFS], n->branch.tests[i]);
        struct symbols body = branch_of(&branches[ELIFS]);
        analyze_list(&body, &n->branch.bodies[i]);
        merge(&branches[ELIFS], &body, 1);
    }
    analyze_list(&branches[ELSE], &n->branch.otherwise);
    merge(s, branches, N_BRANCHES);
}

/* The parts of n that belong to the scope which n stands in. */
static void analyze(struct symbols *s, struct node *n) {
    jinja_enter(s->j);
    jinja_step(s->j, 1);
    switch (n->kind) {
    case NODE_NAME:
        if (n->name.param)
            declare_parameter(s, jval_text(n->name.id));
        else if (n->name.store)
            note_store(s, jval_text(n->name.id));
        else
            note_load(s, jval_text(n->name.id));
        break;
    case NODE_NSREF: note_load(s, jval_text(n->name.id)); break;
    case NODE_IF: analyze_if(s, n); break;
    case NODE_MACRO: note_store(s, jval_text(n->macro.target->name.id)); break;
    case NODE_SET:
        analyze(s, n->set.value);
        analyze(s, n->set.target);
        break;
    case NODE_FOR: analyze(s, n->loop.iter); break;
    case NODE_CALL_BLOCK: analyze(s, n->macro.call); break;
    case NODE_FILTER_BLOCK: analyze(s, n->filtered.filter); break;
    case NODE_WITH: analyze_list(s, &n->with.values); break;
    case NODE_SET_BLOCK: analyze(s, n->set.target); break;
    case NODE_GENERATION:
    case NODE_BLOCK: break;
    default: node_children(n, analyze_child, s);
    }
    jinja_leave(s->j);
}

static void declare_target(struct symbols *s, struct node *n) {
    if (n->kind == NODE_TUPLE)
        for (size_t i = 0; i < n->items.n; i++)
            declare_target(s, n->items.item[i]);
    else
        declare_parameter(s, jval_text(n->name.id));
}

// ---- the second walk ----

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
    const struct ref *r = find_ref(&f->symbols, id);
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
    declare_parameter(&f->symbols, str_of(name));
    return find_own_ref(&f->symbols, str_of(name))->index;
}

static void analyze_macro(struct frame *f, struct node *n) {
    analyze_list(&f->symbols, &n->macro.params);
    analyze_list(&f->symbols, &n->macro.defaults);
    analyze_list(&f->symbols, &n->macro.body);
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
    declare_parameter(&body.symbols, STR("loop"));
    declare_target(&body.symbols, n->loop.target);
    analyze_list(&body.symbols, &n->loop.body);
    n->loop.loop = resolve(&body, STR("loop"));
    n->loop.scope = scope_of(&body);

    struct frame otherwise = inner_frame(f);
    otherwise.symbols.fn = body.symbols.fn;
    otherwise.in_loop = !n->loop.recursive && f->in_loop;
    analyze_list(&otherwise.symbols, &n->loop.otherwise);
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
    declare_target(&test.symbols, n->loop.test_target);
    analyze(&test.symbols, n->loop.test);
    n->loop.test_fn = function_of(&test);
    walk(&test, n->loop.test_target);
    walk(&test, n->loop.test);
    count_slots(&test, n->loop.test_fn);
}

static void walk_with(struct frame *f, struct node *n) {
    walk_list(f, &n->with.values);
    struct frame inner = inner_frame(f);
    inner.in_loop = f->in_loop;
    analyze_list(&inner.symbols, &n->with.targets);
    analyze_list(&inner.symbols, &n->with.body);
    n->with.scope = scope_of(&inner);
    walk_list(&inner, &n->with.targets);
    walk_list(&inner, &n->with.body);
}

static void walk_set_block(struct frame *f, struct node *n) {
    struct frame inner = inner_frame(f);
    analyze_list(&inner.symbols, &n->set.body);
    if (n->set.filter)
        analyze(&inner.symbols, n->set.filter);
    n->set.scope = scope_of(&inner);
    walk(f, n->set.target);
    walk_list(&inner, &n->set.body);
    if (n->set.filter)
        walk(&inner, n->set.filter);
}

static void walk_filter_block(struct frame *f, struct node *n) {
    struct frame inner = inner_frame(f);
    analyze_list(&inner.symbols, &n->filtered.body);
    analyze(&inner.symbols, n->filtered.filter);
    n->filtered.scope = scope_of(&inner);
    walk_list(&inner, &n->filtered.body);
    walk(&inner, n->filtered.filter);
}

/* A block sees the context and what was set at the top level, nothing of the places around it. */
static void walk_block(struct frame *f, struct node *n) {
    struct frame_function *fn = jinja_alloc(f->j, sizeof *fn);
    struct frame inner = {.j = f->j, .symbols = {.j = f->j, .fn = fn}};
    analyze_list(&inner.symbols, &n->block.body);
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
    analyze_list(&root.symbols, &t->body);
    t->fn.scope = scope_of(&root);
    walk_list(&root, &t->body);
    t->fn.n_slots = fn.n;
}
