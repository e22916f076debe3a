/* grammar.c - gyre grammar: whether texts follow grammars. */
#include "grammar/matcher.h"
#include "main/model/model_path.h"
#include "main/run/batch.h"
#include "main/text/grammar_sample.h"
#include "main/verbs.h"
#include "text/chat/turn_ends.h"
#include "text/token_trie.h"

static struct {
    const char *tokenizer;
    bool batch;
    int64_t sample, seed;
} opt;

static const struct flag flags[] = {
    {"batch", 0, FLAG_BOOL, &opt.batch, NULL, "Input", "JSON lines in, JSON lines out"},
    {"tokenizer", 0, FLAG_STRING, &opt.tokenizer, "TOK", "Input",
     "match by this tokenizer's tokens and their masks, not by bytes"},
    {"sample", 0, FLAG_INT, &opt.sample, "N", "Input", "write N random texts of each grammar", .min = 0, .max = 1e6},
    {"seed", 0, FLAG_INT, &opt.seed, "N", "Input", "of random texts", .min = 0, .max = 1e9},
    ALLOW_LINKS_FLAG,
};

struct job {
    struct tokenizer *tok; // NULL: by bytes
    struct encoder *enc;
    struct token_trie *trie;
    int32_t end; // the token that ends a text
    uint32_t *mask;
    json_t *source; // of the grammar: lines of one schema often follow one another
    struct grammar *grammar;
};

static const struct {
    const char *key;
    enum grammar_kind kind;
    bool is_text;
} kinds[] = {
    {"json_schema", GRAMMAR_JSON_SCHEMA, false},
    {"json_object", GRAMMAR_JSON_OBJECT, false},
    {"regex", GRAMMAR_REGEX, true},
    {"gbnf", GRAMMAR_GBNF, true},
    {"lark", GRAMMAR_LARK, true},
    {"choice", GRAMMAR_CHOICE, false},
    {"structural_tag", GRAMMAR_STRUCTURAL_TAG, false},
};

/* The grammar of a line, or that of the line before if it is the same. */
static enum status compile(struct job *job, const json_t *line, struct error *err) {
    const json_t *value = NULL;
    size_t which = 0;
    for (size_t i = 0; i < ARRAY_LEN(kinds); i++)
        if (json_object_get(line, kinds[i].key)) {
            if (value)
                return fail(err, ERR_ARG, "the line has both %s and %s", kinds[which].key, kinds[i].key);
            value = json_object_get(line, kinds[which = i].key);
        }
    if (!value)
        return fail(err, ERR_ARG, "the line has no grammar: json_schema, regex, gbnf, lark, choice ...");
    if (kinds[which].is_text && !json_is_string(value))
        return fail(err, ERR_ARG, "%s is %s, it must be a string", kinds[which].key, jv_type_name(value));
    json_t *source = json_pack("[sO]", kinds[which].key, value);
    if (job->source && json_equal(source, job->source)) {
        json_decref(source);
        return OK;
    }
    json_decref(job->source);
    grammar_release(job->grammar);
    job->source = NULL;
    job->grammar = NULL;
    struct grammar_source from = {.kind = kinds[which].kind, .value = value};
    if (kinds[which].is_text)
        from.text = (struct str){json_string_value(value), json_string_length(value)};
    enum status st = grammar_compile(&from, NULL, &job->grammar, err);
    if (st == OK)
        job->source = source;
    else
        json_decref(source);
    return st;
}

static bool allowed(struct job *job, struct matcher *m, int32_t token) {
    matcher_mask(m, job->mask);
    return job->mask[token / 32] >> (token % 32) & 1;
}

/* From which token on they spell the text; ids->n: from none. */
static size_t spelled_from(const struct job *job, const struct token_ids *ids, struct str text) {
    struct buf all = {0}, one = {0};
    size_t first = ids->n, n = 0;
    for (size_t i = 0; i < ids->n; i++)
        tokenizer_token_bytes(job->tok, ids->ids[i], &all);
    bool is = str_ends(buf_view(&all), text);
    while (is && n < text.len) {
        buf_clear(&one);
        tokenizer_token_bytes(job->tok, ids->ids[--first], &one);
        n += one.len;
    }
    buf_release(&all);
    buf_release(&one);
    return n == text.len ? first : ids->n;
}

/* The text's tokens, in ids from *first on. Some tokenizers put a blank before what they read: an answer has none, it
 * follows a prompt. */
static enum status encode(const struct job *job, struct str text, struct token_ids *ids, size_t *first,
                          struct error *err) {
    TRY(tokenizer_encode(job->enc, text, 0, ids, err));
    *first = 0;
    if (text.len == 0 || spelled_from(job, ids, text) == 0)
        return OK;
    struct token_ids behind = {0};
    struct buf line = {0};
    buf_str(&line, STR("\n"));
    buf_str(&line, text);
    enum status st = tokenizer_encode(job->enc, buf_view(&line), 0, &behind, err);
    size_t from = st == OK ? spelled_from(job, &behind, text) : 0;
    buf_release(&line);
    if (st != OK || from == behind.n) { // it changes texts otherwise, or has no line ends
        token_ids_release(&behind);
        return st;
    }
    token_ids_release(ids);
    *ids = behind;
    *first = from;
    return OK;
}

