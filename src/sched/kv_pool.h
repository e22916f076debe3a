/* kv_pool.h - which blocks of the cache are free, and which are held by which sequence.
 *
 * Knows numbers of blocks only; the memory behind them is the backend's. Each cache group of a program (full
 * attention, sliding window, latent) has blocks of its own; recurrent groups share one set of state slots, one
 * slot a running sequence. Windowed groups give blocks back that no layer can see any more.
 *
 * Full blocks are remembered by the text they hold (prefix_cache.h), free ones too, until they are taken for something
 * else (block_list.h); so a sequence that begins like an earlier one shares its blocks.
 *
 * A recurrent state cannot be shared, nor be cut back: it is what all tokens so far have made of it. So at a few places
 * of a text it is copied to a free slot, a checkpoint, which is remembered at the node of that place; whoever goes on
 * from there copies it to its own slot:
 *
 *     text     [ block | block | block | block | blo        a step ends at each checkpoint
 *     nodes       o ----- o ----- o ----- o
 *     state               A               B                 A: where another text parted from this one
 *                                                           B: the last whole block of the prompt, or of the answer so
 *                                                           far
 *
 * Blocks may have no memory yet: then only those that are there (blocks.n_usable) can be free, and more are asked for
 * (commit) when nobody knows what the free ones hold, before anything that is remembered is given up. Where the device
 * has none to give, the pool is as large as it is: sequences wait or give way as if it had been made so.
 *
 * Copies are left in a list, for the next step to begin with. So does a sequence that gives way go to the host's memory
 * and come back, where there is some for that. */
#pragma once

#include "core/program.h"
#include "sched/block_list.h"
#include "sched/sequence.h"

struct kv_group {
    bool paged; // false: recurrent, its state stands in the sequence's slot
    int window; // tokens a layer can see; 0: all
    struct block_list blocks;
    struct block_list host; // swapped out; a table names number b of them as blocks.n_blocks + b
    int64_t block_bytes;
    bool is_short; // the last time it asked for memory it did not get what it wanted
};

/* Asks for memory behind blocks 0 .. n-1 of a group, and for none behind others; returns how many have it then. */
typedef int kv_commit(void *context, int group, int n);

struct kv_pool {
    int n_groups, block_size;
    int max_chunk;
    struct kv_group groups[MAX_CACHE_GROUPS];
    bool has_state;
    int state_group;          // whose place in a node names its checkpoint; if has_state
    struct block_list states; // slots of running sequences, checkpoints (free, with a node) and others
    struct block_list host_states;
    int64_t state_bytes; // of a slot, all groups together
    bool remembers, holds_all;
    int n_back; // tokens that a state can go back
    struct prefix_cache prefix;
    int32_t *path;             // [prefix.n_nodes]: scratch of kv_pool_recall
    struct cache_copy *copies; // [max_copies]: what the next step begins with
    int n_copies, max_copies;
    int64_t n_started, n_collected; // steps
    int n_handovers;                // that hold blocks (kv_handover.h): who wants those waits
    kv_commit *commit;              // NULL: all blocks have memory
    void *commit_context;
};

struct kv_pool_options {
    const struct cache_group *groups; // [n_groups]
    int n_groups, block_size;
    int max_chunk;                  // tokens that a sequence may compute in one step
    int max_copies;                 // that a step may begin with
    int n_blocks[MAX_CACHE_GROUPS]; // of paged groups, as in struct cache_config
    int n_states;
    int n_host_blocks[MAX_CACHE_GROUPS], n_host_states;
    int n_back;
    int64_t block_bytes[MAX_CACHE_GROUPS]; // of a block, or a slot; for what copies cost
    bool holds_all;                        // as many sequences as may run at once, each as long as it may become
    int64_t remember_tokens;               // of text, so many at least of what earlier sequences computed; 0: nothing
    kv_commit *commit;                     // NULL: blocks have memory already; else none has
    void *commit_context;
};
void kv_pool_init(struct kv_pool *pool, const struct kv_pool_options *options);
void kv_pool_release(struct kv_pool *pool);

/* Blocks that a sequence of n tokens holds at most at any one time. Static: sizes a pool before there is one. */
int64_t kv_group_blocks_for(const struct cache_group *group, int64_t n_tokens, int block_size, int max_chunk);

/* Whether a sequence of n tokens could be held if it were alone. */
bool kv_pool_could_hold(const struct kv_pool *pool, int64_t n_tokens);

/* Whether what a sequence of n tokens needs, beyond what it holds, is free now; and besides, if others run, a 25th of
 * the blocks that grow with their texts (not of windows): it would soon take from them what it was given, or they from
 * it. A pool that holds all keeps nothing back: nobody takes anything from anybody. */
