/* compile.c - a program made ready for steps up to a size: elements and places of values, arguments of ops, kernels of
 * LINEARs, graphs. */
#include "backend/cuda/step/compile.h"
#include "backend/cuda/attention/lists.h"
#include "backend/cuda/cuda.h"
#include "backend/cuda/device/device.h"
#include "backend/cuda/device/probes.h"
#include "backend/cuda/head/head.h"
#include "backend/cuda/linear/gemm.h"
#include "backend/cuda/linear/linear.h"
#include "backend/cuda/linear/plan_cache.h"
#include "backend/cuda/moe/experts.h"
#include "backend/cuda/moe/moe.h"
#include "backend/cuda/qact/qact.h"
#include "backend/cuda/ranks/join.h"
#include "backend/cuda/recurrent/recurrent.h"
#include "backend/cuda/rows/rows.h"
#include "backend/cuda/sample/sample.h"
#include "backend/cuda/cache/cache.h"
#include "backend/cuda/step/fold.h"
#include "backend/cuda/step/launch.h"
#include "backend/cuda/step/node.h"
#include "backend/cuda/step/padded.h"
#include "backend/cuda/step/plan.h"
#include "backend/cuda/step/step.h"
#include "backend/cuda/value.h"
#include "backend/cuda/weights/weights.h"

#include <stdlib.h>
#include <string.h>

enum { MOST_TOKENS = 65535 };   // of a step: rows of a grid

// ---- compile: what each value is made of ------------------------------------------------------------------------

/* Whether the value is a state that later layers add to. */
static bool is_residual(const struct program *p, val v) {
    for (int i = 0; i < p->n_ops; i++) {
        const struct op *op = &p->ops[i];
        if ((op->code == OP_EMBED && op->out[0].id == v.id) ||
            (op->code == OP_ADD_NORM && (op->out[0].id == v.id || op->in[0].id == v.id)))
            return true;
    }
    return false;
}

/* Whether the value is what a gate_up projection with weights in e4m3 or four bits makes: columns that nobody but a
 * GATED_ACT reads. */
static bool is_gate_up(const struct loaded *loaded, const struct program *p, int id) {
    const struct op *maker = &p->ops[p->values[id].first_use];
    bool read = false;
    if (maker->code != OP_LINEAR)
        return false;
    enum element w = weight_on_device(loaded, maker->weights[0])->matrix.element;
    if (w != ELEMENT_E4M3 && w != ELEMENT_QUADS)
        return false;
    for (int i = 0; i < p->n_ops; i++)
        for (int k = 0; k < OP_MAX_IN; k++)
            if (p->ops[i].in[k].id == id) {
                if (p->ops[i].code != OP_GATED_ACT || p->ops[i].in[1 - k].id != id)
                    return false;
                read = true;
            }
    return read;
}

/* What products read has their element. Of what they make, gates and ups have it if the weights are e4m3, which leaves
 * 4 of its bits right: a step of many rows is bound by their bytes. All else is float32: sums of products go to the
 * norm, the rotation, the softmax and the activation as they were made, and are rounded once, on the way into the next
 * product. Queries are where ATTENTION rounds them anyway. */
static void choose_elements(const struct loaded *loaded, const struct program *p, enum element *element) {
    enum element product = loaded->product;
    for (int i = 0; i < p->n_values; i++)
        element[i] = p->values[i].dtype == DT_I32 ? ELEMENT_I32 : ELEMENT_F32;
    for (int i = 0; i < p->n_ops; i++)
        if (p->ops[i].code == OP_LINEAR && !is_residual(p, p->ops[i].in[0]))
            element[p->ops[i].in[0].id] = product;
    for (int i = 0; i < p->n_ops; i++)
        if (experts_stream(loaded, &p->ops[i]) && !is_residual(p, p->ops[i].in[0]))
            element[p->ops[i].in[0].id] = product;
    for (int i = 0; i < p->n_values; i++)
        if (is_gate_up(loaded, p, i))
            element[i] = product;
    for (int i = 0; i < p->n_ops; i++)
        if (p->ops[i].code == OP_ATTENTION)
            element[p->ops[i].in[0].id] = attention_query_element(loaded, &p->ops[i]);
    for (int i = 0; i < p->n_ops; i++)
        if (p->ops[i].code == OP_MLA_ATTENTION)
            element[p->ops[i].in[0].id] = latent_query_element(loaded, &p->ops[i]);
    for (int i = 0; i < p->n_ops; i++)
        if (p->ops[i].code == OP_ALL_REDUCE || p->ops[i].code == OP_ALL_GATHER)
            element[p->ops[i].in[0].id] = element[p->ops[i].out[0].id] = ELEMENT_F32;
    for (int i = 0; i < p->n_ops; i++)
        if (fold_of(p, &p->ops[i]) == FOLD_IN_ORDER) { // either can be read
            enum element *rows = &element[p->ops[i].in[0].id], *taken = &element[p->ops[i].out[0].id];
            *(is_residual(p, p->ops[i].in[0]) ? taken : rows) = is_residual(p, p->ops[i].in[0]) ? *rows : *taken;
        }
}

