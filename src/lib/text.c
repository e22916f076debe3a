/* text.c - a model's tokenizer and chat template behind gyre_text.h. */
#include "lib/public.h"

#include "base/json/json.h"
#include "engine/constraint.h"
#include "grammar/grammar_cache.h"
#include "text/chat/turn_ends.h"
#include "text/detokenizer.h"
#include "text/forced_split.h"
#include "text/token_trie.h"

#include <pthread.h>

enum { MAX_IDLE_ENCODERS = 16, LONG_TEXT = 1 << 20 };

struct gyre_text {
    struct tokenizer *tok;
    struct chat_template *chat; // NULL: none, or chat_fault says why it is of no use
    struct error chat_fault;
    pthread_mutex_t lock;
    struct encoder *idle[MAX_IDLE_ENCODERS]; // [n_idle], under the lock
    int n_idle;
    struct token_trie *trie; // under the lock, and the next: NULL until there is a grammar
    struct grammar_cache *grammars;
};

int public_report(struct gyre_error *out, const struct error *err) {
    if (out) {
        out->status = err->status;
        memcpy(out->text, err->text, sizeof out->text);
    }
    return err->status;
}
_Static_assert(sizeof((struct gyre_error){0}.text) == sizeof((struct error){0}.text), "a sentence is copied whole");

struct gyre_string public_string(struct buf *take_text) {
    buf_append(take_text, "", 0);
    struct gyre_string s = {take_text->ptr ? take_text->ptr : xcalloc(1, 1), take_text->len};
    *take_text = (struct buf){0};
    return s;
}

const struct tokenizer *public_tokenizer(const struct gyre_text *t) { return t->tok; }

void gyre_string_free(struct gyre_string *s) {
    free(s->text);
    *s = (struct gyre_string){0};
}

void gyre_ids_free(struct gyre_ids *ids) {
    free(ids->ids);
    *ids = (struct gyre_ids){0};
}

// ---- opening ----------------------------------------------------------------------------------------------------

static enum status open_text(struct gyre_text *t, const char *model, struct error *err) {
    if (!model)
        return fail(err, ERR_ARG, "model is NULL: it is a folder in Hugging Face's layout");
    TRY(tokenizer_open(model, &t->tok, err));
    if (chat_template_exists(model) && chat_template_open(model, &t->chat, &t->chat_fault) != OK)
        return OK; // a model with a faulty template still goes on with texts
    if (!t->chat)
        fail(&t->chat_fault, ERR_UNSUPPORTED, "%s has no chat template", model);
    return OK;
}

int gyre_text_open(const char *model, struct gyre_text **out, struct gyre_error *err) {
    struct error e = {0};
    struct gyre_text *t = xcalloc(1, sizeof *t);
    pthread_mutex_init(&t->lock, NULL);
    *out = t;
    if (open_text(t, model, &e) == OK)
        return 0;
    gyre_text_close(t);
    *out = NULL;
    return public_report(err, &e);
}

void gyre_text_close(struct gyre_text *t) {
    if (!t)
        return;
    for (int i = 0; i < t->n_idle; i++)
        encoder_free(t->idle[i]);
    grammar_cache_free(t->grammars);
    token_trie_free(t->trie);
    chat_template_free(t->chat);
    tokenizer_free(t->tok);
    pthread_mutex_destroy(&t->lock);
    free(t);
}

int32_t gyre_text_vocab_size(const struct gyre_text *t) { return tokenizer_n_vocab(t->tok); }
bool gyre_text_has_chat(const struct gyre_text *t) { return t->chat != NULL; }

// ---- tokens -----------------------------------------------------------------------------------------------------

/* Encoders are working memory: whoever needs one takes an idle one, or makes it. */
static struct encoder *take_encoder(struct gyre_text *t) {
    struct encoder *enc = NULL;
    pthread_mutex_lock(&t->lock);
    if (t->n_idle > 0)
        enc = t->idle[--t->n_idle];
    pthread_mutex_unlock(&t->lock);
    return enc ? enc : encoder_open(t->tok);
}

