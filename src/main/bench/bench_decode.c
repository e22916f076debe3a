/* bench_decode.c - gyre bench decode: tokens a second while many sequences decode, and how far that is from what the
 * device could do.
 *
 * Prompts of random ids are really computed, then every sequence decodes to its full length, so that each rate is of
 * the whole window of contexts and not of its first steps. The clock is the host's, read when tokens are handed out. */
#include "main/verbs.h"

#include "base/clock.h"
#include "base/file.h"
#include "base/json/json.h"
#include "base/random.h"
#include "bench/bench_bound.h"
#include "bench/bench_floor.h"
#include "bench/bench_guesses.h"
#include "bench/bench_trace.h"
#include "bench/decode_run.h"
#include "engine/inspect.h"
#include "main/flags/engine_flags.h"
#include "main/flags/grammar_flags.h"
#include "main/flags/speculation_flags.h"
#include "main/model/memory_table.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MOST_SEQS = 16384, MOST_LENGTH = 1 << 24 }; // as --max-num-seqs and --max-model-len have them

static struct {
    struct flag_ids batch, prefill;
    int64_t input_len, output_len, n_iters, n_warmup, seed, n_random;
    double warmup_s, temperature, repeats;
    const char *output_json, *tokenizer, *speculation;
    bool trace;
    struct grammar_flags grammar;
    struct engine_flags engine;
} opt = {.input_len = 16,
         .output_len = 512,
         .n_iters = 5,
         .n_warmup = -1,
         .warmup_s = -1,
         .repeats = -1,
         .grammar = GRAMMAR_FLAGS_DEFAULT,
         .engine = ENGINE_FLAGS_DEFAULT};

/* clang-format off */
static const struct flag flags[] = {
    {"batch", 'b', FLAG_IDS, &opt.batch, "1,8,32", "Workload", "sequences that decode together, one after another; 1,8,32,128 unless said"},
    {"input-len", 0, FLAG_INT, &opt.input_len, "N", "Workload", "tokens of each prompt, random ones", .min = 1, .max = 1 << 24},
    {"output-len", 0, FLAG_INT, &opt.output_len, "N", "Workload", "tokens of each answer", .min = 2, .max = 1 << 24},
    {"temperature", 0, FLAG_REAL, &opt.temperature, "T", "Workload", "draw answers at it; 0 unless said: the most probable tokens", .min = 0, .max = 100},
    {"random-guesses", 0, FLAG_INT, &opt.n_random, "N", "Workload", "guess so many tokens a step, any: they are wrong, or as many right as --synthetic-acceptance says", .min = 1, .max = 16},
    {"answer-repeats", 0, FLAG_REAL, &opt.repeats, "SHARE", "Workload", "answers are random tokens, of which this share is copied from before in runs of 16 to 48: for guesses by n-grams. What is drawn is not told then", .min = 0, .max = 1},
    {"tokenizer", 0, FLAG_STRING, &opt.tokenizer, "PATH", "Workload", "a folder or file with the tokenizer that a grammar is held against; the model's own unless said"},
    GRAMMAR_FLAGS(opt.grammar),
    {"prefill", 0, FLAG_IDS, &opt.prefill, "2048", "Workload", "time the first token of one prompt of so many tokens as well"},
    {"warmup-seconds", 0, FLAG_REAL, &opt.warmup_s, "S", "Workload", "warm up under load for so long, and for a tenth of that before each further size; 5 unless said", .min = 0, .max = 3600},
    {"num-iters-warmup", 0, FLAG_INT, &opt.n_warmup, "N", "Workload", "whole runs of each before those that count, in place of seconds if none are given", .min = 0, .max = 1 << 20},
    {"num-iters", 0, FLAG_INT, &opt.n_iters, "N", "Workload", "runs of each; their median, least and most are printed", .min = 1, .max = 1 << 20},
    {"seed", 0, FLAG_INT, &opt.seed, "N", "Workload", "of the prompts", .min = 0, .max = 1e18},
    {"trace", 0, FLAG_BOOL, &opt.trace, NULL, "Report", "also where the time of a step that decodes goes, and of a prompt's last, op by op; on a GPU"},
    {"output-json", 0, FLAG_STRING, &opt.output_json, "FILE", "Report", "write the figures as JSON"},
    ENGINE_FLAGS(opt.engine),
    SPECULATION_FLAGS(opt.speculation, opt.engine),
};
/* clang-format on */

