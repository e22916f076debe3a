/* perplexity.c - gyre perplexity MODEL -f FILE: how surprised a model is by a text.
 *
 * The text is tokenised without special tokens and cut into windows of W tokens that start at 0, S, 2S ... while the
 * start plus W is less than the number of tokens; with --bos a BOS is put before each. Every token is scored that
 * has something before it in its window, and where windows overlap (S < W) only in the first window that holds it.
 * The result is exp of the mean negative log-probability, summed in double. */
#include "console/progress.h"
#include "console/terminal.h"
#include "file/overwrite.h"
#include "main/flags/engine_flags.h"
#include "main/model/device_warnings.h"
#include "main/model/model_text.h"
#include "main/run/kl_divergence.h"
#include "main/verbs.h"

#include "base/clock.h"
#include "base/file.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { MAX_TEXT_BYTES = 1 << 30 };

static struct {
    const char *file, *kl_base;
    bool kl, cache_cost;
    int64_t window, stride;
    bool bos;
    struct engine_flags engine;
} opt = {.window = 512, .engine = ENGINE_FLAGS_DEFAULT};

static const struct flag flags[] = {
    {"file", 'f', FLAG_STRING, &opt.file, "FILE", "Input", "the text; - is standard input"},
    {"window", 0, FLAG_INT, &opt.window, "W", "Input", "tokens that the model sees at a time", .min = 2,
     .max = 1 << 24},
    {"stride", 0, FLAG_INT, &opt.stride, "S", "Input", "tokens from one window's start to the next; 0 is the window",
     .min = 0, .max = 1 << 24},
    {"bos", 0, FLAG_BOOL, &opt.bos, NULL, "Input",
     "put the model's BOS token before each window; with a base file in place of its first token, and in both runs "
     "or in neither: the file does not tell"},
    {"kl-divergence-base", 0, FLAG_STRING, &opt.kl_base, "FILE", "Comparison",
     "write what the model says of the text there, in llama.cpp's layout"},
    {"kl-divergence", 0, FLAG_BOOL, &opt.kl, NULL, "Comparison",
     "compare with what is in that file, on its text and in its windows"},
    {"cache-cost", 0, FLAG_BOOL, &opt.cache_cost, NULL, "Comparison",
     "what --kv-cache-dtype costs: measure once more with keys and values in what the device computes in"},
    ENGINE_FLAGS(opt.engine),
};

struct measurement {
    struct gyre *g;
    struct token_ids text;
    int64_t window, stride;
    int32_t bos;       // -1: none
    int32_t *sequence; // [window + 1]: BOS and a window, to submit
    int64_t next;      // start of the next window to submit
    double sum;        // of log-probabilities
    int64_t n_scored;
    struct progress progress;
};

static bool has_next(const struct measurement *m) { return m->next + m->window < (int64_t)m->text.n; }

/* The first token of a window that this window scores: those before were scored by the window before. */
static int64_t first_scored(const struct measurement *m, int64_t start) {
    int64_t first = start == 0 ? 0 : MAX(0, m->window - m->stride);
    return m->bos < 0 ? MAX(1, first) : first;
}

static enum status submit_window(struct measurement *m, struct error *err) {
    struct gyre_request q = gyre_request_default(m->g);
    struct gyre_error e;
    uint64_t id;
    int has_bos = m->bos >= 0;
    m->sequence[0] = m->bos;
    memcpy(m->sequence + has_bos, m->text.ids + m->next, (size_t)m->window * sizeof *m->sequence);
    q.prompt = m->sequence, q.n_prompt = m->window + has_bos, q.max_tokens = 0;
    q.score_prompt = true, q.score_from = first_scored(m, m->next) + has_bos - 1; // the row before a token scores it
    m->next += m->stride;
    return gyre_submit(m->g, &q, &id, &e) == 0 ? OK : engine_fault(&e, err);
}

static enum status take_events(struct measurement *m, int *n_open, struct error *err) {
    enum { EVENTS = 256 };
    struct gyre_event events[EVENTS];
    int n = gyre_poll(m->g, events, EVENTS);
    for (int i = 0; i < n; i++) {
        const struct gyre_event *e = &events[i];
        if (e->kind == GYRE_DONE && e->finish == GYRE_FAILED)
            return fail(err, ERR_DEVICE, "%s", e->error);
        *n_open -= e->kind == GYRE_DONE;
        if (e->kind != GYRE_PROMPT || e->position == m->window - (m->bos < 0))
            continue; // after the last token there is nothing to compare with
        m->sum += (double)e->logprob;
        m->n_scored++;
    }
    progress_step(&m->progress, m->n_scored);
    return OK;
}

static int64_t total_scored(const struct measurement *m) {
    int64_t total = 0;
    for (int64_t start = 0; start + m->window < (int64_t)m->text.n; start += m->stride)
        total += m->window - first_scored(m, start);
    return total;
}

/* As many windows at a time as a step takes sequences. */
static enum status measure(struct measurement *m, struct error *err) {
    int n_open = 0, most = gyre_info(m->g)->max_seqs;
    while (has_next(m) || n_open > 0) {
        for (; has_next(m) && n_open < most; n_open++)
            TRY(submit_window(m, err));
        TRY(take_events(m, &n_open, err));
    }
    return OK;
}

static enum status read_text(struct measurement *m, struct model_text *text, struct error *err) {
    struct buf bytes = {0};
    enum status st = file_read(opt.file, MAX_TEXT_BYTES, &bytes, err);
    if (st == OK)
        st = model_text_encode_plain(text, buf_view(&bytes), &m->text, err);
    buf_release(&bytes);
    TRY(st);
    if ((int64_t)m->text.n <= m->window)
        return fail(err, ERR_ARG, "%s: %zu tokens are not more than one window of %lld", opt.file, m->text.n,
                    (long long)m->window);
    return OK;
}