/* Every token must be in the mask of its step, and the end in the last. */
static enum status match_tokens(struct job *job, struct matcher *m, struct str text, bool *prefix, bool *accepts,
                                struct error *err) {
    struct token_ids ids = {0};
    size_t first = 0;
    enum status st = encode(job, text, &ids, &first, err);
    *prefix = st == OK;
    for (size_t i = first; i < ids.n && *prefix; i++) {
        *prefix = allowed(job, m, ids.ids[i]);
        if (*prefix && !matcher_accept(m, ids.ids[i]))
            st = matcher_is_dead(m, err)
                     ? err->status
                     : fail(err, ERR_LIMIT, "the mask allows token %d, and the matcher does not", ids.ids[i]);
    }
    *accepts = st == OK && *prefix && allowed(job, m, job->end);
    token_ids_release(&ids);
    return st;
}

static enum status match(struct job *job, struct str text, struct buf *out, struct error *err) {
    struct matcher *m;
    bool prefix, accepts;
    TRY(matcher_open(job->grammar, job->trie, &m, err));
    enum status st = OK;
    if (job->tok)
        st = match_tokens(job, m, text, &prefix, &accepts, err);
    else {
        prefix = matcher_accept_bytes(m, text);
        accepts = prefix && matcher_may_end(m);
    }
    if (matcher_is_dead(m, err))
        st = err->status;
    matcher_free(m);
    if (st == OK)
        buf_printf(out, "{\"accepts\": %s, \"prefix\": %s}", accepts ? "true" : "false", prefix ? "true" : "false");
    return st;
}

/* {"texts": finished ones, "cut": beginnings}. */
static enum status sample(struct job *job, struct buf *out, struct error *err) {
    enum { MAX_BYTES = 400 };
    struct buf finished = {0}, cut = {0}, text = {0};
    enum status st = OK;
    for (int i = 0; i < opt.sample && st == OK; i++) {
        struct matcher *m;
        TRY(matcher_open(job->grammar, NULL, &m, err));
        buf_clear(&text);
        enum sample_end end = grammar_sample(m, (uint64_t)opt.seed * 1000003 + (uint64_t)i, MAX_BYTES, &text);
        struct buf *list = end == SAMPLE_FINISHED ? &finished : &cut;
        if (matcher_is_dead(m, err))
            st = err->status;
        else if (end == SAMPLE_STUCK)
            st = fail(err, ERR_LIMIT, "no text goes on behind: %.*s", (int)text.len, text.ptr ? text.ptr : "");
        matcher_free(m);
        text.len -= utf8_incomplete_tail(buf_view(&text));
        buf_printf(list, list->len ? ", " : "");
        buf_json_string(list, buf_view(&text));
    }
    if (st == OK)
        buf_printf(out, "{\"texts\": [%s], \"cut\": [%s]}", buf_view(&finished).ptr, buf_view(&cut).ptr);
    buf_release(&finished);
    buf_release(&cut);
    buf_release(&text);
    return st;
}

static enum status answer(void *arg, const json_t *line, struct buf *out, struct error *err) {
    struct job *job = arg;
    const json_t *text = json_object_get(line, "text");
    if (!json_is_object(line) || (!json_is_string(text) && !opt.sample))
        return fail(err, ERR_ARG, "the line must be an object with a text");
    TRY(compile(job, line, err));
    if (opt.sample)
        return sample(job, out, err);
    return match(job, (struct str){json_string_value(text), json_string_length(text)}, out, err);
}

static enum status open_tokenizer(struct job *job, struct error *err) {
    struct token_ids ends = {0};
    TRY(model_path_check(opt.tokenizer, MODEL_TOKENIZER, err));
    TRY(tokenizer_open(opt.tokenizer, &job->tok, err));
    job->enc = encoder_open(job->tok);
    turn_ends_in_folder(job->tok, opt.tokenizer, &ends);
    if (ends.n == 0) // a file by itself names none: the usual ones, or any special token
        for (int32_t id = tokenizer_n_vocab(job->tok) - 1; id >= 0; id--)
            if (tokenizer_is_special(job->tok, id)) {
                token_ids_push(&ends, id);
                break;
            }
    enum status st = ends.n ? tokenizer_trie(job->tok, ends.ids, (int)ends.n, &job->trie, err)
                            : fail(err, ERR_ARG, "%s has no token that ends a text", opt.tokenizer);
    if (st == OK) {
        job->end = ends.ids[0];
        job->mask = xcalloc((size_t)token_trie_n_words(job->trie), sizeof *job->mask);
    }
    token_ids_release(&ends);
    return st;
}

static int run(const struct verb_args *args) {
    if (!opt.batch)
        return verb_misused(args->spec, "grammar reads JSON lines, with --batch");
    struct job job = {0};
    struct error err;
    int rc = 0;
    if (opt.tokenizer && open_tokenizer(&job, &err) != OK)
        rc = verb_failed(&err);
    else
        rc = batch_run(answer, &job, NULL);
    json_decref(job.source);
    grammar_release(job.grammar);
    token_trie_free(job.trie);
    free(job.mask);
    encoder_free(job.enc);
    tokenizer_free(job.tok);
    return rc;
}

const struct verb_spec verb_grammar = {
    "grammar",
    "",
    "says whether texts follow grammars",
    flags,
    ARRAY_LEN(flags),
    0,
    0,
    .run = run,
    .epilogue =
        "A line in: {\"text\": T, and one of \"json_schema\": S, \"json_object\": true, \"regex\": R, \"gbnf\": G,\n"
        "\"lark\": L, \"choice\": [..], \"structural_tag\": S}. A line out: {\"accepts\": B, \"prefix\": B}: T is in\n"
        "the language, T is the beginning of a text that is; or {\"error\": sentence} where the grammar is refused.\n"
        "With --tokenizer every token of T must be in the mask of its step, and the end in the last.\n"
        "With --sample a line needs no text, and the answer is {\"texts\": [..], \"cut\": [..]}: random texts of the\n"
        "grammar, and beginnings of longer ones.\n"};