static enum status place_values(struct executable *exe, enum element *element, int64_t *offset, struct error *err) {
    struct program sized = *exe->program; // with the elements that values have here, and their qacts behind them
    sized.values = xcalloc((size_t)(sized.n_values + exe->n_qacts) + 1, sizeof *sized.values);
    memcpy(sized.values, exe->program->values, (size_t)sized.n_values * sizeof *sized.values);
    for (int i = 0; i < sized.n_values; i++)
        sized.values[i].dtype = element_bytes(element[i]) == 2 ? DT_BF16 : DT_F32; // their size is what counts
    for (int i = 0; plan_has_states(exe->program) && i < sized.n_values; i++)      // which the next step reads
        if (program_keeps(exe->program, i))
            sized.values[i].first_use = 0;
    fold_lives(exe->program, sized.values);
    fuse_lives(exe->program, sized.values);
    head_lives(exe->program, sized.values);
    for (int i = 0; i < exe->n_qacts; i++)
        sized.values[sized.n_values++] = qact_as_value(exe, sized.values, &exe->qacts[i]);
    int64_t n_bytes = program_plan_memory(&sized, padded_rows(exe->bucket.max_tokens),
                                          padded_rows(MAX(exe->bucket.max_rows, 1)), offset);
    free(sized.values);
    TRY(device_alloc(exe, &exe->memory, n_bytes, "values", err));
    if (!exe->only_sized)
        DEVICE_TRY(exe->loaded->device, err,
                   cudaMemsetAsync(exe->memory, 0, (size_t)MAX(n_bytes, 1), exe->loaded->device->stream),
                   "clearing %lld bytes", (long long)n_bytes);
    for (int i = 0; i < exe->n_qacts; i++)
        qact_place(exe, &exe->qacts[i], (char *)exe->memory + offset[exe->program->n_values + i]);
    return OK;
}

static struct dmat value_of(const struct executable *exe, val v, const enum element *element, const int64_t *offset) {
    if (!val_given(v))
        return (struct dmat){0};
    enum element e = element[v.id];
    return (struct dmat){(char *)exe->memory + offset[v.id] + v.col * element_bytes(e),
                         exe->program->values[v.id].width, v.width, e};
}

// ---- compile: ops -----------------------------------------------------------------------------------------------

static enum status refuse(const struct executable *exe, const struct op *op, struct error *err, const char *what,
                          int has, int most) {
    return fail(err, ERR_UNSUPPORTED, "%s: %s: the CUDA backend does %s up to %d, this has %d", exe->program->name,
                op_name(op->code), what, most, has);
}

