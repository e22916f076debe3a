/* backend.c - the CPU as a backend: see core/backend.h.
 *
 * compile() lays a program's values out in one block and keeps the list of ops with their functions; run()
 * walks that list. The whole step is one pool_run: every worker walks the list itself, doing its share of
 * each op, and a spin barrier stands behind each op, so that no thread is woken and nothing is allocated
 * within a step. run() returns when the step is done; collect() only hands the results over. */
#include "backend/cpu/fast/fast.h"
#include "backend/cpu/measure.h"
#include "base/machine_memory.h"
#include "core/pass/pass.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ALIGNMENT = 64 };

struct compiled_op {
    const struct op *op;
    op_function *run;
    const struct placed *weight[OP_MAX_WEIGHTS];
};

struct executable {
    struct loaded *loaded;
    const struct program *program;
    struct bucket bucket;
    struct compiled_op *ops; // [program->n_ops]
    int64_t *offset;         // [n_values], bytes into memory
    unsigned char *memory;
    int64_t n_bytes; // of all that a step uses
    float *scratch, *shared;
    int64_t worker_scratch;                // floats between one worker's scratch and the next's
    struct sample_scratch *sample_scratch; // [workers]
    float **cos_sin;                       // [n_ropes], each [max_tokens][dim]
    int32_t *seq_of_row;                   // [max_tokens]
    struct sample_result *results[2];      // [max_rows]: of the last step and the one before it, by turns
    int n_rows[2];
    int64_t n_run, n_collected;
    struct pool_range *rows[2]; // the output columns of a LINEAR, by turns
    struct mat logits;
    struct batch_plan plan;       // of the step that runs: the engine's, but with its own
    int32_t *token_id;            // [max_tokens], in which nothing refers to the step before any more; nor in
    struct sample_params *sample; // [max_rows]
    bool is_late;                 // the step that was started last waits for draw
};

/* At least one byte; ERR_MEMORY names what for. */
static enum status large_alloc(int64_t n_bytes, const char *what, void **out, struct error *err) {
    *out = aligned_alloc(ALIGNMENT, (size_t)(n_bytes / ALIGNMENT + 1) * ALIGNMENT);
    return *out ? OK : fail(err, ERR_MEMORY, "no memory for %s: %lld bytes", what, (long long)n_bytes);
}

/* ---- device ---- */

static enum status cpu_open(const struct device_options *options, struct device **out, struct error *err) {
    if (options->index != 0)
        return fail(err, ERR_ARG, "device index: there is one CPU, number 0, not %d", options->index);
    if (options->n_threads < 0)
        return fail(err, ERR_ARG, "threads: %d is not a number of threads", options->n_threads);
    const struct kernels *kernels;
    int patience_s;
    bool exact;
    TRY(cpu_choose_kernels(options->own, &kernels, &exact, err));
    TRY(device_option_patience(options->own, &patience_s, err));
    struct device *d = xcalloc(1, sizeof *d);
    *d = (struct device){pool_open(options->n_threads), kernels, patience_s,
                         device_option_is_off(options->own, "shared-kv"), exact};
    *out = d;
    return OK;
}

static void cpu_close(struct device *d) {
    pool_free(d->pool);
    free(d);
}

/* ---- what is loaded ---- */

static void cpu_unload(struct loaded *l) {
    if (!l)
        return;
    placed_table_release(&l->placed);
    for (int g = 0; g < l->n_caches && !l->caches_of; g++)
        free(l->caches[g].memory);
    program_free(l->program);
    cpu_ranks_leave(l->ranks);
    free(l->expert_loads);
    free(l);
}

static bool is_rounding(const struct load_options *options) {
    return options->dtype && strcmp(options->dtype, "bfloat16") == 0;
}

static enum status check_load(const struct device *d, const struct load_options *options, struct error *err) {
    if (is_rounding(options) && (!d->kernels || !kernels_bf16()))
        return fail(err, ERR_UNSUPPORTED,
                    "dtype: bfloat16 wants a processor with AVX-512 BF16 and its fast kernels; float32 runs on any");
    if (options->dtype && !is_rounding(options) && strcmp(options->dtype, "float32") != 0)
        return fail(err, ERR_UNSUPPORTED, "dtype: the CPU computes in float32 or bfloat16, not in %s", options->dtype);
    if (options->quantization)
        return fail(err, ERR_UNSUPPORTED, "quantization: the CPU computes with weights as they are stored, not in %s",
                    options->quantization);
    return OK;
}

