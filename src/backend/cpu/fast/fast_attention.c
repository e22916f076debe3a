/* fast_attention.c - ATTENTION in tiles of queries, as FlashAttention has it, over the paged cache.
 *
 * A work item is a KV head and a run of a sequence's queries. Its rows are (token, head of the group) pairs,
 * up to TILE_QUERIES of them, so that keys and values are read once for all heads that share them and, in a
 * prefill, for several tokens. Keys come in groups of KEYS: scores S = Q K^T (the cache holds K turned, so
 * this is a plain product), softmax with running maximum and sum, O = O + P V.
 *
 * Bytes: a decode step reads each cached key and value of its sequences once, 4 * (k_dim + v_dim) a head and
 * position; flops are 2 * (k_dim + v_dim) a query head, position and query, twice what the mask lets through
 * in the last group at most. Only positions up to a row's own are touched: what lies behind them in a block
 * was never written. */
#include "backend/cpu/fast/fast.h"

#include <math.h>
#include <string.h>

enum { TILE_QUERIES = 48, KEYS = 128 };

/* A worker's memory for one item. */
struct workspace {
    float *q;      // [rows][head_dim], scaled
    float *scores; // [rows][KEYS]
    float *sum_v;  // [rows][width]
    float *max, *sum;
    float *panel;      // [v_head_dim][PANEL_ROWS], where values are keys too
    float *int4, *q_v; // of a cache of int4: fast_kv_int4.c
};

/* Tokens [first, first + n) of a sequence, as rows of the step, and the heads that go with them. */
struct item {
    int seq, kv_head, first_head, n_heads;
    int64_t first, n;
};

/* With paired values neighbouring heads gather from different KV heads, so each is an item of its own. */
static int heads_per_item(const struct attention_args *a) { return a->paired_values ? 1 : a->n_heads / a->n_kv_heads; }
static int64_t tokens_per_item(const struct attention_args *a) { return MAX(1, TILE_QUERIES / heads_per_item(a)); }
static int64_t panel_floats(const struct attention_args *a) {
    return a->rotary_dim > 0 ? (int64_t)a->v_head_dim * PANEL_ROWS : 0;
}
static int64_t max_rows(const struct attention_args *a) { return tokens_per_item(a) * heads_per_item(a); }
static int64_t out_width(const struct attention_args *a) { return (int64_t)a->v_head_dim * (a->paired_values ? 2 : 1); }

static struct need attention_need(const struct loaded *l, const struct op *op, struct bucket bucket) {
    const struct attention_args *a = &op->args.attention;
    int64_t int4 = l->has_int4_cache ? int4_attention_scratch(a, max_rows(a)) : 0;
    (void)bucket;
    return (struct need){.worker = max_rows(a) * (a->head_dim + KEYS + out_width(a) + 2) + panel_floats(a) + int4};
}

static struct workspace workspace_of(const struct call *c) {
    const struct attention_args *a = &c->op->args.attention;
    int64_t rows = max_rows(a);
    struct workspace w = {.q = c->scratch};
    w.scores = w.q + rows * a->head_dim;
    w.sum_v = w.scores + rows * KEYS;
    w.max = w.sum_v + rows * out_width(a);
    w.sum = w.max + rows;
    w.panel = w.sum + rows;
    w.int4 = w.panel + panel_floats(a);
    w.q_v = w.int4 + (int64_t)MAX(a->head_dim, a->v_head_dim) * PANEL_ROWS;
    return w;
}

static void begin_item(const struct call *c, const struct item *it, const struct workspace *w) {
    const struct attention_args *a = &c->op->args.attention;
    const float *sinks = call_floats(c, 0);
    for (int64_t r = 0; r < it->n * it->n_heads; r++) {
        int64_t t = it->first + r / it->n_heads, head = it->first_head + r % it->n_heads;
        memcpy(w->q + r * a->head_dim, mat_row(c->in[0], t) + head * a->head_dim, (size_t)a->head_dim * sizeof(float));
        w->max[r] = sinks ? sinks[head] : -INFINITY;
        w->sum[r] = sinks ? 1.0f : 0.0f;
    }
    c->loaded->device->kernels->scale(w->q, a->scale, it->n * it->n_heads * a->head_dim);
    if (c->loaded->has_int4_cache)
        int4_queries(a, it->n * it->n_heads, w->q, w->q_v);
    memset(w->sum_v, 0, (size_t)(it->n * it->n_heads * out_width(a)) * sizeof(float));
}

