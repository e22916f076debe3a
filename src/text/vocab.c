/* vocab.c - see vocab.h. */
#include "text/vocab.h"

#include "text/tokenizer.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

void vocab_release(struct vocab *v) {
    buf_release(&v->text);
    free(v->spans);
    free(v->slots);
    *v = (struct vocab){0};
}

static uint32_t hash_of(struct str s) { return (uint32_t)XXH3_64bits(s.ptr, s.len); }

static void put_slot(struct vocab *v, int32_t id) {
    uint32_t at = hash_of(vocab_text(v, id)) & v->mask;
    while (v->slots[at])
        at = (at + 1) & v->mask;
    v->slots[at] = (uint32_t)id + 1;
}

void vocab_reserve(struct vocab *v, size_t n) {
    size_t wanted = 64;
    while (wanted < n * 2)
        wanted *= 2;
    if (v->slots && wanted <= (size_t)v->mask + 1)
        return;
    uint32_t *old = v->slots;
    size_t n_old = old ? (size_t)v->mask + 1 : 0;
    v->slots = xcalloc(wanted, sizeof *v->slots);
    v->mask = (uint32_t)(wanted - 1);
    for (size_t i = 0; i < n_old; i++)
        if (old[i])
            put_slot(v, (int32_t)(old[i] - 1));
    free(old);
}

static uint32_t *find_slot(const struct vocab *v, struct str text) {
    if (!v->slots)
        return NULL;
    for (uint32_t at = hash_of(text) & v->mask; v->slots[at]; at = (at + 1) & v->mask)
        if (str_eq(vocab_text(v, (int32_t)(v->slots[at] - 1)), text))
            return &v->slots[at];
    return NULL;
}

int32_t vocab_find(const struct vocab *v, struct str text) {
    const uint32_t *slot = find_slot(v, text);
    return slot ? (int32_t)(*slot - 1) : -1;
}

static void grow_spans(struct vocab *v, int32_t n) {
    if (n > v->cap) {
        v->cap = MAX(n, v->cap + v->cap / 2 + 256);
        v->spans = xrealloc(v->spans, (size_t)v->cap, sizeof *v->spans);
    }
    for (; v->n < n; v->n++)
        v->spans[v->n] = (struct vocab_span){0, UINT32_MAX};
}

enum status vocab_add(struct vocab *v, struct str text, int64_t id, const char *where, int32_t *old, struct error *err) {
    if (id < 0 || id >= TOKENIZER_MAX_TOKENS)
        return fail(err, ERR_FORMAT, "%s: token \"%.*s\" has the id %lld, ids must be between 0 and %d", where, (int)MIN(text.len, 60),
                    text.ptr, (long long)id, TOKENIZER_MAX_TOKENS - 1);
    if (vocab_has(v, (int32_t)id))
        return fail(err, ERR_FORMAT, "%s: tokens \"%.*s\" and \"%.*s\" have the same id %d", where, (int)MIN(v->spans[id].len, 60u),
                    vocab_text(v, (int32_t)id).ptr, (int)MIN(text.len, 60), text.ptr, (int)id);
    if (text.len > UINT32_MAX / 2 - v->text.len)
        return fail(err, ERR_LIMIT, "%s: the tokens together have more than 2 GiB", where);
    grow_spans(v, (int32_t)id + 1);
    v->spans[id] = (struct vocab_span){(uint32_t)v->text.len, (uint32_t)text.len};
    buf_append(&v->text, text.ptr, text.len);
    v->n_tokens++;
    vocab_reserve(v, (size_t)v->n_tokens);
    uint32_t *slot = find_slot(v, text);
    if (old)
        *old = slot ? (int32_t)(*slot - 1) : -1;
    if (slot)
        *slot = (uint32_t)id + 1;
    else
        put_slot(v, (int32_t)id);
    return OK;
}
