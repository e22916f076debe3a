/* calibrate.c - see calibrate.h. A matrix is known by where its numbers lie: the parts of the program's weights point
 * to what the binder noted. */
#include "quantize/calibrate/calibrate.h"

#include "core/backend.h"

#include <math.h>
#include <stdlib.h>

enum { BLOCK = 16 };

struct run {
    const struct calibration *c;
    const struct bound **by_place; // [n], sorted by where their numbers lie
    size_t n;
    int32_t *routed; // [chunk * top_k]: rows of an expert
    float *hidden;   // [chunk * top_k][ffn]: what its way down reads
    float *up;       // [2][hidden]: scratch
    int64_t reading;
};

static int by_place(const void *a, const void *b) {
    const char *x = (*(const struct bound *const *)a)->part.data, *y = (*(const struct bound *const *)b)->part.data;
    return (x > y) - (x < y);
}

static const struct bound *find(const struct run *r, const void *data) {
    size_t low = 0, high = r->n;
    while (low < high) {
        size_t mid = (low + high) / 2;
        if ((const char *)r->by_place[mid]->part.data < (const char *)data)
            low = mid + 1;
        else
            high = mid;
    }
    return low < r->n && r->by_place[low]->part.data == data ? r->by_place[low] : NULL;
}

/* The matrix whose first row is row `row` of w. */
static const struct bound *matrix_at(const struct run *r, const struct weight *w, int64_t row) {
    int64_t in_part;
    const struct weight_part *p = weight_part_of(w, row, &in_part);
    struct weight_part from = weight_part_rows(p, in_part, p->n_rows - in_part);
    return find(r, from.data);
}

/* ---- LINEAR ---- */

static void see_linear(struct run *r, const struct op *op, const struct op_input *in) {
    const struct weight *w = op->weights[0];
    r->reading++;
    for (int i = 0; i < w->n_parts; i++) {
        const struct bound *b = find(r, w->parts[i].data);
        if (b && in->rows == r->c->chunk) // not the head, of which one row is computed
            r->c->see(r->c->see_context,
                      &(struct calibration_input){b, in->at, in->stride, in->width, in->rows, NULL, r->reading});
    }
}

/* ---- MOE_FFN ---- */

static float act(const struct act_args *a, float gate, float up) {
    switch (a->act) {
    case ACT_SWIGLU_CLAMPED: {
        float g = fminf(gate, a->limit), u = fmaxf(fminf(up, a->limit), -a->limit);
        return (u + 1) * g / (1 + expf(-1.702f * g));
    }
    case ACT_GELU_TANH: return up * 0.5f * gate * (1 + tanhf(0.7978845608f * (gate + 0.044715f * gate * gate * gate)));
    case ACT_GELU: return up * 0.5f * gate * (1 + erff(gate * 0.7071067812f));
    default: return up * gate / (1 + expf(-gate));
    }
}

static float dot(const float *a, const float *b, int64_t n) {
    float sum = 0;
    for (int64_t i = 0; i < n; i++)
        sum += a[i] * b[i];
    return sum;
}

/* What the way down of an expert reads of the rows that were sent to it: its own gate and up, once more. */
static void compute_hidden(const struct run *r, const struct op *op, const struct op_input *x, int64_t e, int64_t n) {
    const struct moe_args *a = &op->args.moe_ffn;
    const struct weight *w13 = op->weights[0], *b13 = op->weights[2];
    int64_t F = a->ffn_size, first = e * 2 * F;
    float *gate_row = r->up, *up_row = r->up + x->width, bias[2] = {0};
    for (int64_t f = 0; f < F; f++) {
        weight_rows_f32(w13, first + f, 1, gate_row);
        weight_rows_f32(w13, first + F + f, 1, up_row);
        for (int k = 0; b13 && k < 2; k++)
            weight_rows_f32(b13, first + k * F + f, 1, &bias[k]);
        for (int64_t i = 0; i < n; i++) {
            const float *row = x->at + r->routed[i] * x->stride;
            r->hidden[i * F + f] =
                act(&a->act, dot(row, gate_row, x->width) + bias[0], dot(row, up_row, x->width) + bias[1]);
        }
    }
}

static void see_expert(struct run *r, const struct op *op, const struct op_input *in, int64_t e) {
    const struct moe_args *a = &op->args.moe_ffn;
    const struct op_input *x = &in[0], *ids = &in[1];
    const int32_t *id = (const int32_t *)(const void *)ids->at;
    int64_t n = 0, F = a->ffn_size;
    for (int64_t t = 0; t < ids->rows; t++)
        for (int k = 0; k < a->top_k; k++)
            if (id[t * ids->stride + k] == e)
                r->routed[n++] = (int32_t)t;
    const struct bound *gate = matrix_at(r, op->weights[0], e * 2 * F),
                       *up = matrix_at(r, op->weights[0], e * 2 * F + F);
    const struct bound *down = matrix_at(r, op->weights[1], e * op->weights[0]->in);
    struct calibration_input rows = {gate, x->at, x->stride, x->width, n, r->routed, ++r->reading};
    if (n == 0 || !gate || !up || !down)
        return;
    r->c->see(r->c->see_context, &rows);
    rows.b = up;
    r->c->see(r->c->see_context, &rows);
    compute_hidden(r, op, x, e, n);
    r->c->see(r->c->see_context, &(struct calibration_input){down, r->hidden, F, F, n, NULL, ++r->reading});
}

