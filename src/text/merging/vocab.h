/* vocab.h - token texts and their ids, both ways.
 *
 * Texts lie one after another in one buffer; ids index an array of spans into it; the way from text to id is an
 * open-addressing table of hashes and ids, kept small because opening a file looks half a million texts up in it.
 * Filled while a file is read, then read by many threads. */
#pragma once

#include "base/buf.h"
#include "base/status.h"

struct vocab_span {
    uint32_t offset, len; // len UINT32_MAX: no token has this id
};

struct vocab_slot {
    uint32_t hash, id_plus_1; // 0: free
};

struct vocab {
    struct buf text;
    struct vocab_span *spans; // [n], by id
    int32_t n, cap;           // ids are below n
    int32_t n_tokens;         // ids that are used
    struct vocab_slot *slots; // [mask + 1]
    uint32_t mask;
};

void vocab_release(struct vocab *v);

/* Room for n tokens, so that the table need not grow. */
void vocab_reserve(struct vocab *v, size_t n);

/* Gives `text` the id. ERR_FORMAT when the id is out of range or taken; *old (may be NULL) is the id that the text
 * had before, -1 if none: the text then means the new id. Errors name `where`. */
enum status vocab_add(struct vocab *v, struct str text, int64_t id, const char *where, int32_t *old, struct error *err);

/* -1 when there is no such token. */
int32_t vocab_find(const struct vocab *v, struct str text);

/* The same in steps, for callers that have many to look up: ask for the slots of all, then for the spans of all,
 * then for the texts. */
uint32_t vocab_hash(struct str text);
int32_t vocab_find_hashed(const struct vocab *v, struct str text, uint32_t hash);
static inline void vocab_prefetch_slot(const struct vocab *v, uint32_t hash) {
    if (v->slots)
        __builtin_prefetch(&v->slots[hash & v->mask]);
}
static inline void vocab_prefetch_span(const struct vocab *v, uint32_t hash) {
    if (v->slots && v->slots[hash & v->mask].id_plus_1)
        __builtin_prefetch(&v->spans[v->slots[hash & v->mask].id_plus_1 - 1]);
}
static inline void vocab_prefetch_text(const struct vocab *v, uint32_t hash) {
    if (v->slots && v->slots[hash & v->mask].id_plus_1)
        __builtin_prefetch(v->text.ptr + v->spans[v->slots[hash & v->mask].id_plus_1 - 1].offset);
}

/* The tokens <0x00> .. <0xFF>; -1 where there is none. */
void vocab_find_bytes(const struct vocab *v, int32_t byte_id[static 256]);

static inline bool vocab_has(const struct vocab *v, int32_t id) {
    return id >= 0 && id < v->n && v->spans[id].len != UINT32_MAX;
}

/* Empty for an unused id. */
static inline struct str vocab_text(const struct vocab *v, int32_t id) {
    return vocab_has(v, id) ? (struct str){v->text.ptr + v->spans[id].offset, v->spans[id].len} : STR("");
}