/* The end of the run of positions from j, below `end`, that lie in one block. */
static int64_t run_end(const struct call *c, int64_t j, int64_t end) {
    int64_t size = c->loaded->block_size;
    return MIN((j / size + 1) * size, end);
}

/* Positions [from, to) of a block. */
static struct int4_run int4_run(const struct call *c, const struct item *it, const struct workspace *w, int head,
                                int64_t from, int64_t to) {
    const struct attention_args *a = &c->op->args.attention;
    return (struct int4_run){.kernels = c->loaded->device->kernels,
                             .args = a,
                             .block = kv_int4_block(c, a->cache, it->seq, from, head),
                             .n = to - from,
                             .rows = it->n * it->n_heads,
                             .panel = w->int4};
}

/* Scores of n keys from slot on of which the block holds the turned channels alone: a product with these, and one with
 * the values of the other channels, turned into panels as keys are. Of each half of the channels the turned ones come
 * first. */
static void score_shared_kv(const struct call *c, int64_t rows, const struct workspace *w, struct kv_block block,
                            int64_t slot, int64_t n, float *scores) {
    const struct attention_args *a = &c->op->args.attention;
    const struct kernels *k = c->loaded->device->kernels;
    int64_t size = c->loaded->block_size, dim = a->head_dim, half = dim / 2, turned = a->rotary_dim / 2;
    for (int64_t i = 0; i < 2; i++)
        k->multiply(rows, n, turned, w->q + i * half, dim, block.k + i * turned * size + slot, size, scores, KEYS,
                    i > 0);
    for (int64_t j = 0; j < n; j += PANEL_ROWS) {
        int64_t n_panel = MIN(n - j, PANEL_ROWS);
        k->pack(block.v + (slot + j) * dim, dim, n_panel, dim, w->panel);
        for (int64_t i = turned; i < dim; i += half)
            k->multiply(rows, n_panel, half - turned, w->q + i, dim, w->panel + i * PANEL_ROWS, PANEL_ROWS, scores + j,
                        KEYS, true);
    }
}

static void score_keys(const struct call *c, const struct item *it, const struct workspace *w, int64_t from,
                       int64_t to) {
    const struct attention_args *a = &c->op->args.attention;
    const struct kernels *k = c->loaded->device->kernels;
    int64_t rows = it->n * it->n_heads, size = c->loaded->block_size;
    for (int64_t j = from, next; j < to; j = next) {
        next = run_end(c, j, to);
        if (c->loaded->has_int4_cache) {
            struct int4_run run = int4_run(c, it, w, it->kv_head, j, next);
            int4_score(&run, w->q, w->q_v, w->panel, w->scores + (j - from), KEYS);
            continue;
        }
        struct kv_block block = kv_block(c, a->cache, it->seq, j, it->kv_head);
        int64_t slot = j & (size - 1);
        if (a->rotary_dim > 0)
            score_shared_kv(c, rows, w, block, slot, next - j, w->scores + (j - from));
        else
            k->multiply(rows, next - j, a->head_dim, w->q, a->head_dim, block.k + slot, size, w->scores + (j - from),
                        KEYS, false);
    }
    for (int64_t r = 0; a->softcap > 0 && r < rows; r++)
        k->softcap(w->scores + r * KEYS, a->softcap, to - from);
}

/* Scores become probabilities relative to the row's maximum so far; hidden keys become 0. */
static void absorb_scores(const struct call *c, const struct item *it, const struct workspace *w, int64_t from,
                          int64_t to) {
    const struct attention_args *a = &c->op->args.attention;
    const struct kernels *k = c->loaded->device->kernels;
    for (int64_t r = 0; r < it->n * it->n_heads; r++) {
        int64_t position = c->plan->position[it->first + r / it->n_heads];
        int64_t first = MAX(first_visible(position, a->window, a->chunk), from);
        int64_t end = MIN(visible_end(c, it->first + r / it->n_heads), to);
        float *s = w->scores + r * KEYS;
        if (first >= end) {
            memset(s, 0, (size_t)(to - from) * sizeof *s);
            continue;
        }
        memset(s, 0, (size_t)(first - from) * sizeof *s);
        memset(s + (end - from), 0, (size_t)(to - end) * sizeof *s);
        float max = fmaxf(w->max[r], k->largest(s + (first - from), end - first));
        if (max > w->max[r]) {
            float shrink = expf(w->max[r] - max);
            k->scale(w->sum_v + r * out_width(a), shrink, out_width(a));
            w->sum[r] *= shrink;
            w->max[r] = max;
        }
        w->sum[r] += k->exp_sum(s + (first - from), max, end - first);
    }
}

