/* lower.c - ops to nodes; see node.h. */
#include "backend/cuda/device/device.h"
#include "backend/cuda/head/head.h"
#include "backend/cuda/moe/experts.h"
#include "backend/cuda/own_op.h"
#include "backend/cuda/qact/qact.h"
#include "backend/cuda/qact/quantise.h"
#include "backend/cuda/rows/elementwise.h"
#include "backend/cuda/rows/rows.h"
#include "backend/cuda/sample/sample.h"
#include "backend/cuda/step/fold.h"
#include "backend/cuda/step/node.h"
#include "backend/cuda/step/plan.h"

#include "cuda_ops.h" // OWN(function) for each CUDA_OP of a .cu file; made by build.mk

#include <string.h>

/* A kernel whose arguments are the op's own. */
#define PLAIN_KERNEL(name, file, call)                                                               \
    static enum status put_##name(const struct node *n, const struct launch *l, struct error *err) { \
        const struct compiled_op *c = n->c;                                                          \
        const union op_args *a = &c->op->args;                                                       \
        (void)err, (void)a; /* what does not start shows as cudaGetLastError */                      \
        call;                                                                                        \
        return OK;                                                                                   \
    }                                                                                                \
    static const struct node_kernel by_##name = {#name, file, put_##name};

// ---- quantised activations --------------------------------------------------------------------------------------

PLAIN_KERNEL(quantise, "quantise.cu", launch_quantise(l, n->n_rows, n->in[0], n->qact))
PLAIN_KERNEL(requantise, "quantise.cu",
             launch_requantise(l, n->n_rows, n->in[0], n->qact,
                               (struct dcounter){&n->exe->loaded->counts->rows_outside, l->plan.counts}))

/* What a producer makes of out[k] for those who read it: the value, its qact or both. */
struct output {
    struct dmat y, qact; // at NULL: not wanted
};

static struct output output_for(struct lowering *w, const struct compiled_op *c, int k, int n_rows) {
    struct output m = {c->out[k], qact_to_write(w, c, k, n_rows)};
    if (!value_is_read(w->exe, c, k, n_rows))
        m.y.at = NULL;
    return m;
}

// ---- LINEAR -----------------------------------------------------------------------------------------------------

static enum status put_linear(const struct node *n, const struct launch *l, struct error *err) {
    struct linear_call call = {n->exe, n->c, l, n->n_rows, n->args.linear};
    return n->linear->put(&call, err);
}
static const struct node_kernel by_linear = {"linear", NULL, put_linear}; // node.linear says the rest

PLAIN_KERNEL(convert, "rows.cu", launch_convert(l, n->n_rows, n->in[0], n->out))
PLAIN_KERNEL(order_columns, "rows.cu", launch_order_columns(l, n->n_rows, n->in[0], c->column_order, n->out))
PLAIN_KERNEL(rescale, "quantise.cu", launch_rescale(l, n->n_rows, n->in[0], n->out))

/* What a kernel that gates writes. Those that can fold the rows' absmax as well if a LINEAR is going to ask for it. */
static void lower_output(struct lowering *w, const struct compiled_op *c, int n_rows, struct linear_values *v) {
    const struct compiled_op *maker = linear_maker(c, n_rows);
    v->y = maker->out[0];
    if (!linear_kernel(c, n_rows)->folds || maker->op->code != OP_GATED_ACT)
        return;
    v->y = output_with_absmax(w, maker, 0, n_rows);
    v->qact = qact_static(w, maker, 0);
    v->y.untold_only = v->qact.at && !value_is_read(w->exe, maker, 0, n_rows);
}

/* The qact of x, which the product requantises itself, or a node before it. */
static void lower_input(struct lowering *w, const struct compiled_op *c, int n_rows, struct dmat x,
                        struct linear_values *v) {
    struct qact *t = c->in_qact;
    struct qact_state *is = qact_state_of(w, t);
    x.absmax = is->folded ? t->absmax : NULL;
    v->x = t->q;
    if (!is->written && is->has_static_scale && linear_requantises(c, n_rows)) {
        v->requant =
            (struct drequant){x, t->of_tokens, {&w->exe->loaded->counts->rows_outside, w->launch->plan.counts}};
    } else if (!is->written) {
        struct node *n = lower_node(w, is->has_static_scale ? &by_requantise : &by_quantise, c, n_rows);
        n->in[0] = x, n->qact = t->q;
    }
    is->written = true;
}

