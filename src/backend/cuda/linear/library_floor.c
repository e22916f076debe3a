/* library_floor.c - what a step's products take by the library alone: the bound of an engine that
 * multiplies by cuBLASLt and does nothing else. Each shape's product is timed with up to 32 algorithms that the library
 * proposes, as many as gemm_plan.c times, as nodes of a graph over the weights of up to 16 layers, so that a large
 * model's come from memory; the fastest counts, as often as the program has the shape. No scales a row, no bias, no
 * activation; what the library cannot multiply by, four bits, counts for nothing. Overwrites the values of a step;
 * nothing may be in flight. */
#include "backend/cuda/device/device.h"
#include "backend/cuda/device/probes.h"
#include "backend/cuda/linear/gemm_internal.h"
#include "backend/cuda/step/padded.h"
#include "backend/cuda/value.h"

#include <stdlib.h>

enum { ALGORITHMS = MOST_PROPOSALS / 2, LEAST_NODES = 4, ROUNDS = 6 };

struct rung {
    const struct gemm *gemm;
    int rows;
    struct same_shape same_shape;
    double us;
};

static bool same_product(const struct gemm *a, const struct gemm *b) {
    return a->weight.out == b->weight.out && a->weight.in == b->weight.in && a->weight.element == b->weight.element &&
           a->y.element == b->y.element;
}

static enum status time_rung(struct rung *r, struct error *err) {
    const struct gemm *g = r->gemm;
    struct plan_of_rows *p = &g->plans[padded_index(r->rows)];
    struct proposals proposals;
    double us[MOST_PROPOSALS];
    TRY(gemm_proposals(g, p, ALGORITHMS, &proposals, err));
    gemm_add_proposals(g, p, ALGORITHMS, &proposals);
    cudaError_t code = gemm_race(g, p, &proposals, &r->same_shape, MAX(r->same_shape.n, LEAST_NODES), ROUNDS, us);
    DEVICE_TRY(g->loaded->device, err, code, "%s: timing the library's products of %d rows", g->op->weights[0]->name,
               r->rows);
    for (int i = 0; i < proposals.n; i++)
        if (us[i] > 0 && (r->us == 0 || us[i] < r->us))
            r->us = us[i];
    DEVICE_TRY(g->loaded->device, err, cudaStreamSynchronize(g->loaded->device->stream),
               "%s: timing the library's products of %d rows", g->op->weights[0]->name, r->rows);
    cudaGetLastError(); // of what it could not do
    return r->us > 0 ? OK : gemm_refused(g->op, p->rows, CUBLAS_STATUS_NOT_SUPPORTED, err);
}

static struct rung *rung_of(struct rung *rungs, int *n, const struct gemm *g, int rows) {
    for (int i = 0; i < *n; i++)
        if (rungs[i].rows == rows && same_product(rungs[i].gemm, g))
            return &rungs[i];
    rungs[*n] = (struct rung){.gemm = g, .rows = rows};
    return &rungs[(*n)++];
}

enum status cuda_library_floor(struct executable *exe, int n_tokens, int n_out, double *seconds, struct error *err) {
    TRY(device_enter(exe->loaded->device, err));
    const struct program *p = exe->program;
    struct rung *rungs = xcalloc((size_t)p->n_ops + 1, sizeof *rungs);
    int *count = xcalloc((size_t)p->n_ops + 1, sizeof *count), n = 0;
    enum status st = OK;
    BUG_IF(n_tokens > exe->bucket.max_tokens || n_out > MAX(exe->bucket.max_rows, 1));
    for (int i = 0; i < p->n_ops; i++) {
        int rows = p->ops[i].code == OP_LINEAR && p->values[p->ops[i].in[0].id].rows == ROWS_TOKENS ? n_tokens : n_out;
        if (p->ops[i].code != OP_LINEAR || rows == 0 || exe->ops[i].gemm->weight.element == ELEMENT_QUADS)
            continue;
        struct rung *r = rung_of(rungs, &n, exe->ops[i].gemm, rows);
        count[r - rungs]++;
        if (r->same_shape.n < MOST_WEIGHTS)
            r->same_shape.at[r->same_shape.n++] = exe->ops[i].gemm->weight.at;
    }
    *seconds = 0;
    for (int i = 0; i < n && st == OK; i++) {
        st = time_rung(&rungs[i], err);
        *seconds += rungs[i].us * 1e-6 * count[i];
    }
    free(rungs);
    free(count);
    return st;
}
