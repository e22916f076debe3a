/* cut.c - see cut.h. Shares are views of what the checkpoint stores: nothing is copied. */
#include "core/pass/cut.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct cut {
    const struct weight *of, *share;
};

static const struct weight nothing = {.name = ""};

/* The largest block of columns that an FFN's weights are quantised in: no rank's share may begin inside of one. */
static int64_t largest_block(const struct program *p) {
    int64_t block = 1;
    for (int i = 0; i < p->n_ops; i++)
        for (int k = 0; k < OP_MAX_WEIGHTS; k++) {
            const struct weight *w = p->ops[i].weights[k];
            for (int n = 0; w && w->cols.axis == AXIS_FFN && n < w->n_parts; n++)
                block = MAX(block, weight_part_block(&w->parts[n]));
        }
    return block;
}

void cutter_init(struct cutter *c, const struct program *from, const struct shard_options *options,
                 struct arena *memory, struct error *err) {
    *c = (struct cutter){
        .from = from, .options = *options, .ffn_block = largest_block(from), .memory = memory, .err = err};
}

void cutter_release(struct cutter *c) { free(c->cuts); }

/* ---- units ---- */

static void refuse(struct cutter *c, const char *weight, const char *what, int64_t n) {
    if (c->status == OK)
        c->status = fail(c->err, ERR_UNSUPPORTED, "%s: %lld %s cannot be split over %d devices (%s)", c->from->name,
                         (long long)n, what, c->options.n_ranks, weight);
}

static struct units even_share(struct cutter *c, int64_t of, const char *what, const char *weight) {
    int64_t rank = c->options.rank, n = c->options.n_ranks;
    if (of % n)
        refuse(c, weight, what, of);
    return (struct units){of * rank / n, of * (rank + 1) / n};
}

/* Fewer than ranks are repeated: ranks that follow each other share one. */
static struct units repeated_share(struct cutter *c, int64_t of, const char *what, const char *weight) {
    int64_t rank = c->options.rank, n = c->options.n_ranks;
    if (of < n && n % of == 0)
        return (struct units){rank * of / n, rank * of / n + 1};
    return even_share(c, of, what, weight);
}

static struct units block_share(struct cutter *c, int64_t of, int64_t block, const char *what, const char *weight) {
    int64_t rank = c->options.rank, n = c->options.n_ranks, blocks = (of + block - 1) / block;
    if (blocks < n)
        refuse(c, weight, what, of);
    return (struct units){blocks * rank / n * block, MIN(blocks * (rank + 1) / n * block, of)};
}

static struct units share_of_axis(struct cutter *c, enum axis axis, int64_t of, const char *weight) {
    char ffn[64];
    switch (axis) {
    case AXIS_HEADS: return even_share(c, of, "heads, or pairs of them,", weight);
    case AXIS_VALUE_HEADS: return even_share(c, of, "value heads", weight);
    case AXIS_KV_HEADS: return repeated_share(c, of, "key-value heads", weight);
    case AXIS_KEY_HEADS: return repeated_share(c, of, "key heads", weight);
    case AXIS_VOCAB: return block_share(c, of, 1, "tokens of the vocabulary", weight);
    case AXIS_FFN:
        snprintf(ffn, sizeof ffn, "channels of an FFN in blocks of %lld", (long long)c->ffn_block);
        return block_share(c, of, c->ffn_block, ffn, weight);
    case AXIS_NONE:
    case N_AXES: break;
    }
    return (struct units){0, of};
}

struct units cut_units(struct cutter *c, struct dim d, const char *weight) {
    struct units all = share_of_axis(c, d.axis, d.of, weight);
    return (struct units){MIN(MAX(all.begin - d.first, 0), d.n), MAX(MIN(all.end - d.first, d.n), 0)};
}

/* ---- rows ---- */

/* What is taken of the rows of a part: of experts [first, end) that are there, units of each. */
struct taken {
    const struct weight_part *part;
    int64_t first_expert, end_expert;
    struct units units;
};

static void add_rows(struct weight *w, const struct weight_part *p, int64_t first, int64_t n) {
    if (n <= 0)
        return;
    w->out += n;
    w->parts[w->n_parts] = weight_part_rows(p, first, n);
    w->parts[w->n_parts].rows = dim_whole(n);
    w->n_parts++;
}

