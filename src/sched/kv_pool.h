/* kv_pool.h - which blocks of the cache are free, and which are held by which sequence.
 *
 * Knows numbers of blocks only; the memory behind them is the backend's. Each cache group of a program (full
 * attention, sliding window, latent) has blocks of its own; recurrent groups share one set of state slots, one
 * slot a running sequence. Windowed groups give blocks back that no layer can see any more.
 *
 * A block is free or has ref_count holders. Free blocks stand in a list in the order of eviction: what was given
 * back longest ago is taken first, so that whatever a block still holds stays useful as long as possible: full blocks
 * are remembered by the text they hold (prefix_cache.h), free ones too, until they are taken for something else. */
#pragma once

#include "base/status.h"
#include "core/program.h"
#include "sched/sequence.h"

/* Blocks of one group, or state slots. A free block has ref_count 0 and stands in the list prev/next. */
struct block_list {
    int n_blocks, n_free;
    int32_t *ref_count;   // [n_blocks]
    int32_t *prev, *next; // [n_blocks]; NO_BLOCK at the ends
    int32_t *node;        // [n_blocks]: of the prefix cache; NO_NODE
    int32_t oldest, newest;
};

struct kv_group {
    bool paged; // false: recurrent, its state stands in the sequence's slot
    int window; // tokens a layer can see; 0: all
    struct block_list blocks;
};

struct kv_pool {
    int n_groups, block_size;
    int max_chunk; // tokens that a sequence may compute in one step
    struct kv_group groups[MAX_CACHE_GROUPS];
    bool has_state;
    struct block_list states;
    bool remembers;
    struct prefix_cache prefix;
    int32_t *path; // [prefix.n_nodes]: scratch of kv_pool_recall
};

/* n_blocks[g] of paged groups as in struct cache_config. Recurrent groups cannot go back to an earlier state, so a
 * pool with one remembers nothing. */
void kv_pool_init(struct kv_pool *pool, const struct cache_group *groups, int n_groups, int block_size, int max_chunk, const int *n_blocks,
                  int n_states, bool remember);
void kv_pool_release(struct kv_pool *pool);

/* Blocks that a sequence of n tokens holds at most at any one time. Static: sizes a pool before there is one. */
int64_t kv_group_blocks_for(const struct cache_group *group, int64_t n_tokens, int block_size, int max_chunk);

/* Whether a sequence of n tokens could be held if it were alone. */
bool kv_pool_could_hold(const struct kv_pool *pool, int64_t n_tokens);

/* Whether what a sequence of n tokens needs, beyond what it holds, is free now. */
bool kv_pool_has_room(const struct kv_pool *pool, const struct sequence *seq, int64_t n_tokens);

/* Makes seq hold cache for its first n tokens, the last at most max_chunk of them not yet computed, and a state
 * slot. Blocks that n_computed has moved past a window are given back first. ERR_FULL leaves the rest as it was:
 * the caller makes room and asks again. */
enum status kv_pool_extend(struct kv_pool *pool, struct sequence *seq, int32_t n_tokens);

/* Gives everything back and sets n_computed to 0. */
void kv_pool_drop(struct kv_pool *pool, struct sequence *seq);

/* Gives seq, which has computed nothing, the blocks of the longest remembered beginning of its tokens, of at most
 * max_tokens and in whole blocks, and moves n_computed. Blocks are shared: nobody writes a full block. Returns why it
 * was not more. */
enum gyre_cache_miss kv_pool_recall(struct kv_pool *pool, struct sequence *seq, int32_t max_tokens);

/* Remembers the blocks that seq has filled since the last time, with tokens that are known. */
void kv_pool_remember(struct kv_pool *pool, struct sequence *seq);

/* Makes the first n computed tokens all that is computed, if the cache can go back to there (n_computed 0 if not:
 * recurrent state and blocks out of a window are gone; fewer than n if the last block is remembered whole, as what is
 * remembered is not written again). */
void kv_pool_rewind(struct kv_pool *pool, struct sequence *seq, int32_t n_tokens);

/* Moves what `from` holds, with its n_computed, to `to`, which holds nothing and has room in its tables. */
void kv_pool_hand_over(const struct kv_pool *pool, struct sequence *from, struct sequence *to);

/* NULL if remembered blocks and nodes name each other and every block is either free and listed once, or held exactly ref_count times by
 * these sequences; else what is wrong. For tests: O(blocks). */
const char *kv_pool_check(const struct kv_pool *pool, struct sequence *const *seqs, size_t n_seqs);
