/* kernels.h - the launchers of the CUDA backend: C on the outside, one .cu an op or a few that belong together.
 *
 * A launcher puts one node on the stream and returns; what it was given wrong shows as cudaGetLastError there. The number of
 * rows of a step is no launch parameter: grids are made for the rows that a step was launched for (struct launch), and a
 * kernel reads how many there are from the plan on the device, so that a captured graph serves any step that fits.
 *
 * Most are plain kernels: the mathematics of core/ops.def with coalesced reads, and the oracle on the device of faster ones. Sums
 * are in float32, but for those of e4m3 by gemm_fp8_gated.cu, gemm_fp8_split_k.cu and gemm_fp8_prefill.cu (below). */
#pragma once

#include <cuda_runtime_api.h>
#include <math.h>
#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum element { ELEMENT_F32, ELEMENT_F16, ELEMENT_BF16, ELEMENT_I32, ELEMENT_E4M3, ELEMENT_I8 };

/* ---- how large elements of e4m3 are ----
 * A product of rows of e4m3 may be summed in half precision, which ends at 65,504, so elements are kept as small as that asks for, whatever the values are:
 *
 *     a row of a value     sizes up to E4M3_FULL, which is what its largest size becomes (or less: static_scale below): ||x|| <= E4M3_FULL sqrt(in)
 *     a row of a weight    sizes of any kind, but ||w|| <= e4m3_norm(in): they are times 2^-s for that, with s of that row, and its scale times 2^s
 *
 * Then no sum of terms x[k] w[k], over whichever columns, is beyond ||x|| ||w|| (Cauchy and Schwarz), nor is one that was rounded to half precision behind
 * each 32 terms, and behind each of HALF_SUMS_PARTS that were added up: rounding adds at most 16 each time, half of the distance between numbers from
 * 32,768 on. Kernels may rely on it up to HALF_SUMS_IN columns; beyond, float32 sums alone fit. Rounding is off by at most 2^-11 of what had been
 * summed up, each time, and of random terms as often up as down; what the tensor core drops of terms that are small beside their sum comes to that in either format.
 *
 * e4m3 is a floating format, so that costs nothing but what becomes subnormal, smaller than 2^-6: its distances are 2^-9 there. That is at worst, of a row's norm,
 * 2^-9 / sqrt(12) sqrt(in) / E4M3_FULL of a value and twice 2^-9 / sqrt(12) sqrt(in) / e4m3_norm(in) of a weight; of 18,944 columns 0.003 and 0.011,
 * of normal numbers 0.000 and 0.005, where rounding to 4 bits is off by 0.026. E4M3_FULL is 448 / 2^4: other elements have the bits that they would have
 * with the largest at 448, but for the exponent. More for values would be less for weights; values have the heavier tails. */
#define E4M3_FULL 28.0f
enum { HALF_SUMS_IN = 32768, HALF_SUMS_PARTS = 8 };
static inline float e4m3_norm(int64_t in) {
    double n = (double)in, largest = in <= HALF_SUMS_IN ? 65504 - 16 * (n / 32 + 2 * HALF_SUMS_PARTS) : 65504;
    double norm = largest / (sqrt(n) * E4M3_FULL) - sqrt(n) * 0x1p-9; // the second: what rounding of subnormal elements may add
    return (float)(norm > 0x1p-8 ? norm : 0x1p-8);                    // of millions of columns, for which nothing but zeros would do
}

/* A value in a step: rows of `width` elements, `stride` elements apart. at NULL: absent.
 * Of e4m3 a row's values are its elements times scale[row], the row's largest size / E4M3_FULL.
 * With col_scale the elements, of half precision, are unscaled products (quantise.cu below): the value is
 *     element * row_scale[row] * col_scale[col] + bias[col]
 * Only inputs of launchers that say that they take them are raw.
 * With most, whoever writes the value also folds each row's largest size into most[row]: an atomicMax of the bits of |value|, as it was
 * before or after it was rounded. Bits of sizes are ordered as sizes are, and what is not a number is largest. A step begins with
 * zeros there (launch_embed), so launch_quantise need not look for the largest. Only outputs of launchers that say so have it. */
struct dmat {
    void *at;
    int64_t stride;
    int width;
    enum element element;
    float *scale;                              // [rows] of ELEMENT_E4M3, else NULL
    const float *row_scale, *col_scale, *bias; // of unscaled products, else NULL; bias may be NULL
    uint32_t *absmax;                          // [rows] or NULL
    float static_scale;                        // of ELEMENT_E4M3: launch_quantise_rest; 0: none
    bool untold_only; // of 16 bits, as an output beside such a qact: octets that the qact tells need not be written
};

/* A weight as placed: a matrix [out, in], rows one after another, or a vector of floats. at NULL: absent.
 * Of e4m3 the values of a row are its elements times scale[row], and the elements' norm is at most e4m3_norm(in). */
struct dweight {
    const void *at;
    int64_t out, in;
    enum element element;
    const float *scale; // [out] of ELEMENT_E4M3, else NULL
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
    int32_t padding;
    uint64_t bits; // 53 of them: where the draw falls
};

