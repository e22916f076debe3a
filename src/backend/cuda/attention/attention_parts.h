/* attention_parts.h - attention_parts.cu. */
#pragma once

#include "backend/cuda/value.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- attention_parts.cu: what the fast kernels work on, found on the device once a step ---- */

/* Keys [first, end) of a sequence for some of its columns: column c is query head c % g of token c / g, g heads to a KV
 * head. */
struct dpart {
    int32_t seq, row, position; // its first token's row in the step, and position
    int32_t columns;            // how many it has
    int32_t first_column;       // of this part
    int32_t first, end;         // keys; first is a multiple of 64
    int32_t part_of, n_parts,
        at; // this is part part_of of n_parts, which if there are several leave their sums at at, at + 1 ...
};

/* A list of parts for layers that share a window, a chunk and the number of query heads to a KV head. */
struct dparts {
    int window, chunk, per_kv, columns; // columns: of a part, at most
    int behind;                         // 1: a token stands for the one before it, as its own key is not seen
    int n_kv_heads, head_dim;           // of the layers, or of the one with most
    enum element cache;                 // of the layers
    int least_tokens, most_tokens;      // of this step, of the sequences that the list is of
    int max_parts, max_split;           // entries of the list; parts that a sequence is cut into at most
    int max_seqs;                       // rows of the block tables
    int32_t *n;                         // [1]
    struct dpart *part;                 // [max_parts]
    float *partial;   // [n_seqs * max_split][n_kv_heads][columns][v_head_dim + 2] of the layer with the most
    int32_t *arrived; // [n_seqs * max_split][n_kv_heads], zero between launches
};
/* How many blocks share a pair of a part and a KV head in a step of so many sequences, 1, 2 or 4: as many as leave each
 * pair of a sequence and a KV head a cluster of its own. And how many such clusters compute at once. */
int attention_share(enum element cache, int head_dim, int n_seqs, int n_kv_heads);
int attention_clusters(int head_dim, int share);
void launch_attention_parts(const struct launch *l, const struct dparts *parts, int n,
                            int stride); // parts[0], parts[stride] ... n of them

#ifdef __cplusplus
}
#endif