static void lower_unscaled(struct lowering *w, const struct compiled_op *c, int n_rows) {
    struct node *n = lower_node(w, &by_rescale, c, n_rows);
    n->in[0] = c->unscaled, n->out = c->out[0];
}

static void lower_linear(struct lowering *w, const struct compiled_op *c, int n_rows) {
    if (experts_multiply(c, n_rows))
        return;
    const struct linear_kernel *k = linear_kernel(c, n_rows);
    struct dmat x = w->launch->in_order && c->in_order.at ? c->in_order : c->in[0];
    struct linear_values v = {.x = x, .y = c->out[0]};
    if (k->reads_qact) {
        lower_watch(w, c, n_rows, x, c->in_qact);
        lower_input(w, c, n_rows, x, &v);
        v.y = c->unscaled;
        if (!k->makes_unscaled)
            lower_output(w, c, n_rows, &v);
    } else {
        if (c->convert.at) {
            struct node *n = lower_node(w, c->column_order ? &by_order_columns : &by_convert, c, n_rows);
            n->in[0] = x, n->out = v.x = c->convert;
        }
        lower_watch(w, c, n_rows, v.x, NULL);
    }
    struct node *n = lower_node(w, &by_linear, c, n_rows);
    n->linear = k, n->args.linear = v;
    if (k->makes_unscaled && !c->unscaled_is_read)
        lower_unscaled(w, c, n_rows);
}

// ---- norms and activations --------------------------------------------------------------------------------------

PLAIN_KERNEL(add_norm, "norm.cu", launch_add_norm(l, &n->args.add_norm, c->in[0], n->in[1], c->out[0], n->out, n->qact))
PLAIN_KERNEL(norm, "norm.cu",
             launch_norm(l, n->n_rows, c->in[0], n->in[1], c->floats[0], a->norm.eps, a->norm.plus_one, a->norm.group,
                         a->norm.scale, n->out, n->qact))
PLAIN_KERNEL(gated_act, "elementwise.cu",
             launch_gated_act(l, n->n_rows, (int)a->gated_act.act, a->gated_act.limit, n->in[0], n->in[1], n->out,
                              n->qact))

PLAIN_KERNEL(gated_add, "elementwise.cu", launch_gated_add(l, n->n_rows, c->in[0], n->in[1], c->in[2], c->out[0]))

/* Whether the node before c's lets it read its first input before it waits. */
static bool may_prefetch(const struct executable *exe, const struct compiled_op *c, int n_rows) {
    const struct compiled_op *before = c;
    do {
        if (before == exe->ops)
            return false;
        before--;
    } while (before->fold == FOLD_ALWAYS);
    return before->op->code == OP_LINEAR && before->unscaled_is_read && linear_kernel(before, n_rows)->ends_early &&
           before->op->out[0].id != c->op->in[0].id;
}

/* Whether the ADD_NORM does what the GATED_ADD before it adds up. */
static bool adds_up(const struct executable *exe, const struct compiled_op *add_norm, int n_rows) {
    const struct compiled_op *sum = add_norm->sum;
    if (!sum || n_rows > ADD_NORM_FEW || !exe->loaded->device->is_fast)
        return false;
    return input_of(exe, sum, 1, n_rows).element == ELEMENT_F32 && sum->out[0].element == ELEMENT_F32;
}

static void lower_add_norm(struct lowering *w, const struct compiled_op *c, int n_rows) {
    const struct norm_args *a = &c->op->args.norm;
    struct output m = output_for(w, c, 1, n_rows);
    struct node *n = lower_node(w, &by_add_norm, c, n_rows);
    n->args.add_norm =
        (struct dadd_norm){.w = c->floats[0], .r_scale = c->floats[1], .eps = a->eps, .plus_one = a->plus_one};
    if (c->d_norm) {
        n->args.add_norm.d_norm = c->d_weight;
        n->args.add_norm.d_eps = c->d_norm->eps;
        n->args.add_norm.d_plus_one = c->d_norm->plus_one;
    }
    n->args.add_norm.prefetch = may_prefetch(w->exe, c, n_rows);
    n->in[1] = input_of(w->exe, c, 1, n_rows);
    n->out = m.y, n->qact = m.qact;
    if (adds_up(w->exe, c, n_rows))
        n->in[1] = c->sum->in[0], n->args.add_norm.also = c->sum->in[1];
    lower_reduce_in_norm(w, c, n_rows, n);
}

