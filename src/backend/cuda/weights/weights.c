/* weights.c - which element and which place each weight gets on the device; upload.c brings it there.
 *
 *     matrices of LINEAR    e4m3 with a scale a row, where the checkpoint stores e4m3 (a scale a tensor or a row as it
 *                           is but for a power of two, value.h says why; a scale a block is made one a row) and, with
 *                           --quantization fp8, where it stores more bits, but for heads and routers, which are in the
 *                           element of the products then; not sides that are no multiple of 16, which the library does
 *                           not multiply
 *                           four bits and integers of eight as they are stored, in tiles (quads.h); with
 *                           --quantization int4 and nvfp4 made, of what FP8 would be made
 *     experts               likewise, both matrices or neither; four bits as they are stored, in blocks (blocks.h)
 *     other matrices        the element of the products
 *     vectors               float32
 *     the head              once more in 8 bits, where greedy steps are screened (argmax_filter.c)
 *     large ones of LINEAR  once more on either side of the L2 (l2_copy.c)
 *
 * One allocation, sized before the first byte moves. What rounding does to a matrix is counted on the device and judged
 * by its name: a model that would compute with other numbers than it should is refused. Bounds: nothing may be beyond
 * the element's range, or not a number (where the element changes; else, and in rows of a table alone, it stays what it
 * is and is found by logits); e4m3 may make one value in 16 zero (normal numbers beside larger ones of which that many
 * are lost are off by 0.045 of their own size; alone, in rows of 28,672, one in 40 is) and be off by 0.04 of the
 * matrix's root mean square (0.027 is what normal numbers take, 0.028 in such rows); four bits by 0.15, which what is
 * stored so does not come near: it stays as it is; float16 may make one in 8 zero, as
 * those are below 2^-25. */
#include "backend/cuda/weights/weights.h"
#include "backend/cuda/cuda.h"
#include "backend/cuda/device/device.h"
#include "backend/cuda/device/l2_copies.h"
#include "backend/cuda/head/head.h"
#include "backend/cuda/value.h"
#include "backend/cuda/weights/layout.h"
#include "backend/cuda/weights/place.h"
#include "backend/cuda/weights/quads.h"

#include <math.h>
#include <stdlib.h>

enum { ALIGNMENT = 256, LOST_E4M3 = 16, LOST_F16 = 8 };
static const double ERROR_E4M3 = 0.04, ERROR_QUADS = 0.15;
static void *const NOWHERE = (void *)4096; // weights of a card that is not there: aligned, and not absent

// ---- elements ---------------------------------------------------------------------------------------------------

/* What most bytes of matrices are stored in decides. */
static enum element choose_product(const struct program *p) {
    int64_t wide = 0, narrow = 0;
    for (int i = 0; i < p->n_ops; i++)
        for (int k = 0; k < OP_MAX_WEIGHTS; k++) {
            const struct weight *w = p->ops[i].weights[k];
            if (!w || !op_multiplies_by(p->ops[i].code, k))
                continue;
            const struct layout *l = layout_of(&w->parts[0]);
            *(l && l->wants_float32 ? &wide : &narrow) += w->out * w->in;
        }
    return wide > narrow ? ELEMENT_F32 : ELEMENT_F16;
}

static bool is_e4m3(const struct weight *w) {
    const struct layout *l = layout_of(&w->parts[0]);
    for (int i = 0; l && l->is_e4m3 && i < w->n_parts; i++)
        l = layout_of(&w->parts[i]);
    return l && l->is_e4m3;
}

static bool may_be_e4m3(const struct weight *w) {
    const struct layout *l = layout_of(&w->parts[0]);
    for (int i = 0; l && l->may_be_e4m3 && i < w->n_parts; i++)
        l = layout_of(&w->parts[i]);
    return l && l->may_be_e4m3;
}

static bool reads(const struct op *op, val v) {
    for (int k = 0; k < OP_MAX_IN; k++)
        if (op->in[k].id == v.id)
            return true;
    return false;
}

