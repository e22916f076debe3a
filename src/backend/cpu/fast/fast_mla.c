/* fast_mla.c - MLA_PREP and MLA_ATTENTION in tiles; the algebra is in cpu_mla.c, the softmax in groups of keys
 * in fast_attention.c.
 *
 * All heads read one latent row, so a tile's rows are (head, token) pairs of many heads: a decode step of 16
 * heads is a 16-row product. Latents are cached a row a token, as P C wants them; for Q C^T up to 32 rows
 * are turned into a panel first, which costs one load and store for 2 * rows multiply-adds. */
#include "backend/cpu/fast/fast.h"

#include <math.h>
#include <string.h>

enum { TILE_QUERIES = 48, KEYS = PANEL_ROWS };

static int64_t latent_width(const struct mla_args *a) { return (int64_t)a->rank + a->rope_dim; }

/* ---- MLA_PREP ---- */

static struct need prep_need(const struct loaded *l, const struct op *op, struct bucket bucket) {
    (void)l, (void)bucket;
    return (struct need){.worker = (int64_t)op->args.mla.nope_dim * op->args.mla.rank};
}

/* Rows of all tokens for one head: [T, nope] x Wuk_h [nope, rank]; scratch holds Wuk_h as floats. */
static void absorb_head(const struct call *c, int head) {
    const struct mla_args *a = &c->op->args.mla;
    const struct kernels *k = c->loaded->device->kernels;
    struct mat q = c->in[0], out = c->out[0];
    for (int64_t i = 0; i < a->nope_dim; i++) {
        const struct weight_part *part;
        int64_t row;
        placed_run(c->weight[1], (int64_t)head * a->nope_dim + i, &part, &row);
        k->convert(part, row, 0, a->rank, c->scratch + i * a->rank);
    }
    const float *q_head = q.at + (int64_t)head * (a->nope_dim + a->rope_dim);
    float *out_head = out.at + head * latent_width(a);
    k->multiply(q.rows, a->rank, a->nope_dim, q_head, q.stride, c->scratch, a->rank, out_head, out.stride, false);
    for (int64_t t = 0; t < q.rows; t++) {
        float *rope = out_head + t * out.stride + a->rank;
        memcpy(rope, q_head + t * q.stride + a->nope_dim, (size_t)a->rope_dim * sizeof *rope);
        if (a->rope >= 0)
            rotate_head(c->program->ropes[a->rope], call_cos_sin(c, a->rope, t), rope);
    }
}

static void fast_mla_prep(const struct call *c) {
    int64_t begin, end;
    call_share(c, c->in[0].rows, 1, &begin, &end);
    for (int64_t t = begin; t < end; t++)
        store_latent(c, t);
    for (int head = c->worker; head < c->op->args.mla.n_heads; head += c->n_workers)
        absorb_head(c, head);
}

/* ---- MLA_ATTENTION ---- */

/* Row head * n_tokens + token of a tile: a head's rows are neighbours, as the product with Wuv_h wants them. */
struct tile {
    int seq, first_head, n_heads;
    int64_t first, n_tokens;
    float *q, *scores, *panel, *latent, *max,
        *sum; // [rows][width], [rows][KEYS], [width][KEYS], [rows][rank], [rows], [rows]
    float *rest;
};

static struct need attention_need(const struct loaded *l, const struct op *op, struct bucket bucket) {
    const struct mla_args *a = &op->args.mla;
    (void)bucket;
    return (struct need){.worker = TILE_QUERIES * (latent_width(a) + KEYS + a->rank + 2) + latent_width(a) * KEYS +
                                   product_scratch(l->products, a->rank)};
}

static void lay_out(const struct call *c, struct tile *t) {
    const struct mla_args *a = &c->op->args.mla;
    t->q = c->scratch;
    t->scores = t->q + TILE_QUERIES * latent_width(a);
    t->latent = t->scores + TILE_QUERIES * KEYS;
    t->max = t->latent + (int64_t)TILE_QUERIES * a->rank;
    t->sum = t->max + TILE_QUERIES;
    t->panel = t->sum + TILE_QUERIES;
    t->rest = t->panel + latent_width(a) * KEYS;
}

