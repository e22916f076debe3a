/* gemm_plan.c - which of the library's algorithms computes a LINEAR for each number of rows.
 *
 * The library's first proposal is up to a quarter slower than its best on some shapes of this card. So the best is
 * found by timing: for some numbers of rows and the most that a step can have, each of up to 32 proposals, several
 * times in a graph, with the weights of as many layers as have the shape, so that none is in the cache still
 * (gemm_time.c). The numbers between take the algorithm of the next timed one above where the library says that it can
 * compute them, else its first proposal. What was found is kept (plan_cache.h) and asked for before anything else. A
 * product whose weight is small is not worth timing. Whether the library computes it at all, paths.c says. */
#include "backend/cuda/device/device.h"
#include "backend/cuda/linear/gemm.h"
#include "backend/cuda/linear/gemm_internal.h"
#include "backend/cuda/value.h"
#include "backend/cuda/weights/place.h"

/* Few rows have kernels of ours, many take long to time: a quarter of the proposals and half of the rounds will do. */
enum {
    MANY = 16,
    FEW = 8,
    MANY_ROUNDS = 6,
    FEW_ROUNDS = 3,
    SMALL_ROWS = 64,
    GEMM_PREFILL_ROWS = 1024,
    WORTH_TIMING = 2 << 20
};

_Static_assert(sizeof(cublasLtMatmulAlgo_t) == PLAN_WORDS * sizeof(uint64_t), "an algorithm is kept whole");

static struct plan_key key_of(const struct gemm *g, int rows) {
    struct plan_key key = gemm_shape(g);
    key.rows = rows;
    key.align_x = MIN(gemm_alignment(g->x.at),
                      gemm_alignment((void *)(uintptr_t)(g->x.stride * element_bytes(g->x.element)))); // of all rows
    key.align_y = gemm_alignment(g->y.at);
    return key;
}

/* Whether the library can compute the product for these rows with an algorithm that was found elsewhere. */
static bool can_compute(const struct gemm *g, const struct plan_of_rows *p, struct algorithm *a) {
    cublasLtMatmulHeuristicResult_t is;
    if (cublasLtMatmulAlgoCheck(g->loaded->device->blas, g->description, g->w, p->x, p->y, p->y, &a->words, &is) !=
            CUBLAS_STATUS_SUCCESS ||
        is.state != CUBLAS_STATUS_SUCCESS || is.workspaceSize > WORKSPACE_BYTES)
        return false;
    a->workspace_bytes = is.workspaceSize;
    return true;
}

// ---- timing -----------------------------------------------------------------------------------------------------

/* The weights of the layers that have this shape. */
static struct same_shape same_shape_of(const struct gemm *g) {
    struct same_shape l = {.n = 0};
    const struct loaded *loaded = g->loaded;
    for (int i = 0; i < loaded->n_slots && l.n < MOST_WEIGHTS; i++) {
        const struct dweight *m = &loaded->placed[i].matrix;
        if (m->at && m->out == g->weight.out && m->in == g->weight.in && m->element == g->weight.element)
            l.at[l.n++] = m->at;
    }
    return l;
}

/* A step is not running yet, so its values can be overwritten: zeros would be multiplied with less power, and so
 * faster. */
static void fill_input(const struct gemm *g, int rows) {
    struct ddummy random = {.key = 1, .deviation = 1};
    int64_t n = (int64_t)(rows - 1) * g->x.stride + g->x.width;
    bool e4m3 = g->x.element == ELEMENT_E4M3; // two to a number of 16 bits
    launch_fill_dummy(g->loaded->device->stream, &random, 0, e4m3 ? n / 2 : n, g->x.at,
                      e4m3 ? ELEMENT_F16 : g->x.element);
}

/* So often that a graph takes some 200 us: the microseconds that the bytes or the arithmetic need at least. */
static int repetitions(const struct gemm *g, int rows) {
    double elements = (double)g->weight.out * (double)g->weight.in;
    double least_us = MAX(elements * (double)element_bytes(g->weight.element) / 4.6e6, 2 * elements * rows / 1e9);
    return (int)MIN(MAX(200 / least_us, 2), MOST_WEIGHTS);
}

