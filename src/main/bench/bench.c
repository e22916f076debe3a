/* bench.c - gyre bench [MODEL]: what this machine can do, and how much of that a model gets.
 *
 * A prompt is computed and an answer generated through the engine, as gyre run does, with random prompt tokens;
 * both are given as per cent of the limit that holds them: prompts of the multiply-add rate, answers of the
 * rate at which memory can be read, since each token of one sequence reads every weight that it uses once. */
#include "main/verbs.h"

#include "backend/cpu/kernels/kernels.h"
#include "backend/cpu/measure.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/random.h"
#include "console/progress.h"
#include "engine/inspect.h"
#include "gyre.h"
#include "main/model/model_path.h"
#include "model/model.h"

#include <stdio.h>
#include <stdlib.h>

static struct {
    int64_t n_prompt, n_tokens, threads, repeat, read_bytes;
    const char *load_format;
} opt = {.n_prompt = 512, .n_tokens = 64, .repeat = 5, .read_bytes = 512 << 20, .load_format = "auto"};

static const struct flag flags[] = {
    {"prompt-tokens", 'p', FLAG_INT, &opt.n_prompt, "N", "Workload", "prompt tokens to compute", .min = 1,
     .max = 1 << 20},
    {"n-tokens", 'n', FLAG_INT, &opt.n_tokens, "N", "Workload", "tokens to generate", .min = 1, .max = 1 << 20},
    {"repeat", 'r', FLAG_INT, &opt.repeat, "N", "Workload", "runs of each; the median is printed", .min = 1, .max = 99},
    {"load-format", 0, FLAG_CHOICE, &opt.load_format, "auto|dummy", "Model",
     "dummy: random weights in the shapes of config.json"},
    ALLOW_LINKS_FLAG,
    {"threads", 't', FLAG_INT, &opt.threads, "N", "Device", "threads; 0 is one a processor", .min = 0, .max = 1024},
    {"read-size", 0, FLAG_SIZE, &opt.read_bytes, "BYTES", "Device", "memory to measure the read rate with",
     .min = 1 << 20, .max = 1e12},
};

/* ---- what a step must read and compute ---- */

/* A token of one sequence: bytes of weights that it reads, and multiply-adds with them. */
struct work {
    double bytes, multiply_adds;
};

/* The share of an op's weight that one token touches. */
static double touched(const struct op *op, int slot) {
    if (op->code == OP_EMBED)
        return 1.0 / (double)op->weights[0]->out;
    if (op->code == OP_MOE_FFN && slot < 4)
        return (double)op->args.moe_ffn.top_k / op->args.moe_ffn.n_experts;
    return 1;
}

/* head: the ops behind TAKE_ROWS, which a prompt runs for its last token only. */
static struct work work_of(const struct program *p, bool head) {
    struct work w = {0, 0};
    bool behind = false;
    for (int i = 0; i < p->n_ops; i++) {
        const struct op *op = &p->ops[i];
        behind = behind || op->code == OP_TAKE_ROWS;
        for (int k = 0; k < OP_MAX_WEIGHTS && behind == head; k++) {
            if (!op->weights[k])
                continue;
            w.bytes += (double)weight_stored_bytes(op->weights[k]) * touched(op, k);
            if (op->code != OP_EMBED && op->weights[k]->in > 1)
                w.multiply_adds += (double)op->weights[k]->out * (double)op->weights[k]->in * touched(op, k);
        }
    }
    return w;
}

/* ---- measuring ---- */

struct times {
    double *prompt_s, *decode_s; // [repeat]
};

static enum status run_request(struct gyre *g, const struct gyre_request *r, struct gyre_timing *timing,
                               struct error *err) {
    uint64_t id;
    struct gyre_error e;
    if (gyre_submit(g, r, &id, &e) != 0)
        return fail(err, ERR_ARG, "%s", e.text);
    while (gyre_busy(g)) {
        struct gyre_event events[16];
        int n = gyre_poll(g, events, 16);
        for (int i = 0; i < n; i++) {
            if (events[i].kind != GYRE_DONE)
                continue;
            if (events[i].finish == GYRE_FAILED)
                return fail(err, ERR_DEVICE, "%s", events[i].error);
            *timing = events[i].timing;
        }
    }
    return OK;
}

static enum status measure(struct gyre *g, struct times *t, struct error *err) {
    int32_t *ids = xcalloc((size_t)opt.n_prompt, sizeof *ids);
    struct gyre_request r = gyre_request_default(g);
    r.prompt = ids;
    r.n_prompt = opt.n_prompt;
    r.max_tokens = opt.n_tokens + 1; // the first one belongs to the prompt
    r.temperature = 0;
    r.ignore_eos = true;
    enum status st = OK;
    for (int64_t i = 0; i <= opt.repeat && st == OK; i++) {
        for (int64_t k = 0; k < opt.n_prompt; k++)
            ids[k] = (int32_t)(philox4x32((uint64_t)i, (uint64_t)k, 0).v[0] % (uint32_t)gyre_info(g)->vocab_size);
        struct gyre_timing timing = {0};
        st = run_request(g, &r, &timing, err);
        if (st == OK && i > 0) { // the first one faults the weights in
            t->prompt_s[i - 1] = (double)timing.prompt_us * 1e-6;
            t->decode_s[i - 1] = (double)timing.decode_us * 1e-6;
        }
    }
    free(ids);
    return st;
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *x) {
    qsort(x, (size_t)opt.repeat, sizeof *x, by_value);
    return x[opt.repeat / 2];
}

