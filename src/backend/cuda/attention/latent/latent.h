/* latent.h - MLA_PREP and MLA_ATTENTION on tensor cores: 16 heads share a latent row of 512 + 64 channels.
 *
 * A step has five kinds of nodes for it:
 *
 *     latent_parts     once a step: what each block of latent_decode reads
 *     latent_prep      MLA_PREP: the absorbed queries, and the new rows of the cache
 *     latent_decode    the softmax over keys; leaves what is summed, in the latent space
 *     latent_prefill   the same of sequences with many tokens in the step
 *     latent_out       joins that, and multiplies by Wuv
 *
 * A task is a token and 16 of its heads. Its keys are cut into chunks at multiples of latent_chunk() keys, whatever
 * else the step has. A chunk's softmax is its own; chunks are joined in order, by the same operations whether one block
 * has all chunks of a task in registers or latent_out finds them in memory. So a token's result does not depend on the
 * step that it is in, to the bit. */
#pragma once

#include "backend/cuda/attention/mla.h"
#include "backend/cuda/value.h"

#ifdef __cplusplus
extern "C" {
#endif

enum {
    LATENT_RANK = 512,
    LATENT_ROPE = 64,
    LATENT_NOPE = 128,
    LATENT_WIDTH = LATENT_RANK + LATENT_ROPE,
    LATENT_HEADS = 16,        // of a task
    LATENT_CHUNKS = 64,       // of a task, at most
    LATENT_LEAST_CHUNK = 128, // keys
    LATENT_FEW = 8,    // tokens of a sequence in a step that latent_decode takes; of more, latent_prefill takes them
    LATENT_TOKENS = 4, // of latent_prefill's tiles
};

/* 16 heads of a token. */
struct dlatent_task {
    int32_t seq, n_keys;
    int32_t fresh; // keys from here on are of this step
    int32_t sums;  // where its sums are: one entry, or with LATENT_CUT one a chunk
};
#define LATENT_CUT 0x40000000

/* What a block of latent_decode begins with, and how many chunks it has in all. */
struct dlatent_begin {
    int32_t row, group, chunk, left;
    struct dlatent_task task;
};

/* Up to LATENT_TOKENS tokens of a sequence from this row of the step on. */
struct dlatent_tile {
    int32_t row, seq;
};

/* The tasks of a step, by group of heads, then by token; their chunks one after another are a line, of which block b
 * of latent_decode has [b * total / n_blocks, (b + 1) * total / n_blocks). */
struct dlatent_parts {
    int n_groups, n_blocks, max_tokens, max_tiles;
    struct dlatent_begin *begin; // [n_blocks]
    struct dlatent_tile *tile;   // [max_tiles], of latent_prefill
    int32_t *n_tiles;            // [1]
    struct dlatent_task *task;   // [n_groups][max_tokens]
    void *sums;       // [n_groups * max_tokens + n_blocks * LATENT_CHUNKS][LATENT_HEADS][LATENT_RANK] float16
    float (*ends)[2]; // [...][LATENT_HEADS]: the largest score, in powers of two, and the sum of P; of cut tasks
};

/* Whether these kernels take the op's shape: 512 latent and 64 rope channels, 128 of queries, 16 heads or a multiple,
 * a cache of float16 in blocks of 16 tokens or more. */
bool latent_takes(const struct dmla *a, enum element cache, int block_size);
int latent_blocks(void); // n_blocks on this device

void launch_latent_parts(const struct launch *l, const struct dlatent_parts *parts);
/* q and kva may be unscaled products. out: float16 or float32. */
void launch_latent_prep(const struct launch *l, const struct dmla *a, const struct drope *rope, struct dmat q,
                        struct dmat kva, struct dweight norm, struct dweight w_uk, struct dcache cache,
                        struct dmat out);
void launch_latent_decode(const struct launch *l, const struct dmla *a, const struct dlatent_parts *parts,
                          struct dmat q, struct dcache cache);
/* A step that may have sequences of more than LATENT_FEW tokens. */
void launch_latent_prefill(const struct launch *l, const struct dmla *a, const struct dlatent_parts *parts,
                           struct dmat q, struct dcache cache);
/* out may have absmax. */
void launch_latent_out(const struct launch *l, const struct dmla *a, const struct dlatent_parts *parts,
                       struct dweight w_uv, struct dmat out);

#ifdef __cplusplus
}
#endif
