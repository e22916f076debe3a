/* step.c - a step: the plan goes to the device, the ops go on the stream, an event says when its results are in the host's memory.
 *
 * Nothing here waits for the device but step_collect, for the oldest step in flight. */
#include "backend/cuda/attention/attention.h"
#include "backend/cuda/attention/mla.h"
#include "backend/cuda/cuda.h"
#include "backend/cuda/moe/moe.h"
#include "backend/cuda/qact/quantise.h"
#include "backend/cuda/recurrent/delta.h"
#include "backend/cuda/rows/elementwise.h"
#include "backend/cuda/rows/norm.h"
#include "backend/cuda/rows/rows.h"
#include "backend/cuda/sample/sample.h"
#include "backend/cuda/value.h"

#include <string.h>

// ---- the cache --------------------------------------------------------------------------------------------------

/* A block of every layer of a group, or a slot of a recurrent one: the first, and the way from layer to layer. */
struct block_run {
    char *at;
    size_t pitch;
};

static struct block_run run_of(const struct loaded *loaded, int group, int64_t bytes, int32_t id) {
    const struct group_cache *c = &loaded->caches[group];
    if (id < c->n_blocks)
        return (struct block_run){(char *)c->at + cache_place(c, id) * bytes, (size_t)(c->piece_blocks * bytes)};
    return (struct block_run){(char *)c->host + (id - c->n_blocks) * bytes, (size_t)(c->n_host * bytes)};
}

static enum status copy_blocks(struct executable *exe, int group, int32_t from, int32_t to, struct error *err) {
    struct loaded *loaded = exe->loaded;
    const struct cache_group *g = &exe->program->groups[group];
    int64_t bytes = loaded->caches[group].block_elements * element_bytes(loaded->caches[group].element);
    struct block_run source = run_of(loaded, group, bytes, from), target = run_of(loaded, group, bytes, to);
    bool at_once =
        MAX(source.pitch, target.pitch) <= (size_t)loaded->device->most_pitch; // else layers of large caches lie too far apart for it
    for (int i = 0, n = at_once ? 1 : g->n_layers; i < n; i++)
        DEVICE_TRY(loaded->device, err,
                   at_once ? cudaMemcpy2DAsync(target.at, target.pitch, source.at, source.pitch, (size_t)bytes, (size_t)g->n_layers,
                                               cudaMemcpyDefault, loaded->device->stream)
                           : cudaMemcpyAsync(target.at + (size_t)i * target.pitch, source.at + (size_t)i * source.pitch, (size_t)bytes,
                                             cudaMemcpyDefault, loaded->device->stream),
                   "copying block %d of cache group %d to %d", from, group, to);
    return OK;
}

static enum status copy_cache(struct executable *exe, const struct batch_plan *p, struct error *err) {
    for (int i = 0; i < p->n_copies; i++) {
        const struct cache_copy *c = &p->copies[i];
        for (int g = 0; g < exe->program->n_groups; g++)
            if (c->group == g || (c->group == STATE_SLOTS && exe->program->groups[g].kind == CACHE_STATE))
                TRY(copy_blocks(exe, g, c->from, c->to, err));
    }
    return OK;
}

// ---- the ops ----------------------------------------------------------------------------------------------------

/* What a kernel of ours writes. Those that can fold the rows' largest sizes as well if a LINEAR is going to ask for them. */
static void written_by_ours(const struct executable *exe, const struct compiled_op *c, int n_rows, struct linear_values *v) {
    const struct compiled_op *maker = linear_maker(c, n_rows);
    enum linear_path path = linear_path(c, n_rows);
    v->y = maker->out[0];
    if (path != PATH_GATED && (path != PATH_SMALL_M || maker->op->code != OP_GATED_ACT))
        return;
    v->y = output_with_absmax(exe, maker, 0, n_rows);
    v->qact = qact_static(maker, 0);
    v->y.untold_only = v->qact.at && !value_is_read(exe, maker, 0, n_rows);
}