struct dsampled { // what came out of a row
    int32_t token, argmax, target_rank, flags;
    float logprob, target_logprob;
};
enum { SAMPLED_NOT_FINITE = 1, SAMPLED_NOTHING_LEFT = 2, MOST_TOP_LOGPROBS = 20 };

/* Where a step's lists are, and where its results go: memory of the host, but for row_token. Differs from step to step. */
struct dplaces {
    const int32_t *lists;
    struct dsampled *sampled;
    int32_t *top_token; // [rows][MOST_TOP_LOGPROBS]
    float *top_logprob;
    int32_t *row_token; // [rows], for the step after
};

/* The plan of a step (core/plan.h) where the device has it. Addresses never change, so graphs keep them. */
struct device_plan {
    const int32_t *counts; // [4]: tokens, sequences, rows of this step; of those rows, how many are not plain
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
    bool in_order;  // output row r is token row r
    bool watches;   // watch.c looks at this step
};

/* A layer's cache: blocks one after another.
 *   KV      kv.cuh says; block_elements counts bytes where the element has 8 bits
 *   LATENT  [slot][k_dim]
 *   STATE   floats of a slot, as in backend/cpu/cpu.h */
struct dcache {
    void *at;
    int64_t block_elements; // from block to block
    int group;
    enum element element;
};

/* ---- place.cu: when weights are loaded; not nodes of a step ---- */
/* Rows of a matrix as stored, one after another; a value is its element times the scale of its row and columns. */
struct dstored {
    const void *at;
    int64_t in;
    enum element element; // F32, F16, BF16 or E4M3
    const float *scale;   // [rows][n_scales], each of scale_cols columns; NULL: none
    int64_t n_scales, scale_cols;
};
/* What the placing of a matrix did to it. */
struct dplaced {
    unsigned long long n_unreal;  // values that are not numbers
    unsigned long long n_beyond;  // values that the element does not reach: over its largest in f16, not finite in e4m3
    unsigned long long n_lost;    // not zero as stored, zero as placed
    unsigned long long n_present; // not zero as stored
    double squared_error, squared;
};
/* Rows [first_row, first_row + n_rows) of `to`, whose memory they are written to; counts on the device, added to, or NULL. Rows of e4m3 with a scale each
 * become e4m3 with nothing but their exponents changed, if need be. */
void launch_place_rows(cudaStream_t stream, const struct dstored *x, int64_t n_rows, struct dweight to, int64_t first_row,
                       struct dplaced *counts);

/* Random elements of a weight: N(0, deviation), or uniform in [0.9, 1.1]. */
struct ddummy {
    uint64_t key;
    float deviation;
    bool around_one;
};
void launch_fill_dummy(cudaStream_t stream, const struct ddummy *d, int64_t first, int64_t n, void *at, enum element e);

/* ---- rows.cu ---- */
struct drope { // core/rope.h with tables on the device
    int dim, pairing, by_length;
    const float *inv_freq, *inv_freq_long;
    float factor, factor_long;
    int64_t original_context;
    double theta, scaling;
    float *cos_sin; // [tokens][dim], of the step: cos [dim/2], then sin [dim/2]
};
enum { CUDA_MAX_ROPES = 4 };
struct dropes {
    int n;
    struct drope rope[CUDA_MAX_ROPES];
};
/* Largest sizes that a step gathers: n arrays, `pitch` rows apart. */
struct drow_absmax {
    uint32_t *at;
    int64_t pitch;
    int n;
};
/* And, in the same node, the angles of all rows for the ropes given, and zeros for the step's rows in `mosts`. */
void launch_embed(const struct launch *l, struct dweight table, float scale, struct dmat y, const struct dropes *ropes,
                  const struct drow_absmax *row_absmax);
void launch_take_rows(const struct launch *l, struct dmat x, struct dmat y);
void launch_convert(const struct launch *l, int n_rows, struct dmat x, struct dmat y); // to y's element

/* ---- static_scale.cu: when a program is compiled; not a node of a step ---- */
/* squares[j] = (variance of gate j) * (variance of what it lets through), for rows x = z * norm with z of variance 1 that agree with no row of w:
 * those of (w norm + bias). w e4m3: gates, then what they let through; norm [w.in] floats, or 1 + norm; bias NULL: none. */
struct dgated_sizes {
    struct dweight w;
    const float *norm, *bias;
    bool plus_one;
};
void launch_gated_sizes(cudaStream_t stream, const struct dgated_sizes *g, float *squares);

/* ---- what steps count for the host ----
 * In pinned memory, added to when there is something to count, which in most steps there is not. */
struct dcounts {
    unsigned long long rows_outside; // of a layer each: by dtally
    unsigned long long left, paused; // steps: by dfilter
    unsigned long long rows_cut;     // of what is read by an op each: by launch_watch
};
/* Where rows are counted; not those behind the step's own. at NULL: nobody counts. */
struct dcounter {
    unsigned long long *at;
    const int32_t *n_rows; // of the step, on the device
};

