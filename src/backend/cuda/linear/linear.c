/* linear.c - see linear.h. */
#include "backend/cuda/linear/linear.h"
#include "backend/cuda/attention/attention_parts.h"
#include "backend/cuda/device/device.h"
#include "backend/cuda/head/head.h"
#include "backend/cuda/linear/fp8/gemm_fp8_gated.h"
#include "backend/cuda/linear/fp8/gemm_fp8_prefill.h"
#include "backend/cuda/linear/fp8/gemm_fp8_small_m.h"
#include "backend/cuda/linear/fp8/gemm_fp8_split_k.h"
#include "backend/cuda/linear/gemm.h"
#include "backend/cuda/linear/gemm_internal.h"
#include "backend/cuda/linear/gemv.h"
#include "backend/cuda/linear/w4/gemm_w4.h"
#include "backend/cuda/linear/w4/gemm_w4_few.h"
#include "backend/cuda/linear/w4/gemm_w4_many.h"
#include "backend/cuda/qact/qact.h"
#include "backend/cuda/step/padded.h"
#include "backend/cuda/weights/weights.h"

struct dmat linear_output(const struct compiled_op *linear) {
    return linear->pair ? linear->pair->out[0] : linear->out[0];
}

static cudaStream_t stream_of(const struct linear_call *call) { return call->launch->stream; }

/* "model.layers.0.mlp.down_proj.weight: the product of 24 rows with [3584, 18944] by gemm_fp8_split_k.cu did not start"
 */
static enum status started(const struct linear_call *call, cudaError_t code, struct error *err) {
    const struct linear_kernel *k = linear_kernel(call->c, call->n_rows);
    const struct dweight *w = &call->c->matrix[0];
    if (code == cudaSuccess)
        return OK;
    return device_fault(call->exe->loaded->device, err, code,
                        "%s: the product of %d rows with [%lld, %lld] by %s did not start",
                        call->c->op->weights[0]->name, call->n_rows, (long long)w->out, (long long)w->in, k->file);
}

static struct dending ending_of(const struct compiled_op *c) {
    if (!c->pair)
        return (struct dending){.kind = ENDING_PLAIN};
    const struct act_args *a = &c->pair->op->args.gated_act;
    return (struct dending){.kind = ENDING_GATED, .act = (int)a->act, .limit = a->limit};
}

// ---- the library ------------------------------------------------------------------------------------------------

static bool value_takes(const struct compiled_op *c, int rows) {
    return (void)rows, c->matrix[0].element != ELEMENT_E4M3 && c->matrix[0].element != ELEMENT_QUADS;
}
static bool qact_takes(const struct compiled_op *c, int rows) {
    return (void)rows, c->matrix[0].element == ELEMENT_E4M3;
}

static enum status library_put(const struct linear_call *call, struct error *err) {
    return gemm_run(call->c->gemm, call->n_rows, call->v.x, call->v.y, err);
}

// ---- gemv.cu ----------------------------------------------------------------------------------------------------

static struct dgemv gemv_of(const struct compiled_op *c) {
    return (struct dgemv){.w = c->matrix[0], .bias = c->floats[1].at, .ending = ending_of(c)};
}

int gemv_rows(const struct compiled_op *c, struct dmat x, int max_rows) {
    struct dgemv s = gemv_of(c);
    int most = 0, last = padded_index(max_rows);
    if (c->in_order.at && !c->convert.at && !gemv_takes(&s, c->in_order, linear_output(c), 1))
        return 0;
    for (int i = 0;
         i <= last && padded_rows_at(i) <= GEMV_MAX_ROWS && gemv_takes(&s, x, linear_output(c), padded_rows_at(i)); i++)
        most = padded_rows_at(i);
    return most;
}

static bool gemv_row_takes(const struct compiled_op *c, int rows) { return rows <= c->gemv_rows; }

/* An ATTENTION of few sequences is a few long blocks. */
static int held_by_attention(const struct executable *exe, const struct compiled_op *c, int n_rows) {
    const struct compiled_op *maker = &exe->ops[exe->program->values[c->op->in[0].id].first_use];
    const struct attention_args *a = &maker->op->args.attention;
    if (maker->op->code != OP_ATTENTION)
        return 0;
    return n_rows * a->n_kv_heads * attention_share(maker->cache.element, a->head_dim, n_rows, a->n_kv_heads);
}