/* ---- figures ---- */

struct spread {
    double median, least, most;
};

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static struct spread spread_of(double *x, int64_t n) {
    qsort(x, (size_t)n, sizeof *x, by_value);
    return (struct spread){n % 2 ? x[n / 2] : (x[n / 2 - 1] + x[n / 2]) / 2, x[0], x[n - 1]};
}

struct row {
    int64_t n, n_prompt;
    struct spread tokens_per_s, first_token_ms;
    struct bench_floor floor; // of a step in the middle of the window, or of the prompt
    double ladder_s;          // its products by the library alone; 0: there is none
    struct gpu_report gpu;
    double n_experts;                        // that a layer reads in a step that decodes, mean; 0: not counted
    double n_experts_if_uniform;             // that it would if all were equally likely; 0: no layer has any
    int64_t n_decoded;                       // tokens while the GPU was watched
    int64_t n_preempted;                     // sequences that gave way, in all runs that count
    int64_t n_steps, mask_wait_us, n_forced; // likewise
    int64_t n_last_step;                     // tokens of the last step of all
    int64_t n_seqs_after, n_steps_after;     // of steps once each sequence had its first token, in all that count
    struct bench_guesses guesses;
    bool ends_together; // all sequences began in one step, and so end in one
};

static struct gyre_grammar grammar; // of all answers, if flags say so

static struct decode_load load_of(const struct row *row, int64_t n_output) {
    return (struct decode_load){row->n,   row->n_prompt,   n_output,
                                opt.seed, opt.temperature, grammar.grammar ? &grammar : NULL};
}

/* Runs that are not counted. A device that is warm needs a moment only for the clocks of another load. */
static enum status warm_up(struct gyre *g, const struct row *row, int64_t n_output, int64_t *round, struct error *err) {
    static bool is_warm;
    struct decode_run r;
    struct decode_load load = load_of(row, n_output);
    double seconds = opt.warmup_s >= 0 ? opt.warmup_s : opt.n_warmup >= 0 ? 0 : 5;
    int64_t until = clock_us() + (int64_t)(seconds * (is_warm ? 0.1e6 : 1e6));
    enum status st = OK;
    is_warm = true;
    for (; st == OK && *round < opt.n_warmup; ++*round)
        st = decode_whole(g, &load, *round, &r, err);
    for (; st == OK && clock_us() < until; ++*round)
        st = decode_partly(g, &load, *round, 0, until, err);
    return st;
}

static void note_run(struct row *row, const struct decode_run *r, double *rate, double *first_ms) {
    *first_ms = (double)(r->all_first_us - r->started_us) * 1e-3;
    *rate = (double)(r->n_tokens - r->n_tokens_at_first) / ((double)MAX(r->ended_us - r->all_first_us, 1) * 1e-6);
    row->n_decoded += r->n_tokens;
    row->n_preempted += r->n_preempted;
    row->n_steps += r->n_steps;
    row->mask_wait_us += r->mask_wait_us;
    row->n_forced += r->n_forced;
    row->n_seqs_after += r->n_seqs_after;
    row->n_steps_after += r->n_steps - r->n_steps_at_first;
    bench_guesses_add(&row->guesses, r, row->n);
    row->n_last_step = r->n_last_step;
    row->ends_together = r->n_tokens_at_first == row->n;
}

/* What a device has counted of the experts of steps that decode. */
struct experts_seen {
    int64_t layers, experts;
};

static struct experts_seen experts_seen(const struct gyre *g) {
    return (struct experts_seen){bench_reported(g, "expert_layers_total"), bench_reported(g, "experts_read_total")};
}

/* Of a layer, in the mean since then; 0: none are counted. */
static double experts_a_layer(const struct gyre *g, struct experts_seen since) {
    struct experts_seen now = experts_seen(g);
    return now.layers > since.layers ? (double)(now.experts - since.experts) / (double)(now.layers - since.layers) : 0;
}