/* The qact of x, which the product settles itself, or a node before it. */
static void read_qact(const struct executable *exe, const struct compiled_op *c, const struct launch *l, int n_rows, struct dmat x,
                      struct linear_values *v) {
    struct qact *t = c->in_qact;
    struct dcounter others = {&exe->loaded->counts->rows_outside, l->plan.counts};
    x.absmax = t->folded ? t->absmax : NULL;
    v->x = t->q;
    if (!t->written && t->has_static_scale && gemm_requantises(c->gemm, n_rows))
        v->requant = (struct drequant){x, t->of_tokens, others};
    else if (!t->written && t->has_static_scale)
        launch_requantise(l, n_rows, x, t->q, others);
    else if (!t->written)
        launch_quantise(l, n_rows, x, t->q);
    t->written = true;
}

static enum status run_linear(const struct executable *exe, const struct compiled_op *c, const struct launch *l, int n_rows,
                              struct error *err) {
    struct dmat x = l->in_order && c->in_order.at ? c->in_order : c->in[0];
    enum linear_path path = linear_path(c, n_rows);
    struct linear_values v = {0};
    if (reads_qact(path)) {
        watch_input(exe, c, l, n_rows, x, c->in_qact);
        read_qact(exe, c, l, n_rows, x, &v);
        v.y = c->unscaled;
        if (is_ours(path))
            written_by_ours(exe, c, n_rows, &v);
        TRY(gemm_run(c->gemm, n_rows, &v, err));
        if (!is_ours(path) && !c->unscaled_is_read)
            launch_rescale(l, n_rows, c->unscaled, c->out[0]);
        return OK;
    }
    if (c->convert.at) {
        launch_convert(l, n_rows, x, c->convert);
        x = c->convert;
    }
    watch_input(exe, c, l, n_rows, x, NULL);
    if (path == PATH_HEAD)
        return head_run(exe, c, l, x, err);
    if (path != PATH_GEMV)
        return gemm_run(c->gemm, n_rows, &(struct linear_values){.x = x, .y = c->out[0]}, err);
    gemv_run(exe, c, l, n_rows, x);
    return OK;
}

/* The first makes the step's angles too, and clears its largest sizes. */
static void run_embed(const struct executable *exe, const struct compiled_op *c, const struct launch *l) {
    struct dropes ropes = {0};
    struct drow_absmax row_absmax = {0};
    if (c == exe->ops)
        row_absmax = exe->row_absmax;
    for (int i = 0; c == exe->ops && i < exe->program->n_ropes; i++)
        if (exe->ropes[i].dim > 0)
            ropes.rope[ropes.n++] = exe->ropes[i];
    launch_embed(l, c->matrix[0], c->op->args.embed.scale, c->out[0], &ropes, &row_absmax);
}

/* What a producer makes of out[k] for those who read it: the value, its qact or both. */
struct made {
    struct dmat y, qact; // at NULL: not wanted
};

static struct made made_for(const struct executable *exe, const struct compiled_op *c, int k, int n_rows) {
    struct made m = {c->out[k], qact_to_write(exe, c, k, n_rows)};
    if (!value_is_read(exe, c, k, n_rows))
        m.y.at = NULL;
    return m;
}

/* Whether the node before c's lets it read its first input before it waits. */
static bool may_prefetch(const struct executable *exe, const struct compiled_op *c, int n_rows) {
    const struct compiled_op *before = c;
    do {
        if (before == exe->ops)
            return false;
        before--;
    } while (before->fold == FOLD_ALWAYS);
    return before->op->code == OP_LINEAR && before->unscaled_is_read && linear_path(before, n_rows) == PATH_SPLIT_K &&
           before->op->out[0].id != c->op->in[0].id;
}

static void run_add_norm(const struct executable *exe, const struct compiled_op *c, const struct launch *l) {
    const struct norm_args *a = &c->op->args.norm;
    struct dadd_norm d = {.w = c->floats[0], .r_scale = c->floats[1], .eps = a->eps, .plus_one = a->plus_one};
    struct made m = made_for(exe, c, 1, l->n_tokens);
    if (c->d_norm) {
        d.d_norm = c->d_weight;
        d.d_eps = c->d_norm->eps;
        d.d_plus_one = c->d_norm->plus_one;
    }
    d.prefetch = may_prefetch(exe, c, l->n_tokens);
    launch_add_norm(l, &d, c->in[0], input_of(exe, c, 1, l->n_tokens), c->out[0], m.y, m.qact);
}