static bool has_experts(const struct program *p) {
    for (int i = 0; i < p->n_ops; i++)
        if (p->ops[i].code == OP_MOE_FFN)
            return true;
    return false;
}

static enum status gemv_put(const struct linear_call *call, struct error *err) {
    struct dgemv s = gemv_of(call->c);
    (void)err; // what does not start shows as cudaGetLastError
    s.among_experts = has_experts(call->exe->program);
    s.held = held_by_attention(call->exe, call->c, call->n_rows);
    struct gemv_once_cut once = gemv_once_cut_of(&s, padded_rows(call->n_rows));
    if (once.n_blocks > 0)
        launch_gemv_once(call->launch, &s, call->v.x, linear_output(call->c), &once);
    else
        launch_gemv(call->launch, padded_rows(call->n_rows), &s, call->v.x, linear_output(call->c));
    return OK; // gemv_once.cu:add_chunk, or gemv_kernel.cuh:gemv by gemv/gemv_sums.cuh:add_chunk; both by ptx/mma.cuh
}

// ---- products of e4m3 -------------------------------------------------------------------------------------------

static struct dsmall_m small_m_of(const struct compiled_op *c) {
    return (struct dsmall_m){.w = c->matrix[0], .bias = c->floats[1].at, .ending = ending_of(c)};
}

static bool small_m_row_takes(const struct compiled_op *c, int rows) {
    struct dsmall_m a = small_m_of(c);
    return small_m_takes(&a, c->gemm->x, c->gemm->output, rows);
}

static enum status small_m_put(const struct linear_call *call, struct error *err) {
    struct dsmall_m a = small_m_of(call->c);
    a.qact = call->v.qact;
    a.requant = call->v.requant;
    return started(call, launch_gemm_small_m(stream_of(call), padded_rows(call->n_rows), &a, call->v.x, call->v.y),
                   err);
}

static struct dgated gated_of(const struct compiled_op *c) {
    return (struct dgated){.w = c->matrix[0],
                           .bias = c->floats[1].at,
                           .act = c->pair ? (int)c->pair->op->args.gated_act.act : 0,
                           .l2_copy = c->gemm->l2_copy[0]};
}

static bool gated_row_takes(const struct compiled_op *c, int rows) {
    struct dgated a = gated_of(c);
    return c->pair && rows <= GATED_MAX_ROWS && gated_takes(&a, c->gemm->x, c->gemm->output, rows);
}

static enum status gated_put(const struct linear_call *call, struct error *err) {
    struct dgated a = gated_of(call->c);
    a.qact = call->v.qact;
    return started(call, launch_gemm_gated(stream_of(call), padded_rows(call->n_rows), &a, call->v.x, call->v.y), err);
}

static bool gated_prefill_takes(const struct compiled_op *c, int rows) {
    struct dgated a = gated_of(c);
    return c->pair && rows > GATED_MAX_ROWS && gemm_prefill_gated_takes(&a, c->gemm->x, c->gemm->output, rows);
}

static enum status gated_prefill_put(const struct linear_call *call, struct error *err) {
    struct dgated a = gated_of(call->c);
    a.qact = call->v.qact;
    return started(
        call, launch_gemm_prefill_gated(stream_of(call), padded_rows(call->n_rows), &a, call->v.x, call->v.y), err);
}

static bool split_k_row_takes(const struct compiled_op *c, int rows) {
    return split_k_takes(c->matrix[0], c->gemm->x, c->gemm->y, rows);
}

static enum status split_k_put(const struct linear_call *call, struct error *err) {
    const struct gemm *g = call->c->gemm;
    const struct linear_values *v = &call->v;
    cudaError_t code =
        launch_gemm_split_k(stream_of(call), padded_rows(call->n_rows), g->weight, g->l2_copy, v->x, v->y, &v->requant);
    return started(call, code, err);
}

static bool prefill_row_takes(const struct compiled_op *c, int rows) {
    return gemm_prefill_takes(c->matrix[0], c->gemm->x, c->gemm->y, rows);
}

static enum status prefill_put(const struct linear_call *call, struct error *err) {
    return started(
        call, launch_gemm_prefill(stream_of(call), padded_rows(call->n_rows), call->c->matrix[0], call->v.x, call->v.y),
        err);
}