static void lower_gated_add(struct lowering *w, const struct compiled_op *c, int n_rows) {
    if (!c->sum || !adds_up(w->exe, c->sum, n_rows))
        lower_node(w, &by_gated_add, c, n_rows)->in[1] = input_of(w->exe, c, 1, n_rows);
}

static void lower_norm(struct lowering *w, const struct compiled_op *c, int n_rows) {
    struct output m = {.y = c->out[0]};
    if (lower_delta_layer(w, c, n_rows))
        return;
    if (c->op->args.norm.group == c->in[0].width)
        m = output_for(w, c, 0, n_rows);
    struct node *n = lower_node(w, &by_norm, c, n_rows);
    n->in[1] = input_of(w->exe, c, 1, n_rows), n->out = m.y, n->qact = m.qact;
}

static void lower_gated_act(struct lowering *w, const struct compiled_op *c, int n_rows) {
    struct dmat gate = input_of(w->exe, c, 0, n_rows), up = input_of(w->exe, c, 1, n_rows);
    struct output m = {.y = c->out[0]};
    if (c->pair && linear_gates(c->pair, n_rows))
        return; // its LINEAR does it
    for (int k = 0; k < 2 && !gate.col_scale; k++)
        lower_watch(w, c, n_rows, k ? up : gate, NULL);
    if (gated_act_takes_qact((int)c->op->args.gated_act.act, gate, up, c->out[0]))
        m = output_for(w, c, 0, n_rows);
    struct node *n = lower_node(w, &by_gated_act, c, n_rows);
    n->in[0] = gate, n->in[1] = up, n->out = m.y, n->qact = m.qact;
}

// ---- ops that are a node of their own ---------------------------------------------------------------------------

/* The first makes the step's angles too, and clears its row_absmax. */
static enum status put_embed(const struct node *n, const struct launch *l, struct error *err) {
    struct executable *exe = n->exe;
    struct dropes ropes = {0};
    struct drow_absmax row_absmax = {0};
    (void)err;
    if (n->c == exe->ops)
        row_absmax = exe->row_absmax;
    for (int i = 0; n->c == exe->ops && i < exe->program->n_ropes; i++)
        if (exe->ropes[i].dim > 0)
            ropes.rope[ropes.n++] = exe->ropes[i];
    if (n->c->op->code == OP_STATES)
        launch_states(l, plan_states(exe), n->c->out[0], &ropes, &row_absmax);
    else
        launch_embed(l, n->c->matrix[0], n->c->op->args.embed.first, n->c->op->args.embed.scale, n->c->out[0], &ropes,
                     &row_absmax);
    return OK;
}
static const struct node_kernel by_embed = {"embed", "rows.cu", put_embed},
                                by_states = {"states", "rows.cu", put_embed};

static enum status put_concat(const struct node *n, const struct launch *l, struct error *err) {
    int n_in = 0;
    (void)err;
    while (n_in < OP_MAX_IN && n->c->in[n_in].at)
        n_in++;
    launch_concat(l, n->n_rows, n->c->in, n_in, n->c->out[0]);
    return OK;
}
static const struct node_kernel by_concat = {"concat", "rows.cu", put_concat};

PLAIN_KERNEL(take_rows, "rows.cu", launch_take_rows(l, c->in[0], c->out[0]))
PLAIN_KERNEL(softcap, "elementwise.cu", launch_softcap(l, n->n_rows, a->softcap.cap, c->in[0], c->out[0]))
PLAIN_KERNEL(sample, "sample.cu", launch_sample(l, c->in[0], head_bests(n->exe, n->n_rows), n->exe->row_copies))

/* Whether the node of the head did it. */
static bool softcap_is_done(const struct executable *exe, const struct compiled_op *softcap, int n_rows) {
    return softcap->op->out[0].id == exe->program->ops[exe->program->n_ops - 1].in[0].id && head_does(exe, n_rows);
}

static void lower_softcap(struct lowering *w, const struct compiled_op *c, int n_rows) {
    if (!softcap_is_done(w->exe, c, n_rows))
        lower_node(w, &by_softcap, c, n_rows);
}

