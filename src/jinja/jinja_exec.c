/* jinja_exec.c - statements, scopes and assignment. */
#include "jinja/jinja_eval.h"

struct activation *activation_new(struct jinja *j, const struct function *fn, struct activation *outer) {
    struct activation *a = jinja_alloc(j, sizeof *a + (size_t)fn->n_slots * sizeof a->slots[0]);
    a->outer = outer;
    return a;
}

static jval resolve(struct jinja *j, struct str name) {
    const jval *found = j->tmpl->has_blocks ? jdict_find_str(j->exports, name) : NULL;
    if (!found)
        found = jdict_find_str(j->context, name);
    if (found)
        return *found;
    const struct builtin *global = builtin_global(name);
    if (!global)
        return jval_missing();
    struct jnative *fn = jinja_alloc(j, sizeof *fn);
    fn->fn = global;
    return (jval){.kind = J_NATIVE, .native = fn};
}

void scope_enter(struct jinja *j, const struct scope *s) {
    for (size_t i = 0; i < s->n; i++) {
        const struct load *l = &s->loads[i];
        jval *slot = &j->act->slots[l->index];
        switch (l->kind) {
        case LOAD_PARAMETER: break;
        case LOAD_RESOLVE: *slot = resolve(j, l->name); break;
        case LOAD_ALIAS: *slot = *slot_at(j, l->from); break;
        case LOAD_UNSET: *slot = jval_missing(); break;
        }
    }
}

void scope_leave(struct jinja *j, const struct scope *s) {
    for (size_t i = 0; i < s->n; i++)
        j->act->slots[s->loads[i].index] = jval_missing();
}

// ---- assignment ----

static void assign_name(struct jinja *j, const struct node *target, jval v) {
    *slot_at(j, target->name.slot) = v;
    if (target->name.export && j->tmpl->has_blocks)
        jdict_set(j, j->exports, target->name.id, v);
}

static struct jnamespace *namespace_of(struct jinja *j, const struct node *target) {
    jval ns = *slot_at(j, target->name.slot);
    if (ns.kind != J_NAMESPACE)
        jinja_fail(j, ERR_ARG, "cannot assign attribute on non-namespace object");
    return ns.ns;
}

static void unpack(struct jinja *j, const struct nodes *targets, jval v) {
    struct jiter it;
    if (!jval_is_iterable(v))
        jinja_type_error(j, "cannot unpack non-iterable %s object", jval_type(v));
    jval *items = jinja_calloc(j, targets->n, sizeof *items), surplus;
    jiter_of(j, v, &it);
    for (size_t i = 0; i < targets->n; i++)
        if (!jiter_next(j, &it, &items[i]))
            jinja_type_error(j, "not enough values to unpack (expected %zu, got %zu)", targets->n, i);
    if (jiter_next(j, &it, &surplus))
        jinja_type_error(j, "too many values to unpack (expected %zu)", targets->n);
    for (size_t i = 0; i < targets->n; i++)
        jinja_assign(j, targets->item[i], items[i]);
}

void jinja_assign(struct jinja *j, const struct node *target, jval v) {
    if (target->kind == NODE_TUPLE)
        unpack(j, &target->items, v);
    else if (target->kind == NODE_NSREF)
        jdict_set(j, namespace_of(j, target)->d, target->name.attr, v);
    else
        assign_name(j, target, v);
}

static void check_namespaces(struct jinja *j, const struct node *target) {
    if (target->kind == NODE_NSREF)
        namespace_of(j, target);
    else if (target->kind == NODE_TUPLE)
        for (size_t i = 0; i < target->items.n; i++)
            check_namespaces(j, target->items.item[i]);
}

// ---- loops ----

/* The generator behind `for x in y if test`: it has variables of its own, and makes them when first asked. */
struct loop_filter {
    const struct node *node;
    struct activation *act;
    bool started;
};

static jval target_value(struct jinja *j, const struct node *target) {
    if (target->kind != NODE_TUPLE)
        return *slot_at(j, target->name.slot);
    jval *items = jinja_calloc(j, target->items.n, sizeof *items);
    for (size_t i = 0; i < target->items.n; i++)
        items[i] = target_value(j, target->items.item[i]);
    return jval_seq(j, J_TUPLE, items, target->items.n);
}