// ---- four bits --------------------------------------------------------------------------------------------------

/* Of the run of rows behind `run` others, and where its columns of y are; false: there is none. */
static bool w4_run(const struct compiled_op *c, int run, struct dgemm_w4 *a, struct dmat *y) {
    const struct placed *w = weight_on_device(c->gemm->loaded, c->op->weights[0]);
    int64_t first = 0;
    *y = linear_output(c);
    if (run > w->n_rest)
        return false;
    for (int i = 0; i < run; i++)
        first += i ? w->rest[i - 1].out : w->matrix.out;
    const float *bias = c->floats[1].at;
    *a = (struct dgemm_w4){run ? w->rest[run - 1] : c->matrix[0], bias ? bias + first : NULL, ending_of(c)};
    y->at = (char *)y->at + first * element_bytes(y->element);
    y->width -= (int)first;
    return true;
}

typedef bool w4_takes_run(const struct dgemm_w4 *a, struct dmat x, struct dmat y, int n_rows);

static bool w4_takes_runs(const struct compiled_op *c, int rows, w4_takes_run *takes) {
    struct dgemm_w4 a;
    struct dmat y;
    for (int run = 0; w4_run(c, run, &a, &y); run++)
        if (!takes(&a, c->gemm->x, y, rows))
            return false;
    return true;
}
static bool w4_takes(const struct compiled_op *c, int rows) { return w4_takes_runs(c, rows, gemm_w4_takes); }
static bool w4_few_takes(const struct compiled_op *c, int rows) {
    return rows <= W4_FEW_MAX_ROWS && w4_takes_runs(c, rows, gemm_w4_few_takes);
}

typedef cudaError_t w4_launch(cudaStream_t stream, int n_rows, const struct dgemm_w4 *a, struct dmat x, struct dmat y);

static enum status w4_put_runs(const struct linear_call *call, w4_launch *launch, struct error *err) {
    cudaError_t code = cudaSuccess;
    struct dgemm_w4 a;
    struct dmat y;
    for (int run = 0; code == cudaSuccess && w4_run(call->c, run, &a, &y); run++)
        code = launch(stream_of(call), padded_rows(call->n_rows), &a, call->v.x, y);
    return started(call, code, err);
}
static enum status w4_put(const struct linear_call *call, struct error *err) {
    return w4_put_runs(call, launch_gemm_w4, err);
}
static enum status w4_many_put(const struct linear_call *call, struct error *err) {
    return w4_put_runs(call, launch_gemm_w4_many, err);
}

static enum status w4_few_put(const struct linear_call *call, struct error *err) {
    return w4_put_runs(call, launch_gemm_w4_few, err);
}

// ---- the head ---------------------------------------------------------------------------------------------------

static bool lm_head_row_takes(const struct compiled_op *c, int rows) { return c->is_head && rows <= HEAD_MAX_ROWS; }

static enum status lm_head_put(const struct linear_call *call, struct error *err) {
    return head_run(call->exe, call->c, call->launch, call->v.x, err);
}

// ---- the table --------------------------------------------------------------------------------------------------

enum { LIBRARY, LIBRARY_QACT, SMALL_M, GEMV, GATED, GATED_PREFILL, SPLIT_K, PREFILL, LM_HEAD, W4, W4_MANY, W4_FEW };

