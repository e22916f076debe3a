/* attention.c - which kernel an ATTENTION runs on, and the lists of parts that the fast ones work on; see
 * attention_parts.cu.
 *
 * Layers of one window, chunk and number of query heads to a KV head share a list, made once a step. What parts leave
 * for each other lies in one piece of memory that all layers use in turn.
 *
 * In steps that only decode the QKV_PREP before an ATTENTION may be done by its kernel: see fuse.c and decode_prep.cuh.
 */
#include "backend/cuda/attention/attention.h"
#include "backend/cuda/attention/attention_int4.h"
#include "backend/cuda/attention/attention_parts.h"
#include "backend/cuda/attention/decode/attention_decode.h"
#include "backend/cuda/attention/decode/attention_decode_int4.h"
#include "backend/cuda/attention/lists.h"
#include "backend/cuda/attention/prefill/attention_prefill.h"
#include "backend/cuda/cuda.h"
#include "backend/cuda/device/device.h"
#include "backend/cuda/qact/qact.h"
#include "backend/cuda/cache/cache.h"
#include "backend/cuda/step/compile.h"
#include "backend/cuda/step/fold.h"
#include "backend/cuda/step/node.h"
#include "backend/cuda/value.h"

#include <limits.h>
#include <stdlib.h>

enum { MOST_SPLIT = 64, LEAST_SPLIT = 4 };      // parts of a sequence; see attention_parts.cu
static const int64_t PARTIAL_BYTES = 256 << 20; // of sums that wait to be joined, while that leaves LEAST_SPLIT

static struct dattention shape_of(const struct op *op) {
    const struct attention_args *a = &op->args.attention;
    return (struct dattention){a->n_heads, a->n_kv_heads, a->head_dim,      a->v_head_dim, a->scale,     a->softcap,
                               a->window,  a->chunk,      a->paired_values, a->rotary_dim, (int)a->reach};
}

/* Who sees the keys before its own sees what the token before it sees, of a window that is one shorter. */
static int keys_behind(const struct op *op) { return op->args.attention.reach == REACH_BEFORE; }

static int window_behind(const struct op *op) {
    const struct attention_args *a = &op->args.attention;
    return a->window > 0 ? a->window - keys_behind(op) : 0;
}

static struct dattention decode_shape_of(const struct op *op) {
    struct dattention a = shape_of(op);
    a.window = window_behind(op);
    return a;
}

static bool has_int4(const struct loaded *loaded) { return kv_element(loaded) == ELEMENT_KV_INT4; }

static bool is_fast(const struct loaded *loaded, const struct op *op) {
    if (op->code != OP_ATTENTION || !loaded->device->is_fast)
        return false;
    struct dattention a = shape_of(op);
    bool has_behind = a.chunk == 0 && a.window != 1;
    if (a.reach == REACH_ALL || (a.reach == REACH_BEFORE && !has_behind))
        return false;
    return has_int4(loaded) ? attention_decode_int4_takes(&a, loaded->block_size)
                            : attention_decode_takes(&a, kv_element(loaded), loaded->block_size);
}

int attention_n_plain(const struct executable *exe, const struct op **first) {
    int n = 0;
    for (int i = 0; i < exe->program->n_ops; i++) {
        const struct op *op = &exe->program->ops[i];
        if (op->code != OP_ATTENTION || is_fast(exe->loaded, op))
            continue;
        *first = n++ > 0 ? *first : op;
    }
    return n;
}

enum element attention_query_element(const struct loaded *loaded, const struct op *op) {
    if (loaded->product == ELEMENT_F32 || !is_fast(loaded, op))
        return ELEMENT_F32;
    return kv_element(loaded) == ELEMENT_BF16 ? ELEMENT_BF16 : ELEMENT_F16;
}

/* Of sequences with few tokens; those with many have the list behind it. */
static struct dparts *list_of(struct executable *exe, const struct op *op) {
    const struct attention_args *a = &op->args.attention;
    struct dattention shape = shape_of(op);
    for (int i = 0; i < exe->n_parts; i += 2) {
        struct dparts *p = &exe->parts[i];
        if (p->window == window_behind(op) && p->behind == keys_behind(op) && p->chunk == a->chunk &&
            p->per_kv == a->n_heads / a->n_kv_heads && p[1].columns == attention_prefill_rows(&shape))
            return p;
    }
    return NULL;
}