/* ---- quantise.cu ---- */
/* y8 = x as e4m3 with a scale a row: the largest size / E4M3_FULL. What is not finite stays so. x of 16 or 32 bits; y8.width % 16 == 0.
 * x may have most: then it is read once, by as many blocks as there is room for. */
void launch_quantise(const struct launch *l, int n_rows, struct dmat x, struct dmat y8);

/* Where whoever made x has also written its qact y8 by a scale known beforehand (dmat.static_scale, a power of two from 2^-15 to 2^15; rows at
 * multiples of 8 bytes): e4m3(x / static_scale), clamped. A row whose largest size is from STATIC_LEAST to STATIC_MOST times that, or zero, is
 * left as it is, and the scale is its own. Any other is made anew, by the least power of two for which no element is beyond E4M3_FULL, and counted.
 *
 * The qact tells an octet of x, eight columns from a multiple of eight on, if none of its elements is of size 256 or more (or not a number) and one is of 1/8 at
 * least: its values are then elements times static_scale. They would be rounded to the same four bits by another power of two, but for what is subnormal
 * by one of them: that may be off by 2^-10 static_scale, or by a step of the new scale's subnormals, 2^-9 of it. Of all other octets values are those of x, in 16 bits, and of x nothing else is read. So a row depends on
 * nothing but itself and static_scale, and in a row that is usual some of a hundred octets have to be written in 16 bits. x of 16 bits, with most. */
enum { STATIC_LEAST = 1, STATIC_MOST = (int)E4M3_FULL };
void launch_requantise(const struct launch *l, int n_rows, struct dmat x, struct dmat y8, struct dcounter others);

/* The same by the product that reads the qact, before it does: its blocks share the rows that are to be made, and wait for one another, so all of
 * them must have a place at once. */
enum { REQUANT_TOKENS = 128, REQUANT_MEETINGS = 4 };
struct dgrid_barrier {
    uint32_t n_come, n_held; // blocks that have come to the one that is on; how many were held
};
struct drequant {
    struct dmat value; // whose qact x is, with most; at NULL: the qact is as it should be
    struct dgrid_barrier
        *of_tokens;         // [REST_MEETINGS], of REST_TOKENS rows each at most; nobody else's at the same time, zero to begin with
    struct dcounter others; // rows that are made
};

/* What the library and gemm_fp8_split_k.cu make of e4m3 rows and e4m3 rows are unscaled products: sums of products of elements, in half precision. With scales in the library
 * itself, one a row of either, it computes up to twice as long on Hopper: it has a single kernel for that, without split sums. */
/* y = the value of unscaled products. y may be raw's memory if its element has 16 bits. */
void launch_rescale(const struct launch *l, int n_rows, struct dmat raw, struct dmat y);

/* ---- what a product y = x W^T + b makes of its sums, in the same node ---- */
enum ending {
    ENDING_PLAIN, // LINEAR
    ENDING_GATED, // LINEAR, GATED_ACT: y = act(gate) * up of the two halves of W's rows, y.width = W.out / 2
};

struct dending {
    enum ending kind;
    int act; // core/ops.h activation, of GATED
    float limit;
};

/* ---- watch.cu: in some of the steps that are no graphs ---- */
/* Counts rows with values at the end of half precision, 65504: what is larger is cut to that where it is stored (to_half). Of x in float16; or, where sizes
 * [rows] say what is to be known of each, rows of which that is from `least` to `most`: then x is not read. */
struct dwatch {
    struct dmat x;
    const float *sizes; // or NULL
    float least, most;
};
void launch_watch(const struct launch *l, int n_rows, const struct dwatch *w, struct dcounter cut);

/* ---- gemv.cu: LINEAR of a few rows, bound by reading its weight once ---- */
enum { GEMV_MAX_ROWS = 8, GEMV_MAX_M_TILES = 3 };
struct dgemv {
    struct dweight w;      // e4m3, f16 or bf16
    const float *bias;     // [w.out]; NULL: none
    struct dending ending; // plain or gated
    int held;              // multiprocessors that the node before holds to its end; from a sixteenth to a quarter of all are left to it
};
/* Whether it can compute that: x f16 (or bf16 with a weight of that) at addresses that are multiples of 16, whole pieces of 16 bytes
 * in a row of the weight, and shared memory for so many rows. */
bool gemv_takes(const struct dgemv *a, struct dmat x, struct dmat y, int n_rows);
void launch_gemv(const struct launch *l, int n_rows, const struct dgemv *a, struct dmat x, struct dmat y);

/* How it is cut into blocks and warps. launch_gemv takes what gemv_cut_of says; benchmarks try others. */
struct gemv_cut {
    int m_tiles;                 // of 16 rows that a warp computes at once
    int row_warps, column_warps; // of a block; the latter a power of two
    int cluster, n_blocks;       // blocks that share the columns; all blocks
    bool deep;                   // longer queues, without a cluster
};
struct gemv_cut gemv_cut_of(const struct dgemv *a, int n_rows);                     // n_blocks 0: shared memory is not enough
int gemv_blocks(int cluster);                                                       // that run at once, one on a multiprocessor
bool gemv_takes_cut(const struct dgemv *a, int n_rows, const struct gemv_cut *cut); // whether shared memory is enough
void launch_gemv_cut(const struct launch *l, int n_rows, const struct dgemv *a, struct dmat x, struct dmat y, const struct gemv_cut *cut);

