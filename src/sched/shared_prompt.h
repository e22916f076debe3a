/* shared_prompt.h - several sequences that begin alike and come at about the same time: n answers to one prompt, or
 * many callers with one system prompt. The text is computed once.
 *
 *     running   [ shared ............ n_computed) ......... | its own        a later one waits until n_computed has
 *               passed
 *     waiting   [ shared ................................... | its own        what they share, then takes the blocks
 *
 * Full blocks come from the prefix cache. The last block that they share is not full, or goes on differently: the later
 * one gets a copy of it. Where there is recurrent state the later one goes on from a checkpoint, and waits for that. */
#pragma once

#include "sched/kv_pool.h"

/* Whether one of these running sequences is about to compute enough of what seq begins with, of its first `most`
 * tokens, that seq had better wait. Only for those that rank before it, so nobody waits for somebody who waits for him.
 */
bool shared_prompt_is_coming(const struct kv_pool *pool, struct sequence *const *running, int n_running,
                             const struct sequence *seq, int32_t most);

/* After kv_pool_recall: gives seq a copy of the block, of the running sequence with most of it, in which what they
 * share ends, and moves n_computed there. Does nothing if nobody has more than seq. */
void shared_prompt_copy(struct kv_pool *pool, struct sequence *const *running, int n_running, struct sequence *seq,
                        int32_t most);
