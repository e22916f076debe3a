/* bench_serve.c - gyre bench serve: how a server does under load, with vllm bench serve's flags, table and JSON. */
#include "main/verbs.h"

#include "base/clock.h"
#include "base/file.h"
#include "bench/bench_report.h"
#include "console/terminal.h"
#include "main/bench/bench_dataset_flags.h"
#include "main/model/model_text.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static struct {
    const char *backend, *base_url, *ca_file, *host, *endpoint, *key, *model, *served_name, *tokenizer, *rate, *metrics,
        *percentiles, *label, *result_dir, *result_filename, *extra_body;
    struct flag_list headers, goodput, metadata;
    int64_t port, max_concurrency, n_warmups, ready_seconds, patience_s, top_k, logprobs;
    double burstiness, temperature, top_p, min_p, frequency_penalty, presence_penalty, repetition_penalty;
    bool ignore_eos, save_result, save_detailed, append_result, no_progress, trust;
    struct bench_dataset_options data;
} opt = {.backend = "openai",
         .host = "127.0.0.1",
         .rate = "inf",
         .metrics = "ttft,tpot,itl",
         .percentiles = "99",
         .port = 8000,
         .ready_seconds = 600,
         .patience_s = 600,
         .top_k = -2,
         .logprobs = -1,
         .burstiness = 1,
         .temperature = -1,
         .top_p = -1,
         .min_p = -1,
         .frequency_penalty = -3,
         .presence_penalty = -3,
         .repetition_penalty = -1,
         .data = BENCH_DATASET_DEFAULT};

