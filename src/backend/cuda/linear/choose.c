/* choose.c - how each LINEAR is computed for each number of rows: by which of our kernels, or by the library.
 *
 * What a kernel takes alone says little. One of ours begins while the node before still runs and reads what that left;
 * the library's starts and ends with a gap, and may bring nodes of its own; one path needs a node to quantise its input
 * or to finish what it makes, another does that on the way. So paths are timed where they stand: some layers of the
 * program, as they would be captured, once for each path of each kind of LINEAR, the one with the largest weight first
 * and again as long as that changes anything. The layers are as many as have every kind and more weights than the L2
 * could keep. What stands behind the layers (the head) is timed by itself.
 *
 * The plan on the device is that of a step without rows, so nothing is written to a cache; norms, products and
 * activations do not ask how many there are, and compute as ever. Their inputs are random.
 *
 * The search begins with what is usual, streams (gemv.cu) for one row and tiles (gemm_fp8_small_m.cu) for more, and
 * leaves it for a gain of 3 per cent and more that is seen twice: attention, which has nothing to do in a step without
 * rows, hides what it would hide in others, and one switch at a time does not lead from streams for all to tiles for
 * all or back. One row of Llama-3.1-8B: 423 tokens/s by tiles, 437 by streams, which the layers alone do not show
 * (65.0 and 64.9 us); 8 rows of Qwen2.5-7B: 3,466 and 3,114. Likewise one row of INT4 is gemm_w4_few.cu's, whose
 * small blocks pay once all products of a layer have them (Qwen2.5-7B AWQ, 606 tokens/s for 550; switched one by one,
 * none was seen to). Of more rows gemm_w4.cu was faster, and of other weights in tiles no step was timed.
 *
 * Up to 64 rows: a choice made that way for 128 took 4.12 ms a step of Qwen2.5-7B where the library alone took 3.91, as
 * a few layers do not reach the power limit that a step runs at. From there to 512 rows gemm_fp8_gated.cu computes
 * large products with a GATED_ACT behind them, gemm_fp8_split_k.cu those that it has a cut for (split_k_cut_of: not
 * from 257 to 445 rows), as steps of 96 to 512 rows showed (docs/lab/cuda_linear_many_rows.md), and the library all
 * else. Of more, prompts', gemm_fp8_prefill.cu computes what fills its tiles and multiprocessors (gemm_prefill_pays). A
 * head that lm_head.cu takes is its own: what is saved with logits that nobody reads, a step without rows does not
 * show.
 *
 * Numbers of rows between those that are timed do as the next larger one, where they can. LINEARs with small weights,
 * all of them if GYRE_LINEAR names a path (library, gemv, small_m, gated, split_k, prefill: for tests and to measure;
 * w4, w4_few and w4_many are of weights in tiles alone), and those for which the time is up take what is usual. Choices
 * are kept with the plans (plan_cache.h). */
#include "backend/cuda/attention/lists.h"
#include "backend/cuda/device/device.h"
#include "backend/cuda/linear/ending.h"
#include "backend/cuda/linear/gemm.h"
#include "backend/cuda/linear/fp8/gemm_fp8_gated.h"
#include "backend/cuda/linear/fp8/gemm_fp8_prefill.h"
#include "backend/cuda/linear/fp8/gemm_fp8_small_m.h"
#include "backend/cuda/linear/fp8/gemm_fp8_split_k.h"
#include "backend/cuda/linear/gemm_internal.h"
#include "backend/cuda/linear/gemv.h"
#include "backend/cuda/linear/linear.h"
#include "backend/cuda/linear/w4/gemm_w4_many.h"
#include "backend/cuda/step/compile.h"
#include "backend/cuda/step/launch.h"
#include "backend/cuda/step/padded.h"
#include "backend/cuda/value.h"
#include "backend/cuda/weights/place.h"

#include <stdlib.h>
#include <string.h>

enum { MOST_KINDS = 64, REPLAYS = 4, MOST_PASSES = 3, MOST_TIMED_ROWS = 64 };
static const int64_t ENOUGH_BYTES = 256 << 20;                     // of weights: four times the L2
static const int64_t WORTH_WIDE = 32 << 20, WORTH_LARGE = 8 << 20; // of a weight
static const double WORTH = 0.97, MOST_SECONDS = 1.5;

struct chain {
    int first, end;
};

/* LINEARs of one shape, with the same done in the same node. */
struct kind {
    const struct compiled_op *example; // one of them
    int64_t bytes;
};

