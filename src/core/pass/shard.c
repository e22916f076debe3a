/* shard.c - the program of one rank of several: see pass.h.
 *
 * First all weights are cut (cut.h), which may be refused; then the program is recorded anew. A value is whole, the
 * same on every rank; or this rank's columns of it, of which the pieces tell where the borders are (q, k and v of a
 * fused projection, gate and up); or what is to be summed over the ranks. A sum is made where the section ends or
 * somebody wants the value whole, unless two such are added first (GATED_ADD). How many heads, channels or experts an
 * op has here follows from the widths that cut weights gave its inputs. */
#include "core/pass/cut.h"

#include <stdlib.h>
#include <string.h>

/* A run of columns: how wide it was, and is. */
struct piece {
    int64_t was, is;
};

struct mapped {
    val v;                      // in the new program; absent while it is only `sum`
    val sum;                    // what is to be summed
    const struct piece *pieces; // [n_pieces] of v; none: it is whole
    int n_pieces;
};

struct sharding {
    const struct program *from;
    struct program *to;
    struct cutter cutter;
    const struct weight *(*weights)[OP_MAX_WEIGHTS]; // [n_ops], cut
    struct mapped *values;                           // [from->n_values]
    int *sums, n_sums;                               // values to be summed before the section ends
    int64_t *state_floats;                           // [n_caches], of states
    struct arena memory;                             // of pieces
};

/* ---- values ---- */

/* Whether a rank has all of its columns. */
static bool is_whole(const struct sharding *s, val v) {
    const struct mapped *m = &s->values[v.id];
    int64_t at = 0;
    for (int i = 0; i < m->n_pieces; at += m->pieces[i++].was)
        if (at < v.col + v.width && at + m->pieces[i].was > v.col && m->pieces[i].was != m->pieces[i].is)
            return false;
    return true;
}
static bool is_sum(const struct sharding *s, val v) { return !val_given(s->values[v.id].v); }

static void make_sum(struct sharding *s, int id) {
    struct mapped *m = &s->values[id];
    if (!val_given(m->v))
        m->v = op_all_reduce(s->to, m->sum);
}

/* Where column `col` of the value that was is now. */
static int column_now(const struct mapped *m, int col) {
    int64_t was = 0, is = 0;
    for (int i = 0; i < m->n_pieces && was < col; i++) {
        was += m->pieces[i].was;
        is += m->pieces[i].is;
    }
    BUG_IF(was != col); // columns within a piece
    return (int)is;
}

/* A value as this rank has it: whole, or its columns of it. */
static val here(struct sharding *s, val v) {
    if (!val_given(v))
        return NO_VAL;
    make_sum(s, v.id);
    const struct mapped *m = &s->values[v.id];
    if (m->n_pieces == 0)
        return v.width == m->v.width ? m->v : val_cols(m->v, v.col, v.width);
    int first = column_now(m, v.col);
    return val_cols(m->v, first, column_now(m, v.col + v.width) - first);
}

static val whole(struct sharding *s, val v) {
    BUG_IF(val_given(v) && !is_whole(s, v)); // an op that needs all columns of what is cut
    return here(s, v);
}

static void map_whole(struct sharding *s, val was, val is) {
    BUG_IF(was.width != is.width);
    s->values[was.id] = (struct mapped){.v = is, .sum = NO_VAL};
}

static void map_sum(struct sharding *s, val was, val sum) {
    BUG_IF(was.width != sum.width);
    s->values[was.id] = (struct mapped){.v = NO_VAL, .sum = sum};
    s->sums[s->n_sums++] = was.id;
}

/* One run of heads or channels, and so one piece. */
static void map_cut(struct sharding *s, val was, val is) {
    struct piece *piece = arena_alloc(&s->memory, sizeof *piece);
    *piece = (struct piece){was.width, is.width};
    s->values[was.id] = (struct mapped){is, NO_VAL, piece, 1};
}

/* Of the columns of `like`, which `was` has been made of one by one. */
static void map_like(struct sharding *s, val was, val is, val like) {
    const struct mapped *m = &s->values[like.id];
    int64_t at = 0;
    if (m->n_pieces == 0) {
        map_whole(s, was, is);
        return;
    }
    int first = 0;
    for (; at < like.col; first++)
        at += m->pieces[first].was;
    int n = first;
    for (; at < like.col + like.width; n++)
        at += m->pieces[n].was;
    s->values[was.id] = (struct mapped){is, NO_VAL, m->pieces + first, n - first};
}