/* With n_output 1 the run is a prefill: its time is that of the first token. */
static enum status measure(struct gyre *g, const struct device_limits *limits, int64_t n_output, struct row *row,
                           struct error *err) {
    double *rates = xcalloc((size_t)opt.n_iters, sizeof *rates), *first = xcalloc((size_t)opt.n_iters, sizeof *first);
    struct gpu_watch *watch = NULL;
    const char *why;
    struct decode_run r;
    struct decode_load load = load_of(row, n_output);
    int64_t round = 0;
    enum status st = warm_up(g, row, n_output, &round, err);
    struct experts_seen seen = experts_seen(g);
    gpu_watch_start(&watch, &why);
    for (int64_t i = 0; i < opt.n_iters && st == OK; i++) {
        st = decode_whole(g, &load, round + i, &r, err);
        if (st == OK)
            note_run(row, &r, &rates[i], &first[i]);
    }
    gpu_watch_stop(watch, &row->gpu);
    if (st == OK) {
        row->tokens_per_s = spread_of(rates, opt.n_iters);
        row->guesses.tokens_per_s = row->tokens_per_s.median;
        row->first_token_ms = spread_of(first, opt.n_iters);
        row->n_experts = n_output == 1 ? 0 : experts_a_layer(g, seen);
        row->n_experts_if_uniform = bench_experts_if_uniform(g, (double)row->n);
        double before = n_output == 1 ? 0 : (double)row->n_prompt + (double)n_output / 2;
        bench_floor(g, limits, (double)row->n, before, n_output == 1 ? (double)row->n_prompt : 1, row->n_experts,
                    &row->floor);
    }
    free(rates);
    free(first);
    return st;
}

/* ---- printing ---- */

/* Sequences of a step, in the mean; 0: no step had all behind it. */
static double at_once(const struct row *r) { return (double)r->n_seqs_after / (double)MAX(r->n_steps_after, 1); }

/* A grammar's answers end when they are whole, and what is left of a step's sequences gives fewer tokens. */
static bool some_ended(const struct row *r) { return grammar.grammar && at_once(r) < (double)r->n - 0.05; }

static void print_decode(const struct row *r) {
    double step_s = (some_ended(r) ? at_once(r) : (double)r->n) / r->tokens_per_s.median;
    char ladder[40] = "        -         -"; // there is no library
    if (r->ladder_s > 0)
        snprintf(ladder, sizeof ladder, "%9.3f %7.1f %%", r->ladder_s * 1e3, 100 * r->ladder_s / step_s);
    printf("%5lld %10.1f (%.1f to %.1f) %9.3f %9.3f %6.1f %% %s %7.2f %8.2f %8.1f %9.1f", (long long)r->n,
           r->tokens_per_s.median, r->tokens_per_s.least, r->tokens_per_s.most, step_s * 1e3, r->floor.seconds * 1e3,
           100 * r->floor.seconds / step_s, ladder, r->floor.weight_bytes * 1e-9, r->floor.cache_bytes * 1e-9,
           r->floor.flops / step_s * 1e-12, r->first_token_ms.median);
    bench_gpu_print(&r->gpu, r->n_decoded);
    if (r->n_experts > 0)
        printf("  %.1f experts a layer (%.1f if all were equally likely)", r->n_experts, r->n_experts_if_uniform);
    if (at_once(r) < 0.9 * (double)r->n || some_ended(r)) // they began, or ended, one after the other
        printf("  (%.1f at once, in the mean)", at_once(r));
    if (r->n_preempted > 0)
        printf(" (%lld gave way)", (long long)r->n_preempted);
    bench_guesses_print(&r->guesses);
    if (grammar.grammar)
        printf(" (a step waited %.0f us for masks; %.1f %% of the tokens were forced)",
               (double)r->mask_wait_us / (double)MAX(r->n_steps, 1),
               100 * (double)r->n_forced / (double)MAX(r->n_decoded, 1));
    printf("\n");
    fflush(stdout);
}

static void print_prefill(const struct row *r) {
    double seconds = r->first_token_ms.median * 1e-3;
    printf("prefill   %lld tokens: %.2f ms (%.2f to %.2f), %.1f TFLOP/s, %.1f %% of a floor of %.2f ms",
           (long long)r->n_prompt, r->first_token_ms.median, r->first_token_ms.least, r->first_token_ms.most,
           r->floor.flops / seconds * 1e-12, 100 * r->floor.seconds / seconds, r->floor.seconds * 1e3);
    if (r->ladder_s > 0)
        printf(", %.1f %% of a ladder of %.2f", 100 * r->ladder_s / seconds, r->ladder_s * 1e3);
    bench_gpu_print(&r->gpu, r->n_prompt * opt.n_iters);
    printf("\n");
    fflush(stdout);
}