struct search {
    struct executable *exe;
    struct chain chain;
    struct kind kinds[MOST_KINDS]; // in the chain, largest first
    int n_kinds;
    int32_t program; // of plan_key
    double seconds;  // spent
};

static enum ending ending_of(const struct compiled_op *c) { return c->pair ? ENDING_GATED : ENDING_PLAIN; }

static struct plan_key key_of(const struct search *s, const struct compiled_op *c, int rows) {
    struct plan_key key = gemm_shape(c->gemm);
    key.rows = rows;
    key.ending = (int32_t)ending_of(c);
    key.program = s->program;
    return key;
}

static bool are_of_one_shape(const struct compiled_op *a, const struct compiled_op *b) {
    struct plan_key x = gemm_shape(a->gemm), y = gemm_shape(b->gemm);
    return ending_of(a) == ending_of(b) && a->gemv_rows == b->gemv_rows && memcmp(&x, &y, sizeof x) == 0;
}

static void take(struct executable *exe, const struct compiled_op *example, const struct linear_kernel *k, int rows,
                 const char *why) {
    for (int i = 0; i < exe->program->n_ops; i++)
        if (exe->ops[i].gemm && are_of_one_shape(&exe->ops[i], example) && linear_takes(k, &exe->ops[i], rows))
            linear_take(&exe->ops[i], k, rows, why);
}

// ---- what is usual ----------------------------------------------------------------------------------------------

/* To measure one kernel, and to test it where it would not be taken: the row that GYRE_LINEAR names; NULL: none. */
static const struct linear_kernel *forced(void) {
    const char *name = getenv("GYRE_LINEAR");
    for (int i = 0; name && i < N_LINEAR_KERNELS; i++)
        if (strcmp(name, linear_kernels[i].name) == 0)
            return &linear_kernels[i];
    return NULL;
}

enum status linear_check(struct error *err) {
    const char *name = getenv("GYRE_LINEAR");
    if (!name || forced())
        return OK;
    return fail(err, ERR_ARG,
                "GYRE_LINEAR: \"%.40s\" is none of library, gemv, small_m, gated, split_k, prefill, w4, w4_few, "
                "w4_many",
                name);
}

/* Beyond the rows of gemm_fp8_gated.cu its name means the kernel that goes on where it ends. */
static const struct linear_kernel *forced_for(const struct compiled_op *c, const struct linear_kernel *k, int rows) {
    if (k == linear_by_gated && linear_takes(linear_by_gated_prefill, c, rows))
        return linear_by_gated_prefill;
    return linear_takes(k, c, rows) ? k : linear_library(c);
}
/* A kernel of weights in tiles is asked for these alone. */
static bool is_forced(const struct compiled_op *c) {
    return forced() && (!forced()->of_quads || c->matrix[0].element == ELEMENT_QUADS);
}

static int64_t weight_bytes(const struct compiled_op *c) {
    return c->matrix[0].out * c->matrix[0].in * element_bytes(c->matrix[0].element);
}

/* Of more rows than graphs have. */
static const struct linear_kernel *usual_of_prompts(const struct compiled_op *c, int rows) {
    if (c->pair && weight_bytes(c) >= WORTH_WIDE && linear_takes(linear_by_gated_prefill, c, rows) &&
        gemm_prefill_gated_pays(c->matrix[0], c->op->weights[1] != NULL, rows))
        return linear_by_gated_prefill;
    if (weight_bytes(c) >= WORTH_LARGE && linear_takes(linear_by_prefill, c, rows) &&
        gemm_prefill_pays(c->matrix[0], rows))
        return linear_by_prefill;
    return linear_library(c);
}

static bool is_int4(const struct compiled_op *c) {
    return c->matrix[0].element == ELEMENT_QUADS && c->matrix[0].quads.kind == QUADS_INT4;
}

static const struct linear_kernel *usual(const struct compiled_op *c, int rows) {
    bool many = rows > MOST_TIMED_ROWS && rows <= GATED_MAX_ROWS;
    if (is_forced(c))
        return forced_for(c, forced(), rows);
    if (linear_takes(linear_by_lm_head, c, rows))
        return linear_by_lm_head;
    if (rows == 1 && is_int4(c) && linear_takes(linear_by_w4_few, c, rows))
        return linear_by_w4_few;
    if (c->matrix[0].element == ELEMENT_QUADS)
        return gemm_w4_many_pays(&c->matrix[0], rows) ? linear_by_w4_many : linear_library(c);
    if (many && c->pair && weight_bytes(c) >= WORTH_WIDE && linear_takes(linear_by_gated, c, rows))
        return linear_by_gated;
    if (many && !c->pair && linear_takes(linear_by_split_k, c, rows) && split_k_cut_of(c->matrix[0], rows) >= 0)
        return linear_by_split_k;
    if (rows > GATED_MAX_ROWS)
        return usual_of_prompts(c, rows);
    if (rows > 1 && rows <= SMALL_M_MAX_ROWS && linear_takes(linear_by_small_m, c, rows))
        return linear_by_small_m;
    return rows <= GEMV_MAX_ROWS && linear_takes(linear_by_gemv, c, rows) ? linear_by_gemv : linear_library(c);
}

