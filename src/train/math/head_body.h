/* head_body.h - head_types.h's functions, included for each REAL. Products and their gradients:
 *     y = x W^T      dx = dy W      dW = dy^T x */
typedef struct NAME(head) head;
typedef struct NAME(matrix) matrix;

// ---- memory -----------------------------------------------------------------------------------------------------

/* Hands out pieces; with at NULL it only counts. */
struct pieces {
    REAL *at;
    int64_t n;
};

static REAL *piece(struct pieces *p, int64_t rows, int64_t width) {
    REAL *at = p->at ? p->at + p->n : NULL;
    p->n += (rows * width + 15) / 16 * 16;
    return at;
}

static void place_step(struct pieces *p, const struct head_shape *s, int64_t n, struct NAME(head_step) * t) {
    int64_t q = (int64_t)s->n_heads * s->head_dim, qkv = head_rows(s, HEAD_QKV);
    t->g = piece(p, n, s->hidden), t->g_inverse = piece(p, n, 1), t->g_norm = piece(p, n, s->hidden);
    t->qkv = piece(p, n, qkv), t->lse = piece(p, n, s->n_heads), t->attended = piece(p, n, q);
    t->x = piece(p, n, s->hidden), t->x_inverse = piece(p, n, 1), t->x_norm = piece(p, n, s->hidden);
    t->gate_up = piece(p, n, 2 * s->ffn), t->act = piece(p, n, s->ffn);
    t->y = piece(p, n, s->hidden), t->y_inverse = piece(p, n, 1), t->y_norm = piece(p, n, s->hidden);
    t->dy = piece(p, n, s->hidden), t->dqkv = piece(p, n, qkv);
    if (s->kind != HEAD_MTP)
        return;
    t->state = piece(p, n, s->hidden), t->state_inverse = piece(p, n, 1), t->state_norm = piece(p, n, s->hidden);
    t->raw = piece(p, n, qkv), t->q_inverse = piece(p, n, s->n_heads), t->k_inverse = piece(p, n, s->n_kv_heads);
    t->gate = piece(p, n, q), t->gated = piece(p, n, q);
}

/* Of of_token. */
static int64_t token_width(const struct head_shape *s) {
    return s->kind == HEAD_MTP ? s->hidden : head_rows(s, HEAD_QKV);
}

static void place(struct pieces *p, head *h) {
    const struct head_shape *s = &h->shape;
    int64_t n = h->max_rows, q = (int64_t)s->n_heads * s->head_dim, qkv = head_rows(s, HEAD_QKV);
    h->weight = piece(p, head_size(s), 1), h->grad = piece(p, head_size(s), 1);
    h->turn = piece(p, n, s->rope_dim), h->logits = piece(p, n, s->vocab);
    h->embed_norm = piece(p, n, s->hidden), h->embed_inverse = piece(p, n, 1);
    h->of_token = piece(p, n, token_width(s)), h->dof_token = piece(p, n, token_width(s));
    h->row_weight = piece(p, n, 1), h->row_loss = piece(p, n, 1);
    h->dact = piece(p, n, s->ffn), h->dgate_up = piece(p, n, 2 * s->ffn);
    h->dnorm = piece(p, n, s->hidden), h->dx = piece(p, n, s->hidden), h->dattended = piece(p, n, q);
    h->dg = piece(p, n, s->hidden);
    if (s->kind == HEAD_MTP)
        h->dgate = piece(p, n, q), h->draw = piece(p, n, qkv), h->dgated = piece(p, n, q);
    for (int i = 0; i < h->steps; i++)
        place_step(p, s, n, &h->step[i]);
}

enum status NAME(head_init)(head *h, const struct head_shape *shape, const struct NAME(math) * math, int steps,
                            int64_t max_rows, struct error *err) {
    struct pieces count = {0};
    *h = (head){.shape = *shape, .math = math, .steps = steps, .max_rows = max_rows, .decay = (REAL)0.85};
    BUG_IF(steps < 1 || steps > MOST_HEAD_STEPS || max_rows < 1);
    place(&count, h);
    h->memory = calloc((size_t)count.n, sizeof(REAL));
    h->guess = calloc((size_t)steps * (size_t)max_rows, sizeof *h->guess);
    if (!h->memory || !h->guess)
        return fail(err, ERR_MEMORY, "training: no memory for %lld rows of %d steps, which take %.1f GB",
                    (long long)max_rows, steps, (double)count.n * sizeof(REAL) * 1e-9);
    place(&(struct pieces){.at = h->memory}, h);
    return OK;
}

