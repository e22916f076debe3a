/* record.c - how each op is recorded: its shape rule and a record. What it computes is in ops.def, and what is known of
 * an op by its lines there follows first. */
#include "core/program_internal.h"

#include "base/status.h"

#include <string.h>

static const struct {
    const char *name;
    int n_in, n_out, n_weights;
} op_table[N_OPCODES] = {
#define OP(code, function, n_in, n_out, n_weights, args) [OP_##code] = {#code, n_in, n_out, n_weights},
#include "core/ops.def"
};

const char *op_name(enum opcode code) { return op_table[code].name; }

bool op_multiplies_by(enum opcode code, int slot) {
    static const bool multiplies[N_OPCODES][OP_MAX_WEIGHTS] = {
#define MULTIPLIES(code, slot) [OP_##code][slot] = true,
#include "core/ops.def"
    };
    return multiplies[code][slot];
}

/* ---- caches and ropes that ops name ---- */

struct named {
    int cache, rope;
};
#define ARGS(args, name, fields)                                                                                       \
    static struct named named_by_##args(const union op_args *all) {                                                    \
        const struct args##_args *a = &all->name;                                                                      \
        struct named found = {-1, -1};                                                                                 \
        (void)a;                                                                                                       \
        fields return found;                                                                                           \
    }
#define ARG_INT(name)
#define ARG_FLOAT(name)
#define ARG_FLAG(name)
#define ARG_WORD(words, name)
#define ARG_CACHE(name) found.cache = a->name;
#define ARG_ROPE(name) found.rope = a->name;
#define ARG_PART(args, name)
#define ARG_OTHER(type, name)
#include "core/ops.def"

static struct named named_by_none(const union op_args *all) {
    (void)all;
    return (struct named){-1, -1};
}

static struct named named_by(const struct op *op) {
    static struct named (*const of[N_OPCODES])(const union op_args *) = {
#define OP(code, function, n_in, n_out, n_weights, args) [OP_##code] = named_by_##args,
#include "core/ops.def"
    };
    return of[op->code](&op->args);
}

int op_cache(const struct op *op) { return named_by(op).cache; }
int op_rope(const struct op *op) { return named_by(op).rope; }

/* ---- recording ---- */

static enum rows rows_of(const struct program *p, val v) { return p->values[v.id].rows; }

static val new_value(struct program *p, int width, enum rows rows, enum dtype dtype) {
    BUG_IF(width <= 0);
    p->values = program_grown(p->values, p->n_values, &p->cap_values, sizeof *p->values);
    p->values[p->n_values] = (struct value){width, rows, dtype, p->n_ops, p->n_ops};
    return (val){p->n_values++, 0, width};
}

static struct op *record(struct program *p, enum opcode code, val in0, val in1, val in2) {
    p->ops = program_grown(p->ops, p->n_ops, &p->cap_ops, sizeof *p->ops);
    struct op *op = &p->ops[p->n_ops];
    *op = (struct op){.code = code, .section = p->n_sections - 1, .in = {in0, in1, in2}, .out = {NO_VAL, NO_VAL}};
    for (int i = 0; i < OP_MAX_IN; i++) {
        BUG_IF(i >= op_table[code].n_in && val_given(op->in[i]));
        if (val_given(op->in[i]))
            p->values[op->in[i].id].last_use = p->n_ops;
    }
    p->n_ops++;
    return op;
}

/* Results are made before the op is counted, so that new_value's first_use is this op. */
static val result(struct program *p, struct op *op, int i, int width, enum rows rows, enum dtype dtype) {
    p->n_ops--;
    op->out[i] = new_value(p, width, rows, dtype);
    p->n_ops++;
    return op->out[i];
}

