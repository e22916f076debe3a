/* step.c - a step: the plan goes up in one block, the ops go on the stream, results come down in one block.
 *
 * What the device does not draw yet (anything but the most probable token and its log-probability) is drawn here from the
 * row's logits by the reference, core/sample.h. */
#include "backend/cuda/cuda.h"

#include <stdlib.h>
#include <string.h>

// ---- the plan ---------------------------------------------------------------------------------------------------

static size_t place(size_t *total, size_t n) {
    size_t at = *total;
    *total += (n * sizeof(int32_t) + 255) / 256 * 256;
    return at;
}

/* The layout depends on the bucket and the engine's tables alone, so addresses on the device never change. */
static void lay_out(struct executable *exe, const int *table_width) {
    size_t tokens = (size_t)exe->bucket.max_tokens, seqs = (size_t)exe->bucket.max_seqs, rows = (size_t)exe->bucket.max_rows, n = 0;
    exe->at_counts = place(&n, 4);
    exe->at_token_id = place(&n, tokens);
    exe->at_position = place(&n, tokens);
    exe->at_seq_of_row = place(&n, tokens);
    exe->at_query_start = place(&n, seqs + 1);
    exe->at_seq_len = place(&n, seqs);
    exe->at_n_known = place(&n, seqs);
    exe->at_state_slot = place(&n, seqs);
    exe->at_out_row = place(&n, rows);
    exe->at_target = place(&n, rows);
    for (int g = 0; g < exe->program->n_groups; g++)
        exe->at_table[g] = place(&n, seqs * (size_t)table_width[g]);
    exe->plan_bytes = n;
}

enum status step_alloc_plan(struct executable *exe, struct error *err) {
    lay_out(exe, exe->backend->table_width);
    TRY(device_alloc(exe, &exe->plan_device, (int64_t)exe->plan_bytes, "a plan", err));
    if (exe->only_sized)
        return OK;
    DEVICE_TRY(exe->backend, err, cudaMallocHost((void **)&exe->plan_host, exe->plan_bytes), "a plan of %zu bytes", exe->plan_bytes);
    const int32_t *base = (const int32_t *)(const void *)exe->plan_device;
    struct device_plan *v = &exe->plan_view;
    v->counts = base + exe->at_counts / 4;
    v->token_id = base + exe->at_token_id / 4;
    v->position = base + exe->at_position / 4;
    v->seq_of_row = base + exe->at_seq_of_row / 4;
    v->query_start = base + exe->at_query_start / 4;
    v->seq_len = base + exe->at_seq_len / 4;
    v->n_known = base + exe->at_n_known / 4;
    v->state_slot = base + exe->at_state_slot / 4;
    v->out_row = base + exe->at_out_row / 4;
    for (int g = 0; g < exe->program->n_groups; g++) {
        v->block_table[g] = base + exe->at_table[g] / 4;
        v->table_width[g] = exe->backend->table_width[g];
    }
    return OK;
}

static int32_t *host_array(struct executable *exe, size_t at) { return (int32_t *)(void *)(exe->plan_host + at); }

static void write_plan(struct executable *exe, const struct batch_plan *p) {
    size_t tokens = (size_t)p->n_tokens * sizeof(int32_t), seqs = (size_t)p->n_seqs * sizeof(int32_t);
    int32_t *counts = host_array(exe, exe->at_counts);
    counts[0] = p->n_tokens;
    counts[1] = p->n_seqs;
    counts[2] = p->n_rows;
    memcpy(host_array(exe, exe->at_token_id), p->token_id, tokens);
    memcpy(host_array(exe, exe->at_position), p->position, tokens);
    memcpy(host_array(exe, exe->at_query_start), p->query_start, seqs + sizeof(int32_t));
    memcpy(host_array(exe, exe->at_seq_len), p->seq_len, seqs);
    memcpy(host_array(exe, exe->at_n_known), p->n_known, seqs);
    memcpy(host_array(exe, exe->at_state_slot), p->state_slot, seqs);
    memcpy(host_array(exe, exe->at_out_row), p->out_row, (size_t)p->n_rows * sizeof(int32_t));
    for (int r = 0; r < p->n_rows; r++)
        host_array(exe, exe->at_target)[r] = p->sample[r].target;
    for (int s = 0; s < p->n_seqs; s++)
        for (int32_t t = p->query_start[s]; t < p->query_start[s + 1]; t++)
            host_array(exe, exe->at_seq_of_row)[t] = s;
    for (int g = 0; g < exe->program->n_groups; g++)
        memcpy(host_array(exe, exe->at_table[g]), p->block_table[g], seqs * (size_t)p->table_width[g]);
}

