/* step_time.c - see step_time.h. Which elements weights get is as backend/cuda/weights/weights.c gives them. */
#include "sizing/step_time.h"

#include "core/kv_int4.h"

#include <math.h>
#include <stdlib.h>

/* Ops that do the same work in any step. */
struct work_class {
    const struct op *op; // one of them
    int n, n_in_layers;
    bool is_ffn;
};

struct step_model {
    const struct program *program;
    struct step_model_options options;
    struct work_class *classes;
    int n_classes;
    double layer_bytes, end_bytes;
    bool has_few_bits; // weights of four bits, whose kernels the fit does not know
};

// ---- bytes ------------------------------------------------------------------------------------------------------

static bool reads(const struct op *op, val v) {
    for (int k = 0; k < OP_MAX_IN; k++)
        if (val_given(op->in[k]) && op->in[k].id == v.id)
            return true;
    return false;
}

/* Whether it makes logits of tokens or of experts. */
static bool chooses(const struct program *p, val y) {
    for (int i = 0; i < p->n_ops; i++) {
        const struct op *op = &p->ops[i];
        if (!reads(op, y))
            continue;
        if (op->code == OP_SAMPLE || op->code == OP_MOE_ROUTE || op->code == OP_ALL_GATHER ||
            (op->code == OP_SOFTCAP && chooses(p, op->out[0])))
            return true;
    }
    return false;
}

static bool is_head(const struct program *p, const struct op *op) {
    return op->code == OP_LINEAR && p->values[op->in[0].id].rows == ROWS_OUT && chooses(p, op->out[0]);
}

/* On the card. A greedy step of one card reads the head's copy in 8 bits, see read_bytes. */
static double placed_bytes(const struct step_model *m, const struct op *op, int slot) {
    const struct weight *w = op->weights[slot];
    double n = (double)w->out * (double)w->in, stored = (double)weight_stored_bytes(w);
    bool is_matrix = op->code == OP_EMBED || op_multiplies_by(op->code, slot);
    bool is_product = op->code == OP_LINEAR || op->code == OP_MOE_FFN;
    if (!is_matrix)
        return 4 * n;
    if (stored < 2 * n)
        return fmin(stored, 2 * n);
    if (m->options.makes_fp8 && is_product && w->in % 16 == 0 && !chooses(m->program, op->out[0]))
        return n + 4 * (double)w->out;
    return 2 * n;
}

static bool is_of_few_bits(const struct step_model *m, const struct op *op, int slot) {
    const struct weight *w = op->weights[slot];
    return w && op_multiplies_by(op->code, slot) && placed_bytes(m, op, slot) < 0.9 * (double)w->out * (double)w->in;
}

static double read_bytes(const void *context, const struct op *op, int slot) {
    const struct step_model *m = context;
    const struct weight *w = op->weights[slot];
    if (slot == 0 && m->program->n_ranks < 2 && is_head(m->program, op))
        return (double)w->out * (double)w->in;
    return placed_bytes(m, op, slot);
}

static double kv_bytes(enum cache_format format, const struct cache_group *g) {
    double elements = (double)g->k_dim + g->v_dim, n_heads = g->n_heads;
    switch (format) {
    case CACHE_16_BITS: return n_heads * 2 * elements;
    case CACHE_FP8: return n_heads * (elements + 8); // a scale of key and value each
    case CACHE_INT4: return n_heads * (double)(kv_int4_row_bytes(g->k_dim) + kv_int4_row_bytes(g->v_dim));
    }
    return 0;
}

static double slot_bytes(const struct step_model *m, int group) {
    const struct cache_group *g = &m->program->groups[group];
    switch (g->kind) {
    case CACHE_STATE: return 4 * (double)g->state_floats;
    case CACHE_LATENT: return 2 * (double)g->k_dim;
    case CACHE_KV: return kv_bytes(m->options.cache, g);
    }
    return 0;
}

static double cache_bytes(const void *context, int cache) {
    const struct step_model *m = context;
    return slot_bytes(m, m->program->caches[cache].group);
}

double step_model_block_bytes(const struct step_model *m, int group, int block_size) {
    const struct cache_group *g = &m->program->groups[group];
    return slot_bytes(m, group) * g->n_layers * (g->kind == CACHE_STATE ? 1 : block_size);
}

double step_model_cache_bytes(const struct step_model *m, double n_tokens, int block_size) {
    double bytes = 0;
    for (int i = 0; i < m->program->n_groups; i++) {
        const struct cache_group *g = &m->program->groups[i];
        double held = g->window > 0 ? fmin(n_tokens, g->window + block_size) : n_tokens;
        double n_blocks = g->kind == CACHE_STATE ? 1 : ceil(held / block_size);
        bytes += n_blocks * step_model_block_bytes(m, i, block_size);
    }
    return bytes;
}

double step_model_layer_bytes(const struct step_model *m) { return m->layer_bytes; }
double step_model_end_bytes(const struct step_model *m) { return m->end_bytes; }

