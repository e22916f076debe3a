/* shared_prompt.c - see shared_prompt.h. */
#include "sched/shared_prompt.h"

#include "sched/kv_pool_internal.h"

#include <string.h>

/* Tokens that it is worth being late by a step for; and when nothing but the last one would be left to compute. */
enum { WORTH_WAITING = 16, WORTH_WAITING_FOR_ALL = 8, AT_ONCE = 256 };

/* How many of their first tokens are the same, up to `most`; none if they must not share. */
static int32_t n_shared(const struct sequence *a, const struct sequence *b, int32_t most) {
    int32_t n = 0, max = MIN(most, MIN(a->n_known, b->n_known));
    if (memcmp(&a->salt, &b->salt, sizeof a->salt) != 0)
        return 0;
    while (n + AT_ONCE <= max && memcmp(a->tokens + n, b->tokens + n, AT_ONCE * sizeof *a->tokens) == 0)
        n += AT_ONCE;
    while (n < max && a->tokens[n] == b->tokens[n])
        n++;
    return n;
}

/* The last place, in what they share, from which another can go on. */
static int32_t last_checkpoint(const struct sequence *runs, int32_t shared) {
    int32_t last = 0;
    for (size_t i = 0; i < ARRAY_LEN(runs->checkpoints); i++)
        if (runs->checkpoints[i] <= shared)
            last = MAX(last, runs->checkpoints[i]);
    return last;
}

/* Whether `runs` has still to compute enough of what seq begins with. A state is there at a checkpoint or not at all.
 */
static bool is_coming(const struct kv_pool *pool, const struct sequence *runs, const struct sequence *seq,
                      int32_t most) {
    int32_t next = runs->n_computed;
    if (next >= MIN(most, runs->n_known) || runs->tokens[next] != seq->tokens[next]) // so it is nearly always
        return false;
    int32_t enough = pool->has_state ? most : MIN(most, next + WORTH_WAITING); // every step asks, for all who wait
    int32_t shared = n_shared(runs, seq, enough), checkpoint = pool->has_state ? last_checkpoint(runs, shared) : 0;
    if (pool->has_state)
        return checkpoint > next && checkpoint >= WORTH_WAITING;
    return shared - next >= (shared == most ? WORTH_WAITING_FOR_ALL : WORTH_WAITING);
}

bool shared_prompt_is_coming(const struct kv_pool *pool, struct sequence *const *running, int n_running,
                             const struct sequence *seq, int32_t most) {
    for (int i = 0; pool->remembers && i < n_running && sequence_before(running[i], seq); i++)
        if (is_coming(pool, running[i], seq, most))
            return true;
    return false;
}

/* Each group's block number `at` of `from`, copied to one of seq's own. False, and nothing done, where there is no
 * room. */
static bool copy_block(struct kv_pool *pool, const struct sequence *from, struct sequence *seq, int32_t at) {
    int n_paged = 0;
    for (int g = 0; g < pool->n_groups; g++) {
        const struct block_table *table = &from->tables[g];
        n_paged += pool->groups[g].paged;
        if (pool->groups[g].paged && (pool->groups[g].blocks.n_free == 0 || at < table->first || at >= table->end))
            return false;
    }
    if (pool->n_copies + n_paged > pool->max_copies)
        return false;
    for (int g = 0; g < pool->n_groups; g++) {
        struct block_table *table = &seq->tables[g];
        if (!pool->groups[g].paged)
            continue;
        table->block[at] = kv_pool_take_block(pool, g);
        table->end = at + 1;
        pool->copies[pool->n_copies++] = (struct cache_copy){g, from->tables[g].block[at], table->block[at]};
    }
    return true;
}

void shared_prompt_copy(struct kv_pool *pool, struct sequence *const *running, int n_running, struct sequence *seq,
                        int32_t most) {
    const struct sequence *best = NULL;
    int32_t n_best = seq->n_computed, at = seq->n_computed / pool->block_size;
    for (int i = 0; i < n_running && pool->remembers && !pool->has_state; i++) {
        int32_t n = MIN(MIN(running[i]->n_computed, running[i]->n_known), MIN(most, (at + 1) * pool->block_size));
        bool more = n > n_best && running[i]->tokens[n_best] == seq->tokens[n_best];
        if (more && (n = n_shared(running[i], seq, n)) > n_best)
            best = running[i], n_best = n;
    }
    if (best && copy_block(pool, best, seq, at))
        seq->n_computed = n_best;
}
