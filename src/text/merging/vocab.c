/* vocab.c - see vocab.h. */
#include "text/merging/vocab.h"

#include "text/tokenizer.h"

#include <stdio.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

void vocab_release(struct vocab *v) {
    buf_release(&v->text);
    free(v->spans);
    free(v->slots);
    *v = (struct vocab){0};
}

uint32_t vocab_hash(struct str s) { return (uint32_t)XXH3_64bits(s.ptr, s.len); }

/* The slot of text, or the free one where it belongs. */
static struct vocab_slot *find_slot(const struct vocab *v, struct str text, uint32_t hash) {
    for (uint32_t at = hash & v->mask;; at = (at + 1) & v->mask) {
        struct vocab_slot *s = &v->slots[at];
        if (!s->id_plus_1 || (s->hash == hash && str_eq(vocab_text(v, (int32_t)s->id_plus_1 - 1), text)))
            return s;
    }
}

/* At most three slots of four are used. */
void vocab_reserve(struct vocab *v, size_t n) {
    size_t wanted = 64;
    while (wanted * 3 < n * 4)
        wanted *= 2;
    if (v->slots && wanted <= (size_t)v->mask + 1)
        return;
    struct vocab_slot *old = v->slots;
    size_t n_old = old ? (size_t)v->mask + 1 : 0;
    v->slots = xcalloc(wanted, sizeof *v->slots);
    v->mask = (uint32_t)(wanted - 1);
    for (size_t i = 0; i < n_old; i++)
        if (old[i].id_plus_1)
            *find_slot(v, vocab_text(v, (int32_t)old[i].id_plus_1 - 1), old[i].hash) = old[i];
    free(old);
}

int32_t vocab_find_hashed(const struct vocab *v, struct str text, uint32_t hash) {
    return v->slots ? (int32_t)find_slot(v, text, hash)->id_plus_1 - 1 : -1;
}

int32_t vocab_find(const struct vocab *v, struct str text) { return vocab_find_hashed(v, text, vocab_hash(text)); }

static void grow_spans(struct vocab *v, int32_t n) {
    if (n > v->cap) {
        v->cap = MAX(n, v->cap + v->cap / 2 + 256);
        v->spans = xrealloc(v->spans, (size_t)v->cap, sizeof *v->spans);
    }
    for (; v->n < n; v->n++)
        v->spans[v->n] = (struct vocab_span){0, UINT32_MAX};
}

enum status vocab_add(struct vocab *v, struct str text, int64_t id, const char *where, int32_t *old,
                      struct error *err) {
    if (id < 0 || id >= TOKENIZER_MAX_TOKENS)
        return fail(err, ERR_FORMAT, "%s: token \"%.*s\" has the id %lld, ids must be between 0 and %d", where,
                    (int)MIN(text.len, 60), text.ptr, (long long)id, TOKENIZER_MAX_TOKENS - 1);
    if (vocab_has(v, (int32_t)id))
        return fail(err, ERR_FORMAT, "%s: tokens \"%.*s\" and \"%.*s\" have the same id %d", where,
                    (int)MIN(v->spans[id].len, 60u), vocab_text(v, (int32_t)id).ptr, (int)MIN(text.len, 60), text.ptr,
                    (int)id);
    if (text.len > UINT32_MAX / 2 - v->text.len)
        return fail(err, ERR_LIMIT, "%s: the tokens together have more than 2 GiB", where);
    grow_spans(v, (int32_t)id + 1);
    v->spans[id] = (struct vocab_span){(uint32_t)v->text.len, (uint32_t)text.len};
    buf_append(&v->text, text.ptr, text.len);
    v->n_tokens++;
    vocab_reserve(v, (size_t)v->n_tokens);
    uint32_t hash = vocab_hash(text);
    struct vocab_slot *slot = find_slot(v, text, hash);
    if (old)
        *old = (int32_t)slot->id_plus_1 - 1;
    *slot = (struct vocab_slot){hash, (uint32_t)id + 1};
    return OK;
}

void vocab_find_bytes(const struct vocab *v, int32_t byte_id[static 256]) {
    for (int b = 0; b < 256; b++) {
        char text[8];
        snprintf(text, sizeof text, "<0x%02X>", b);
        byte_id[b] = vocab_find(v, str_of(text));
    }
}