static bool is_first_use(const struct program *p, int op, int slot) {
    for (int i = 0; i <= op; i++)
        for (int k = 0; k < (i < op ? OP_MAX_WEIGHTS : slot); k++)
            if (p->ops[i].weights[k] == p->ops[op].weights[slot])
                return false;
    return true;
}

static void count_weights(struct step_model *m) {
    const struct program *p = m->program;
    for (int i = 0; i < p->n_ops; i++)
        for (int k = 0; k < OP_MAX_WEIGHTS; k++) {
            const struct op *op = &p->ops[i];
            const struct weight *w = op->weights[k];
            if (!w || !is_first_use(p, i, k))
                continue;
            double bytes = placed_bytes(m, op, k), n = (double)w->out * (double)w->in;
            if (k == 0 && p->n_ranks < 2 && is_head(p, op))
                bytes += n; // its copy in 8 bits
            m->has_few_bits |= is_of_few_bits(m, op, k);
            *(p->sections[op->section].layer >= 0 ? &m->layer_bytes : &m->end_bytes) += bytes;
        }
}

// ---- classes ----------------------------------------------------------------------------------------------------

static struct work_shape shape_of(const struct step_model *m, const struct work_kind *kinds, int n_kinds) {
    return (struct work_shape){.program = m->program,
                               .kinds = kinds,
                               .n_kinds = n_kinds,
                               .n_all_experts = m->options.n_all_experts,
                               .weight_bytes = read_bytes,
                               .cache_bytes = cache_bytes,
                               .context = m};
}

static bool equal(struct op_work a, struct op_work b) {
    return a.weight_bytes == b.weight_bytes && a.cache_bytes == b.cache_bytes && a.narrow_flops == b.narrow_flops &&
           a.wide_flops == b.wide_flops && a.mixer_flops == b.mixer_flops;
}

static bool activates(const struct op *op) {
    return op->code == OP_GATED_ACT && op->args.gated_act.act != ACT_SIGMOID; // that one gates attention
}

/* Feed-forward: experts and their router, and the products before and behind an activation. */
static bool is_ffn(const struct program *p, const struct op *op) {
    if (op->code == OP_MOE_FFN || op->code == OP_MOE_ROUTE || activates(op))
        return true;
    for (int i = 0; op->code == OP_LINEAR && i < p->n_ops; i++) {
        const struct op *other = &p->ops[i];
        bool after = activates(other) && reads(op, other->out[0]),
             before = activates(other) && reads(other, op->out[0]);
        if (before || after || (other->code == OP_MOE_ROUTE && reads(other, op->out[0])))
            return true;
    }
    return false;
}

/* By what they do in two steps that tell windows, widths and kinds of rows apart. */
static bool same_work(const struct step_model *m, const struct op *a, const struct op *b) {
    static const struct work_kind probes[] = {{1, 12345, 1}, {3, 77, 5}};
    if (a->code != b->code ||
        (val_given(a->out[0]) ? a->out[0].width : 0) != (val_given(b->out[0]) ? b->out[0].width : 0))
        return false;
    for (size_t i = 0; i < ARRAY_LEN(probes); i++) {
        struct work_shape s = shape_of(m, &probes[i], 1);
        if (!equal(op_work_of(&s, a), op_work_of(&s, b)))
            return false;
    }
    return true;
}

static void classify(struct step_model *m) {
    const struct program *p = m->program;
    m->classes = xcalloc((size_t)p->n_ops, sizeof *m->classes);
    for (int i = 0; i < p->n_ops; i++) {
        const struct op *op = &p->ops[i];
        int c = 0;
        bool ffn = is_ffn(p, op);
        while (c < m->n_classes && (m->classes[c].is_ffn != ffn || !same_work(m, m->classes[c].op, op)))
            c++;
        if (c == m->n_classes)
            m->classes[m->n_classes++] = (struct work_class){.op = op, .is_ffn = ffn};
        m->classes[c].n++;
        m->classes[c].n_in_layers += p->sections[op->section].layer >= 0;
    }
}

struct step_model *step_model_new(const struct program *rank, const struct step_model_options *options) {
    struct step_model *m = xcalloc(1, sizeof *m);
    *m = (struct step_model){.program = rank, .options = *options};
    count_weights(m);
    classify(m);
    return m;
}

void step_model_free(struct step_model *m) {
    if (!m)
        return;
    free(m->classes);
    free(m);
}

// ---- time -------------------------------------------------------------------------------------------------------

/* Seconds of one op, by what they go to. */
struct op_time {
    double node, weights, cache, products, sum;
};

static double node_us(enum opcode code) {
    const struct reach *r = &reach_of_steps;
    switch (code) {
    case OP_LINEAR: return r->linear_us;
    case OP_MOE_FFN: return r->moe_us;
    case OP_DELTA_RULE: return r->delta_us;
    default: return 0; // neighbours of those, or hidden behind them
    }
}

/* Weights of four bits become float16 on the way: their products have its rate. Of experts all have, as their share
 * says. */
