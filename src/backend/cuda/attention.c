/* attention.c - which kernel an ATTENTION runs on, and the lists of parts that the fast ones work on; see attention_parts.cu.
 *
 * Layers of one window, chunk and number of query heads to a KV head share a list, made once a step. What parts leave for each
 * other lies in one piece of memory that all layers use in turn. */
#include "backend/cuda/cuda.h"

#include <stdlib.h>

enum { MOST_SPLIT = 64, LEAST_SPLIT = 4 };      // parts of a sequence; see attention_parts.cu
static const int64_t PARTIAL_BYTES = 256 << 20; // of sums that wait to be joined, while that leaves LEAST_SPLIT

static struct dattention shape_of(const struct op *op) {
    const struct attention_args *a = &op->args.attention;
    return (struct dattention){a->n_heads, a->n_kv_heads, a->head_dim, a->v_head_dim,   a->scale,
                               a->softcap, a->window,     a->chunk,    a->paired_values};
}

static bool is_fast(const struct executable *exe, const struct op *op) {
    if (op->code != OP_ATTENTION)
        return false;
    struct dattention a = shape_of(op);
    return attention_decode_takes(&a, kv_element(exe->backend), exe->backend->block_size);
}

static struct dparts *list_of(struct executable *exe, const struct op *op) {
    const struct attention_args *a = &op->args.attention;
    for (int i = 0; i < exe->n_parts; i++) {
        struct dparts *p = &exe->parts[i];
        if (p->window == a->window && p->chunk == a->chunk && p->per_kv == a->n_heads / a->n_kv_heads)
            return p;
    }
    return NULL;
}

static int64_t partial_bytes(const struct op *op, const struct dparts *p) { // of a part
    const struct attention_args *a = &op->args.attention;
    return (int64_t)a->n_kv_heads * p->columns * (a->v_head_dim + 2) * (int64_t)sizeof(float);
}

enum status attention_plan(struct executable *exe, struct error *err) {
    const struct program *p = exe->program;
    int64_t most_bytes = 1, most_heads = 1, seqs = exe->bucket.max_seqs, tokens = exe->bucket.max_tokens;
    exe->parts = xcalloc((size_t)p->n_ops + 1, sizeof *exe->parts);
    for (int i = 0; i < p->n_ops; i++) {
        if (!is_fast(exe, &p->ops[i]))
            continue;
        const struct attention_args *a = &p->ops[i].args.attention;
        int per_kv = a->n_heads / a->n_kv_heads;
        struct dparts *list = list_of(exe, &p->ops[i]);
        if (!list) {
            list = &exe->parts[exe->n_parts++];
            *list = (struct dparts){.window = a->window, .chunk = a->chunk, .per_kv = per_kv, .columns = per_kv > 8 ? 16 : 8};
        }
        most_bytes = MAX(most_bytes, partial_bytes(&p->ops[i], list));
        most_heads = MAX(most_heads, a->n_kv_heads);
    }
    int64_t split = PARTIAL_BYTES / most_bytes / MAX(seqs, 1);
    split = split > MOST_SPLIT ? MOST_SPLIT : MAX(split, LEAST_SPLIT);
    if (exe->n_parts == 0)
        return OK;
    TRY(device_alloc(exe, &exe->partial, seqs * split * most_bytes, "sums of attention", err));
    TRY(device_alloc(exe, &exe->arrived, seqs * split * most_heads * (int64_t)sizeof(int32_t), "counters of attention", err));
    if (!exe->only_sized)
        DEVICE_TRY(exe->backend, err, cudaMemset(exe->arrived, 0, (size_t)(seqs * split * most_heads) * sizeof(int32_t)), "counters");
    for (int i = 0; i < exe->n_parts; i++) {
        struct dparts *list = &exe->parts[i];
        int64_t n = seqs * (split + 1) + tokens * list->per_kv / list->columns;
        list->max_parts = (int)n;
        list->max_split = (int)split;
        list->partial = exe->partial;
        list->arrived = exe->arrived;
        TRY(device_alloc(exe, &list->n, sizeof(int32_t), "lists of attention", err));
        TRY(device_alloc(exe, &list->part, n * (int64_t)sizeof(struct dpart), "lists of attention", err));
    }
    return OK;
}

void attention_free(struct executable *exe) {
    for (int i = 0; i < exe->n_parts; i++) {
        cudaFree(exe->parts[i].n);
        cudaFree(exe->parts[i].part);
    }
    cudaFree(exe->partial);
    cudaFree(exe->arrived);
    free(exe->parts);
}

void attention_lists_launch(const struct executable *exe, const struct launch *l) {
    for (int i = 0; i < exe->n_parts; i++)
        launch_attention_parts(l, &exe->parts[i]);
}

void attention_launch(struct executable *exe, const struct compiled_op *c, const struct launch *l) {
    struct dattention a = shape_of(c->op);
    if (!is_fast(exe, c->op)) {
        launch_attention(l, &a, c->in[0], c->floats[0], c->cache, c->out[0]);
        return;
    }
    bool behind_prep = c > exe->ops && c[-1].op->code == OP_QKV_PREP;
    launch_attention_decode(l, &a, list_of(exe, c->op), behind_prep, c->in[0], c->floats[0], c->cache, c->out[0]);
}
