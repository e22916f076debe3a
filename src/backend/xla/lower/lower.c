/* lower.c - see lower.h: a program from arguments to results. */
#include "backend/xla/lower/lower.h"

#include "backend/xla/dense_shape.h"
#include "xla_ops.h" // LOWERED(function) for each that a file of this folder defines; made by the Makefile

#include <stdlib.h>
#include <string.h>

/* clang-format off */
static const struct {
    const char *name;
    lower_function *function;
} lowered[] = {
#define LOWERED(function) {#function, xla_##function},
    XLA_OPS
};
/* clang-format on */

static lower_function *function_of(enum opcode code) {
    static const char *const names[N_OPCODES] = {
#define OP(code, function, n_in, n_out, n_weights, args) [OP_##code] = #function,
#include "core/ops.def"
    };
    for (size_t i = 0; i < sizeof lowered / sizeof *lowered; i++)
        if (strcmp(lowered[i].name, names[code]) == 0)
            return lowered[i].function;
    return NULL;
}

bool lower_has_op(enum opcode code) { return function_of(code) != NULL; }

/* ---- of the op at hand ---- */

bool lower_has_in(const struct lower *c, int i) { return val_given(c->op->in[i]); }

static struct tensor value_of(struct lower *c, val v) { return hlo_slice(&c->h, c->values[v.id], 1, v.col, v.width); }

struct tensor lower_in(struct lower *c, int i) {
    return value_of(c, c->op->in[i]);
}

void lower_out(struct lower *c, int i, struct tensor y) {
    val v = c->op->out[i];
    if (!val_given(v))
        return;
    BUG_IF(v.col != 0 || y.shape.rank != 2 || y.shape.dims[1] != v.width);
    c->values[v.id] = y;
}

static int weight_index(const struct lower *c, int i) { return c->l->weight_of[c->i_op * OP_MAX_WEIGHTS + i]; }

bool lower_has_weight(const struct lower *c, int i) { return weight_index(c, i) >= 0; }

struct tensor lower_weight(struct lower *c, int i) {
    return c->weights[weight_index(c, i)];
}

/* Parts of a row of so many products that are summed by themselves: of longer ones XLA makes small parts, and reads
 * them at two thirds of the rate. */
static int64_t parts_of(int64_t n) {
    enum { LONGEST = 8192, LEAST = 64 };
    for (int64_t parts = 1; n / parts >= LEAST; parts++)
        if (n % parts == 0 && n / parts <= LONGEST)
            return parts;
    return 1;
}

bool lower_sums_products(const struct lower *c, int64_t n_rows) { return n_rows == 1 && c->l->device->sums; }

/* y = x W^T of one row as sums of products, in float32. What joins their parts is done by what reads them. */
static struct tensor sums_of_products(struct hlo *h, struct tensor x, struct tensor w) {
    int64_t out = w.shape.dims[0], in = w.shape.dims[1], parts = parts_of(in);
    struct shape all = SHAPE(out, parts, in / parts);
    struct tensor row = hlo_spread(h, hlo_reshape(h, x, SHAPE(parts, in / parts)), all, AXES(1, 2));
    struct tensor wide = hlo_convert(h, hlo_reshape(h, w, all), TYPE_F32);
    struct tensor y = hlo_reduce(h, "add", hlo_binary(h, "multiply", wide, row), 2);
    if (parts > 1)
        y = hlo_barrier(h, y);
    struct tensor sum = hlo_slice(h, y, 1, 0, 1);
    for (int64_t i = 1; i < parts; i++)
        sum = hlo_binary(h, "add", sum, hlo_slice(h, y, 1, i, 1));
    return hlo_reshape(h, sum, SHAPE(1, out));
}

struct tensor lower_product(struct lower *c, struct tensor x, int i) {
    int at = weight_index(c, i);
    struct tensor w = c->weights[at], y;
    if (lower_sums_products(c, x.shape.dims[0]))
        y = sums_of_products(&c->h, x, w);
    else
        y = hlo_dot(&c->h, hlo_convert(&c->h, x, c->l->type), hlo_convert(&c->h, w, c->l->type),
                    (struct dot_axes){{-1}, {-1}, {1, -1}, {1, -1}}, TYPE_F32);
    if (c->l->weights[at].is_scaled)
        y = hlo_binary(&c->h, "multiply", y, hlo_cols(&c->h, c->scales[at], y.shape));
    return y;
}

struct tensor lower_ints(struct lower *c, int at, struct shape shape) {
    return hlo_reshape(&c->h, hlo_slice(&c->h, c->ints, 0, at, shape_count(shape)), shape);
}

