/* head_types.h - head.h's types and functions for numbers of type REAL. */

/* Rows of all texts, one text after the other. */
struct NAME(batch) {
    int n_texts;
    const int64_t *start;      // [n_texts + 1]: first row of each text
    const REAL *taps, *embed;  // [rows, shape.taps], [rows, hidden]
    struct NAME(labels) label; // [rows]: of the draft's vocabulary
    const bool *counts;        // [rows]: whether a row has a label that the draft can say
};

/* What of a step backward needs again. */
struct NAME(head_step) {
    REAL *g, *g_inverse, *g_norm, *qkv, *lse, *attended, *x, *x_inverse, *x_norm, *gate_up, *act, *y, *y_inverse,
        *y_norm, *dy, *dqkv;
    // of a predictor: the state that it reads; q and k before their norms, v; the gate, and what it lets through
    REAL *state, *state_inverse, *state_norm, *raw, *q_inverse, *k_inverse, *gate, *gated;
};

struct NAME(head) {
    struct head_shape shape;
    const struct NAME(math) * math;
    int steps;
    int64_t max_rows;
    REAL decay;                   // a step's loss counts this times that of the step before
    REAL *weight, *grad;          // [head_size]
    const REAL *lm_head;          // [vocab, hidden] of a predictor: the caller's, who sets it
    double loss[MOST_HEAD_STEPS]; // of the last batch, each a mean over its rows
    double total;                 // their weighted mean
    int32_t *guess;               // [steps, max_rows]: what the rows say, of head_guess

    REAL *memory; // all that follows, and what is behind it
    REAL *turn, *embed_norm, *embed_inverse, *logits, *row_weight, *row_loss;
    REAL *of_token, *dof_token; // what of q, k and v (a predictor: of g) comes of the row's token
    REAL *dact, *dgate_up, *dnorm, *dx, *dattended, *dg, *dgate, *draw, *dgated;
    struct NAME(head_step) step[MOST_HEAD_STEPS];
};

/* Weights are zero: they are the caller's to fill. ERR_MEMORY says how much max_rows rows would take. */
enum status NAME(head_init)(struct NAME(head) * h, const struct head_shape *shape, const struct NAME(math) * math,
                            int steps, int64_t max_rows, struct error *err);
void NAME(head_release)(struct NAME(head) * h); // zeroed is fine

/* Called by all workers: losses and the gradients of their mean. The batch has at most max_rows rows. */
void NAME(head_train)(struct NAME(head) * h, const struct worker *w, const struct NAME(batch) * b);

/* Likewise: only what each row finds most probable in each step, of the draft's vocabulary. */
void NAME(head_guess)(struct NAME(head) * h, const struct worker *w, const struct NAME(batch) * b);