void program_repeat_op(struct program *p, const struct program *from, struct op *again) {
    struct op *op = record(p, again->code, again->in[0], again->in[1], again->in[2]);
    memcpy(op->weights, again->weights, sizeof op->weights);
    op->args = again->args;
    for (int i = 0; i < OP_MAX_OUT; i++) {
        const struct value *v = val_given(again->out[i]) ? &from->values[again->out[i].id] : NULL;
        again->out[i] = v ? result(p, op, i, v->width, v->rows, v->dtype) : NO_VAL;
    }
}

static bool is_matrix(const struct weight *w, int64_t out, int64_t in) { return w && w->out == out && w->in == in; }
static bool is_vector(const struct weight *w, int64_t n) { return is_matrix(w, n, 1); }
static bool is_vector_or_absent(const struct weight *w, int64_t n) { return !w || is_vector(w, n); }

static void set_weights(struct op *op, const struct weight *a, const struct weight *b, const struct weight *c,
                        const struct weight *d) {
    op->weights[0] = a;
    op->weights[1] = b;
    op->weights[2] = c;
    op->weights[3] = d;
}

/* ---- the ops ---- */

val op_embed(struct program *p, const struct weight *table, float scale) {
    struct op *op = record(p, OP_EMBED, NO_VAL, NO_VAL, NO_VAL);
    set_weights(op, table, NULL, NULL, NULL);
    op->args.embed = (struct embed_args){scale, 0};
    p->vocab_size = (int)table->out;
    return result(p, op, 0, (int)table->in, ROWS_TOKENS, DT_F32);
}

val op_states(struct program *p, int width) {
    struct op *op = record(p, OP_STATES, NO_VAL, NO_VAL, NO_VAL);
    return result(p, op, 0, width, ROWS_TOKENS, DT_F32);
}

struct normed op_add_norm(struct program *p, val x, val d, const struct weight *w, const struct weight *r_scale,
                          struct norm_args args) {
    BUG_IF(val_given(d) && (d.width != x.width || rows_of(p, d) != rows_of(p, x)));
    BUG_IF(!is_vector(w, x.width) || !is_vector_or_absent(r_scale, 1));
    struct op *op = record(p, OP_ADD_NORM, x, d, NO_VAL);
    set_weights(op, w, r_scale, NULL, NULL);
    op->args.norm = args;
    val r = result(p, op, 0, x.width, rows_of(p, x), DT_F32);
    val y = result(p, op, 1, x.width, rows_of(p, x), DT_F32);
    return (struct normed){r, y};
}

val op_norm(struct program *p, val x, val gate, const struct weight *w, struct norm_args args) {
    if (args.group == 0)
        args.group = x.width;
    if (args.scale == 0)
        args.scale = 1;
    BUG_IF(x.width % args.group || !is_vector_or_absent(w, args.group) || (val_given(gate) && gate.width != x.width));
    struct op *op = record(p, OP_NORM, x, gate, NO_VAL);
    set_weights(op, w, NULL, NULL, NULL);
    op->args.norm = args;
    return result(p, op, 0, x.width, rows_of(p, x), DT_F32);
}

val op_linear(struct program *p, val x, const struct weight *w, const struct weight *bias) {
    BUG_IF(w->in != x.width || !is_vector_or_absent(bias, w->out));
    struct op *op = record(p, OP_LINEAR, x, NO_VAL, NO_VAL);
    set_weights(op, w, bias, NULL, NULL);
    return result(p, op, 0, (int)w->out, rows_of(p, x), DT_F32);
}

static bool cache_is_of(const struct program *p, int cache, int n_kv_heads, int head_dim, int v_head_dim) {
    const struct cache_group *g = &p->groups[p->caches[cache].group];
    bool is_kv = g->kind == CACHE_KV || g->ring > 0;
    return is_kv && g->n_heads == n_kv_heads && g->k_dim == head_dim && g->v_dim == v_head_dim;
}