static enum status check_shape(const struct executable *exe, const struct op *op, struct error *err) {
    const union op_args *a = &op->args;
    if (!step_has_op(op->code))
        return fail(err, ERR_UNSUPPORTED, "%s: %s: the CUDA backend does not have this op", exe->program->name,
                    op_name(op->code));
    switch (op->code) {
    case OP_ATTENTION:
        if (MAX(a->attention.head_dim, a->attention.v_head_dim) > 512)
            return refuse(exe, op, err, "heads of", MAX(a->attention.head_dim, a->attention.v_head_dim), 512);
        return OK;
    case OP_MLA_ATTENTION:
        if (a->mla.rank + a->mla.rope_dim > 640)
            return refuse(exe, op, err, "latent rows of", a->mla.rank + a->mla.rope_dim, 640);
        return OK;
    case OP_MOE_ROUTE:
        if (a->moe_route.n_groups > 64)
            return refuse(exe, op, err, "groups of experts", a->moe_route.n_groups, 64);
        if (a->moe_route.n_experts > 4096)
            return refuse(exe, op, err, "experts", a->moe_route.n_experts, 4096);
        return OK;
    case OP_MOE_FFN:
        return a->moe_ffn.top_k > MOE_MOST_TOP_K
                   ? refuse(exe, op, err, "experts to a token", a->moe_ffn.top_k, MOE_MOST_TOP_K)
                   : OK;
    case OP_SAMPLE:
        return sample_fits(op->in[0].width)
                   ? OK
                   : fail(err, ERR_UNSUPPORTED, "%s: SAMPLE: the CUDA backend has no room for rows of %d logits",
                          exe->program->name, op->in[0].width);
    case OP_SHORT_CONV: return a->short_conv.kernel > 8 ? refuse(exe, op, err, "kernels", a->short_conv.kernel, 8) : OK;
    case OP_DELTA_RULE:
        if (a->delta_rule.key_dim > 128)
            return refuse(exe, op, err, "key channels", a->delta_rule.key_dim, 128);
        return a->delta_rule.value_dim > 256 ? refuse(exe, op, err, "value channels", a->delta_rule.value_dim, 256)
                                             : OK;
    default: return OK;
    }
}

static struct dcache layer_cache(const struct executable *exe, int cache) {
    const struct cache_layer *layer = &exe->program->caches[cache];
    const struct loaded *loaded = exe->loaded;
    enum element e = loaded->caches[layer->group].element;
    return (struct dcache){(char *)loaded->caches[layer->group].at +
                               layer->index * loaded->caches[layer->group].layer_elements * element_bytes(e),
                           loaded->caches[layer->group].block_elements, layer->group, e};
}

static void compile_folds(const struct executable *exe, struct compiled_op *c, const enum element *element,
                          const int64_t *offset) {
    const struct op *norm = norm_folded_into(exe->program, c->op);
    c->fold = fold_of(exe->program, c->op);
    c->in_order = value_of(exe, rows_in_order(exe->program, c->op), element, offset);
    if (!norm)
        return;
    c->in[1] = value_of(exe, norm->in[0], element, offset);
    c->d_norm = &norm->args.norm;
    c->d_weight = weight_on_device(exe->loaded, norm->weights[0])->floats;
}

/* Whether unscaled products lie where the values are to be: they are read there, or become them in place. */
static bool unscaled_has_room(const struct executable *exe, const struct op *linear, enum element y) {
    return unscaled_will_be_read(exe->program, linear) || element_bytes(y) == 2;
}

static enum status compile_op(struct executable *exe, struct compiled_op *c, const enum element *element,
                              const int64_t *offset, struct error *err) {
    const struct op *op = c->op;
    TRY(check_shape(exe, op, err));
    for (int k = 0; k < OP_MAX_IN; k++)
        c->in[k] = value_of(exe, op->in[k], element, offset);
    for (int k = 0; k < OP_MAX_OUT; k++)
        c->out[k] = value_of(exe, op->out[k], element, offset);
    compile_folds(exe, c, element, offset);
    for (int k = 0; k < OP_MAX_OUT; k++)
        c->out_qact[k] = qact_of(exe, op->out[k]);
    for (int k = 0; k < OP_MAX_WEIGHTS; k++) {
        const struct placed *w = weight_on_device(exe->loaded, op->weights[k]);
        if (!w)
            continue;
        c->matrix[k] = w->matrix;
        c->floats[k] = w->floats;
    }
    if (op_cache(op) >= 0)
        c->cache = layer_cache(exe, op_cache(op));
    if (op_rope(op) >= 0 && exe->ropes[op_rope(op)].dim > 0)
        c->rope = &exe->ropes[op_rope(op)];
    if (op->code != OP_LINEAR)
        return OK;
    struct dmat x = c->in[0], y = c->out[0];
    c->column_order = weight_on_device(exe->loaded, op->weights[0])->order_there;
    if (x.element != exe->loaded->product || c->column_order) {
        c->convert = (struct dmat){exe->scratch, x.width, x.width, exe->loaded->product};
        x = c->convert;
    }
    c->gemv_rows = exe->loaded->device->is_fast ? gemv_rows(c, x, linear_most_rows(exe, op)) : 0;
    c->is_head = head_compiled(exe, c, x);
    if (c->matrix[0].element == ELEMENT_E4M3) {
        c->in_qact = qact_of(exe, op->in[0]);
        c->unscaled_is_read = unscaled_will_be_read(exe->program, op);
        c->unscaled = (struct dmat){.at = unscaled_has_room(exe, op, y.element) ? y.at : exe->scratch,
                                    .stride = y.stride,
                                    .width = y.width,
                                    .element = ELEMENT_F16,
                                    .row_scale = c->in_qact->q.scale,
                                    .col_scale = c->matrix[0].scale,
                                    .bias = c->floats[1].at};
        x = c->in_qact->q;
        y = c->unscaled;
    }
    TRY(gemm_open(exe->loaded, op, c->pair ? c->pair->op : NULL, x, y, linear_output(c), linear_most_rows(exe, op),
                  &c->gemm, err));
    gemm_count_at(c->gemm, exe->counters + (op - exe->program->ops) * COUNTER_BYTES);
    if (c->matrix[0].element == ELEMENT_QUADS && !linear_takes(linear_library(c), c, 1))
        return fail(err, ERR_UNSUPPORTED, "%s: gemm_w4.cu does not multiply by [%lld, %lld] of four bits",
                    op->weights[0]->name, (long long)c->matrix[0].out, (long long)c->matrix[0].in);
    return OK;
}

