/* math_types.h - math.h's types and functions for one type of numbers, REAL, with names NAME(x).
 *
 * Rows of a value lie one after the other, [n, width]. Functions that take a worker are called by all workers of a
 * crew; each does its share, and worker_meet comes before others read what was written. Gradients of weights are added
 * to.
 *
 * A batch is texts of several lengths, row after row; start [n_texts + 1] are their first rows. In a chain of steps 0,
 * 1, 2 ... (attend), row p of step s belongs to the chain that began at row p - s. */

/* Element (i, j) is at[i * row_stride + j * col_stride]: so a transposed one is a matrix, too. */
struct NAME(matrix) {
    REAL *at;
    int64_t rows, cols, row_stride, col_stride;
};

/* What one step of a chain attends to. qkv[i] is of step i, [rows, width]: n_heads queries, then n_kv_heads keys and
 * values, each head_dim wide; keys and queries are turned already.
 *     row p of step s sees  row j of step 0 for j <= p - s, and row p - s + i of step i for i = 1 .. s
 * which is what a chain sees that was begun at row p - s. */
struct NAME(attention) {
    int n_heads, n_kv_heads, head_dim, step;
    int n_texts;
    const int64_t *start;
    const REAL *const *qkv; // [step + 1]
    REAL *out, *lse;        // [rows, n_heads * head_dim]; [rows, n_heads]: log of the sum that weights were divided by
};

/* What the rows of a batch should have said: up to n_labels tokens with their probabilities, which sum to 1. */
struct NAME(labels) {
    int n;
    const int32_t *token; // [rows, n]
    const REAL *share;    // [rows, n]
};

struct NAME(adamw) {
    REAL lr, beta1, beta2, eps, weight_decay;
    int64_t step; // from 1
};

struct NAME(math) {
    const char *name;

    /* c = a b, or c += a b. c->col_stride is 1. */
    void (*product)(const struct worker *w, const struct NAME(matrix) * c, bool add, const struct NAME(matrix) * a,
                    const struct NAME(matrix) * b);

    /* Of each head y = x / rms(x) * weight; inverse [n, n_heads] becomes 1 / rms(x), rms(x) = sqrt(mean(x^2) + eps).
     * weight is [width]. */
    void (*norm)(const struct worker *w, struct heads h, const REAL *x, const REAL *weight, REAL eps, REAL *y,
                 REAL *inverse);
    void (*norm_back)(const struct worker *w, struct heads h, const REAL *x, const REAL *inverse, const REAL *weight,
                      const REAL *dy, REAL *dx); // added to dx
    void (*norm_back_weight)(const struct worker *w, struct heads h, const REAL *x, const REAL *inverse, const REAL *dy,
                             REAL *dweight);

    /* Turns the first `turned` channels of each head in place, as Llama: channel i with i + turned / 2. turn
     * [n, turned] holds the row's cosines, then its sines. Backward is the turn back: sign -1. */
    void (*rope)(const struct worker *w, struct heads h, int turned, const REAL *turn, REAL sign, REAL *x);

    /* y = silu(gate) * up, of rows [gate: width | up: width]. */
    void (*glu)(const struct worker *w, int64_t n, int64_t width, const REAL *gate_up, REAL *y);
    void (*glu_back)(const struct worker *w, int64_t n, int64_t width, const REAL *gate_up, const REAL *dy,
                     REAL *dgate_up);

    /* y = x * sigmoid(gate). */
    void (*gate)(const struct worker *w, int64_t n, const REAL *gate, const REAL *x, REAL *y);
    void (*gate_back)(const struct worker *w, int64_t n, const REAL *gate, const REAL *x, const REAL *dy, REAL *dgate,
                      REAL *dx);

    /* Cross entropy. loss [n] = weight * (log sum exp(x) - sum share * x[token]); x becomes its gradient. */
    void (*entropy)(const struct worker *w, int64_t n, int64_t width, REAL *x, const struct NAME(labels) * labels,
                    const REAL *weight, REAL *loss);

    void (*attend)(const struct worker *w, const struct NAME(attention) * a);
    /* dqkv[i] [rows, width] like qkv: queries of the step are set, keys and values are added to. */
    void (*attend_back)(const struct worker *w, const struct NAME(attention) * a, const REAL *dout, REAL *const *dqkv);

    /* a += b. */
    void (*add)(const struct worker *w, int64_t n, REAL *a, const REAL *b);

    /* Adam with decoupled decay (Loshchilov and Hutter 2019), of gradients times `scale`. */
    void (*adamw)(const struct worker *w, const struct NAME(adamw) * o, int64_t n, REAL scale, const REAL *grad,
                  REAL *m, REAL *v, REAL *weight);
};
