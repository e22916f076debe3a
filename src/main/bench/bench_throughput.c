/* bench_throughput.c - gyre bench throughput: how fast the engine gets through many requests, without a server
 * between, with vllm bench throughput's flags and lines. */
#include "main/verbs.h"

#include "base/file.h"
#include "bench/bench_bound.h"
#include "engine/inspect.h"
#include "main/bench/bench_batch.h"
#include "main/bench/bench_dataset_flags.h"
#include "main/flags/engine_flags.h"
#include "main/model/model_text.h"

#include <stdio.h>
#include <stdlib.h>

static struct {
    const char *model, *tokenizer, *output_json;
    int64_t n;
    bool no_text, trust;
    struct bench_dataset_options data;
    struct engine_flags engine;
} opt = {.n = 1, .data = BENCH_DATASET_DEFAULT, .engine = ENGINE_FLAGS_DEFAULT};

/* clang-format off */
static const struct flag flags[] = {
    {"model", 0, FLAG_STRING, &opt.model, "MODEL", "Workload", "the model, in place of the argument"},
    {"tokenizer", 0, FLAG_STRING, &opt.tokenizer, "FOLDER", "Workload", "folder with the tokenizer; otherwise the model's"},
    {"n", 0, FLAG_INT, &opt.n, "N", "Workload", "answers to each prompt", .min = 1, .max = 1 << 10},
    {"disable-detokenize", 0, FLAG_BOOL, &opt.no_text, NULL, "Workload", "do not make text of the answers"},
    BENCH_DATASET_FLAGS(opt.data),
    {"output-json", 0, FLAG_STRING, &opt.output_json, "FILE", "Report", "write the figures as JSON"},
    {"enable-prefix-caching", 0, FLAG_BOOL, &opt.engine.prefix_cache, NULL, "Engine", "do not compute again what earlier prompts began with"},
    {"trust-remote-code", 0, FLAG_BOOL, &opt.trust, NULL, "Engine", "nothing here runs code of a model; taken so that a vllm bench line can be pasted"},
    ENGINE_FLAGS(opt.engine),
};
/* clang-format on */

static enum status write_json(double seconds, int64_t n_requests, int64_t n_tokens, const struct bench_bound *bound,
                              struct error *err) {
    json_t *json = json_pack("{s:f, s:I, s:I, s:f, s:f}", "elapsed_time", seconds, "num_requests",
                             (json_int_t)n_requests, "total_num_tokens", (json_int_t)n_tokens, "requests_per_second",
                             (double)n_requests / seconds, "tokens_per_second", (double)n_tokens / seconds);
    if (bound)
        bench_bound_json(bound, json);
    char *text = json_dumps(json, JSON_INDENT(4) | JSON_REAL_PRECISION(12));
    enum status st = file_write(opt.output_json, str_of(text), err);
    free(text);
    json_decref(json);
    return st;
}

/* What was timed is written, whether or not its bound can be found. */
static enum status report(struct gyre *g, double seconds, int64_t n_requests, int64_t n_prompt, int64_t n_output,
                          const struct gpu_report *gpu, struct error *err) {
    double total = (double)(n_prompt + n_output) / seconds;
    printf("Throughput: %.2f requests/s, %.2f total tokens/s, %.2f output tokens/s\n", (double)n_requests / seconds,
           total, (double)n_output / seconds);
    printf("Total num prompt tokens:  %lld\n", (long long)n_prompt);
    printf("Total num output tokens:  %lld\n", (long long)n_output);
    double n = (double)(n_requests * opt.n);
    struct bench_shape load = {
        .n = n, .n_prompt = (double)n_prompt / (double)n_requests, .n_output = (double)n_output / n, .n_seqs = n};
    struct bench_bound bound;
    struct error unwritten;
    enum status found = bench_bound_find(g, &load, seconds, gpu, &bound, err), written = OK;
    if (found == OK)
        bench_bound_print(g, &bound);
    if (opt.output_json)
        written = write_json(seconds, n_requests, n_prompt + n_output, found == OK ? &bound : NULL,
                             found == OK ? err : &unwritten);
    return found == OK ? written : found;
}

static enum status measure(struct gyre *g, const struct model_text *text, const struct bench_dataset *data,
                           struct error *err) {
    struct bench_job *jobs = xcalloc(data->n, sizeof *jobs);
    struct progress progress;
    int64_t n_prompt = 0, n_output;
    double seconds;
    struct gpu_watch *watch = NULL;
    struct gpu_report gpu;
    const char *why;
    for (size_t i = 0; i < data->n; i++) {
        const struct bench_prompt *p = &data->prompts[i];
        jobs[i] = (struct bench_job){p->ids.ids, (int64_t)p->ids.n, p->n_output_tokens};
        n_prompt += (int64_t)p->ids.n;
    }
    progress_begin(&progress, "bench throughput", "requests", (int64_t)data->n * opt.n);
    struct bench_batch batch = {.jobs = jobs,
                                .n = data->n,
                                .copies = opt.n,
                                .tokenizer = opt.no_text ? NULL : text->tok,
                                .seed = (uint64_t)opt.data.seed,
                                .progress = &progress};
    gpu_watch_start(&watch, &why);
    enum status st = bench_batch_run(g, &batch, &seconds, &n_output, err);
    gpu_watch_stop(watch, &gpu);
    progress_end(&progress);
    free(jobs);
    TRY(st);
    return report(g, seconds, (int64_t)data->n, n_prompt, n_output, &gpu, err);
}

static enum status open_text(struct model_text *text, const char *model, struct error *err) {
    const char *folder = opt.tokenizer ? opt.tokenizer : model;
    TRY(model_text_open(text, folder, err));
    bool templated = strcmp(opt.data.name, "custom") == 0 && !opt.data.skip_chat_template;
    return templated && chat_template_exists(folder) ? model_text_open_chat(text, folder, err) : OK;
}

static int run(const struct verb_args *args) {
    struct error err;
    struct gyre *g = NULL;
    struct model_text text = {0};
    struct bench_dataset data = {0};
    const char *model = args->n ? args->operands[0] : opt.model;
    if (!model || (args->n && opt.model))
        return verb_misused(args->spec, "bench throughput needs one MODEL, or --model");
    enum status st = open_text(&text, model, &err);
    if (st == OK)
        st = bench_dataset_make(&opt.data, &(struct bench_text){text.tok, text.encoder, text.chat}, &data, &err);
    opt.engine.serves = true;
    if (st == OK)
        st = engine_flags_open(&opt.engine, model, &g, &err);
    if (st == OK) {
        engine_settle(g);
        st = measure(g, &text, &data, &err);
    }
    gyre_close(g);
    bench_dataset_release(&data);
    model_text_release(&text);
    return st == OK ? 0 : verb_failed(&err);
}

const struct verb_spec verb_bench_throughput = {
    "bench throughput",
    "[MODEL]",
    "gets many requests through the engine, as vllm bench throughput does",
    flags,
    ARRAY_LEN(flags),
    0,
    1,
    .run = run,
    .epilogue = "Answers are drawn at temperature 1 and as long as asked for. What a server adds is seen with: gyre "
                "bench serve.\n"
                "  gyre bench throughput models/story --num-prompts 200 --input-len 64 --output-len 64\n"};