/* ---- gemm_fp8_small_m.cu: LINEAR of some tens of rows, e4m3 by e4m3 on the tensor core, bound by reading its weight once ---- */
enum { SMALL_M_MAX_ROWS = 64 };
struct dsmall_m {
    struct dweight w;  // e4m3
    const float *bias; // [w.out]; NULL: none
    struct dending ending;
    struct dmat qact;        // of y, of GATED: written too, by its static_scale; at NULL: none
    struct drequant requant; // of x
};
/* Whether it can compute that: x e4m3 with a scale a row; w.in a multiple of 16, units of 8, w and x at multiples of 16 bytes; y of 16
 * bits, or float32 if PLAIN. Of GATED y may have most. */
bool small_m_takes(const struct dsmall_m *a, struct dmat x, struct dmat y, int n_rows);
cudaError_t launch_gemm_small_m(cudaStream_t stream, int n_rows, const struct dsmall_m *a, struct dmat x, struct dmat y);

/* How it is cut into blocks. launch_gemm_small_m takes what small_m_cut_of says; benchmarks try others. */
struct small_m_cut {
    int octets;   // of columns of y in a tile
    int split;    // blocks that share a tile, each with some of its terms; 1, or all tiles are computed at once
    int n_blocks; // a multiple of split, which is 8 at most
    int n_stages; // of the ring: 2 at least
};
struct small_m_cut small_m_cut_of(const struct dsmall_m *a, int n_rows);
cudaError_t launch_gemm_small_m_cut(cudaStream_t stream, int n_rows, const struct dsmall_m *a, struct dmat x, struct dmat y,
                                    const struct small_m_cut *cut);

/* ---- gemm_fp8_gated.cu: LINEAR of many rows, e4m3 by e4m3 on the tensor core, with GATED_ACT behind it ---- */
enum { GATED_MAX_ROWS = 512 }; // of more by gemm_fp8_prefill.cu
struct dl2_copy;               // l2_copy.h
struct dgated {
    struct dweight w;               // e4m3: gates, then what they let through
    const float *bias;              // [w.out]; NULL: none
    int act;                        // core/ops.h activation: ACT_SILU or ACT_GELU_TANH
    struct dmat qact;               // of y: written too, by its static_scale; at NULL: none
    const struct dl2_copy *l2_copy; // w once more, in halves; NULL: it is not. Read where the cut's tiles are its
};
/* Whether it can compute y = act(gate) * up, y.width = w.out / 2: x e4m3 with a scale a row; w.in a multiple of 16, above 128, up to HALF_SUMS_IN,
 * y.width of 8, w, x and y and their rows at multiples of 16 bytes; y of 16 bits. y may have most. */
bool gated_takes(const struct dgated *a, struct dmat x, struct dmat y, int n_rows);
cudaError_t launch_gemm_gated(cudaStream_t stream, int n_rows, const struct dgated *a, struct dmat x, struct dmat y);

/* How it is cut into blocks. launch_gemm_gated takes what gated_cut_of says; benchmarks try others. */
enum gated_sharing { GATED_SHARES_NOTHING, GATED_SHARES_W, GATED_SHARES_X };
struct gated_cut {
    int octets;   // half of those of y's columns in a tile: 6, 7, 9 or 11
    int parts;    // of 64 tokens in a tile: 2, 3 or 4 (of 11 octets not 4)
    int n_blocks; // even where they share
    int n_stages; // of the ring: 2 at least, room for a tile's sums, and no more than there are pieces of 128 columns of x
    /* What the two blocks of a cluster have in common: rows of W, with other tokens each, which make an even number of tiles; or tokens, with other
     * rows of W each. */
    enum gated_sharing shared;
};
struct gated_cut gated_cut_of(const struct dgated *a, int n_rows);
int gated_blocks(enum gated_sharing shared); // that run at once
int gated_stages(int octets, int parts);     // most that shared memory has room for
bool gated_takes_cut(const struct dgated *a, int n_rows, const struct gated_cut *cut);
cudaError_t launch_gemm_gated_cut(cudaStream_t stream, int n_rows, const struct dgated *a, struct dmat x, struct dmat y,
                                  const struct gated_cut *cut);

/* ---- gemm_fp8_split_k.cu: unscaled products of 65 and more rows, whose terms the blocks of a cluster share ---- */
/* Whether it can compute y = x W^T: x e4m3; w.in a multiple of 16 up to HALF_SUMS_IN, w.out of 8, w, x and y and their rows at multiples of
 * 16 bytes; y of half precision, as its sums are. Scales are not looked at. */
bool split_k_takes(struct dweight w, struct dmat x, struct dmat y, int n_rows);
/* near: [L2_COPY_SHAPES] copies of w (l2_copy.h), of which one is read in place of w whose tiles the step has; NULL, or NULL for one: not there. rest: of x; NULL: none.
 * The node behind it starts when all before it have ended, and so may read before it waits what those left. */