/* clang-format off */
static const struct flag flags[] = {
    {"backend", 0, FLAG_CHOICE, &opt.backend, "openai|vllm|openai-chat|vllm-chat", "Server", "completions, or chat; vllm is another name of openai"},
    {"base-url", 0, FLAG_STRING, &opt.base_url, "URL", "Server", "the server, in place of --host and --port"},
    {"host", 0, FLAG_STRING, &opt.host, "ADDRESS", "Server", "the server's address"},
    {"port", 0, FLAG_INT, &opt.port, "N", "Server", "and port", .min = 1, .max = 65535},
    {"endpoint", 0, FLAG_STRING, &opt.endpoint, "PATH", "Server", "otherwise /v1/completions or /v1/chat/completions, by --backend"},
    {"api-key", 0, FLAG_STRING, &opt.key, "KEY", "Server", "sent as a bearer token; OPENAI_API_KEY is read too, for https"},
    {"header", 0, FLAG_LIST, &opt.headers, "NAME=VALUE", "Server", "a header of each request; may be repeated"},
    {"cacert", 0, FLAG_STRING, &opt.ca_file, "FILE", "Server", "PEM certificates to trust in place of the system's"},
    {"model", 0, FLAG_STRING, &opt.model, "NAME", "Server", "otherwise the first that the server lists"},
    {"served-model-name", 0, FLAG_STRING, &opt.served_name, "NAME", "Server", "the name to send, where --model is a folder"},
    {"timeout", 0, FLAG_INT, &opt.patience_s, "SECONDS", "Server", "how long the server may send nothing of an answer; 0 is no bound", .min = 0,
     .max = 86400},
    {"ready-check-timeout-sec", 0, FLAG_INT, &opt.ready_seconds, "SECONDS", "Server", "how long a first request may be tried until one succeeds; 0 makes none", .min = 0, .max = 86400},
    {"request-rate", 0, FLAG_STRING, &opt.rate, "RATE|inf", "Load", "requests a second; inf sends all at once"},
    {"burstiness", 0, FLAG_REAL, &opt.burstiness, "X", "Load", "1 is a Poisson process, less comes in bursts, more is even", .min = 0.001, .max = 1e6},
    {"max-concurrency", 0, FLAG_INT, &opt.max_concurrency, "N", "Load", "requests at one time; 0 is no bound", .min = 0, .max = 1 << 20},
    {"num-warmups", 0, FLAG_INT, &opt.n_warmups, "N", "Load", "requests before it, which are not counted", .min = 0, .max = 1 << 20},
    BENCH_DATASET_FLAGS(opt.data),
    {"tokenizer", 0, FLAG_STRING, &opt.tokenizer, "FOLDER", "Dataset", "model folder with the tokenizer; otherwise --model where that is one"},
    ALLOW_LINKS_FLAG,
    {"ignore-eos", 0, FLAG_BOOL, &opt.ignore_eos, NULL, "Sampling", "answers as long as asked; always so for random prompts"},
    {"temperature", 0, FLAG_REAL, &opt.temperature, "T", "Sampling", "otherwise 0", .min = 0, .max = 100},
    {"top-p", 0, FLAG_REAL, &opt.top_p, "P", "Sampling", "only the most probable tokens that together have probability P. This and the next: sent if given", .min = 0, .max = 1},
    {"top-k", 0, FLAG_INT, &opt.top_k, "K", "Sampling", "only the K most probable tokens", .min = -1, .max = INT32_MAX},
    {"min-p", 0, FLAG_REAL, &opt.min_p, "P", "Sampling", "only tokens of at least P times the probability of the best", .min = 0, .max = 1},
    {"frequency-penalty", 0, FLAG_REAL, &opt.frequency_penalty, "X", "Sampling", "less, each time, for tokens of the answer", .min = -2, .max = 2},
    {"presence-penalty", 0, FLAG_REAL, &opt.presence_penalty, "X", "Sampling", "less, once, for tokens of the answer", .min = -2, .max = 2},
    {"repetition-penalty", 0, FLAG_REAL, &opt.repetition_penalty, "X", "Sampling", "makes tokens seen before less probable", .min = 0.01, .max = 100},
    {"logprobs", 0, FLAG_INT, &opt.logprobs, "N", "Sampling", "ask completions for the N most probable tokens of each", .min = 0, .max = 1000},
    {"extra-body", 0, FLAG_STRING, &opt.extra_body, "JSON", "Sampling", "an object of more fields for each request"},
    {"percentile-metrics", 0, FLAG_STRING, &opt.metrics, "LIST", "Report", "of ttft, tpot, itl, e2el"},
    {"metric-percentiles", 0, FLAG_STRING, &opt.percentiles, "LIST", "Report", "percentiles of each"},
    {"goodput", 0, FLAG_LIST, &opt.goodput, "METRIC:MS", "Report", "count requests within these bounds (ttft, tpot, e2el); more may follow"},
    {"save-result", 0, FLAG_BOOL, &opt.save_result, NULL, "Report", "write the figures as JSON"},
    {"save-detailed", 0, FLAG_BOOL, &opt.save_detailed, NULL, "Report", "and in it each request's times, text and error"},
    {"append-result", 0, FLAG_BOOL, &opt.append_result, NULL, "Report", "add to the file in place of replacing it"},
    {"metadata", 0, FLAG_LIST, &opt.metadata, "NAME=VALUE", "Report", "another field of the JSON; may be repeated"},
    {"label", 0, FLAG_STRING, &opt.label, "TEXT", "Report", "what the file's name begins with; otherwise the backend"},
    {"result-dir", 0, FLAG_STRING, &opt.result_dir, "FOLDER", "Report", "where it goes"},
    {"result-filename", 0, FLAG_STRING, &opt.result_filename, "NAME", "Report", "its name; otherwise made of label, rate, model and date"},
    {"disable-tqdm", 0, FLAG_BOOL, &opt.no_progress, NULL, "Report", "no progress bar"},
    {"trust-remote-code", 0, FLAG_BOOL, &opt.trust, NULL, "Report", "nothing here runs code of a model; taken so that a vllm bench line can be pasted"},
};
/* clang-format on */

struct bench {
    struct api_server server;
    struct buf base;
    struct model_text text;
    struct bench_dataset data;
    struct bench_report_options report;
    json_t *extra; // fields of each request
    char *model;   // the name that is sent
    struct buf header_lines[64];
    const char *headers[64];
    double rate;
    bool chat;
};

// ---- what was asked ---------------------------------------------------------------------------------------------

static enum status read_rate(struct bench *b, struct error *err) {
    char *end;
    b->rate = strcmp(opt.rate, "inf") == 0 ? INFINITY : strtod(opt.rate, &end);
    if (!isinf(b->rate) && (end == opt.rate || *end || !(b->rate > 0)))
        return fail(err, ERR_ARG, "--request-rate: \"%s\" is neither a rate above 0 nor inf", opt.rate);
    return OK;
}

/* NAME=VALUE; *value is what follows the sign. */
static enum status split_pair(const char *flag, const char *pair, const char **value, struct error *err) {
    const char *sign = strchr(pair, '=');
    if (!sign || sign == pair || strpbrk(pair, "\r\n"))
        return fail(err, ERR_ARG, "%s: \"%s\" is not NAME=VALUE", flag, pair);
    *value = sign + 1;
    return OK;
}

