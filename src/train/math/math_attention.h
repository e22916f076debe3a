/* math_attention.h - part of math_body.h: attention of chains, a block of queries at a time; weights are not kept but
 * computed again backward, from the log of their sum (Dao et al. 2022). A unit of work is a text and head; backward a
 * text and KV head, whose gradients are sums over its query heads. */

enum { QUERIES = 64 };

/* Queries of rows [first, first + n) of a text against all that they see. */
struct view {
    int64_t text, first, n, n_keys; // keys of step 0: those of the last row
    int64_t width, kv;              // of qkv; columns before the head's keys
    int head, kv_head;
    REAL factor;
    REAL *score; // [n, n_keys + step]: those of step 0, then one of each later step
};

static int64_t seen(const struct NAME(attention) * a, int64_t row) { return row >= a->step ? row - a->step + 1 : 0; }

static const REAL *key_row(const struct NAME(attention) * a, const struct view *v, int i, int64_t row) {
    return a->qkv[i] + (v->text + row) * v->width + (a->n_heads + v->kv_head) * a->head_dim;
}
static const REAL *value_row(const struct NAME(attention) * a, const struct view *v, int i, int64_t row) {
    return key_row(a, v, i, row) + a->n_kv_heads * a->head_dim;
}
static const REAL *query_row(const struct NAME(attention) * a, const struct view *v, int64_t row) {
    return a->qkv[a->step] + (v->text + row) * v->width + v->head * a->head_dim;
}

static struct view view_of(const struct NAME(attention) * a, int text, int head, REAL *score) {
    return (struct view){.text = a->start[text],
                         .width = (a->n_heads + 2 * a->n_kv_heads) * a->head_dim,
                         .head = head,
                         .kv_head = head / (a->n_heads / a->n_kv_heads),
                         .factor = 1 / SQRT((REAL)a->head_dim),
                         .score = score};
}

static void view_move(const struct NAME(attention) * a, struct view *v, int64_t first, int64_t length) {
    v->first = first;
    v->n = length - first < QUERIES ? length - first : QUERIES;
    v->n_keys = seen(a, first + v->n - 1);
}

static struct NAME(matrix) rows_of(const REAL *at, int64_t rows, int64_t cols, int64_t stride) {
    return (struct NAME(matrix)){(REAL *)at, rows, cols, stride, 1};
}
static struct NAME(matrix) turned(struct NAME(matrix) m) {
    return (struct NAME(matrix)){m.at, m.cols, m.rows, m.col_stride, m.row_stride};
}

/* Products of these rows with keys or values of all that they see, into out [n, n_keys + step]. */
static void against(const struct NAME(attention) * a, const struct view *v, REAL *packs, const REAL *x, int64_t stride,
                    bool values, REAL *out) {
    int64_t all = v->n_keys + a->step;
    if (v->n_keys > 0) {
        struct NAME(matrix) c = rows_of(out, v->n, v->n_keys, all), q = rows_of(x, v->n, a->head_dim, stride);
        const REAL *first = values ? value_row(a, v, 0, 0) : key_row(a, v, 0, 0);
        struct NAME(matrix) k = turned(rows_of(first, v->n_keys, a->head_dim, v->width));
        product_rows(packs, &c, false, &q, &k, 0, v->n);
    }
    for (int64_t r = 0; r < v->n; r++)
        for (int i = 1; i <= a->step; i++) {
            int64_t row = v->first + r - a->step + i;
            REAL *to = out + r * all + v->n_keys + i - 1;
            *to = 0;
            if (row >= 0)
                *to = dot(a->head_dim, x + r * stride, values ? value_row(a, v, i, row) : key_row(a, v, i, row));
        }
}