static void keep(const struct gemm *g, struct plan_of_rows *p, const struct algorithm *a, double us) {
    struct plan_key key = key_of(g, p->rows);
    struct plan_choice choice = {
        .path = PLAN_OF_LIBRARY, .us = us, .is_checked = true, .workspace_bytes = (int64_t)a->workspace_bytes};
    memcpy(choice.algorithm, &a->words, sizeof a->words);
    p->algorithm = *a;
    plan_cache_add(g->loaded->device->plans, &key, &choice);
}

static enum status choose_by_time(const struct gemm *g, struct plan_of_rows *p, struct error *err) {
    struct proposals proposals;
    struct same_shape same_shape = same_shape_of(g);
    double us[MOST_PROPOSALS];
    int best = -1;
    bool few = p->rows <= SMALL_ROWS || p->rows > GEMM_PREFILL_ROWS;
    TRY(gemm_proposals(g, p, few ? FEW : MANY, &proposals, err));
    if (!few)
        gemm_add_proposals(g, p, MANY, &proposals);
    fill_input(g, p->rows);
    DEVICE_TRY(g->loaded->device, err, cudaGetLastError(), "%s: filling an input of %d rows", g->op->weights[0]->name,
               p->rows);
    cudaError_t code =
        gemm_race(g, p, &proposals, &same_shape, repetitions(g, p->rows), few ? FEW_ROUNDS : MANY_ROUNDS, us);
    DEVICE_TRY(g->loaded->device, err, code, "%s: timing products of %d rows", g->op->weights[0]->name, p->rows);
    for (int i = 0; i < proposals.n; i++)
        if (us[i] >= 0 && (best < 0 || us[i] < us[best]))
            best = i;
    DEVICE_TRY(g->loaded->device, err, cudaStreamSynchronize(g->loaded->device->stream),
               "%s: timing products of %d rows", g->op->weights[0]->name, p->rows);
    if (best < 0)
        return gemm_refused(g->op, p->rows, CUBLAS_STATUS_EXECUTION_FAILED, err);
    keep(g, p, &proposals.at[best], MAX(us[best], 0.01));
    return OK;
}

// ---- choosing ---------------------------------------------------------------------------------------------------

bool gemm_is_worth_timing(const struct gemm *g) {
    return g->weight.out * g->weight.in * element_bytes(g->weight.element) >= WORTH_TIMING;
}

/* From what was found before; false if it was not, or the library does not know it. */
static bool recall(const struct gemm *g, struct plan_of_rows *p) {
    struct plan_key key = key_of(g, p->rows);
    struct plan_choice *found = plan_cache_find(g->loaded->device->plans, &key);
    if (!found || found->path != PLAN_OF_LIBRARY)
        return false;
    memcpy(&p->algorithm.words, found->algorithm, sizeof p->algorithm.words);
    p->algorithm.workspace_bytes = (size_t)found->workspace_bytes;
    if (!found->is_checked && can_compute(g, p, &p->algorithm)) {
        found->is_checked = true;
        found->workspace_bytes = (int64_t)p->algorithm.workspace_bytes;
    }
    return found->is_checked;
}

static enum status choose_like(const struct gemm *g, struct plan_of_rows *p, const struct plan_of_rows *above,
                               struct error *err) {
    struct proposals first;
    struct algorithm same = above ? above->algorithm : (struct algorithm){0};
    if (above && can_compute(g, p, &same)) {
        keep(g, p, &same, 0);
        return OK;
    }
    TRY(gemm_proposals(g, p, 1, &first, err));
    keep(g, p, &first.at[0], 0);
    return OK;
}

/* Powers of two, and between them where the library computes all products of steps that are graphs. */
static bool is_timed_for(int rows) {
    bool between = rows % 3 == 0 && (rows / 3 & (rows / 3 - 1)) == 0; // 96, 192, 384
    return (rows & (rows - 1)) == 0 || (between && rows > 64 && rows <= 512);
}

enum status gemm_plan(struct gemm *g, struct error *err) {
    const struct plan_of_rows *timed = NULL;
    for (int i = g->n_plans - 1; i >= 0; i--) {
        struct plan_of_rows *p = &g->plans[i];
        bool is_timed = gemm_is_worth_timing(g) && (i == g->n_plans - 1 || is_timed_for(p->rows));
        if (!recall(g, p))
            TRY(is_timed ? choose_by_time(g, p, err) : choose_like(g, p, timed, err));
        timed = is_timed ? p : timed;
    }
    return OK;
}