static enum status read_headers(struct bench *b, struct error *err) {
    const char *value;
    if (opt.headers.n > ARRAY_LEN(b->headers))
        return fail(err, ERR_LIMIT, "--header: more than %zu", ARRAY_LEN(b->headers));
    for (size_t i = 0; i < opt.headers.n; i++) {
        TRY(split_pair("--header", opt.headers.items[i], &value, err));
        buf_printf(&b->header_lines[i], "%.*s: %s", (int)(value - 1 - opt.headers.items[i]), opt.headers.items[i],
                   value);
        b->headers[i] = b->header_lines[i].ptr;
    }
    return OK;
}

static enum status read_extra(struct bench *b, struct error *err) {
    const struct {
        const char *name;
        double value, least;
    } sampling[] = {{"top_p", opt.top_p, 0},
                    {"min_p", opt.min_p, 0},
                    {"frequency_penalty", opt.frequency_penalty, -2},
                    {"presence_penalty", opt.presence_penalty, -2},
                    {"repetition_penalty", opt.repetition_penalty, 0}};
    json_t *more = NULL;
    b->extra = json_object();
    json_object_set_new(b->extra, "temperature", json_real(MAX(opt.temperature, 0)));
    for (size_t i = 0; i < ARRAY_LEN(sampling); i++)
        if (sampling[i].value >= sampling[i].least)
            json_object_set_new(b->extra, sampling[i].name, json_real(sampling[i].value));
    if (opt.top_k >= -1)
        json_object_set_new(b->extra, "top_k", json_integer(opt.top_k));
    if (opt.logprobs >= 0 && !b->chat)
        json_object_set_new(b->extra, "logprobs", json_integer(opt.logprobs));
    if (!opt.extra_body)
        return OK;
    TRY(jv_parse(str_of(opt.extra_body), "--extra-body", 0, &more, err));
    enum status st =
        json_object_update(b->extra, more) == 0 ? OK : fail(err, ERR_ARG, "--extra-body: it is not an object");
    json_decref(more);
    return st;
}

/* vllm's --goodput takes several words; those after the first come here as operands. */
static enum status read_report(struct bench *b, const struct verb_args *args, struct error *err) {
    TRY(bench_report_metrics(&b->report, opt.metrics, err));
    TRY(bench_report_percentiles(&b->report, opt.percentiles, err));
    for (size_t i = 0; i < opt.goodput.n; i++)
        TRY(bench_report_goodput(&b->report, opt.goodput.items[i], err));
    for (size_t i = 0; i < args->n; i++) {
        if (opt.goodput.n == 0)
            return fail(err, ERR_ARG, "\"%s\": only --goodput is followed by more words", args->operands[i]);
        TRY(bench_report_goodput(&b->report, args->operands[i], err));
    }
    const char *value;
    for (size_t i = 0; i < opt.metadata.n; i++)
        TRY(split_pair("--metadata", opt.metadata.items[i], &value, err));
    return OK;
}

static enum status open_text(struct bench *b, struct error *err) {
    const char *folder = opt.tokenizer ? opt.tokenizer : opt.model && dir_exists(opt.model) ? opt.model : NULL;
    bool templated = strcmp(opt.data.name, "custom") == 0 && !opt.data.skip_chat_template && !b->chat;
    if (!folder)
        return OK;
    TRY(model_text_open(&b->text, folder, err));
    return templated && chat_template_exists(folder) ? model_text_open_chat(&b->text, folder, err) : OK;
}

static enum status prepare(struct bench *b, const struct verb_args *args, struct error *err) {
    b->chat = strstr(opt.backend, "-chat") != NULL;
    TRY(read_rate(b, err));
    TRY(read_report(b, args, err));
    TRY(read_headers(b, err));
    TRY(read_extra(b, err));
    buf_printf(&b->base, strchr(opt.host, ':') ? "http://[%s]:%lld" : "http://%s:%lld", opt.host, (long long)opt.port);
    b->server = (struct api_server){.base = opt.base_url ? opt.base_url : b->base.ptr,
                                    .key = api_key_or_environment(opt.key, opt.base_url ? opt.base_url : b->base.ptr),
                                    .headers = b->headers,
                                    .n_headers = opt.headers.n,
                                    .ca_file = opt.ca_file};
    TRY(open_text(b, err));
    TRY(bench_dataset_make(&opt.data, &(struct bench_text){b->text.tok, b->text.encoder, b->text.chat}, &b->data, err));
    if (opt.served_name || opt.model)
        b->model = xstrdup(opt.served_name ? opt.served_name : opt.model);
    return OK;
}