/* Whether the LINEAR's result is logits of tokens or of experts: small errors there change what is chosen. */
static bool chooses(const struct program *p, val y) {
    for (int i = 0; i < p->n_ops; i++) {
        const struct op *op = &p->ops[i];
        if (!reads(op, y))
            continue;
        if (op->code == OP_SAMPLE || op->code == OP_MOE_ROUTE || (op->code == OP_SOFTCAP && chooses(p, op->out[0])))
            return true;
    }
    return false;
}

/* Both matrices of experts have one element: what lies between them is rounded for it. The plain kernel takes none. */
static bool experts_in_e4m3(const struct loaded *loaded, const struct op *op) {
    if (!loaded->device->is_fast)
        return false;
    for (int k = 0; k < 2; k++) {
        const struct weight *w = op->weights[k];
        if (w->in % 16 != 0 || !(is_e4m3(w) || (loaded->quantise == QUANTISE_FP8 && may_be_e4m3(w))))
            return false;
    }
    return true;
}

/* Of what the parts of a weight are stored in, the element of blocks that keeps it; ELEMENT_F32: none does. */
static enum element in_blocks(const struct weight *w) {
    const struct layout *first = layout_of(&w->parts[0]);
    for (int i = 0; first && i < w->n_parts; i++)
        if (layout_of(&w->parts[i]) != first || w->parts[i].scale.block_cols != first->block_cols)
            return ELEMENT_F32;
    return first && first->blocks && w->in % first->block_cols == 0 ? first->blocks : ELEMENT_F32;
}

/* Both matrices of experts, as above. */
static enum element experts_in_blocks(const struct loaded *loaded, const struct op *op) {
    enum element e = in_blocks(op->weights[0]);
    return loaded->device->is_fast && e == in_blocks(op->weights[1]) ? e : ELEMENT_F32;
}

static bool in_quads(const struct loaded *loaded, const struct program *p, const struct op *op, struct dquads *out) {
    bool made = op->code == OP_LINEAR && may_be_e4m3(op->weights[0]);
    return (!made || !chooses(p, op->out[0])) && quads_of(loaded, p, op, made, out);
}

static enum element matrix_element(const struct loaded *loaded, const struct program *p, const struct op *op) {
    const struct weight *w = op->weights[0];
    struct dquads quads;
    if (loaded->product == ELEMENT_F32)
        return loaded->product;
    if (in_quads(loaded, p, op, &quads) || quads_of_experts(loaded, op, 0, &quads))
        return ELEMENT_QUADS;
    if (op->code == OP_MOE_FFN && experts_in_blocks(loaded, op) != ELEMENT_F32)
        return experts_in_blocks(loaded, op);
    if (!loaded->device->multiplies_e4m3)
        return loaded->product;
    if (op->code == OP_MOE_FFN && experts_in_e4m3(loaded, op))
        return ELEMENT_E4M3;
    if (op->code != OP_LINEAR || w->in % 16 != 0 || w->out % 16 != 0)
        return loaded->product;
    if (is_e4m3(w))
        return ELEMENT_E4M3;
    bool may_be = loaded->quantise == QUANTISE_FP8 && may_be_e4m3(w);
    return may_be && (loaded->is_draft || !chooses(p, op->out[0])) ? ELEMENT_E4M3 : loaded->product;
}

// ---- places -----------------------------------------------------------------------------------------------------

