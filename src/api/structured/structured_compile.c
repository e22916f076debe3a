/* structured_compile.c - from what a request asks for to a grammar of the server's; see structured.h. */
#include "api/answer/generation.h"
#include "api/structured/structured.h"
#include "base/clock.h"
#include "base/guard.h"
#include "grammar/grammar_cache.h"
#include "text/token_trie.h"
#include "text/tools/tool_marks.h"

#include <string.h>

/* Made when the first request needs it: it takes a tenth of a second and some tens of megabytes. */
static enum status tokens_of(struct api *api, struct token_trie **out, struct error *err) {
    const struct gyre_info *info = service_info(api->service);
    enum status st = OK;
    alloc_scope_lock(&api->grammar_lock);
    if (!api->tokens)
        st = tokenizer_trie(api->options.tokenizer, info->eos, info->n_eos, &api->tokens, err);
    alloc_scope_unlock(&api->grammar_lock);
    *out = api->tokens;
    return st;
}

/* A model that thinks ends that by itself. Where no template says that it does, its tokens may. In channels reasoning
 * is a message of its own, and so is the answer, unless the prompt is within it. */
static struct grammar_reasoning reasoning_of(const struct generation *g, const struct structured *s) {
    const struct tool_format *f = g->format;
    struct grammar_reasoning r = {0};
    if (!f || s->is_whole)
        return r;
    if (f->style == TOOL_STYLE_CHANNELS) {
        if (!g->prompt_ends_reasoning)
            r = (struct grammar_reasoning){f->reasoning_open, f->reasoning_close, false, STR(TOOL_CHANNEL_AGAIN),
                                           STR(TOOL_CHANNEL_ANSWER)};
        return r;
    }
    struct str begin = str_core(f->reasoning_open), end = str_core(f->reasoning_close);
    bool is_open = g->opened.len > 0 && str_starts(g->opened, begin);
    bool may_think = !f->reasoning_is_guess || tokenizer_find(g->api->options.tokenizer, end) >= 0;
    if (is_open || (may_think && !g->prompt_ends_reasoning))
        r = (struct grammar_reasoning){begin, end, is_open};
    return r;
}

/* The sentence names the field; what the source asks for and what it is are the request's affair, whatever failed. */
static enum status say_where(const char *field, struct error *err) {
    struct error inner = *err;
    if (str_starts(str_of(inner.text), str_of(field)))
        return inner.status;
    return fail(err, inner.status, "%s: %s", field, inner.text);
}

enum status structured_compile(struct generation *g, struct structured *s, struct error *err) {
    struct api *api = g->api;
    if (!s->field)
        return OK;
    int64_t start_us = clock_us();
    TRY(tokens_of(api, &s->compiled.tokens, err));
    s->source.reasoning = reasoning_of(g, s);
    s->compiled.split = api->options.no_jumps ? NULL : api_split_behind;
    s->compiled.split_context = api;
    enum status st =
        grammar_cache_compile(api->grammars, &s->source, &(struct grammar_limits){0}, &s->compiled.grammar, err);
    ((struct api_record *)g->x->record)->grammar_us = MAX(clock_us() - start_us, 1);
    return st == OK ? OK : say_where(s->field, err);
}