static bool next_filtered(struct jinja *j, struct jiter *it, jval *out) {
    struct loop_filter *f = it->state;
    struct activation *outer = j->act;
    bool found = false;
    jinja_enter(j);
    j->act = f->act;
    if (!f->started)
        scope_enter(j, &f->node->loop.test_fn->scope);
    f->started = true;
    for (jval v; !found && jiter_next(j, it->inner, &v);) {
        jinja_assign(j, f->node->loop.test_target, v);
        found = jval_true(j, jinja_eval(j, f->node->loop.test));
    }
    if (found)
        *out = target_value(j, f->node->loop.test_target);
    j->act = outer;
    jinja_leave(j);
    return found;
}

static jval filtered(struct jinja *j, const struct node *n, jval iterable, struct activation *outer) {
    struct jiter it = {.next = next_filtered, .type = "generator", .inner = jinja_alloc(j, sizeof *it.inner)};
    jiter_of(j, iterable, it.inner);
    struct loop_filter *f = it.state = jinja_alloc(j, sizeof *f);
    f->node = n;
    f->act = activation_new(j, n->loop.test_fn, outer);
    return jval_iter(j, &it);
}

/* Runs the loop in the running function. `outer` is the function that the loop stands in. */
static enum flow run_loop(struct jinja *j, const struct node *n, jval iterable, int64_t depth0,
                          struct activation *outer) {
    if (n->loop.test)
        iterable = filtered(j, n, iterable, outer);
    struct jloop *loop = jinja_alloc(j, sizeof *loop);
    *loop = (struct jloop){.iterable = iterable, .index0 = -1, .length = -1, .depth0 = depth0, .act = outer};
    loop->recursive = n->loop.recursive ? n : NULL;
    jiter_of(j, iterable, &loop->source);
    bool completed = false; // one pass, at least: `else` runs also after passes that all ended in continue
    enum flow flow = FLOW_ON;
    for (jval item; flow != FLOW_BREAK && jloop_next(j, loop, &item);) {
        jinja_assign(j, n->loop.target, item);
        *slot_at(j, n->loop.loop) = (jval){.kind = J_LOOP, .loop = loop};
        scope_enter(j, &n->loop.scope);
        flow = jinja_exec(j, &n->loop.body);
        completed |= flow == FLOW_ON;
    }
    scope_leave(j, &n->loop.scope);
    if (completed || !n->loop.otherwise.n)
        return FLOW_ON;
    scope_enter(j, &n->loop.otherwise_scope);
    flow = jinja_exec(j, &n->loop.otherwise);
    scope_leave(j, &n->loop.otherwise_scope);
    return flow;
}

jval loop_call(struct jinja *j, const struct node *n, jval iterable, int64_t depth0, struct activation *outer) {
    struct activation *running = j->act;
    jinja_enter(j);
    j->act = activation_new(j, n->loop.fn, outer);
    sink_open(j);
    run_loop(j, n, iterable, depth0, outer);
    jval text = jval_of_sink(j);
    j->act = running;
    jinja_leave(j);
    return text;
}

static enum flow exec_for(struct jinja *j, const struct node *n) {
    jval iterable = jinja_eval(j, n->loop.iter);
    if (!n->loop.recursive)
        return run_loop(j, n, iterable, 0, j->act);
    jinja_emit_str(j, loop_call(j, n, iterable, 0, j->act));
    return FLOW_ON;
}

// ---- the other statements ----

static enum flow exec_if(struct jinja *j, const struct node *n) {
    for (size_t i = 0; i < n->branch.n; i++)
        if (jval_true(j, jinja_eval(j, n->branch.tests[i])))
            return jinja_exec(j, &n->branch.bodies[i]);
    return jinja_exec(j, &n->branch.otherwise);
}

static void exec_output(struct jinja *j, const struct node *n) {
    for (size_t i = 0; i < n->items.n; i++)
        jinja_emit_str(j, jinja_eval(j, n->items.item[i]));
}

static void exec_set(struct jinja *j, const struct node *n) {
    check_namespaces(j, n->set.target);
    jinja_assign(j, n->set.target, jinja_eval(j, n->set.value));
}

