/* fuse.c - which LINEARs the weight stream can compute, and which neighbours are one node; see cuda.h.
 *
 *     LINEAR, GATED_ACT      y = act(gate) * up, where gate and up are the two halves of the columns of x W^T + b, read by nobody else
 *     QKV_PREP, ATTENTION    where no sequence has more than one token: decode attention makes queries, key and value itself
 *
 * The first pair is one node in steps that take a kernel of ours, the second in steps that only decode; in all others they are two. */
#include "backend/cuda/attention/attention_parts.h"
#include "backend/cuda/cuda.h"
#include "backend/cuda/head/lm_head.h"
#include "backend/cuda/linear/ending.h"
#include "backend/cuda/linear/gemv.h"
#include "backend/cuda/value.h"

static bool is_read_by_one(const struct program *p, val v) {
    int n = 0;
    for (int i = 0; i < p->n_ops; i++) {
        bool reads = false;
        for (int k = 0; k < OP_MAX_IN; k++)
            reads |= p->ops[i].in[k].id == v.id;
        n += reads;
    }
    return n == 1 && p->hidden.id != v.id;
}

bool gated_act_follows(const struct program *p, int i) {
    if (p->ops[i].code != OP_LINEAR || i + 1 >= p->n_ops || p->ops[i + 1].code != OP_GATED_ACT)
        return false;
    val made = p->ops[i].out[0], gate = p->ops[i + 1].in[0], up = p->ops[i + 1].in[1];
    bool halves = gate.id == made.id && up.id == made.id && gate.col == 0 && up.col == gate.width && up.width == gate.width &&
                  made.col == 0 && made.width == 2 * gate.width;
    return halves && is_read_by_one(p, made);
}

bool attention_follows(const struct program *p, int i) {
    if (p->ops[i].code != OP_QKV_PREP || i + 1 >= p->n_ops || p->ops[i + 1].code != OP_ATTENTION)
        return false;
    val q = p->ops[i].out[0], read = p->ops[i + 1].in[0];
    return read.id == q.id && read.col == q.col && read.width == q.width && is_read_by_one(p, q) &&
           p->ops[i].args.qkv_prep.cache == p->ops[i + 1].args.attention.cache && p->ops[i].args.qkv_prep.k_turned == 0;
}

void fuse_lives(const struct program *p, struct value *values) {
    for (int i = 0; i < p->n_ops; i++)
        if (gated_act_follows(p, i) || attention_follows(p, i)) {
            struct value *x = &values[p->ops[i].in[0].id];
            x->last_use = MAX(x->last_use, i + 1);
        }
}

/* A LINEAR, with its pair, as a stream, and what that writes. */
static struct dgemv gemv_of(const struct compiled_op *c) {
    struct dgemv s = {.w = c->matrix[0], .bias = c->floats[1].at};
    if (c->pair) {
        const struct act_args *a = &c->pair->op->args.gated_act;
        s.ending = (struct dending){.kind = ENDING_GATED, .act = (int)a->act, .limit = a->limit};
    }
    return s;
}

struct dmat linear_made(const struct compiled_op *linear) {
    return linear->pair ? linear->pair->out[0] : linear->out[0];
}

bool does_its_pair(const struct compiled_op *linear, int n_rows) { return linear->pair && is_ours(linear_path(linear, n_rows)); }

const struct compiled_op *linear_maker(const struct compiled_op *linear, int n_rows) {
    return does_its_pair(linear, n_rows) ? linear->pair : linear;
}

int gemv_rows(const struct compiled_op *c, struct dmat x, int max_rows) {
    struct dgemv s = gemv_of(c);
    int most = 0, last = padded_index(max_rows);
    if (c->in_order.at && !c->convert.at && !gemv_takes(&s, c->in_order, linear_made(c), 1))
        return 0;
    for (int i = 0; i <= last && padded_rows_at(i) <= GEMV_MAX_ROWS && gemv_takes(&s, x, linear_made(c), padded_rows_at(i)); i++)
        most = padded_rows_at(i);
    return most;
}

bool linear_takes(const struct compiled_op *c, enum linear_path path, int rows) {
    switch (path) {
    case PATH_GEMV: return rows <= c->gemv_rows;
    case PATH_HEAD: return c->is_head && rows <= HEAD_MAX_ROWS;
    default: return gemm_takes(c->gemm, path, rows);
    }
}

enum linear_path linear_path(const struct compiled_op *c, int n_rows) { return gemm_path(c->gemm, n_rows); }

/* An ATTENTION of few sequences is a few long blocks. */
static int held_by_attention(const struct executable *exe, const struct compiled_op *c, int n_rows) {
    const struct compiled_op *maker = &exe->ops[exe->program->values[c->op->in[0].id].first_use];
    const struct attention_args *a = &maker->op->args.attention;
    if (maker->op->code != OP_ATTENTION)
        return 0;
    return n_rows * a->n_kv_heads * attention_share(maker->cache.element, a->head_dim, n_rows, a->n_kv_heads);
}

void gemv_run(const struct executable *exe, const struct compiled_op *c, const struct launch *l, int n_rows, struct dmat x) {
    struct dgemv s = gemv_of(c);
    s.held = held_by_attention(exe, c, n_rows);
    launch_gemv(l, padded_rows(n_rows), &s, x, linear_made(c));
}
