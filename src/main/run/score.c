/* score.c - gyre score MODEL: how probable a model finds each token of a prompt, and what it would have said. */
#include "api/fields/request_fields.h"
#include "console/terminal.h"
#include "main/flags/engine_flags.h"
#include "main/model/device_warnings.h"
#include "main/model/model_text.h"
#include "main/run/answer.h"
#include "main/run/engine_batch.h"
#include "main/verbs.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

static struct {
    const char *prompt, *output;
    struct flag_ids ids;
    bool batch;
    struct engine_flags engine;
} opt = {.output = "json", .engine = ENGINE_FLAGS_DEFAULT};

static const struct flag flags[] = {
    {"prompt", 'p', FLAG_STRING, &opt.prompt, "TEXT", "Input",
     "the text to score; the tokenizer adds its own special tokens"},
    {"prompt-ids", 0, FLAG_IDS, &opt.ids, "1,2,3", "Input", "the tokens to score"},
    {"batch", 0, FLAG_BOOL, &opt.batch, NULL, "Input",
     "JSON lines in, {\"prompt_ids\":[...]} or {\"prompt\":\"...\"}; JSON lines out"},
    {"output", 0, FLAG_CHOICE, &opt.output, "json|text", "Output", "json: one object; text: one line a token"},
    ENGINE_FLAGS(opt.engine),
};

/* What came of one prompt of n tokens. */
struct score {
    struct token_ids prompt;
    int32_t *argmax; // [n]
    float *logprobs; // [n - 1]: of token i + 1
    float *logits;   // [vocab_size], after the last token
    int32_t vocab_size;
    bool done;
};

static struct score *score_new(struct gyre *g, const int32_t *ids, size_t n) {
    struct score *s = xcalloc(1, sizeof *s);
    for (size_t i = 0; i < n; i++)
        token_ids_push(&s->prompt, ids[i]);
    s->vocab_size = gyre_info(g)->vocab_size;
    s->argmax = xcalloc(n, sizeof *s->argmax);
    s->logprobs = xcalloc(n, sizeof *s->logprobs);
    s->logits = xcalloc((size_t)s->vocab_size, sizeof *s->logits);
    return s;
}

static void score_free(void *job) {
    struct score *s = job;
    token_ids_release(&s->prompt);
    free(s->argmax);
    free(s->logprobs);
    free(s->logits);
    free(s);
}

static enum status score_submit(struct score *s, struct gyre *g, void *user, struct error *err) {
    struct gyre_request q = gyre_request_default(g);
    struct gyre_error e;
    uint64_t id;
    q.prompt = s->prompt.ids, q.n_prompt = (int64_t)s->prompt.n, q.max_tokens = 0;
    q.score_prompt = q.want_last_logits = true;
    q.user = user;
    return gyre_submit(g, &q, &id, &e) == 0 ? OK : engine_fault(&e, err);
}

static enum status score_take(void *job, struct gyre *g, const struct gyre_event *e, struct error *err) {
    struct score *s = job;
    (void)g;
    if (e->kind == GYRE_DONE) {
        s->done = true;
        return e->finish == GYRE_FAILED ? fail(err, ERR_DEVICE, "%s", e->error) : OK;
    }
    s->argmax[e->position] = e->token;
    s->logprobs[e->position] = e->logprob;
    if (e->logits)
        memcpy(s->logits, e->logits, (size_t)s->vocab_size * sizeof *s->logits);
    return OK;
}

static void json_floats(const float *x, size_t n, struct buf *out) {
    buf_push(out, '[');
    for (size_t i = 0; i < n; i++) {
        if (i > 0)
            buf_push(out, ',');
        json_float(x[i], out);
    }
    buf_push(out, ']');
}

static void score_json(const void *job, struct buf *out) {
    const struct score *s = job;
    buf_str(out, STR("{\"token_logprobs\":"));
    json_floats(s->logprobs, s->prompt.n - 1, out);
    buf_str(out, STR(",\"argmax\":"));
    json_ids(s->argmax, s->prompt.n, out);
    buf_str(out, STR(",\"last_logits\":"));
    json_floats(s->logits, (size_t)s->vocab_size, out);
    buf_push(out, '}');
}

