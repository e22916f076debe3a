/* kv_handover.h - the cache of a text's beginning that one pool remembers, taken over by another one of the same shape.
 *
 *     giver     kv_handover_hold(pool, seq, from, n)    holds what is remembered of it, which is read; kv_handover_end
 *     taker     kv_handover_take(pool, seq, from, n)    takes free blocks; they are filled; kv_handover_remember, which
 *                                                       ends it too, or kv_handover_end
 *
 * Afterwards the taker knows the text as if it had computed it: whoever asks for it finds it (kv_pool_recall). Steps go
 * on meanwhile, and nobody else gets the blocks that seq holds; but steps that were started before may still write
 * what is to be read, or read what is to be written: *settles_at says how many must have been collected
 * (kv_pool_is_settled). seq is outside of any scheduler, holds nothing before, and has at least n blocks of tokens.
 * Entries count blocks from the text's beginning. */
#pragma once

#include "sched/kv_pool.h"

/* Whole blocks at the beginning of seq's tokens, of its first max_tokens, after which a sequence could go on now. */
int32_t kv_handover_known(struct kv_pool *pool, const struct sequence *seq, int32_t max_tokens);

/* The first entry of a group that a sequence which goes on after n blocks needs; n for recurrent groups. */
int32_t kv_handover_first(const struct kv_pool *pool, int group, int32_t n);

/* Of entries [from, n), n as kv_handover_known said. They stand in seq's tables, a state in its slot. */
void kv_handover_hold(struct kv_pool *pool, struct sequence *seq, int32_t from, int32_t n, int64_t *settles_at);

/* For entries [from, n); `from` blocks of the text are remembered already, and become those that were used last: of n,
 * that is all. ERR_FULL if the pool has not the room, or no longer the first `from`; seq holds nothing then. */
enum status kv_handover_take(struct kv_pool *pool, struct sequence *seq, int32_t from, int32_t n, int64_t *settles_at,
                             struct error *err);
void kv_handover_remember(struct kv_pool *pool, struct sequence *seq, int32_t n);
void kv_handover_end(struct kv_pool *pool, struct sequence *seq);
