/* lower_dense.c - see lower.h and dense.h: attention that reads dense copies of caches, and what fills them. */
#include "backend/xla/lower/lower.h"

#include "backend/xla/dense_shape.h"

#include <stdlib.h>

/* ---- in a step ---- */

bool lower_is_dense(const struct lower *c, int group) { return c->s.is_dense && dense_is_paged(c->l, group); }

void lower_dense_arguments(struct lower *c) {
    for (int i = 0; i < c->l->n_caches; i++)
        if (dense_has(c->l, i))
            c->dense[i] = hlo_argument(&c->h, c->l->caches[i].type, dense_shape(c->l, &c->s, i), c->h.n_arguments);
}

/* Position `at` of a sequence stands at `at` % size of a run. */
static struct tensor place_in_run(struct lower *c, int group, struct tensor at, int64_t size) {
    bool has_window = c->p->groups[group].window > 0;
    return has_window ? hlo_binary(&c->h, "remainder", at, hlo_int(&c->h, (int32_t)size)) : at;
}

/* [S, 1, size]: positions of a run's tokens. Where it goes round, of those that stand there the newest up to the query;
 * what no token was put to has a position that no query sees. */
static struct tensor positions_in_run(struct lower *c, int group, int64_t size) {
    struct hlo *h = &c->h;
    struct shape shape = SHAPE(c->s.n_seqs, 1, size);
    struct tensor at = hlo_iota(h, TYPE_S32, shape, 2);
    if (c->p->groups[group].window == 0)
        return at;
    struct tensor query = hlo_rows(h, c->position, shape), n = hlo_int(h, (int32_t)size);
    struct tensor round = hlo_binary(h, "divide", query, n), whole = hlo_binary(h, "multiply", round, n);
    struct tensor key = hlo_binary(h, "add", whole, at);
    key = hlo_select(h, hlo_compare(h, "GT", key, query), hlo_binary(h, "subtract", key, n), key);
    return hlo_select(h, hlo_compare(h, "LT", key, hlo_int(h, 0)), hlo_int(h, INT32_MAX), key);
}

void lower_dense_places(struct lower *c, int group) {
    struct hlo *h = &c->h;
    int64_t size = (int64_t)dense_width(c->l, &c->s, group) * c->l->block_size, n = c->s.n_seqs;
    struct shape column = SHAPE(n, 1);
    struct tensor row = hlo_iota(h, TYPE_S32, SHAPE(n), 0), place = place_in_run(c, group, c->position, size);
    row = hlo_select(h, hlo_compare(h, "GT", c->n_query, hlo_int(h, 0)), row, hlo_int(h, (int32_t)n));
    struct tensor pair[] = {hlo_reshape(h, row, column), hlo_reshape(h, place, column)};
    c->store[group] = (struct store){.at = hlo_concat(h, 1, pair, 2), .is_one = n == 1};
    if (n == 1) // which is there, so that nothing has to be left out
        c->store[group].place = hlo_reshape(h, place, SCALAR);
    c->dense_keys[group] = positions_in_run(c, group, size);
}

struct tensor *lower_dense_array(struct lower *c, int cache, int which) {
    return &c->dense[c->l->layers[cache].first + which];
}

struct tensor lower_dense_rows(struct lower *c, int cache, int which) {
    struct tensor x = *lower_dense_array(c, cache, which);
    struct shape s = {.rank = x.shape.rank + 1, .dims = {x.shape.dims[0], 1}};
    for (int i = 1; i < x.shape.rank; i++)
        s.dims[i + 1] = x.shape.dims[i];
    return hlo_reshape(&c->h, x, s);
}

/* ---- zeros, and filling ---- */

void xla_lower_dense_zeros(const struct loaded *l, const struct launch_shape *s, struct buf *out) {
    struct hlo h = {0};
    for (int i = 0; i < l->n_caches; i++)
        if (dense_has(l, i)) {
            struct tensor zero = hlo_full(&h, l->caches[i].type, SCALAR, 0);
            hlo_result(&h, hlo_spread(&h, zero, dense_shape(l, s, i), NULL));
        }
    hlo_module(&h, "dense_zeros", 1, out);
}

/* Row `which` of ints [FILL_INTS * n], [n]. */
static struct tensor row_of(struct hlo *h, struct tensor ints, int which, int64_t n) {
    return hlo_slice(h, ints, 0, which * n, n);
}