static enum status cpu_load(struct device *d, const struct program *p, const struct load_options *options,
                            struct loaded **out, struct error *err) {
    TRY(check_load(d, options, err));
    bool int4;
    TRY(cpu_choose_cache(p, options->kv_dtype, &int4, err));
    struct loaded *l = xcalloc(1, sizeof *l);
    l->device = d;
    l->products = cpu_products(d, is_rounding(options)); // choose.c: the best set, wrapped by blocks.c
    l->n_back = options->n_back, l->watch = options->watch;
    l->caches_of = options->caches_of;
    l->has_int4_cache = l->caches_of ? l->caches_of->has_int4_cache : int4;
    l->program = l->caches_of    ? pass_shared_kv_as(p, l->caches_of->program)
                 : d->whole_keys ? program_copy(p)
                                 : pass_shared_kv(p, NULL);
    expert_loads_init(l);
    enum status st = placed_table_fill(&l->placed, l->program, d->pool, err);
    if (st != OK) {
        cpu_unload(l);
        l = NULL;
    }
    *out = l;
    return st;
}

/* ---- compile ---- */

static op_function *const reference[N_OPCODES] = {
#define OP(code, function, n_in, n_out, n_weights, args) [OP_##code] = cpu_##function,
#include "core/ops.def"
};

static need_function *const reference_need[N_OPCODES] = { // NULL: none
#define OP(code, function, n_in, n_out, n_weights, args) [OP_##code] = cpu_##function##_need,
#include "core/ops.def"
};

static struct need cpu_need(const struct op *op) {
    return reference_need[op->code] ? reference_need[op->code](op) : (struct need){0, 0};
}

/* The op's function, and the scratch that it wants. */
static op_function *choose(const struct loaded *l, const struct op *op, struct bucket bucket, struct need *need) {
    const struct fast_op *fast = l->device->kernels ? fast_op(op) : NULL;
    *need = fast ? fast_need(fast, l, op, bucket) : cpu_need(op);
    return fast ? fast->run : reference[op->code];
}

static struct need largest_need(const struct loaded *l, struct bucket bucket) {
    struct need most = {0, 0}, need;
    for (int i = 0; i < l->program->n_ops; i++) {
        choose(l, &l->program->ops[i], bucket, &need);
        most.worker = MAX(most.worker, need.worker);
        most.shared = MAX(most.shared, need.shared);
    }
    return most;
}

/* All that alloc_step_memory allocates, but for a few bytes of bookkeeping. */
static int64_t step_bytes(const struct executable *exe, int64_t values, int64_t shared_floats) {
    const struct program *p = exe->program;
    int64_t n_workers = pool_size(exe->loaded->device->pool), angles = 0;
    for (int i = 0; i < p->n_ropes; i++)
        angles += p->ropes[i]->dim;
    int64_t floats = exe->worker_scratch * n_workers + shared_floats + angles * exe->bucket.max_tokens;
    int64_t row = 2 * (int64_t)sizeof *exe->results[0] + (int64_t)sizeof *exe->sample,
            token = 2 * (int64_t)sizeof(int32_t);
    return values + floats * (int64_t)sizeof(float) + row * exe->bucket.max_rows + token * exe->bucket.max_tokens +
           n_workers * sample_scratch_bytes(p->vocab_size);
}

static enum status alloc_step_memory(struct executable *exe, struct error *err) {
    const struct program *p = exe->program;
    int n_workers = pool_size(exe->loaded->device->pool);
    exe->offset = xcalloc((size_t)p->n_values + 1, sizeof *exe->offset);
    int64_t values = program_plan_memory(p, exe->bucket.max_tokens, exe->bucket.max_rows, exe->offset);
    TRY(large_alloc(values, "activations", (void **)&exe->memory, err));
    struct need need = largest_need(exe->loaded, exe->bucket);
    exe->worker_scratch = (need.worker + 15) / 16 * 16 + 16; // whole lines, and no two workers on one
    TRY(large_alloc(exe->worker_scratch * n_workers * (int64_t)sizeof(float), "scratch", (void **)&exe->scratch, err));
    TRY(large_alloc(need.shared * (int64_t)sizeof(float), "scratch", (void **)&exe->shared, err));
    exe->cos_sin = xcalloc((size_t)p->n_ropes + 1, sizeof *exe->cos_sin);
    for (int i = 0; i < p->n_ropes; i++)
        exe->cos_sin[i] = xcalloc((size_t)exe->bucket.max_tokens * (size_t)p->ropes[i]->dim + 1, sizeof(float));
    exe->seq_of_row = xcalloc((size_t)exe->bucket.max_tokens, sizeof *exe->seq_of_row);
    for (int i = 0; i < 2; i++)
        exe->results[i] = xcalloc((size_t)exe->bucket.max_rows + 1, sizeof *exe->results[i]);
    exe->token_id = xcalloc((size_t)exe->bucket.max_tokens, sizeof *exe->token_id);
    exe->sample = xcalloc((size_t)exe->bucket.max_rows + 1, sizeof *exe->sample);
    for (int i = 0; i < 2; i++)
        exe->rows[i] = pool_range_new(n_workers);
    exe->sample_scratch = xcalloc((size_t)n_workers, sizeof *exe->sample_scratch);
    for (int i = 0; i < n_workers; i++)
        sample_scratch_init(&exe->sample_scratch[i], p->vocab_size);
    exe->n_bytes = step_bytes(exe, values, need.shared);
    return OK;
}

