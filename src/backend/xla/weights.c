/* weights.c - see weights.h. */
#include "backend/xla/weights.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static bool may_be_int8(enum opcode code, int slot) {
    return (code == OP_LINEAR || code == OP_MOE_FFN || code == OP_EMBED) && op_multiplies_by(code, slot);
}

static struct placed describe(const struct loaded *l, const struct weight *w, enum opcode code, int slot) {
    bool is_matrix = op_multiplies_by(code, slot), is_int8 = l->has_int8_weights && may_be_int8(code, slot);
    struct placed placed = {.weight = w,
                            .type = is_int8     ? TYPE_S8
                                    : is_matrix ? l->type
                                                : TYPE_F32,
                            .is_scaled = is_int8,
                            .shape = w->in == 1 && !is_matrix ? SHAPE(w->out) : SHAPE(w->out, w->in)};
    return placed;
}

/* The place of a weight that was seen before in the same role; else its own, at the end. */
static int find_or_add(struct loaded *l, struct placed new) {
    for (int i = 0; i < l->n_weights; i++)
        if (l->weights[i].weight == new.weight && l->weights[i].type == new.type)
            return i;
    l->weights[l->n_weights] = new;
    return l->n_weights++;
}

void weights_list(struct loaded *l) {
    const struct program *p = l->program;
    l->weights = xcalloc((size_t)p->n_ops * OP_MAX_WEIGHTS + 1, sizeof *l->weights);
    l->weight_of = xcalloc((size_t)p->n_ops * OP_MAX_WEIGHTS + 1, sizeof *l->weight_of);
    for (int i = 0; i < p->n_ops; i++)
        for (int k = 0; k < OP_MAX_WEIGHTS; k++) {
            const struct weight *w = p->ops[i].weights[k];
            l->weight_of[i * OP_MAX_WEIGHTS + k] = w ? find_or_add(l, describe(l, w, p->ops[i].code, k)) : -1;
        }
}

/* ---- the host's side ---- */

static bool is_type(enum dtype dt, enum hlo_type type) {
    return (dt == DT_F32 && type == TYPE_F32) || (dt == DT_BF16 && type == TYPE_BF16);
}

/* Where all elements lie as the device wants them: in the checkpoint's map; NULL: nowhere. */
static const void *as_it_lies(const struct placed *placed) {
    const struct weight *w = placed->weight;
    const char *next = w->parts[0].data;
    for (int i = 0; i < w->n_parts; i++) {
        const struct weight_part *p = &w->parts[i];
        if (p->format->id != QFORMAT_PLAIN || !is_type(p->dtype, placed->type) || p->data != next ||
            p->row_stride != w->in || (p->col_stride != 1 && w->in > 1))
            return NULL;
        next += p->n_rows * w->in * (int64_t)dtype_bytes(p->dtype);
    }
    return w->parts[0].data;
}

static void to_bf16(const float *x, int64_t n, uint16_t *out) {
    for (int64_t i = 0; i < n; i++)
        out[i] = f32_to_bf16(x[i]);
}

/* A row of int8 and its scale. */
static float to_int8(const float *x, int64_t n, int8_t *out) {
    float most = 1e-20f;
    for (int64_t i = 0; i < n; i++)
        most = fmaxf(most, fabsf(x[i]));
    float scale = most / 127;
    for (int64_t i = 0; i < n; i++)
        out[i] = (int8_t)rintf(x[i] / scale);
    return scale;
}

/* All elements, converted; scales [out] of int8. */
static void convert_rows(const struct placed *placed, void *out, float *scales) {
    const struct weight *w = placed->weight;
    float *row = xmalloc((size_t)w->in * sizeof *row);
    for (int64_t r = 0; r < w->out; r++) {
        weight_rows_f32(w, r, 1, row);
        if (placed->type == TYPE_F32)
            memcpy((float *)out + r * w->in, row, (size_t)w->in * sizeof *row);
        else if (placed->type == TYPE_BF16)
            to_bf16(row, w->in, (uint16_t *)out + r * w->in);
        else
            scales[r] = to_int8(row, w->in, (int8_t *)out + r * w->in);
    }
    free(row);
}

static enum pjrt_type pjrt_type_of(enum hlo_type type) {
    return type == TYPE_F32 ? PJRT_F32 : type == TYPE_BF16 ? PJRT_BF16 : PJRT_S8;
}

static int64_t placed_bytes(const struct placed *p) {
    return shape_count(p->shape) * pjrt_type_bytes(pjrt_type_of(p->type)) +
           (p->is_scaled ? p->weight->out * (int64_t)sizeof(float) : 0);
}

int64_t weights_bytes_of(const struct loaded *l, const struct weight *w) {
    for (int i = 0; i < l->n_weights; i++)
        if (l->weights[i].weight == w)
            return placed_bytes(&l->weights[i]);
    return weight_stored_bytes(w);
}

int64_t weights_bytes(const struct loaded *l) {
    int64_t n = 0;
    for (int i = 0; i < l->n_weights; i++)
        n += placed_bytes(&l->weights[i]);
    return n;
}

static enum status upload(const struct loaded *l, struct placed *placed, const void *data, const float *scales,
                          struct error *err) {
    const struct device *d = l->device;
    TRY(pjrt_upload(d->pjrt, d->index, pjrt_type_of(placed->type), placed->shape.dims, placed->shape.rank, data,
                    &placed->buffer, err));
    return placed->is_scaled
               ? pjrt_upload(d->pjrt, d->index, PJRT_F32, &placed->weight->out, 1, scales, &placed->scales, err)
               : OK;
}

static enum status place(const struct loaded *l, struct placed *placed, struct error *err) {
    const void *data = as_it_lies(placed);
    if (data)
        return upload(l, placed, data, NULL, err);
    void *made = malloc((size_t)placed_bytes(placed) + 1); // as large as a weight: the world's to give
    float *scales = placed->is_scaled ? malloc((size_t)placed->weight->out * sizeof *scales) : NULL;
    enum status st = OK;
    if (!made || (placed->is_scaled && !scales))
        st = fail(err, ERR_MEMORY, "%s: no memory to convert it: %lld bytes", placed->weight->name,
                  (long long)placed_bytes(placed));
    if (st == OK) {
        convert_rows(placed, made, scales);
        st = upload(l, placed, made, scales, err);
    }
    free(made);
    free(scales);
    return st;
}

enum status weights_place(struct loaded *l, bool is_dummy, const struct load_progress *progress, struct error *err) {
    int64_t done = 0, total = weights_bytes(l);
    if (is_dummy)
        return dummies_make(l, err);
    for (int i = 0; i < l->n_weights; i++) {
        enum status st = place(l, &l->weights[i], err);
        if (st != OK)
            return fail_within(err, st, "%s: %s", l->program->name, l->weights[i].weight->name);
        load_progress_step(progress, done += placed_bytes(&l->weights[i]), total);
    }
    return OK;
}

void weights_release(struct loaded *l) {
    for (int i = 0; i < l->n_weights; i++) {
        pjrt_buffer_free(l->device->pjrt, l->weights[i].buffer);
        pjrt_buffer_free(l->device->pjrt, l->weights[i].scales);
    }
    free(l->weights);
    free(l->weight_of);
}