const struct linear_kernel linear_kernels[N_LINEAR_KERNELS] = {
    [LIBRARY] = {"library", "cuBLASLt", .is_timed = true, .takes = value_takes, .put = library_put},
    [LIBRARY_QACT] = {"library", "cuBLASLt", .reads_qact = true, .makes_unscaled = true, .is_timed = true,
                      .takes = qact_takes, .put = library_put},
    [GEMV] = {"gemv", "gemv.cu", .wants_hopper = true, .gates = true, .is_timed = true, .takes = gemv_row_takes,
              .put = gemv_put},
    [SMALL_M] = {"small_m", "gemm_fp8_small_m.cu", .wants_hopper = true, .reads_qact = true, .gates = true,
                 .folds = true, .is_timed = true, .takes = small_m_row_takes, .put = small_m_put},
    [GATED] = {"gated", "gemm_fp8_gated.cu", .wants_hopper = true, .reads_qact = true, .gates = true, .folds = true,
               .takes = gated_row_takes, .put = gated_put},
    [GATED_PREFILL] = {"gated_prefill", "gemm_fp8_prefill.cu", .wants_hopper = true, .reads_qact = true, .gates = true,
                       .folds = true, .takes = gated_prefill_takes, .put = gated_prefill_put},
    [SPLIT_K] = {"split_k", "gemm_fp8_split_k.cu", .wants_hopper = true, .reads_qact = true, .makes_unscaled = true,
                 .ends_early = true, .takes = split_k_row_takes, .put = split_k_put},
    [PREFILL] = {"prefill", "gemm_fp8_prefill.cu", .wants_hopper = true, .reads_qact = true, .makes_unscaled = true,
                 .takes = prefill_row_takes, .put = prefill_put},
    [W4] = {"w4", "gemm_w4.cu", .wants_hopper = true, .gates = true, .is_timed = true, .of_quads = true,
            .takes = w4_takes, .put = w4_put},
    [W4_MANY] = {"w4_many", "gemm_w4_many.cu", .wants_hopper = true, .gates = true, .is_timed = true, .of_quads = true,
                 .takes = w4_takes, .put = w4_many_put},
    [W4_FEW] = {"w4_few", "gemm_w4_few.cu", .wants_hopper = true, .gates = true, .of_quads = true,
                .takes = w4_few_takes, .put = w4_few_put},
    [LM_HEAD] = {"lm_head", "lm_head.cu", .wants_hopper = true, .is_timed = true, .takes = lm_head_row_takes,
                 .put = lm_head_put},
};
const struct linear_kernel
    *const linear_by_gemv = &linear_kernels[GEMV],
           *const linear_by_small_m = &linear_kernels[SMALL_M], *const linear_by_gated = &linear_kernels[GATED],
           *const linear_by_gated_prefill = &linear_kernels[GATED_PREFILL],
           *const linear_by_split_k = &linear_kernels[SPLIT_K], *const linear_by_prefill = &linear_kernels[PREFILL],
           *const linear_by_lm_head = &linear_kernels[LM_HEAD], *const linear_by_w4_few = &linear_kernels[W4_FEW],
           *const linear_by_w4_many = &linear_kernels[W4_MANY];

bool linear_takes(const struct linear_kernel *k, const struct compiled_op *c, int rows) {
    return (!k->wants_hopper || c->gemm->loaded->device->is_fast) && k->takes(c, rows);
}

const struct linear_kernel *linear_library(const struct compiled_op *c) {
    if (c->matrix[0].element == ELEMENT_QUADS)
        return &linear_kernels[W4];
    return &linear_kernels[c->matrix[0].element == ELEMENT_E4M3 ? LIBRARY_QACT : LIBRARY];
}

const struct linear_kernel *linear_kernel(const struct compiled_op *c, int n_rows) {
    const struct linear_kernel *chosen = c->gemm->plans[padded_index(n_rows)].kernel;
    return chosen ? chosen : linear_library(c);
}

void linear_take(const struct compiled_op *c, const struct linear_kernel *k, int n_rows, const char *why) {
    int i = padded_index(n_rows);
    if (i < c->gemm->n_plans)
        c->gemm->plans[i].kernel = k, c->gemm->plans[i].why = why;
}

const char *linear_why(const struct compiled_op *c, int n_rows) { return c->gemm->plans[padded_index(n_rows)].why; }

bool linear_requantises(const struct compiled_op *c, int n_rows) {
    const struct linear_kernel *k = linear_kernel(c, n_rows);
    if (!c->gemm->loaded->device->requantises)
        return false;
    return (k == linear_by_small_m && !c->pair) ||
           (k == linear_by_split_k && split_k_requantises(c->matrix[0], padded_rows(n_rows)));
}

bool linear_gates(const struct compiled_op *c, int n_rows) { return c->pair && linear_kernel(c, n_rows)->gates; }

const struct compiled_op *linear_maker(const struct compiled_op *linear, int n_rows) {
    return linear_gates(linear, n_rows) ? linear->pair : linear;
}

int linear_most_rows(const struct executable *exe, const struct op *linear) {
    return exe->program->values[linear->in[0].id].rows == ROWS_TOKENS ? exe->bucket.max_tokens
                                                                      : MAX(exe->bucket.max_rows, 1);
}
