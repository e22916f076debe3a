/* lower_store.c - see lower.h: what a step's rows leave in the caches.
 *
 * Rows are put where they belong one by one, but for int8. TPUs keep arrays in tiles, of int8 32 tokens by 128
 * channels; for a row of its own in one of those XLA lays the whole array out anew, and back behind it: four copies of
 * keys and values a layer. So int8 goes by whole tiles: those that rows touch are read, changed and put back. Scales of
 * one row a sequence go by whole blocks: put by rows they lay with the heads innermost, which tiles pad to 128, and a
 * launch of several steps held all layers' so. A GPU has no such tiles: there one row a sequence is put by itself. */
#include "backend/xla/lower/lower.h"

enum { TILE_TOKENS = 32 };

static int log2_of(int64_t n) {
    int shift = 0;
    while ((int64_t)1 << shift < n)
        shift++;
    return shift;
}

static bool goes_by_tiles(const struct lower *c) {
    return c->l->has_int8_cache && (c->s.n_queries > 1 || !device_is_gpu(c->l->device));
}

/* Tokens of a block, or of a ring, which is a block of the sequence's own. */
static int span_of(const struct lower *c, int group) {
    return c->p->groups[group].ring ? c->p->groups[group].ring : c->l->block_size;
}

/* Blocks of positions x [S, n]; one that there is not where x is not real. */
static struct tensor blocks_at(struct lower *c, int group, struct tensor x, struct tensor is_real) {
    struct hlo *h = &c->h;
    int width = c->at.width[group];
    if (c->p->groups[group].ring)
        return hlo_select(h, is_real, hlo_rows(h, c->state_slot, x.shape), hlo_int(h, c->l->n_states));
    struct tensor behind = hlo_binary(h, "subtract", x, hlo_rows(h, c->base[group], x.shape));
    struct tensor entry = hlo_binary(h, "shift_right_arithmetic", behind, hlo_int(h, log2_of(c->l->block_size)));
    struct tensor row = hlo_binary(h, "multiply", hlo_iota(h, TYPE_S32, x.shape, 0), hlo_int(h, width));
    struct tensor all = hlo_reshape(h, c->table[group], SHAPE((int64_t)c->s.n_seqs * width));
    struct tensor block = hlo_take(h, all, hlo_binary(h, "add", row, entry));
    return hlo_select(h, is_real, block, hlo_int(h, c->l->n_blocks[group]));
}

static struct tensor pairs(struct hlo *h, struct tensor a, struct tensor b) {
    int64_t n = shape_count(a.shape);
    return hlo_concat(h, 1, (struct tensor[]){hlo_reshape(h, a, SHAPE(n, 1)), hlo_reshape(h, b, SHAPE(n, 1))}, 2);
}

static void place_tokens(struct lower *c, int group, struct store *out) {
    struct hlo *h = &c->h;
    struct shape shape = SHAPE(c->s.n_seqs, c->s.n_queries);
    struct tensor position = hlo_reshape(h, c->position, shape);
    struct tensor is_real = hlo_compare(h, "LT", hlo_iota(h, TYPE_S32, shape, 1), hlo_rows(h, c->n_query, shape));
    struct tensor slot = hlo_binary(h, "remainder", position, hlo_int(h, span_of(c, group)));
    struct tensor block = blocks_at(c, group, position, is_real);
    struct shape slots = SHAPE(c->s.n_seqs, span_of(c, group));
    out->at = pairs(h, block, slot);
    if (c->s.n_queries != 1 || !goes_by_tiles(c))
        return;
    out->block = hlo_reshape(h, block, SHAPE(c->s.n_seqs));
    out->is_slot = hlo_compare(h, "EQ", hlo_iota(h, TYPE_S32, slots, 1),
                               hlo_rows(h, hlo_reshape(h, slot, SHAPE(c->s.n_seqs)), slots));
}

