/* place.c - weights made ready for the CPU.
 *
 * Matrices stay where the checkpoint's map has them; their parts are only listed with their first rows, so
 * that an op finds a row in O(log parts). Two things are copied: what an op reads whole (norms, biases,
 * convolutions; a few kilobytes) becomes floats, and a part that is stored transposed (GPT-OSS experts,
 * [in, out]) is turned around once, in its own dtype, since walking it by columns would touch a cache line
 * an element. Until then such a part costs its bytes twice: in the map, which the system may drop, and here. */
#include "backend/cpu/cpu.h"
#include "backend/cpu/kernels/kernels.h"

#include <stdlib.h>
#include <string.h>

static size_t slot_of(const struct placed_table *table, const struct weight *w) {
    size_t mask = (size_t)table->n_slots - 1, i = ((uintptr_t)w >> 4) * 0x9E3779B97F4A7C15u >> 20 & mask;
    while (table->slots[i].weight && table->slots[i].weight != w)
        i = (i + 1) & mask;
    return i;
}

const struct placed *placed_find(const struct placed_table *table, const struct weight *w) {
    if (!w)
        return NULL;
    const struct placed *found = &table->slots[slot_of(table, w)];
    BUG_IF(found->weight != w); // compiled a program whose weights were not placed
    return found;
}

int64_t placed_run(const struct placed *w, int64_t row, const struct weight_part **part, int64_t *row_in_part) {
    int low = 0, high = w->weight->n_parts;
    BUG_IF(row < 0 || row >= w->weight->out);
    while (high - low > 1) {
        int middle = (low + high) / 2;
        *(w->first_row[middle] <= row ? &low : &high) = middle;
    }
    *part = &w->parts[low];
    *row_in_part = row - w->first_row[low];
    return w->first_row[low + 1] - row;
}

static enum status check_part(const struct program *p, const struct op *op, const struct weight *w,
                              const struct weight_part *part, struct error *err) {
    if (!part->data)
        return fail(err, ERR_UNSUPPORTED, "%s: %s: %s has no data", p->name, op_name(op->code), w->name);
    const struct format_kernels *format = kernels_format(&kernels_portable, part->format); // all sets have the same
    if (!format || !format->takes(part))
        return fail(err, ERR_UNSUPPORTED, "%s: %s: the CPU does not compute with %s of %s (%s)", p->name,
                    op_name(op->code), part->format->name, dtype_name(part->dtype), w->name);
    return OK;
}

/* ---- turning a transposed part around ---- */

struct turn {
    const struct weight_part *from;
    unsigned char *to;
    int64_t n_cols;
};

/* In tiles of 64 x 64, so that the lines of both sides stay in the first cache. */
static void turn_rows(void *arg, int worker, int n_workers) {
    enum { TILE = 64 };
    const struct turn *t = arg;
    const struct weight_part *p = t->from;
    size_t size = dtype_bytes(p->dtype);
    int64_t begin, end;
    pool_share(p->n_rows, TILE, worker, n_workers, &begin, &end);
    for (int64_t r0 = begin; r0 < end; r0 += TILE)
        for (int64_t c0 = 0; c0 < t->n_cols; c0 += TILE)
            for (int64_t r = r0; r < MIN(r0 + TILE, end); r++)
                for (int64_t col = c0; col < MIN(c0 + TILE, t->n_cols); col++)
                    memcpy(t->to + (size_t)(r * t->n_cols + col) * size,
                           (const unsigned char *)p->data + (size_t)(r * p->row_stride + col * p->col_stride) * size,
                           size);
}

static enum status turn_part(struct placed_table *table, const struct weight *w, struct weight_part *part,
                             struct pool *pool, struct error *err) {
    size_t n_bytes = (size_t)part->n_rows * (size_t)w->in * dtype_bytes(part->dtype);
    void *block = aligned_alloc(64, (n_bytes + 63) / 64 * 64);
    if (!block)
        return fail(err, ERR_MEMORY, "%s: no memory for a turned copy of %zu bytes", w->name, n_bytes);
    table->blocks = xrealloc(table->blocks, (size_t)table->n_blocks + 1, sizeof *table->blocks);
    table->blocks[table->n_blocks++] = block;
    table->n_bytes += (int64_t)n_bytes;
    struct weight_part from = *part;
    pool_run(pool, turn_rows, &(struct turn){&from, block, w->in});
    part->data = block;
    part->row_stride = w->in;
    part->col_stride = 1;
    return OK;
}

/* ---- placing ---- */

static enum status place_matrix(struct placed_table *table, struct placed *placed, struct pool *pool,
                                struct error *err) {
    const struct weight *w = placed->weight;
    placed->parts = xcalloc((size_t)w->n_parts, sizeof *placed->parts);
    placed->first_row = xcalloc((size_t)w->n_parts + 1, sizeof *placed->first_row);
    for (int i = 0; i < w->n_parts; i++) {
        placed->parts[i] = w->parts[i];
        placed->first_row[i + 1] = placed->first_row[i] + w->parts[i].n_rows;
        if (w->parts[i].col_stride != 1)
            TRY(turn_part(table, w, &placed->parts[i], pool, err));
    }
    BUG_IF(placed->first_row[w->n_parts] != w->out);
    return OK;
}

static void place_floats(struct placed *placed) {
    const struct weight *w = placed->weight;
    placed->floats = xcalloc((size_t)(w->out * w->in), sizeof(float));
    if (w->in == 1)
        weight_vector_f32(w, placed->floats);
    else
        weight_rows_f32(w, 0, w->out, placed->floats);
}

static enum status place(struct placed_table *table, const struct program *p, const struct op *op, int slot,
                         struct pool *pool, struct error *err) {
    const struct weight *w = op->weights[slot];
    for (int i = 0; i < w->n_parts; i++)
        TRY(check_part(p, op, w, &w->parts[i], err));
    struct placed *placed = &table->slots[slot_of(table, w)];
    placed->weight = w;
    if (op_multiplies_by(op->code, slot))
        return placed->parts ? OK : place_matrix(table, placed, pool, err);
    if (!placed->floats) {
        place_floats(placed);
        table->n_bytes += w->out * w->in * (int64_t)sizeof(float);
    }
    return OK;
}

enum status placed_table_fill(struct placed_table *table, const struct program *p, struct pool *pool,
                              struct error *err) {
    BUG_IF(table->slots); // placed twice
    table->n_slots = 64;
    while (table->n_slots < p->n_ops * OP_MAX_WEIGHTS * 2)
        table->n_slots *= 2;
    table->slots = xcalloc((size_t)table->n_slots, sizeof *table->slots);
    for (int i = 0; i < p->n_ops; i++)
        for (int slot = 0; slot < OP_MAX_WEIGHTS; slot++)
            if (p->ops[i].weights[slot])
                TRY(place(table, p, &p->ops[i], slot, pool, err));
    return OK;
}

void placed_table_release(struct placed_table *table) {
    for (int i = 0; i < table->n_slots; i++) {
        free(table->slots[i].floats);
        free(table->slots[i].parts);
        free(table->slots[i].first_row);
    }
    for (int i = 0; i < table->n_blocks; i++)
        free(table->blocks[i]);
    free(table->slots);
    free(table->blocks);
    *table = (struct placed_table){0};
}