static struct dparts *add_lists(struct executable *exe, const struct op *op) {
    const struct attention_args *a = &op->args.attention;
    struct dattention shape = shape_of(op);
    int per_kv = a->n_heads / a->n_kv_heads;
    struct dparts *p = &exe->parts[exe->n_parts];
    exe->n_parts += 2;
    p[0] = p[1] = (struct dparts){
        .window = window_behind(op), .chunk = a->chunk, .per_kv = per_kv, .cache = kv_element(exe->loaded)};
    p[0].behind = p[1].behind = keys_behind(op);
    p[0].columns = per_kv > 8 && !has_int4(exe->loaded) ? 16 : 8;
    p[0].least_tokens = 1;
    p[0].most_tokens = ATTENTION_FEW_TOKENS;
    p[1].columns = attention_prefill_rows(&shape);
    p[1].least_tokens = ATTENTION_FEW_TOKENS + 1;
    p[1].most_tokens = INT_MAX;
    return p;
}

static int64_t partial_bytes(const struct op *op, const struct dparts *p) { // of a part
    const struct attention_args *a = &op->args.attention;
    return (int64_t)a->n_kv_heads * p->columns * (a->v_head_dim + 2) * (int64_t)sizeof(float);
}

/* Room for every part that a step of the bucket can have; a list of sequences with many tokens cuts them by columns
 * alone. */
static enum status place_list(struct executable *exe, struct dparts *p, int64_t split, struct error *err) {
    int64_t seqs = MIN(exe->bucket.max_seqs, exe->bucket.max_tokens / p->least_tokens + 1),
            tokens = exe->bucket.max_tokens;
    int64_t n = seqs * (split + 1) + tokens * p->per_kv / p->columns + 1;
    p->max_parts = (int)n;
    p->max_split = (int)split;
    p->max_seqs = exe->bucket.max_seqs;
    p->partial = exe->partial;
    p->arrived = exe->arrived;
    TRY(device_alloc(exe, &p->n, sizeof(int32_t), "lists of attention", err));
    TRY(device_alloc(exe, &p->part, n * (int64_t)sizeof(struct dpart), "lists of attention", err));
    if (!exe->only_sized) // kernels load an entry before they know how many there are
        DEVICE_TRY(exe->loaded->device, err,
                   cudaMemsetAsync(p->part, 0, (size_t)n * sizeof(struct dpart), exe->loaded->device->stream),
                   "lists of attention");
    return OK;
}