static void take_rows(struct weight *w, const struct taken *r) {
    struct dim d = r->part->rows;
    int64_t once = d.n * d.unit, expert = d.size / MAX(d.n_experts, 1);
    if (r->units.begin == 0 && r->units.end == d.n) { // all rows of these experts
        add_rows(w, r->part, r->first_expert * expert, (r->end_expert - r->first_expert) * expert);
        return;
    }
    for (int64_t e = r->first_expert; e < r->end_expert; e++)
        for (int64_t at = 0; at < expert; at += once)
            add_rows(w, r->part, e * expert + at + r->units.begin * d.unit, (r->units.end - r->units.begin) * d.unit);
}

static int64_t most_parts(const struct weight *w) {
    int64_t n = 0;
    for (int i = 0; i < w->n_parts; i++)
        n += w->parts[i].rows.size / (w->parts[i].rows.n * w->parts[i].rows.unit);
    return n;
}

/* ---- columns ---- */

static void take_cols(struct cutter *c, struct weight *w, const struct weight *of) {
    struct units u = cut_units(c, of->cols, of->name);
    int64_t first = u.begin * of->cols.unit, n = (u.end - u.begin) * of->cols.unit;
    BUG_IF(of->cols.size != of->cols.n * of->cols.unit); // columns are no times over
    for (int i = 0; i < w->n_parts && c->status == OK; i++) {
        int64_t block = weight_part_block(&w->parts[i]);
        if (first % block || (n % block && first + n != of->in))
            c->status = fail(c->err, ERR_UNSUPPORTED,
                             "%s: %s is quantised in blocks of %lld columns, and rank %d of %d would have columns %lld "
                             "to %lld",
                             c->from->name, of->name, (long long)block, c->options.rank, c->options.n_ranks,
                             (long long)first, (long long)(first + n - 1));
        else
            w->parts[i] = weight_part_cols(&w->parts[i], first);
    }
    w->in = n;
    w->cols = dim_whole(n);
}

/* ---- weights ---- */

static bool is_whole(const struct weight *w) {
    bool whole = w->cols.axis == AXIS_NONE;
    for (int i = 0; i < w->n_parts; i++)
        whole = whole && w->parts[i].rows.axis == AXIS_NONE;
    return whole;
}

static struct weight *begin_share(struct cutter *c, const struct weight *of) {
    struct weight *w = arena_alloc(c->memory, sizeof *w);
    *w = (struct weight){.name = of->name, .in = of->in, .cols = dim_whole(of->in)};
    w->parts = arena_calloc(c->memory, (size_t)most_parts(of), sizeof *w->parts);
    return w;
}

static const struct weight *share_of(struct cutter *c, const struct weight *of) {
    if (is_whole(of))
        return of;
    struct weight *w = begin_share(c, of);
    for (int i = 0; i < of->n_parts; i++) {
        const struct weight_part *p = &of->parts[i];
        take_rows(w, &(struct taken){p, 0, MAX(p->rows.n_experts, 1), cut_units(c, p->rows, of->name)});
    }
    if (of->cols.axis != AXIS_NONE)
        take_cols(c, w, of);
    return w;
}

const struct weight *cut_weight(struct cutter *c, const struct weight *w) {
    if (!w || c->status != OK)
        return w ? &nothing : NULL;
    for (int i = 0; i < c->n_cuts; i++)
        if (c->cuts[i].of == w)
            return c->cuts[i].share;
    if (c->n_cuts == c->cap_cuts) {
        c->cap_cuts = c->cap_cuts ? c->cap_cuts * 2 : 64;
        c->cuts = xrealloc(c->cuts, (size_t)c->cap_cuts, sizeof *c->cuts);
    }
    c->cuts[c->n_cuts++] = (struct cut){w, share_of(c, w)};
    return c->cuts[c->n_cuts - 1].share;
}

struct units cut_expert_range(struct cutter *c, int n_experts, const char *weight) {
    return block_share(c, n_experts, 1, "experts", weight);
}

const struct weight *cut_experts(struct cutter *c, const struct weight *of, struct units experts) {
    if (!of || c->status != OK)
        return of ? &nothing : NULL;
    struct weight *w = begin_share(c, of);
    for (int i = 0; i < of->n_parts; i++) {
        const struct weight_part *p = &of->parts[i];
        int64_t begin = MIN(MAX(experts.begin - p->rows.first_expert, 0), p->rows.n_experts),
                end = MIN(MAX(experts.end - p->rows.first_expert, 0), p->rows.n_experts);
        take_rows(w, &(struct taken){p, begin, end, {0, p->rows.n}});
    }
    return w;
}
