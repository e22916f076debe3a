/* train_texts.c - see train_texts.h. */
#include "main/train/train_texts.h"

#include "base/clock.h"
#include "console/progress.h"
#include "console/terminal.h"
#include "main/train/train_prompts.h"
#include "train/answers.h"

#include <stdio.h>

enum { OPENINGS = 2000, LONGEST = 8192 };

static void told_answer(void *bar, int64_t n_done) { progress_step(bar, n_done); }

static enum status write_answers(struct gyre *g, const struct texts *prompts, struct answer_options *o,
                                 const char *what, struct texts *out, struct error *err) {
    struct progress bar;
    int64_t start = clock_us();
    o->told = told_answer, o->context = &bar;
    progress_begin(&bar, what, "answers", o->n);
    enum status st = answers_write(g, prompts, o, out, err);
    progress_end(&bar);
    if (st == OK)
        printf("%s: %lld answers, %lld tokens with their prompts, %s\n", what, (long long)o->n,
               (long long)texts_tokens(out), human_seconds(clock_seconds_since(start)).text);
    return st;
}

static enum status write_texts(const struct text_options *t, struct gyre *g, const struct texts *prompts,
                               int64_t longest, struct texts *out, struct error *err) {
    static const float mixed[] = {0.8f, 0.8f, 0.4f, 0};
    const float own = (float)t->temperature;
    struct answer_options o = {.n = t->answers > 0 ? t->answers : prompts->n,
                               .max_tokens = t->answer_tokens,
                               .temperatures = t->temperature < 0 ? mixed : &own,
                               .n_temperatures = t->temperature < 0 ? (int)ARRAY_LEN(mixed) : 1,
                               .seed = (uint64_t)t->seed,
                               .longest = longest};
    if (t->generate)
        return write_answers(g, prompts, &o, "texts to train on", out, err);
    for (int64_t i = 0; i < prompts->n; i++)
        texts_add(out, texts_ids(prompts, i), texts_length(prompts, i));
    return OK;
}

static enum status write_held(struct gyre *g, const struct texts *prompts, int64_t longest, struct held_out *held,
                              struct error *err) {
    struct answer_options o = {.n = prompts->n,
                               .max_tokens = ACCEPTANCE_TOKENS + ACCEPTANCE_GUESSES,
                               .temperatures = (const float[]){0},
                               .n_temperatures = 1,
                               .longest = longest};
    if (prompts->n == 0)
        return OK;
    TRY(write_answers(g, prompts, &o, "texts to measure with", &held->texts, err));
    held->n_prompt = xcalloc((size_t)prompts->n, sizeof *held->n_prompt);
    for (int64_t i = 0; i < prompts->n; i++)
        held->n_prompt[i] = MIN(texts_length(prompts, i), longest - 1);
    return OK;
}

static enum status read_prompts(const struct text_options *t, struct prompt_source *s, struct texts *prompts,
                                struct texts *held, struct error *err) {
    s->path = t->data;
    TRY(train_prompts_read(s, prompts, t->held_out ? NULL : held, err));
    s->path = t->held_out;
    return t->held_out ? train_prompts_read_held(s, held, err) : OK;
}

static enum status make_all(const struct text_options *t, struct gyre *g, struct model_text *text, const char *model,
                            struct texts *texts, struct held_out *held, struct error *err) {
    struct texts prompts = {0}, held_prompts = {0};
    struct prompt_source s = {.text = text,
                              .model = model,
                              .vocab_size = gyre_info(g)->vocab_size,
                              .longest = MIN(gyre_info(g)->max_model_len, LONGEST),
                              .n_openings = t->answers > 0 ? t->answers : OPENINGS,
                              .n_held = t->held_prompts,
                              .seed = (uint64_t)t->seed,
                              .as_it_is = !t->generate};
    if (s.longest < 2)
        return fail(err, ERR_LIMIT, "%s: its sequences hold %lld token, and texts to train on take 2: --max-model-len",
                    model, (long long)s.longest);
    enum status st = read_prompts(t, &s, &prompts, &held_prompts, err);
    if (st == OK)
        st = write_texts(t, g, &prompts, s.longest, texts, err);
    if (st == OK)
        st = write_held(g, &held_prompts, s.longest, held, err);
    texts_release(&prompts);
    texts_release(&held_prompts);
    return st;
}

enum status train_texts_make(const struct text_options *o, struct engine_flags *engine, const char *model,
                             struct texts *texts, struct held_out *held, struct error *err) {
    struct model_text text = {0};
    struct gyre *g = NULL;
    enum status st = model_text_open(&text, model, err);
    if (st == OK) {
        model_text_ends(&text, model, &engine->eos);
        st = engine_flags_open(engine, model, &g, err);
    }
    if (st == OK)
        st = make_all(o, g, &text, model, texts, held, err);
    gyre_close(g);
    model_text_release(&text);
    return st;
}