cudaError_t launch_gemm_split_k(cudaStream_t stream, int n_rows, struct dweight w, const struct dl2_copy *const *l2_copy, struct dmat x,
                                struct dmat y, const struct drequant *requant);
/* Whether rest.value may be given. */
bool split_k_requantises(struct dweight w, int n_rows);

/* How it is cut into blocks. launch_gemm_split_k takes the one that split_k_cut_of names, or the first; tests and benchmarks try others. */
enum { SPLIT_K_CUTS = 19 };
struct split_k_cut {
    int rows;    // of W in a tile, whose tokens are 128
    int split;   // blocks with the same tile, each with a part of its terms
    int sharers; // tiles of a cluster, of other tokens and the same rows: 1 or 2
};
struct split_k_cut split_k_cut_at(int i);
/* One with which all blocks are at work at once, on most multiprocessors; negative: none, and the library is better. */
int split_k_cut_of(struct dweight w, int n_rows);
/* How many rows the tiles of w's near copy i < L2_COPY_SHAPES are to have: those that steps of 128 rows read, of 256; 0: none, or the same. */
int split_k_l2_copy_rows(struct dweight w, int i);
cudaError_t launch_gemm_split_k_cut(cudaStream_t stream, int n_rows, struct dweight w, const struct dl2_copy *const *l2_copy, struct dmat x,
                                    struct dmat y, const struct drequant *requant, int cut);

/* ---- gemm_fp8_prefill.cu: products of hundreds and thousands of rows, summed in half precision ---- */
/* Whether it can compute the unscaled products y = x W^T: x e4m3; w.in a multiple of 16, at most GEMM_PREFILL_MOST_IN, w.out of 8, w, x and y and their rows at multiples of
 * 16 bytes; y of half precision. Scales are not looked at.
 *
 * A sum is one chain of terms, of which the tensor core drops what is below 2^-13 of the sum so far: terms that are all alike in size and sign stop adding up
 * after 8,192 to 16,384 of them. Of others sums do not come near that. */
enum { GEMM_PREFILL_MOST_IN = 22016 };
bool gemm_prefill_takes(struct dweight w, struct dmat x, struct dmat y, int n_rows);
cudaError_t launch_gemm_prefill(cudaStream_t stream, int n_rows, struct dweight w, struct dmat x, struct dmat y);
/* Likewise what gemm_fp8_gated.cu computes, and as it does. */
bool gemm_prefill_gated_takes(const struct dgated *a, struct dmat x, struct dmat y, int n_rows);
cudaError_t launch_gemm_prefill_gated(cudaStream_t stream, int n_rows, const struct dgated *a, struct dmat x, struct dmat y);
/* Whether it should, in place of the library: rows fill its tiles, and tiles the multiprocessors. */
bool gemm_prefill_pays(struct dweight w, int n_rows);
bool gemm_prefill_gated_pays(struct dweight w, bool biased, int n_rows);

/* How it is cut into blocks. launch_gemm_prefill takes what gemm_prefill_cut_of says; tests and benchmarks try others. */
enum { GEMM_PREFILL_CUTS = 10, GEMM_PREFILL_PAIR_CUTS = 6 };
struct gemm_prefill_cut {
    int rows;    // of W in a tile, whose tokens are 256
    int sharers; // blocks of a cluster, which have the same rows and each other tokens: 1, or 2 if tokens make an even number of tiles
};
struct gemm_prefill_cut gemm_prefill_cut_at(int i);
int gemm_prefill_cut_of(struct dweight w, int n_rows);
bool gemm_prefill_takes_cut(int n_rows, int cut);
cudaError_t launch_gemm_prefill_cut(cudaStream_t stream, int n_rows, struct dweight w, struct dmat x, struct dmat y, int cut);
/* Likewise of pairs, whose tiles have as many gates as rows that they let through. */
struct gemm_prefill_cut gemm_prefill_pair_cut_at(int i);
int gemm_prefill_pair_cut_of(struct dweight w, bool biased, int n_rows);
bool gemm_prefill_takes_pair_cut(bool biased, int n_rows, int cut);
cudaError_t launch_gemm_prefill_gated_cut(cudaStream_t stream, int n_rows, const struct dgated *a, struct dmat x, struct dmat y, int cut);

/* ---- lm_head.cu: LINEAR of 16 bits whose rows are logits, with the SOFTCAP behind it and what SAMPLE wants of greedy rows ---- */
struct dlm_head {
    struct dweight w;  // f16 or bf16
    const float *bias; // [w.out]; NULL: none
    float cap;         // of SOFTCAP; 0: none
};
enum { HEAD_MAX_ROWS = 512, HEAD_BESTS = 160 };
/* The largest of some of a row's logits, and where it is, of equals the first; what is not a number is largest. */
struct dbest {
    float logit;
    int32_t id;
};
/* The largest of a row: of n parts of it, from at + row * HEAD_BESTS. at NULL: nobody has looked. */
struct dbests {
    struct dbest *at;
    int n;
    const int32_t *done; // as launch_lm_head has it: then the step's tokens are told
};
/* Whether it can compute that: x of w's element, its rows and w's at multiples of 16 bytes; logits float32. */
bool head_takes(const struct dlm_head *a, struct dmat x, struct dmat logits, int n_rows);
/* bests.at of all rows, and logits of those that ask for more (drow.is_plain says which do not). done: on the device, not zero if nothing is
 * wanted any more (launch_filter); NULL: all is. */
