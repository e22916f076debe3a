/* kv_handover.h - the cache of a text's beginning that one pool remembers, taken over by another one of the same shape.
 *
 *     giver     n = kv_handover_known(pool, seq, ...)              what it remembers of the text
 *               kv_handover_entry(pool, group, i)                  block of entry i, for i in [first, n)
 *     taker     kv_handover_adopt(pool, seq, from, n, put, ...)    takes free blocks, has them filled, remembers them
 *
 * Afterwards the taker knows the text as if it had computed it: whoever asks for it finds it (kv_pool_recall). Nothing
 * of either is called while a step is in flight. Entries count blocks from the text's beginning. */
#pragma once

#include "sched/kv_pool.h"

/* Whole blocks at the beginning of seq's tokens, of its first max_tokens, after which a sequence could go on now; seq
 * is outside of any scheduler and holds nothing. Good until the pool changes. */
int32_t kv_handover_known(struct kv_pool *pool, const struct sequence *seq, int32_t max_tokens);

/* The first entry of a group that a sequence which goes on after n blocks needs; n for recurrent groups. */
int32_t kv_handover_first(const struct kv_pool *pool, int group, int32_t n);

/* Of those that kv_handover_known found, the block of an entry; of recurrent groups, entry n: the slot of the state
 * behind n blocks. */
int32_t kv_handover_entry(const struct kv_pool *pool, int group, int32_t entry);

/* Fills a block, or slot, with what the giver has of the entry. */
typedef enum status kv_handover_put(void *context, int group, int32_t entry, int32_t block, struct error *err);

/* Remembers entries [from, n) of seq's text; `from` blocks of it are remembered already, and become those that were
 * used last: of n, that is all. seq has at least n blocks of
 * tokens and is outside; it holds nothing afterwards. ERR_FULL if the pool has not the room, or no longer the first
 * `from`; another status is put's. In either case nothing more is remembered than before. */
enum status kv_handover_adopt(struct kv_pool *pool, struct sequence *seq, int32_t from, int32_t n, kv_handover_put *put,
                              void *context, struct error *err);