static void run_norm(const struct executable *exe, const struct compiled_op *c, const struct launch *l, int n_rows) {
    const struct norm_args *a = &c->op->args.norm;
    struct made m = {.y = c->out[0]};
    if (a->group == c->in[0].width)
        m = made_for(exe, c, 0, n_rows);
    launch_norm(l, n_rows, c->in[0], c->in[1], c->floats[0], a->eps, a->plus_one, a->group, a->scale, m.y, m.qact);
}

static void run_gated_act(const struct executable *exe, const struct compiled_op *c, const struct launch *l, int n_rows) {
    const struct act_args *a = &c->op->args.gated_act;
    struct dmat gate = input_of(exe, c, 0, n_rows), up = input_of(exe, c, 1, n_rows);
    struct made m = {.y = c->out[0]};
    if (c->pair && does_its_pair(c->pair, n_rows))
        return; // its LINEAR did it
    for (int k = 0; k < 2 && !gate.col_scale; k++)
        watch_input(exe, c, l, n_rows, k ? up : gate, NULL);
    if (gated_act_takes_qact((int)a->act, gate, up, c->out[0]))
        m = made_for(exe, c, 0, n_rows);
    launch_gated_act(l, n_rows, (int)a->act, a->limit, gate, up, m.y, m.qact);
}

static void run_route(const struct compiled_op *c, const struct launch *l) {
    const struct route_args *a = &c->op->args.moe_route;
    struct droute d = {(int)a->how, a->n_experts, a->top_k, a->n_groups, a->top_groups, a->renormalise, a->scale};
    launch_moe_route(l, &d, c->in[0], c->floats[0], c->floats[1], c->out[0], c->out[1]);
}

static void run_experts(const struct executable *exe, const struct compiled_op *c, const struct launch *l) {
    const struct moe_args *a = &c->op->args.moe_ffn;
    struct dmoe d = {a->n_experts, a->top_k, a->ffn_size, (int)a->act.act, a->act.limit, exe->scratch};
    launch_moe_ffn(l, &d, c->in[0], c->in[1], c->in[2], c->matrix[0], c->matrix[1], c->floats[2], c->floats[3], c->out[0]);
}

static void run_qkv_prep(const struct executable *exe, const struct compiled_op *c, const struct launch *l) {
    struct dqkv d = qkv_of(c->op);
    if (!attention_prepares(exe, c, l))
        launch_qkv_prep(l, &d, c->rope, input_of(exe, c, 0, l->n_tokens), c->floats[0], c->floats[1], c->cache, c->out[0]);
}

static struct dmla mla_of(const struct mla_args *a) {
    return (struct dmla){a->n_heads, a->rank, a->nope_dim, a->rope_dim, a->v_dim, a->eps, a->scale};
}

static void run_delta(const struct executable *exe, const struct compiled_op *c, const struct launch *l) {
    const struct delta_args *a = &c->op->args.delta_rule;
    const struct cache_group *g = &exe->program->groups[c->cache.group];
    struct ddelta d = {a->n_key_heads, a->n_value_heads, a->key_dim, a->value_dim,
                       g->state_floats - (int64_t)a->n_value_heads * a->key_dim * a->value_dim};
    launch_delta_rule(l, &d, c->in[0], c->in[1], c->in[2], c->floats[0], c->floats[1], c->cache, c->out[0]);
}

/* Whether the node of the head did it. */
static bool softcap_is_done(const struct executable *exe, const struct compiled_op *softcap, int n_rows) {
    return softcap->op->out[0].id == exe->program->ops[exe->program->n_ops - 1].in[0].id && head_does(exe, n_rows);
}

static enum status op_refused(struct executable *exe, const struct compiled_op *c, int n_rows, cudaError_t code, struct error *err) {
    char what[280];
    op_described(exe, c, n_rows, what, sizeof what);
    return device_fault(exe->loaded->device, err, code, "%s", what);
}

