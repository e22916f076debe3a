/* dense.h - second copies of the caches of sequences that take one token a step, a run of memory each.
 *
 * A product reads keys [sequences, heads, tokens, dim] as they lie. Of paged caches it reads what was gathered by the
 * block table, which moves them three times a step. So such sequences have rows of dense arrays, which are filled out
 * of their blocks when they come; from then on each step puts its keys and values there alone, and the blocks are
 * behind. One that is gets its copy's content before anything reads it (a launch of several rows, a copy, another row
 * that is filled) and before something else takes that place: then it is drained. Whatever else writes a block makes
 * the copies of it stale, and a row that is stale is filled anew before it is read. A row that nobody has is left as it
 * is.
 *
 * Array i of the caches [blocks, heads, block_size, dim] has as its dense one [sequences, heads, width * block_size,
 * dim]: of the blocks that a sequence has or its window sees, entry e of its table stands at slot e % width. What of it
 * no token was put into is finite.
 *
 * They are used where they fit (device option dense); on a TPU up to `blockwise` tokens of context, and not of int8
 * caches. Else keys and values are gathered. Int8 caches have copies of their scales too. Layers with rings are beside
 * them as they are. */
#pragma once

#include "backend/xla/dense_shape.h"
#include "core/plan.h"

/* Behind cache_alloc and before the first step of so many sequences. */
void dense_reserve(struct loaded *l, int most_seqs);
void dense_free(struct loaded *l);

bool dense_can(const struct loaded *l); // have any
/* Whether launches of this shape can have them. */
bool dense_fits(const struct loaded *l, const struct launch_shape *s);
/* Bytes of them for so many sequences, whose tables have up to so many blocks. */
int64_t dense_bytes(const struct loaded *l, int n_seqs, int block_size, const int *table_width);

/* The sequences of a launch of one row each, brought into the order of their rows: who is in one stays there. */
void dense_arrange(const struct loaded *l, const struct batch_plan *plan, int *seqs, int n);
/* Makes a shape as large as that of the launches before, if it is smaller, for a while: rows can stay. */
void dense_keep_size(struct loaded *l, struct launch_shape *s);
/* Before such a launch: makes the arrays, if they are not of its shape, and fills rows that are not what they should
 * be. */
enum status dense_prepare(struct loaded *l, const struct batch_plan *plan, const int *seqs, int n, int n_steps,
                          const struct launch_shape *s, struct error *err);
/* Behind it: n_steps tokens of each sequence were put into its row. */
void dense_put(struct loaded *l, const struct batch_plan *plan, const int *seqs, int n, int n_steps);

/* Before a launch that reads blocks, and before copies of some: brings those up to date that it reads. */
enum status dense_drain_rows(struct loaded *l, const struct batch_plan *plan, const int *seqs, int n,
                             struct error *err);
enum status dense_drain_copied(struct loaded *l, const struct cache_copy *copies, int n, struct error *err);

/* What wrote blocks otherwise: rows of a sequence, the last of them for so many steps; a copy. */
void dense_wrote_rows(struct loaded *l, const struct batch_plan *plan, int seq, int n_steps);
void dense_wrote_block(struct loaded *l, int group, int block);

struct pjrt_buffer **dense_buffer(struct loaded *l, int array); // of an array that has a copy
int64_t dense_count(const struct loaded *l);                    // rows' blocks that were filled so far
int64_t dense_drained(const struct loaded *l);                  // and blocks that were brought up to date