enum status attention_plan(struct executable *exe, struct error *err) {
    const struct program *p = exe->program;
    int64_t most_bytes = 1, most_heads = 1, seqs = MAX(exe->bucket.max_seqs, 1);
    exe->parts = xcalloc(2 * (size_t)p->n_ops + 1, sizeof *exe->parts);
    for (int i = 0; i < p->n_ops; i++) {
        if (!is_fast(exe->loaded, &p->ops[i]))
            continue;
        struct dparts *list = list_of(exe, &p->ops[i]);
        if (!list)
            list = add_lists(exe, &p->ops[i]);
        for (int k = 0; k < 2; k++) {
            list[k].n_kv_heads = MAX(list[k].n_kv_heads, p->ops[i].args.attention.n_kv_heads);
            list[k].head_dim = MAX(list[k].head_dim, p->ops[i].args.attention.head_dim);
        }
        most_bytes = MAX(most_bytes, partial_bytes(&p->ops[i], list));
        most_heads = MAX(most_heads, p->ops[i].args.attention.n_kv_heads);
    }
    if (exe->n_parts == 0)
        return OK;
    int64_t split = PARTIAL_BYTES / most_bytes / seqs;
    split = split > MOST_SPLIT ? MOST_SPLIT : MAX(split, LEAST_SPLIT);
    TRY(device_alloc(exe, &exe->partial, seqs * split * most_bytes, "sums of attention", err));
    TRY(device_alloc(exe, &exe->arrived, seqs * split * most_heads * (int64_t)sizeof(int32_t), "counters of attention",
                     err));
    if (!exe->only_sized)
        DEVICE_TRY(exe->loaded->device, err,
                   cudaMemsetAsync(exe->arrived, 0, (size_t)(seqs * split * most_heads) * sizeof(int32_t),
                                   exe->loaded->device->stream),
                   "counters of attention");
    for (int i = 0; i < exe->n_parts; i++)
        TRY(place_list(exe, &exe->parts[i], i % 2 ? 1 : split, err));
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

/* Whether a sequence of the step can have more than one token; and more than few, which those of graphs have not. */
static bool has_several(const struct launch *l) { return l->n_tokens > l->n_seqs; }
static bool has_long(const struct launch *l) { return has_several(l) && !l->few; }

/* Then no sequence has few tokens. */
static bool is_one_prompt(const struct launch *l) { return l->n_seqs == 1 && l->n_tokens > ATTENTION_FEW_TOKENS; }

enum status attention_lists_launch(const struct executable *exe, const struct launch *l, struct error *err) {
    launch_attention_parts(l, exe->parts, has_long(l) ? exe->n_parts : exe->n_parts / 2, has_long(l) ? 1 : 2);
    DEVICE_TRY(exe->loaded->device, err, cudaGetLastError(), "%s: lists of attention for %d tokens of %d sequences",
               exe->program->name, l->n_tokens, l->n_seqs);
    return OK;
}

static struct dqkv qkv_of(const struct op *op) {
    const struct qkv_args *a = &op->args.qkv_prep;
    return (struct dqkv){a->n_heads,  a->n_kv_heads, a->head_dim, a->v_head_dim, a->eps,
                         a->plus_one, a->v_norm,     a->v_from_k, a->k_absent,   a->rotary_dim};
}

static struct dprep prep_of(const struct executable *exe, const struct compiled_op *prep, int n_rows) {
    return (struct dprep){qkv_of(prep->op), prep->rope ? prep->rope->cos_sin : NULL, input_of(exe, prep, 0, n_rows),
                          prep->floats[0], prep->floats[1]};
}

/* Where a block has more than one pair of a sequence and a KV head, preparing makes each of them longer by what the
 * node costs once. */
static bool attention_prepares(const struct executable *exe, const struct compiled_op *prep, const struct launch *l) {
    const struct op *op = prep->op;
    if (has_several(l) || !attention_follows(exe->program, (int)(op - exe->program->ops)) ||
        !is_fast(exe->loaded, op + 1) || keys_behind(op + 1))
        return false;
    struct dattention a = shape_of(op + 1);
    struct dprep d = prep_of(exe, prep, l->n_tokens);
    bool turns_whole = !prep->rope || (prep->rope->dim == a.head_dim && prep->rope->pairing == 0);
    bool one_each = (int64_t)l->n_seqs * a.n_kv_heads <= attention_clusters(a.head_dim, 1);
    return turns_whole && one_each && attention_decode_prepares(&a, &d, prep->cache);
}

// ---- nodes ------------------------------------------------------------------------------------------------------

/* What does not start shows as cudaGetLastError. */
#define ATTENTION_KERNEL(name, file, call)                                                           \
    static enum status put_##name(const struct node *n, const struct launch *l, struct error *err) { \
        const struct compiled_op *c = n->c;                                                          \
        struct dattention a = decode_shape_of(c->op);                                                \
        (void)err;                                                                                   \
        call;                                                                                        \
        return OK;                                                                                   \
    }                                                                                                \
    static const struct node_kernel by_##name = {#name, file, put_##name};

static enum status put_attention_plain(const struct node *n, const struct launch *l, struct error *err) {
    const struct compiled_op *c = n->c;
    struct dattention a = shape_of(c->op);
    (void)err;
    launch_attention(l, &a, c->in[0], c->floats[0], c->cache, c->out[0]);
    return OK;
}
static const struct node_kernel by_attention_plain = {"attention_plain", "attention.cu", put_attention_plain};

static enum status put_attention_int4(const struct node *n, const struct launch *l, struct error *err) {
    const struct compiled_op *c = n->c;
    struct dattention a = shape_of(c->op);
    (void)err;
    launch_attention_int4(l, &a, c->in[0], c->floats[0], c->cache, c->out[0]);
    return OK;
}
static const struct node_kernel by_attention_int4 = {"attention_int4", "attention_int4.cu", put_attention_int4,
                                                     "attention of prompts over int4"};