/* A sequence's rows stand at consecutive positions; a sequence of padding has none, from 0 on. */
static void place_tiles(struct lower *c, int group, struct store *out) {
    struct hlo *h = &c->h;
    int64_t n_seqs = c->s.n_seqs, n_queries = c->s.n_queries, tile = MIN(TILE_TOKENS, span_of(c, group)),
            n = n_queries == 1 ? 1 : (n_queries + tile - 2) / tile + 1;
    struct shape shape = SHAPE(n_seqs, n), slots = SHAPE(n_seqs, n, tile);
    struct tensor all = hlo_reshape(h, c->position, SHAPE(n_seqs, n_queries));
    struct tensor first = hlo_reshape(h, hlo_slice(h, all, 1, 0, 1), SHAPE(n_seqs));
    struct tensor end = hlo_binary(h, "add", first, c->n_query);
    struct tensor start = hlo_binary(h, "and", hlo_rows(h, first, shape), hlo_int(h, (int32_t)-tile));
    start = hlo_binary(h, "add", start,
                       hlo_binary(h, "multiply", hlo_iota(h, TYPE_S32, shape, 1), hlo_int(h, (int32_t)tile)));
    struct tensor within = hlo_binary(h, "remainder", start, hlo_int(h, span_of(c, group)));
    within = hlo_binary(h, "shift_right_arithmetic", within, hlo_int(h, log2_of(tile)));
    out->tile = tile;
    out->n_tiles = n;
    out->tile_at = pairs(h, blocks_at(c, group, start, hlo_compare(h, "LT", start, hlo_rows(h, end, shape))), within);
    struct tensor slot = hlo_binary(h, "add", hlo_rows(h, start, slots), hlo_iota(h, TYPE_S32, slots, 2));
    struct tensor is_new = hlo_binary(h, "and", hlo_compare(h, "GE", slot, hlo_rows(h, first, slots)),
                                      hlo_compare(h, "LT", slot, hlo_rows(h, end, slots)));
    out->is_new = hlo_reshape(h, is_new, SHAPE(n_seqs * n, tile));
    struct tensor row = hlo_binary(h, "multiply", hlo_iota(h, TYPE_S32, slots, 0), hlo_int(h, (int32_t)n_queries));
    row = hlo_binary(h, "add", row, hlo_binary(h, "subtract", slot, hlo_rows(h, first, slots)));
    out->row = hlo_reshape(h, row, SHAPE(n_seqs * n, tile));
}

struct store lower_store_places(struct lower *c, int group) {
    struct store out = {.n_tiles = 0};
    place_tokens(c, group, &out);
    if (goes_by_tiles(c))
        place_tiles(c, group, &out);
    return out;
}

/* x [T, heads, dim] into `to` [blocks, heads, block_size, dim]. */
static struct tensor put_tiles(struct lower *c, const struct store *s, struct tensor to, struct tensor x) {
    struct hlo *h = &c->h;
    int64_t n = c->s.n_seqs * s->n_tiles, heads = to.shape.dims[1], dim = to.shape.dims[3];
    struct shape tiles = SHAPE(n, heads, s->tile, dim);
    struct tensor all = hlo_reshape(h, to, SHAPE(to.shape.dims[0], heads, to.shape.dims[2] / s->tile, s->tile, dim));
    struct tensor rows = c->s.n_queries == 1 ? hlo_spread(h, x, tiles, AXES(0, 1, 3))
                                             : hlo_transpose(h, hlo_take(h, x, s->row), AXES(0, 2, 1, 3));
    struct tensor is_new = hlo_spread(h, s->is_new, tiles, AXES(0, 2));
    struct tensor changed = hlo_select(h, is_new, rows, hlo_take_tokens(h, all, s->tile_at));
    return hlo_reshape(h, hlo_put_tokens(h, all, s->tile_at, changed), to.shape);
}

/* x [T, heads, dim] into `to`, row by row. */
static struct tensor put_rows(struct hlo *h, const struct store *s, struct tensor to, struct tensor x) {
    if (!s->is_one)
        return hlo_put_tokens(h, to, s->at, x);
    struct shape part = to.shape;
    part.dims[0] = part.dims[2] = 1;
    return hlo_set_window(h, to, 2, s->place, hlo_reshape(h, x, part));
}

/* Scales x [S, heads] of one row a sequence into `to` [blocks, heads, block_size], by whole blocks. */
static struct tensor put_blocks(struct hlo *h, const struct store *s, struct tensor to, struct tensor x) {
    struct tensor old = hlo_take(h, to, s->block);
    struct tensor is_slot = hlo_spread(h, s->is_slot, old.shape, AXES(0, 2));
    return hlo_put(h, to, s->block, hlo_select(h, is_slot, hlo_spread(h, x, old.shape, AXES(0, 1)), old));
}

void lower_store(struct lower *c, int cache, int which, struct tensor x) {
    struct hlo *h = &c->h;
    const struct store *s = &c->store[lower_group(c, cache)];
    bool is_dense = lower_is_dense(c, lower_group(c, cache));
    struct tensor *to = is_dense ? lower_dense_array(c, cache, which) : lower_cache(c, cache, which);
    if (to->type != TYPE_S8) {
        *to = put_rows(h, s, *to, hlo_convert(h, x, to->type));
        return;
    }
    struct tensor *scales = is_dense ? lower_dense_array(c, cache, which + 2) : lower_cache(c, cache, which + 2);
    struct tensor most = hlo_reduce(h, "maximum", hlo_unary(h, "abs", x), 2);
    struct tensor scale =
        hlo_binary(h, "divide", hlo_binary(h, "maximum", most, hlo_float(h, 1e-20f)), hlo_float(h, 127));
    struct tensor whole = hlo_unary(h, "round_nearest_even", hlo_binary(h, "divide", x, hlo_rows(h, scale, x.shape)));
    x = hlo_convert(h, whole, TYPE_S8);
    bool by_tiles = goes_by_tiles(c) && !is_dense;
    *to = by_tiles ? put_tiles(c, s, *to, x) : put_rows(h, s, *to, x);
    bool by_blocks = by_tiles && c->s.n_queries == 1;
    *scales = by_blocks ? put_blocks(h, s, *scales, scale) : put_rows(h, s, *scales, scale);
}
