/* weights.c - weights on the device: matrices row after row in the element of the products, vectors as floats.
 *
 * One allocation, sized before the first byte moves. A part that is stored plainly in that element is copied as it lies; any
 * other is decoded by its format's reference into a pinned piece and sent from there. */
#include "backend/cuda/cuda.h"

#include <stdlib.h>
#include <string.h>

enum { ALIGNMENT = 256, PIECE_BYTES = 16 << 20 };

int64_t element_bytes(enum element e) {
    switch (e) {
    case ELEMENT_F32:
    case ELEMENT_I32: return 4;
    case ELEMENT_F16:
    case ELEMENT_BF16: return 2;
    case ELEMENT_E4M3:
    case ELEMENT_I8: return 1;
    }
    BUG_IF(true);
}

void to_element(enum element e, const float *from, int64_t n, void *to) {
    for (int64_t i = 0; e == ELEMENT_F32 && i < n; i++)
        ((float *)to)[i] = from[i];
    for (int64_t i = 0; e == ELEMENT_F16 && i < n; i++)
        ((uint16_t *)to)[i] = f32_to_f16(from[i]);
    for (int64_t i = 0; e == ELEMENT_BF16 && i < n; i++)
        ((uint16_t *)to)[i] = f32_to_bf16(from[i]);
}

/* By name: the plugin has formats of its own, at other addresses than the program's. */
static bool is_plain(const struct weight_part *part) { return strcmp(part->format->name, qformat_plain.name) == 0; }

static size_t slot_of(const struct backend *b, const struct weight *w) {
    size_t mask = (size_t)b->n_slots - 1, i = ((uintptr_t)w >> 4) * 0x9E3779B97F4A7C15u >> 20 & mask;
    while (b->placed[i].weight && b->placed[i].weight != w)
        i = (i + 1) & mask;
    return i;
}

const struct placed *weight_on_device(const struct backend *b, const struct weight *w) {
    if (!w)
        return NULL;
    const struct placed *found = &b->placed[slot_of(b, w)];
    BUG_IF(found->weight != w);
    return found;
}

/* What most bytes of matrices are stored in decides. */
static enum element choose_product(const struct program *p) {
    int64_t wide = 0, narrow = 0;
    for (int i = 0; i < p->n_ops; i++)
        for (int k = 0; k < OP_MAX_WEIGHTS; k++) {
            const struct weight *w = p->ops[i].weights[k];
            if (!w || !op_multiplies_by(p->ops[i].code, k))
                continue;
            bool is_wide = is_plain(&w->parts[0]) && (w->parts[0].dtype == DT_F32 || w->parts[0].dtype == DT_F64);
            *(is_wide ? &wide : &narrow) += w->out * w->in;
        }
    return wide > narrow ? ELEMENT_F32 : ELEMENT_BF16;
}

