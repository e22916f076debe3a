/* latent.c - which kernels an MLA_PREP and an MLA_ATTENTION run on, and the parts that the fast ones work on; see
 * latent.h. */
#include "backend/cuda/attention/latent/latent.h"
#include "backend/cuda/attention/lists.h"
#include "backend/cuda/cuda.h"
#include "backend/cuda/device/device.h"
#include "backend/cuda/qact/qact.h"
#include "backend/cuda/step/compile.h"
#include "backend/cuda/step/node.h"

static bool is_latent(const struct op *op) { return op->code == OP_MLA_PREP || op->code == OP_MLA_ATTENTION; }

static struct dmla mla_of(const struct op *op) {
    const struct mla_args *a = &op->args.mla;
    return (struct dmla){a->n_heads, a->rank, a->nope_dim, a->rope_dim, a->v_dim, a->eps, a->scale};
}

/* Latent rows turn by a rope of their own width, or not at all: then the plain kernels do it. */
static bool is_fast(const struct loaded *loaded, const struct op *op) {
    struct dmla a = mla_of(op);
    return is_latent(op) && loaded->device->is_fast && op->args.mla.rope >= 0 &&
           loaded->program->ropes[op->args.mla.rope]->dim == LATENT_ROPE &&
           latent_takes(&a, loaded->product, loaded->block_size);
}

enum element latent_query_element(const struct loaded *loaded, const struct op *op) {
    return is_fast(loaded, op) ? ELEMENT_F16 : ELEMENT_F32;
}

// ---- parts ------------------------------------------------------------------------------------------------------

/* Heads of the layers that the fast kernels take, or of the layer with most; 0: there are none. */
static int most_heads(const struct executable *exe) {
    int most = 0;
    for (int i = 0; i < exe->program->n_ops; i++)
        if (exe->program->ops[i].code == OP_MLA_ATTENTION && is_fast(exe->loaded, &exe->program->ops[i]))
            most = MAX(most, exe->program->ops[i].args.mla.n_heads);
    return most;
}

enum status latent_plan(struct executable *exe, struct error *err) {
    struct dlatent_parts *p = &exe->latent;
    int64_t heads = most_heads(exe);
    if (heads == 0)
        return OK;
    p->n_groups = (int)(heads / LATENT_HEADS);
    p->n_blocks = latent_blocks();
    p->max_tokens = exe->bucket.max_tokens;
    p->max_tiles = p->max_tokens / LATENT_TOKENS + p->max_tokens / (LATENT_FEW + 1) + 1; // a rest a sequence
    int64_t tasks = (int64_t)p->n_groups * p->max_tokens, entries = tasks + (int64_t)p->n_blocks * LATENT_CHUNKS;
    TRY(device_alloc(exe, &p->begin, p->n_blocks * (int64_t)sizeof *p->begin, "parts of latent attention", err));
    TRY(device_alloc(exe, &p->tile, p->max_tiles * (int64_t)sizeof *p->tile, "parts of latent attention", err));
    TRY(device_alloc(exe, &p->n_tiles, sizeof *p->n_tiles, "parts of latent attention", err));
    TRY(device_alloc(exe, &p->task, tasks * (int64_t)sizeof *p->task, "parts of latent attention", err));
    TRY(device_alloc(exe, &p->ends, entries * LATENT_HEADS * (int64_t)sizeof *p->ends, "sums of latent attention",
                     err));
    return device_alloc(exe, &p->sums, entries * LATENT_HEADS * LATENT_RANK * element_bytes(ELEMENT_F16),
                        "sums of latent attention", err);
}

void latent_free(struct executable *exe) {
    cudaFree(exe->latent.begin);
    cudaFree(exe->latent.tile);
    cudaFree(exe->latent.n_tiles);
    cudaFree(exe->latent.task);
    cudaFree(exe->latent.ends);
    cudaFree(exe->latent.sums);
}

enum status latent_parts_launch(const struct executable *exe, const struct launch *l, struct error *err) {
    if (exe->latent.n_groups == 0)
        return OK;
    launch_latent_parts(l, &exe->latent);
    DEVICE_TRY(exe->loaded->device, err, cudaGetLastError(), "%s: parts of latent attention for %d tokens",
               exe->program->name, l->n_tokens);
    return OK;
}

// ---- nodes ------------------------------------------------------------------------------------------------------

/* What does not start shows as cudaGetLastError. */
#define LATENT_KERNEL(name, file, slow, call)                                                        \
    static enum status put_##name(const struct node *n, const struct launch *l, struct error *err) { \
        const struct compiled_op *c = n->c;                                                          \
        struct dmla a = mla_of(c->op);                                                               \
        (void)err;                                                                                   \
        call;                                                                                        \
        return OK;                                                                                   \
    }                                                                                                \
    static const struct node_kernel by_##name = {#name, file, put_##name, slow};

LATENT_KERNEL(mla_prep, "mla.cu", NULL,
              launch_mla_prep(l, &a, c->rope, n->in[0], n->in[1], c->floats[0], c->matrix[1], c->cache, c->out[0]))
LATENT_KERNEL(mla_attention, "mla.cu", "latent attention",
              launch_mla_attention(l, &a, c->in[0], c->matrix[0], c->cache, c->out[0]))
LATENT_KERNEL(latent_prep, "latent_prep.cu", NULL,
              launch_latent_prep(l, &a, c->rope, n->in[0], n->in[1], c->floats[0], c->matrix[1], c->cache, c->out[0]))
LATENT_KERNEL(latent_decode, "latent_decode.cu", NULL, launch_latent_decode(l, &a, &n->exe->latent, c->in[0], c->cache))
LATENT_KERNEL(latent_prefill, "latent_prefill.cu", NULL,
              launch_latent_prefill(l, &a, &n->exe->latent, c->in[0], c->cache))
LATENT_KERNEL(latent_out, "latent_out.cu", NULL, launch_latent_out(l, &a, &n->exe->latent, c->matrix[0], n->out))

/* Whether a sequence of the step may have more than LATENT_FEW tokens, which those of graphs have not. */
static bool may_be_long(const struct launch *l) { return l->n_tokens > l->n_seqs && !l->few; }
/* Then no sequence has few. */
static bool is_one_long(const struct launch *l) { return l->n_seqs == 1 && l->n_tokens > LATENT_FEW; }

void lower_mla_prep(struct lowering *w, const struct compiled_op *c, int n_rows) {
    (void)n_rows;
    bool fast = is_fast(w->exe->loaded, c->op);
    struct node *n = lower_node(w, fast ? &by_latent_prep : &by_mla_prep, c, w->launch->n_tokens);
    for (int k = 0; k < 2; k++)
        n->in[k] = input_of(w->exe, c, k, w->launch->n_tokens);
}

void lower_mla_attention(struct lowering *w, const struct compiled_op *c, int n_rows) {
    (void)n_rows;
    if (!is_fast(w->exe->loaded, c->op)) {
        lower_node(w, &by_mla_attention, c, w->launch->n_tokens);
        return;
    }
    // Before latent_decode, which reads ahead of what comes right before it: that is always latent_prep or this.
    if (may_be_long(w->launch))
        lower_node(w, &by_latent_prefill, c, w->launch->n_tokens);
    if (!is_one_long(w->launch))
        lower_node(w, &by_latent_decode, c, w->launch->n_tokens);
    struct dmat out = output_with_absmax(w, c, 0, w->launch->n_tokens);
    lower_node(w, &by_latent_out, c, w->launch->n_tokens)->out = out;
}