/* Scores become weights, given the log of their sum or, with lse NULL, to be summed; what is not seen becomes 0. */
static REAL weigh(const struct NAME(attention) * a, const struct view *v, int64_t r, const REAL *lse) {
    int64_t n = seen(a, v->first + r), all = v->n_keys + a->step;
    int64_t absent = v->first + r < a->step ? a->step - 1 - (v->first + r) : 0; // of later steps: before the text
    REAL *x = v->score + r * all, *late = x + v->n_keys, most = lse ? *lse : -INFINITY, sum = 0;
    for (int64_t j = 0; j < n; j++)
        x[j] *= v->factor;
    for (int64_t j = absent; j < a->step; j++)
        late[j] *= v->factor;
    if (!lse) {
        for (int64_t j = 0; j < n; j++)
            most = x[j] > most ? x[j] : most;
        for (int64_t j = absent; j < a->step; j++)
            most = late[j] > most ? late[j] : most;
    }
    for (int64_t j = 0; j < n; j++)
        x[j] = EXP(x[j] - most);
    for (int64_t j = absent; j < a->step; j++)
        late[j] = EXP(late[j] - most);
    for (int64_t j = 0; j < n; j++)
        sum += x[j];
    for (int64_t j = absent; j < a->step; j++)
        sum += late[j];
    memset(x + n, 0, (size_t)(v->n_keys - n) * sizeof *x);
    memset(late, 0, (size_t)absent * sizeof *x);
    if (lse)
        return *lse;
    for (int64_t j = 0; j < all; j++)
        x[j] /= sum;
    return most + LOG(sum);
}

static void attend_block(const struct NAME(attention) * a, const struct view *v, REAL *packs) {
    int64_t all = v->n_keys + a->step, out_width = a->n_heads * a->head_dim;
    REAL *out = a->out + (v->text + v->first) * out_width + v->head * a->head_dim;
    against(a, v, packs, query_row(a, v, v->first), v->width, false, v->score);
    for (int64_t r = 0; r < v->n; r++)
        a->lse[(v->text + v->first + r) * a->n_heads + v->head] = weigh(a, v, r, NULL);
    if (v->n_keys > 0) {
        struct NAME(matrix) o = rows_of(out, v->n, a->head_dim, out_width), p = rows_of(v->score, v->n, v->n_keys, all);
        struct NAME(matrix) values = rows_of(value_row(a, v, 0, 0), v->n_keys, a->head_dim, v->width);
        product_rows(packs, &o, false, &p, &values, 0, v->n);
    }
    for (int64_t r = 0; r < v->n; r++) {
        if (v->n_keys == 0)
            memset(out + r * out_width, 0, (size_t)a->head_dim * sizeof *out);
        for (int i = 1; i <= a->step; i++) {
            int64_t row = v->first + r - a->step + i;
            if (row >= 0)
                add_times(a->head_dim, v->score[r * all + v->n_keys + i - 1], value_row(a, v, i, row),
                          out + r * out_width);
        }
    }
}

static REAL *score_of(const struct worker *w) { return (REAL *)w->scratch + ROWS * DEPTH + COLS * DEPTH; }

static void attend(const struct worker *w, const struct NAME(attention) * a) {
    int64_t unit, end;
    for (worker_share(w, (int64_t)a->n_texts * a->n_heads, 1, &unit, &end); unit < end; unit++) {
        int text = (int)(unit / a->n_heads);
        int64_t length = a->start[text + 1] - a->start[text];
        struct view v = view_of(a, text, (int)(unit % a->n_heads), score_of(w));
        for (int64_t first = 0; first < length; first += QUERIES) {
            view_move(a, &v, first, length);
            attend_block(a, &v, w->scratch);
        }
    }
}

// ---- backward ---------------------------------------------------------------------------------------------------

/* Where the gradient of the key of (step i, row) is; that of its value stands n_kv_heads * head_dim behind it. */
static REAL *dkey_row(const struct NAME(attention) * a, const struct view *v, REAL *const *dqkv, int i, int64_t row) {
    return dqkv[i] + (v->text + row) * v->width + (a->n_heads + v->kv_head) * a->head_dim;
}

/* From weights and the gradients of weights to those of scores, in place of the latter. */
static void weigh_back(const struct NAME(attention) * a, const struct view *v, const REAL *dout, REAL *dscore) {
    int64_t all = v->n_keys + a->step, out_width = a->n_heads * a->head_dim;
    for (int64_t r = 0; r < v->n; r++) {
        const REAL *out = a->out + (v->text + v->first + r) * out_width + v->head * a->head_dim;
        REAL mean = dot(a->head_dim, dout + r * out_width, out);
        REAL *d = dscore + r * all, *p = v->score + r * all;
        for (int64_t j = 0; j < all; j++)
            d[j] = p[j] * (d[j] - mean) * v->factor;
    }
}