static void map_rows(struct sharding *s, val was, val is, const struct weight *w) {
    struct piece *pieces = NULL;
    int n = 0;
    for (int i = 0; i < w->n_parts; i++) {
        struct dim d = w->parts[i].rows;
        int64_t once = d.n * d.unit, times = d.size / once;
        struct units u = cut_units(&s->cutter, d, w->name);
        pieces = xrealloc(pieces, (size_t)(n + times), sizeof *pieces);
        for (int64_t k = 0; k < times; k++)
            pieces[n++] = (struct piece){once, (u.end - u.begin) * d.unit};
    }
    struct piece *kept = arena_calloc(&s->memory, (size_t)n, sizeof *kept);
    memcpy(kept, pieces, (size_t)n * sizeof *kept);
    free(pieces);
    s->values[was.id] = (struct mapped){is, NO_VAL, kept, n};
}

/* ---- ops ---- */

static bool rows_are_cut(const struct weight *w) {
    for (int i = 0; i < w->n_parts; i++)
        if (w->parts[i].rows.axis != AXIS_NONE)
            return true;
    return false;
}

/* What is added once, not by each rank. */
static const struct weight *by_first_rank(const struct sharding *s, const struct weight *w) {
    return s->to->rank == 0 ? w : NULL;
}

static void shard_embed(struct sharding *s, const struct op *op, const struct weight *const *w) {
    val y = op_embed(s->to, w[0], op->args.embed.scale);
    if (!rows_are_cut(op->weights[0])) {
        map_whole(s, op->out[0], y);
        return;
    }
    struct dim rows = op->weights[0]->parts[0].rows;
    s->to->ops[s->to->n_ops - 1].args.embed.first = (int)cut_units(&s->cutter, rows, op->weights[0]->name).begin;
    map_sum(s, op->out[0], y);
}

static void shard_linear(struct sharding *s, const struct op *op, const struct weight *const *w) {
    if (cut_sums(op->weights[0])) {
        map_sum(s, op->out[0], op_linear(s->to, here(s, op->in[0]), w[0], by_first_rank(s, w[1])));
        return;
    }
    val y = op_linear(s->to, whole(s, op->in[0]), w[0], w[1]);
    if (rows_are_cut(op->weights[0]))
        map_rows(s, op->out[0], y, op->weights[0]);
    else
        map_whole(s, op->out[0], y);
}

/* As the projection before it: B's rows, of each adapter, are cut as its are. */
static void shard_lora(struct sharding *s, const struct op *op, const struct weight *const *w) {
    struct lora_args a = op->args.lora;
    val base = op->in[0];
    if (is_sum(s, base)) {
        map_sum(s, op->out[0], op_lora(s->to, s->values[base.id].sum, here(s, op->in[1]), w[0], w[1], w[2], a));
        return;
    }
    struct lora_run *runs = arena_calloc(&s->to->arena, (size_t)a.n_runs, sizeof *runs);
    for (int i = 0; i < a.n_runs; i++) {
        const struct dim d = op->weights[1]->parts[i].rows;
        struct units u = cut_units(&s->cutter, d, op->weights[1]->name);
        runs[i] = (struct lora_run){(int)(d.size / d.n * (u.end - u.begin)), a.runs[i].module};
    }
    a.runs = runs;
    map_like(s, op->out[0], op_lora(s->to, here(s, base), whole(s, op->in[1]), w[0], w[1], w[2], a), base);
}

static void shard_qkv_prep(struct sharding *s, const struct op *op, const struct weight *const *w) {
    struct qkv_args a = op->args.qkv_prep;
    struct cache_group *group = &s->to->groups[s->to->caches[a.cache].group];
    int q_width = a.n_heads * a.head_dim, k_width = a.n_kv_heads * a.head_dim;
    val x = here(s, op->in[0]);
    a.n_heads = here(s, val_cols(op->in[0], 0, q_width)).width / a.head_dim;
    a.n_kv_heads = a.k_absent ? group->n_heads : here(s, val_cols(op->in[0], q_width, k_width)).width / a.head_dim;
    group->n_heads = a.n_kv_heads;
    map_cut(s, op->out[0], op_qkv_prep(s->to, x, w[0], w[1], a));
}

