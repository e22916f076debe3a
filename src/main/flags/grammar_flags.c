/* grammar_flags.c - see grammar_flags.h. */
#include "main/flags/grammar_flags.h"

#include "base/file.h"
#include "text/forced_split.h"
#include "text/token_trie.h"
#include "text/tools/tool_marks.h"

enum { MAX_GRAMMAR_BYTES = 64 << 20 };

static int n_given(const struct grammar_flags *f) { return !!f->json_schema + !!f->grammar + !!f->regex + !!f->choice; }

bool grammar_flags_given(const struct grammar_flags *f) { return n_given(f) > 0; }

const char *grammar_flags_misuse(const struct grammar_flags *f) {
    return n_given(f) > 1 ? "an answer has one of --json-schema, --grammar, --regex and --choice" : NULL;
}

static json_t *choices_of(const char *list) {
    json_t *all = json_array();
    for (const char *at = list;; at++) {
        size_t n = strcspn(at, ",");
        json_array_append_new(all, json_stringn_nocheck(at, n));
        at += n;
        if (!*at)
            return all;
    }
}

/* What is read lies in text and *value. */
static enum status read_source(const struct grammar_flags *f, struct buf *text, json_t **value,
                               struct grammar_source *out, struct error *err) {
    const char *file = f->json_schema ? f->json_schema : f->grammar;
    TRY(file ? file_read(file, MAX_GRAMMAR_BYTES, text, err) : OK);
    if (f->json_schema) {
        TRY(jv_parse(buf_view(text), file, JV_ALLOW_DUPLICATES, value, err));
        *out = (struct grammar_source){.kind = GRAMMAR_JSON_SCHEMA, .value = *value};
    } else if (f->choice) {
        *value = choices_of(f->choice);
        *out = (struct grammar_source){.kind = GRAMMAR_CHOICE, .value = *value};
    } else if (f->regex) {
        *out = (struct grammar_source){.kind = GRAMMAR_REGEX, .text = str_of(f->regex)};
    } else {
        *out = (struct grammar_source){.kind = grammar_kind_of(buf_view(text)), .text = buf_view(text)};
    }
    return OK;
}

static struct grammar_reasoning reasoning_of(const struct model_text *t) {
    const struct tool_format *f = t->format;
    if (!t->is_chat || (f->style == TOOL_STYLE_CHANNELS && t->prompt_thought))
        return (struct grammar_reasoning){0};
    if (f->style == TOOL_STYLE_CHANNELS)
        return (struct grammar_reasoning){f->reasoning_open, f->reasoning_close, false, STR(TOOL_CHANNEL_AGAIN),
                                          STR(TOOL_CHANNEL_ANSWER)};
    struct grammar_reasoning r = {str_core(f->reasoning_open), str_core(f->reasoning_close), t->prompt_thinks};
    bool known = !f->reasoning_is_guess || tokenizer_find(t->tok, r.end) >= 0;
    return t->prompt_thinks || (known && !t->prompt_thought) ? r : (struct grammar_reasoning){0};
}

/* Errors of a file name it. */
static enum status say_where(const struct grammar_flags *f, struct error *err) {
    const char *where = f->json_schema ? f->json_schema : f->grammar ? f->grammar : f->regex ? "--regex" : "--choice";
    struct error inner = *err;
    return str_starts(str_of(inner.text), str_of(where)) ? inner.status
                                                         : fail(err, inner.status, "%s: %s", where, inner.text);
}

static enum status compile(const struct grammar_flags *f, const struct model_text *text, struct grammar_compiler *c,
                           struct grammar **out, struct error *err) {
    struct buf read = {0};
    json_t *value = NULL;
    struct grammar_source source;
    enum status st = read_source(f, &read, &value, &source, err);
    if (st == OK) {
        source.reasoning = reasoning_of(text);
        st = grammar_cache_compile(c->cache, &source, &(struct grammar_limits){0}, out, err);
    }
    json_decref(value);
    buf_release(&read);
    return st == OK ? OK : say_where(f, err);
}

static int split_behind(void *context, const int32_t *before, int n_before, struct str text, int32_t *out, int max) {
    struct grammar_compiler *c = context;
    pthread_mutex_lock(&c->lock);
    int n = tokenizer_split_behind(c->tok, c->encoder, before, n_before, text, out, max);
    pthread_mutex_unlock(&c->lock);
    return n;
}

static enum status open_compiler(struct grammar_compiler *c, const struct tokenizer *tok, const struct gyre_info *info,
                                 struct error *err) {
    pthread_mutex_init(&c->lock, NULL);
    c->cache = grammar_cache_open(0);
    c->tok = tok;
    c->encoder = encoder_open(tok);
    return tokenizer_trie(tok, info->eos, info->n_eos, &c->tokens, err);
}

enum status grammar_flags_compile(const struct grammar_flags *f, const struct model_text *text,
                                  const struct gyre_info *info, struct grammar_compiler *c, struct gyre_grammar *out,
                                  struct error *err) {
    *out = (struct gyre_grammar){0};
    if (!grammar_flags_given(f))
        return OK;
    if (!text->tok)
        return fail(err, ERR_ARG, "the model has no tokenizer, so no grammar can be held against its tokens");
    TRY(c->cache ? OK : open_compiler(c, text->tok, info, err));
    *out = (struct gyre_grammar){.tokens = c->tokens, .split = f->jumps ? split_behind : NULL, .split_context = c};
    return compile(f, text, c, &out->grammar, err);
}

void grammar_compiler_release(struct grammar_compiler *c) {
    if (c->cache)
        pthread_mutex_destroy(&c->lock);
    encoder_free(c->encoder);
    grammar_cache_free(c->cache);
    token_trie_free(c->tokens);
    *c = (struct grammar_compiler){0};
}