struct tensor lower_floats(struct lower *c, int at, struct shape shape) {
    return hlo_reshape(&c->h, hlo_slice(&c->h, c->floats, 0, at, shape_count(shape)), shape);
}

struct tensor lower_rank_int(struct lower *c, int32_t value) {
    return c->l->n_rank_ints ? lower_ints(c, c->at.ranks + c->n_rank_ints++, SCALAR) : hlo_int(&c->h, value);
}

struct tensor *lower_cache(struct lower *c, int cache, int which) {
    BUG_IF(which >= c->l->layers[cache].n);
    return &c->caches[c->l->layers[cache].first + which];
}

int lower_group(const struct lower *c, int cache) { return c->p->caches[cache].group; }

/* ---- formulas ---- */

struct tensor lower_sigmoid(struct lower *c, struct tensor x) {
    return hlo_unary(&c->h, "logistic", x);
}

struct tensor lower_silu(struct lower *c, struct tensor x) {
    return hlo_binary(&c->h, "multiply", x, lower_sigmoid(c, x));
}

static struct tensor gelu_tanh(struct hlo *h, struct tensor x) {
    struct tensor cube = hlo_binary(h, "multiply", hlo_binary(h, "multiply", x, x), x);
    struct tensor inner = hlo_binary(h, "add", x, hlo_binary(h, "multiply", cube, hlo_float(h, 0.044715f)));
    struct tensor t = hlo_unary(h, "tanh", hlo_binary(h, "multiply", inner, hlo_float(h, 0.7978845608028654f)));
    return hlo_binary(h, "multiply", hlo_binary(h, "multiply", x, hlo_float(h, 0.5f)),
                      hlo_binary(h, "add", t, hlo_float(h, 1)));
}

static struct tensor gelu_erf(struct hlo *h, struct tensor x) {
    struct tensor e = hlo_unary(h, "chlo.erf", hlo_binary(h, "multiply", x, hlo_float(h, 0.7071067811865476f)));
    return hlo_binary(h, "multiply", hlo_binary(h, "multiply", x, hlo_float(h, 0.5f)),
                      hlo_binary(h, "add", e, hlo_float(h, 1)));
}

static struct tensor swiglu_clamped(struct lower *c, struct tensor gate, struct tensor up, float limit) {
    struct hlo *h = &c->h;
    struct tensor g = hlo_binary(h, "minimum", gate, hlo_float(h, limit));
    struct tensor u = hlo_binary(h, "maximum", hlo_binary(h, "minimum", up, hlo_float(h, limit)), hlo_float(h, -limit));
    struct tensor s = lower_sigmoid(c, hlo_binary(h, "multiply", g, hlo_float(h, 1.702f)));
    return hlo_binary(h, "multiply", hlo_binary(h, "multiply", hlo_binary(h, "add", u, hlo_float(h, 1)), g), s);
}

struct tensor lower_activate(struct lower *c, struct act_args act, struct tensor gate, struct tensor up) {
    struct hlo *h = &c->h;
    switch (act.act) {
    case ACT_SILU: return hlo_binary(h, "multiply", lower_silu(c, gate), up);
    case ACT_GELU_TANH: return hlo_binary(h, "multiply", gelu_tanh(h, gate), up);
    case ACT_GELU: return hlo_binary(h, "multiply", gelu_erf(h, gate), up);
    case ACT_SIGMOID: return hlo_binary(h, "multiply", lower_sigmoid(c, gate), up);
    case ACT_SWIGLU_CLAMPED: return swiglu_clamped(c, gate, up, act.limit);
    }
    bug(__FILE__, __LINE__, "an activation without a formula");
}

struct tensor lower_rms(struct lower *c, struct tensor x, const struct tensor *w, float eps, bool plus_one) {
    struct hlo *h = &c->h;
    int last = x.shape.rank - 1;
    struct tensor sum = hlo_reduce(h, "add", hlo_binary(h, "multiply", x, x), last);
    struct tensor mean = hlo_binary(h, "divide", sum, hlo_float(h, (float)x.shape.dims[last]));
    struct tensor root = hlo_unary(h, "rsqrt", hlo_binary(h, "add", mean, hlo_float(h, eps)));
    struct tensor y = hlo_binary(h, "multiply", x, hlo_rows(h, root, x.shape));
    if (!w)
        return y;
    struct tensor factor = plus_one ? hlo_binary(h, "add", *w, hlo_float(h, 1)) : *w;
    return hlo_binary(h, "multiply", y, hlo_cols(h, factor, x.shape));
}