static void take_usual(struct executable *exe) {
    for (int i = 0; i < exe->program->n_ops; i++) {
        struct compiled_op *c = &exe->ops[i];
        for (int k = 0; c->gemm && padded_rows_at(k) <= padded_rows(linear_most_rows(exe, c->op)); k++)
            linear_take(c, usual(c, padded_rows_at(k)), padded_rows_at(k),
                        is_forced(c) ? "GYRE_LINEAR asks for it" : "usual for these rows");
    }
}

// ---- what is timed ----------------------------------------------------------------------------------------------

static bool is_timed(const struct compiled_op *c) { return c->gemm && !c->is_head && gemm_is_worth_timing(c->gemm); }

static bool is_known(const struct search *s, const struct compiled_op *c) {
    for (int i = 0; i < s->n_kinds; i++)
        if (are_of_one_shape(s->kinds[i].example, c))
            return true;
    return false;
}

static void add_kind(struct search *s, const struct compiled_op *c) {
    if (!is_timed(c) || is_known(s, c) || s->n_kinds == MOST_KINDS)
        return;
    int at = s->n_kinds++;
    for (; at > 0 && s->kinds[at - 1].bytes < weight_bytes(c); at--)
        s->kinds[at] = s->kinds[at - 1];
    s->kinds[at] = (struct kind){c, weight_bytes(c)};
}

static void find_kinds(struct search *s, struct chain of) {
    s->n_kinds = 0;
    for (int i = of.first; i < of.end; i++)
        add_kind(s, &s->exe->ops[i]);
}

/* FNV-1a, over what the paths of a program depend on beside the shapes of its LINEARs. */
static int32_t name_of(const struct program *p, struct chain of) {
    uint32_t hash = 2166136261u;
    for (int i = of.first; i < of.end; i++)
        for (int k = 0; k < 2; k++)
            hash = (hash ^ (uint32_t)(k ? p->ops[i].in[0].width : (int)p->ops[i].code)) * 16777619u;
    return (int32_t)(hash & INT32_MAX) | 1;
}

/* From the second layer on, so that what is added to the residual stream is what a layer left; the first where it is
 * the only one. Layers of other stages of a pipeline are empty here. */
static struct chain all_layers(const struct program *p) {
    struct chain all = {0, 0};
    int n_layers = 0;
    for (int i = 0; i < p->n_sections; i++) {
        int first = p->sections[i].first_op, end = i + 1 < p->n_sections ? p->sections[i + 1].first_op : p->n_ops;
        if (p->sections[i].layer < 0 || first == end)
            continue;
        if (n_layers++ < 2)
            all.first = first;
        all.end = end;
    }
    return all;
}

/* As many of the layers as have all kinds and weights enough. */
static struct chain enough_layers(const struct search *s, struct chain all) {
    const struct program *p = s->exe->program;
    struct search seen = {.exe = s->exe};
    int64_t bytes = 0;
    for (int i = 0; i < p->n_sections; i++) {
        int first = p->sections[i].first_op, end = i + 1 < p->n_sections ? p->sections[i + 1].first_op : p->n_ops;
        if (first < all.first || end > all.end)
            continue;
        for (int k = first; k < end; k++) {
            add_kind(&seen, &s->exe->ops[k]);
            bytes += s->exe->ops[k].gemm ? weight_bytes(&s->exe->ops[k]) : 0;
        }
        if (bytes >= ENOUGH_BYTES && seen.n_kinds == s->n_kinds)
            return (struct chain){all.first, end};
    }
    return all;
}

/* What the chain reads and an op before it made: the residual stream is random, what is added to it zero, as float32 or
 * as unscaled products. */
