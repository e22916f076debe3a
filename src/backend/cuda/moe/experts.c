/* experts.c - MOE_ROUTE and MOE_FFN of a program: which kernels they are, and what those need; see experts.h. */
#include "backend/cuda/moe/experts.h"
#include "backend/cuda/moe/moe.h"
#include "backend/cuda/moe/moe_router.h"
#include "backend/cuda/moe/moe_stream.h"
#include "backend/cuda/step/node.h"
#include "backend/cuda/weights/weights.h"

static struct droute route_of(const struct compiled_op *c) {
    const struct route_args *a = &c->op->args.moe_route;
    struct droute d = {(int)a->how,    a->n_experts, a->top_k,    a->n_groups, a->top_groups,
                       a->renormalise, a->scale,     a->n_shared, c->in[1]};
    if (c->gate)
        d.gate_x = c->gate->in[0], d.gate_w = c->gate->matrix[0];
    return d;
}

/* Experts that routing chooses among: more than the op's where ranks have some each. */
static int all_experts(const struct program *p, const struct op *op) {
    const struct op *route = &p->ops[p->values[op->in[1].id].first_use];
    bool is_routed = route->code == OP_MOE_ROUTE;
    return is_routed ? route->args.moe_route.n_experts + route->args.moe_route.n_shared : op->args.moe_ffn.n_experts;
}

static struct dmoe shape_of(const struct program *p, const struct op *op) {
    const struct moe_args *a = &op->args.moe_ffn;
    return (struct dmoe){.n_experts = a->n_experts,
                         .top_k = a->top_k,
                         .ffn_size = a->ffn_size,
                         .act = (int)a->act.act,
                         .limit = a->act.limit,
                         .first_expert = a->first_expert,
                         .n_all = all_experts(p, op)};
}

static struct dmoe experts_of(const struct executable *exe, const struct compiled_op *c) {
    struct dmoe d = shape_of(exe->program, c->op);
    d.n_shared = c->pair ? c->pair->op->args.moe_route.n_shared : 0;
    d.scratch = exe->scratch, d.list = exe->expert_list;
    return d;
}

// ---- compile ----------------------------------------------------------------------------------------------------

bool experts_stream(const struct loaded *loaded, const struct op *op) {
    return loaded->device->is_fast && op->code == OP_MOE_FFN &&
           moe_streams(weight_on_device(loaded, op->weights[0])->matrix,
                       weight_on_device(loaded, op->weights[1])->matrix);
}

void experts_room(const struct loaded *loaded, const struct op *op, int64_t tokens, int64_t *scratch, int64_t *list) {
    struct dmoe d = shape_of(loaded->program, op);
    *scratch = tokens * d.top_k * d.ffn_size * (int64_t)sizeof(float), *list = 1;
    if (experts_stream(loaded, op))
        moe_stream_bytes(&d, weight_on_device(loaded, op->weights[0])->matrix,
                         weight_on_device(loaded, op->weights[1])->matrix, (int)tokens, scratch, list);
}

static int n_readers(const struct program *p, val v) {
    int n = 0;
    for (int i = 0; i < p->n_ops; i++)
        for (int k = 0; k < OP_MAX_IN; k++)
            n += p->ops[i].in[k].id == v.id;
    return n;
}

/* The LINEAR of one row that gates shared experts, if routing alone reads it. */
static void pair_gate(struct executable *exe, struct compiled_op *route) {
    const struct program *p = exe->program;
    val gate = route->op->in[1];
    if (!val_given(gate) || n_readers(p, gate) != 1)
        return;
    struct compiled_op *linear = &exe->ops[p->values[gate.id].first_use];
    if (linear->op->code == OP_LINEAR && !linear->op->weights[1] && moe_route_gates(linear->matrix[0], linear->in[0]))
        route->gate = linear, linear->gate = route;
}

void experts_pair(struct executable *exe) {
    const struct program *p = exe->program;
    for (int i = 0; i < p->n_ops; i++)
        if (p->ops[i].code == OP_MOE_ROUTE)
            pair_gate(exe, &exe->ops[i]);
    for (int i = 0; i < p->n_ops; i++) {
        if (!experts_stream(exe->loaded, &p->ops[i]))
            continue;
        val ids = p->ops[i].in[1];
        struct compiled_op *route = &exe->ops[p->values[ids.id].first_use];
        if (route->op->code != OP_MOE_ROUTE || n_readers(p, ids) != 1)
            continue;
        exe->ops[i].pair = route;
        route->pair = &exe->ops[i];
        val logits = route->op->in[0];
        struct compiled_op *router = &exe->ops[p->values[logits.id].first_use];
        bool whole = logits.width == p->values[logits.id].width && n_readers(p, logits) == 1;
        if (router->op->code == OP_LINEAR && whole && !router->pair && !router->in_qact)
            route->router = router, router->router = route;
    }
}

// ---- nodes ------------------------------------------------------------------------------------------------------

/* Of a few tokens the node that routes makes the list of the experts that it routes to. */
static bool route_lists(const struct executable *exe, const struct compiled_op *route, int n_rows) {
    struct droute d = route_of(route);
    if (!route->pair)
        return false;
    struct dmoe experts = experts_of(exe, route->pair);
    return moe_route_lists(&d, &experts, n_rows);
}

