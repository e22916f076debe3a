/* lower_mla.c - see lower.h: MLA_PREP and MLA_ATTENTION, the absorbed form. The cache's row [c | kr] is the key of all
 * heads, and its first `rank` channels their value: one KV head with a group of n_heads. */
#include "backend/xla/lower/lower.h"

void xla_mla_prep(struct lower *c) {
    struct hlo *h = &c->h;
    const struct mla_args *a = &c->op->args.mla;
    int64_t n = c->n_tokens, heads = a->n_heads, width = a->rank + a->rope_dim;
    struct tensor kva = lower_in(c, 1), w = lower_weight(c, 0);
    struct tensor latent = lower_rms(c, hlo_slice(h, kva, 1, 0, a->rank), &w, a->eps, false);
    struct tensor key = hlo_reshape(h, hlo_slice(h, kva, 1, a->rank, a->rope_dim), SHAPE(n, 1, a->rope_dim));
    struct tensor row[2] = {hlo_reshape(h, latent, SHAPE(n, 1, a->rank)), lower_rotate(c, key, a->rope)};
    lower_store(c, a->cache, CACHE_LATENT_ROW, hlo_concat(h, 2, row, 2));
    struct tensor q = hlo_reshape(h, lower_in(c, 0), SHAPE(n, heads, a->nope_dim + a->rope_dim));
    struct tensor up = hlo_reshape(h, lower_weight(c, 1), SHAPE(heads, a->nope_dim, a->rank));
    struct tensor nope = hlo_convert(h, hlo_slice(h, q, 2, 0, a->nope_dim), c->l->type);
    struct tensor absorbed =
        hlo_dot(h, nope, up, (struct dot_axes){{1, -1}, {0, -1}, {2, -1}, {1, -1}}, TYPE_F32); // [heads, T, rank]
    struct tensor out[2] = {hlo_transpose(h, absorbed, AXES(1, 0, 2)),
                            lower_rotate(c, hlo_slice(h, q, 2, a->nope_dim, a->rope_dim), a->rope)};
    lower_out(c, 0, hlo_reshape(h, hlo_concat(h, 2, out, 2), SHAPE(n, heads * width)));
}

static struct kv_rows latent_rows(struct lower *c, const struct attend *a, struct tensor table) {
    struct tensor k = lower_is_dense(c, a->group) ? lower_dense_rows(c, a->cache, CACHE_LATENT_ROW)
                                    : hlo_take(&c->h, *lower_cache(c, a->cache, CACHE_LATENT_ROW), table);
    // [S, W, 1, B, rank + rope]
    return (struct kv_rows){.k = k, .v = hlo_slice(&c->h, k, 4, 0, a->value_dim)};
}

void xla_mla_attention(struct lower *c) {
    struct hlo *h = &c->h;
    const struct mla_args *a = &c->op->args.mla;
    int64_t n = c->n_tokens, heads = a->n_heads;
    struct shape shape = SHAPE(c->s.n_seqs, c->s.n_queries, 1, heads, a->rank + a->rope_dim);
    struct attend attend = {.q = hlo_reshape(h, lower_in(c, 0), shape),
                            .cache = a->cache,
                            .group = lower_group(c, a->cache),
                            .scale = a->scale,
                            .value_dim = a->rank,
                            .rows = latent_rows};
    struct tensor sums = hlo_reshape(h, lower_attend(c, &attend), SHAPE(n, heads, a->rank));
    struct tensor up = hlo_reshape(h, lower_weight(c, 0), SHAPE(heads, a->v_dim, a->rank));
    struct tensor y = hlo_dot(h, hlo_convert(h, sums, c->l->type), up,
                              (struct dot_axes){{1, -1}, {0, -1}, {2, -1}, {2, -1}}, TYPE_F32); // [heads, T, v_dim]
    lower_out(c, 0, hlo_reshape(h, hlo_transpose(h, y, AXES(1, 0, 2)), SHAPE(n, heads * a->v_dim)));
}