static enum status run_op(struct executable *exe, const struct compiled_op *c, const struct launch *l, struct error *err) {
    const union op_args *a = &c->op->args;
    enum rows kind = val_given(c->op->in[0]) ? exe->program->values[c->op->in[0].id].rows : ROWS_TOKENS;
    int n_rows = kind == ROWS_TOKENS ? l->n_tokens : l->n_rows;
    if (n_rows == 0 || c->fold == FOLD_ALWAYS || (c->fold == FOLD_IN_ORDER && l->in_order))
        return OK;
    switch (c->op->code) {
    case OP_EMBED: run_embed(exe, c, l); break;
    case OP_ADD_NORM: run_add_norm(exe, c, l); break;
    case OP_NORM: run_norm(exe, c, l, n_rows); break;
    case OP_LINEAR: TRY(run_linear(exe, c, l, n_rows, err)); break;
    case OP_QKV_PREP: run_qkv_prep(exe, c, l); break;
    case OP_ATTENTION: attention_launch(exe, c, l); break;
    case OP_MLA_PREP: {
        struct dmla d = mla_of(&a->mla);
        launch_mla_prep(l, &d, c->rope, c->in[0], c->in[1], c->floats[0], c->matrix[1], c->cache, c->out[0]);
        break;
    }
    case OP_MLA_ATTENTION: {
        struct dmla d = mla_of(&a->mla);
        launch_mla_attention(l, &d, c->in[0], c->matrix[0], c->cache, c->out[0]);
        break;
    }
    case OP_GATED_ACT: run_gated_act(exe, c, l, n_rows); break;
    case OP_DIFF_HEADS: launch_diff_heads(l, c->in[0], c->floats, a->diff_heads.lambda_init, c->out[0]); break;
    case OP_MOE_ROUTE: run_route(c, l); break;
    case OP_MOE_FFN: run_experts(exe, c, l); break;
    case OP_SHORT_CONV: launch_short_conv(l, a->short_conv.kernel, c->in[0], c->floats[0], c->cache, c->out[0]); break;
    case OP_DELTA_RULE: run_delta(exe, c, l); break;
    case OP_GATED_ADD: launch_gated_add(l, n_rows, c->in[0], c->in[1], c->in[2], c->out[0]); break;
    case OP_TAKE_ROWS:
        if (l->n_rows > 0)
            launch_take_rows(l, c->in[0], c->out[0]);
        break;
    case OP_SOFTCAP:
        if (!softcap_is_done(exe, c, n_rows))
            launch_softcap(l, n_rows, a->softcap.cap, c->in[0], c->out[0]);
        break;
    case OP_SAMPLE: launch_sample(l, c->in[0], head_bests(exe, n_rows), exe->row_copies); break;
    case N_OPCODES: BUG_IF(true);
    }
    cudaError_t code = cudaGetLastError();
    return code == cudaSuccess ? OK : op_refused(exe, c, n_rows, code, err);
}

enum status step_launch_ops(struct executable *exe, const struct launch *l, int first, int end, struct error *err) {
    for (int i = 0; i < exe->n_qacts; i++)
        exe->qacts[i].written = exe->qacts[i].has_static_scale = exe->qacts[i].folded = false;
    for (int i = first; i < end; i++) {
        TRY(trace_mark(exe, i, err));
        TRY(run_op(exe, &exe->ops[i], l, err));
    }
    return OK;
}

enum status step_launch(struct executable *exe, const struct launch *l, struct error *err) {
    TRY(attention_lists_launch(exe, l, err));
    return step_launch_ops(exe, l, 0, exe->program->n_ops, err);
}

// ---- steps ------------------------------------------------------------------------------------------------------

/* All but SAMPLE. The slot's event says meanwhile that the device has the plan, whose rows draw writes anew. */
static enum status launch_forward(struct executable *exe, struct step_slot *slot, const struct launch *l, struct error *err) {
    struct device *d = exe->loaded->device;
    DEVICE_TRY(d, err, cudaEventRecord(slot->done, d->stream), "the plan of %d tokens", slot->plan->n_tokens);
    TRY(attention_lists_launch(exe, l, err));
    return step_launch_ops(exe, l, 0, exe->program->n_ops - 1, err);
}

static enum status launch_all(struct executable *exe, struct step_slot *slot, const struct launch *l, struct error *err) {
    struct device *d = exe->loaded->device;
    const struct batch_plan *plan = slot->plan;
    TRY(graphs_have(exe, plan) ? graphs_run(exe, plan->n_rows, err) : step_launch(exe, l, err));
    DEVICE_TRY(d, err, cudaEventRecord(slot->done, d->stream), "a step of %d tokens", plan->n_tokens);
    exe->loaded->n_filtered += plan->n_rows > 0 && slot->n_not_plain == 0 && filter_done(exe, l->n_rows);
    return OK;
}

