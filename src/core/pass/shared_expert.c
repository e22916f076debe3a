/* shared_expert.c - a shared expert as experts that every token is sent to: see pass.h.
 *
 *     MOE_FFN ┐                                                  experts  E .. E + n - 1: of the shared FFN's channels
 *     LINEAR gate_up, GATED_ACT, LINEAR down ┤ GATED_ADD   ──►   0 .. F - 1, F .. 2F - 1 ...; MOE_FFN sums them up
 *     LINEAR gate ┘
 *
 * Weights are views of what the checkpoint stores: nothing is copied. */
#include "core/pass/pass.h"
#include "core/pass/uses.h"

#include <stdlib.h>

/* The ops of one layer, as found. */
struct shared {
    const struct op *route, *experts, *gate_up, *act, *down, *gate, *sum; // gate: NULL where there is none
    int n;                                                                // experts that the shared FFN makes
};

static bool is_plain_linear(const struct op *op) { return op->code == OP_LINEAR && !op->weights[1]; }

static bool same(val a, val b) { return a.id == b.id && a.col == b.col && a.width == b.width; }

/* The op that makes all of v, for one reader alone; NULL: it is another's too, or not of this kind. */
static const struct op *maker_for_one(const struct uses *u, val v, enum opcode code) {
    if (!val_given(v) || v.width != u->program->values[v.id].width || !uses_only_reader(u, v))
        return NULL;
    const struct op *op = uses_maker(u, v);
    return op->code == code ? op : NULL;
}

/* The values' routing, which nobody else reads. */
static const struct op *routing_of(const struct uses *u, const struct op *experts) {
    const struct op *route = maker_for_one(u, experts->in[1], OP_MOE_ROUTE);
    bool whole =
        route && route == maker_for_one(u, experts->in[2], OP_MOE_ROUTE) && route->args.moe_route.n_shared == 0;
    return whole && route->args.moe_route.n_experts == experts->args.moe_ffn.n_experts ? route : NULL;
}

/* Whether matrices with such parts may be one: a device gives all of it one format. Packed integers, codes and GGUF's
 * blocks have other formats as LINEARs than as experts. */
static bool alike(const struct weight *a, const struct weight *b) {
    for (int i = 0; i < b->n_parts; i++) {
        const struct weight_part *p = &a->parts[0], *q = &b->parts[i];
        if (p->format != q->format || p->dtype != q->dtype || p->packed || q->packed || p->codes || q->codes ||
            p->format->block_cols || p->scale.dtype != q->scale.dtype || p->scale.block_rows != q->scale.block_rows ||
            p->scale.block_cols != q->scale.block_cols)
            return false;
    }
    return true;
}

/* Whether the shared FFN's channels are as many as those of n experts, and can be cut so. */
static bool is_cut(struct shared *s, int most_slots) {
    const struct weight *w13 = s->experts->weights[0], *w2 = s->experts->weights[1], *down = s->down->weights[0];
    int64_t ffn = s->experts->args.moe_ffn.ffn_size;
    if (down->in % ffn || down->in / ffn > most_slots - s->route->args.moe_route.top_k ||
        !alike(w13, s->gate_up->weights[0]) || !alike(w2, down))
        return false;
    s->n = (int)(down->in / ffn);
    for (int i = 0; s->n > 1 && i < down->n_parts; i++)
        if (ffn % weight_part_block(&down->parts[i]))
            return false;
    return true;
}

/* The layer whose experts and shared FFN this op adds up. */
static bool find(const struct uses *u, const struct op *sum, int most_slots, struct shared *s) {
    if (sum->code != OP_GATED_ADD)
        return false;
    *s = (struct shared){.sum = sum};
    s->experts = maker_for_one(u, sum->in[0], OP_MOE_FFN);
    s->down = maker_for_one(u, sum->in[1], OP_LINEAR);
    s->gate = maker_for_one(u, sum->in[2], OP_LINEAR);
    if (!s->experts || !s->down || !is_plain_linear(s->down) || (val_given(sum->in[2]) && !s->gate))
        return false;
    s->route = routing_of(u, s->experts);
    s->act = maker_for_one(u, s->down->in[0], OP_GATED_ACT);
    if (!s->route || !s->act || s->act->in[0].id != s->act->in[1].id)
        return false;
    val halves = {s->act->in[0].id, 0, u->program->values[s->act->in[0].id].width};
    s->gate_up = maker_for_one(u, halves, OP_LINEAR);
    if (!s->gate_up || !is_plain_linear(s->gate_up) || s->act->in[0].col != 0 ||
        s->act->in[1].col != s->act->in[0].width)
        return false;
    const struct moe_args *a = &s->experts->args.moe_ffn;
    const struct act_args *act = &s->act->args.gated_act;
    val x = s->experts->in[0];
    bool reads_alike =
        same(s->gate_up->in[0], x) && (!s->gate || (is_plain_linear(s->gate) && same(s->gate->in[0], x)));
    bool acts_alike = act->act == a->act.act && act->limit == a->act.limit;
    bool is_bare = !s->experts->weights[2] && !s->experts->weights[3] && a->first_expert == 0;
    return reads_alike && acts_alike && is_bare && is_cut(s, most_slots);
}

// ---- weights ----------------------------------------------------------------------------------------------------

/* A copy of w that will have `rows` more rows, in up to `n` parts more. */
static struct weight *longer(struct arena *memory, const struct weight *w, int64_t rows, int n) {
    struct weight *to = arena_alloc(memory, sizeof *to);
    *to = *w;
    to->out = w->out + rows;
    to->parts = arena_calloc(memory, (size_t)(w->n_parts + n), sizeof *to->parts);
    for (int i = 0; i < w->n_parts; i++)
        to->parts[i] = w->parts[i];
    return to;
}