/* Bytes that a LINEAR wants for rows that it converts, or for unscaled products without room of their own. */
static int64_t linear_scratch(const struct executable *exe, const struct op *op, const enum element *element) {
    int64_t rows = padded_rows(linear_most_rows(exe, op)), n_bytes = 0;
    const struct placed *w = weight_on_device(exe->loaded, op->weights[0]);
    if (element[op->in[0].id] != exe->loaded->product || w->order_there)
        n_bytes = rows * op->in[0].width * element_bytes(exe->loaded->product);
    if (w->matrix.element == ELEMENT_E4M3 && !unscaled_has_room(exe, op, element[op->out[0].id]))
        n_bytes = MAX(n_bytes, rows * exe->program->values[op->out[0].id].width * element_bytes(ELEMENT_F16));
    return n_bytes;
}

/* For one op at a time: what a LINEAR wants, and what experts keep between their two nodes. */
static enum status alloc_scratch(struct executable *exe, const enum element *element, struct error *err) {
    int64_t most = 1, most_list = 256, tokens = padded_rows(exe->bucket.max_tokens), scratch, list;
    for (int i = 0; i < exe->program->n_ops; i++) {
        const struct op *op = &exe->program->ops[i];
        if (op->code == OP_LINEAR)
            most = MAX(most, linear_scratch(exe, op, element));
        if (op->code != OP_MOE_FFN)
            continue;
        experts_room(exe->loaded, op, tokens, &scratch, &list);
        most = MAX(most, scratch), most_list = MAX(most_list, list);
    }
    TRY(device_alloc(exe, &exe->expert_list, most_list, "lists of experts", err));
    if (!exe->only_sized) // read beyond what is there, whatever comes of it
        DEVICE_TRY(exe->loaded->device, err,
                   cudaMemsetAsync(exe->expert_list, 0, (size_t)most_list, exe->loaded->device->stream),
                   "clearing %lld bytes", (long long)most_list);
    TRY(device_alloc(exe, &exe->counters, exe->program->n_ops * (int64_t)COUNTER_BYTES, "counters", err));
    TRY(device_alloc(exe, &exe->scratch, most, "scratch", err));
    if (!exe->only_sized) // rows of padding are read, whatever comes of them
        DEVICE_TRY(exe->loaded->device, err,
                   cudaMemsetAsync(exe->scratch, 0, (size_t)most, exe->loaded->device->stream), "clearing %lld bytes",
                   (long long)most);
    return OK;
}

/* From memory that the program keeps. */
static enum status send_frequencies(const struct executable *exe, const struct rope *r, const float *from, float *to,
                                    struct error *err) {
    size_t n_bytes = (size_t)(r->dim / 2) * sizeof *to;
    DEVICE_TRY(exe->loaded->device, err,
               cudaMemcpyAsync(to, from, n_bytes, cudaMemcpyHostToDevice, exe->loaded->device->stream),
               "%d frequencies", r->dim / 2);
    return OK;
}

