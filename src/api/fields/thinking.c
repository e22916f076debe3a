/* thinking.c - see thinking.h. */
#include "api/fields/thinking.h"

#include "api/fields/params.h"
#include "text/tools/tool_marks.h"

#include <stdio.h>
#include <string.h>

enum status thinking_read(struct generation *g, const json_t *body, struct error *err) {
    static const char *const names[] = {"thinking_token_budget", "reasoning_budget_tokens"};
    for (size_t i = 0; i < ARRAY_LEN(names); i++) {
        int64_t most;
        TRY(jv_int_or(body, "request", names[i], -1, INT32_MAX, -1, &most, err));
        if (most >= 0 && g->thinking.field)
            return fail(err, ERR_ARG, "%s: %s says it too", names[i], g->thinking.field);
        if (most >= 0)
            g->thinking = (struct thinking_bound){names[i], most, false};
    }
    return OK;
}

/* The token that begins it, or those that the tokenizer makes of its mark. */
static enum status begin_of(const struct generation *g, struct str mark, struct gyre_thinking *t, struct error *err) {
    struct token_ids ids = {0};
    int32_t one = tokenizer_find(g->api->options.tokenizer, mark);
    if (one >= 0)
        token_ids_push(&ids, one);
    enum status st = one >= 0 ? OK : api_tokenize(g->api, mark, ENCODE_PARSE_SPECIAL, &ids, err);
    if (st == OK) {
        int32_t *begin = arena_calloc(&g->x->arena, ids.n, sizeof *begin);
        memcpy(begin, ids.ids, ids.n * sizeof *begin);
        t->begin = begin;
        t->n_begin = ids.n;
    }
    token_ids_release(&ids);
    return st;
}

/* Why it cannot be kept; NULL: *out says how, or stays NULL where there is nothing to bound. */
static enum status bound_of(const struct generation *g, const struct gyre_thinking **out, const char **why,
                            struct error *err) {
    const struct tool_format *f = g->format;
    *why = NULL;
    if (!f || f->reasoning_close.len == 0)
        *why = "the model's template shows no thinking";
    else if (f->style == TOOL_STYLE_CHANNELS)
        *why = "the model thinks in channels, whose tokens are not counted";
    if (*why || g->prompt_ends_reasoning)
        return OK;
    struct str begin = str_core(f->reasoning_open), end = str_core(f->reasoning_close);
    struct gyre_thinking *t = arena_calloc(&g->x->arena, 1, sizeof *t);
    t->end = tokenizer_find(g->api->options.tokenizer, end);
    t->is_open = g->opened.len > 0 && str_starts(g->opened, begin);
    t->most_tokens = g->thinking.most;
    TRY(begin.len > 0 ? begin_of(g, begin, t, err) : OK);
    if (t->end < 0)
        *why = "what ends the model's thinking is no token of its own";
    else
        *out = t;
    return OK;
}

enum status thinking_bind(struct generation *g, struct gyre_request *r, const char *excludes, struct error *err) {
    const struct thinking_bound *asked = &g->thinking;
    const char *why;
    if (!asked->field)
        return OK;
    if (excludes)
        return fail(err, ERR_UNSUPPORTED, "%s: it is not supported together with %s", asked->field, excludes);
    TRY(bound_of(g, &r->thinking, &why, err));
    if (why && !asked->may_be_ignored)
        return fail(err, ERR_UNSUPPORTED, "%s: %s", asked->field, why);
    if (why) {
        char sentence[200];
        snprintf(sentence, sizeof sentence, "%s was ignored: %s", asked->field, why);
        params_warn(g, sentence);
    }
    return OK;
}
