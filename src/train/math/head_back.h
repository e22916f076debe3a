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
    linear_back(h, w, (struct linear){.tensor = HEAD_LM_HEAD, .n = n}, t->y_norm, h->logits, h->dnorm);
    worker_meet(w);
    h->math->norm_back(w, whole(n, H), t->y, t->y_inverse, vector(h, HEAD_NORM), h->dnorm, t->dy);
    h->math->norm_back_weight(w, whole(n, H), t->y, t->y_inverse, h->dnorm, vector_grad(h, HEAD_NORM));
    worker_meet(w);
}

// ---- backward ---------------------------------------------------------------------------------------------------

/* From the gradient of y, t->dy, to that of x, h->dx. */
static void ffn_back(head *h, const struct worker *w, int64_t n, const struct NAME(head_step) * t) {
    int64_t H = h->shape.hidden;
    linear_back(h, w, (struct linear){.tensor = HEAD_DOWN, .n = n}, t->act, t->dy, h->dact);
    clear(w, n * H, h->dx);
    worker_meet(w);
    h->math->glu_back(w, n, h->shape.ffn, t->gate_up, h->dact, h->dgate_up);
    h->math->add(w, n * H, h->dx, t->dy);
    worker_meet(w);
    linear_back(h, w, (struct linear){.tensor = HEAD_GATE_UP, .n = n}, t->x_norm, h->dgate_up, h->dnorm);
    worker_meet(w);
    h->math->norm_back(w, whole(n, H), t->x, t->x_inverse, vector(h, HEAD_FFN_NORM), h->dnorm, h->dx);
    h->math->norm_back_weight(w, whole(n, H), t->x, t->x_inverse, h->dnorm, vector_grad(h, HEAD_FFN_NORM));
    worker_meet(w);
}

static void step_back(head *h, const struct worker *w, const struct NAME(batch) * b, int s) {
    ffn_back(h, w, n_rows(b), &h->step[s]);
    (h->shape.kind == HEAD_MTP ? mtp_back : eagle3_back)(h, w, b, s);
}

// ---- the whole --------------------------------------------------------------------------------------------------

void NAME(head_train)(head *h, const struct worker *w, const struct NAME(batch) * b) {
    int64_t n = n_rows(b), qkv = head_rows(&h->shape, HEAD_QKV);
    BUG_IF(n > h->max_rows);
    clear(w, head_size(&h->shape), h->grad);
    clear(w, n * token_width(&h->shape), h->dof_token);
    for (int s = 0; s < h->steps; s++)
        clear(w, n * qkv, h->step[s].dqkv);
    begin_forward(h, w, b);
    for (int s = 0; s < h->steps; s++) {
        step_forward(h, w, b, s);
        loss_step(h, w, b, s);
    }
    for (int s = h->steps - 1; s >= 0; s--)
        step_back(h, w, b, s);
    (h->shape.kind == HEAD_MTP ? mtp_end_back : eagle3_end_back)(h, w, b);
}

void NAME(head_guess)(head *h, const struct worker *w, const struct NAME(batch) * b) {
    int64_t n = n_rows(b), vocab = h->shape.vocab;
    BUG_IF(n > h->max_rows);
    begin_forward(h, w, b);
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