/* Angles of padding rows are read too, with their rows. */
static enum status place_ropes(struct executable *exe, struct error *err) {
    const struct program *p = exe->program;
    int64_t floats = 0, at = 0,
            rows = 1 + (int64_t)padded_rows(exe->bucket.max_tokens); // the first is the frequencies'
    if (p->n_ropes > CUDA_MAX_ROPES)
        return fail(err, ERR_UNSUPPORTED, "%s: the CUDA backend does up to %d rotations, this has %d", p->name,
                    CUDA_MAX_ROPES, p->n_ropes);
    BUG_IF(p->ops[0].code != OP_EMBED && p->ops[0].code != OP_STATES); // which make the angles
    for (int i = 0; i < p->n_ropes; i++)
        floats += p->ropes[i]->dim * rows;
    exe->ropes = xcalloc((size_t)p->n_ropes + 1, sizeof *exe->ropes);
    TRY(device_alloc(exe, &exe->rope_memory, floats * (int64_t)sizeof(float), "angles", err));
    if (exe->only_sized)
        return OK;
    for (int i = 0; i < p->n_ropes; i++) {
        const struct rope *r = p->ropes[i];
        float *freq = (float *)exe->rope_memory + at, *freq_long = freq + r->dim / 2;
        exe->ropes[i] = (struct drope){r->dim,    (int)r->pairing, (int)r->by_length,     freq,
                                       freq_long, r->factor,       r->factor_long,        r->original_context,
                                       r->theta,  r->scaling,      freq_long + r->dim / 2};
        TRY(send_frequencies(exe, r, r->inv_freq, freq, err));
        if (r->inv_freq_long)
            TRY(send_frequencies(exe, r, r->inv_freq_long, freq_long, err));
        at += r->dim * rows;
    }
    return OK;
}

static enum status alloc_results(struct executable *exe, struct error *err) {
    size_t rows = (size_t)MAX(exe->bucket.max_rows, 1), width = (size_t)MAX(exe->logits.width, 1), states = 1;
    for (int i = 0; i <= exe->program->n_taps; i++)
        states = MAX(states, (size_t)exe->kept[i].width);
    if (exe->only_sized)
        return OK;
    TRY(pinned_take(exe->loaded->device, &exe->hidden_host, (int64_t)(states * sizeof(float)), "a row of states", err));
    exe->logits_host = calloc(rows * width, sizeof(float));
    return exe->logits_host ? OK : fail(err, ERR_MEMORY, "no memory for %zu rows of %zu logits", rows, width);
}

static enum status compile_parts(struct executable *exe, enum element *element, int64_t *offset, struct error *err) {
    const struct program *p = exe->program;
    const struct op *last = &p->ops[p->n_ops - 1];
    TRY(ranks_check_joined(exe->loaded, err));
    if (exe->bucket.max_tokens > MOST_TOKENS)
        return fail(err, ERR_UNSUPPORTED,
                    "%s: the CUDA backend does steps of up to %d tokens, --max-num-batched-tokens asks for %d", p->name,
                    MOST_TOKENS, exe->bucket.max_tokens);
    choose_elements(exe->loaded, p, element);
    qacts_plan(exe);
    TRY(qacts_alloc(exe, err));
    TRY(place_values(exe, element, offset, err));
    exe->logits = value_of(exe, last->code == OP_SAMPLE ? last->in[0] : NO_VAL, element, offset);
    for (int i = 0; i <= p->n_taps; i++)
        exe->kept[i] = value_of(exe, i == 0 ? p->hidden : p->taps[i - 1], element, offset);
    TRY(alloc_scratch(exe, element, err));
    TRY(place_ropes(exe, err));
    TRY(attention_plan(exe, err));
    TRY(latent_plan(exe, err));
    TRY(head_alloc(exe, err));
    TRY(filter_alloc(exe, err));
    TRY(alloc_results(exe, err));
    TRY(plan_alloc(exe, err));
    if (exe->only_sized)
        return OK;
    exe->ops = xcalloc((size_t)p->n_ops + 1, sizeof *exe->ops);
    for (int i = 0; i < p->n_ops; i++) {
        exe->ops[i].op = &p->ops[i];
        if (gated_act_follows(p, i)) {
            exe->ops[i].pair = &exe->ops[i + 1];
            exe->ops[i + 1] = (struct compiled_op){.op = &p->ops[i + 1], .pair = &exe->ops[i]};
            exe->ops[i + 1].out[0] = value_of(exe, p->ops[i + 1].out[0], element, offset); // which the LINEAR may write
        }
        TRY(compile_op(exe, &exe->ops[i], element, offset, err));
    }
    experts_pair(exe);
    fold_sums(exe);
    TRY(delta_layers_pair(exe, err));
    TRY(static_scales_find(exe, err));
    exe->nodes = xcalloc(NODES_OF_OP * (size_t)p->n_ops + 1, sizeof *exe->nodes);
    TRY(linear_choose(exe, err));
    struct error unwritten; // then what was timed is timed again the next time: a start takes longer, and nothing else
    plan_cache_save(exe->loaded->device->plans, &unwritten);
    return graphs_capture(exe, err);
}