static void print_text(const struct score *s) {
    double sum = 0;
    printf("position\ttoken\tlogprob\tbest next\n");
    for (size_t i = 0; i < s->prompt.n; i++) {
        printf("%zu\t%d\t", i, s->prompt.ids[i]);
        if (i > 0) {
            sum += (double)s->logprobs[i - 1];
            printf("%.5f", (double)s->logprobs[i - 1]);
        }
        printf("\t%d\n", s->argmax[i]);
    }
    if (s->prompt.n > 1)
        printf("sum %.5f over %zu tokens, perplexity %.4f\n", sum, s->prompt.n - 1,
               exp(-sum / (double)(s->prompt.n - 1)));
}

// ---- one prompt and many ----------------------------------------------------------------------------------------

struct scorer {
    struct gyre *g;
    struct model_text text; // opened when a prompt is text
};

static enum status encode_prompt(struct scorer *s, const char *model, const char *prompt, struct token_ids *out,
                                 struct error *err) {
    if (!s->text.tok)
        TRY(model_text_open(&s->text, model, err));
    return model_text_encode(&s->text, str_of(prompt), out, err);
}

static enum status score_once(struct scorer *scorer, const char *model, struct error *err) {
    struct token_ids ids = {0};
    if (opt.prompt) {
        TRY(encode_prompt(scorer, model, opt.prompt, &ids, err));
    } else {
        for (size_t i = 0; i < opt.ids.n; i++)
            token_ids_push(&ids, opt.ids.ids[i]);
    }
    struct score *s = score_new(scorer->g, ids.ids, ids.n);
    token_ids_release(&ids);
    enum status st = score_submit(s, scorer->g, s, err);
    while (st == OK && !s->done) {
        struct gyre_event events[64];
        int n = gyre_poll(scorer->g, events, 64);
        for (int i = 0; i < n && st == OK; i++)
            st = score_take(s, scorer->g, &events[i], err);
    }
    if (st == OK && strcmp(opt.output, "text") == 0) {
        print_text(s);
    } else if (st == OK) {
        struct buf out = {0};
        score_json(s, &out);
        buf_push(&out, '\n');
        terminal_print(stdout, buf_view(&out));
        buf_release(&out);
    }
    score_free(s);
    return st;
}

struct line_context {
    struct scorer *scorer;
    const char *model;
};

static enum status begin_line(void *arg, struct gyre *g, const json_t *line, void *user, void **job,
                              struct error *err) {
    const struct line_context *c = arg;
    struct request_fields f;
    struct token_ids ids = {0};
    struct gyre_request base = gyre_request_default(g);
    TRY(request_prompt_read(line, &base, &f, err));
    enum status st = OK;
    if (f.prompt)
        st = encode_prompt(c->scorer, c->model, f.prompt, &ids, err);
    if (st == OK) {
        struct score *s =
            f.prompt ? score_new(g, ids.ids, ids.n) : score_new(g, f.request.prompt, (size_t)f.request.n_prompt);
        st = score_submit(s, g, user, err);
        if (st == OK)
            *job = s;
        else
            score_free(s);
    }
    token_ids_release(&ids);
    request_fields_release(&f);
    return st;
}

static int run(const struct verb_args *args) {
    static const struct batch_verb verb = {begin_line, score_take, score_json, score_free};
    struct error err;
    if (!!opt.prompt + opt.ids.given + opt.batch != 1)
        return verb_misused(args->spec, "score takes one of --prompt, --prompt-ids and --batch");
    struct scorer scorer = {0};
    const char *model = args->operands[0];
    opt.engine.exact = true;
    if (engine_flags_open(&opt.engine, model, &scorer.g, &err) != OK)
        return verb_failed(&err);
    int rc;
    if (opt.batch)
        rc = engine_batch(scorer.g, &verb, &(struct line_context){&scorer, model});
    else
        rc = score_once(&scorer, model, &err) == OK ? 0 : verb_failed(&err);
    device_warnings_of(scorer.g);
    gyre_close(scorer.g);
    model_text_release(&scorer.text);
    return rc;
}

const struct verb_spec verb_score = {
    "score",
    "MODEL",
    "tells how probable a model finds each token of a prompt",
    flags,
    ARRAY_LEN(flags),
    1,
    1,
    .run = run,
    .epilogue =
        "token_logprobs[i] is the natural logarithm of the probability of token i + 1 after tokens 0 to i;\n"
        "argmax[i] the most probable token there; last_logits those of the whole vocabulary after the last token.\n"
        "  gyre score models/story --prompt-ids 1269,680,261,516 --output json\n"};
