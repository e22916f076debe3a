/* head_back.h - part of head_body.h: losses, the way back, and the whole. */

// ---- loss -------------------------------------------------------------------------------------------------------

/* Rows before the s-th of a text have no chain that began s rows before. */
static void weigh_rows(head *h, const struct NAME(batch) * b, int s) {
    REAL all = 0, own = 1;
    int64_t n = 0;
    for (int i = 0; i < h->steps; i++) {
        REAL share = i == 0 ? 1 : (REAL)pow((double)h->decay, i);
        all += share;
        own = i == s ? share : own;
    }
    for (int text = 0; text < b->n_texts; text++)
        for (int64_t r = b->start[text]; r < b->start[text + 1]; r++)
            n += h->row_weight[r] = b->counts[r] && r - b->start[text] >= s;
    for (int64_t r = 0; r < n_rows(b); r++)
        h->row_weight[r] *= n ? own / (all * (REAL)n) : 0;
    h->loss[s] = n ? all / own : 0; // by which the sum is to be multiplied
}

static void add_losses(head *h, int64_t n, int s) {
    double sum = 0;
    for (int64_t r = 0; r < n; r++)
        sum += (double)h->row_loss[r];
    h->loss[s] *= sum;
    h->total = (s ? h->total : 0) + sum;
}

/* The loss of the step, and its gradient down to what it carries. */
static void loss_step(head *h, const struct worker *w, const struct NAME(batch) * b, int s) {
    struct NAME(head_step) *t = &h->step[s];
    int64_t n = n_rows(b), H = h->shape.hidden;
    if (w->index == 0)
        weigh_rows(h, b, s);
    clear(w, n * H, t->dy);
    worker_meet(w);
    h->math->entropy(w, n, h->shape.vocab, h->logits, &b->label, h->row_weight, h->row_loss);
    worker_meet(w);
    if (w->index == 0)
        add_losses(h, n, s);
    linear_back(h, w, (struct linear){HEAD_LM_HEAD, n, 0, 0}, t->y_norm, h->logits, h->dnorm);
    worker_meet(w);
    h->math->norm_back(w, n, H, t->y, t->y_inverse, vector(h, HEAD_NORM), h->dnorm, t->dy);
    h->math->norm_back_weight(w, n, H, t->y, t->y_inverse, h->dnorm, vector_grad(h, HEAD_NORM));
    worker_meet(w);
}

// ---- backward ---------------------------------------------------------------------------------------------------

/* From the gradient of y, t->dy, to that of x, h->dx. */
static void ffn_back(head *h, const struct worker *w, int64_t n, const struct NAME(head_step) * t) {
    int64_t H = h->shape.hidden;
    linear_back(h, w, (struct linear){HEAD_DOWN, n, 0, 0}, t->act, t->dy, h->dact);
    clear(w, n * H, h->dx);
    worker_meet(w);
    h->math->glu_back(w, n, h->shape.ffn, t->gate_up, h->dact, h->dgate_up);
    h->math->add(w, n * H, h->dx, t->dy);
    worker_meet(w);
    linear_back(h, w, (struct linear){HEAD_GATE_UP, n, 0, 0}, t->x_norm, h->dgate_up, h->dnorm);
    worker_meet(w);
    h->math->norm_back(w, n, H, t->x, t->x_inverse, vector(h, HEAD_FFN_NORM), h->dnorm, h->dx);
    h->math->norm_back_weight(w, n, H, t->x, t->x_inverse, h->dnorm, vector_grad(h, HEAD_FFN_NORM));
    worker_meet(w);
}