static void lower_take_rows(struct lowering *w, const struct compiled_op *c, int n_rows) {
    if (w->launch->n_rows > 0)
        lower_node(w, &by_take_rows, c, n_rows);
}

// ---- ops whose kernels bring all that there is to know (own_op.h) -----------------------------------------------

#define OWN(function) void cuda_op_##function(const struct launch *l, const struct own_op *o);
CUDA_OPS
#undef OWN

#define OWN(function)                                                                                          \
    static enum status put_own_##function(const struct node *n, const struct launch *l, struct error *err) {   \
        const struct compiled_op *c = n->c;                                                                    \
        (void)err;                                                                                             \
        cuda_op_##function(l, &(struct own_op){n->n_rows, c->in, c->out, c->matrix, c->floats, &c->op->args}); \
        return OK;                                                                                             \
    }
CUDA_OPS
#undef OWN

static const struct node_kernel own_kernels[] = {
#define OWN(function) {#function, #function ".cu", put_own_##function},
    CUDA_OPS
#undef OWN
};

static const struct node_kernel *own_kernel(enum opcode code) {
    static const char *const names[N_OPCODES] = {
#define OP(code, function, n_in, n_out, n_weights, args) [OP_##code] = #function,
#include "core/ops.def"
    };
    for (size_t i = 0; i < sizeof own_kernels / sizeof *own_kernels; i++)
        if (strcmp(own_kernels[i].name, names[code]) == 0)
            return &own_kernels[i];
    return NULL;
}

// ---- a step -----------------------------------------------------------------------------------------------------

static const struct node_kernel *const of_one_op[N_OPCODES] = {
    [OP_EMBED] = &by_embed,
    [OP_SAMPLE] = &by_sample,
    [OP_CONCAT] = &by_concat,
    [OP_STATES] = &by_states,
};

typedef void lower_function(struct lowering *w, const struct compiled_op *c, int n_rows);
static lower_function *const lowered[N_OPCODES] = {
    [OP_LINEAR] = lower_linear,
    [OP_ADD_NORM] = lower_add_norm,
    [OP_NORM] = lower_norm,
    [OP_GATED_ACT] = lower_gated_act,
    [OP_GATED_ADD] = lower_gated_add,
    [OP_QKV_PREP] = lower_qkv_prep,
    [OP_ATTENTION] = lower_attention,
    [OP_SHORT_CONV] = lower_short_conv,
    [OP_DELTA_RULE] = lower_delta_rule,
    [OP_MLA_PREP] = lower_mla_prep,
    [OP_MLA_ATTENTION] = lower_mla_attention,
    [OP_MOE_ROUTE] = lower_moe_route,
    [OP_MOE_FFN] = lower_moe_ffn,
    [OP_ALL_REDUCE] = lower_all_reduce,
    [OP_ALL_GATHER] = lower_all_gather,
    [OP_TAKE_ROWS] = lower_take_rows,
    [OP_SOFTCAP] = lower_softcap,
};

bool step_has_op(enum opcode code) { return lowered[code] || of_one_op[code] || own_kernel(code); }

static void lower_op(struct lowering *w, const struct compiled_op *c) {
    const struct launch *l = w->launch;
    enum opcode code = c->op->code;
    enum rows kind = val_given(c->op->in[0]) ? w->exe->program->values[c->op->in[0].id].rows : ROWS_TOKENS;
    int n_rows = kind == ROWS_TOKENS ? l->n_tokens : l->n_rows;
    if (n_rows == 0 || c->fold == FOLD_ALWAYS || (c->fold == FOLD_IN_ORDER && l->in_order))
        return;
    if (lowered[code])
        lowered[code](w, c, n_rows);
    else
        lower_node(w, of_one_op[code] ? of_one_op[code] : own_kernel(code), c, n_rows);
}

int step_lower(struct executable *exe, const struct launch *l, int first, int end) {
    struct lowering w = {.exe = exe, .launch = l, .nodes = exe->nodes, .qacts = exe->qact_states};
    memset(w.qacts, 0, (size_t)exe->n_qacts * sizeof *w.qacts);
    for (int i = first; i < end; i++)
        lower_op(&w, &exe->ops[i]);
    return w.n;
}