void NAME(head_release)(head *h) {
    free(h->memory);
    free(h->guess);
    *h = (head){0};
}

// ---- products ---------------------------------------------------------------------------------------------------

static matrix rows_of(const REAL *at, int64_t rows, int64_t cols) { return (matrix){(REAL *)at, rows, cols, cols, 1}; }
static matrix turned(matrix m) { return (matrix){m.at, m.cols, m.rows, m.col_stride, m.row_stride}; }

/* Columns [first, first + n) of a tensor, n 0: all; of the weights or their gradients. */
static matrix tensor_of(const head *h, REAL *base, enum head_tensor t, int64_t first, int64_t n) {
    matrix m = rows_of(base + head_at(&h->shape, t), head_rows(&h->shape, t), head_cols(&h->shape, t));
    m.at += first;
    m.cols = n ? n : m.cols;
    return m;
}

/* A product of n rows with columns [first, first + cols) of a tensor. */
struct linear {
    enum head_tensor tensor;
    int64_t n, first, cols;
    bool adds; // backward: to dx
};

static matrix weight_of(const head *h, struct linear l) {
    if (l.tensor == HEAD_LM_HEAD && h->lm_head)
        return rows_of(h->lm_head, h->shape.vocab, h->shape.hidden);
    return tensor_of(h, h->weight, l.tensor, l.first, l.cols);
}

static void linear(const head *h, const struct worker *w, struct linear l, const REAL *x, REAL *y) {
    matrix weight = weight_of(h, l), a = rows_of(x, l.n, weight.cols);
    matrix b = turned(weight), c = rows_of(y, l.n, weight.rows);
    h->math->product(w, &c, false, &a, &b);
}

/* dx = dy W, and dW += dy^T x where it is the head's. */
static void linear_back(const head *h, const struct worker *w, struct linear l, const REAL *x, const REAL *dy,
                        REAL *dx) {
    matrix weight = weight_of(h, l), d = rows_of(dy, l.n, weight.rows), dt = turned(d),
           a = rows_of(x, l.n, weight.cols);
    if (dx) {
        matrix c = rows_of(dx, l.n, weight.cols);
        h->math->product(w, &c, l.adds, &d, &weight);
    }
    if (l.tensor == HEAD_LM_HEAD && h->lm_head)
        return;
    matrix grad = tensor_of(h, h->grad, l.tensor, l.first, l.cols);
    h->math->product(w, &grad, true, &dt, &a);
}

static const REAL *vector(const head *h, enum head_tensor t) { return h->weight + head_at(&h->shape, t); }
static REAL *vector_grad(const head *h, enum head_tensor t) { return h->grad + head_at(&h->shape, t); }

static struct heads whole(int64_t n, int64_t width) { return (struct heads){n, width, 1, width}; }

static void clear(const struct worker *w, int64_t n, REAL *x) {
    int64_t first, end;
    worker_share(w, n, 16, &first, &end);
    memset(x + first, 0, (size_t)(end - first) * sizeof *x);
}

// ---- forward ----------------------------------------------------------------------------------------------------

static int64_t n_rows(const struct NAME(batch) * b) { return b->start[b->n_texts]; }

/* Cosines and sines of each row's place in its text. */
static void make_turns(head *h, const struct worker *w, const struct NAME(batch) * b) {
    int64_t r, end, half = h->shape.rope_dim / 2;
    int text = 0;
    for (worker_share(w, n_rows(b), 1, &r, &end); r < end; r++) {
        while (r >= b->start[text + 1])
            text++;
        for (int64_t i = 0; i < half; i++) {
            double angle = (double)(r - b->start[text]) * pow(h->shape.rope_theta, -(double)i / (double)half);
            h->turn[r * 2 * half + i] = (REAL)cos(angle);
            h->turn[r * 2 * half + half + i] = (REAL)sin(angle);
        }
    }
}

