/* bench_latency.c - gyre bench latency: how long one batch takes, with vllm bench latency's flags and lines. */
#include "main/verbs.h"

#include "base/file.h"
#include "base/json/json.h"
#include "base/random.h"
#include "bench/bench_bound.h"
#include "bench/bench_report.h"
#include "engine/inspect.h"
#include "main/bench/bench_batch.h"
#include "main/flags/engine_flags.h"
#include "main/model/model_path.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

static struct {
    const char *model, *output_json;
    int64_t input_len, output_len, batch_size, n, n_warmup, n_iters, seed;
    bool no_text, trust, prefix_cache;
    struct engine_flags engine;
} opt = {.input_len = 32,
         .output_len = 128,
         .batch_size = 8,
         .n = 1,
         .n_warmup = 10,
         .n_iters = 30,
         .engine = ENGINE_FLAGS_DEFAULT};

/* clang-format off */
static const struct flag flags[] = {
    {"model", 0, FLAG_STRING, &opt.model, "MODEL", "Workload", "the model, in place of the argument"},
    {"input-len", 0, FLAG_INT, &opt.input_len, "N", "Workload", "tokens of each prompt, random ones", .min = 1, .max = 1 << 24},
    {"output-len", 0, FLAG_INT, &opt.output_len, "N", "Workload", "tokens of each answer", .min = 1, .max = 1 << 24},
    {"batch-size", 0, FLAG_INT, &opt.batch_size, "N", "Workload", "prompts at one time", .min = 1, .max = 1 << 16},
    {"n", 0, FLAG_INT, &opt.n, "N", "Workload", "answers to each", .min = 1, .max = 1 << 10},
    {"num-iters-warmup", 0, FLAG_INT, &opt.n_warmup, "N", "Workload", "batches before it, which are not counted", .min = 0, .max = 1 << 20},
    {"num-iters", 0, FLAG_INT, &opt.n_iters, "N", "Workload", "batches that are timed", .min = 1, .max = 1 << 20},
    {"seed", 0, FLAG_INT, &opt.seed, "N", "Workload", "of prompts and answers", .min = 0, .max = 1e18},
    {"disable-detokenize", 0, FLAG_BOOL, &opt.no_text, NULL, "Workload", "do not make text of the answers"},
    {"output-json", 0, FLAG_STRING, &opt.output_json, "FILE", "Report", "write the figures as JSON"},
    {"enable-prefix-caching", 0, FLAG_BOOL, &opt.prefix_cache, NULL, "Engine", "the batches are alike: with it their prompts are computed once"},
    {"trust-remote-code", 0, FLAG_BOOL, &opt.trust, NULL, "Engine", "nothing here runs code of a model; taken so that a vllm bench line can be pasted"},
    ENGINE_FLAGS(opt.engine),
};
/* clang-format on */

static const int percentages[] = {10, 25, 50, 75, 90, 99};

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static enum status time_batches(struct gyre *g, const struct bench_batch *batch, double *latencies,
                                struct gpu_report *gpu, struct error *err) {
    struct progress progress;
    struct gpu_watch *watch = NULL;
    const char *why;
    enum status st = OK;
    progress_begin(&progress, "bench latency", "batches", opt.n_warmup + opt.n_iters);
    for (int64_t i = 0; i < opt.n_warmup + opt.n_iters && st == OK; i++) {
        double seconds;
        int64_t n_output;
        if (i == opt.n_warmup)
            gpu_watch_start(&watch, &why);
        st = bench_batch_run(g, batch, &seconds, &n_output, err);
        if (i >= opt.n_warmup)
            latencies[i - opt.n_warmup] = seconds;
        progress_step(&progress, i + 1);
    }
    gpu_watch_stop(watch, gpu);
    progress_end(&progress);
    return st;
}

/* Of the median batch. The energy is that of all. */
static enum status find_bound(struct gyre *g, const double *sorted, const struct gpu_report *gpu,
                              struct bench_bound *out, struct error *err) {
    double n = (double)(opt.batch_size * opt.n);
    struct bench_shape load = {
        .n = n, .n_prompt = (double)opt.input_len, .n_output = (double)opt.output_len, .n_seqs = n};
    struct gpu_report of_one = *gpu;
    of_one.joules /= (double)opt.n_iters;
    return bench_bound_find(g, &load, sorted_percentile(sorted, (size_t)opt.n_iters, 50), &of_one, out, err);
}