static enum status fill_inputs(const struct search *s, int rows, struct error *err) {
    const struct program *p = s->exe->program;
    struct loaded *loaded = s->exe->loaded;
    struct ddummy random = {.key = 1, .deviation = 1};
    for (int i = s->chain.first; i < s->chain.end; i++)
        for (int k = 0; k < OP_MAX_IN; k++) {
            val v = p->ops[i].in[k];
            const struct dmat *x = &s->exe->ops[i].in[k];
            if (!val_given(v) || p->values[v.id].first_use >= s->chain.first || p->values[v.id].rows != ROWS_TOKENS ||
                v.col != 0)
                continue;
            size_t n_bytes = (size_t)(rows * x->stride * element_bytes(x->element));
            if (p->ops[i].code == OP_ADD_NORM && k == 1)
                DEVICE_TRY(loaded->device, err, cudaMemsetAsync(x->at, 0, n_bytes, loaded->device->stream),
                           "clearing %zu bytes", n_bytes);
            else
                launch_fill_dummy(loaded->device->stream, &random, 0, rows * x->stride, x->at, x->element);
        }
    DEVICE_TRY(loaded->device, err, cudaGetLastError(), "filling what layers of %d rows read", rows);
    return OK;
}

// ---- timing -----------------------------------------------------------------------------------------------------

static enum status replay(struct search *s, cudaGraphExec_t graph, double *us, struct error *err) {
    struct loaded *loaded = s->exe->loaded;
    float ms, best = -1;
    for (int run = 0; run < REPLAYS; run++) { // the first loads the kernels
        DEVICE_TRY(loaded->device, err, cudaEventRecord(loaded->device->begun, loaded->device->stream),
                   "timing layers");
        DEVICE_TRY(loaded->device, err, cudaGraphLaunch(graph, loaded->device->stream), "timing layers");
        DEVICE_TRY(loaded->device, err, cudaEventRecord(loaded->device->ended, loaded->device->stream),
                   "timing layers");
        DEVICE_TRY(loaded->device, err, cudaEventSynchronize(loaded->device->ended), "timing layers");
        DEVICE_TRY(loaded->device, err, cudaEventElapsedTime(&ms, loaded->device->begun, loaded->device->ended),
                   "timing layers");
        s->seconds += (double)ms * 1e-3;
        if (run > 0 && (best < 0 || ms < best))
            best = ms;
    }
    *us = (double)best * 1e3;
    return OK;
}

/* The chain as it is now, in microseconds. */
static enum status time_chain(struct search *s, int rows, double *us, struct error *err) {
    struct loaded *loaded = s->exe->loaded;
    struct launch l = launch_of(s->exe, rows);
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    DEVICE_TRY(loaded->device, err, cudaStreamBeginCapture(loaded->device->stream, cudaStreamCaptureModeThreadLocal),
               "capturing layers of %d rows", rows);
    enum status st = step_launch_ops(s->exe, &l, s->chain.first, s->chain.end, err);
    TRY(graph_captured(loaded, st, "capturing layers", rows, &graph, err));
    cudaError_t code = cudaGraphInstantiate(&exec, graph, 0);
    cudaGraphDestroy(graph);
    DEVICE_TRY(loaded->device, err, code, "capturing layers of %d rows", rows);
    st = replay(s, exec, us, err);
    cudaGraphExecDestroy(exec);
    return st;
}

// ---- choosing ---------------------------------------------------------------------------------------------------

static bool recall(struct search *s, int rows) {
    const struct linear_kernel *chosen[MOST_KINDS];
    for (int i = 0; i < s->n_kinds; i++) {
        struct plan_key key = key_of(s, s->kinds[i].example, rows);
        const struct plan_choice *found = plan_cache_find(s->exe->loaded->device->plans, &key);
        if (!found || found->path < 0 || found->path >= N_LINEAR_KERNELS ||
            !linear_takes(&linear_kernels[found->path], s->kinds[i].example, rows))
            return false;
        chosen[i] = &linear_kernels[found->path];
    }
    for (int i = 0; i < s->n_kinds; i++)
        take(s->exe, s->kinds[i].example, chosen[i], rows, "fastest in layers, timed by an earlier start");
    return true;
}

static void keep(struct search *s, int rows, double us) {
    for (int i = 0; i < s->n_kinds; i++) {
        struct plan_key key = key_of(s, s->kinds[i].example, rows);
        struct plan_choice choice = {.path = (int32_t)(linear_kernel(s->kinds[i].example, rows) - linear_kernels),
                                     .us = MAX(us, 0.01)};
        plan_cache_add(s->exe->loaded->device->plans, &key, &choice);
    }
}

/* Takes another path of a kind if the chain is faster by it. Few replays are at the mercy of a moment, and what they
 * found is kept for every start to come: so what seems worth it is timed once more, with the old path behind it. *us is
 * what the chain takes. */
