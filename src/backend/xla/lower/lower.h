/* lower.h - one program, written for one shape: what the functions of its ops share. One function an op of ops.def,
 * xla_NAME, in lower_*.c: it reads tensors of its inputs, weights and caches, and says what its outputs are.
 *
 * Activations are float32 [rows, width]; what products read is converted to the type of weights beside the product. T
 * is n_seqs * n_queries, rows of a sequence after one another. Rows of padding compute what nobody reads: they look at
 * block 0, and what they would store is put nowhere. */
#pragma once

#include "backend/xla/xla.h"

/* Where a step's rows go in the arrays of a group: see lower_store.c. */
struct store {
    struct tensor at; // [T, 2]: block and slot of each token's row (of copies: sequence, and place in its
                      // run); those of padding are nowhere
    struct tensor block, is_slot; // of one row a sequence: [S], and [S, block_size]: whether it is the row's slot
    bool is_one;      // the copies have one sequence, whose row goes to `place`, a scalar
    struct tensor place;
    int64_t tile, n_tiles;     // tokens of a tile, and how many the rows of a sequence touch
    struct tensor tile_at;     // [S * n_tiles, 2]: block, and tile in it
    struct tensor row, is_new; // [S * n_tiles, tile]: which row is put there (without where there is one), if any is
};

struct lower {
    struct hlo h;
    const struct loaded *l;
    const struct program *p;
    struct launch_shape s;
    int n_tokens;
    struct inputs at;
    struct tensor ints, floats;
    struct tensor *values;           // [n_values]
    struct tensor *weights, *scales; // [l->n_weights]
    struct tensor *caches;           // [l->n_caches], as the ops so far have left them
    struct tensor *dense;            // [l->n_caches], dense copies of them, likewise
    struct tensor fed, fed_before;   // [n_fed]
    struct tensor token, position;   // [T]
    struct tensor n_query, state_slot, adapter, out_row;
    struct tensor cos[XLA_MAX_ROPES], sin[XLA_MAX_ROPES];          // [T, dim / 2]
    struct tensor table[MAX_CACHE_GROUPS], base[MAX_CACHE_GROUPS]; // [S, width], [S]
    struct store store[MAX_CACHE_GROUPS];
    struct tensor dense_keys[MAX_CACHE_GROUPS];  // [S, 1, tokens of a row]: their positions
    struct tensor bits;                          // [2, R]
    struct tensor drawn, logits, newest, hidden; // of the last step, but for a loop's drawn; newest [R]: its tokens
    bool has_drawn;
    const struct op *op; // that is being lowered
    int i_op, n_rank_ints;
};

typedef void lower_function(struct lower *c);
/* One an op; an op that none is defined for is refused when a program is loaded. */
#define OP(code, function, n_in, n_out, n_weights, args) lower_function xla_##function;
#include "core/ops.def"
bool lower_has_op(enum opcode code);

/* ---- of the op at hand ---- */

bool lower_has_in(const struct lower *c, int i);
struct tensor lower_in(struct lower *c, int i); // [rows, width]
void lower_out(struct lower *c, int i, struct tensor y);
bool lower_has_weight(const struct lower *c, int i);
struct tensor lower_weight(struct lower *c, int i); // [out, in], [out]; of int8 matrices without their scales
/* y = x W^T, float32, for x [N, in] and W rows [first, first + n) of weight i. */
struct tensor lower_product(struct lower *c, struct tensor x, int i);
/* Whether products of so many rows are made as sums: of one a GPU reads weights nearer to its rate so. */
bool lower_sums_products(const struct lower *c, int64_t n_rows);
/* A number that other ranks have another one of; a constant where there is one rank. */
struct tensor lower_rank_int(struct lower *c, int32_t value);

struct tensor lower_ints(struct lower *c, int at, struct shape shape);
struct tensor lower_floats(struct lower *c, int at, struct shape shape);

/* The arrays of a layer's cache. */
struct tensor *lower_cache(struct lower *c, int cache, int which);
int lower_group(const struct lower *c, int cache);

/* ---- lower_store.c ---- */

struct store lower_store_places(struct lower *c, int group); // of a step's rows
/* x [T, heads, dim] into array `which` of the cache; as int8 with a scale a head and token, if it holds that. */
void lower_store(struct lower *c, int cache, int which, struct tensor x);

/* ---- lower_ring.c ---- */

/* What position each place of sequences' rings has, [S, Q, ring], alike for all of Q; below 0: nothing is there. */
struct tensor lower_ring_positions(struct lower *c, int ring);

/* ---- formulas that several ops share ---- */

struct tensor lower_sigmoid(struct lower *c, struct tensor x);
struct tensor lower_silu(struct lower *c, struct tensor x);
struct tensor lower_activate(struct lower *c, struct act_args act, struct tensor gate, struct tensor up);
/* y = x / rms(x) * w (1 + w) over the last axis; w NULL: 1. */
struct tensor lower_rms(struct lower *c, struct tensor x, const struct tensor *w, float eps, bool plus_one);
/* x [T, heads, dim] with its leading channels turned; rope < 0: x. */
struct tensor lower_rotate(struct lower *c, struct tensor x, int rope);
/* Of [.., n] the largest and the first place of it, [..] each. */
struct tensor lower_argmax(struct lower *c, struct tensor x, struct tensor *max);

/* ---- lower_dense.c: launches with dense copies of caches (dense.h) ---- */

bool lower_is_dense(const struct lower *c, int group); // the group has copies here
void lower_dense_arguments(struct lower *c);
/* Where a step's rows go in the copies, and which positions these have. */
void lower_dense_places(struct lower *c, int group);
/* The copy of an array of a layer's cache [S, heads, tokens of a row, dim]; of scales without dim. */
struct tensor *lower_dense_array(struct lower *c, int cache, int which);
/* [S, 1, heads, tokens of a row, dim]; of scales without dim. */
struct tensor lower_dense_rows(struct lower *c, int cache, int which);

/* ---- attention, for softmax and latent ---- */

/* What is gathered of a cache: keys and values [S, W, H, B, D] of W blocks; scales [S, W, H, B] where they are int8. */
struct kv_rows {
    struct tensor k, v, k_scale, v_scale;
    bool has_scales;
};

/* Queries q [S, Q, H, G, D] of H caches' heads; what is told of the rows that a query sees. Values are sums over them,
 * [S, Q, H, G, D of values]. */
struct attend {
    struct tensor q;
    int cache, group;
    float scale, softcap;
    int window, chunk, value_dim;
    int ring; // tokens of the sequence's ring, which is the one block of its table; 0: there are blocks
    const struct tensor *sinks; // [H, G]; NULL: none
    struct kv_rows (*rows)(struct lower *c, const struct attend *a, struct tensor table);
};
struct tensor lower_attend(struct lower *c, const struct attend *a);