static void shard_attention(struct sharding *s, const struct op *op, const struct weight *const *w) {
    struct attention_args a = op->args.attention;
    val q = here(s, op->in[0]);
    a.n_heads = q.width / a.head_dim;
    a.n_kv_heads = s->to->groups[s->to->caches[a.cache].group].n_heads;
    map_cut(s, op->out[0], op_attention(s->to, q, w[0], a));
}

static void shard_mla(struct sharding *s, const struct op *op, const struct weight *const *w) {
    struct mla_args a = op->args.mla;
    val q = here(s, op->in[0]);
    bool prepares = op->code == OP_MLA_PREP;
    a.n_heads = q.width / ((prepares ? a.nope_dim : a.rank) + a.rope_dim);
    map_cut(s, op->out[0],
            prepares ? op_mla_prep(s->to, q, whole(s, op->in[1]), w[0], w[1], a) : op_mla_attention(s->to, q, w[0], a));
}

static void shard_diff_heads(struct sharding *s, const struct op *op, const struct weight *const *w) {
    struct diff_args a = op->args.diff_heads;
    val x = here(s, op->in[0]);
    const struct weight *lambda[4] = {w[0], w[1], w[2], w[3]};
    a.n_heads = x.width / a.width;
    map_cut(s, op->out[0], op_diff_heads(s->to, x, lambda, a));
}

static void shard_moe_route(struct sharding *s, const struct op *op, const struct weight *const *w) {
    struct routed r = op_moe_route(s->to, whole(s, op->in[0]), w[0], w[1], op->args.moe_route);
    map_whole(s, op->out[0], r.ids);
    map_whole(s, op->out[1], r.weights);
}

static void shard_moe_ffn(struct sharding *s, const struct op *op, const struct weight *const *w) {
    struct moe_args a = op->args.moe_ffn;
    struct routed r = {whole(s, op->in[1]), whole(s, op->in[2])};
    const struct weight *b2 = s->cutter.options.by_expert ? w[3] : by_first_rank(s, w[3]);
    if (s->cutter.options.by_expert) {
        struct units mine = cut_expert_range(&s->cutter, a.n_experts, op->weights[0]->name);
        a.first_expert = (int)mine.begin;
        a.n_experts = (int)(mine.end - mine.begin);
    }
    a.ffn_size = (int)w[1]->in;
    map_sum(s, op->out[0], op_moe_ffn(s->to, whole(s, op->in[0]), r, w[0], w[1], w[2], b2, a));
}

static void shard_short_conv(struct sharding *s, const struct op *op, const struct weight *const *w) {
    struct conv_args a = op->args.short_conv;
    val u = here(s, op->in[0]);
    s->state_floats[a.cache] += (int64_t)u.width * (a.kernel - 1);
    map_like(s, op->out[0], op_short_conv(s->to, u, w[0], a), op->in[0]);
}

static void shard_delta_rule(struct sharding *s, const struct op *op, const struct weight *const *w) {
    struct delta_args a = op->args.delta_rule;
    val qkv = here(s, op->in[0]), keys = here(s, val_cols(op->in[0], 0, a.n_key_heads * a.key_dim));
    val b = here(s, op->in[1]);
    a.n_key_heads = keys.width / a.key_dim;
    a.n_value_heads = b.width;
    s->state_floats[a.cache] += (int64_t)a.n_value_heads * a.key_dim * a.value_dim;
    map_cut(s, op->out[0], op_delta_rule(s->to, qkv, b, here(s, op->in[2]), w[0], w[1], a));
}

static void shard_add_norm(struct sharding *s, const struct op *op, const struct weight *const *w) {
    struct normed n = op_add_norm(s->to, whole(s, op->in[0]), whole(s, op->in[1]), w[0], w[1], op->args.norm);
    map_whole(s, op->out[0], n.r);
    map_whole(s, op->out[1], n.y);
}