/* What a long text took is nobody's then. */
static void give_back(struct gyre_text *t, struct encoder *enc, size_t n_bytes) {
    bool kept = false;
    pthread_mutex_lock(&t->lock);
    if (n_bytes <= LONG_TEXT && t->n_idle < MAX_IDLE_ENCODERS) {
        t->idle[t->n_idle++] = enc;
        kept = true;
    }
    pthread_mutex_unlock(&t->lock);
    if (!kept)
        encoder_free(enc);
}

// ---- grammars ---------------------------------------------------------------------------------------------------

static int split_behind(void *context, const int32_t *before, int n_before, struct str text, int32_t *out, int max) {
    struct gyre_text *t = context;
    struct encoder *enc = take_encoder(t);
    int n = tokenizer_split_behind(t->tok, enc, before, n_before, text, out, max);
    give_back(t, enc, text.len);
    return n;
}

/* Under the lock. */
static enum status open_grammars(struct gyre_text *t, struct error *err) {
    struct gyre_ids ends = gyre_text_eos(t);
    if (!t->grammars)
        t->grammars = grammar_cache_open(0);
    enum status st = t->trie ? OK : tokenizer_trie(t->tok, ends.ids, (int)ends.n, &t->trie, err);
    gyre_ids_free(&ends);
    return st;
}

enum status public_compile(struct gyre_text *t, const struct grammar_source *source, struct gyre_grammar *out,
                           struct error *err) {
    pthread_mutex_lock(&t->lock);
    enum status st = open_grammars(t, err);
    if (st == OK)
        *out = (struct gyre_grammar){.tokens = token_trie_hold(t->trie), .split = split_behind, .split_context = t};
    pthread_mutex_unlock(&t->lock);
    TRY(st);
    return grammar_cache_compile(t->grammars, source, &(struct grammar_limits){0}, &out->grammar, err);
}

static enum status check_flags(int flags, int allowed, struct error *err) {
    if (flags & ~allowed)
        return fail(err, ERR_ARG, "flags: %#x is not known here", (unsigned)(flags & ~allowed));
    return OK;
}

static enum status check_text(const char *text, size_t n_bytes, struct error *err) {
    if (!text && n_bytes > 0)
        return fail(err, ERR_ARG, "the text is NULL and has %zu bytes", n_bytes);
    return OK;
}

static enum status tokenize(struct gyre_text *t, struct str text, int flags, struct token_ids *ids, struct error *err) {
    TRY(check_flags(flags, GYRE_ADD_SPECIAL | GYRE_PARSE_SPECIAL, err));
    TRY(check_text(text.ptr, text.len, err));
    int how =
        (flags & GYRE_ADD_SPECIAL ? ENCODE_ADD_SPECIAL : 0) | (flags & GYRE_PARSE_SPECIAL ? ENCODE_PARSE_SPECIAL : 0);
    struct encoder *enc = take_encoder(t);
    enum status st = tokenizer_encode(enc, text.ptr ? text : STR(""), how, ids, err);
    give_back(t, enc, text.len);
    return st;
}

int gyre_tokenize(const struct gyre_text *t, const char *text, size_t n_bytes, int flags, struct gyre_ids *out,
                  struct gyre_error *err) {
    struct error e = {0};
    struct token_ids ids = {0};
    *out = (struct gyre_ids){0};
    if (tokenize((struct gyre_text *)t, (struct str){text, n_bytes}, flags, &ids, &e) !=
        OK) { // its idle encoders alone change
        token_ids_release(&ids);
        return public_report(err, &e);
    }
    *out = (struct gyre_ids){ids.ids, ids.n};
    return 0;
}

static enum status check_ids(const struct gyre_text *t, const int32_t *ids, size_t n, struct error *err) {
    if (!ids && n > 0)
        return fail(err, ERR_ARG, "the ids are NULL, and there are %zu", n);
    for (size_t i = 0; i < n; i++)
        if (ids[i] < 0 || ids[i] >= tokenizer_n_vocab(t->tok))
            return fail(err, ERR_ARG, "the id %d is not in the vocabulary, ids are between 0 and %d", ids[i],
                        tokenizer_n_vocab(t->tok) - 1);
    return OK;
}