val op_qkv_prep(struct program *p, val x, const struct weight *q_norm, const struct weight *k_norm, struct qkv_args a) {
    int n_v = a.v_from_k ? 0 : a.n_kv_heads * a.v_head_dim;
    int n_kv = a.k_absent ? 0 : a.n_kv_heads * a.head_dim + n_v;
    BUG_IF(x.width != a.n_heads * a.head_dim + n_kv || a.n_heads % a.n_kv_heads ||
           (a.v_from_k && a.v_head_dim != a.head_dim));
    BUG_IF(!is_vector_or_absent(q_norm, a.head_dim) || !is_vector_or_absent(k_norm, a.head_dim));
    BUG_IF(a.rope >= 0 && (a.rope >= p->n_ropes || p->ropes[a.rope]->dim > a.head_dim));
    BUG_IF(!cache_is_of(p, a.cache, a.n_kv_heads, a.head_dim, a.v_head_dim) ||
           a.rotary_dim != 0); // pass_shared_kv sets it
    struct op *op = record(p, OP_QKV_PREP, x, NO_VAL, NO_VAL);
    set_weights(op, q_norm, k_norm, NULL, NULL);
    op->args.qkv_prep = a;
    if (a.n_heads == 0)
        return NO_VAL;
    return result(p, op, 0, a.n_heads * a.head_dim, ROWS_TOKENS, DT_F32);
}

val op_attention(struct program *p, val q, const struct weight *sinks, struct attention_args a) {
    BUG_IF(q.width != a.n_heads * a.head_dim || a.n_heads % a.n_kv_heads || !is_vector_or_absent(sinks, a.n_heads));
    BUG_IF(!cache_is_of(p, a.cache, a.n_kv_heads, a.head_dim, a.v_head_dim) ||
           a.rotary_dim != 0); // pass_shared_kv sets it
    BUG_IF(a.paired_values && a.n_heads % 2);
    struct op *op = record(p, OP_ATTENTION, q, NO_VAL, NO_VAL);
    set_weights(op, sinks, NULL, NULL, NULL);
    op->args.attention = a;
    return result(p, op, 0, a.n_heads * a.v_head_dim * (a.paired_values ? 2 : 1), ROWS_TOKENS, DT_F32);
}

val op_mla_prep(struct program *p, val q, val kva, const struct weight *norm, const struct weight *w_uk,
                struct mla_args a) {
    BUG_IF(q.width != a.n_heads * (a.nope_dim + a.rope_dim) || kva.width != a.rank + a.rope_dim);
    BUG_IF(!is_vector(norm, a.rank) || !is_matrix(w_uk, a.n_heads * a.nope_dim, a.rank));
    const struct cache_group *g = &p->groups[p->caches[a.cache].group];
    BUG_IF(g->kind != CACHE_LATENT || g->k_dim != a.rank + a.rope_dim);
    struct op *op = record(p, OP_MLA_PREP, q, kva, NO_VAL);
    set_weights(op, norm, w_uk, NULL, NULL);
    op->args.mla = a;
    return result(p, op, 0, a.n_heads * (a.rank + a.rope_dim), ROWS_TOKENS, DT_F32);
}

val op_mla_attention(struct program *p, val q, const struct weight *w_uv, struct mla_args a) {
    BUG_IF(q.width != a.n_heads * (a.rank + a.rope_dim) || !is_matrix(w_uv, a.n_heads * a.v_dim, a.rank));
    struct op *op = record(p, OP_MLA_ATTENTION, q, NO_VAL, NO_VAL);
    set_weights(op, w_uv, NULL, NULL, NULL);
    op->args.mla = a;
    return result(p, op, 0, a.n_heads * a.v_dim, ROWS_TOKENS, DT_F32);
}

val op_gated_act(struct program *p, val gate, val up, struct act_args args) {
    BUG_IF(gate.width != up.width || rows_of(p, gate) != rows_of(p, up));
    struct op *op = record(p, OP_GATED_ACT, gate, up, NO_VAL);
    op->args.gated_act = args;
    return result(p, op, 0, gate.width, rows_of(p, gate), DT_F32);
}