static enum status try_kernel(struct search *s, const struct compiled_op *example, const struct linear_kernel *k,
                              int rows, double *us, bool *better, struct error *err) {
    const struct linear_kernel *old = linear_kernel(example, rows);
    double now, again, before;
    take(s->exe, example, k, rows, "fastest in layers, timed");
    TRY(time_chain(s, rows, &now, err));
    if (now < *us * WORTH) {
        TRY(time_chain(s, rows, &again, err));
        take(s->exe, example, old, rows, "fastest in layers, timed");
        TRY(time_chain(s, rows, &before, err));
        now = MIN(now, again);
        *us = MIN(*us, before);
        if (now < *us * WORTH) {
            take(s->exe, example, k, rows, "fastest in layers, timed");
            *us = now;
            *better = true;
            return OK;
        }
    }
    take(s->exe, example, old, rows, "fastest in layers, timed");
    return OK;
}

/* Whether a path that is better than the one it has was found and taken. */
static enum status improve(struct search *s, const struct compiled_op *example, int rows, double *us, bool *better,
                           struct error *err) {
    for (int i = 0; i < N_LINEAR_KERNELS; i++) {
        const struct linear_kernel *k = &linear_kernels[i];
        if (k->is_timed && k != linear_kernel(example, rows) && linear_takes(k, example, rows))
            TRY(try_kernel(s, example, k, rows, us, better, err));
    }
    return OK;
}

static enum status choose_for(struct search *s, int rows, struct error *err) {
    double us;
    bool better = true;
    TRY(fill_inputs(s, rows, err));
    TRY(time_chain(s, rows, &us, err));
    for (int pass = 0; better && pass < MOST_PASSES; pass++) {
        better = false;
        for (int i = 0; i < s->n_kinds; i++)
            TRY(improve(s, s->kinds[i].example, rows, &us, &better, err));
    }
    keep(s, rows, us);
    return OK;
}

static bool is_timed_for(int rows, int most) {
    bool power = (rows & (rows - 1)) == 0,
         between = rows % 3 == 0 && (rows / 3 & (rows / 3 - 1)) == 0; // 24, 48, 96, 192, 384
    return rows <= most && rows <= MOST_TIMED_ROWS && (power || (between && rows <= 512));
}

/* As with another number of rows. */
static void follow(struct search *s, int rows, int timed) {
    for (int i = 0; i < s->n_kinds; i++)
        take(s->exe, s->kinds[i].example, linear_kernel(s->kinds[i].example, timed), rows,
             "as with the next timed number of rows");
}

/* most: rows that a step can have there. */
static enum status choose_in(struct search *s, int most, struct error *err) {
    int timed = padded_index(most);
    while (!is_timed_for(padded_rows_at(timed), most))
        timed--;
    for (int i = timed; i >= 0; i--) {
        int rows = padded_rows_at(i);
        if (!is_timed_for(rows, most)) {
            follow(s, rows, padded_rows_at(timed));
            continue;
        }
        timed = i;
        if (recall(s, rows))
            continue;
        if (s->seconds < MOST_SECONDS)
            TRY(choose_for(s, rows, err));
        else
            s->exe->n_untimed++;
    }
    return OK;
}

static enum status choose_of_layers(struct search *s, struct error *err) {
    struct chain all = all_layers(s->exe->program);
    find_kinds(s, all);
    if (s->n_kinds == 0)
        return OK;
    s->chain = enough_layers(s, all);
    s->program = name_of(s->exe->program, s->chain);
    return choose_in(s, padded_rows(s->exe->bucket.max_tokens), err);
}

static enum status choose_of_head(struct search *s, struct error *err) {
    const struct program *p = s->exe->program;
    s->chain = (struct chain){all_layers(p).end, p->n_ops};
    find_kinds(s, s->chain);
    if (s->n_kinds == 0)
        return OK;
    s->program = name_of(p, s->chain);
    return choose_in(s, padded_rows(MIN(MAX(s->exe->bucket.max_rows, 1), s->exe->bucket.max_tokens)), err);
}

enum status linear_choose(struct executable *exe, struct error *err) {
    struct search s = {.exe = exe};
    struct loaded *loaded = exe->loaded;
    take_usual(exe);
    if (forced())
        return OK;
    DEVICE_TRY(loaded->device, err, cudaMemsetAsync(exe->plan_device, 0, exe->plan_bytes, loaded->device->stream),
               "an empty plan");
    struct launch l = launch_of(exe, 1);
    TRY(attention_lists_launch(exe, &l, err)); // empty ones
    TRY(choose_of_layers(&s, err));
    return choose_of_head(&s, err);
}
