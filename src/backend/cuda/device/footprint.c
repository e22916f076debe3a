/* footprint.c - what a loaded program takes of the device's memory but for caches, by kind: what weights are stored as,
 * and what they are there. Bytes are those that their places take (weights.c), on a card that is there or not. */
#include "backend/cuda/cuda.h"
#include "backend/cuda/device/probes.h"
#include "backend/cuda/head/head.h"
#include "backend/cuda/step/compile.h"
#include "backend/cuda/weights/layout.h"
#include "backend/cuda/weights/weights.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { OTHER_PARTS = 5 }; // behind those of weights

// ---- what a weight is -------------------------------------------------------------------------------------------

static bool is_read_by_routing(const struct program *p, val v) {
    for (int i = 0; i < p->n_ops; i++)
        for (int k = 0; p->ops[i].code == OP_MOE_ROUTE && k < OP_MAX_IN; k++)
            if (p->ops[i].in[k].id == v.id)
                return true;
    return false;
}

static bool is_table(const struct program *p, const struct weight *w) {
    for (int i = 0; i < p->n_ops; i++)
        if (p->ops[i].code == OP_EMBED && p->ops[i].weights[0] == w)
            return true;
    return false;
}

static const char *role_of(const struct program *p, const struct op *op, int slot) {
    const struct op *head = head_of(p);
    const struct weight *w = op->weights[slot];
    if (!op_multiplies_by(op->code, slot))
        return "norms, biases and the like";
    if (op->code == OP_MOE_FFN)
        return "experts";
    if (head && head->weights[0] == w)
        return is_table(p, w) ? "embedding and head" : "head";
    if (op->code == OP_EMBED)
        return "embedding";
    return op->code == OP_LINEAR && is_read_by_routing(p, op->out[0]) ? "routers" : "linear layers";
}

static const char *part_name(const struct weight_part *p) {
    bool by_dtype = p->format->id == QFORMAT_PLAIN || p->format->id == QFORMAT_SCALED;
    return by_dtype ? dtype_name(p->dtype) : p->format->name;
}

/* "bf16"; of parts of several kinds "q4_k, q6_k". */
static void stored_name(const struct weight *w, char *out, size_t size) {
    size_t at = 0;
    out[0] = '\0';
    for (int i = 0; i < w->n_parts; i++) {
        const char *name = part_name(&w->parts[i]);
        bool known = false;
        for (int k = 0; k < i; k++)
            known = known || strcmp(part_name(&w->parts[k]), name) == 0;
        if (!known && at < size)
            at += (size_t)snprintf(out + at, size - at, "%s%s", at ? ", " : "", name);
    }
}

static bool is_plain_as(const struct weight *w, enum dtype dtype) {
    for (int i = 0; i < w->n_parts; i++)
        if (w->parts[i].format->id != QFORMAT_PLAIN || w->parts[i].dtype != dtype)
            return false;
    return true;
}

static const char *plain_name(const struct weight *w, enum element e) {
    switch (e) {
    case ELEMENT_F16: return is_plain_as(w, DT_F16) ? "as stored" : "float16";
    case ELEMENT_BF16: return is_plain_as(w, DT_BF16) ? "as stored" : "bfloat16";
    default: return is_plain_as(w, DT_F32) ? "as stored" : "float32";
    }
}

static const char *there_name(const struct placed *p) {
    const struct dweight *d = p->matrix.at ? &p->matrix : &p->floats;
    const struct layout *l = layout_of(&p->weight->parts[0]);
    switch (d->element) {
    case ELEMENT_E4M3: return l->is_e4m3 ? "e4m3, a scale a row" : "made e4m3, a scale a row";
    case ELEMENT_MXFP4: return "as stored, in blocks";
    case ELEMENT_QUADS:
        if (l->in_quads)
            return "as stored, in tiles";
        return d->quads.kind == QUADS_NVFP4 ? "made nvfp4" : "made int4, a scale to 128";
    default: return plain_name(p->weight, d->element);
    }
}