/* x * cos - y * sin, and y * cos + x * sin. */
static void turn(struct hlo *h, struct tensor x, struct tensor y, struct tensor cosine, struct tensor sine,
                 struct tensor out[2]) {
    out[0] = hlo_binary(h, "subtract", hlo_binary(h, "multiply", x, cosine), hlo_binary(h, "multiply", y, sine));
    out[1] = hlo_binary(h, "add", hlo_binary(h, "multiply", y, cosine), hlo_binary(h, "multiply", x, sine));
}

struct tensor lower_rotate(struct lower *c, struct tensor x, int rope) {
    struct hlo *h = &c->h;
    if (rope < 0 || c->p->ropes[rope]->dim == 0)
        return x;
    const struct rope *r = c->p->ropes[rope];
    int64_t dim = r->dim, half = dim / 2, all = x.shape.dims[2], n = x.shape.dims[0], heads = x.shape.dims[1];
    struct shape shape = SHAPE(n, heads, half);
    struct tensor cosine = hlo_spread(h, c->cos[rope], shape, AXES(0, 2)),
                  sine = hlo_spread(h, c->sin[rope], shape, AXES(0, 2)), turned[3];
    if (r->pairing == ROPE_HALF) {
        turn(h, hlo_slice(h, x, 2, 0, half), hlo_slice(h, x, 2, half, half), cosine, sine, turned);
    } else {
        struct tensor pairs = hlo_reshape(h, hlo_slice(h, x, 2, 0, dim), SHAPE(n, heads, half, 2));
        struct tensor first = hlo_reshape(h, hlo_slice(h, pairs, 3, 0, 1), shape),
                      second = hlo_reshape(h, hlo_slice(h, pairs, 3, 1, 1), shape);
        turn(h, first, second, cosine, sine, turned);
        for (int i = 0; i < 2; i++)
            turned[i] = hlo_reshape(h, turned[i], SHAPE(n, heads, half, 1));
        turned[0] = hlo_reshape(h, hlo_concat(h, 3, turned, 2), SHAPE(n, heads, dim));
        turned[1] = hlo_slice(h, turned[0], 2, half, half);
        turned[0] = hlo_slice(h, turned[0], 2, 0, half);
    }
    if (all > dim)
        turned[2] = hlo_slice(h, x, 2, dim, all - dim);
    return hlo_concat(h, 2, turned, all > dim ? 3 : 2);
}

struct tensor lower_argmax(struct lower *c, struct tensor x, struct tensor *max) {
    struct hlo *h = &c->h;
    int last = x.shape.rank - 1;
    *max = hlo_reduce(h, "maximum", x, last);
    struct tensor is_max = hlo_compare(h, "EQ", x, hlo_rows(h, *max, x.shape));
    struct tensor at = hlo_iota(h, TYPE_S32, x.shape, last);
    return hlo_reduce(h, "minimum", hlo_select(h, is_max, at, hlo_int(h, (int32_t)x.shape.dims[last] - 1)), last);
}

/* ---- the whole ---- */

static bool has_copy(const struct lower *c, int array) { return dense_stands_for(c->l, &c->s, array); }

static void take_arguments(struct lower *c) {
    const struct loaded *l = c->l;
    for (int i = 0; i < l->n_caches; i++)
        if (!has_copy(c, i))
            c->caches[i] = hlo_argument(&c->h, l->caches[i].type, l->caches[i].shape, c->h.n_arguments);
    if (c->s.is_dense)
        lower_dense_arguments(c);
    if (c->s.n_fed > 0)
        c->fed = hlo_argument(&c->h, TYPE_S32, SHAPE(c->s.n_fed), c->h.n_arguments);
    for (int i = 0; i < l->n_weights; i++) {
        c->weights[i] = hlo_argument(&c->h, l->weights[i].type, l->weights[i].shape, NO_ALIAS);
        if (l->weights[i].is_scaled)
            c->scales[i] = hlo_argument(&c->h, TYPE_F32, SHAPE(l->weights[i].weight->out), NO_ALIAS);
    }
    if (c->s.n_fed > 0)
        c->fed_before = hlo_argument(&c->h, TYPE_S32, SHAPE(c->s.n_fed), NO_ALIAS);
    c->ints = hlo_argument(&c->h, TYPE_S32, SHAPE((int64_t)c->at.n_ints + c->at.n_floats), NO_ALIAS);
    c->floats = hlo_bits(&c->h, hlo_slice(&c->h, c->ints, 0, c->at.n_ints, c->at.n_floats), TYPE_F32);
}