/* Row p of a text gets row p - 1 of `from`, the first row zeros; or row p + 1 where back, the last row zeros. */
static void shift(const struct worker *w, const struct NAME(batch) * b, int64_t width, const REAL *from, bool back,
                  REAL *to) {
    int64_t text, end;
    for (worker_share(w, b->n_texts, 1, &text, &end); text < end; text++) {
        int64_t first = b->start[text], n = b->start[text + 1] - first;
        size_t bytes = (size_t)(n - 1) * (size_t)width * sizeof *to;
        if (n == 0)
            continue;
        memcpy(to + (first + !back) * width, from + (first + back) * width, bytes);
        memset(to + (back ? first + n - 1 : first) * width, 0, (size_t)width * sizeof *to);
    }
}

static struct NAME(attention) attention_of(const head *h, const struct NAME(batch) * b, int s, const REAL **qkv) {
    const struct head_shape *p = &h->shape;
    for (int i = 0; i <= s; i++)
        qkv[i] = h->step[i].qkv;
    return (struct NAME(attention)){p->n_heads, p->n_kv_heads,       p->head_dim,   s, b->n_texts, b->start,
                                    qkv,        h->step[s].attended, h->step[s].lse};
}

/* From h->dattended to the gradients of what step s attends to. */
static void attend_back(head *h, const struct worker *w, const struct NAME(batch) * b, int s) {
    const REAL *all[MOST_HEAD_STEPS];
    REAL *dqkv[MOST_HEAD_STEPS];
    struct NAME(attention) a = attention_of(h, b, s, all);
    for (int i = 0; i <= s; i++)
        dqkv[i] = h->step[i].dqkv;
    h->math->attend_back(w, &a, h->dattended, dqkv);
    worker_meet(w);
}

static void turn(const head *h, const struct worker *w, int64_t n, REAL sign, REAL *qkv) {
    const struct head_shape *s = &h->shape;
    struct heads heads = {n, head_rows(s, HEAD_QKV), s->n_heads + s->n_kv_heads, s->head_dim};
    h->math->rope(w, heads, s->rope_dim, h->turn, sign, qkv);
}

static void ffn_forward(head *h, const struct worker *w, int64_t n, int s) {
    struct NAME(head_step) *t = &h->step[s];
    int64_t H = h->shape.hidden;
    REAL eps = (REAL)h->shape.eps;
    h->math->norm(w, whole(n, H), t->x, vector(h, HEAD_FFN_NORM), eps, t->x_norm, t->x_inverse);
    worker_meet(w);
    linear(h, w, (struct linear){.tensor = HEAD_GATE_UP, .n = n}, t->x_norm, t->gate_up);
    worker_meet(w);
    h->math->glu(w, n, h->shape.ffn, t->gate_up, t->act);
    worker_meet(w);
    linear(h, w, (struct linear){.tensor = HEAD_DOWN, .n = n}, t->act, t->y);
    worker_meet(w);
    h->math->add(w, n * H, t->y, t->x);
    worker_meet(w);
    h->math->norm(w, whole(n, H), t->y, vector(h, HEAD_NORM), eps, t->y_norm, t->y_inverse);
    worker_meet(w);
    linear(h, w, (struct linear){.tensor = HEAD_LM_HEAD, .n = n}, t->y_norm, h->logits);
    worker_meet(w);
}

#include "train/math/head_eagle3.h"
#include "train/math/head_mtp.h"

static void begin_forward(head *h, const struct worker *w, const struct NAME(batch) * b) {
    make_turns(h, w, b);
    (h->shape.kind == HEAD_MTP ? mtp_begin : eagle3_begin)(h, w, b);
}

static void step_forward(head *h, const struct worker *w, const struct NAME(batch) * b, int s) {
    (h->shape.kind == HEAD_MTP ? mtp_forward : eagle3_forward)(h, w, b, s);
    ffn_forward(h, w, n_rows(b), s);
}

#include "train/math/head_back.h"