static void cpu_free_executable(struct executable *exe) {
    if (!exe)
        return;
    for (int i = 0; exe->sample_scratch && i < pool_size(exe->loaded->device->pool); i++)
        sample_scratch_release(&exe->sample_scratch[i]);
    for (int i = 0; exe->cos_sin && i < exe->program->n_ropes; i++)
        free(exe->cos_sin[i]);
    for (int i = 0; i < 2; i++)
        pool_range_free(exe->rows[i]);
    free(exe->sample_scratch);
    for (int i = 0; i < 2; i++)
        free(exe->results[i]);
    free(exe->token_id);
    free(exe->sample);
    free(exe->seq_of_row);
    free(exe->cos_sin);
    free(exe->shared);
    free(exe->scratch);
    free(exe->memory);
    free(exe->offset);
    free(exe->ops);
    free(exe);
}

static enum status cpu_compile(struct loaded *l, struct bucket bucket, struct executable **out, struct error *err) {
    const struct program *p = l->program;
    BUG_IF(bucket.max_tokens < 1 || bucket.max_seqs < 1 || bucket.max_rows < 0);
    BUG_IF(p->n_ranks > 1 && !l->ranks); // join comes before
    cache_take(l, l->caches_of);
    struct executable *exe = xcalloc(1, sizeof *exe);
    *exe = (struct executable){.loaded = l, .program = p, .bucket = bucket};
    exe->ops = xcalloc((size_t)p->n_ops + 1, sizeof *exe->ops);
    for (int i = 0; i < p->n_ops; i++) {
        struct need need;
        exe->ops[i] = (struct compiled_op){.op = &p->ops[i], .run = choose(l, &p->ops[i], bucket, &need)};
        for (int k = 0; k < OP_MAX_WEIGHTS; k++)
            exe->ops[i].weight[k] = placed_find(&l->placed, p->ops[i].weights[k]);
    }
    enum status status = alloc_step_memory(exe, err);
    if (status != OK) {
        cpu_free_executable(exe);
        return fail_within(err, status, "%s", p->name);
    }
    *out = exe;
    return OK;
}

/* ---- run ---- */

static struct mat value_of(const struct executable *exe, val v) {
    if (!val_given(v))
        return (struct mat){0};
    const struct value *value = &exe->program->values[v.id];
    float *at = (float *)(void *)(exe->memory + exe->offset[v.id]);
    int64_t rows = value->rows == ROWS_TOKENS ? exe->plan.n_tokens : exe->plan.n_rows;
    return (struct mat){at + v.col, value->width, rows, v.width};
}

static void bind_op(const struct executable *exe, const struct compiled_op *compiled, struct call *c) {
    c->op = compiled->op;
    for (int i = 0; i < OP_MAX_IN; i++)
        c->in[i] = value_of(exe, compiled->op->in[i]);
    for (int i = 0; i < OP_MAX_OUT; i++)
        c->out[i] = value_of(exe, compiled->op->out[i]);
    memcpy(c->weight, compiled->weight, sizeof c->weight);
}

/* The angles of a row depend on its position alone, not on the layer: computed once a step and rope. */
static void fill_cos_sin(const struct executable *exe, int worker, int n_workers) {
    const struct batch_plan *plan = &exe->plan;
    int64_t begin, end;
    pool_share(plan->n_tokens, 1, worker, n_workers, &begin, &end);
    for (int i = 0; i < exe->program->n_ropes; i++) {
        const struct rope *rope = exe->program->ropes[i];
        for (int64_t t = begin; t < end; t++) {
            float *row = exe->cos_sin[i] + t * rope->dim;
            rope_cos_sin(rope, plan->position[t], plan->n_known[exe->seq_of_row[t]], row, row + rope->dim / 2);
        }
    }
}