static enum status choose_bos(struct measurement *m, const struct model_text *text, const char *model,
                              struct error *err) {
    m->bos = -1;
    if (!opt.bos)
        return OK;
    m->bos = tokenizer_special(text->tok, SPECIAL_BOS).id;
    if (m->bos < 0)
        m->bos = gyre_info(m->g)->bos;
    return m->bos >= 0 ? OK
                       : fail(err, ERR_ARG, "%s: --bos, but neither tokenizer nor config names a BOS token", model);
}

static enum status diverge(const struct measurement *m, struct error *err) {
    struct kl_job job = {m->g, opt.kl_base, m->text.ids, (int64_t)m->text.n, m->window, m->bos};
    return opt.kl ? kl_compare(&job, err) : kl_write_base(&job, err);
}

/* Of the engine that is open; prints the speed. */
static enum status measure_all(struct measurement *m, double *out, struct error *err) {
    m->next = m->n_scored = 0, m->sum = 0;
    int64_t start = clock_us();
    progress_begin(&m->progress, "perplexity", "tokens", total_scored(m));
    enum status st = measure(m, err);
    progress_end(&m->progress);
    TRY(st);
    double seconds = clock_seconds_since(start);
    if (terminal_is(stderr))
        fprintf(stderr, "%s, %.0f tokens/s\n", human_seconds(seconds).text, (double)m->n_scored / seconds);
    *out = exp(-m->sum / (double)m->n_scored);
    return OK;
}

/* Before the last line, which is of what was asked for. */
static enum status print_cache_cost(struct measurement *m, const char *model, double with, struct error *err) {
    const char *dtype = opt.engine.kv_cache_dtype;
    double without;
    device_warnings_of(m->g);
    gyre_close(m->g);
    m->g = NULL;
    opt.engine.kv_cache_dtype = "auto";
    TRY(engine_flags_open(&opt.engine, model, &m->g, err));
    TRY(measure_all(m, &without, err));
    printf("perplexity %.4f with keys and values as the device computes: %s costs %+.2f %%\n", without, dtype,
           100 * (with / without - 1));
    return OK;
}

static enum status perplexity(struct measurement *m, struct model_text *text, const char *model, struct error *err) {
    const char *const read[] = {model, opt.file, opt.engine.xla_plugin};
    if (opt.kl_base && !opt.kl)
        TRY(overwrite_check(opt.kl_base, ARRAY_LEN(read), read, err));
    TRY(model_text_open(text, model, err));
    if (!opt.kl)
        TRY(read_text(m, text, err));
    opt.engine.exact = true;
    TRY(engine_flags_open(&opt.engine, model, &m->g, err));
    TRY(choose_bos(m, text, model, err));
    if (opt.kl_base)
        return diverge(m, err);
    m->sequence = xcalloc((size_t)m->window + 1, sizeof *m->sequence);
    double result;
    TRY(measure_all(m, &result, err));
    long long n_scored = m->n_scored;
    enum status st = opt.cache_cost ? print_cache_cost(m, model, result, err) : OK;
    printf("perplexity %.4f over %lld tokens\n", result, n_scored); // also where there was no room for the other cache
    return st;
}

/* A sentence about flags that do not go together; NULL: they do. */
static const char *misuse(const struct verb_args *args) {
    if (opt.kl && !opt.kl_base)
        return "--kl-divergence needs --kl-divergence-base FILE";
    if (opt.kl && (opt.file || flag_given(args, "window") || flag_given(args, "stride")))
        return "--kl-divergence takes text and windows from the base file: without --file, --window and --stride";
    if (!opt.file && !opt.kl)
        return "perplexity needs a text: -f FILE";
    if (opt.kl_base && flag_given(args, "stride"))
        return "--kl-divergence-base: windows lie one behind another, without --stride";
    if (opt.cache_cost && (opt.kl_base || strcmp(opt.engine.kv_cache_dtype, "auto") == 0))
        return "--cache-cost goes with a --kv-cache-dtype, and without --kl-divergence-base";
    if (opt.kl_base && opt.window < KL_WINDOW_MIN)
        return "--kl-divergence-base takes a --window of 4 tokens or more";
    return NULL;
}

static int run(const struct verb_args *args) {
    const char *wrong = misuse(args);
    if (wrong)
        return verb_misused(args->spec, "%s", wrong);
    struct error err;
    struct model_text text = {0};
    struct measurement m = {.window = opt.window, .stride = opt.stride ? opt.stride : opt.window};
    enum status st = perplexity(&m, &text, args->operands[0], &err);
    device_warnings_of(m.g);
    gyre_close(m.g);
    token_ids_release(&m.text);
    free(m.sequence);
    model_text_release(&text);
    return st == OK ? 0 : verb_failed(&err);
}

const struct verb_spec verb_perplexity = {
    "perplexity",
    "MODEL",
    "measures how surprised a model is by a text",
    flags,
    ARRAY_LEN(flags),
    1,
    1,
    .run = run,
    .epilogue =
        "Windows start at 0, S, 2S ... while the start plus W is less than the number of tokens. Every token that has\n"
        "something before it in its window is scored, and where windows overlap only in the first that holds it.\n"
        "With --kl-divergence-base windows lie one behind another, and the second half of each counts, as in "
        "llama.cpp.\n"
        "  gyre perplexity models/story -f models/story/heldout.txt --window 256 --stride 256\n"
        "  gyre perplexity models/story -f models/story/heldout.txt --kv-cache-dtype int4 --cache-cost\n"
        "  gyre perplexity models/story -f models/story/heldout.txt --kl-divergence-base base\n"
        "  gyre perplexity story-q4_k_m.gguf --kl-divergence-base base --kl-divergence\n"};