static int64_t rounded(int64_t n_bytes) { return (n_bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT; }

static enum status check_part(const struct program *p, const struct op *op, const struct weight *w, const struct weight_part *part,
                              struct error *err) {
    if (!part->data)
        return fail(err, ERR_UNSUPPORTED, "%s: %s: %s has no data", p->name, op_name(op->code), w->name);
    const char *format = part->format->name; // by name, as in is_plain
    bool packed = strcmp(format, qformat_mxfp4.name) == 0 || strcmp(format, qformat_nvfp4.name) == 0;
    bool scaled = strcmp(format, qformat_scaled.name) == 0;
    bool known = packed
                     ? part->dtype == DT_U8 && part->col_stride == 1
                     : (is_plain(part) && dtype_is_float(part->dtype)) || (scaled && (dtype_is_float(part->dtype) || part->dtype == DT_I8));
    if (!known)
        return fail(err, ERR_UNSUPPORTED, "%s: %s: CUDA does not compute with %s of %s (%s)", p->name, op_name(op->code), format,
                    dtype_name(part->dtype), w->name);
    return OK;
}

/* Gives the weight its places, as offsets until the memory is there. */
static enum status reserve(struct backend *b, const struct program *p, const struct op *op, int slot, int64_t *total, struct error *err) {
    const struct weight *w = op->weights[slot];
    int64_t n;
    for (int i = 0; i < w->n_parts; i++)
        TRY(check_part(p, op, w, &w->parts[i], err));
    if (__builtin_mul_overflow(w->out, w->in, &n) || n > INT64_MAX / 16)
        return fail(err, ERR_MEMORY, "%s: a weight of %lld x %lld does not fit", w->name, (long long)w->out, (long long)w->in);
    struct placed *placed = &b->placed[slot_of(b, w)];
    placed->weight = w;
    bool matrix = op_multiplies_by(op->code, slot);
    struct dweight *d = matrix ? &placed->matrix : &placed->floats;
    if (d->at)
        return OK;
    *d = (struct dweight){(char *)(uintptr_t)(1 + *total), w->out, w->in, matrix ? b->product : ELEMENT_F32};
    *total += rounded(n * element_bytes(d->element));
    return OK;
}

struct sender {
    struct backend *b;
    char *piece; // pinned, PIECE_BYTES
    float *row;
    int64_t row_capacity;
};

static bool lies_as_wanted(const struct weight_part *part, const struct weight *w, enum element e) {
    return is_plain(part) &&
           part->dtype == (e == ELEMENT_BF16  ? DT_BF16
                           : e == ELEMENT_F16 ? DT_F16
                                              : DT_F32) &&
           part->col_stride == 1 && (part->row_stride == w->in || part->n_rows == 1);
}

static enum status send_decoded(struct sender *s, const struct weight *w, int64_t first_row, int64_t n_rows, struct dweight d,
                                struct error *err) {
    int64_t row_bytes = w->in * element_bytes(d.element), rows_a_piece = MAX(PIECE_BYTES / row_bytes, 1);
    if (row_bytes > PIECE_BYTES)
        return fail(err, ERR_UNSUPPORTED, "%s: rows of %lld bytes are too long", w->name, (long long)row_bytes);
    for (int64_t r = first_row; r < first_row + n_rows; r += rows_a_piece) {
        int64_t n = MIN(rows_a_piece, first_row + n_rows - r);
        for (int64_t i = 0; i < n; i++) {
            weight_rows_f32(w, r + i, 1, s->row);
            to_element(d.element, s->row, w->in, s->piece + i * row_bytes);
        }
        DEVICE_TRY(s->b, err,
                   cudaMemcpy((char *)(uintptr_t)d.at + r * row_bytes, s->piece, (size_t)(n * row_bytes), cudaMemcpyHostToDevice),
                   "%s: sending %lld rows", w->name, (long long)n);
    }
    return OK;
}

static enum status send_weight(struct sender *s, const struct weight *w, struct dweight d, struct error *err) {
    int64_t row = 0;
    if (w->in > s->row_capacity) {
        s->row = xrealloc(s->row, (size_t)w->in, sizeof *s->row);
        s->row_capacity = w->in;
    }
    for (int i = 0; i < w->n_parts; row += w->parts[i++].n_rows) {
        const struct weight_part *part = &w->parts[i];
        int64_t row_bytes = w->in * element_bytes(d.element);
        if (lies_as_wanted(part, w, d.element))
            DEVICE_TRY(s->b, err,
                       cudaMemcpy((char *)(uintptr_t)d.at + row * row_bytes, part->data, (size_t)(part->n_rows * row_bytes),
                                  cudaMemcpyHostToDevice),
                       "%s: sending %lld rows", w->name, (long long)part->n_rows);
        else
            TRY(send_decoded(s, w, row, part->n_rows, d, err));
    }
    return OK;
}

static enum status send_all(struct backend *b, struct sender *s, struct error *err) {
    for (int i = 0; i < b->n_slots; i++) {
        struct placed *p = &b->placed[i];
        struct dweight *both[] = {&p->matrix, &p->floats};
        for (int k = 0; k < 2; k++) {
            if (!both[k]->at)
                continue;
            both[k]->at = (char *)b->weights + ((uintptr_t)both[k]->at - 1);
            TRY(send_weight(s, p->weight, *both[k], err));
        }
    }
    return OK;
}

enum status cuda_place_weights(struct backend *b, const struct program *p, struct error *err) {
    BUG_IF(b->placed); // placed twice
    if (!b->product_is_set)
        b->product = choose_product(p);
    for (b->n_slots = 64; b->n_slots < p->n_ops * OP_MAX_WEIGHTS * 2;)
        b->n_slots *= 2;
    b->placed = xcalloc((size_t)b->n_slots, sizeof *b->placed);
    for (int i = 0; i < p->n_ops; i++)
        for (int k = 0; k < OP_MAX_WEIGHTS; k++)
            if (p->ops[i].weights[k])
                TRY(reserve(b, p, &p->ops[i], k, &b->weight_bytes, err));
    if (cudaMalloc(&b->weights, (size_t)MAX(b->weight_bytes, 1)) != cudaSuccess) {
        cudaGetLastError();
        return fail(err, ERR_MEMORY, "%s: the device has no room for %lld bytes of weights", p->name, (long long)b->weight_bytes);
    }
    struct sender s = {.b = b};
    DEVICE_TRY(b, err, cudaMallocHost((void **)&s.piece, PIECE_BYTES), "pinned memory of %d bytes", PIECE_BYTES);
    enum status st = send_all(b, &s, err);
    cudaFreeHost(s.piece);
    free(s.row);
    return st;
}

void weights_release(struct backend *b) {
    cudaFree(b->weights);
    free(b->placed);
}