static int64_t rounded(int64_t n_bytes) { return (n_bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT; }

static enum status check_part(const struct loaded *loaded, const struct program *p, const struct op *op,
                              const struct weight *w, const struct weight_part *part, struct error *err) {
    const struct layout *l = layout_of(part);
    if (!l && part->format->block_cols)
        return fail(
            err, ERR_UNSUPPORTED,
            "%s: %s: CUDA does not compute with GGUF's %s (%s): of quantised types it takes q8_0, q4_0, q4_k and "
            "q6_k; quantise the model to one of these, or take --device cpu",
            p->name, op_name(op->code), part->format->name, w->name);
    if (!l)
        return fail(err, ERR_UNSUPPORTED, "%s: %s: CUDA does not compute with %s of %s (%s)", p->name,
                    op_name(op->code), part->format->name, dtype_name(part->dtype), w->name);
    if (part->data)
        return OK;
    if (!loaded->dummies)
        return fail(err, ERR_UNSUPPORTED, "%s: %s: %s has no data", p->name, op_name(op->code), w->name);
    if (!l->has_dummies)
        return fail(err, ERR_UNSUPPORTED, "%s: dummy weights are not made in %s", w->name, dtype_name(part->dtype));
    return OK;
}

static char *take(int64_t *total,
                  int64_t n_bytes) { // an offset, until the memory is there; 1 is the first, as NULL is none
    char *at = (char *)(uintptr_t)(1 + *total);
    *total += rounded(n_bytes);
    return at;
}

/* Rows behind those of the first kind get places of their own. */
static void reserve_runs(struct loaded *loaded, const struct program *p, const struct op *op, struct placed *placed) {
    struct quads_run runs[MOST_RUNS];
    bool made = may_be_e4m3(op->weights[0]);
    placed->n_rest = quads_runs(loaded, p, op, made, runs) - 1;
    placed->matrix.out = runs[0].rows;
    for (int i = 0; i < placed->n_rest; i++) {
        const struct quads_run *run = &runs[i + 1];
        struct dweight *d = &placed->rest[i];
        *d = (struct dweight){NULL, run->rows, op->weights[0]->in, ELEMENT_QUADS, NULL, run->kind};
        d->at = take(&loaded->weight_bytes, quads_bytes(d->quads, d->out, d->in));
        d->scale = (const float *)(const void *)take(&loaded->weight_bytes, d->out * (int64_t)sizeof(float));
    }
}

static enum status reserve(struct loaded *loaded, const struct program *p, const struct op *op, int slot,
                           struct error *err) {
    const struct weight *w = op->weights[slot];
    int64_t n;
    for (int i = 0; i < w->n_parts; i++)
        TRY(check_part(loaded, p, op, w, &w->parts[i], err));
    if (__builtin_mul_overflow(w->out, w->in, &n) || n > INT64_MAX / 16)
        return fail(err, ERR_MEMORY, "%s: a weight of %lld x %lld does not fit", w->name, (long long)w->out,
                    (long long)w->in);
    struct placed *placed = &loaded->placed[placed_slot(loaded, w)];
    if (!placed->weight)
        placed->number = loaded->n_placed++;
    placed->weight = w;
    placed->is_multiplied |= op->code != OP_EMBED;
    bool matrix = op_multiplies_by(op->code, slot);
    struct dweight *d = matrix ? &placed->matrix : &placed->floats;
    enum element element = matrix ? matrix_element(loaded, p, op) : ELEMENT_F32;
    struct dquads quads = {0};
    bool experts = op->code == OP_MOE_FFN && (is_in_blocks(element) || element == ELEMENT_QUADS);
    bool gates_alike = element != ELEMENT_QUADS ||
                       !(experts ? quads_of_experts(loaded, op, slot, &quads) : in_quads(loaded, p, op, &quads)) ||
                       quads.gated == d->quads.gated;
    if (d->at && ((d->element == element && gates_alike) || d->element == loaded->product))
        return OK;
    if (d->at) // of two ops that want different elements the finer one counts for both
        element = loaded->product;
    if (experts) {
        const struct moe_args *a = &op->args.moe_ffn;
        placed->blocks = (struct dblocks){slot == 0 ? a->ffn_size : w->out / a->n_experts, slot == 0};
    }
    *d = (struct dweight){NULL, w->out, w->in, element, NULL, quads};
    placed->n_rest = matrix ? 0 : placed->n_rest;
    if (matrix && element == ELEMENT_QUADS && !experts)
        reserve_runs(loaded, p, op, placed);
    d->at = take(&loaded->weight_bytes, matrix ? placed_matrix_bytes(placed) : n * element_bytes(element));
    if (matrix && element != ELEMENT_QUADS)
        placed->order_there = NULL;
    if (element == ELEMENT_QUADS && !experts && !placed->column_order && (placed->column_order = quads_column_order(w)))
        placed->order_there = (int32_t *)(void *)take(&loaded->weight_bytes, w->in * (int64_t)sizeof(int32_t));
    if (element == ELEMENT_E4M3 || is_in_blocks(element) || element == ELEMENT_QUADS)
        d->scale = (const float *)(const void *)take(&loaded->weight_bytes, w->out * (int64_t)sizeof(float));
    return OK;
}

static void *resolved(const struct loaded *loaded, const void *offset) {
    return offset ? (char *)loaded->weights + ((uintptr_t)offset - 1) : NULL;
}

static void resolve(struct loaded *loaded) {
    for (int i = 0; i < loaded->n_slots; i++) {
        struct dweight *both[] = {&loaded->placed[i].matrix, &loaded->placed[i].floats};
        for (int k = 0; k < 2; k++) {
            both[k]->at = resolved(loaded, both[k]->at);
            both[k]->scale = resolved(loaded, both[k]->scale);
        }
        for (int k = 0; k < loaded->placed[i].n_rest; k++) {
            struct dweight *rest = &loaded->placed[i].rest[k];
            rest->at = resolved(loaded, rest->at);
            rest->scale = resolved(loaded, rest->scale);
        }
        loaded->placed[i].order_there = resolved(loaded, loaded->placed[i].order_there);
    }
    loaded->filter.copy = resolved(loaded, loaded->filter.copy);
    loaded->l2_copy.at = resolved(loaded, loaded->l2_copy.at);
}

// ---- what rounding did ------------------------------------------------------------------------------------------

static enum status judge(const struct placed *p, const struct dplaced *c, struct error *err) {
    const char *name = p->weight->name;
    unsigned long long n = c->n_present;
    if (p->is_multiplied && c->n_unreal > 0)
        return fail(err, ERR_UNSUPPORTED,
                    "%s: %llu values are not numbers (NaN): the checkpoint is damaged, or was written so", name,
                    c->n_unreal);
    if (p->matrix.element == ELEMENT_F16 && c->n_beyond > 0)
        return fail(err, ERR_UNSUPPORTED,
                    "%s: %llu values are larger than float16 can hold (65504); use --dtype bfloat16", name,
                    c->n_beyond);
    if (p->matrix.element == ELEMENT_F16 && c->n_lost > n / LOST_F16)
        return fail(err, ERR_UNSUPPORTED, "%s: %llu of %llu values are too small for float16; use --dtype bfloat16",
                    name, c->n_lost, n);
    double error = c->squared > 0 ? sqrt(c->squared_error / c->squared) : 0;
    if (p->matrix.element == ELEMENT_QUADS && !(error <= ERROR_QUADS))
        return fail(err, ERR_UNSUPPORTED, "%s: four bits would be off by %.3f of the matrix's size, more than %.2f",
                    name, error, ERROR_QUADS);
    if (p->matrix.element != ELEMENT_E4M3)
        return OK;
    if (c->n_beyond > 0)
        return fail(err, ERR_UNSUPPORTED, "%s: %llu values are not finite, so that FP8 has no scale for their rows",
                    name, c->n_beyond);
    if (c->n_lost > n / LOST_E4M3)
        return fail(err, ERR_UNSUPPORTED,
                    "%s: FP8 with a scale a row would make %llu of %llu values zero, more than one in %d", name,
                    c->n_lost, n, LOST_E4M3);
    if (!(error <= ERROR_E4M3))
        return fail(err, ERR_UNSUPPORTED,
                    "%s: FP8 with a scale a row would be off by %.3f of the matrix's size, more than %.2f", name, error,
                    ERROR_E4M3);
    return OK;
}

static enum status judge_all(struct loaded *loaded, const struct dplaced *on_device, struct error *err) {
    struct dplaced *counts = xcalloc((size_t)loaded->n_slots, sizeof *counts);
    cudaError_t code = cudaMemcpy(counts, on_device, (size_t)loaded->n_slots * sizeof *counts, cudaMemcpyDeviceToHost);
    enum status st =
        code == cudaSuccess ? OK : device_fault(loaded->device, err, code, "counts of %d weights", loaded->n_slots);
    for (int i = 0; st == OK && i < loaded->n_slots; i++)
        if (loaded->placed[i].weight)
            st = judge(&loaded->placed[i], &counts[i], err);
    free(counts);
    return st;
}

static enum status upload_and_judge(struct loaded *loaded, struct error *err) {
    struct dplaced *counts;
    size_t n_bytes = (size_t)loaded->n_slots * sizeof *counts;
    TRY(memory_take(loaded->device, &counts, (int64_t)n_bytes, "counts of weights", err));
    cudaError_t code = cudaMemsetAsync(counts, 0, n_bytes, loaded->device->stream);
    if (code == cudaSuccess)
        code = cudaStreamSynchronize(loaded->device->stream); // others count there
    enum status st = code == cudaSuccess ? upload_weights(loaded, counts, err)
                                         : device_fault(loaded->device, err, code, "counts of weights");
    if (st == OK)
        st = judge_all(loaded, counts, err);
    cudaFree(counts);
    return st;
}

static enum status send_column_orders(struct loaded *loaded, struct error *err) {
    for (int i = 0; i < loaded->n_slots; i++) {
        const struct placed *p = &loaded->placed[i];
        if (!p->order_there)
            continue;
        size_t n_bytes = (size_t)p->weight->in * sizeof *p->column_order;
        DEVICE_TRY(loaded->device, err, cudaMemcpy(p->order_there, p->column_order, n_bytes, cudaMemcpyHostToDevice),
                   "%s: the order of %lld columns", p->weight->name, (long long)p->weight->in);
    }
    return OK;
}

enum status weights_place(struct loaded *loaded, struct error *err) {
    const struct program *p = loaded->program;
    if (!loaded->product_is_set)
        loaded->product = choose_product(p);
    if (loaded->quantise && loaded->product == ELEMENT_F32)
        return fail(err, ERR_UNSUPPORTED,
                    "%s: --quantization needs products of 16 bits: set --dtype float16 or bfloat16", p->name);
    if (loaded->quantise > QUANTISE_FP8 && loaded->product != ELEMENT_F16)
        return fail(err, ERR_UNSUPPORTED,
                    "%s: --quantization int4 and nvfp4 need products in float16: leave --dtype out", p->name);
    for (loaded->n_slots = 64; loaded->n_slots < p->n_ops * OP_MAX_WEIGHTS * 2;)
        loaded->n_slots *= 2;
    loaded->placed = xcalloc((size_t)loaded->n_slots, sizeof *loaded->placed);
    for (int i = 0; i < p->n_ops; i++)
        for (int k = 0; k < OP_MAX_WEIGHTS; k++) {
            int64_t before = loaded->weight_bytes;
            if (!p->ops[i].weights[k])
                continue;
            TRY(reserve(loaded, p, &p->ops[i], k, err));
            placed_on_device(loaded, p->ops[i].weights[k])->n_bytes += loaded->weight_bytes - before;
        }
    int64_t screen = filter_room(loaded, p), l2_copy;
    loaded->filter.copy = screen ? take(&loaded->weight_bytes, screen) : NULL;
    TRY(l2_copy_room(loaded, p, &l2_copy, err));
    loaded->l2_copy.at = l2_copy ? take(&loaded->weight_bytes, l2_copy) : NULL;
    TRY(memory_take(loaded->device, &loaded->weights, loaded->weight_bytes, "weights", err));
    if (loaded->device->card)
        loaded->weights = NOWHERE;
    resolve(loaded);
    if (loaded->device->card)
        return OK;
    TRY(send_column_orders(loaded, err));
    TRY(upload_and_judge(loaded, err));
    TRY(filter_copy(loaded, err));
    return l2_copy_make(loaded, err);
}

void weights_release(struct loaded *loaded) {
    if (loaded->weights != NOWHERE)
        cudaFree(loaded->weights);
    l2_copy_release(loaded);
    free(loaded->filter.flips);
    for (int i = 0; loaded->placed && i < loaded->n_slots; i++)
        free(loaded->placed[i].column_order);
    free(loaded->placed);
}
