/* rows.cu - EMBED and STATES with the angles of the step's rows, CONCAT, TAKE_ROWS and the change of an element type.
 * Bytes: each row once in and once out.
 *
 * A block makes 1,024 columns of a row, a thread four neighbours; rows that do not lie in fours are made column by
 * column. The first op of a step, EMBED or STATES, makes the angles of its ropes too, a block more a row and rope,
 * since both need nothing but the plan; and one more a row clears the row's largest sizes, as the first node of the
 * step that can. */
#include "backend/cuda/ptx/fours.cuh"
#include "backend/cuda/rows/rows.h"
#include "backend/cuda/value.h"

enum { THREADS = 256, COLUMNS = 1024 };

static int pieces_of(int width) { return (width + COLUMNS - 1) / COLUMNS; }

/* Row `from` of x to row `to` of y, times scale: a piece of its columns. */
static __device__ void move_piece(int piece, const dmat &x, int64_t from, float scale, const dmat &y, int64_t to,
                                  bool in_fours) {
    int first = piece * COLUMNS;
    if (!in_fours) {
        for (int i = first + threadIdx.x; i < min(first + COLUMNS, y.width); i += THREADS)
            store(y, to, i, load(x, from, i) * scale);
        return;
    }
    int col = first + 4 * threadIdx.x;
    if (col < y.width)
        store_four(y, to, col, load_four(x, from, col) * scale);
}

static __device__ void move_row(const dmat &x, int64_t from, float scale, const dmat &y, int64_t to, bool in_fours) {
    move_piece(blockIdx.x, x, from, scale, y, to, in_fours);
}

/* Likewise zeros. */
static __device__ void clear_row(const dmat &y, int t) {
    int begin = blockIdx.x * COLUMNS;
    for (int i = begin + threadIdx.x; i < min(begin + COLUMNS, y.width); i += THREADS)
        store(y, t, i, 0.0f);
}

/* cos and sin of a row's position for a rope, as core/rope.c has them, in float32: a thread a pair. */
static __device__ void make_angles(const device_plan &plan, const drope &rope, int t) {
    int64_t n_known = plan.n_known[plan.seq_of_row[t]];
    const float *freq = rope.inv_freq;
    float factor = rope.factor, position = (float)plan.position[t];
    double theta = 0;
    if (rope.by_length != 0 && n_known > rope.original_context) {
        if (rope.by_length == 1) {
            freq = rope.inv_freq_long;
            factor = rope.factor_long;
        } else {
            double s = (double)n_known / (double)rope.original_context;
            theta = rope.theta * pow(rope.scaling * s - (rope.scaling - 1), (double)rope.dim / (rope.dim - 2));
        }
    }
    int half = rope.dim / 2;
    float *out = rope.cos_sin + (int64_t)t * rope.dim;
    for (int i = threadIdx.x; i < half; i += THREADS) {
        float angle = position * (theta > 0 ? (float)(1.0 / pow(theta, 2.0 * i / rope.dim)) : freq[i]);
        out[i] = cosf(angle) * factor;
        out[half + i] = sinf(angle) * factor;
    }
}

/* Of padding rows too: they are folded into like others. */
static __device__ void clear_row_absmax(const drow_absmax &row_absmax, int t) {
    for (int i = threadIdx.x; i < row_absmax.n; i += THREADS)
        row_absmax.at[i * row_absmax.pitch + t] = 0;
}

/* What the first op of a step does too, in blocks behind the n_pieces of its rows. */
struct beginning {
    int n_pieces;
    dropes ropes;
    drow_absmax row_absmax;
};

/* False: the block has done its part. */
static __device__ bool begin_row(const device_plan &plan, const beginning &b) {
    // In this order: the nodes behind this one may read the plan and the lists of attention before they wait.
    wait_for_previous();
    let_next_start();
    int t = blockIdx.y, rope = blockIdx.x - b.n_pieces;
    if (rope == b.ropes.n)
        clear_row_absmax(b.row_absmax, t);
    if (rope == b.ropes.n || t >= step_tokens(plan))
        return false;
    if (rope >= 0)
        make_angles(plan, b.ropes.rope[rope], t);
    return rope < 0;
}

static __global__ void __launch_bounds__(THREADS)
    embed(device_plan plan, dweight table, int first, float scale, dmat y, bool in_fours, beginning b) {
    if (!begin_row(plan, b))
        return;
    int t = blockIdx.y;
    dmat rows = {const_cast<void *>(table.at), table.in, y.width, table.element, nullptr};
    int row = plan.token_id[t] - first;
    if (row >= 0 && row < table.out) {
        move_row(rows, row, scale, y, t, in_fours);
        return;
    }
    clear_row(y, t); // another rank's
}

