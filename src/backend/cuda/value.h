/* value.h - what a kernel is given: values, weights, caches, the plan of a step, and what a step is launched for.
 *
 * Launchers put one node on a stream and return; what was given wrong shows as cudaGetLastError there, or as their
 * result. The rows of a step are no launch parameter: grids are made for the rows that a step was launched for (struct
 * launch), and a kernel reads how many there are from the plan on the device, so that a captured graph serves any step
 * that fits. Sums are float32, but for those of e4m3 by the kernels that say so. Plain C, for host and device. */
#pragma once

#include <cuda_runtime_api.h>
#include <math.h>
#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ELEMENT_MXFP4 is of weights of experts alone, which lie in blocks then: weights/blocks.h. ELEMENT_QUADS is of other
 * weights of four to eight bits with scales of groups, which lie in tiles: weights/quads.h. ELEMENT_KV_INT4 is of
 * caches of keys and values alone: attention/kv_int4.cuh. */
enum element {
    ELEMENT_F32,
    ELEMENT_F16,
    ELEMENT_BF16,
    ELEMENT_I32,
    ELEMENT_E4M3,
    ELEMENT_I8,
    ELEMENT_MXFP4,
    ELEMENT_QUADS,
    ELEMENT_KV_INT4
};
static inline int64_t element_bytes(enum element e) { // not of what lies in blocks or tiles
    return e == ELEMENT_F32 || e == ELEMENT_I32 ? 4 : e == ELEMENT_F16 || e == ELEMENT_BF16 ? 2 : 1;
}

/* ---- how large elements of e4m3 are ----
 * A product of rows of e4m3 may be summed in half precision, which ends at 65,504. Elements are kept so small that no
 * sum overflows:
 *
 *     a row of a value     no size above E4M3_FULL, which is what its largest size becomes (or less: static_scale
 * below) a row of a weight    any sizes, but ||w|| <= e4m3_norm(in); where needed it is times 2^-s, and its scale times
 * 2^s
 *
 * Kernels may rely on it up to HALF_SUMS_IN columns, with a rounding after each 32 terms and up to HALF_SUMS_PARTS
 * partial sums that are added up. With more columns only float32 sums fit. docs/numerics.md has the proof, and what it
 * costs. */
#define E4M3_FULL 28.0f
enum { HALF_SUMS_IN = 32768, HALF_SUMS_PARTS = 8 };
static inline float e4m3_norm(int64_t in) {
    double n = (double)in, largest = in <= HALF_SUMS_IN ? 65504 - 16 * (n / 32 + 2 * HALF_SUMS_PARTS) : 65504;
    double norm =
        largest / (sqrt(n) * E4M3_FULL) - sqrt(n) * 0x1p-9; // the second: what rounding of subnormal elements may add
    return (float)(norm > 0x1p-8 ? norm : 0x1p-8); // of millions of columns, for which nothing but zeros would do
}

/* A value in a step: rows of `width` elements, `stride` elements apart. at NULL: absent.
 * Of e4m3 a row's values are its elements times scale[row], the row's largest size / E4M3_FULL.
 * With col_scale the elements, of half precision, are unscaled products (quantise.cu below): the value is
 *     element * row_scale[row] * col_scale[col] + bias[col]
 * Only inputs of launchers that say that they take them are unscaled.
 * With most, whoever writes the value also folds each row's largest size into most[row]: an atomicMax of the bits of
 * |value|, as it was before or after it was rounded. Bits of sizes are ordered as sizes are, and what is not a number
 * is largest. A step begins with zeros there (launch_embed), so launch_quantise need not look for the largest. Only
 * outputs of launchers that say so have it. */
struct dmat {
    void *at;
    int64_t stride;
    int width;
    enum element element;
    float *scale;                              // [rows] of ELEMENT_E4M3, else NULL
    const float *row_scale, *col_scale, *bias; // of unscaled products, else NULL; bias may be NULL
    uint32_t *absmax;                          // [rows] or NULL
    float static_scale;                        // of ELEMENT_E4M3: launch_requantise; 0: none
    bool untold_only; // of 16 bits, as an output beside such a qact: octets that the qact tells need not be written
};