/* What the host says, or what the step before has drawn. */
static struct tensor tokens(struct lower *c) {
    struct hlo *h = &c->h;
    struct tensor said = lower_ints(c, c->at.token, SHAPE(c->n_tokens));
    if (c->s.n_fed == 0)
        return said;
    struct tensor row = lower_ints(c, c->at.from_row, SHAPE(c->n_tokens));
    return hlo_select(h, hlo_compare(h, "LT", row, hlo_int(h, 0)), said, hlo_take(h, c->fed_before, row));
}

static void take_inputs(struct lower *c) {
    const struct inputs *at = &c->at;
    c->token = tokens(c);
    c->position = lower_ints(c, at->position, SHAPE(c->n_tokens));
    c->n_query = lower_ints(c, at->n_query, SHAPE(c->s.n_seqs));
    c->state_slot = lower_ints(c, at->state_slot, SHAPE(c->s.n_seqs));
    c->adapter = lower_ints(c, at->adapter, SHAPE(c->s.n_seqs));
    c->out_row = lower_ints(c, at->out_row, SHAPE(c->s.n_rows));
    for (int g = 0; g < c->p->n_groups; g++) {
        if (c->p->groups[g].ring)
            c->table[g] = hlo_reshape(&c->h, c->state_slot, SHAPE(c->s.n_seqs, 1)); // a slot is a block
        if (c->p->groups[g].kind == CACHE_STATE)
            continue;
        c->table[g] = lower_ints(c, at->table[g], SHAPE(c->s.n_seqs, at->width[g]));
        c->base[g] = lower_ints(c, at->base[g], SHAPE(c->s.n_seqs));
    }
}

static struct tensor of_step(struct lower *c, struct tensor all, struct tensor step) {
    return c->s.n_steps > 1 ? hlo_window(&c->h, all, 0, step, 1) : all;
}

/* What differs from step to step of a launch. */
static void take_step(struct lower *c, struct tensor step) {
    struct hlo *h = &c->h;
    const struct inputs *at = &c->at;
    for (int g = 0; g < c->p->n_groups; g++)
        if (lower_is_dense(c, g))
            lower_dense_places(c, g);
        else if (c->p->groups[g].kind != CACHE_STATE || c->p->groups[g].ring)
            c->store[g] = lower_store_places(c, g);
    for (int i = 0; i < c->p->n_ropes; i++) {
        int64_t dim = c->p->ropes[i]->dim;
        if (dim == 0)
            continue;
        struct tensor all = lower_floats(c, at->cos_sin[i], SHAPE(c->s.n_steps, c->n_tokens, dim));
        struct tensor both = hlo_reshape(h, of_step(c, all, step), SHAPE(c->n_tokens, dim));
        c->cos[i] = hlo_slice(h, both, 1, 0, dim / 2);
        c->sin[i] = hlo_slice(h, both, 1, dim / 2, dim / 2);
    }
    struct tensor bits = lower_ints(c, at->bits, SHAPE(c->s.n_steps, 2, c->s.n_rows));
    c->bits = hlo_reshape(h, of_step(c, bits, step), SHAPE(2, c->s.n_rows));
}

static void keep(struct lower *c, struct tensor x) {
    hlo_result(&c->h, hlo_reshape(&c->h, x, SHAPE(shape_count(x.shape))));
}

static void give_results(struct lower *c) {
    struct hlo *h = &c->h;
    for (int i = 0; i < c->l->n_caches; i++)
        if (!has_copy(c, i))
            hlo_result(h, c->caches[i]);
    for (int i = 0; i < c->l->n_caches; i++)
        if (has_copy(c, i))
            hlo_result(h, c->dense[i]);
    if (c->s.n_fed > 0)
        hlo_result(h, hlo_put(h, c->fed, lower_ints(c, c->at.fed_to, SHAPE(c->s.n_rows)), c->newest));
    if (c->has_drawn)
        hlo_result(h, hlo_reshape(h, c->drawn, SHAPE((int64_t)c->s.n_steps * c->s.n_rows * DRAWN_INTS)));
    if (!launch_keeps_logits(c->l, &c->s))
        return;
    if (c->has_drawn)
        hlo_result(h, hlo_reshape(h, c->logits, SHAPE((int64_t)c->s.n_rows * c->p->vocab_size)));
    if (val_given(c->p->hidden))
        keep(c, c->hidden);
    for (int i = 0; i < c->p->n_taps; i++)
        keep(c, value_of(c, c->p->taps[i]));
}

static void lower_step(struct lower *c, struct tensor step) {
    take_step(c, step);
    c->n_rank_ints = 0;
    for (c->i_op = 0; c->i_op < c->p->n_ops; c->i_op++) {
        c->op = &c->p->ops[c->i_op];
        function_of(c->op->code)(c);
    }
    if (c->has_drawn)
        c->newest = hlo_reshape(&c->h, hlo_slice(&c->h, c->drawn, 0, DRAWN_TOKEN, 1), SHAPE(c->s.n_rows));
    if (val_given(c->p->hidden))
        c->hidden = value_of(c, c->p->hidden);
}