/* A block of every layer of a group, or a slot of a recurrent one: the first, and the way from layer to layer. */
struct block_run {
    char *at;
    size_t pitch;
};

static struct block_run run_of(const struct backend *b, int group, int64_t bytes, int32_t id) {
    int64_t n = b->caches[group].n_blocks;
    if (id < n)
        return (struct block_run){(char *)b->caches[group].at + id * bytes, (size_t)(n * bytes)};
    return (struct block_run){(char *)b->caches[group].host + (id - n) * bytes, (size_t)(b->caches[group].n_host * bytes)};
}

static enum status copy_blocks(struct executable *exe, int group, int32_t from, int32_t to, struct error *err) {
    struct backend *b = exe->backend;
    const struct cache_group *g = &exe->program->groups[group];
    int64_t bytes = b->caches[group].block_elements * element_bytes(b->caches[group].element);
    struct block_run source = run_of(b, group, bytes, from), target = run_of(b, group, bytes, to);
    DEVICE_TRY(b, err,
               cudaMemcpy2DAsync(target.at, target.pitch, source.at, source.pitch, (size_t)bytes, (size_t)g->n_layers, cudaMemcpyDefault,
                                 b->stream),
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

static enum status run_linear(const struct compiled_op *c, const struct launch *l, int n_rows, struct error *err) {
    struct dmat x = l->in_order && c->in_order.at ? c->in_order : c->in[0];
    if (gemm_path(c->gemm, n_rows) == PATH_TWIN) {
        if (!c->in_twin->written)
            launch_quantise(l, n_rows, x, c->in_twin->q);
        c->in_twin->written = true;
        TRY(gemm_run(c->gemm, n_rows, c->in_twin->q, c->raw, err));
        if (!c->raw_is_read)
            launch_rescale(l, n_rows, c->raw, c->out[0]);
        return OK;
    }
    if (c->convert.at) {
        launch_convert(l, n_rows, x, c->convert);
        x = c->convert;
    }
    return gemm_run(c->gemm, n_rows, x, c->out[0], err);
}

/* The first makes the step's angles too. */
static void run_embed(const struct executable *exe, const struct compiled_op *c, const struct launch *l) {
    struct dropes ropes = {0};
    for (int i = 0; c == exe->ops && i < exe->program->n_ropes; i++)
        if (exe->ropes[i].dim > 0)
            ropes.rope[ropes.n++] = exe->ropes[i];
    launch_embed(l, c->matrix[0], c->op->args.embed.scale, c->out[0], &ropes);
}

/* What a producer makes of out[k] for those who read it: the value, its twin or both. */
struct made {
    struct dmat y, twin; // at NULL: not wanted
};

static struct made made_for(const struct executable *exe, const struct compiled_op *c, int k, int n_rows) {
    struct made m = {c->out[k], twin_to_write(exe, c, k, n_rows)};
    if (!value_is_read(exe, c, k, n_rows))
        m.y.at = NULL;
    return m;
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
    launch_add_norm(l, &d, c->in[0], input_of(exe, c, 1, l->n_tokens), c->out[0], m.y, m.twin);
}

static void run_norm(const struct executable *exe, const struct compiled_op *c, const struct launch *l, int n_rows) {
    const struct norm_args *a = &c->op->args.norm;
    struct made m = {.y = c->out[0]};
    if (a->group == c->in[0].width)
        m = made_for(exe, c, 0, n_rows);
    launch_norm(l, n_rows, c->in[0], c->in[1], c->floats[0], a->eps, a->plus_one, a->group, a->scale, m.y, m.twin);
}

static void run_gated_act(const struct executable *exe, const struct compiled_op *c, const struct launch *l, int n_rows) {
    const struct act_args *a = &c->op->args.gated_act;
    struct dmat gate = input_of(exe, c, 0, n_rows), up = input_of(exe, c, 1, n_rows);
    struct made m = {.y = c->out[0]};
    if (gated_act_takes_twin(gate, up, c->out[0]))
        m = made_for(exe, c, 0, n_rows);
    launch_gated_act(l, n_rows, (int)a->act, a->limit, gate, up, m.y, m.twin);
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

static void run_qkv_prep(const struct compiled_op *c, const struct launch *l) {
    const struct qkv_args *a = &c->op->args.qkv_prep;
    struct dqkv d = {a->n_heads, a->n_kv_heads, a->head_dim, a->v_head_dim, a->eps, a->plus_one, a->v_norm, a->v_from_k, a->k_absent};
    launch_qkv_prep(l, &d, c->rope, c->in[0], c->floats[0], c->floats[1], c->cache, c->out[0]);
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
    case OP_LINEAR: TRY(run_linear(c, l, n_rows, err)); break;
    case OP_QKV_PREP: run_qkv_prep(c, l); break;
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
    case OP_SOFTCAP: launch_softcap(l, n_rows, a->softcap.cap, c->in[0], c->out[0]); break;
    case OP_SAMPLE:
        launch_greedy(l, c->in[0], (const int32_t *)(const void *)(exe->plan_device + exe->at_target), exe->sampled_device);
        break;
    case N_OPCODES: BUG_IF(true);
    }
    DEVICE_TRY(exe->backend, err, cudaGetLastError(), "%s: starting %s for %d rows", exe->program->name, op_name(c->op->code), n_rows);
    return OK;
}

enum status step_launch(struct executable *exe, const struct launch *l, struct error *err) {
    for (int i = 0; i < exe->n_twins; i++)
        exe->twins[i].written = false;
    attention_lists_launch(exe, l);
    for (int i = 0; i < exe->program->n_ops; i++) {
        TRY(trace_mark(exe, i, err));
        TRY(run_op(exe, &exe->ops[i], l, err));
    }
    return OK;
}

enum status step_run(struct executable *exe, const struct batch_plan *plan, struct error *err) {
    struct backend *b = exe->backend;
    BUG_IF(plan->n_tokens > exe->bucket.max_tokens || plan->n_seqs > exe->bucket.max_seqs || plan->n_rows > exe->bucket.max_rows);
    if (b->fault.status != OK) {
        *err = b->fault;
        return err->status;
    }
    exe->plan = plan;
    write_plan(exe, plan);
    TRY(copy_cache(exe, plan, err));
    DEVICE_TRY(b, err, cudaMemcpyAsync(exe->plan_device, exe->plan_host, exe->plan_bytes, cudaMemcpyHostToDevice, b->stream),
               "sending a plan of %zu bytes", exe->plan_bytes);
    struct launch l = {b->stream, plan->n_tokens, plan->n_seqs, plan->n_rows, exe->plan_view, b->block_size, false};
    TRY(graphs_have(exe, plan) ? graphs_run(exe, plan->n_rows, err) : step_launch(exe, &l, err));
    if (plan->n_rows > 0)
        DEVICE_TRY(b, err,
                   cudaMemcpyAsync(exe->sampled_host, exe->sampled_device, (size_t)plan->n_rows * sizeof *exe->sampled_host,
                                   cudaMemcpyDeviceToHost, b->stream),
                   "fetching %d results", plan->n_rows);
    return OK;
}

// ---- results ----------------------------------------------------------------------------------------------------

/* Whether the row's token is the most probable one, and nothing is asked that the device does not say. */
static bool is_greedy(const struct sample_params *p) {
    struct sample_params rest = *p;
    rest.want_logprob = rest.want_logits = false;
    rest.target = -1;
    return sample_is_plain(&rest);
}

static void take_greedy(const struct dsample *d, const struct sample_params *p, struct sample_result *result) {
    *result = (struct sample_result){.token = d->argmax, .argmax = d->argmax, .not_finite = d->not_finite};
    if (result->not_finite || (!p->want_logprob && p->target < 0))
        return;
    result->logprob = d->argmax_logprob;
    result->target_logprob = d->target_logprob;
    result->target_rank = p->target >= 0 ? d->target_rank : 0;
}

static enum status fetch_row(struct executable *exe, int row, struct error *err) {
    size_t width = (size_t)exe->logits.width;
    DEVICE_TRY(exe->backend, err,
               cudaMemcpyAsync(exe->logits_host + (size_t)row * width, (float *)exe->logits.at + (int64_t)row * exe->logits.stride,
                               width * sizeof(float), cudaMemcpyDeviceToHost, exe->backend->stream),
               "fetching the logits of row %d", row);
    exe->on_host[row] = true;
    return OK;
}

enum status step_collect(struct executable *exe, struct sample_result *results, struct error *err) {
    const struct batch_plan *plan = exe->plan;
    struct backend *b = exe->backend;
    BUG_IF(!plan);
    for (int r = 0; r < plan->n_rows; r++) {
        exe->on_host[r] = false;
        if (!is_greedy(&plan->sample[r]) || plan->sample[r].want_logits)
            TRY(fetch_row(exe, r, err));
    }
    DEVICE_TRY(b, err, cudaStreamSynchronize(b->stream), "%s: a step of %d tokens", exe->program->name, plan->n_tokens);
    for (int r = 0; r < plan->n_rows; r++) {
        if (is_greedy(&plan->sample[r]))
            take_greedy(&exe->sampled_host[r], &plan->sample[r], &results[r]);
        else
            sample_row(exe->logits_host + (size_t)r * (size_t)exe->logits.width, exe->logits.width, &plan->sample[r], &exe->sample_scratch,
                       &results[r]);
    }
    return OK;
}