val op_glu(struct program *p, val gate_up, struct act_args args) {
    int half = gate_up.width / 2;
    return op_gated_act(p, val_cols(gate_up, 0, half), val_cols(gate_up, half, half), args);
}

val op_diff_heads(struct program *p, val x, const struct weight *lambda[4], struct diff_args a) {
    BUG_IF(x.width != a.n_heads * a.width || a.n_heads % 2);
    for (int i = 1; i < 4; i++)
        BUG_IF(!is_vector(lambda[i], lambda[0]->out));
    struct op *op = record(p, OP_DIFF_HEADS, x, NO_VAL, NO_VAL);
    set_weights(op, lambda[0], lambda[1], lambda[2], lambda[3]);
    op->args.diff_heads = a;
    return result(p, op, 0, x.width / 2, ROWS_TOKENS, DT_F32);
}

struct routed op_moe_route(struct program *p, val logits, const struct weight *bias, const struct weight *expert_scale,
                           struct route_args a) {
    return op_moe_route_gated(p, logits, NO_VAL, bias, expert_scale, a);
}

struct routed op_moe_route_gated(struct program *p, val logits, val gate, const struct weight *bias,
                                 const struct weight *expert_scale, struct route_args a) {
    BUG_IF(logits.width != a.n_experts || a.top_k < 1 || a.top_k > a.n_experts || a.n_shared < 0);
    BUG_IF(val_given(gate) && (gate.width != 1 || a.n_shared == 0));
    BUG_IF(!is_vector_or_absent(bias, a.n_experts) || !is_vector_or_absent(expert_scale, a.n_experts));
    BUG_IF(a.n_groups > 0 && (a.n_experts % a.n_groups || a.top_groups < 1 || a.top_groups > a.n_groups));
    struct op *op = record(p, OP_MOE_ROUTE, logits, gate, NO_VAL);
    set_weights(op, bias, expert_scale, NULL, NULL);
    op->args.moe_route = a;
    val ids = result(p, op, 0, route_slots(&a), ROWS_TOKENS, DT_I32);
    val weights = result(p, op, 1, route_slots(&a), ROWS_TOKENS, DT_F32);
    return (struct routed){ids, weights};
}

val op_moe_ffn(struct program *p, val x, struct routed r, const struct weight *w13, const struct weight *w2,
               const struct weight *b13, const struct weight *b2, struct moe_args a) {
    int64_t e = a.n_experts, f = a.ffn_size, d = x.width;
    BUG_IF(!is_matrix(w13, e * 2 * f, d) || !is_matrix(w2, e * d, f));
    BUG_IF(!is_vector_or_absent(b13, e * 2 * f) || !is_vector_or_absent(b2, e * d));
    BUG_IF(r.ids.width != a.top_k || r.weights.width != a.top_k);
    struct op *op = record(p, OP_MOE_FFN, x, r.ids, r.weights);
    set_weights(op, w13, w2, b13, b2);
    op->args.moe_ffn = a;
    return result(p, op, 0, x.width, ROWS_TOKENS, DT_F32);
}

val op_short_conv(struct program *p, val u, const struct weight *w, struct conv_args a) {
    BUG_IF(!is_matrix(w, u.width, a.kernel));
    struct cache_group *g = &p->groups[p->caches[a.cache].group];
    BUG_IF(g->kind != CACHE_STATE || g->state_floats < (int64_t)u.width * (a.kernel - 1));
    g->conv_floats = (int64_t)u.width * (a.kernel - 1);
    g->conv_width = u.width;
    struct op *op = record(p, OP_SHORT_CONV, u, NO_VAL, NO_VAL);
    set_weights(op, w, NULL, NULL, NULL);
    op->args.short_conv = a;
    return result(p, op, 0, u.width, ROWS_TOKENS, DT_F32);
}