cudaError_t launch_lm_head(const struct launch *l, int n_rows, const struct dlm_head *a, struct dmat x, struct dmat logits,
                           struct dbest *bests, const int32_t *done);
int head_parts(const struct dlm_head *a, int n_rows); // how many bests a row gets

/* How it is cut into blocks. launch_lm_head takes what head_cut_of says; benchmarks try others. */
struct head_cut {
    int octets;   // of rows of W in a tile: 24 at most, beyond 192 tokens 16
    int n_blocks; // at most HEAD_BESTS
    int n_stages; // of the ring: 2 at least
    int sharers;  // blocks of a cluster, which have the same tokens and each other rows of W: 1 or 2
};
struct head_cut head_cut_of(const struct dlm_head *a, int n_rows);
int head_stages(int n_rows, int octets); // most that shared memory has room for
cudaError_t launch_head_cut(const struct launch *l, int n_rows, const struct dlm_head *a, struct dmat x, struct dmat y, struct dbest *bests,
                            const int32_t *done, const struct head_cut *cut);

/* ---- argmax_filter.cu: the most probable tokens of a step of plain rows, without reading all of a head of 16 bits ----
 * Before lm_head.cu and SAMPLE: where all rows of a step are plain (drow.is_plain), the same tokens from half of the bytes, and those two end at once.
 * The head stays in 16 bits and decides; beside it lies a copy in 8 bits that tells which of its rows cannot win. argmax_filter.cu says why that is so. */
/* What steps leave for one another, on the device; zero to begin with. */
struct dfilter_state {
    int32_t is_done;         // the step's tokens are told
    int32_t paused;          // steps that are not to be screened
    uint32_t n_done, n_left; // steps that were screened; of which too many rows of w could have won, or that had what is not finite
    uint32_t recent;         // of the last 32 steps that were tried a bit each: it was left
    uint32_t n_again;        // copies that launch_filter_again has made
    uint32_t claims[2];      // of what is whose, while a step runs (argmax_filter_units.cuh)
};
struct dl2_sides;
struct dfilter {
    struct dweight w; // the head, f16 or bf16, without bias
    float cap;        // of SOFTCAP; 0: none
    int budget;       // rows of w that may be looked at for a row of the step; 0: as many as are worth it
    void *copy;       // filter_copy_bytes, filled by launch_filter_copy; whole pages of l2_topology.h, or nothing in it is near
    void *scratch;    // filter_scratch_bytes; nothing in it lives from one step to the next
    struct dfilter_state *state;
    int32_t *asked;                // in pinned memory: becomes 1 when launch_filter_again may help, once a pause; NULL: nobody asks
    struct dcounts *counts;        // steps that were left, and that were not tried as steps are paused; NULL: nobody counts
    const struct dl2_sides *sides; // of the L2 (l2_topology.h); NULL: they are not known
    const uint32_t *flips;         // of the copy's first filter_pages_bytes, on the host
};
/* Whether it can: x of w's element, its rows and w's at multiples of 16 bytes; no bias. */
bool filter_takes(const struct dlm_head *a, struct dmat x, int n_rows);
int64_t filter_copy_bytes(struct dweight w);                // beside the head's own: a little over half of that
int64_t filter_pages_bytes(struct dweight w);               // of these, the rows: they lie on either side of the L2, near who reads them
int64_t filter_scratch_bytes(struct dweight w, int n_rows); // for steps of up to so many rows
/* When weights are there, once: writes s->copy from s->w. state is not looked at. Adds how many rows of w have elements that are not finite to *n_not_finite, on the
 * device: a head that has such is not to be screened. */
void launch_filter_copy(cudaStream_t stream, const struct dfilter *s, unsigned long long *n_not_finite);
/* Between steps: the copy once more, its columns scaled by what steps have seen of x, where that makes the bound narrower; then steps are not paused any more. */
void launch_filter_again(cudaStream_t stream, const struct dfilter *s);
/* Nodes of a step, with state->is_done behind them the token of each row, as launch_sample leaves it (places.sampled, places.row_token). It is not where
 * a row of the step is not plain, where steps are paused, where too much is left to look at, or something is not finite: then the nodes behind
 * do what they always do. Where that was often, steps are paused. */
cudaError_t launch_filter(const struct launch *l, int n_rows, const struct dfilter *s, struct dmat x);

/* ---- norm.cu: y may be absent where its qact is given, and the other way round ---- */
struct dadd_norm {
    struct dweight w, r_scale;
    float eps;
    bool plus_one;
    struct dweight d_norm; // at given: d is normed by it first, where widths are multiples of 4 and at most 8,192
    float d_eps;
    bool d_plus_one;
    bool prefetch; // the node before is launch_gemm_split_k's and has not made x, which is read before that ends
};
void launch_add_norm(const struct launch *l, const struct dadd_norm *a, struct dmat x, struct dmat d, struct dmat r, struct dmat y,
                     struct dmat qact);
