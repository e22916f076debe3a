/* jinja_symbols.c - see jinja_symbols.h. */
#include "jinja/jinja_symbols.h"

#include "jinja/builtins/jinja_builtin.h"

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

const struct ref *symbols_find_own(const struct symbols *s, struct str id) {
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

const struct ref *symbols_find(const struct symbols *s, struct str id) {
    for (; s; s = root_of(s)->parent) {
        const struct ref *r = symbols_find_own(s, id);
        if (r)
            return r;
    }
    return NULL;
}

static const struct ref *find_outer_ref(const struct symbols *s, struct str id) {
    const struct symbols *parent = root_of(s)->parent;
    return parent ? symbols_find(parent, id) : NULL;
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

void symbols_declare(struct symbols *s, struct str id) {
    add_store(s, id);
    define(s, id, LOAD_PARAMETER, NULL);
}

static void note_store(struct symbols *s, struct str id) {
    add_store(s, id);
    if (symbols_find_own(s, id))
        return;
    const struct ref *outer = find_outer_ref(s, id);
    define(s, id, outer ? LOAD_ALIAS : LOAD_UNSET, outer);
}

static void note_load(struct symbols *s, struct str id) {
    if (!symbols_find(s, id))
        define(s, id, LOAD_RESOLVE, NULL);
}

// ---- the first walk ----

static void analyze_child(void *arg, struct node *child) { symbols_analyze(arg, child); }

void symbols_analyze_list(struct symbols *s, const struct nodes *list) {
    for (size_t i = 0; i < list->n; i++)
        symbols_analyze(s, list->item[i]);
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
        const struct ref *self = symbols_find(s, id), *outer = find_outer_ref(s, id);
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
    symbols_analyze(s, n->branch.tests[0]);
    struct symbols branches[N_BRANCHES] = {branch_of(s), branch_of(s), branch_of(s)};
    symbols_analyze_list(&branches[BODY], &n->branch.bodies[0]);
    for (size_t i = 1; i < n->branch.n; i++) { // all elifs share one branch, each with its body as a branch of that
        symbols_analyze(&branches[ELIFS], n->branch.tests[i]);
        struct symbols body = branch_of(&branches[ELIFS]);
        symbols_analyze_list(&body, &n->branch.bodies[i]);
        merge(&branches[ELIFS], &body, 1);
    }
    symbols_analyze_list(&branches[ELSE], &n->branch.otherwise);
    merge(s, branches, N_BRANCHES);
}

void symbols_analyze(struct symbols *s, struct node *n) {
    jinja_enter(s->j);
    jinja_step(s->j, 1);
    switch (n->kind) {
    case NODE_NAME:
        if (n->name.param)
            symbols_declare(s, jval_text(n->name.id));
        else if (n->name.store)
            note_store(s, jval_text(n->name.id));
        else
            note_load(s, jval_text(n->name.id));
        break;
    case NODE_NSREF: note_load(s, jval_text(n->name.id)); break;
    case NODE_IF: analyze_if(s, n); break;
    case NODE_MACRO: note_store(s, jval_text(n->macro.target->name.id)); break;
    case NODE_SET:
        symbols_analyze(s, n->set.value);
        symbols_analyze(s, n->set.target);
        break;
    case NODE_FOR: symbols_analyze(s, n->loop.iter); break;
    case NODE_CALL_BLOCK: symbols_analyze(s, n->macro.call); break;
    case NODE_FILTER_BLOCK: symbols_analyze(s, n->filtered.filter); break;
    case NODE_WITH: symbols_analyze_list(s, &n->with.values); break;
    case NODE_SET_BLOCK: symbols_analyze(s, n->set.target); break;
    case NODE_GENERATION:
    case NODE_BLOCK: break;
    default: node_children(n, analyze_child, s);
    }
    jinja_leave(s->j);
}

void symbols_declare_target(struct symbols *s, struct node *n) {
    if (n->kind == NODE_TUPLE)
        for (size_t i = 0; i < n->items.n; i++)
            symbols_declare_target(s, n->items.item[i]);
    else
        symbols_declare(s, jval_text(n->name.id));
}