void cuda_free_executable(struct executable *exe) {
    if (!exe)
        return;
    if (!exe->loaded->device->card)
        cudaSetDevice(exe->loaded->device->index), cudaStreamSynchronize(exe->loaded->device->stream);
    for (int i = 0; exe->ops && i < exe->program->n_ops; i++)
        gemm_free(exe->ops[i].gemm);
    graphs_free(exe);
    attention_free(exe);
    latent_free(exe);
    cudaFree(exe->memory);
    cudaFree(exe->scratch);
    cudaFree(exe->expert_list);
    cudaFree(exe->counters);
    cudaFree(exe->rope_memory);
    cudaFree(exe->row_absmax.at);
    cudaFree(exe->barriers);
    cudaFree(exe->bests);
    cudaFree(exe->row_copies);
    cudaFree(exe->filter.scratch);
    cudaFree(exe->filter.state);
    cudaFreeHost(exe->filter.asked);
    plan_free(exe);
    cudaFreeHost(exe->hidden_host);
    free(exe->logits_host);
    free(exe->ropes);
    free(exe->qacts);
    free(exe->qact_states);
    free(exe->nodes);
    free(exe->ops);
    free(exe);
}

static enum status compile(struct executable *exe, struct error *err) {
    const struct program *p = exe->program;
    enum element *element = xcalloc((size_t)p->n_values + 1, sizeof *element);
    int64_t *offset = xcalloc((size_t)(p->n_values + p->n_ops) + 1, sizeof *offset); // a LINEAR has one qact at most
    enum status st = compile_parts(exe, element, offset, err);
    free(element);
    free(offset);
    return st;
}

enum status step_sized(struct loaded *loaded, struct bucket bucket, int64_t *n_bytes, struct error *err) {
    struct executable *exe = xcalloc(1, sizeof *exe);
    *exe = (struct executable){.loaded = loaded, .program = loaded->program, .bucket = bucket, .only_sized = true};
    enum status st = compile(exe, err);
    *n_bytes = exe->step_bytes;
    cuda_free_executable(exe);
    return st;
}

enum status cuda_compile(struct loaded *loaded, struct bucket bucket, struct executable **out, struct error *err) {
    TRY(device_enter(loaded->device, err));
    caches_share(loaded);
    struct executable *exe = xcalloc(1, sizeof *exe);
    *exe = (struct executable){.loaded = loaded, .program = loaded->program, .bucket = bucket};
    enum status st = compile(exe, err);
    if (st != OK) {
        cuda_free_executable(exe);
        return fail_within(err, st, "%s", loaded->program->name);
    }
    *out = exe;
    return OK;
}

enum status cuda_cache_room(struct loaded *loaded, struct bucket bucket, int n, int block_size, const int *table_width,
                            double share, int64_t *out, struct error *err) {
    const struct program *p = loaded->program;
    size_t free_bytes, total;
    int64_t step;
    loaded->block_size = block_size;
    memcpy(loaded->table_width, table_width, sizeof loaded->table_width);
    TRY(device_enter(loaded->device, err));
    TRY(step_sized(loaded, bucket, &step, err));
    DEVICE_TRY(loaded->device, err, memory_ask(loaded->device, &free_bytes, &total), "asking for its memory");
    int64_t may = memory_that_may_be_taken(total, share), held = (int64_t)(total - free_bytes);
    *out = may - held - n * step - LIBRARIES;
    *out -= MIN(cache_waste(loaded, p, block_size, MAX(*out, 0)), MAX(*out, 0) / 2);
    if (*out > 0)
        return OK;
    return fail(err, ERR_MEMORY,
                "%s: of the %lld MiB of the GPU that may be taken (gpu_memory_utilization) %lld are, by the weights "
                "and by others, and a step "
                "of %d tokens takes %lld: nothing is left for the cache",
                p->name, (long long)(may >> 20), (long long)(held >> 20), bucket.max_tokens,
                (long long)((n * step + LIBRARIES) >> 20));
}