/* qact: where a group is the row. */
void launch_norm(const struct launch *l, int n_rows, struct dmat x, struct dmat gate, struct dweight w, float eps, bool plus_one, int group,
                 float scale, struct dmat y, struct dmat qact);

/* ---- elementwise.cu: n_rows as the step was launched for ---- */
void launch_gated_act(const struct launch *l, int n_rows, int act, float limit, struct dmat gate, struct dmat up, struct dmat y,
                      struct dmat qact); // y may be absent where its qact is given
/* Whether the qact can be written in the same node. */
bool gated_act_takes_qact(int act, struct dmat gate, struct dmat up, struct dmat y);
void launch_gated_add(const struct launch *l, int n_rows, struct dmat add, struct dmat x, struct dmat gate, struct dmat y);
void launch_softcap(const struct launch *l, int n_rows, float cap, struct dmat x, struct dmat y);
void launch_diff_heads(const struct launch *l, struct dmat x, const struct dweight lambda[4], float lambda_init, struct dmat y);

/* ---- attention.cu ---- */
struct dqkv {
    int n_heads, n_kv_heads, head_dim, v_head_dim;
    float eps;
    bool plus_one, v_norm, v_from_k, k_absent;
    int k_turned; // core/ops.h, as in dattention
};
void launch_qkv_prep(const struct launch *l, const struct dqkv *a, const struct drope *rope, struct dmat x, struct dweight q_norm,
                     struct dweight k_norm, struct dcache cache, struct dmat q);

struct dattention {
    int n_heads, n_kv_heads, head_dim, v_head_dim;
    float scale, softcap;
    int window, chunk;
    bool paired_values;
    int k_turned;
};
/* The plain kernel: any shape and element, block tables and all; the oracle of those below. */
void launch_attention(const struct launch *l, const struct dattention *a, struct dmat q, struct dweight sinks, struct dcache cache,
                      struct dmat out);

/* ---- attention_parts.cu: what the fast kernels work on, found on the device once a step ---- */

/* Keys [first, end) of a sequence for some of its columns: column c is query head c % g of token c / g, g heads to a KV head. */
struct dpart {
    int32_t seq, row, position;   // its first token's row in the step, and position
    int32_t columns;              // how many it has
    int32_t first_column;         // of this part
    int32_t first, end;           // keys; first is a multiple of 64
    int32_t part_of, n_parts, at; // this is part part_of of n_parts, which if there are several leave their sums at at, at + 1 ...
};

/* A list of parts for layers that share a window, a chunk and the number of query heads to a KV head. */
struct dparts {
    int window, chunk, per_kv, columns; // columns: of a part, at most
    int n_kv_heads, head_dim;           // of the layers, or of the one with most
    enum element cache;                 // of the layers
    int least_tokens, most_tokens;      // of this step, of the sequences that the list is of
    int max_parts, max_split;           // entries of the list; parts that a sequence is cut into at most
    int max_seqs;                       // rows of the block tables
    int32_t *n;                         // [1]
    struct dpart *part;                 // [max_parts]
    float *partial;                     // [n_seqs * max_split][n_kv_heads][columns][v_head_dim + 2] of the layer with the most
    int32_t *arrived;                   // [n_seqs * max_split][n_kv_heads], zero between launches
};
/* How many blocks share a pair of a part and a KV head in a step of so many sequences, 1, 2 or 4: as many as leave each pair of a sequence
 * and a KV head a cluster of its own. And how many such clusters compute at once. */
int attention_share(enum element cache, int head_dim, int n_seqs, int n_kv_heads);
int attention_clusters(int head_dim, int share);
void launch_attention_parts(const struct launch *l, const struct dparts *parts, int n, int stride); // parts[0], parts[stride] ... n of them

/* ---- attention_decode.cu ---- */
/* Whether the kernel takes the shape; `columns` it wants of a part. */
bool attention_decode_takes(const struct dattention *a, enum element cache, int block_size);
/* prefetch: the node before is the layer's QKV_PREP, so that keys of earlier steps may be read before it ends. out may have most where
 * no sequence has more than one token. */
void launch_attention_decode(const struct launch *l, const struct dattention *a, const struct dparts *parts, bool prefetch, struct dmat q,
                             struct dweight sinks, struct dcache cache, struct dmat out);

/* A QKV_PREP that decode attention does on its way (decode_prep.cuh), in a step where no sequence has more than one token: whole heads are
 * rotated, the first half of the channels with the second. */
struct dprep {
    struct dqkv a;
    const float *cos_sin; // [tokens][head_dim], or NULL
    struct dmat x;        // raw or not
    struct dweight q_norm, k_norm;
};
/* Whether it can: heads of 128 channels, at most 8 to a KV head, over a cache of e4m3. */
bool attention_decode_prepares(const struct dattention *a, const struct dprep *prep, struct dcache cache);
/* The lists of parts are there before the node before this one begins: a node in between waits before it lets the next start. */
void launch_attention_decode_prepares(const struct launch *l, const struct dattention *a, const struct dparts *parts,
                                      const struct dprep *prep, struct dweight sinks, struct dcache cache, struct dmat out);