static void add_values(const struct call *c, const struct item *it, const struct workspace *w, int64_t from,
                       int64_t to) {
    const struct attention_args *a = &c->op->args.attention;
    int group = a->n_heads / a->n_kv_heads, half = a->n_heads / 2, n_values = a->paired_values ? 2 : 1;
    int64_t size = c->loaded->block_size;
    for (int i = 0; i < n_values; i++) {
        int head = a->paired_values ? (it->first_head % half + i * half) / group : it->kv_head;
        for (int64_t j = from, next; j < to; j = next) {
            next = run_end(c, j, to);
            if (c->loaded->has_int4_cache) {
                struct int4_run run = int4_run(c, it, w, head, j, next);
                int4_add(&run, w->scores + (j - from), KEYS, w->sum_v + i * a->v_head_dim, out_width(a));
                continue;
            }
            const float *v = kv_block(c, a->cache, it->seq, j, head).v + (j & (size - 1)) * a->v_head_dim;
            c->loaded->device->kernels->multiply(it->n * it->n_heads, a->v_head_dim, next - j, w->scores + (j - from),
                                                 KEYS, v, a->v_head_dim, w->sum_v + i * a->v_head_dim, out_width(a),
                                                 true);
        }
    }
}

static void end_item(const struct call *c, const struct item *it, const struct workspace *w) {
    const struct attention_args *a = &c->op->args.attention;
    int64_t width = out_width(a);
    for (int64_t r = 0; r < it->n * it->n_heads; r++) {
        float *out = mat_row(c->out[0], it->first + r / it->n_heads) + (it->first_head + r % it->n_heads) * width;
        memcpy(out, w->sum_v + r * width, (size_t)width * sizeof *out);
        c->loaded->device->kernels->scale(out, 1.0f / w->sum[r], width);
        for (int64_t i = 0; c->loaded->has_int4_cache && i < width; i += a->v_head_dim)
            kv_int4_rotate_back(out + i, a->v_head_dim);
    }
}

/* Groups lie at multiples of KEYS, wherever an item's first query begins to see: a query meets its keys in the same
 * groups, and so in the same order of sums, in whatever item it is. */
static int64_t group_end(int64_t from, int64_t end) { return MIN((from / KEYS + 1) * KEYS, end); }

static void attend(const struct call *c, const struct item *it) {
    const struct attention_args *a = &c->op->args.attention;
    struct workspace w = workspace_of(c);
    int64_t first = c->plan->position[it->first], end = visible_end(c, it->first + it->n - 1);
    int64_t start = first_visible(first, a->window, a->chunk);
    begin_item(c, it, &w);
    for (int64_t from = start, to; from < end; from = to) {
        to = group_end(from, end);
        score_keys(c, it, &w, from, to);
        absorb_scores(c, it, &w, from, to);
        add_values(c, it, &w, from, to);
    }
    end_item(c, it, &w);
}

/* Items are dealt out in turn: those of one sequence grow with their position, so neighbours weigh alike. */
static void fast_attention(const struct call *c) {
    const struct attention_args *a = &c->op->args.attention;
    int heads = heads_per_item(a), group = a->n_heads / a->n_kv_heads;
    int64_t number = 0;
    for (int seq = 0; seq < c->plan->n_seqs; seq++) {
        int64_t end = c->plan->query_start[seq + 1];
        for (int64_t t = c->plan->query_start[seq]; t < end; t += tokens_per_item(a))
            for (int head = 0; head < a->n_heads; head += heads)
                if (number++ % c->n_workers == c->worker)
                    attend(c, &(struct item){seq, head / group, head, heads, t, MIN(tokens_per_item(a), end - t)});
    }
}

const struct fast_op fast_op_attention = {fast_attention, attention_need};