/* Of all copies each worker moves the same part of the bytes, so that a block may be copied on within the list. */
static void copy_cache(const struct executable *exe, int worker, int n_workers) {
    const struct loaded *l = exe->loaded;
    for (int i = 0; i < exe->plan.n_copies; i++) {
        const struct cache_copy *copy = &exe->plan.copies[i];
        for (int g = 0; g < l->n_caches; g++) {
            bool state = exe->program->groups[g].kind == CACHE_STATE;
            if (copy->group == STATE_SLOTS ? !state : copy->group != g)
                continue;
            const struct cache *cache = &l->caches[g];
            int64_t begin, end;
            pool_share(cache->block_bytes, ALIGNMENT, worker, n_workers, &begin, &end);
            for (int i_layer = 0; i_layer < exe->program->groups[g].n_layers; i_layer++) {
                unsigned char *layer = cache->at + i_layer * cache->layer_bytes;
                memcpy(layer + copy->to * cache->block_bytes + begin, layer + copy->from * cache->block_bytes + begin,
                       (size_t)(end - begin));
            }
        }
    }
}

static struct call call_of(const struct executable *exe, int worker, int n_workers) {
    return (struct call){
        .program = exe->program,
        .loaded = exe->loaded,
        .plan = &exe->plan,
        .sample = exe->sample,
        .seq_of_row = exe->seq_of_row,
        .cos_sin = exe->cos_sin,
        .scratch = exe->scratch + worker * exe->worker_scratch,
        .shared = exe->shared,
        .sample_scratch = &exe->sample_scratch[worker],
        .results = exe->results[exe->n_run & 1],
        .worker = worker,
        .n_workers = n_workers,
    };
}

static bool is_drawn(const struct executable *exe, int op) { return exe->program->ops[op].code == OP_SAMPLE; }

static void run_worker(void *arg, int worker, int n_workers) {
    const struct executable *exe = arg;
    struct call c = call_of(exe, worker, n_workers);
    copy_cache(exe, worker, n_workers);
    fill_cos_sin(exe, worker, n_workers);
    for (int i = 0; i < exe->program->n_ops && !(exe->is_late && is_drawn(exe, i)); i++) {
        c.rows =
            exe->rows[i & 1]; // the other one may still be taken from by workers that are not done with the op before
        if (worker == 0 && exe->program->ops[i].code == OP_LINEAR)
            deal_columns(&exe->program->ops[i], value_of(exe, exe->program->ops[i].in[0]).rows, n_workers, c.rows);
        call_barrier(&c); // all of what this op reads has been written, by whomever
        bind_op(exe, &exe->ops[i], &c);
        cpu_tell_watch(&c);
        exe->ops[i].run(&c); // fast/fast.c chose: of LINEAR fast_linear.c:fast_linear; or the reference of cpu_*.c
    }
}

static void draw_worker(void *arg, int worker, int n_workers) {
    const struct executable *exe = arg;
    struct call c = call_of(exe, worker, n_workers);
    int last = exe->program->n_ops - 1;
    bind_op(exe, &exe->ops[last], &c);
    exe->ops[last].run(&c);
}

/* The plan, with the tokens that it takes from the step before put in. */
static void take_plan(struct executable *exe, const struct batch_plan *plan) {
    const struct sample_result *before = exe->results[(exe->n_run - 1) & 1];
    exe->plan = *plan;
    exe->plan.token_id = exe->token_id;
    for (int t = 0; t < plan->n_tokens; t++)
        exe->token_id[t] =
            plan->from_row[t] < 0 ? plan->token_id[t] : program_token_of(exe->program, before[plan->from_row[t]].token);
}

static void take_sample(struct executable *exe, const struct sample_params *sample) {
    const struct sample_result *before = exe->results[(exe->n_run - 1) & 1];
    for (int r = 0; r < exe->plan.n_rows; r++) {
        exe->sample[r] = sample[r];
        if (sample[r].has_newest)
            exe->sample[r].newest = before[sample[r].newest_row].token;
    }
}