/* ---- attention_decode_bytes.cu: the same of a cache of e4m3 ---- */
void launch_attention_decode_bytes(const struct launch *l, const struct dattention *a, const struct dparts *parts, bool prefetch,
                                   struct dmat q, struct dweight sinks, struct dcache cache, struct dmat out);

/* ---- attention_decode_warps.cu: of these 128 channels and up to 8 query heads to a KV head, where sequences have one token each ---- */
int attention_teams(int n_warps); // of so many warps, that compute at once, each a pair of a part and a KV head
/* How many warps take a pair of a sequence and a KV head together: one where there are more pairs than teams of two, two where there are half as
 * many at least; 0 where attention_decode_bytes.cu takes them. */
int attention_team(int n_seqs, int n_kv_heads);
bool attention_takes_warps(const struct launch *l, enum element cache, int head_dim, int per_kv, int n_kv_heads); // whether a step does
/* Queries of half precision or float32. */
void launch_attention_decode_warps(const struct launch *l, const struct dattention *a, const struct dparts *parts, bool prefetch,
                                   struct dmat q, struct dweight sinks, struct dcache cache, struct dmat out);

/* ---- attention_prefill.cu: the same shapes ---- */
int attention_prefill_rows(const struct dattention *a); // what it wants as `columns` of a part
void launch_attention_prefill(const struct launch *l, const struct dattention *a, const struct dparts *parts, struct dmat q,
                              struct dweight sinks, struct dcache cache, struct dmat out);

/* ---- attention_prefill_halves.cu: of these, those of 512 channels over a cache of e4m3 ---- */
void launch_attention_prefill_halves(const struct launch *l, const struct dattention *a, const struct dparts *parts, struct dmat q,
                                     struct dweight sinks, struct dcache cache, struct dmat out);

/* ---- mla.cu ---- */
struct dmla {
    int n_heads, rank, nope_dim, rope_dim, v_dim;
    float eps, scale;
};
void launch_mla_prep(const struct launch *l, const struct dmla *a, const struct drope *rope, struct dmat q, struct dmat kva,
                     struct dweight norm, struct dweight w_uk, struct dcache cache, struct dmat out);
void launch_mla_attention(const struct launch *l, const struct dmla *a, struct dmat q, struct dweight w_uv, struct dcache cache,
                          struct dmat out);

/* ---- moe.cu ---- */
struct droute {
    int how, n_experts, top_k, n_groups, top_groups;
    bool renormalise;
    float scale;
};
void launch_moe_route(const struct launch *l, const struct droute *a, struct dmat logits, struct dweight bias, struct dweight expert_scale,
                      struct dmat ids, struct dmat weights);

enum { MOE_MOST_TOP_K = 64, MOE_GRAPH_TOKENS = 512 }; // experts to a token; tokens up to which a step may be launched for more than it has
struct dmoe {
    int n_experts, top_k, ffn_size, act;
    float limit;
    float *hidden; // [tokens * top_k][ffn_size]: scratch
};
void launch_moe_ffn(const struct launch *l, const struct dmoe *a, struct dmat x, struct dmat ids, struct dmat weights, struct dweight w13,
                    struct dweight w2, struct dweight b13, struct dweight b2, struct dmat y);

/* ---- delta.cu ---- */
void launch_short_conv(const struct launch *l, int kernel, struct dmat u, struct dweight w, struct dcache cache, struct dmat y);
struct ddelta {
    int n_key_heads, n_value_heads, key_dim, value_dim;
    int64_t state_offset; // of the delta state behind the conv inputs, in floats
};
void launch_delta_rule(const struct launch *l, const struct ddelta *a, struct dmat qkv, struct dmat b, struct dmat gate,
                       struct dweight a_log, struct dweight dt_bias, struct dcache cache, struct dmat out);

/* ---- plan.cu ---- */
struct dtake { // from where to where; counts and parts of the plan, in int32 from the block's start
    const int32_t *from;
    int32_t *to;
    int n_tokens, n_seqs, n_rows, n_not_plain, n_groups, log_block_size;
    int counts, token_id, from_row, position, seq_of_row, query_start, seq_len, n_known, state_slot, out_row, newest_row, rows, places;
    int64_t block_table[CUDA_MAX_GROUPS];
    int table_width[CUDA_MAX_GROUPS];
    const int32_t *lists_from;
    int32_t *lists;
    int64_t n_lists;
    struct dplaces at;
};
/* The plan as the host wrote it becomes the device's: the part of it that is used, tokens of the step before put in. */
void launch_take_plan(cudaStream_t stream, const struct dtake *take);

/* ---- sample.cu ---- */
bool sample_fits(int n_vocab); // whether rows of so many logits can be sampled
/* To places.sampled, and where asked for to top_token and top_logprob. float32 logits; with bests those of plain rows are not read. */
void launch_sample(const struct launch *l, struct dmat logits, struct dbests bests);

#ifdef __cplusplus
}
#endif
