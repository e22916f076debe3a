/* hlo.h - writes StableHLO: a function whose arguments and results are tensors, one operation a line, in MLIR's generic
 * form, which depends on names of operations and attributes alone.
 *
 *     struct hlo h = {0};
 *     struct tensor x = hlo_argument(&h, TYPE_F32, SHAPE(4, 8), NO_ALIAS);
 *     struct tensor y = hlo_binary(&h, "add", x, hlo_float(&h, 1));
 *     hlo_result(&h, y);
 *     hlo_module(&h, "name", 1, &text);                           // the whole module; releases h
 *
 * A tensor is a value of the program that is being written: its number, type and shape. What does not fit is our own
 * mistake (BUG). Shapes are static; where a tensor of rank 0 meets one of another rank it is spread over that. */
#pragma once

#include "base/buf.h"
#include "base/status.h"

enum hlo_type { TYPE_PRED, TYPE_S8, TYPE_S32, TYPE_U32, TYPE_U64, TYPE_F32, TYPE_BF16, TYPE_F64 };
enum { HLO_MAX_RANK = 7, HLO_MAX_CARRIED = 1200, HLO_MAX_REDUCED = 4, NO_ALIAS = -1 };

struct shape {
    int rank;
    int64_t dims[HLO_MAX_RANK];
};
#define SHAPE(...) ((struct shape){(int)(sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t)), {__VA_ARGS__}})
#define SCALAR ((struct shape){0})
static inline bool shape_equals(struct shape a, struct shape b) {
    bool same = a.rank == b.rank;
    for (int i = 0; same && i < a.rank; i++)
        same = a.dims[i] == b.dims[i];
    return same;
}
int64_t shape_count(struct shape s);

struct tensor {
    int id, part; // part: of an operation with several results; -1
    enum hlo_type type;
    struct shape shape;
};

struct hlo {
    struct buf arguments, body, results, result_types; // as they will stand in the module
    int n_ids, n_arguments, n_results, depth;
};

/* ---- the function ---- */

/* alias: the number of the result that takes its memory (the caller gives the argument away); or NO_ALIAS. */
struct tensor hlo_argument(struct hlo *h, enum hlo_type type, struct shape shape, int alias);
int hlo_result(struct hlo *h, struct tensor x); // returns its number
/* Appends the module to `out`, and releases h. */
void hlo_module(struct hlo *h, const char *name, int n_replicas, struct buf *out);

/* ---- constants ---- */

struct tensor hlo_float(struct hlo *h, float x);
struct tensor hlo_int(struct hlo *h, int32_t x);
struct tensor hlo_u64(struct hlo *h, uint64_t x);
struct tensor hlo_full(struct hlo *h, enum hlo_type type, struct shape shape, double x); // all alike, exact in the type
struct tensor hlo_iota(struct hlo *h, enum hlo_type type, struct shape shape, int axis); // the index along the axis
struct tensor hlo_ints(struct hlo *h, const int32_t *x, int n);                          // [n]

/* ---- element by element: named as StableHLO names them ---- */

struct tensor hlo_unary(struct hlo *h, const char *op, struct tensor x); // "exponential", "tanh", "negate" ...
struct tensor hlo_binary(struct hlo *h, const char *op, struct tensor a, struct tensor b);   // "add", "maximum" ...
struct tensor hlo_compare(struct hlo *h, const char *how, struct tensor a, struct tensor b); // "LT", "EQ" ...
struct tensor hlo_select(struct hlo *h, struct tensor where, struct tensor yes, struct tensor no);
struct tensor hlo_convert(struct hlo *h, struct tensor x, enum hlo_type type); // x itself if it is of that type
struct tensor hlo_bits(struct hlo *h, struct tensor x, enum hlo_type type);    // of the same size
struct tensor hlo_barrier(struct hlo *h, struct tensor x); // x, which is made once and not by each that reads it

/* ---- shapes ---- */