static enum status detokenize(const struct gyre_text *t, const int32_t *ids, size_t n, int flags, struct buf *text,
                              struct error *err) {
    TRY(check_flags(flags, GYRE_SKIP_SPECIAL, err));
    TRY(check_ids(t, ids, n, err));
    return tokenizer_decode(t->tok, ids, n, flags & GYRE_SKIP_SPECIAL ? DETOKENIZE_SKIP_SPECIAL : 0, text, err);
}

/* Hands over the text of a call that went well, or its sentence. */
static int conclude(enum status st, struct buf *text, const struct error *e, struct gyre_string *out,
                    struct gyre_error *err) {
    *out = (struct gyre_string){0};
    if (st == OK) {
        *out = public_string(text);
        return 0;
    }
    buf_release(text);
    return public_report(err, e);
}

int gyre_detokenize(const struct gyre_text *t, const int32_t *ids, size_t n, int flags, struct gyre_string *out,
                    struct gyre_error *err) {
    struct error e = {0};
    struct buf text = {0};
    return conclude(detokenize(t, ids, n, flags, &text, &e), &text, &e, out, err);
}

struct gyre_ids gyre_text_eos(const struct gyre_text *t) {
    struct token_ids ids = {0};
    turn_ends_find(t->tok, t->chat, &ids);
    return (struct gyre_ids){ids.ids, ids.n};
}

int gyre_token_bytes(const struct gyre_text *t, int32_t id, struct gyre_string *out, struct gyre_error *err) {
    struct error e = {0};
    struct buf text = {0};
    enum status st = check_ids(t, &id, 1, &e);
    if (st == OK)
        tokenizer_token_bytes(t->tok, id, &text);
    return conclude(st, &text, &e, out, err);
}

// ---- chats ------------------------------------------------------------------------------------------------------

static enum status render(const struct gyre_text *t, json_t *request, struct jv_numbers *numbers, struct buf *text,
                          struct error *err) {
    if (!t->chat) {
        *err = t->chat_fault;
        return err->status;
    }
    return chat_template_prompt(t->chat, request, &(struct template_options){.numbers = numbers}, text, err);
}

static enum status append_message(json_t *messages, const struct gyre_message *m, size_t at, struct error *err) {
    json_t *role = m->role ? json_string(m->role) : NULL, *content = m->content ? json_string(m->content) : NULL;
    enum status st = OK;
    if (!role || !content)
        st = fail(err, ERR_ARG, "messages[%zu].%s: it must be a text in UTF-8", at, role ? "content" : "role");
    else
        json_array_append_new(messages, json_pack("{s:O, s:O}", "role", role, "content", content));
    json_decref(role);
    json_decref(content);
    return st;
}

int gyre_render_chat(const struct gyre_text *t, const struct gyre_message *messages, size_t n, struct gyre_string *out,
                     struct gyre_error *err) {
    struct error e = {0};
    struct buf text = {0};
    json_t *request = json_object(), *array = json_array();
    enum status st = n == 0 ? fail(&e, ERR_ARG, "messages: the array is empty") : OK;
    json_object_set_new(request, "messages", array);
    for (size_t i = 0; i < n && st == OK; i++)
        st = append_message(array, &messages[i], i, &e);
    if (st == OK)
        st = render(t, request, NULL, &text, &e);
    json_decref(request);
    return conclude(st, &text, &e, out, err);
}

int gyre_render_chat_json(const struct gyre_text *t, const char *json, size_t n_bytes, struct gyre_string *out,
                          struct gyre_error *err) {
    struct error e = {0};
    struct buf text = {0};
    json_t *request = NULL;
    struct jv_numbers numbers = {0};
    size_t budget = JV_MAX_BYTES;
    enum status st = check_text(json, n_bytes, &e);
    if (st == OK)
        st = jv_parse_numbers((struct str){json ? json : "", n_bytes}, "the conversation", JV_ALLOW_DUPLICATES, &budget,
                              &numbers, &request, &e);
    if (st == OK)
        st = render(t, request, &numbers, &text, &e);
    json_decref(request);
    jv_numbers_release(&numbers);
    return conclude(st, &text, &e, out, err);
}