/* The sources lie in fours if y does. */
static __global__ void __launch_bounds__(THREADS)
    states(device_plan plan, dstates from, dmat y, bool in_fours, beginning b) {
    if (!begin_row(plan, b))
        return;
    int t = blockIdx.y, row = from.row[t];
    dmat x = from.sources[*from.source];
    if (row >= 0 && x.at) {
        move_row(x, row, 1, y, t, in_fours);
        return;
    }
    clear_row(y, t);
}

static __global__ void __launch_bounds__(THREADS) take_rows(device_plan plan, dmat x, dmat y, bool in_fours) {
    let_next_start();
    wait_for_previous();
    int r = blockIdx.y;
    if (r < step_rows(plan))
        move_row(x, plan.out_row[r], 1, y, r, in_fours);
}

static __global__ void __launch_bounds__(THREADS) convert(dmat x, dmat y, bool in_fours) {
    let_next_start();
    wait_for_previous();
    move_row(x, blockIdx.y, 1, y, blockIdx.y, in_fours);
}

static __global__ void __launch_bounds__(THREADS) order_columns(dmat x, const int32_t *order, dmat y) {
    let_next_start();
    wait_for_previous();
    int k = blockIdx.x * THREADS + threadIdx.x;
    if (k < y.width)
        store(y.at, blockIdx.y * y.stride + k, y.element, load(x.at, blockIdx.y * x.stride + order[k], x.element));
}

void launch_states(const struct launch *l, struct dstates from, struct dmat y, const struct dropes *ropes,
                   const struct drow_absmax *row_absmax) {
    int n = pieces_of(y.width);
    launch_node(states, dim3(n + ropes->n + (row_absmax->n > 0), l->n_tokens), THREADS, 0, l->stream, l->plan, from, y,
                lies_in_fours(y), beginning{n, *ropes, *row_absmax});
}

/* Values side by side: each has pieces of its own. */
struct sides {
    dmat x[3], y[3]; // y: its columns of the result
    int n_pieces[3];
    bool in_fours;
};

static __global__ void __launch_bounds__(THREADS) concat(const __grid_constant__ sides s) {
    let_next_start();
    wait_for_previous();
    int piece = blockIdx.x, i = 0;
    while (piece >= s.n_pieces[i])
        piece -= s.n_pieces[i++];
    move_piece(piece, s.x[i], blockIdx.y, 1, s.y[i], blockIdx.y, s.in_fours);
}

static int bytes_of(const dmat &m) { return m.element == ELEMENT_F32 ? 4 : 2; }

void launch_concat(const struct launch *l, int n_rows, const struct dmat *x, int n, struct dmat y) {
    sides s = {};
    int n_pieces = 0;
    s.in_fours = true;
    for (int i = 0, col = 0; i < n; col += x[i++].width) {
        s.x[i] = x[i], s.y[i] = y;
        s.y[i].at = static_cast<char *>(y.at) + (int64_t)col * bytes_of(y);
        s.y[i].width = x[i].width;
        s.n_pieces[i] = pieces_of(x[i].width);
        s.in_fours = s.in_fours && lies_in_fours(s.x[i]) && lies_in_fours(s.y[i]);
        n_pieces += s.n_pieces[i];
    }
    launch_node(concat, dim3(n_pieces, n_rows), THREADS, 0, l->stream, s);
}

void launch_embed(const struct launch *l, struct dweight table, int first, float scale, struct dmat y,
                  const struct dropes *ropes, const struct drow_absmax *row_absmax) {
    dmat rows = {const_cast<void *>(table.at), table.in, y.width, table.element, nullptr};
    int n = pieces_of(y.width);
    launch_node(embed, dim3(n + ropes->n + (row_absmax->n > 0), l->n_tokens), THREADS, 0, l->stream, l->plan, table,
                first, scale, y, lies_in_fours(rows) && lies_in_fours(y), beginning{n, *ropes, *row_absmax});
}

void launch_take_rows(const struct launch *l, struct dmat x, struct dmat y) {
    launch_node(take_rows, dim3(pieces_of(y.width), l->n_rows), THREADS, 0, l->stream, l->plan, x, y,
                lies_in_fours(x) && lies_in_fours(y));
}

void launch_convert(const struct launch *l, int n_rows, struct dmat x, struct dmat y) {
    launch_node(convert, dim3(pieces_of(y.width), n_rows), THREADS, 0, l->stream, x, y,
                lies_in_fours(x) && lies_in_fours(y));
}

void launch_order_columns(const struct launch *l, int n_rows, struct dmat x, const int32_t *order, struct dmat y) {
    launch_node(order_columns, dim3((y.width + THREADS - 1) / THREADS, n_rows), THREADS, 0, l->stream, x, order, y);
}