static void back_of_step_0(const struct NAME(attention) * a, const struct view *v, REAL *packs, const REAL *dout,
                           const REAL *dscore, REAL *const *dqkv) {
    int64_t all = v->n_keys + a->step, out_width = a->n_heads * a->head_dim, n_kv = a->n_kv_heads * a->head_dim;
    REAL *dq_at = dqkv[a->step] + (v->text + v->first) * v->width + v->head * a->head_dim;
    struct NAME(matrix) dq = rows_of(dq_at, v->n, a->head_dim, v->width), ds = rows_of(dscore, v->n, v->n_keys, all);
    if (v->n_keys == 0) {
        for (int64_t r = 0; r < v->n; r++)
            memset(dq_at + r * v->width, 0, (size_t)a->head_dim * sizeof *dq_at);
        return;
    }
    struct NAME(matrix) k = rows_of(key_row(a, v, 0, 0), v->n_keys, a->head_dim, v->width);
    struct NAME(matrix) dk = rows_of(dkey_row(a, v, dqkv, 0, 0), v->n_keys, a->head_dim, v->width), dv = dk;
    struct NAME(matrix) q = rows_of(query_row(a, v, v->first), v->n, a->head_dim, v->width);
    struct NAME(matrix) p = turned(rows_of(v->score, v->n, v->n_keys, all)), dst = turned(ds);
    struct NAME(matrix) d = rows_of(dout, v->n, a->head_dim, out_width);
    dv.at += n_kv;
    product_rows(packs, &dq, false, &ds, &k, 0, dq.rows);
    product_rows(packs, &dk, true, &dst, &q, 0, dk.rows);
    product_rows(packs, &dv, true, &p, &d, 0, dv.rows);
}

static void back_of_later(const struct NAME(attention) * a, const struct view *v, const REAL *dout, const REAL *dscore,
                          REAL *const *dqkv) {
    int64_t all = v->n_keys + a->step, out_width = a->n_heads * a->head_dim, hd = a->head_dim;
    for (int64_t r = 0; r < v->n; r++)
        for (int i = 1; i <= a->step; i++) {
            int64_t row = v->first + r - a->step + i, at = r * all + v->n_keys + i - 1;
            if (row < 0)
                continue;
            REAL *dk = dkey_row(a, v, dqkv, i, row);
            REAL *dq = dqkv[a->step] + (v->text + v->first + r) * v->width + v->head * hd;
            add_times(hd, dscore[at], key_row(a, v, i, row), dq);
            add_times(hd, dscore[at], query_row(a, v, v->first + r), dk);
            add_times(hd, v->score[at], dout + r * out_width, dk + a->n_kv_heads * hd);
        }
}

static void attend_back_block(const struct NAME(attention) * a, const struct view *v, REAL *packs, const REAL *dout,
                              REAL *const *dqkv) {
    int64_t out_width = a->n_heads * a->head_dim;
    const REAL *d = dout + (v->text + v->first) * out_width + v->head * a->head_dim;
    REAL *dscore = v->score + v->n * (v->n_keys + a->step);
    against(a, v, packs, query_row(a, v, v->first), v->width, false, v->score);
    for (int64_t r = 0; r < v->n; r++)
        weigh(a, v, r, &a->lse[(v->text + v->first + r) * a->n_heads + v->head]);
    against(a, v, packs, d, out_width, true, dscore);
    weigh_back(a, v, d, dscore);
    back_of_step_0(a, v, packs, d, dscore, dqkv);
    back_of_later(a, v, d, dscore, dqkv);
}

static void attend_back(const struct worker *w, const struct NAME(attention) * a, const REAL *dout, REAL *const *dqkv) {
    int64_t unit, end, group = a->n_heads / a->n_kv_heads;
    for (worker_share(w, (int64_t)a->n_texts * a->n_kv_heads, 1, &unit, &end); unit < end; unit++) {
        int text = (int)(unit / a->n_kv_heads);
        int64_t length = a->start[text + 1] - a->start[text];
        for (int64_t h = 0; h < group; h++) {
            struct view v = view_of(a, text, (int)(unit % a->n_kv_heads * group + h), score_of(w));
            for (int64_t first = 0; first < length; first += QUERIES) {
                view_move(a, &v, first, length);
                attend_back_block(a, &v, w->scratch, dout, dqkv);
            }
        }
    }
}