/* How long ago the process began, to a hundredth of a second; 0: not known. */
static double process_age_s(void) {
    char text[1024] = "";
    struct timespec now;
    unsigned long long started = 0;
    FILE *f = fopen("/proc/self/stat", "r");
    size_t n = f ? fread(text, 1, sizeof text - 1, f) : 0;
    if (f)
        fclose(f);
    text[n] = '\0';
    const char *at = strrchr(text, ')'); // the name may hold anything; the 20th word behind it is the time
    for (int i = 0; at && i < 20; i++)
        if ((at = strchr(at, ' ')))
            at++;
    if (!at || sscanf(at, "%llu", &started) != 1)
        return 0;
    clock_gettime(CLOCK_BOOTTIME, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9 - (double)started / (double)sysconf(_SC_CLK_TCK);
}

/* What came between exec and the first token of a short prompt. */
static enum status print_start(struct gyre *g, struct error *err) {
    enum { START_TOKENS = 16 };
    struct open_times t = engine_open_times(g);
    struct row row = {.n = 1, .n_prompt = MIN(opt.input_len, START_TOKENS)};
    struct decode_load load = load_of(&row, 1);
    struct decode_run r;
    TRY(decode_whole(g, &load, -1, &r, err));
    printf("start     %.2f s from exec to the first token: model %.2f, device %.2f, weights %.2f, cache %.2f, plans "
           "and graphs %.2f, first "
           "token %.3f\n",
           process_age_s(), (double)t.model * 1e-6, (double)t.device * 1e-6, (double)t.weights * 1e-6,
           (double)t.cache * 1e-6, (double)t.compile * 1e-6, (double)(r.ended_us - r.started_us) * 1e-6);
    return OK;
}

/* ---- JSON ---- */

static json_t *spread_json(struct spread s) {
    return json_pack("{s:f, s:f, s:f}", "median", s.median, "least", s.least, "most", s.most);
}

static json_t *row_json(const struct row *r, bool is_decode) {
    json_t *json = json_pack("{s:I, s:I, s:o, s:f, s:f, s:f, s:f, s:f}", "batch", (json_int_t)r->n, "input_len",
                             (json_int_t)r->n_prompt, "first_token_ms", spread_json(r->first_token_ms), "floor_ms",
                             r->floor.seconds * 1e3, "ladder_ms", r->ladder_s * 1e3, "weight_bytes",
                             r->floor.weight_bytes, "cache_bytes", r->floor.cache_bytes, "flops", r->floor.flops);
    if (is_decode) {
        json_object_set_new(json, "output_len", json_integer(opt.output_len));
        json_object_set_new(json, "at_once", json_real(at_once(r)));
        json_object_set_new(json, "temperature", json_real(opt.temperature));
        json_object_set_new(json, "tokens_per_s", spread_json(r->tokens_per_s));
        json_object_set_new(json, "share_of_floor",
                            json_real(r->floor.seconds * r->tokens_per_s.median / (double)r->n));
    }
    if (r->n_experts > 0)
        json_object_set_new(json, "experts_a_layer", json_real(r->n_experts));
    if (is_decode && r->n_experts_if_uniform > 0)
        json_object_set_new(json, "experts_a_layer_if_uniform", json_real(r->n_experts_if_uniform));
    if (r->guesses.n_guessed > 0)
        json_object_set_new(json, "guesses", bench_guesses_json(&r->guesses));
    if (r->gpu.n_samples > 0)
        json_object_set_new(json, "gpu", bench_gpu_json(&r->gpu));
    return json;
}

static enum status write_json(const json_t *json, struct error *err) {
    char *text = json_dumps(json, JSON_INDENT(2) | JSON_REAL_PRECISION(9));
    enum status st = opt.output_json ? file_write(opt.output_json, str_of(text), err) : OK;
    free(text);
    return st;
}

/* ---- the verb ---- */

static enum status trace_decode(struct gyre *g, const struct device_limits *limits, const struct row *row,
                                struct error *err) {
    struct decode_load load = load_of(row, opt.output_len);
    if (!row->ends_together) // the last step had only some of them
        TRY(decode_partly(g, &load, opt.n_iters, 4, 0, err));
    return bench_trace(g, limits, (double)row->n,
                       (double)(row->n_prompt + (row->ends_together ? opt.output_len - 1 : 0)), 1, row->n_experts, err);
}

/* The last chunk of a prompt. */
static enum status trace_prefill(struct gyre *g, const struct device_limits *limits, const struct row *row,
                                 struct error *err) {
    return bench_trace(g, limits, 1, (double)(row->n_prompt - row->n_last_step), (double)row->n_last_step, 0, err);
}

/* By turns would be fairer, and would mix the caches of the two. */
static enum status measure_plain(struct gyre *g, const struct device_limits *limits, struct row *row,
                                 struct error *err) {
    struct row plain = {.n = row->n, .n_prompt = row->n_prompt};
    if (opt.engine.speculation.n_guesses == 0)
        return OK;
    engine_let_guess(g, false);
    enum status st = measure(g, limits, opt.output_len, &plain, err);
    engine_let_guess(g, true);
    row->guesses.plain_step_ms = st == OK ? bench_guesses_step_ms(&plain.guesses) : 0;
    return st;
}

static enum status bench_decodes(struct gyre *g, const struct device_limits *limits, json_t *rows, struct error *err) {
    char how[40] = "greedy";
    if (opt.temperature > 0)
        snprintf(how, sizeof how, "temperature %g", opt.temperature);
    printf("decode    %s, %lld tokens in, %lld out, median of %lld (least to most); the floor is of a step in the "
           "middle\n",
           how, (long long)opt.input_len, (long long)opt.output_len, (long long)opt.n_iters);
    printf(
        "batch   tokens/s                        ms a step  floor ms of floor ladder ms of ladder weights    cache  "
        "TFLOP/s  first ms\n"
        "                                                                                              GB       GB\n");
    for (size_t i = 0; i < opt.batch.n; i++) {
        struct row row = {.n = opt.batch.ids[i], .n_prompt = opt.input_len};
        TRY(measure_plain(g, limits, &row, err));
        TRY(measure(g, limits, opt.output_len, &row, err));
        TRY(bench_ladder(g, row.n, row.n, &row.ladder_s, err));
        print_decode(&row);
        if (opt.trace)
            TRY(trace_decode(g, limits, &row, err));
        json_array_append_new(rows, row_json(&row, true));
    }
    return OK;
}

static enum status bench_prefills(struct gyre *g, const struct device_limits *limits, json_t *rows, struct error *err) {
    for (size_t i = 0; i < opt.prefill.n; i++) {
        struct row row = {.n = 1, .n_prompt = opt.prefill.ids[i]};
        TRY(measure(g, limits, 1, &row, err));
        TRY(bench_ladder(g, row.n_prompt, 1, &row.ladder_s, err));
        print_prefill(&row);
        if (opt.trace)
            TRY(trace_prefill(g, limits, &row, err));
        json_array_append_new(rows, row_json(&row, false));
    }
    return OK;
}

static enum status bench(struct gyre *g, struct error *err) {
    struct device_limits limits;
    TRY(print_start(g, err));
    TRY(bench_limits(g, &limits, err));
    bench_limits_print(g, &limits);
    memory_table_print(g, stdout);
    int32_t *answer =
        opt.repeats < 0 ? NULL : decode_answer(opt.output_len, opt.repeats, gyre_info(g)->vocab_size, opt.seed);
    engine_tell(g, answer, (int32_t)opt.output_len);
    json_t *decode = json_array(), *prefill = json_array();
    json_t *json = json_pack("{s:s, s:f, s:s, s:f, s:o, s:o}", "device", limits.name, "read_bytes_per_s",
                             isfinite(limits.read_bytes_per_s) ? limits.read_bytes_per_s : 0, "product", limits.product,
                             "flops_per_s", isfinite(limits.flops_per_s) ? limits.flops_per_s : 0, "decode", decode,
                             "prefill", prefill);
    enum status st = bench_decodes(g, &limits, decode, err);
    if (st == OK)
        st = bench_prefills(g, &limits, prefill, err);
    if (st == OK)
        bench_reports_print(g);
    if (st == OK)
        st = write_json(json, err);
    json_decref(json);
    engine_tell(g, NULL, 0);
    free(answer);
    return st;
}

/* The first of these numbers that is not between 1 and `most`; -1: all are. */
static int32_t first_beyond(const struct flag_ids *list, int32_t most) {
    for (size_t i = 0; i < list->n; i++)
        if (list->ids[i] < 1 || list->ids[i] > most)
            return list->ids[i];
    return -1;
}

/* The largest of what is asked for decides on the size of the engine, unless flags do. */
static void size_engine(void) {
    int64_t longest = opt.input_len + opt.output_len, most = 1;
    for (size_t i = 0; i < opt.prefill.n; i++)
        longest = MAX(longest, (int64_t)opt.prefill.ids[i] + 1);
    for (size_t i = 0; i < opt.batch.n; i++)
        most = MAX(most, opt.batch.ids[i]);
    if (opt.engine.max_model_len == 0)
        opt.engine.max_model_len = longest;
    if (opt.engine.max_seqs == 0)
        opt.engine.max_seqs = most;
    opt.engine.prefix_cache = false;
}

/* It outlives the engine. */
static enum status open_grammar(const struct gyre *g, const char *model, struct model_text *text,
                                struct grammar_compiler *compiler, struct error *err) {
    if (!grammar_flags_given(&opt.grammar))
        return OK;
    TRY(opt.tokenizer ? tokenizer_open(opt.tokenizer, &text->tok, err) : model_text_open(text, model, err));
    return grammar_flags_compile(&opt.grammar, text, gyre_info(g), compiler, &grammar, err);
}

static enum status read_speculation(struct error *err) {
    struct speculation *s = &opt.engine.speculation;
    TRY(speculation_read(opt.speculation, s, err));
    if (opt.n_random > 0 && (s->model[0] || s->method[0]))
        return fail(err, ERR_ARG, "--random-guesses: stand in for those of n-grams, --speculative-config has others");
    s->n_guesses = opt.n_random > 0 ? (int)opt.n_random : s->n_guesses;
    return OK;
}

static int run(const struct verb_args *args) {
    static int32_t usual[] = {1, 8, 32, 128};
    struct error err;
    struct gyre *g = NULL;
    if (!opt.batch.given)
        opt.batch.ids = usual, opt.batch.n = ARRAY_LEN(usual);
    if (first_beyond(&opt.batch, MOST_SEQS) >= 0)
        return verb_misused(args->spec, "--batch: %d is not between 1 and %d", first_beyond(&opt.batch, MOST_SEQS),
                            MOST_SEQS);
    if (first_beyond(&opt.prefill, MOST_LENGTH) >= 0)
        return verb_misused(args->spec, "--prefill: %d is not between 1 and %d",
                            first_beyond(&opt.prefill, MOST_LENGTH), MOST_LENGTH);
    if (grammar_flags_misuse(&opt.grammar))
        return verb_misused(args->spec, "%s", grammar_flags_misuse(&opt.grammar));
    struct model_text text = {0};
    struct grammar_compiler compiler = {0};
    size_engine();
    opt.engine.serves = true;
    enum status st = read_speculation(&err);
    if (st == OK)
        st = engine_flags_open(&opt.engine, args->operands[0], &g, &err);
    if (st == OK && opt.n_random > 0)
        engine_guess_anything(g);
    if (st == OK)
        st = open_grammar(g, args->operands[0], &text, &compiler, &err);
    if (st == OK) {
        engine_settle(g);
        st = bench(g, &err);
    }
    gyre_close(g);
    grammar_release(grammar.grammar);
    grammar_compiler_release(&compiler);
    model_text_release(&text);
    return st == OK ? 0 : verb_failed(&err);
}

const struct verb_spec verb_bench_decode = {
    "bench decode",
    "MODEL|config.json",
    "measures decoding at several batch sizes against what the device can do",
    flags,
    ARRAY_LEN(flags),
    1,
    1,
    .run = run,
    .epilogue =
        "A step must read every weight that it uses and the cache of its sequences; the floor adds up, op by op, the "
        "longer of reading\n"
        "that and of computing, at the rates that the device showed just before. Of experts a GPU reads those "
        "that had a token, which it counts;\n"
        "for others all are equally likely. The ladder is the time that the "
        "step's products take by "
        "the\n"
        "library's fastest algorithms alone, measured there and then. Prompts are computed before the clock starts.\n"
        "  gyre bench decode Qwen2.5-7B --device cuda --quantization fp8 --batch 1,8,32,128,256,512 --prefill 2048\n"
        "  gyre bench decode Qwen2.5-0.5B/config.json --load-format dummy --batch 1,4 --output-len 64\n"};
