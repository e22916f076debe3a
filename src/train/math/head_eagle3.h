/* head_eagle3.h - part of head_body.h: what an EAGLE-3 head does before its FFN, forward and backward.
 *     g = fc taps, later the y of the row before;  x = g + Wo attention([norm(embed), norm(g)]) */

/* What of the queries, keys and values comes of the tokens, which is so in each step; and the first g. */
static void eagle3_begin(head *h, const struct worker *w, const struct NAME(batch) * b) {
    int64_t n = n_rows(b), H = h->shape.hidden;
    h->math->norm(w, whole(n, H), b->embed, vector(h, HEAD_EMBED_NORM), (REAL)h->shape.eps, h->embed_norm,
                  h->embed_inverse);
    linear(h, w, (struct linear){.tensor = HEAD_FC, .n = n}, b->taps, h->step[0].g);
    worker_meet(w);
    linear(h, w, (struct linear){.tensor = HEAD_QKV, .n = n, .cols = H}, h->embed_norm, h->of_token);
    worker_meet(w);
}

static void eagle3_forward(head *h, const struct worker *w, const struct NAME(batch) * b, int s) {
    struct NAME(head_step) *t = &h->step[s];
    int64_t n = n_rows(b), H = h->shape.hidden, qkv = head_rows(&h->shape, HEAD_QKV);
    const REAL *all[MOST_HEAD_STEPS];
    struct NAME(attention) a = attention_of(h, b, s, all);
    if (s > 0) {
        shift(w, b, H, h->step[s - 1].y, false, t->g);
        worker_meet(w);
    }
    h->math->norm(w, whole(n, H), t->g, vector(h, HEAD_HIDDEN_NORM), (REAL)h->shape.eps, t->g_norm, t->g_inverse);
    worker_meet(w);
    linear(h, w, (struct linear){.tensor = HEAD_QKV, .n = n, .first = H, .cols = H}, t->g_norm, t->qkv);
    worker_meet(w);
    h->math->add(w, n * qkv, t->qkv, h->of_token);
    worker_meet(w);
    turn(h, w, n, 1, t->qkv);
    worker_meet(w);
    h->math->attend(w, &a);
    worker_meet(w);
    linear(h, w, (struct linear){.tensor = HEAD_OUT, .n = n}, t->attended, t->x);
    worker_meet(w);
    h->math->add(w, n * H, t->x, t->g);
    worker_meet(w);
}

/* From h->dx to the gradient of g, in the same place. */
static void eagle3_attention_back(head *h, const struct worker *w, const struct NAME(batch) * b, int s) {
    const struct NAME(head_step) *t = &h->step[s];
    int64_t n = n_rows(b), H = h->shape.hidden, qkv = head_rows(&h->shape, HEAD_QKV);
    linear_back(h, w, (struct linear){.tensor = HEAD_OUT, .n = n}, t->attended, h->dx, h->dattended);
    worker_meet(w);
    attend_back(h, w, b, s);
    turn(h, w, n, -1, t->dqkv);
    worker_meet(w);
    h->math->add(w, n * qkv, h->dof_token, t->dqkv);
    linear_back(h, w, (struct linear){.tensor = HEAD_QKV, .n = n, .first = H, .cols = H}, t->g_norm, t->dqkv, h->dnorm);
    worker_meet(w);
    h->math->norm_back(w, whole(n, H), t->g, t->g_inverse, vector(h, HEAD_HIDDEN_NORM), h->dnorm, h->dx);
    h->math->norm_back_weight(w, whole(n, H), t->g, t->g_inverse, h->dnorm, vector_grad(h, HEAD_HIDDEN_NORM));
    worker_meet(w);
}

static void eagle3_back(head *h, const struct worker *w, const struct NAME(batch) * b, int s) {
    int64_t H = h->shape.hidden;
    eagle3_attention_back(h, w, b, s);
    if (s == 0)
        return;
    shift(w, b, H, h->dx, true, h->dg);
    worker_meet(w);
    h->math->add(w, n_rows(b) * H, h->step[s - 1].dy, h->dg);
    worker_meet(w);
}

static void eagle3_end_back(head *h, const struct worker *w, const struct NAME(batch) * b) {
    int64_t n = n_rows(b), H = h->shape.hidden;
    linear_back(h, w, (struct linear){.tensor = HEAD_FC, .n = n}, b->taps, h->dx, NULL);
    linear_back(h, w, (struct linear){.tensor = HEAD_QKV, .n = n, .cols = H}, h->embed_norm, h->dof_token, h->dnorm);
    worker_meet(w);
    h->math->norm_back_weight(w, whole(n, H), b->embed, h->embed_inverse, h->dnorm, vector_grad(h, HEAD_EMBED_NORM));
    worker_meet(w);
}
