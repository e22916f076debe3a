/* cpu_mla.c - MLA_PREP, MLA_ATTENTION: latent attention in its absorbed form, the reference.
 *
 * A head's key is [Wuk_h c | kr] and its value Wuv_h c. Since q . (Wuk c) = (Wuk^T q) . c, the heads' queries
 * are taken to the latent space once and all of them read the same cached row [c | kr]; the sum over
 * positions is a latent vector too, and Wuv_h takes it back. */
#include "backend/cpu/cpu.h"

#include <math.h>
#include <string.h>

void store_latent(const struct call *c, int64_t t) {
    const struct mla_args *a = &c->op->args.mla;
    const float *kva = mat_row(c->in[1], t);
    for (int at = 0, seq; next_keeper(c, t, &at, &seq);) {
        float *row = latent_row(c, a->cache, seq, c->plan->position[t]);
        rms_norm_row(kva, call_floats(c, 0), a->rank, a->eps, false, row);
        memcpy(row + a->rank, kva + a->rank, (size_t)a->rope_dim * sizeof *row);
        if (a->rope >= 0)
            rotate_head(c->program->ropes[a->rope], call_cos_sin(c, a->rope, t), row + a->rank);
    }
}

/* out = [Wuk_h^T q_nope | rope(q_rope)]; scratch holds a row of Wuk. */
static void absorb_query(const struct call *c, int64_t t, int head) {
    const struct mla_args *a = &c->op->args.mla;
    const float *q = mat_row(c->in[0], t) + (int64_t)head * (a->nope_dim + a->rope_dim);
    float *out = mat_row(c->out[0], t) + (int64_t)head * (a->rank + a->rope_dim);
    memset(out, 0, (size_t)a->rank * sizeof *out);
    for (int i = 0; i < a->nope_dim; i++) {
        weight_rows_f32(c->weight[1]->weight, (int64_t)head * a->nope_dim + i, 1, c->scratch);
        for (int k = 0; k < a->rank; k++)
            out[k] += q[i] * c->scratch[k];
    }
    memcpy(out + a->rank, q + a->nope_dim, (size_t)a->rope_dim * sizeof *out);
    if (a->rope >= 0)
        rotate_head(c->program->ropes[a->rope], call_cos_sin(c, a->rope, t), out + a->rank);
}

struct need cpu_mla_prep_need(const struct op *op) {
    return (struct need){.worker = op->args.mla.rank}; // a row of Wuk
}

void cpu_mla_prep(const struct call *c) {
    int64_t n_items = c->op->args.mla.n_heads + 1, begin, end; // a token's heads, and its latent row
    call_share(c, c->in[0].rows * n_items, 1, &begin, &end);
    for (int64_t i = begin; i < end; i++) {
        if (i % n_items == 0)
            store_latent(c, i / n_items);
        else
            absorb_query(c, i / n_items, (int)(i % n_items) - 1);
    }
}

/* One pass over the keys, as in cpu_attention.c; scratch: the latent sum [rank], then a row of Wuv [rank]. */
static void attend_latent(const struct call *c, int64_t t, int head) {
    const struct mla_args *a = &c->op->args.mla;
    int64_t width = a->rank + a->rope_dim, position = c->plan->position[t];
    const float *q = mat_row(c->in[0], t) + head * width;
    float *latent = c->scratch, *w = c->scratch + a->rank, max = -INFINITY, sum = 0;
    memset(latent, 0, (size_t)a->rank * sizeof *latent);
    for (int64_t j = 0; j <= position; j++) {
        const float *key = latent_row(c, a->cache, c->seq_of_row[t], j);
        float s = dot_f32(q, key, width) * a->scale;
        float shrink = s > max ? expf(max - s) : 1.0f;
        max = fmaxf(max, s);
        float p = expf(s - max);
        sum = sum * shrink + p;
        for (int k = 0; k < a->rank; k++)
            latent[k] = latent[k] * shrink + p * key[k];
    }
    float *out = mat_row(c->out[0], t) + (int64_t)head * a->v_dim;
    for (int i = 0; i < a->v_dim; i++) {
        weight_rows_f32(c->weight[0]->weight, (int64_t)head * a->v_dim + i, 1, w);
        out[i] = dot_f32(w, latent, a->rank) / sum;
    }
}

struct need cpu_mla_attention_need(const struct op *op) {
    return (struct need){.worker = 2 * (int64_t)op->args.mla.rank}; // the sum, a row of Wuv
}

void cpu_mla_attention(const struct call *c) {
    int n_heads = c->op->args.mla.n_heads;
    int64_t begin, end;
    call_share(c, c->in[0].rows * n_heads, 1, &begin, &end);
    for (int64_t i = begin; i < end; i++)
        attend_latent(c, i / n_heads, (int)(i % n_heads));
}