/* Groups of channels are a head's, or a value is whole. */
static void shard_norm(struct sharding *s, const struct op *op, const struct weight *const *w) {
    val x = here(s, op->in[0]);
    BUG_IF(x.width % op->args.norm.group);
    map_like(s, op->out[0], op_norm(s->to, x, here(s, op->in[1]), w[0], op->args.norm), op->in[0]);
}

static void shard_gated_add(struct sharding *s, const struct op *op) {
    val add = op->in[0], x = op->in[1], gate = whole(s, op->in[2]);
    if (is_sum(s, add) && is_sum(s, x)) {
        map_sum(s, op->out[0], op_gated_add(s->to, s->values[add.id].sum, s->values[x.id].sum, gate));
        return;
    }
    map_like(s, op->out[0], op_gated_add(s->to, here(s, add), here(s, x), gate), add);
}

static void shard_sample(struct sharding *s, const struct op *op) {
    val logits = op->in[0], mine = here(s, logits);
    if (!is_whole(s, logits)) {
        struct units u = cut_units(&s->cutter, dim_vocab(logits.width), "logits");
        mine = op_all_gather(s->to, mine, (int)u.begin, logits.width);
    }
    op_sample(s->to, mine);
}

static enum status refuse_op(const struct program *p, const struct op *op, int n_ranks, struct error *err) {
    return fail(err, ERR_UNSUPPORTED, "%s: %s cannot be split over %d devices", p->name, op_name(op->code), n_ranks);
}

/* An op without a rule of its own: each rank does all of it. */
static void repeat_op(struct sharding *s, const struct op *op, const struct weight *const *w) {
    struct op again = *op;
    for (int k = 0; k < OP_MAX_WEIGHTS; k++)
        again.weights[k] = w[k];
    for (int k = 0; k < OP_MAX_IN; k++) {
        if (val_given(op->in[k]) && !is_whole(s, op->in[k])) {
            s->cutter.status = refuse_op(s->from, op, s->cutter.options.n_ranks, s->cutter.err);
            return;
        }
        again.in[k] = here(s, op->in[k]);
    }
    program_repeat_op(s->to, s->from, &again);
    for (int k = 0; k < OP_MAX_OUT; k++)
        if (val_given(op->out[k]))
            map_whole(s, op->out[k], again.out[k]);
}

static void shard_op(struct sharding *s, const struct op *op, const struct weight *const *w) {
    val x = op->in[0];
    switch (op->code) {
    case OP_EMBED: shard_embed(s, op, w); break;
    case OP_ADD_NORM: shard_add_norm(s, op, w); break;
    case OP_NORM: shard_norm(s, op, w); break;
    case OP_LINEAR: shard_linear(s, op, w); break;
    case OP_QKV_PREP: shard_qkv_prep(s, op, w); break;
    case OP_ATTENTION: shard_attention(s, op, w); break;
    case OP_MLA_PREP:
    case OP_MLA_ATTENTION: shard_mla(s, op, w); break;
    case OP_GATED_ACT:
        map_like(s, op->out[0], op_gated_act(s->to, here(s, x), here(s, op->in[1]), op->args.gated_act), x);
        break;
    case OP_DIFF_HEADS: shard_diff_heads(s, op, w); break;
    case OP_MOE_ROUTE: shard_moe_route(s, op, w); break;
    case OP_MOE_FFN: shard_moe_ffn(s, op, w); break;
    case OP_SHORT_CONV: shard_short_conv(s, op, w); break;
    case OP_DELTA_RULE: shard_delta_rule(s, op, w); break;
    case OP_GATED_ADD: shard_gated_add(s, op); break;
    case OP_TAKE_ROWS: map_whole(s, op->out[0], op_take_rows(s->to, whole(s, x))); break;
    case OP_SOFTCAP: map_like(s, op->out[0], op_softcap(s->to, here(s, x), op->args.softcap.cap), x); break;
    case OP_SAMPLE: shard_sample(s, op); break;
    case OP_LORA: shard_lora(s, op, w); break;
    case OP_ALL_REDUCE:
    case OP_ALL_GATHER: BUG_IF(true); // cut twice
    default: repeat_op(s, op, w);
    }
}

/* ---- the program ---- */