static enum status cpu_run(struct executable *exe, const struct batch_plan *plan, const struct sample_params *sample,
                           struct error *err) {
    BUG_IF(plan->n_tokens > exe->bucket.max_tokens || plan->n_seqs > exe->bucket.max_seqs ||
           plan->n_rows > exe->bucket.max_rows);
    BUG_IF(plan->query_start[plan->n_seqs] != plan->n_tokens);
    BUG_IF(exe->n_run - exe->n_collected > 1 || exe->is_late);
    take_plan(exe, plan);
    if (sample)
        take_sample(exe, sample);
    for (int s = 0; s < plan->n_seqs; s++)
        for (int32_t t = plan->query_start[s]; t < plan->query_start[s + 1]; t++)
            exe->seq_of_row[t] = s;
    const struct op *last = &exe->program->ops[exe->program->n_ops - 1];
    exe->logits = last->code == OP_SAMPLE ? value_of(exe, last->in[0]) : (struct mat){0};
    exe->is_late = !sample;
    pool_run(exe->loaded->device->pool, run_worker, exe);
    exe->n_rows[exe->n_run & 1] = plan->n_rows;
    exe->n_run += !exe->is_late;
    return ranks_fault(exe->loaded, err);
}

static enum status cpu_draw(struct executable *exe, const struct sample_params *sample, struct error *err) {
    (void)err;
    BUG_IF(!exe->is_late || !is_drawn(exe, exe->program->n_ops - 1));
    take_sample(exe, sample);
    pool_run(exe->loaded->device->pool, draw_worker, exe);
    exe->is_late = false;
    exe->n_run++;
    return OK;
}

static enum status cpu_collect(struct executable *exe, struct sample_result *results, struct error *err) {
    (void)err;
    BUG_IF(exe->n_collected == exe->n_run);
    int at = (int)(exe->n_collected++ & 1);
    memcpy(results, exe->results[at], (size_t)exe->n_rows[at] * sizeof *results);
    return OK;
}

static enum status cpu_logits(struct executable *exe, int row, const float **out, struct error *err) {
    (void)err;
    BUG_IF(row < 0 || row >= exe->logits.rows);
    *out = mat_row(exe->logits, row);
    return OK;
}

static enum status cpu_hidden(struct executable *exe, int tap, int t, const float **out, struct error *err) {
    (void)err;
    BUG_IF(t < 0 || t >= exe->plan.n_tokens || tap < 0 || tap > exe->program->n_taps);
    *out = mat_row(value_of(exe, tap == 0 ? exe->program->hidden : exe->program->taps[tap - 1]), t);
    return OK;
}

static int cpu_expert_loads(const struct executable *exe, int64_t *out, int most) {
    return expert_loads(exe->loaded, out, most);
}

static void cpu_memory(const struct device *d, struct device_memory *out) {
    struct machine_memory memory;
    (void)d;
    machine_memory_get(&memory);
    *out = (struct device_memory){.total = memory.total};
}

static int cpu_report(const struct executable *exe, struct device_report out[MAX_DEVICE_REPORTS]) {
    const struct device_report all[] = {
        {"weight_copies_bytes", "weights, copies of the device's own", "bytes", NULL, exe->loaded->placed.n_bytes},
        {"step_bytes", "a step: values, scratch, results", "bytes", NULL, exe->n_bytes},
    };
    memcpy(out, all, sizeof all);
    return (int)ARRAY_LEN(all);
}

static const struct backend_option cpu_options[] = {
    {"shared-kv", "0|1", "0: keys of which a part follows from their values are stored whole"},
    {"activations", "int8|float32",
     "what meets weights in blocks (GGUF): rounded to 8 bits by 32 columns where the processor has AVX-512 VNNI, "
     "AVX2 or Arm's dot product, or as it is"},
    {"kernels", "portable|avx2|avx512|amx|bf16|neon|reference",
     "the instructions of fast kernels, otherwise the best there are; or the plain functions"},
    {"patience", "SECONDS", "how long a device waits for others of its model until it is given up; 30"},
    {0},
};

static const struct backend_probes cpu_probes = {.measure = cpu_measure};

const struct backend_ops backend_cpu = {
    .name = "cpu",
    .ragged = true,
    .rejects = true,
    .branches = true,
    .in_place = true,
    .max_back = 64,
    .max_in_flight = 1,
    .options = cpu_options,
    .probes = &cpu_probes,
    .open = cpu_open,
    .memory = cpu_memory,
    .close = cpu_close,
    .load = cpu_load,
    .unload = cpu_unload,
    .join = cpu_join,
    .alloc_cache = cpu_alloc_cache,
    .cache_block_bytes = cpu_cache_block_bytes,
    .handover = &cpu_handover,
    .compile = cpu_compile,
    .free_executable = cpu_free_executable,
    .report = cpu_report,
    .run = cpu_run,
    .draw = cpu_draw,
    .collect = cpu_collect,
    .logits = cpu_logits,
    .hidden = cpu_hidden,
    .expert_loads = cpu_expert_loads,
};