/* ---- printing ---- */

static void print_machine(const struct machine_limits *m) {
    printf("machine   %d thread%s, %s kernels\n", m->n_threads, m->n_threads == 1 ? "" : "s", m->kernels);
    printf("memory    %8.1f GB/s read\n", m->read_bytes_per_s * 1e-9);
    printf("compute   %8.1f GFLOP/s float32 multiply-add\n", 2 * m->multiply_adds_per_s * 1e-9);
    printf("barrier   %8.2f us\n", m->barrier_us);
}

static void print_model(const struct machine_limits *limits, const struct program *p, struct times *t) {
    struct work body = work_of(p, false), head = work_of(p, true);
    double n = (double)opt.n_prompt, prompt_s = median(t->prompt_s),
           token_s = median(t->decode_s) / (double)opt.n_tokens;
    double flops = 2 * (body.multiply_adds * n + head.multiply_adds), bytes = body.bytes + head.bytes;
    printf("prefill   %8.1f tokens/s, %lld tokens in %.3f s: %.1f GFLOP/s, %.0f %% of multiply-add\n", n / prompt_s,
           (long long)opt.n_prompt, prompt_s, flops / prompt_s * 1e-9,
           50 * flops / prompt_s / limits->multiply_adds_per_s);
    printf("decode    %8.1f tokens/s, %.1f MB of weights a token: %.1f GB/s, %.0f %% of memory read\n", 1 / token_s,
           bytes * 1e-6, bytes / token_s * 1e-9, 100 * bytes / token_s / limits->read_bytes_per_s);
}

static bool is_dummy(void) { return strcmp(opt.load_format, "dummy") == 0; }

static enum status check_path(const char *path, struct error *err) {
    return model_path_check(path, is_dummy() ? MODEL_SETTINGS : MODEL_COMPUTE, err);
}

/* Its program says what must be read. */
static enum status open_model(const char *path, struct model **out, struct error *err) {
    TRY(check_path(path, err));
    enum load_format load = is_dummy() ? LOAD_PHANTOM : LOAD_CHECKPOINT;
    return model_open(path, &(struct model_options){.load = load}, out, err);
}

static enum status bench_model(const char *path, const struct model *m, const struct machine_limits *limits,
                               struct error *err) {
    struct gyre_options o = {.model = path,
                             .backend = &backend_cpu,
                             .n_threads = (int)opt.threads,
                             .dummy_weights = is_dummy(),
                             .dtype = kernels_bf16() ? "bfloat16" : NULL, // as a server computes
                             .max_model_len = opt.n_prompt + opt.n_tokens + 2,
                             .max_seqs = 1};
    struct gyre *g;
    struct gyre_error e;
    struct progress loading = {0};
    o.load_step = progress_of_load;
    o.load_context = &loading;
    struct times t = {xcalloc((size_t)opt.repeat, sizeof(double)), xcalloc((size_t)opt.repeat, sizeof(double))};
    enum status st = gyre_open(&o, &g, &e) == 0 ? OK : fail(err, (enum status)e.status, "%s", e.text);
    progress_end(&loading);
    if (st == OK) {
        engine_settle(g);
        st = measure(g, &t, err);
        gyre_close(g);
    }
    if (st == OK)
        print_model(limits, m->program, &t);
    free(t.prompt_s);
    free(t.decode_s);
    return st;
}

static int run(const struct verb_args *args) {
    struct error err;
    struct machine_limits limits;
    struct model *m = NULL;
    if (args->n > 0 && open_model(args->operands[0], &m, &err) != OK) // before a machine is measured for a second
        return verb_failed(&err);
    enum status st = measure_machine((int)opt.threads, opt.read_bytes, &limits, &err);
    if (st == OK)
        print_machine(&limits);
    if (st == OK && m)
        st = bench_model(args->operands[0], m, &limits, &err);
    model_free(m);
    return st == OK ? 0 : verb_failed(&err);
}

const struct verb_spec verb_bench = {
    "bench",
    "[MODEL|config.json]",
    "measures this machine, and a model on it against what the machine can do",
    flags,
    ARRAY_LEN(flags),
    0,
    1,
    .run = run,
    .epilogue = "Reads of the KV cache are not counted; each row is the median of --repeat runs after one to warm up.\n"
                "  gyre bench models/story\n"
                "  gyre bench Qwen2.5-0.5B/config.json --load-format dummy -p 512 -n 64\n"};