/* Pairs of heads (paired_values) read two KV heads, which are on one rank if there are as many in either half. */
static enum status check_op(const struct program *p, const struct op *op, int n_ranks, struct error *err) {
    const struct attention_args *a = &op->args.attention;
    if (op->code == OP_ATTENTION && a->paired_values && a->n_kv_heads > 1 && a->n_kv_heads % 2)
        return fail(err, ERR_UNSUPPORTED,
                    "%s: ATTENTION: %d key-value heads of pairs of heads cannot be split over %d devices", p->name,
                    a->n_kv_heads, n_ranks);
    return OK;
}

static enum status cut_all(struct sharding *s, struct error *err) {
    struct cutter *c = &s->cutter;
    for (int i = 0; i < s->from->n_ops; i++) {
        const struct op *op = &s->from->ops[i];
        bool apart = op->code == OP_MOE_FFN && c->options.by_expert;
        TRY(check_op(s->from, op, c->options.n_ranks, err));
        struct units experts = {0, 0};
        if (apart)
            experts = cut_expert_range(c, op->args.moe_ffn.n_experts, op->weights[0]->name);
        for (int k = 0; k < OP_MAX_WEIGHTS; k++)
            s->weights[i][k] = apart ? cut_experts(c, op->weights[k], experts) : cut_weight(c, op->weights[k]);
        TRY(c->status);
    }
    return OK;
}

static void end_section(struct sharding *s) {
    for (int i = 0; i < s->n_sums; i++)
        make_sum(s, s->sums[i]);
    s->n_sums = 0;
}

/* Sums that have been added to another are made no more. */
static void forget_added(struct sharding *s, const struct op *op) {
    int n = 0;
    if ((op->code != OP_GATED_ADD && op->code != OP_LORA) || !is_sum(s, op->out[0]))
        return;
    for (int i = 0; i < s->n_sums; i++)
        if (s->sums[i] != op->in[0].id && s->sums[i] != op->in[1].id)
            s->sums[n++] = s->sums[i];
    s->n_sums = n;
}

static enum status record_all(struct sharding *s) {
    const struct program *from = s->from;
    for (int i = 0, section = 0; i < from->n_ops; i++) {
        for (; section < from->ops[i].section; section++) {
            const struct section *next = &from->sections[section + 1];
            end_section(s);
            program_section(s->to, next->name, next->layer);
        }
        shard_op(s, &from->ops[i], s->weights[i]);
        TRY(s->cutter.status);
        forget_added(s, &from->ops[i]);
    }
    for (int c = 0; c < from->n_caches; c++)
        if (from->groups[from->caches[c].group].kind == CACHE_STATE && s->state_floats[c] > 0) // 0: of another stage
            s->to->groups[from->caches[c].group].state_floats = s->state_floats[c];
    for (s->to->n_taps = 0; s->to->n_taps < from->n_taps; s->to->n_taps++)
        s->to->taps[s->to->n_taps] = whole(s, from->taps[s->to->n_taps]); // may be summed here, by an op more
    for (int i = 0; i < s->to->n_taps; i++)
        s->to->values[s->to->taps[i].id].last_use = s->to->n_ops - 1;
    return OK;
}

enum status pass_shard(const struct program *from, const struct shard_options *options, struct program **out,
                       struct error *err) {
    BUG_IF(options->rank < 0 || options->rank >= options->n_ranks || from->n_ranks > 1);
    if (options->n_ranks == 1) {
        *out = program_copy(from);
        return OK;
    }
    struct sharding s = {.from = from, .to = program_copy_caches(from)};
    s.to->rank = options->rank;
    s.to->n_ranks = options->n_ranks;
    cutter_init(&s.cutter, from, options, &s.to->arena, err);
    s.weights = xcalloc((size_t)from->n_ops + 1, sizeof *s.weights);
    s.values = xcalloc((size_t)from->n_values + 1, sizeof *s.values);
    s.sums = xcalloc((size_t)from->n_values + 1, sizeof *s.sums);
    s.state_floats = xcalloc((size_t)from->n_caches + 1, sizeof *s.state_floats);
    enum status st = cut_all(&s, err);
    if (st == OK)
        st = record_all(&s);
    cutter_release(&s.cutter);
    arena_release(&s.memory);
    free(s.weights);
    free(s.values);
    free(s.sums);
    free(s.state_floats);
    if (st != OK) {
        program_free(s.to);
        s.to = NULL;
    }
    *out = s.to;
    return st;
}