// ---- running ----------------------------------------------------------------------------------------------------

static struct bench_load load_of(const struct bench *b) {
    const char *path = b->chat ? "/v1/chat/completions" : "/v1/completions";
    return (struct bench_load){.server = &b->server,
                               .path = opt.endpoint ? opt.endpoint : path,
                               .chat = b->chat,
                               .model = b->model,
                               .extra = b->extra,
                               .ignore_eos = opt.ignore_eos || strcmp(opt.data.name, "random") == 0,
                               .prompts = b->data.prompts,
                               .n = b->data.n,
                               .rate = b->rate,
                               .burstiness = opt.burstiness,
                               .max_concurrency = opt.max_concurrency,
                               .seed = (uint64_t)opt.data.seed,
                               .patience_s = opt.patience_s,
                               .progress = !opt.no_progress};
}

/* n times the first prompt; a fault is that of the last that failed. */
static enum status try_requests(const struct bench *b, size_t n, struct error *err) {
    struct bench_prompt *prompts = xcalloc(n, sizeof *prompts);
    struct bench_result *results = xcalloc(n, sizeof *results);
    struct bench_load load = load_of(b);
    enum status st = OK;
    for (size_t i = 0; i < n; i++)
        prompts[i] = b->data.prompts[0];
    load.prompts = prompts, load.n = n, load.rate = INFINITY, load.progress = false;
    bench_load_run(&load, results);
    for (size_t i = 0; i < n; i++) {
        if (!results[i].success)
            st = fail(err, ERR_IO, "%s", results[i].error);
        bench_result_release(&results[i]);
    }
    free(prompts);
    free(results);
    return st;
}

/* A server that is still loading its model refuses connections or says 503. */
static enum status wait_until_ready(struct bench *b, struct error *err) {
    int64_t start = clock_us();
    for (;;) {
        enum status st = b->model ? OK : api_first_model(&b->server, &b->model, err);
        if (st == OK && opt.ready_seconds > 0)
            st = try_requests(b, 1, err);
        if (st == OK || strcmp(err->text, "interrupted") == 0 ||
            clock_seconds_since(start) + 1 > (double)opt.ready_seconds)
            return st == OK ? OK : fail_within(err, st, "a first request failed");
        sleep(1);
    }
}

static void print_traffic(const struct bench *b) {
    printf("Model: ");
    terminal_print(stdout, str_of(b->model));
    printf("\n");
    printf("Traffic request rate: %s\n", opt.rate);
    printf(opt.burstiness == floor(opt.burstiness) ? "Burstiness factor: %.1f (%s)\n" : "Burstiness factor: %g (%s)\n",
           opt.burstiness, opt.burstiness == 1 ? "Poisson process" : "Gamma distribution");
    if (opt.max_concurrency > 0)
        printf("Maximum request concurrency: %lld\n", (long long)opt.max_concurrency);
    else
        printf("Maximum request concurrency: None\n");
    fflush(stdout);
}

// ---- the file ---------------------------------------------------------------------------------------------------

static json_t *describe(const struct bench *b, const char *date) {
    const char *tokenizer = opt.tokenizer ? opt.tokenizer : b->model;
    json_t *o = json_pack("{s:s, s:s, s:s, s:s?, s:s, s:s, s:I}", "date", date, "endpoint_type", opt.backend, "backend",
                          opt.backend, "label", opt.label, "model_id", b->model, "tokenizer_id", tokenizer,
                          "num_prompts", (json_int_t)opt.data.n_prompts);
    for (size_t i = 0; i < opt.metadata.n; i++) {
        const char *pair = opt.metadata.items[i], *sign = strchr(pair, '=');
        char *name = strndup(pair, (size_t)(sign - pair));
        json_object_set_new(o, name, json_string(sign + 1));
        free(name);
    }
    json_object_set_new(o, "request_rate", isinf(b->rate) ? json_string("inf") : json_real(b->rate));
    json_object_set_new(o, "burstiness", json_real(opt.burstiness));
    json_object_set_new(o, "max_concurrency",
                        opt.max_concurrency > 0 ? json_integer(opt.max_concurrency) : json_null());
    return o;
}