/* The text that a body prints, or J_MISSING when break or continue ended it. */
static jval capture(struct jinja *j, const struct nodes *body, enum flow *flow) {
    sink_open(j);
    *flow = jinja_exec(j, body);
    jval text = jval_of_sink(j);
    return *flow == FLOW_ON ? text : jval_missing();
}

static jval filter_text(struct jinja *j, const struct node *filter, jval text) {
    const jval *outer = j->captured;
    j->captured = &text;
    jval v = jinja_eval(j, filter);
    j->captured = outer;
    return v;
}

static enum flow exec_set_block(struct jinja *j, const struct node *n) {
    enum flow flow;
    scope_enter(j, &n->set.scope);
    jval text = capture(j, &n->set.body, &flow);
    if (flow == FLOW_ON) {
        if (n->set.filter)
            text = filter_text(j, n->set.filter, text);
        jinja_assign(j, n->set.target, text);
    }
    scope_leave(j, &n->set.scope);
    return flow;
}

static enum flow exec_filter_block(struct jinja *j, const struct node *n) {
    enum flow flow;
    scope_enter(j, &n->filtered.scope);
    jval text = capture(j, &n->filtered.body, &flow);
    if (flow == FLOW_ON)
        jinja_emit_str(j, filter_text(j, n->filtered.filter, text));
    scope_leave(j, &n->filtered.scope);
    return flow;
}

static jval new_macro(struct jinja *j, const struct node *n, struct jstr *name) {
    struct jmacro *m = jinja_alloc(j, sizeof *m);
    *m = (struct jmacro){n, j->act, name};
    return (jval){.kind = J_MACRO, .macro = m};
}

static void exec_call_block(struct jinja *j, const struct node *n) {
    jval caller = new_macro(j, n, NULL);
    jinja_emit_str(j, jinja_eval_call(j, n->macro.call, &caller));
}

static void exec_generation(struct jinja *j, const struct node *n) {
    jinja_emit_str(j, jinja_call(j, new_macro(j, n, NULL), &(struct jargs){0}));
}

static enum flow exec_with(struct jinja *j, const struct node *n) {
    scope_enter(j, &n->with.scope);
    for (size_t i = 0; i < n->with.targets.n; i++)
        jinja_assign(j, n->with.targets.item[i], jinja_eval(j, n->with.values.item[i]));
    enum flow flow = jinja_exec(j, &n->with.body);
    scope_leave(j, &n->with.scope);
    return flow;
}

static void exec_block(struct jinja *j, const struct node *n) {
    struct activation *outer = j->act;
    j->act = activation_new(j, n->block.fn, NULL);
    scope_enter(j, &n->block.fn->scope);
    jinja_exec(j, &n->block.body);
    j->act = outer;
}

static enum flow exec_one(struct jinja *j, const struct node *n) {
    switch (n->kind) {
    case NODE_TEXT: jinja_emit(j, n->text); return FLOW_ON;
    case NODE_OUTPUT: exec_output(j, n); return FLOW_ON;
    case NODE_IF: return exec_if(j, n);
    case NODE_FOR: return exec_for(j, n);
    case NODE_SET: exec_set(j, n); return FLOW_ON;
    case NODE_SET_BLOCK: return exec_set_block(j, n);
    case NODE_MACRO: jinja_assign(j, n->macro.target, new_macro(j, n, n->macro.target->name.id.s)); return FLOW_ON;
    case NODE_CALL_BLOCK: exec_call_block(j, n); return FLOW_ON;
    case NODE_GENERATION: exec_generation(j, n); return FLOW_ON;
    case NODE_FILTER_BLOCK: return exec_filter_block(j, n);
    case NODE_WITH: return exec_with(j, n);
    case NODE_BLOCK: exec_block(j, n); return FLOW_ON;
    case NODE_BREAK: return FLOW_BREAK;
    case NODE_CONTINUE: return FLOW_CONTINUE;
    default: break;
    }
    BUG_IF(true); // an expression is no statement
    return FLOW_ON;
}

enum flow jinja_exec(struct jinja *j, const struct nodes *list) {
    enum flow flow = FLOW_ON;
    jinja_enter(j);
    for (size_t i = 0; i < list->n && flow == FLOW_ON; i++) {
        jinja_step(j, 1);
        j->line = list->item[i]->line;
        flow = exec_one(j, list->item[i]);
    }
    jinja_leave(j);
    return flow;
}
