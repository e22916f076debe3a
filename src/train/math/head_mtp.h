/* head_mtp.h - part of head_body.h: what a next-token predictor does before its FFN, forward and backward.
 *     g = fc [norm(embed), norm(state)];  x = g + Wo (attention(q, k, v) * sigmoid(gate))
 *     q, k, v, gate of norm(g); q and k with a norm on each head
 * The state is the target's behind its last norm, later y_norm of the row before. */

static struct heads query_heads(const struct head_shape *s, int64_t n) {
    return (struct heads){n, head_rows(s, HEAD_QKV), s->n_heads, s->head_dim};
}
static struct heads key_heads(const struct head_shape *s, int64_t n) {
    return (struct heads){n, head_rows(s, HEAD_QKV), s->n_kv_heads, s->head_dim};
}

/* Values have no norm. */
static void copy_values(const struct worker *w, const struct head_shape *s, int64_t n, const REAL *from, REAL *to) {
    int64_t r, end, width = head_rows(s, HEAD_QKV), first = (int64_t)(s->n_heads + s->n_kv_heads) * s->head_dim;
    for (worker_share(w, n, 1, &r, &end); r < end; r++)
        memcpy(to + r * width + first, from + r * width + first, (size_t)(width - first) * sizeof *to);
}

/* What of g comes of the tokens, which is so in each step. */
static void mtp_begin(head *h, const struct worker *w, const struct NAME(batch) * b) {
    int64_t n = n_rows(b), H = h->shape.hidden;
    h->math->norm(w, whole(n, H), b->embed, vector(h, HEAD_EMBED_NORM), (REAL)h->shape.eps, h->embed_norm,
                  h->embed_inverse);
    worker_meet(w);
    linear(h, w, (struct linear){.tensor = HEAD_FC, .n = n, .cols = H}, h->embed_norm, h->of_token);
    worker_meet(w);
}

static const REAL *state_of(const head *h, const struct NAME(batch) * b, int s) {
    return s ? h->step[s].state : b->taps;
}

static void join(head *h, const struct worker *w, const struct NAME(batch) * b, int s) {
    struct NAME(head_step) *t = &h->step[s];
    int64_t n = n_rows(b), H = h->shape.hidden;
    if (s > 0) {
        shift(w, b, H, h->step[s - 1].y_norm, false, t->state);
        worker_meet(w);
    }
    h->math->norm(w, whole(n, H), state_of(h, b, s), vector(h, HEAD_HIDDEN_NORM), (REAL)h->shape.eps, t->state_norm,
                  t->state_inverse);
    worker_meet(w);
    linear(h, w, (struct linear){.tensor = HEAD_FC, .n = n, .first = H, .cols = H}, t->state_norm, t->g);
    worker_meet(w);
    h->math->add(w, n * H, t->g, h->of_token);
    worker_meet(w);
}

static void project(head *h, const struct worker *w, int64_t n, int s) {
    struct NAME(head_step) *t = &h->step[s];
    const struct head_shape *p = &h->shape;
    int64_t keys = (int64_t)p->n_heads * p->head_dim;
    REAL eps = (REAL)p->eps;
    h->math->norm(w, whole(n, p->hidden), t->g, vector(h, HEAD_INPUT_NORM), eps, t->g_norm, t->g_inverse);
    worker_meet(w);
    linear(h, w, (struct linear){.tensor = HEAD_QKV, .n = n}, t->g_norm, t->raw);
    linear(h, w, (struct linear){.tensor = HEAD_GATE, .n = n}, t->g_norm, t->gate);
    worker_meet(w);
    h->math->norm(w, query_heads(p, n), t->raw, vector(h, HEAD_Q_NORM), eps, t->qkv, t->q_inverse);
    h->math->norm(w, key_heads(p, n), t->raw + keys, vector(h, HEAD_K_NORM), eps, t->qkv + keys, t->k_inverse);
    copy_values(w, p, n, t->raw, t->qkv);
    worker_meet(w);
    turn(h, w, n, 1, t->qkv);
    worker_meet(w);
}

static void mtp_forward(head *h, const struct worker *w, const struct NAME(batch) * b, int s) {
    struct NAME(head_step) *t = &h->step[s];
    int64_t n = n_rows(b), q = (int64_t)h->shape.n_heads * h->shape.head_dim;
    const REAL *all[MOST_HEAD_STEPS];
    struct NAME(attention) a = attention_of(h, b, s, all);
    join(h, w, b, s);
    project(h, w, n, s);
    h->math->attend(w, &a);
    worker_meet(w);
    h->math->gate(w, n * q, t->gate, t->attended, t->gated);
    worker_meet(w);
    linear(h, w, (struct linear){.tensor = HEAD_OUT, .n = n}, t->gated, t->x);
    worker_meet(w);
    h->math->add(w, n * h->shape.hidden, t->x, t->g);
    worker_meet(w);
}