/* Caches, or the copies that stand for them, to a loop or from it; returns how many. */
static int list_arrays(const struct lower *c, struct tensor *out) {
    int n = 0;
    for (int i = 0; i < c->l->n_caches; i++)
        out[n++] = has_copy(c, i) ? c->dense[i] : c->caches[i];
    return n;
}

static void take_arrays(struct lower *c, const struct tensor *from) {
    for (int i = 0; i < c->l->n_caches; i++)
        *(has_copy(c, i) ? &c->dense[i] : &c->caches[i]) = from[i];
}

/* What a loop carries behind the arrays. */
enum { CARRIED_TOKEN, CARRIED_DRAWN, CARRIED_LOGITS, CARRIED_HIDDEN, N_CARRIED };

/* A loop that feeds each sequence's token back. Of logits and hidden states it leaves those of the last step. */
static void lower_steps(struct lower *c) {
    struct hlo *h = &c->h;
    struct loop *loop = xcalloc(1, sizeof *loop);
    struct tensor *carried = xcalloc((size_t)c->l->n_caches + N_CARRIED, sizeof *carried), first = c->position;
    int n = list_arrays(c, carried);
    struct tensor *more = carried + n;
    bool keeps = launch_keeps_logits(c->l, &c->s), has_hidden = keeps && val_given(c->p->hidden);
    more[CARRIED_TOKEN] = c->token;
    more[CARRIED_DRAWN] = hlo_full(h, TYPE_S32, SHAPE(c->s.n_steps, DRAWN_INTS, c->s.n_rows), 0);
    if (keeps)
        more[CARRIED_LOGITS] = hlo_full(h, TYPE_F32, SHAPE(c->s.n_rows, c->p->vocab_size), 0);
    if (has_hidden)
        more[CARRIED_HIDDEN] = hlo_full(h, TYPE_F32, SHAPE(c->n_tokens, c->p->hidden.width), 0);
    struct tensor n_steps = lower_ints(c, c->at.n_loop, SCALAR);
    hlo_loop_begin(h, loop, n_steps, carried, n + (has_hidden ? N_CARRIED : keeps ? CARRIED_HIDDEN : CARRIED_LOGITS));
    take_arrays(c, loop->now);
    c->token = loop->now[n + CARRIED_TOKEN];
    c->position = hlo_binary(h, "add", first, loop->at);
    lower_step(c, loop->at);
    list_arrays(c, carried);
    more[CARRIED_TOKEN] = c->newest; // a row a sequence
    struct tensor drawn = hlo_reshape(h, c->drawn, SHAPE(1, DRAWN_INTS, c->s.n_rows));
    more[CARRIED_DRAWN] = hlo_set_window(h, loop->now[n + CARRIED_DRAWN], 0, loop->at, drawn);
    more[CARRIED_LOGITS] = c->logits;
    more[CARRIED_HIDDEN] = c->hidden;
    hlo_loop_end(h, loop, carried, carried);
    take_arrays(c, carried);
    c->newest = more[CARRIED_TOKEN];
    c->drawn = more[CARRIED_DRAWN];
    c->logits = more[CARRIED_LOGITS];
    c->hidden = more[CARRIED_HIDDEN];
    free(carried);
    free(loop);
}

void xla_lower(const struct loaded *l, const struct launch_shape *s, struct buf *out) {
    struct lower c = {.l = l, .p = l->program, .s = *s, .n_tokens = launch_tokens(s)};
    inputs_layout(l, s, &c.at);
    c.values = xcalloc((size_t)c.p->n_values + 1, sizeof *c.values);
    c.weights = xcalloc((size_t)l->n_weights + 1, sizeof *c.weights);
    c.scales = xcalloc((size_t)l->n_weights + 1, sizeof *c.scales);
    c.caches = xcalloc((size_t)l->n_caches + 1, sizeof *c.caches);
    c.dense = xcalloc((size_t)l->n_caches + 1, sizeof *c.dense);
    take_arguments(&c);
    take_inputs(&c);
    if (s->n_steps > 1)
        lower_steps(&c);
    else
        lower_step(&c, c.token);
    give_results(&c);
    hlo_module(&c.h, "step", MAX(c.p->n_ranks, 1), out);
    free(c.values);
    free(c.weights);
    free(c.scales);
    free(c.caches);
    free(c.dense);
}
