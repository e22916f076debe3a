/* tokenizer.c - added tokens, the questions about tokens, the end of a tokenizer. */
#include "text/tokenizer_parts.h"

enum { ADDED_TOKEN_MAX_BYTES = 4096 };

static void grow_roles(struct tokenizer *t, int32_t n) {
    int32_t wanted = MAX(n, MAX(tokenizer_n_vocab(t), t->n_roles * 2));
    t->roles = xrealloc(t->roles, (size_t)wanted, 1);
    memset(t->roles + t->n_roles, 0, (size_t)(wanted - t->n_roles));
    t->n_roles = wanted;
}

enum status tokenizer_add_token(struct tokenizer *t, struct str text, int64_t id, struct added_token flags,
                                const char *where, struct error *err) {
    if (text.len == 0) // matches nothing; passed over, as Hugging Face's library does
        return OK;
    if (text.len > ADDED_TOKEN_MAX_BYTES)
        return fail(err, ERR_LIMIT, "%s: the added token with the id %lld has a text of %zu bytes, the limit is %d",
                    where, (long long)id, text.len, ADDED_TOKEN_MAX_BYTES);
    int32_t known = tokenizer_find(t, text);
    if (known < 0 && vocab_has(&t->vocab, (int32_t)MIN(id, INT32_MAX)))
        return fail(err, ERR_FORMAT, "%s: the added token \"%.*s\" has the id %lld, which is another token's", where,
                    (int)MIN(text.len, 60), text.ptr, (long long)id);
    if (known < 0)
        TRY(vocab_add(&t->extra, text, id, where, NULL, err));
    else if (known != id)
        return fail(err, ERR_FORMAT, "%s: the added token \"%.*s\" has the id %lld, and %d in the vocabulary", where,
                    (int)MIN(text.len, 60), text.ptr, (long long)id, known);
    if (id >= t->n_roles)
        grow_roles(t, (int32_t)id + 1);
    if (t->roles[id])
        return OK;
    t->roles[id] = flags.special ? ROLE_SPECIAL : ROLE_ADDED;
    flags.id = (int32_t)id;
    added_tokens_append(&t->added, flags);
    return OK;
}

void tokenizer_free(struct tokenizer *t) {
    if (!t)
        return;
    arena_release(&t->memory);
    byte_trie_release(&t->fixed);
    vocab_release(&t->vocab);
    vocab_release(&t->extra);
    bpe_release(&t->bpe);
    unigram_release(&t->unigram);
    wordpiece_release(&t->wordpiece);
    normalizer_release(&t->normalizer);
    pretokenizer_release(&t->pretokenizer);
    added_tokens_release(&t->added);
    postprocessor_release(&t->post);
    decoder_release(&t->decoder);
    free(t->roles);
    for (int i = 0; i < N_SPECIAL_NAMES; i++)
        free(t->special_text[i]);
    free(t);
}

int32_t tokenizer_n_vocab(const struct tokenizer *t) { return MAX(t->vocab.n, t->extra.n); }

struct str tokenizer_token_text(const struct tokenizer *t, int32_t id) {
    return vocab_has(&t->vocab, id) ? vocab_text(&t->vocab, id) : vocab_text(&t->extra, id);
}

int32_t tokenizer_find(const struct tokenizer *t, struct str text) {
    int32_t id = vocab_find(&t->vocab, text);
    return id >= 0 ? id : vocab_find(&t->extra, text);
}

bool tokenizer_is_special(const struct tokenizer *t, int32_t id) {
    return id >= 0 && id < t->n_roles && t->roles[id] == ROLE_SPECIAL;
}

bool tokenizer_is_added(const struct tokenizer *t, int32_t id) {
    return id >= 0 && id < t->n_roles && t->roles[id] != 0;
}

struct special_token tokenizer_special(const struct tokenizer *t, enum special_name name) {
    if (!t->special_text[name])
        return (struct special_token){STR(""), -1};
    struct str text = str_of(t->special_text[name]);
    return (struct special_token){text, tokenizer_find(t, text)};
}