ATTENTION_KERNEL(attention_decode_prepares, "attention_decode_bytes.cu",
                 launch_attention_decode_prepares(l, &a, n->parts, &n->args.prep, c->floats[0], c->cache, n->out))
ATTENTION_KERNEL(attention_decode_int4, "attention_decode_int4.cu",
                 launch_attention_decode_int4(l, &a, n->parts, n->may_prefetch, c->in[0], c->floats[0], c->cache,
                                              n->out))
ATTENTION_KERNEL(attention_prefill, "attention_prefill.cu",
                 launch_attention_prefill(l, &a, n->parts, c->in[0], c->floats[0], c->cache, n->out))
ATTENTION_KERNEL(attention_decode, "attention_decode.cu",
                 launch_attention_decode(l, &a, n->parts, n->may_prefetch, c->in[0], c->floats[0], c->cache, n->out))

static enum status put_qkv_prep(const struct node *n, const struct launch *l, struct error *err) {
    struct dqkv d = qkv_of(n->c->op);
    (void)err;
    launch_qkv_prep(l, &d, n->c->rope, n->in[0], n->c->floats[0], n->c->floats[1], n->c->cache, n->c->out[0]);
    return OK;
}
static const struct node_kernel by_qkv_prep = {"qkv_prep", "qkv_prep.cu", put_qkv_prep};

static enum status put_qkv_prep_int4(const struct node *n, const struct launch *l, struct error *err) {
    struct dqkv d = qkv_of(n->c->op);
    (void)err;
    launch_qkv_prep_int4(l, &d, n->c->rope, n->in[0], n->c->floats[0], n->c->floats[1], n->c->cache, n->c->out[0]);
    return OK;
}
static const struct node_kernel by_qkv_prep_int4 = {"qkv_prep_int4", "qkv_prep_int4.cu", put_qkv_prep_int4};

void lower_qkv_prep(struct lowering *w, const struct compiled_op *c, int n_rows) {
    (void)n_rows;
    const struct node_kernel *k = c->cache.element == ELEMENT_KV_INT4 ? &by_qkv_prep_int4 : &by_qkv_prep;
    if (!attention_prepares(w->exe, c, w->launch))
        lower_node(w, k, c, w->launch->n_tokens)->in[0] = input_of(w->exe, c, 0, w->launch->n_tokens);
}

static struct node *lower_fast(struct lowering *w, const struct node_kernel *k, const struct compiled_op *c,
                               const struct dparts *parts, struct dmat out) {
    struct node *n = lower_node(w, k, c, w->launch->n_tokens);
    n->parts = parts, n->out = out;
    return n;
}

void lower_attention(struct lowering *w, const struct compiled_op *c, int n_rows) {
    (void)n_rows;
    struct executable *exe = w->exe;
    const struct launch *l = w->launch;
    bool is_int4 = has_int4(exe->loaded);
    bool prompts_plain = is_int4 || keys_behind(c->op); // prompts' kernel sees its own key
    if (!is_fast(exe->loaded, c->op) || (prompts_plain && has_long(l))) {
        lower_node(w, is_int4 ? &by_attention_int4 : &by_attention_plain, c, l->n_tokens);
        return;
    }
    const struct dparts *list = list_of(exe, c->op);
    bool behind_prep = c > exe->ops && c[-1].op->code == OP_QKV_PREP;
    bool folds = !has_several(l) ||
                 is_one_prompt(l); // decode attention does where a sequence has one token, prompts' does always
    struct dmat out = folds ? output_with_absmax(w, c, 0, l->n_tokens) : c->out[0];
    if (behind_prep && attention_prepares(exe, c - 1, l)) {
        lower_fast(w, &by_attention_decode_prepares, c, list, out)->args.prep = prep_of(exe, c - 1, l->n_tokens);
        return;
    }
    if (has_long(l))
        lower_fast(w, &by_attention_prefill, c, list + 1, out);
    if (!is_one_prompt(l))
        lower_fast(w, is_int4 ? &by_attention_decode_int4 : &by_attention_decode, c, list, out)->may_prefetch =
            behind_prep;
}