static enum status check_fault(const struct device *d, struct error *err) {
    if (d->fault.status != OK)
        *err = d->fault;
    return d->fault.status;
}

enum status step_run(struct executable *exe, const struct batch_plan *plan, const struct sample_params *sample, struct error *err) {
    struct loaded *loaded = exe->loaded;
    struct step_slot *slot = &exe->slots[exe->n_started % STEPS_IN_FLIGHT];
    BUG_IF(plan->n_tokens > exe->bucket.max_tokens || plan->n_seqs > exe->bucket.max_seqs || plan->n_rows > exe->bucket.max_rows);
    BUG_IF(exe->n_started - exe->n_collected == STEPS_IN_FLIGHT || exe->is_late);
    TRY(check_fault(loaded->device, err));
    slot->plan = plan;
    slot->sample = sample;
    TRY(device_enter(loaded->device, err));
    TRY(copy_cache(exe, plan, err));
    TRY(filter_again(exe, err));
    TRY(plan_send(exe, slot, err));
    struct launch l = launch_for(exe, plan);
    l.watches = !(sample && graphs_have(exe, plan)) && watch_begins(loaded);
    TRY(sample ? launch_all(exe, slot, &l, err) : launch_forward(exe, slot, &l, err));
    exe->is_late = !sample;
    exe->n_started++;
    return OK;
}

enum status step_draw(struct executable *exe, const struct sample_params *sample, struct error *err) {
    struct device *d = exe->loaded->device;
    struct step_slot *slot = &exe->slots[(exe->n_started - 1) % STEPS_IN_FLIGHT];
    BUG_IF(!exe->is_late);
    TRY(check_fault(d, err));
    TRY(device_enter(d, err));
    DEVICE_TRY(d, err, cudaEventSynchronize(slot->done), "the plan of %d tokens", slot->plan->n_tokens);
    slot->sample = sample;
    TRY(plan_send_rows(exe, slot, err));
    struct launch l = launch_for(exe, slot->plan);
    TRY(step_launch_ops(exe, &l, exe->program->n_ops - 1, exe->program->n_ops, err));
    DEVICE_TRY(d, err, cudaEventRecord(slot->done, d->stream), "the draws of %d rows", slot->plan->n_rows);
    exe->is_late = false;
    return OK;
}

const struct step_slot *step_collected(const struct executable *exe) { return &exe->slots[(exe->n_collected - 1) % STEPS_IN_FLIGHT]; }

static void take_result(const struct step_slot *slot, int r, struct sample_result *result) {
    const struct dsampled *d = &slot->sampled[r];
    *result = (struct sample_result){.token = d->token,
                                     .argmax = d->argmax,
                                     .logprob = d->logprob,
                                     .target_logprob = d->target_logprob,
                                     .target_rank = d->target_rank,
                                     .not_finite = d->flags & SAMPLED_NOT_FINITE,
                                     .nothing_left = d->flags & SAMPLED_NOTHING_LEFT};
    size_t n = (size_t)slot->sample[r].n_top_logprobs, at = (size_t)r * MOST_TOP_LOGPROBS;
    memcpy(result->top_token, slot->top_token + at, n * sizeof *result->top_token);
    memcpy(result->top_logprob, slot->top_logprob + at, n * sizeof *result->top_logprob);
}
_Static_assert((int)MOST_TOP_LOGPROBS == (int)MAX_TOP_LOGPROBS, "the device has room for as many as may be asked for");

enum status step_collect(struct executable *exe, struct sample_result *results, struct error *err) {
    struct loaded *loaded = exe->loaded;
    BUG_IF(exe->n_collected == exe->n_started - exe->is_late);
    const struct step_slot *slot = &exe->slots[exe->n_collected % STEPS_IN_FLIGHT];
    TRY(device_enter(loaded->device, err));
    DEVICE_TRY(loaded->device, err, cudaEventSynchronize(slot->done), "%s: a step of %d tokens, %d sequences and %d rows, %s",
               exe->program->name, slot->plan->n_tokens, slot->plan->n_seqs, slot->plan->n_rows,
               graphs_have(exe, slot->plan) ? "captured" : "op by op");
    for (int r = 0; r < slot->plan->n_rows; r++)
        take_result(slot, r, &results[r]);
    exe->n_collected++;
    return OK;
}