/* How the tiles of ELEMENT_QUADS are: weights/quads.h. */
enum quad_kind { QUADS_INT4, QUADS_NVFP4, QUADS_MXFP4, QUADS_Q8_0, QUADS_Q4_K, QUADS_Q6_K };
struct dquads {
    enum quad_kind kind;
    int group;      // columns of a scale: 32, 64 or 128 of INT4, 16 of NVFP4 and Q6_K, 32 of the others
    bool has_zeros; // of INT4: a zero point a scale; else it is 8
    bool gated;     // a tile has 8 gates, then their ups
};

/* A weight as placed: a matrix [out, in], rows one after another, or a vector of floats. at NULL: absent.
 * Of e4m3 the values of a row are its elements times scale[row], and the elements' norm is at most e4m3_norm(in). In
 * blocks and tiles they are likewise what these hold times scale[row]. */
struct dweight {
    const void *at;
    int64_t out, in;
    enum element element;
    const float *scale; // [out] of ELEMENT_E4M3, of blocks and of tiles, else NULL
    struct dquads quads;
};

enum { CUDA_MAX_GROUPS = 8 };

/* What is asked of an output row: core/sample.h, with what a list needs of the lists' block. Offsets are in entries. */
struct drow {
    float temperature, top_p, least; // least: log(min_p)
    float repetition, presence, frequency;
    int32_t top_k, target, n_top;
    int32_t is_plain; // nothing but the most probable token is asked for
    int32_t is_scored;
    int32_t is_changed;
    int32_t bias, n_bias;     // pairs: token, bits of the bias
    int32_t banned, n_banned; // pairs: token, the newest token for which it is banned or -1
    int32_t allowed, n_allowed;
    int32_t history, n_history, n_prompt; // n_prompt of the tokens listed are the prompt's
    int32_t mask;                         // its words, a bit a token that may come; -1: all may
    uint64_t bits;                        // 53 of them: where the draw falls
};

struct dsampled { // what came out of a row
    int32_t token, argmax, target_rank, flags;
    float logprob, target_logprob;
};
enum { SAMPLED_NOT_FINITE = 1, SAMPLED_NOTHING_LEFT = 2, MOST_TOP_LOGPROBS = 20 };

/* Where a step's lists are, and where its results go: memory of the host, but for row_token. Differs from step to step.
 */
struct dplaces {
    const int32_t *lists;
    struct dsampled *sampled;
    int32_t *top_token; // [rows][MOST_TOP_LOGPROBS]
    float *top_logprob;
    int32_t *row_token; // [rows], for the step after
};

/* The plan of a step (core/plan.h) where the device has it. Addresses never change, so graphs keep them. */
struct device_plan {
    const int32_t *counts; // [5]: tokens, sequences, rows; of those rows, how many are not plain, not sample_is_best
    const int32_t *token_id, *position, *seq_of_row;
    const int32_t *query_start, *seq_len, *n_known, *state_slot;
    const int32_t *out_row;
    const int32_t *newest;   // [rows]: the token that is expected to follow the row's history; -1: none
    const struct drow *rows; // [rows]
    const struct dplaces *places;
    const int32_t *block_table[CUDA_MAX_GROUPS];
    int table_width[CUDA_MAX_GROUPS];
};

/* What a step is launched for: at least as many rows as it has. */
struct launch {
    cudaStream_t stream;
    int n_tokens, n_seqs, n_rows;
    struct device_plan plan;
    int block_size; // of the cache, a power of two
    bool few;       // no sequence has more than ATTENTION_FEW_TOKENS tokens
    bool in_order;  // output row r is token row r
    bool watches;   // watch.c looks at this step
};

/* A layer's cache: blocks one after another.
 *   KV      kv.cuh says, and of int4 kv_int4.cuh; block_elements counts bytes where the element has 8 bits or fewer
 *   LATENT  rows of k_dim as one side of KV has them
 *   STATE   floats of a slot, as in backend/cpu/cpu.h */
struct dcache {
    void *at;
    int64_t block_elements; // from block to block
    int group;
    enum element element;
};

/* ---- what steps count for the host ----
 * In pinned memory, added to when there is something to count, which in most steps there is not. */
struct dcounts {
    unsigned long long rows_outside; // of a layer each: by dcounter
    unsigned long long left, paused; // steps: by dfilter
    unsigned long long rows_cut;     // of what is read by an op each: by launch_watch
};
/* Where rows are counted; not those behind the step's own. at NULL: nobody counts. */
struct dcounter {
    unsigned long long *at;
    const int32_t *n_rows; // of the step, on the device
};

#ifdef __cplusplus
}
#endif