static void begin_tile(const struct call *c, const struct tile *t) {
    const struct mla_args *a = &c->op->args.mla;
    int64_t width = latent_width(a), rows = t->n_heads * t->n_tokens;
    for (int64_t r = 0; r < rows; r++) {
        int64_t head = t->first_head + r / t->n_tokens, token = t->first + r % t->n_tokens;
        memcpy(t->q + r * width, mat_row(c->in[0], token) + head * width, (size_t)width * sizeof(float));
        t->max[r] = -INFINITY;
        t->sum[r] = 0;
    }
    c->loaded->device->kernels->scale(t->q, a->scale, rows * width);
    memset(t->latent, 0, (size_t)(rows * a->rank) * sizeof(float));
}

/* Positions [from, to) of one block. */
static void attend_run(const struct call *c, const struct tile *t, int64_t from, int64_t to) {
    const struct mla_args *a = &c->op->args.mla;
    const struct kernels *k = c->loaded->device->kernels;
    int64_t width = latent_width(a), rows = t->n_heads * t->n_tokens;
    const float *latents = latent_row(c, a->cache, t->seq, from);
    k->pack(latents, width, to - from, width, t->panel);
    k->multiply(rows, to - from, width, t->q, width, t->panel, KEYS, t->scores, KEYS, false);
    for (int64_t r = 0; r < rows; r++) {
        float *s = t->scores + r * KEYS;
        int64_t n = MIN(c->plan->position[t->first + r % t->n_tokens] + 1, to) - from;
        n = MAX(n, 0);
        memset(s + n, 0, (size_t)(to - from - n) * sizeof *s);
        float max = fmaxf(t->max[r], k->largest(s, n));
        if (max > t->max[r]) {
            float shrink = expf(t->max[r] - max);
            k->scale(t->latent + r * a->rank, shrink, a->rank);
            t->sum[r] *= shrink;
            t->max[r] = max;
        }
        t->sum[r] += k->exp_sum(s, max, n);
    }
    k->multiply(rows, a->rank, to - from, t->scores, KEYS, latents, width, t->latent, a->rank, true);
}

static void end_tile(const struct call *c, const struct tile *t) {
    const struct mla_args *a = &c->op->args.mla;
    for (int64_t r = 0; r < t->n_heads * t->n_tokens; r++)
        c->loaded->device->kernels->scale(t->latent + r * a->rank, 1.0f / t->sum[r], a->rank);
    for (int h = 0; h < t->n_heads; h++) {
        int64_t row = (int64_t)(t->first_head + h) * a->v_dim;
        struct mat x = {t->latent + h * t->n_tokens * a->rank, a->rank, t->n_tokens, a->rank};
        struct mat y = {mat_row(c->out[0], t->first) + row, c->out[0].stride, t->n_tokens, a->v_dim};
        struct product product = {.kernels = c->loaded->products, .weight = c->weight[0], .x = x, .scratch = t->rest};
        product_rows(&product, row, row + a->v_dim, y, NULL);
    }
}

static void attend_tile(const struct call *c, struct tile *t) {
    int64_t end = c->plan->position[t->first + t->n_tokens - 1] + 1, size = c->loaded->block_size;
    lay_out(c, t);
    begin_tile(c, t);
    for (int64_t from = 0, to; from < end; from = to) {
        to = MIN(MIN((from / size + 1) * size, from + KEYS), end);
        attend_run(c, t, from, to);
    }
    end_tile(c, t);
}

/* Heads of a tile: as many as fit, but few enough that a step of few tokens occupies every worker. */
static int heads_per_tile(const struct call *c) {
    int64_t n_heads = c->op->args.mla.n_heads, rows = n_heads * c->in[0].rows;
    return (int)MAX(1, MIN(MIN(n_heads, TILE_QUERIES), rows / c->n_workers));
}

static void fast_mla_attention(const struct call *c) {
    int n_heads = c->op->args.mla.n_heads, heads = heads_per_tile(c);
    int64_t tokens = TILE_QUERIES / heads, number = 0;
    for (int seq = 0; seq < c->plan->n_seqs; seq++) {
        int64_t end = c->plan->query_start[seq + 1];
        for (int64_t t = c->plan->query_start[seq]; t < end; t += tokens)
            for (int head = 0; head < n_heads; head += heads)
                if (number++ % c->n_workers == c->worker)
                    attend_tile(c, &(struct tile){.seq = seq,
                                                  .first_head = head,
                                                  .n_heads = MIN(heads, n_heads - head),
                                                  .first = t,
                                                  .n_tokens = MIN(tokens, end - t)});
    }
}

const struct fast_op fast_op_mla_prep = {fast_mla_prep, prep_need},
                     fast_op_mla_attention = {fast_mla_attention, attention_need};