static void see(void *context, const struct op *op, const struct op_input *in) {
    struct run *r = context;
    if (op->code == OP_LINEAR)
        see_linear(r, op, in);
    for (int64_t e = 0; op->code == OP_MOE_FFN && e < op->args.moe_ffn.n_experts; e++)
        see_expert(r, op, in, e);
}

/* ---- steps ---- */

static void fill_plan(struct batch_plan *plan, const int32_t *tokens, int n) {
    plan->n_tokens = n, plan->n_seqs = plan->n_rows = 1;
    plan->query_start[1] = plan->seq_len[0] = plan->n_known[0] = n;
    plan->out_row[0] = n - 1;
    for (int i = 0; i < n; i++)
        plan->token_id[i] = tokens[i], plan->position[i] = i;
}

static enum status run_chunks(const struct run *r, struct executable *exe, struct batch_plan *plan, struct error *err) {
    const struct calibration *c = r->c;
    struct sample_params sample = sample_params_default();
    struct sample_result result;
    int64_t n = c->n_tokens / c->chunk;
    for (int64_t i = 0; i < n; i++) {
        fill_plan(plan, c->tokens + i * c->chunk, c->chunk);
        TRY(backend_cpu.run(exe, plan, &sample, err));
        TRY(backend_cpu.collect(exe, &result, err));
        if (c->step && !c->step(c->context, (i + 1) * c->chunk, n * c->chunk))
            return fail(err, ERR_IO, "interrupted: nothing was written");
    }
    return OK;
}

static enum status run_loaded(const struct run *r, struct loaded *l, struct error *err) {
    const struct program *p = r->c->model->program;
    struct cache_config config = {.block_size = BLOCK, .n_states = 1};
    struct bucket bucket = {r->c->chunk, 1, 1, 0};
    struct executable *exe;
    struct batch_plan plan;
    int blocks = (r->c->chunk + BLOCK - 1) / BLOCK;
    for (int g = 0; g < p->n_groups; g++)
        config.n_blocks[g] = config.table_width[g] = blocks;
    TRY(backend_cpu.alloc_cache(l, &config, err));
    TRY(backend_cpu.compile(l, bucket, &exe, err));
    batch_plan_init(&plan, bucket, p->n_groups, config.table_width);
    for (int g = 0; g < p->n_groups; g++)
        for (int i = 0; i < blocks; i++)
            plan.block_table[g][i] = i;
    enum status st = run_chunks(r, exe, &plan, err);
    batch_plan_release(&plan);
    backend_cpu.free_executable(exe);
    return st;
}

static enum status run_device(const struct run *r, struct error *err) {
    const char *const own[] = {"activations=float32", NULL};
    struct device_options device_options = {.n_threads = r->c->n_threads, .own = own};
    struct op_watch watch = {see, (void *)r};
    struct load_options load = {.dtype = "float32", .watch = &watch};
    struct device *d;
    struct loaded *l = NULL;
    TRY(backend_cpu.open(&device_options, &d, err));
    enum status st = backend_cpu.load(d, r->c->model->program, &load, &l, err);
    if (st == OK)
        st = run_loaded(r, l, err);
    if (l)
        backend_cpu.unload(l);
    backend_cpu.close(d);
    return st;
}

enum status calibrate(const struct calibration *c, struct error *err) {
    const struct model_spec *s = c->model->spec;
    if (c->n_tokens < c->chunk)
        return fail(err, ERR_ARG, "the text has %lld tokens, which is less than a chunk of %d", (long long)c->n_tokens,
                    c->chunk);
    struct run r = {.c = c, .by_place = xcalloc(c->taken->n + 1, sizeof *r.by_place)};
    size_t routed = (size_t)c->chunk * (size_t)MAX(s->moe.top_k, 1);
    for (size_t i = 0; i < c->taken->n; i++)
        if (c->taken->items[i].is_matrix)
            r.by_place[r.n++] = &c->taken->items[i];
    qsort(r.by_place, r.n, sizeof *r.by_place, by_place);
    r.routed = xcalloc(routed, sizeof *r.routed);
    r.hidden = xcalloc(routed * (size_t)MAX(s->moe.ffn_size, 1), sizeof *r.hidden);
    r.up = xcalloc(2 * (size_t)s->hidden_size, sizeof *r.up);
    enum status st = run_device(&r, err);
    free(r.by_place), free(r.routed), free(r.hidden), free(r.up);
    return st;
}