bool kv_pool_has_room(struct kv_pool *pool, const struct sequence *seq, int64_t n_tokens, bool others_run);

/* Asks for memory behind n_blank blocks of each group, or as many as most_bytes hold, before anybody runs. */
void kv_pool_commit_first(struct kv_pool *pool, int n_blank, int64_t most_bytes);

/* Asks for a little more memory in each group of which fewer than n_blank free blocks hold nothing, before somebody
 * needs it; gives the memory back behind the last block that is held (the first block stays), and forgets what was
 * remembered there. */
void kv_pool_commit_ahead(struct kv_pool *pool, int n_blank);
void kv_pool_uncommit(struct kv_pool *pool);

/* Whether a group could not get memory for all of its blocks when it last wanted some. */
bool kv_pool_is_short(const struct kv_pool *pool);

/* Makes seq hold cache for its first n tokens, the last at most max_chunk of them not yet computed, and a state
 * slot. Blocks that what is computed and known has moved past a window are given back first. ERR_FULL leaves the rest
 * as it was: the caller makes room and asks again. */
enum status kv_pool_extend(struct kv_pool *pool, struct sequence *seq, int32_t n_tokens);

/* The same, if n_kept blocks of each group stay free besides; else nothing. */
void kv_pool_extend_spare(struct kv_pool *pool, struct sequence *seq, int32_t n_tokens, int n_kept);

/* Gives back the blocks behind those of its n_computed tokens. Steps in flight may still write them: steps run in
 * order. */
void kv_pool_truncate(struct kv_pool *pool, struct sequence *seq);

/* kv_branches.c: blocks for a branch (branches.h) of the step that is planned, its parent's before it, if n_kept blocks
 * of each group stay free besides; else false, and nothing done. The sequence goes on in a branch that begins with its
 * next token. What branches hold is given back. */
bool kv_pool_hold_branch(struct kv_pool *pool, struct sequence *seq, int number, int n_kept);
void kv_pool_take_branch(struct kv_pool *pool, struct sequence *seq, int number);
void kv_pool_drop_branches(struct kv_pool *pool, struct sequence *seq);

/* Moves all that seq holds to the host's memory, or all of it back, by copies before the next step. Out: false, and
 * nothing done, if the host or the list of copies has no room for it. In: false if the list has none; for the blocks
 * there must be. */
bool kv_pool_swap_out(struct kv_pool *pool, struct sequence *seq);
bool kv_pool_swap_in(struct kv_pool *pool, struct sequence *seq);

/* Bytes that swapping seq out would copy; and that the copies in the list do. */
int64_t kv_pool_held_bytes(const struct kv_pool *pool, const struct sequence *seq);
int64_t kv_pool_copied_bytes(const struct kv_pool *pool);

/* Gives everything back and sets n_computed to 0. */
void kv_pool_drop(struct kv_pool *pool, struct sequence *seq);

/* Gives seq, which has computed nothing, the blocks of the longest remembered beginning of its tokens, of at most
 * max_tokens and in whole blocks, and moves n_computed. Blocks are shared: nobody writes a full block. Returns why it
 * was not more. */
enum gyre_cache_miss kv_pool_recall(struct kv_pool *pool, struct sequence *seq, int32_t max_tokens);

/* How many of its next tokens a step may compute at most, so that it ends where a checkpoint is due. */
int32_t kv_pool_tokens_to_checkpoint(const struct kv_pool *pool, const struct sequence *seq);

/* Remembers the blocks that seq has filled since the last time with tokens that are known, and its state where a
 * checkpoint is due. */
void kv_pool_remember(struct kv_pool *pool, struct sequence *seq);

/* A step was started, or the oldest in flight collected. */
void kv_pool_step_started(struct kv_pool *pool);
void kv_pool_step_collected(struct kv_pool *pool);

/* Whether so many steps have been collected, or as good as that: none is in flight, and no copy is to come. Of a block
 * filled_at says so after how many what is remembered of it is there; left_at, when nothing of earlier holders is in
 * flight any more: copies that the next step begins with among it. */
bool kv_pool_is_settled(const struct kv_pool *pool, int64_t at);

/* Moves the list of copies, at most max_copies, to `to`; returns how many they are. */
int kv_pool_take_copies(struct kv_pool *pool, struct cache_copy *to);
void kv_pool_first_copy_done(struct kv_pool *pool); // without a step

/* NULL if remembered blocks and nodes name each other and every block is either free and listed once, or held exactly
 * ref_count times by these sequences; else what is wrong. For tests: O(blocks). */
const char *kv_pool_check(const struct kv_pool *pool, struct sequence *const *seqs, size_t n_seqs);