// ---- parts ------------------------------------------------------------------------------------------------------

static bool same_kind(const struct device_part *a, const struct device_part *b) {
    return strcmp(a->what, b->what) == 0 && strcmp(a->stored, b->stored) == 0 && strcmp(a->there, b->there) == 0;
}

/* To the part of its kind, or a new one; of kinds that there is no room for, to the last. */
static void add_weight(struct device_part *parts, int *n, const struct device_part *more) {
    int i = 0;
    while (i < *n && !same_kind(&parts[i], more))
        i++;
    if (i == MAX_DEVICE_PARTS - OTHER_PARTS) {
        i--;
        snprintf(parts[i].what, sizeof parts[i].what, "others");
        snprintf(parts[i].stored, sizeof parts[i].stored, "several");
        snprintf(parts[i].there, sizeof parts[i].there, "several");
    } else if (i == *n) {
        parts[(*n)++] = *more;
        return;
    }
    parts[i].n_weights += more->n_weights;
    parts[i].stored_bytes += more->stored_bytes, parts[i].n_bytes += more->n_bytes;
}

static void add_weights(const struct loaded *loaded, struct device_part *parts, int *n) {
    const struct program *p = loaded->program;
    bool *seen = xcalloc((size_t)loaded->n_placed + 1, sizeof *seen);
    for (int i = 0; i < p->n_ops; i++)
        for (int k = 0; k < OP_MAX_WEIGHTS; k++) {
            const struct placed *w = weight_on_device(loaded, p->ops[i].weights[k]);
            struct device_part part = {.n_weights = 1};
            if (!w || seen[w->number])
                continue;
            seen[w->number] = true;
            snprintf(part.what, sizeof part.what, "%s", role_of(p, &p->ops[i], k));
            stored_name(w->weight, part.stored, sizeof part.stored);
            snprintf(part.there, sizeof part.there, "%s", there_name(w));
            part.stored_bytes = weight_stored_bytes(w->weight), part.n_bytes = w->n_bytes;
            add_weight(parts, n, &part);
        }
    free(seen);
}

static int by_size(const void *a, const void *b) {
    int64_t x = ((const struct device_part *)a)->n_bytes, y = ((const struct device_part *)b)->n_bytes;
    return x > y ? -1 : x < y;
}

static void __attribute__((format(printf, 5, 6)))
add(struct device_part *parts, int *n, int64_t n_bytes, bool is_at_most, const char *what, ...) {
    va_list args;
    if (n_bytes == 0)
        return;
    parts[*n] = (struct device_part){.n_bytes = n_bytes, .is_at_most = is_at_most};
    va_start(args, what);
    vsnprintf(parts[*n].what, sizeof parts[*n].what, what, args);
    va_end(args);
    ++*n;
}

enum status cuda_footprint(struct loaded *loaded, struct bucket bucket, int block_size, const int *table_width,
                           struct device_part out[MAX_DEVICE_PARTS], int *n, struct error *err) {
    const struct device *d = loaded->device;
    int64_t step;
    *n = 0;
    add_weights(loaded, out, n);
    qsort(out, (size_t)*n, sizeof *out, by_size);
    loaded->block_size = block_size;
    memcpy(loaded->table_width, table_width, sizeof loaded->table_width);
    TRY(step_sized(loaded, bucket, &step, err));
    add(out, n, loaded->filter.head ? loaded->filter.n_bytes : 0, false, "the head in 8 bits, as a screen");
    add(out, n, loaded->l2_copy.n_bytes, d->card != NULL, "weights once more, by sides of the L2");
    add(out, n, step, false, "a step of up to %d tokens and %d sequences", bucket.max_tokens, bucket.max_seqs);
    add(out, n, d->card ? d->taken - loaded->weight_bytes : WORKSPACE_BYTES, false, "driver and libraries");
    add(out, n, LIBRARIES, false, "modules and graphs that come later");
    return OK;
}