struct tensor hlo_reshape(struct hlo *h, struct tensor x, struct shape shape);
/* Axis i of x becomes axis axes[i] of the result, which ascend; along the others it is repeated. */
struct tensor hlo_spread(struct hlo *h, struct tensor x, struct shape shape, const int *axes);
#define AXES(...) ((const int[]){__VA_ARGS__})
struct tensor hlo_rows(struct hlo *h, struct tensor x, struct shape shape); // x [N ...] is repeated along the last axes
struct tensor hlo_cols(struct hlo *h, struct tensor x, struct shape shape); // ... along the first
struct tensor hlo_transpose(struct hlo *h, struct tensor x, const int *axes); // axis i is axes[i] of x
struct tensor hlo_slice(struct hlo *h, struct tensor x, int axis, int64_t first, int64_t n);
struct tensor hlo_concat(struct hlo *h, int axis, const struct tensor *parts, int n);

/* ---- by index ---- */

/* x[ids]: entries along axis 0, for ids [N ...] i32 the result [N ..., rest of x]. Ids are cut to those that there
 * are. */
struct tensor hlo_take(struct hlo *h, struct tensor x, struct tensor ids);
/* x with entries ids [N] along axis 0 replaced by rows [N, rest of x]; ids that x does not have are left out, and no
 * two are alike. */
struct tensor hlo_put(struct hlo *h, struct tensor x, struct tensor ids, struct tensor rows);
/* x[a, :, c, ...] for (a, c) = ids [N, 2], of x [A, B, C, rest]: [N, B, rest]; and x with those replaced by rows [N, B,
 * rest]; likewise. */
struct tensor hlo_take_tokens(struct hlo *h, struct tensor x, struct tensor ids);
struct tensor hlo_put_tokens(struct hlo *h, struct tensor x, struct tensor ids, struct tensor rows);
/* size entries along the axis from `first` (i32, rank 0) on. */
struct tensor hlo_window(struct hlo *h, struct tensor x, int axis, struct tensor first, int64_t size);
/* x with those replaced by `part`. */
struct tensor hlo_set_window(struct hlo *h, struct tensor x, int axis, struct tensor first, struct tensor part);

/* ---- sums and products ---- */

struct tensor hlo_reduce(struct hlo *h, const char *op, struct tensor x,
                         int axis); // "add", "maximum", "minimum", "and"
/* x[i] [.., n, ..], of one shape and each of its type, to out[i] without the axis, all in one pass: `join` makes one of
 * two, of rank 0 each, in any order and grouping; it begins with start[i]. */
void hlo_reduce_together(struct hlo *h, const struct tensor *x, const struct tensor *start, int n, int axis,
                         void (*join)(struct hlo *h, const struct tensor *a, const struct tensor *b,
                                      struct tensor *out),
                         struct tensor *out);
/* The sum over the axes `over` of products, for each entry of the axes `batch`; result [batch, rest of a, rest of b] of
 * the type. Axes are lists that end with -1. */
struct dot_axes {
    int batch_a[3], batch_b[3], over_a[3], over_b[3];
};
struct tensor hlo_dot(struct hlo *h, struct tensor a, struct tensor b, struct dot_axes axes, enum hlo_type type);
/* Sorts along the last axis: keys (u32) descending, values with them; equal keys stay in order. */
void hlo_sort_descending(struct hlo *h, struct tensor *keys, struct tensor *values);

/* ---- devices ---- */

struct tensor hlo_all_reduce(struct hlo *h, struct tensor x, int n_replicas);
struct tensor hlo_all_gather(struct hlo *h, struct tensor x, int axis, int n_replicas);

/* ---- loops ---- */

/*     hlo_loop_begin(&h, &loop, n, start, 2);        // n: i32, rank 0
 *     ... loop.at (0 .. n-1), loop.now[0], loop.now[1] ...
 *     hlo_loop_end(&h, &loop, (struct tensor[]){a, b}, out);
 */
struct loop {
    int n_carried, id;
    struct tensor at, now[HLO_MAX_CARRIED];
};
void hlo_loop_begin(struct hlo *h, struct loop *loop, struct tensor n, const struct tensor *start, int n_carried);
void hlo_loop_end(struct hlo *h, struct loop *loop, const struct tensor *next, struct tensor *out);