/* From h->dx to the gradient of what the step read, in the same place. */
static void attention_back(head *h, const struct worker *w, const struct NAME(batch) * b, int s) {
    const struct NAME(head_step) *t = &h->step[s];
    int64_t n = n_rows(b), H = h->shape.hidden, qkv = head_rows(&h->shape, HEAD_QKV);
    const REAL *all[MOST_HEAD_STEPS];
    REAL *dqkv[MOST_HEAD_STEPS];
    struct NAME(attention) a = attention_of(h, b, s, all);
    for (int i = 0; i <= s; i++)
        dqkv[i] = h->step[i].dqkv;
    linear_back(h, w, (struct linear){HEAD_OUT, n, 0, 0}, t->attended, h->dx, h->dattended);
    worker_meet(w);
    h->math->attend_back(w, &a, h->dattended, dqkv);
    worker_meet(w);
    turn(h, w, n, -1, t->dqkv);
    worker_meet(w);
    h->math->add(w, n * qkv, h->dqkv_embed, t->dqkv);
    linear_back(h, w, (struct linear){HEAD_QKV, n, H, H}, t->g_norm, t->dqkv, h->dnorm);
    worker_meet(w);
    h->math->norm_back(w, n, H, t->g, t->g_inverse, vector(h, HEAD_HIDDEN_NORM), h->dnorm, h->dx);
    h->math->norm_back_weight(w, n, H, t->g, t->g_inverse, h->dnorm, vector_grad(h, HEAD_HIDDEN_NORM));
    worker_meet(w);
}

static void step_back(head *h, const struct worker *w, const struct NAME(batch) * b, int s) {
    int64_t H = h->shape.hidden;
    ffn_back(h, w, n_rows(b), &h->step[s]);
    attention_back(h, w, b, s);
    if (s == 0)
        return;
    shift(w, b, H, h->dx, true, h->dg);
    worker_meet(w);
    h->math->add(w, n_rows(b) * H, h->step[s - 1].dy, h->dg);
    worker_meet(w);
}

static void embed_back(head *h, const struct worker *w, const struct NAME(batch) * b) {
    int64_t n = n_rows(b), H = h->shape.hidden;
    linear_back(h, w, (struct linear){HEAD_FC, n, 0, 0}, b->taps, h->dx, NULL);
    linear_back(h, w, (struct linear){HEAD_QKV, n, 0, H}, h->embed_norm, h->dqkv_embed, h->dnorm);
    worker_meet(w);
    h->math->norm_back_weight(w, n, H, b->embed, h->embed_inverse, h->dnorm, vector_grad(h, HEAD_EMBED_NORM));
    worker_meet(w);
}

// ---- the whole --------------------------------------------------------------------------------------------------

void NAME(head_train)(head *h, const struct worker *w, const struct NAME(batch) * b) {
    int64_t n = n_rows(b), qkv = head_rows(&h->shape, HEAD_QKV);
    BUG_IF(n > h->max_rows);
    clear(w, head_size(&h->shape), h->grad);
    clear(w, n * qkv, h->dqkv_embed);
    for (int s = 0; s < h->steps; s++)
        clear(w, n * qkv, h->step[s].dqkv);
    embed_forward(h, w, b);
    for (int s = 0; s < h->steps; s++) {
        step_forward(h, w, b, s);
        loss_step(h, w, b, s);
    }
    for (int s = h->steps - 1; s >= 0; s--)
        step_back(h, w, b, s);
    embed_back(h, w, b);
}

void NAME(head_guess)(head *h, const struct worker *w, const struct NAME(batch) * b) {
    int64_t n = n_rows(b), vocab = h->shape.vocab;
    BUG_IF(n > h->max_rows);
    embed_forward(h, w, b);
    for (int s = 0; s < h->steps; s++) {
        int64_t r, end;
        step_forward(h, w, b, s);
        for (worker_share(w, n, 1, &r, &end); r < end; r++) {
            int32_t best = 0;
            for (int32_t i = 1; i < vocab; i++)
                best = h->logits[r * vocab + i] > h->logits[r * vocab + best] ? i : best;
            h->guess[s * h->max_rows + r] = best;
        }
        worker_meet(w);
    }
}