/* to [S, H, width * B, D] with blocks of `from` [blocks, H, B, D] in its slots: of each so many tokens, and zeros. */
static struct tensor filled(struct hlo *h, struct tensor from, struct tensor to, struct tensor ints, int64_t n) {
    int64_t n_heads = from.shape.dims[1], block_size = from.shape.dims[2],
            dim = from.shape.rank > 3 ? from.shape.dims[3] : 1;
    struct tensor blocks = hlo_take(h, from, row_of(h, ints, FILL_BLOCK, n));
    struct tensor token = hlo_iota(h, TYPE_S32, SHAPE(n, block_size), 1);
    struct tensor is_there = hlo_compare(h, "LT", token, hlo_rows(h, row_of(h, ints, FILL_TOKENS, n), token.shape));
    blocks =
        hlo_select(h, hlo_spread(h, is_there, blocks.shape, AXES(0, 2)), blocks, hlo_full(h, from.type, SCALAR, 0));
    struct shape slots = SHAPE(to.shape.dims[0], n_heads, to.shape.dims[2] / block_size, block_size * dim);
    struct tensor pair[] = {hlo_reshape(h, row_of(h, ints, FILL_ROW, n), SHAPE(n, 1)),
                            hlo_reshape(h, row_of(h, ints, FILL_SLOT, n), SHAPE(n, 1))};
    struct tensor y = hlo_put_tokens(h, hlo_reshape(h, to, slots), hlo_concat(h, 1, pair, 2),
                                     hlo_reshape(h, blocks, SHAPE(n, n_heads, block_size * dim)));
    return hlo_reshape(h, y, to.shape);
}

/* to [blocks, H, B, D] with slots of `from` [S, H, width * B, D] in its blocks, whole. */
static struct tensor drained(struct hlo *h, struct tensor from, struct tensor to, struct tensor ints, int64_t n) {
    int64_t n_heads = to.shape.dims[1], block_size = to.shape.dims[2], dim = to.shape.rank > 3 ? to.shape.dims[3] : 1;
    struct shape slots = SHAPE(from.shape.dims[0], n_heads, from.shape.dims[2] / block_size, block_size * dim),
                 blocks = to.shape;
    struct tensor pair[] = {hlo_reshape(h, row_of(h, ints, FILL_ROW, n), SHAPE(n, 1)),
                            hlo_reshape(h, row_of(h, ints, FILL_SLOT, n), SHAPE(n, 1))};
    struct tensor x = hlo_take_tokens(h, hlo_reshape(h, from, slots), hlo_concat(h, 1, pair, 2));
    blocks.dims[0] = n;
    return hlo_put(h, to, row_of(h, ints, FILL_BLOCK, n), hlo_reshape(h, x, blocks));
}

typedef struct tensor filler(struct hlo *h, struct tensor from, struct tensor to, struct tensor ints, int64_t n);

/* Out of the blocks into the copies, or the other way. */
static void lower_filler(const struct loaded *l, const struct launch_shape *s, int group, int n, bool is_drain,
                         struct buf *out) {
    struct hlo h = {0};
    filler *function = is_drain ? drained : filled;
    int *arrays = xcalloc((size_t)l->n_caches + 1, sizeof *arrays), n_arrays = copied_arrays(l, group, arrays);
    struct tensor *x = xcalloc(2 * (size_t)n_arrays + 1, sizeof *x);
    for (int i = 0; i < n_arrays; i++)
        x[i] = hlo_argument(&h, l->caches[arrays[i]].type, l->caches[arrays[i]].shape, is_drain ? i : NO_ALIAS);
    for (int i = 0; i < n_arrays; i++)
        x[n_arrays + i] =
            hlo_argument(&h, l->caches[arrays[i]].type, dense_shape(l, s, arrays[i]), is_drain ? NO_ALIAS : i);
    struct tensor ints = hlo_argument(&h, TYPE_S32, SHAPE((int64_t)FILL_INTS * n), NO_ALIAS);
    for (int i = 0; i < n_arrays; i++)
        hlo_result(&h, function(&h, x[is_drain ? n_arrays + i : i], x[is_drain ? i : n_arrays + i], ints, n));
    hlo_module(&h, is_drain ? "drain" : "fill", 1, out);
    free(arrays);
    free(x);
}

void xla_lower_fill(const struct loaded *l, const struct launch_shape *s, int group, int n, struct buf *out) {
    lower_filler(l, s, group, n, false, out);
}

void xla_lower_drain(const struct loaded *l, const struct launch_shape *s, int group, int n, struct buf *out) {
    lower_filler(l, s, group, n, true, out);
}