/* Of fewer its logits too. */
static bool route_multiplies(const struct compiled_op *route, int n_rows) {
    if (!route->router || !route->pair)
        return false;
    struct droute d = route_of(route);
    const struct compiled_op *router = route->router;
    return moe_router_takes(&d, router->matrix[0], router->in[0], n_rows);
}

bool experts_multiply(const struct compiled_op *linear, int n_rows) {
    return linear->op->code == OP_LINEAR &&
           (linear->gate || (linear->router && route_multiplies(linear->router, n_rows)));
}

/* Whether experts may have one token's x, and its ids, before the node that routes has ended: nothing stands between
 * the two, which might use their scratch, and x was there when that node's x was. */
static bool route_posts(const struct loaded *loaded, const struct compiled_op *route, int n_rows) {
    if (n_rows != 1 || !route_multiplies(route, n_rows))
        return false;
    const struct dmat *x = &route->pair->in[0], *of_router = &route->router->in[0];
    return route->pair == route + 1 && x->at == of_router->at && x->element == of_router->element &&
           x->element == (enum element)loaded->product;
}

static enum status put_route(const struct node *n, const struct launch *l, struct error *err) {
    const struct compiled_op *c = n->c;
    struct droute d = route_of(c);
    (void)err; // what does not start shows as cudaGetLastError
    launch_moe_route(l, &d, c->in[0], c->floats[0], c->floats[1], c->out[0], c->out[1]);
    return OK;
}

static enum status put_route_listed(const struct node *n, const struct launch *l, struct error *err) {
    const struct compiled_op *c = n->c, *experts = c->pair;
    struct droute route = route_of(c);
    struct dmoe d = experts_of(n->exe, experts);
    struct dmoe_cut cut = moe_cut_of(&d, experts->matrix[0], experts->matrix[1], l->n_tokens);
    int64_t n_bytes;
    (void)err;
    launch_moe_route_listed(l, &route, &d, c->in[0], c->floats[0], c->floats[1], c->out[0], c->out[1], cut.tile,
                            moe_list_at(&d, &cut, d.list, &n_bytes));
    return OK;
}

static enum status put_router(const struct node *n, const struct launch *l, struct error *err) {
    const struct compiled_op *c = n->c, *experts = c->pair, *router = c->router;
    struct droute route = route_of(c);
    struct dmoe d = experts_of(n->exe, experts);
    struct dmoe_cut cut = moe_cut_of(&d, experts->matrix[0], experts->matrix[1], l->n_tokens);
    int64_t n_bytes;
    (void)err;
    d.is_posted = route_posts(n->exe->loaded, c, n->n_rows);
    launch_moe_router(l, &route, &d, router->in[0], router->matrix[0], router->floats[1], c->floats[0], c->floats[1],
                      c->out[0], c->out[1], cut.tile, moe_list_at(&d, &cut, d.list, &n_bytes));
    return OK;
}

static enum status put_plain(const struct node *n, const struct launch *l, struct error *err) {
    const struct compiled_op *c = n->c;
    struct dmoe d = experts_of(n->exe, c);
    (void)err;
    launch_moe_ffn(l, &d, c->in[0], c->in[1], c->in[2], c->matrix[0], c->matrix[1], c->floats[2], c->floats[3],
                   c->out[0]);
    return OK;
}

static enum status put_stream(const struct node *n, const struct launch *l, struct error *err) {
    const struct compiled_op *c = n->c;
    struct dmoe d = experts_of(n->exe, c);
    (void)err;
    d.is_posted = c->pair && route_posts(n->exe->loaded, c->pair, n->n_rows);
    d.is_listed = c->pair && (route_lists(n->exe, c->pair, n->n_rows) || route_multiplies(c->pair, n->n_rows));
    launch_moe_stream(l, &d, n->exe->loaded->product, c->in[0], c->in[1], c->in[2], c->matrix[0], c->matrix[1],
                      c->floats[2], c->floats[3], c->out[0]);
    return OK;
}

static const struct node_kernel by_route = {"moe_route", "moe.cu", put_route, NULL},
                                by_route_listed = {"moe_route_listed", "moe_list.cu", put_route_listed, NULL},
                                by_router = {"moe_router", "moe_router.cu", put_router, NULL},
                                by_plain = {"moe_ffn", "moe.cu", put_plain, "the mixture of experts"},
                                by_stream = {"moe_stream", "moe_stream.cu", put_stream, NULL};

void lower_moe_route(struct lowering *w, const struct compiled_op *c, int n_rows) {
    bool multiplies = route_multiplies(c, n_rows);
    if (multiplies)
        lower_watch(w, c->router, n_rows, c->router->in[0], NULL);
    lower_node(w, multiplies ? &by_router : route_lists(w->exe, c, n_rows) ? &by_route_listed : &by_route, c, n_rows);
}

void lower_moe_ffn(struct lowering *w, const struct compiled_op *c, int n_rows) {
    lower_node(w, experts_stream(w->exe->loaded, c->op) ? &by_stream : &by_plain, c, n_rows);
}