/* x in the order of time, sorted in size order. What was timed is written, whether or not its bound can be found. */
static enum status report(struct gyre *g, const double *x, const double *sorted, const struct gpu_report *gpu,
                          struct error *err) {
    size_t n = (size_t)opt.n_iters;
    double mean = 0, square = 0;
    for (size_t i = 0; i < n; i++)
        mean += x[i] / (double)n;
    for (size_t i = 0; i < n; i++)
        square += (x[i] - mean) * (x[i] - mean) / (double)n;
    json_t *json = json_object(), *all = json_array(), *percentiles = json_object();
    json_object_set_new(json, "avg_latency", json_real(mean));
    json_object_set_new(json, "std_latency", json_real(sqrt(square)));
    json_object_set_new(json, "latencies", all);
    json_object_set_new(json, "percentiles", percentiles);
    for (size_t i = 0; i < n; i++)
        json_array_append_new(all, json_real(x[i]));
    printf("Avg latency: %.9g seconds\n", mean);
    printf("Std latency: %.9g seconds\n", sqrt(square));
    for (size_t i = 0; i < ARRAY_LEN(percentages); i++) {
        char name[16];
        double value = sorted_percentile(sorted, n, percentages[i]);
        printf("%d%% percentile latency: %.9g seconds\n", percentages[i], value);
        snprintf(name, sizeof name, "%d", percentages[i]);
        json_object_set_new(percentiles, name, json_real(value));
    }
    struct bench_bound bound;
    enum status found = find_bound(g, sorted, gpu, &bound, err), written = OK;
    if (found == OK) {
        bench_bound_print(g, &bound);
        bench_bound_json(&bound, json);
    }
    struct error unwritten;
    char *text = json_dumps(json, JSON_INDENT(4) | JSON_REAL_PRECISION(12));
    if (opt.output_json)
        written = file_write(opt.output_json, str_of(text), found == OK ? err : &unwritten);
    free(text);
    json_decref(json);
    return found == OK ? written : found;
}

static enum status measure(struct gyre *g, const struct tokenizer *tok, struct error *err) {
    struct bench_job *jobs = xcalloc((size_t)opt.batch_size, sizeof *jobs);
    int32_t *ids = xcalloc((size_t)(opt.batch_size * opt.input_len), sizeof *ids);
    double *latencies = xcalloc((size_t)opt.n_iters, sizeof *latencies),
           *sorted = xcalloc((size_t)opt.n_iters, sizeof *sorted);
    uint32_t n_vocab = (uint32_t)gyre_info(g)->vocab_size;
    for (int64_t i = 0; i < opt.batch_size * opt.input_len; i++)
        ids[i] = (int32_t)(philox4x32((uint64_t)opt.seed, (uint64_t)i, 0).v[0] % MIN(n_vocab, 10000));
    for (int64_t i = 0; i < opt.batch_size; i++)
        jobs[i] = (struct bench_job){ids + i * opt.input_len, opt.input_len, opt.output_len};
    struct bench_batch batch = {
        .jobs = jobs, .n = (size_t)opt.batch_size, .copies = opt.n, .tokenizer = tok, .seed = (uint64_t)opt.seed};
    struct gpu_report gpu;
    enum status st = time_batches(g, &batch, latencies, &gpu, err);
    if (st == OK) {
        memcpy(sorted, latencies, (size_t)opt.n_iters * sizeof *sorted);
        qsort(sorted, (size_t)opt.n_iters, sizeof *sorted, by_value);
        st = report(g, latencies, sorted, &gpu, err);
    }
    free(jobs);
    free(ids);
    free(latencies);
    free(sorted);
    return st;
}

static int run(const struct verb_args *args) {
    struct error err;
    struct gyre *g = NULL;
    struct tokenizer *tok = NULL;
    const char *model = args->n ? args->operands[0] : opt.model;
    if (!model || (args->n && opt.model))
        return verb_misused(args->spec, "bench latency needs one MODEL, or --model");
    opt.engine.prefix_cache = opt.prefix_cache;
    opt.engine.max_seqs = MAX(opt.engine.max_seqs, opt.batch_size * opt.n);
    bool has_text = !opt.no_text && tokenizer_in_folder(model);
    enum status st = has_text ? model_path_check(model, MODEL_TEXT, &err) : OK;
    if (st == OK && has_text)
        st = tokenizer_open(model, &tok, &err);
    opt.engine.serves = true;
    if (st == OK)
        st = engine_flags_open(&opt.engine, model, &g, &err);
    if (st == OK) {
        engine_settle(g);
        st = measure(g, tok, &err);
    }
    gyre_close(g);
    tokenizer_free(tok);
    return st == OK ? 0 : verb_failed(&err);
}

const struct verb_spec verb_bench_latency = {
    "bench latency",
    "[MODEL]",
    "times one batch through the engine, as vllm bench latency does",
    flags,
    ARRAY_LEN(flags),
    0,
    1,
    .run = run,
    .epilogue = "As in vllm bench latency the prefix cache is off unless it is asked for, and answers are drawn at "
                "temperature 1.\n"
                "  gyre bench latency models/story --batch-size 4 --num-iters 10 --num-iters-warmup 2\n"};
