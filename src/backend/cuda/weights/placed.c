/* placed.c - the table of weights on the device, by the weight's address. */
#include "backend/cuda/cuda.h"
#include "backend/cuda/weights/quads.h"
#include "backend/cuda/weights/weights.h"

size_t placed_slot(const struct loaded *loaded, const struct weight *w) {
    size_t mask = (size_t)loaded->n_slots - 1, i = ((uintptr_t)w >> 4) * 0x9E3779B97F4A7C15u >> 20 & mask;
    while (loaded->placed[i].weight && loaded->placed[i].weight != w)
        i = (i + 1) & mask;
    return i;
}

struct placed *placed_on_device(const struct loaded *loaded, const struct weight *w) {
    struct placed *found = &loaded->placed[placed_slot(loaded, w)];
    BUG_IF(found->weight != w);
    return found;
}

const struct placed *weight_on_device(const struct loaded *loaded, const struct weight *w) {
    return w ? placed_on_device(loaded, w) : NULL;
}

struct dexpert placed_expert(const struct placed *p) {
    bool in_quads = p->matrix.element == ELEMENT_QUADS;
    int64_t rows = in_quads ? p->blocks.units * (p->blocks.gated ? 2 : 1) : 0;
    return (struct dexpert){rows, rows ? quads_bytes(p->matrix.quads, rows, p->matrix.in) : 0};
}

int64_t placed_matrix_bytes(const struct placed *p) {
    const struct dweight *d = &p->matrix;
    struct dexpert expert = placed_expert(p);
    if (d->element == ELEMENT_QUADS)
        return expert.rows ? d->out / expert.rows * expert.bytes : quads_bytes(d->quads, d->out, d->in);
    return is_in_blocks(d->element) ? blocks_bytes(d->element, d->out, d->in, p->blocks)
                                    : d->out * d->in * element_bytes(d->element);
}

struct grown weights_grown(const struct loaded *loaded) {
    struct grown g = {.n = 0};
    int64_t most = 0;
    for (int i = 0; i < loaded->n_slots; i++) {
        const struct placed *p = &loaded->placed[i];
        if (!p->weight || !p->matrix.at)
            continue;
        if (is_in_blocks(p->matrix.element) || p->matrix.element == ELEMENT_QUADS) // small ones are filled up
            continue;
        int64_t stored = weight_stored_bytes(p->weight), placed = placed_matrix_bytes(p);
        if (placed < stored + stored / 8)
            continue;
        g.n++, g.stored_bytes += stored, g.placed_bytes += placed;
        if (placed > most) {
            const struct weight_part *part = &p->weight->parts[0];
            most = placed;
            g.format = part->format->id == QFORMAT_SCALED ? dtype_name(part->dtype) : part->format->name;
            g.bits = 8 * (int)element_bytes(p->matrix.element);
        }
    }
    return g;
}
