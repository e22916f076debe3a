/* kv_swap.c - sequences on their way to the host's memory and back; see kv_pool.h. */
#include "sched/kv_pool_internal.h"

static int32_t n_held(const struct sequence *seq, int group) {
    return seq->tables[group].end - seq->tables[group].first;
}

int64_t kv_pool_held_bytes(const struct kv_pool *pool, const struct sequence *seq) {
    int64_t bytes = seq->state_slot == NO_STATE_SLOT ? 0 : pool->state_bytes;
    for (int g = 0; g < pool->n_groups; g++)
        bytes += n_held(seq, g) * pool->groups[g].block_bytes;
    return bytes;
}

int64_t kv_pool_copied_bytes(const struct kv_pool *pool) {
    int64_t bytes = 0;
    for (int i = 0; i < pool->n_copies; i++)
        bytes +=
            pool->copies[i].group == STATE_SLOTS ? pool->state_bytes : pool->groups[pool->copies[i].group].block_bytes;
    return bytes;
}

static bool list_has_room(const struct kv_pool *pool, const struct sequence *seq) {
    int n = seq->state_slot != NO_STATE_SLOT;
    for (int g = 0; g < pool->n_groups; g++)
        n += n_held(seq, g);
    return n <= pool->max_copies - pool->n_copies;
}

static bool host_has_room(const struct kv_pool *pool, const struct sequence *seq) {
    for (int g = 0; g < pool->n_groups; g++)
        if (n_held(seq, g) > pool->groups[g].host.n_free)
            return false;
    return seq->state_slot == NO_STATE_SLOT || pool->host_states.n_free > 0;
}

static void copy(struct kv_pool *pool, int group, int32_t from, int32_t to) {
    pool->copies[pool->n_copies++] = (struct cache_copy){group, from, to};
}

static int32_t move_out(struct kv_pool *pool, int group, struct block_list *device, struct block_list *host,
                        int32_t b) {
    int32_t to = device->n_blocks + blocks_take(host);
    copy(pool, group, b, to);
    blocks_give_back(device, b);
    return to;
}

/* The end goes first, as when all is dropped: what is remembered of it stays in that order until somebody needs the
 * room. */
bool kv_pool_swap_out(struct kv_pool *pool, struct sequence *seq) {
    if (seq->n_computed == 0 || seq->swapped || !host_has_room(pool, seq) || !list_has_room(pool, seq))
        return false;
    for (int g = 0; g < pool->n_groups; g++)
        for (int32_t i = seq->tables[g].end; i-- > seq->tables[g].first;)
            seq->tables[g].block[i] =
                move_out(pool, g, &pool->groups[g].blocks, &pool->groups[g].host, seq->tables[g].block[i]);
    if (seq->state_slot != NO_STATE_SLOT)
        seq->state_slot = move_out(pool, STATE_SLOTS, &pool->states, &pool->host_states, seq->state_slot);
    return seq->swapped = true;
}

static int32_t move_in(struct kv_pool *pool, int group, const struct block_list *device, struct block_list *host,
                       int32_t b) {
    int32_t to = group == STATE_SLOTS ? kv_pool_take_slot(pool) : kv_pool_take_block(pool, group);
    copy(pool, group, b, to);
    blocks_give_back(host, b - device->n_blocks);
    return to;
}

bool kv_pool_swap_in(struct kv_pool *pool, struct sequence *seq) {
    BUG_IF(!seq->swapped);
    if (!list_has_room(pool, seq))
        return false;
    for (int g = 0; g < pool->n_groups; g++)
        for (int32_t i = seq->tables[g].first; i < seq->tables[g].end; i++)
            seq->tables[g].block[i] =
                move_in(pool, g, &pool->groups[g].blocks, &pool->groups[g].host, seq->tables[g].block[i]);
    if (seq->state_slot != NO_STATE_SLOT)
        seq->state_slot = move_in(pool, STATE_SLOTS, &pool->states, &pool->host_states, seq->state_slot);
    seq->swapped = false;
    return true;
}