/* Appends rows [first, first + n) of w, from column `col` on. */
static void append(struct weight *to, const struct weight *w, int64_t first, int64_t n, int64_t col) {
    for (int i = 0; n > 0; i++) {
        const struct weight_part *p = &w->parts[i];
        int64_t here = MIN(p->n_rows - first, n);
        if (here > 0) {
            struct weight_part rows = weight_part_rows(p, first, here);
            to->parts[to->n_parts++] = col ? weight_part_cols(&rows, col) : rows;
            n -= here, first = 0;
        } else {
            first -= p->n_rows;
        }
    }
}

static const struct weight *joined_up(struct arena *memory, const struct shared *s) {
    const struct weight *w = s->gate_up->weights[0];
    int64_t ffn = s->experts->args.moe_ffn.ffn_size;
    struct weight *to = longer(memory, s->experts->weights[0], w->out, 2 * s->n * w->n_parts);
    for (int e = 0; e < s->n; e++)
        for (int half = 0; half < 2; half++)
            append(to, w, half * w->out / 2 + e * ffn, ffn, 0);
    return to;
}

static const struct weight *joined_down(struct arena *memory, const struct shared *s) {
    const struct weight *w = s->down->weights[0];
    int64_t ffn = s->experts->args.moe_ffn.ffn_size;
    struct weight *to = longer(memory, s->experts->weights[1], s->n * w->out, s->n * w->n_parts);
    for (int e = 0; e < s->n; e++)
        append(to, w, 0, w->out, e * ffn);
    return to;
}

// ---- ops --------------------------------------------------------------------------------------------------------

struct joining {
    const struct program *from;
    struct shared *found; // [n]
    int n;
    struct op *ops;
    int *of_op;
    int n_ops;
    struct value *more; // of wider routings
    int n_more;
    struct joined_weight *joined;
    int n_joined;
    struct arena memory;
};

static struct op *put_op(struct joining *j, const struct op *op) {
    j->of_op[j->n_ops] = (int)(op - j->from->ops);
    j->ops[j->n_ops] = *op;
    return &j->ops[j->n_ops++];
}

static const struct weight *joined(struct joining *j, const struct weight *a, const struct weight *b,
                                   const struct weight *is) {
    j->joined[j->n_joined++] = (struct joined_weight){a, is};
    j->joined[j->n_joined++] = (struct joined_weight){b, is};
    return is;
}

static val wider(struct joining *j, val v, int width) {
    struct value value = j->from->values[v.id];
    value.width = width;
    j->more[j->n_more] = value;
    return (val){j->from->n_values + j->n_more++, 0, width};
}

static void put_route(struct joining *j, const struct shared *s) {
    if (s->gate)
        put_op(j, s->gate);
    struct op *route = put_op(j, s->route);
    route->args.moe_route.n_shared = s->n;
    route->in[1] = s->gate ? s->gate->out[0] : NO_VAL;
    for (int k = 0; k < 2; k++)
        route->out[k] = wider(j, route->out[k], route_slots(&route->args.moe_route));
}

static void put_experts(struct joining *j, const struct shared *s) {
    struct op *experts = put_op(j, s->experts);
    experts->args.moe_ffn.n_experts += s->n;
    experts->args.moe_ffn.top_k += s->n;
    experts->weights[0] = joined(j, s->experts->weights[0], s->gate_up->weights[0], joined_up(&j->memory, s));
    experts->weights[1] = joined(j, s->experts->weights[1], s->down->weights[0], joined_down(&j->memory, s));
    const struct op *route = experts - 1; // its routing is the last op that has ids
    while (route->code != OP_MOE_ROUTE)
        route--;
    experts->in[1] = route->out[0], experts->in[2] = route->out[1];
    experts->out[0] = s->sum->out[0];
}

static void put(struct joining *j, const struct op *op) {
    for (int i = 0; i < j->n; i++) {
        const struct shared *s = &j->found[i];
        if (op == s->route) {
            put_route(j, s);
            return;
        }
        if (op == s->experts) {
            put_experts(j, s);
            return;
        }
        if (op == s->gate_up || op == s->act || op == s->down || op == s->gate || op == s->sum)
            return;
    }
    put_op(j, op);
}

struct program *pass_shared_expert(const struct program *p, int most_slots) {
    struct joining j = {.from = p};
    struct uses u;
    uses_init(&u, p);
    j.found = xcalloc((size_t)p->n_ops + 1, sizeof *j.found);
    for (int i = 0; i < p->n_ops; i++)
        j.n += find(&u, &p->ops[i], most_slots, &j.found[j.n]);
    j.ops = xcalloc((size_t)p->n_ops + 1, sizeof *j.ops);
    j.more = xcalloc(2 * (size_t)j.n + 1, sizeof *j.more);
    j.of_op = arena_calloc(&j.memory, (size_t)p->n_ops + 1, sizeof *j.of_op);
    j.joined = arena_calloc(&j.memory, 4 * (size_t)j.n + 1, sizeof *j.joined);
    for (int i = 0; i < p->n_ops; i++)
        put(&j, &p->ops[i]);
    struct program *out = program_copy_with(p, j.ops, j.n_ops, j.more, j.n_more);
    out->arena = j.memory; // a copy's own is empty
    out->of_op = j.of_op, out->joined = j.joined, out->n_joined = j.n_joined;
    uses_release(&u);
    free(j.found), free(j.more), free(j.ops);
    return out;
}