// ---- backward ---------------------------------------------------------------------------------------------------

/* From t->dqkv and h->dgate to the gradient of g, added to h->dx. */
static void project_back(head *h, const struct worker *w, int64_t n, const struct NAME(head_step) * t) {
    const struct head_shape *p = &h->shape;
    struct heads queries = query_heads(p, n), keys = key_heads(p, n), g = whole(n, p->hidden);
    int64_t at = (int64_t)p->n_heads * p->head_dim;
    turn(h, w, n, -1, t->dqkv);
    clear(w, n * queries.stride, h->draw);
    worker_meet(w);
    h->math->norm_back(w, queries, t->raw, t->q_inverse, vector(h, HEAD_Q_NORM), t->dqkv, h->draw);
    h->math->norm_back(w, keys, t->raw + at, t->k_inverse, vector(h, HEAD_K_NORM), t->dqkv + at, h->draw + at);
    h->math->norm_back_weight(w, queries, t->raw, t->q_inverse, t->dqkv, vector_grad(h, HEAD_Q_NORM));
    h->math->norm_back_weight(w, keys, t->raw + at, t->k_inverse, t->dqkv + at, vector_grad(h, HEAD_K_NORM));
    copy_values(w, p, n, t->dqkv, h->draw);
    worker_meet(w);
    linear_back(h, w, (struct linear){.tensor = HEAD_QKV, .n = n}, t->g_norm, h->draw, h->dnorm);
    linear_back(h, w, (struct linear){.tensor = HEAD_GATE, .n = n, .adds = true}, t->g_norm, h->dgate, h->dnorm);
    worker_meet(w);
    h->math->norm_back(w, g, t->g, t->g_inverse, vector(h, HEAD_INPUT_NORM), h->dnorm, h->dx);
    h->math->norm_back_weight(w, g, t->g, t->g_inverse, h->dnorm, vector_grad(h, HEAD_INPUT_NORM));
    worker_meet(w);
}

/* From h->dx, the gradient of g, to that of what the step before carried. */
static void join_back(head *h, const struct worker *w, const struct NAME(batch) * b, int s) {
    const struct NAME(head_step) *t = &h->step[s], *before = s ? &h->step[s - 1] : NULL;
    int64_t n = n_rows(b), H = h->shape.hidden;
    h->math->add(w, n * H, h->dof_token, h->dx);
    linear_back(h, w, (struct linear){.tensor = HEAD_FC, .n = n, .first = H, .cols = H}, t->state_norm, h->dx,
                h->dnorm);
    worker_meet(w);
    h->math->norm_back_weight(w, whole(n, H), state_of(h, b, s), t->state_inverse, h->dnorm,
                              vector_grad(h, HEAD_HIDDEN_NORM));
    clear(w, n * H, h->dx);
    worker_meet(w);
    if (!before)
        return;
    h->math->norm_back(w, whole(n, H), t->state, t->state_inverse, vector(h, HEAD_HIDDEN_NORM), h->dnorm, h->dx);
    worker_meet(w);
    shift(w, b, H, h->dx, true, h->dg);
    worker_meet(w);
    h->math->norm_back(w, whole(n, H), before->y, before->y_inverse, vector(h, HEAD_NORM), h->dg, before->dy);
    h->math->norm_back_weight(w, whole(n, H), before->y, before->y_inverse, h->dg, vector_grad(h, HEAD_NORM));
    worker_meet(w);
}

static void mtp_back(head *h, const struct worker *w, const struct NAME(batch) * b, int s) {
    const struct NAME(head_step) *t = &h->step[s];
    int64_t n = n_rows(b), q = (int64_t)h->shape.n_heads * h->shape.head_dim;
    linear_back(h, w, (struct linear){.tensor = HEAD_OUT, .n = n}, t->gated, h->dx, h->dgated);
    worker_meet(w);
    h->math->gate_back(w, n * q, t->gate, t->attended, h->dgated, h->dgate, h->dattended);
    worker_meet(w);
    attend_back(h, w, b, s);
    project_back(h, w, n, t);
    join_back(h, w, b, s);
}

static void mtp_end_back(head *h, const struct worker *w, const struct NAME(batch) * b) {
    int64_t n = n_rows(b), H = h->shape.hidden;
    linear_back(h, w, (struct linear){.tensor = HEAD_FC, .n = n, .cols = H}, h->embed_norm, h->dof_token, h->dnorm);
    worker_meet(w);
    h->math->norm_back_weight(w, whole(n, H), b->embed, h->embed_inverse, h->dnorm, vector_grad(h, HEAD_EMBED_NORM));
    worker_meet(w);
}