val op_delta_rule(struct program *p, val qkv, val b, val a, const struct weight *a_log, const struct weight *dt_bias,
                  struct delta_args args) {
    BUG_IF(qkv.width != 2 * args.n_key_heads * args.key_dim + args.n_value_heads * args.value_dim);
    BUG_IF(b.width != args.n_value_heads || a.width != args.n_value_heads || args.n_value_heads % args.n_key_heads);
    BUG_IF(!is_vector(a_log, args.n_value_heads) || !is_vector(dt_bias, args.n_value_heads));
    struct cache_group *g = &p->groups[p->caches[args.cache].group];
    BUG_IF(g->kind != CACHE_STATE || g->state_floats < (int64_t)args.n_value_heads * args.key_dim * args.value_dim);
    g->delta_floats = (int64_t)args.n_value_heads * args.key_dim * args.value_dim;
    g->delta_width = qkv.width + b.width + a.width;
    struct op *op = record(p, OP_DELTA_RULE, qkv, b, a);
    set_weights(op, a_log, dt_bias, NULL, NULL);
    op->args.delta_rule = args;
    return result(p, op, 0, args.n_value_heads * args.value_dim, ROWS_TOKENS, DT_F32);
}

val op_gated_add(struct program *p, val add, val x, val gate) {
    BUG_IF(add.width != x.width || (val_given(gate) && gate.width != 1));
    struct op *op = record(p, OP_GATED_ADD, add, x, gate);
    return result(p, op, 0, x.width, rows_of(p, x), DT_F32);
}

val op_concat(struct program *p, val a, val b, val c) {
    BUG_IF(rows_of(p, a) != rows_of(p, b) || (val_given(c) && rows_of(p, a) != rows_of(p, c)));
    struct op *op = record(p, OP_CONCAT, a, b, c);
    return result(p, op, 0, a.width + b.width + (val_given(c) ? c.width : 0), rows_of(p, a), DT_F32);
}

val op_take_rows(struct program *p, val x) {
    BUG_IF(rows_of(p, x) != ROWS_TOKENS);
    struct op *op = record(p, OP_TAKE_ROWS, x, NO_VAL, NO_VAL);
    p->hidden = x;
    return result(p, op, 0, x.width, ROWS_OUT, DT_F32);
}

val op_softcap(struct program *p, val x, float cap) {
    struct op *op = record(p, OP_SOFTCAP, x, NO_VAL, NO_VAL);
    op->args.softcap = (struct softcap_args){cap};
    return result(p, op, 0, x.width, rows_of(p, x), DT_F32);
}

val op_lora(struct program *p, val base, val x, const struct weight *a, const struct weight *b,
            const struct weight *scales, struct lora_args args) {
    int64_t n = args.n_adapters, m = args.n_modules;
    BUG_IF(!is_matrix(a, n * m * args.rank, x.width) || !is_matrix(b, n * base.width, args.rank));
    BUG_IF(!is_vector(scales, n * m) || rows_of(p, base) != rows_of(p, x));
    struct op *op = record(p, OP_LORA, base, x, NO_VAL);
    set_weights(op, a, b, scales, NULL);
    op->args.lora = args;
    return result(p, op, 0, base.width, rows_of(p, x), DT_F32);
}

val op_all_reduce(struct program *p, val x) {
    struct op *op = record(p, OP_ALL_REDUCE, x, NO_VAL, NO_VAL);
    return result(p, op, 0, x.width, rows_of(p, x), DT_F32);
}

val op_all_gather(struct program *p, val x, int first, int width) {
    BUG_IF(first < 0 || first > width - x.width);
    struct op *op = record(p, OP_ALL_GATHER, x, NO_VAL, NO_VAL);
    op->args.all_gather = (struct gather_args){first};
    return result(p, op, 0, width, rows_of(p, x), DT_F32);
}

void op_sample(struct program *p, val logits) {
    BUG_IF(rows_of(p, logits) != ROWS_OUT);
    p->vocab_size = logits.width;
    record(p, OP_SAMPLE, logits, NO_VAL, NO_VAL);
    if (val_given(p->hidden))
        p->values[p->hidden.id].last_use = p->n_ops - 1;
}
