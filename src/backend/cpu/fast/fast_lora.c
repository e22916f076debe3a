/* fast_lora.c - LORA as products: rows that follow each other and have the same adapter are one x.
 *
 *     h [rows][modules][rank] = scale A x | all workers | y = base + B h
 *
 * Each worker has the same share of h's columns, and then of y's, of every run of rows. Bytes: A and B of the adapters
 * that are there, once a run; so a batch of sequences that have them by turns reads them for each. */
#include "backend/cpu/fast/fast.h"

#include <string.h>

static int64_t shared_floats(const struct op *op, struct bucket bucket) {
    const struct lora_args *a = &op->args.lora;
    return MAX(bucket.max_tokens, bucket.max_rows) * (int64_t)a->n_modules * a->rank;
}

static struct need lora_need(const struct loaded *l, const struct op *op, struct bucket bucket) {
    return (struct need){.worker = product_scratch(l->products, MAX(op->in[1].width, op->args.lora.rank)),
                         .shared = shared_floats(op, bucket)};
}

/* Rows [begin, end) from `begin` on that have one adapter, from 0; -1: none. */
struct row_run {
    int64_t begin, end;
    int adapter;
};

static struct row_run run_of(const struct call *c, int64_t begin) {
    struct row_run r = {begin, begin + 1, call_adapter(c, begin)};
    while (r.end < c->out[0].rows && call_adapter(c, r.end) == r.adapter)
        r.end++;
    return r;
}

static struct mat rows_of(struct mat m, struct row_run r) {
    return (struct mat){mat_row(m, r.begin), m.stride, r.end - r.begin, m.width};
}

/* Columns [begin, end) of h. */
static void shrink(const struct call *c, struct row_run r, int64_t begin, int64_t end) {
    const struct lora_args *a = &c->op->args.lora;
    int64_t width = (int64_t)a->n_modules * a->rank, first = r.adapter * width;
    struct mat h = {c->shared + r.begin * width + begin, width, r.end - r.begin, end - begin};
    struct product p = {
        .kernels = c->loaded->products, .weight = c->weight[0], .x = rows_of(c->in[1], r), .scratch = c->scratch};
    product_rows(&p, first + begin, first + end, h, NULL);
    const float *scale = call_floats(c, 2) + (int64_t)r.adapter * a->n_modules;
    for (int64_t t = 0; t < h.rows; t++)
        for (int64_t k = begin; k < end; k++)
            mat_row(h, t)[k - begin] *= scale[k / a->rank];
}

/* Columns [begin, end) of y, all of one module: B h. */
static void expand(const struct call *c, struct row_run r, int module, int64_t begin, int64_t end) {
    const struct lora_args *a = &c->op->args.lora;
    int64_t width = (int64_t)a->n_modules * a->rank, first = r.adapter * (int64_t)c->out[0].width;
    struct mat y = rows_of(c->out[0], r), base = rows_of(c->in[0], r);
    struct mat h = {c->shared + r.begin * width + (int64_t)module * a->rank, width, y.rows, a->rank};
    struct product p = {.kernels = c->loaded->products, .weight = c->weight[1], .x = h, .scratch = c->scratch};
    product_rows(&p, first + begin, first + end, (struct mat){y.at + begin, y.stride, y.rows, end - begin}, NULL);
    for (int64_t t = 0; t < y.rows; t++)
        p.kernels->add(mat_row(y, t) + begin, mat_row(base, t) + begin, 1, end - begin, mat_row(y, t) + begin);
}

static void copy_base(const struct call *c, struct row_run r, int64_t begin, int64_t end) {
    for (int64_t t = r.begin; t < r.end; t++)
        memcpy(mat_row(c->out[0], t) + begin, mat_row(c->in[0], t) + begin, (size_t)(end - begin) * sizeof(float));
}

static void expand_all(const struct call *c, struct row_run r, int64_t begin, int64_t end) {
    const struct lora_args *a = &c->op->args.lora;
    int64_t at = 0;
    for (int i = 0; i < a->n_runs; at += a->runs[i++].width) {
        int64_t from = MAX(at, begin), to = MIN(at + a->runs[i].width, end);
        bool changes = r.adapter >= 0 && call_floats(c, 2)[r.adapter * a->n_modules + a->runs[i].module] != 0;
        if (from >= to)
            continue;
        if (changes)
            expand(c, r, a->runs[i].module, from, to);
        else
            copy_base(c, r, from, to);
    }
}

static void fast_lora(const struct call *c) {
    const struct lora_args *a = &c->op->args.lora;
    int64_t begin, end;
    call_share(c, (int64_t)a->n_modules * a->rank, 8, &begin, &end);
    for (int64_t t = 0; t < c->out[0].rows;) {
        struct row_run r = run_of(c, t);
        if (r.adapter >= 0 && begin < end)
            shrink(c, r, begin, end);
        t = r.end;
    }
    call_barrier(c); // all columns of h, which the second product sums over
    call_share(c, c->out[0].width, 16, &begin, &end);
    for (int64_t t = 0; t < c->out[0].rows && begin < end;) {
        struct row_run r = run_of(c, t);
        expand_all(c, r, begin, end);
        t = r.end;
    }
}

const struct fast_op fast_op_lora = {fast_lora, lora_need};