static void file_name(const struct bench *b, const char *date, struct buf *out) {
    const char *slash = strrchr(b->model, '/');
    if (opt.result_dir)
        buf_printf(out, "%s/", opt.result_dir);
    if (opt.result_filename) {
        buf_str(out, str_of(opt.result_filename));
        return;
    }
    buf_printf(out, "%s-%sqps", opt.label ? opt.label : opt.backend, opt.rate);
    if (opt.max_concurrency > 0)
        buf_printf(out, "-concurrency%lld", (long long)opt.max_concurrency);
    buf_printf(out, "-%s-%s.json", slash ? slash + 1 : b->model, date);
}

static enum status save(const struct bench *b, const json_t *json, const char *date, struct error *err) {
    struct buf name = {0}, text = {0};
    enum status st = OK;
    file_name(b, date, &name);
    if (opt.result_dir && mkdir(opt.result_dir, 0777) != 0 && errno != EEXIST)
        st = fail(err, ERR_IO, "%s: cannot make this folder: %s", opt.result_dir, strerror(errno));
    if (st == OK && opt.append_result && file_exists(name.ptr)) {
        st = file_read(name.ptr, 1 << 30, &text, err);
        buf_push(&text, '\n');
    }
    char *dumped = json_dumps(json, JSON_REAL_PRECISION(12));
    buf_str(&text, str_of(dumped));
    free(dumped);
    if (st == OK)
        st = file_write(name.ptr, buf_view(&text), err);
    if (st == OK)
        fprintf(stderr, "written to %s\n", name.ptr);
    buf_release(&name);
    buf_release(&text);
    return st;
}

// ---- the verb ---------------------------------------------------------------------------------------------------

/* The first error is shown: a table of failures without a reason helps nobody. */
static void print_first_error(const struct bench_result *results, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (!results[i].success) {
            fprintf(stderr, "gyre: request %zu failed: %s\n", i, results[i].error);
            return;
        }
}

static enum status measure(struct bench *b, struct error *err) {
    char date[32];
    time_t now = time(NULL);
    strftime(date, sizeof date, "%Y%m%d-%H%M%S", localtime(&now));
    TRY(wait_until_ready(b, err));
    if (opt.n_warmups > 0)
        TRY(try_requests(b, (size_t)opt.n_warmups, err));
    print_traffic(b);
    struct bench_load load = load_of(b);
    struct bench_result *results = xcalloc(load.n, sizeof *results);
    double duration = bench_load_run(&load, results);
    json_t *json = describe(b, date);
    bench_report(&b->report, &load, results, duration, opt.save_detailed, json);
    print_first_error(results, load.n);
    enum status st = opt.save_result || opt.append_result ? save(b, json, date, err) : OK;
    json_decref(json);
    for (size_t i = 0; i < load.n; i++)
        bench_result_release(&results[i]);
    free(results);
    return st;
}

static int run(const struct verb_args *args) {
    struct error err;
    struct bench b = {0};
    enum status st = libcurl_open(&err);
    if (st == OK)
        st = prepare(&b, args, &err);
    if (st == OK)
        st = measure(&b, &err);
    bench_dataset_release(&b.data);
    model_text_release(&b.text);
    json_decref(b.extra);
    free(b.model);
    buf_release(&b.base);
    for (size_t i = 0; i < ARRAY_LEN(b.header_lines); i++)
        buf_release(&b.header_lines[i]);
    return st == OK ? 0 : verb_failed(&err);
}

const struct verb_spec verb_bench_serve = {
    "bench serve",
    "[METRIC:MS ...]",
    "measures a server under load, as vllm bench serve does",
    flags,
    ARRAY_LEN(flags),
    0,
    8,
    .run = run,
    .epilogue =
        "The table has vllm's labels, --save-result its field names. TTFT is until the first chunk with choices; ITL "
        "is the gap between\n"
        "chunks; TPOT is (E2EL - TTFT) / (tokens - 1), averaged over requests; tokens are those of the server's "
        "usage.\n"
        "  gyre bench serve --tokenizer models/story --num-prompts 100 --request-rate 20 --random-input-len 64\n"
        "  gyre bench serve --backend openai-chat --dataset-name custom --dataset-path prompts.jsonl --goodput "
        "ttft:500 tpot:50\n"};