static double product_seconds(const struct step_model *m, const struct op *op, const struct op_work *w) {
    const struct reach *r = &reach_of_steps;
    const struct card *c = m->options.card;
    bool is_wide = op->code == OP_LINEAR && is_of_few_bits(m, op, 0);
    double narrow = is_wide ? c->wide_flops_per_s.value : c->narrow_flops_per_s.value;
    double share = op->code == OP_MOE_FFN ? r->expert_products : r->products;
    double mixer = op->code == OP_DELTA_RULE ? r->delta : r->attention;
    return (w->narrow_flops / narrow + w->wide_flops / c->wide_flops_per_s.value) / share +
           w->mixer_flops / c->wide_flops_per_s.value / mixer;
}

/* The longer of reading and computing whole, the shorter by its share. */
static void overlap(struct op_time *t) {
    double reading = t->weights + t->cache, shorter = reach_of_steps.overlap;
    if (reading >= t->products)
        t->products *= shorter;
    else
        t->weights *= shorter, t->cache *= shorter;
}

/* How many times its mean share of the experts that have a token the busiest of the ranks reads, where each has whole
 * ones: the largest of as many draws, about the square root of 2 ln n standard deviations above the mean. */
static double expert_excess(const struct step_model *m, const struct op *op, double n_tokens) {
    int n_all = m->options.n_all_experts, n_ranks = m->program->n_ranks;
    if (op->code != OP_MOE_FFN || n_all == 0 || n_ranks < 2)
        return 1;
    double n_mine = op->args.moe_ffn.n_experts;
    double p = experts_if_uniform(n_all, op->args.moe_ffn.top_k, n_tokens) / n_all, mean = n_mine * p;
    return fmin(1 + sqrt(mean * (1 - p) * 2 * log(n_ranks)) / mean, n_mine / mean);
}

/* What experts make of a row is a float32 row for each that it was sent to, written and read again by who adds them up:
 * of cut experts on each rank, of whole ones of its share. */
static double result_bytes(const struct step_model *m, const struct op *op, double n_tokens) {
    if (op->code != OP_MOE_FFN)
        return 0;
    double share = m->options.n_all_experts > 0 ? 1.0 / m->program->n_ranks : 1;
    return 2 * share * n_tokens * op->args.moe_ffn.top_k * op->in[0].width * 4;
}

static struct op_time time_of(const struct step_model *m, const struct work_shape *s, const struct op *op,
                              enum basis *basis) {
    const struct step_model_options *o = &m->options;
    const struct reach *r = &reach_of_steps;
    struct op_time t = {0};
    double rows = op_work_rows(s, op);
    if (op->code == OP_ALL_REDUCE)
        t.sum = link_sum_us(o->link, m->program->n_ranks, rows * op->in[0].width * 4, basis) * 1e-6;
    if (op->code == OP_ALL_GATHER) // of the most probable token alone
        t.sum = link_sum_us(o->link, m->program->n_ranks, rows * 8, basis) * 1e-6;
    if (op->code == OP_ALL_REDUCE || op->code == OP_ALL_GATHER)
        return t;
    struct op_work w = op_work_of(s, op);
    double rate = o->card->read_bytes_per_s.value, excess = expert_excess(m, op, rows);
    t.node = node_us(op->code) * 1e-6;
    t.weights = excess * w.weight_bytes / rate / (op->code == OP_MOE_FFN ? r->experts : r->weights) +
                result_bytes(m, op, rows) / rate;
    t.cache = w.cache_bytes / rate / (op->code == OP_DELTA_RULE ? r->state : r->cache);
    t.products = excess * product_seconds(m, op, &w);
    overlap(&t);
    return t;
}

static enum basis basis_of(const struct step_model *m) {
    const struct card *c = m->options.card;
    enum basis b = MAX(c->read_bytes_per_s.basis, c->narrow_flops_per_s.basis);
    bool is_new = m->options.cache == CACHE_INT4; // whose kernels never ran
    return m->has_few_bits || is_new ? MAX(b, EXTRAPOLATED) : b;
}

void step_model_time(const struct step_model *m, const struct work_kind *kinds, int n_kinds, struct step_time *out) {
    struct work_shape s = shape_of(m, kinds, n_kinds);
    *out = (struct step_time){.basis = basis_of(m)};
    for (int i = 0; i < m->n_classes; i++) {
        const struct work_class *c = &m->classes[i];
        struct op_time t = time_of(m, &s, c->op, &out->basis);
        double one = t.node + t.weights + t.cache + t.products + t.sum;
        out->nodes += c->n * t.node;
        out->weights += c->n * t.weights;
        out->cache += c->n * t.cache;
        out->products += c->n * t.products;
        out->sums += c->n * t.sum;
        out->layers += c->n_in_layers * one;
        out->ends += (c->n - c->n_in_layers) * one;
        out->ffn += c->is_ffn ? c->n * one : 0;
    }
    out->total = out->layers + out->ends;
}
