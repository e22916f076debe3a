/* dense.c - see dense.h: who is in which row, what is to be filled, and what is newer than its block. */
#include "backend/xla/dense.h"

#include "backend/xla/cache.h"
#include "backend/xla/compiled.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

/* What stands in a slot of a row: this block, as it was when it was written for the `version`th time. */
struct slot {
    int32_t block; // -1: zeros
    int32_t version;
};

struct dense {
    struct launch_shape shape;    // that the arrays are of; n_seqs 0: there are none
    struct pjrt_buffer **buffers; // [l->n_caches]
    int width[MAX_CACHE_GROUPS];
    struct slot *slots[MAX_CACHE_GROUPS]; // [n_seqs][width]
    int32_t *versions[MAX_CACHE_GROUPS];  // [n_blocks]
    int32_t *newer[MAX_CACHE_GROUPS];     // [n_blocks]: the slot that is newer than the block; -1: none is
    int32_t *fill, *ints;                 // [FILL_INTS][FILL_MANY]: what is noted, and what a launch is given
    int most_seqs;
    int *rows, *order;    // [most_seqs]
    bool *is_stale;       // [most_seqs]
    int n_fill, n_unused; // n_unused: steps in a row that needed less
    bool is_large;        // for the launch at hand
    int64_t n_filled, n_drained;
};

enum { UNUSED_STEPS = 64 };

/* As TPUs do, which put no single token of int8 into an array without laying it out anew (lower_store.c), and compile a
 * long row of scores for minutes. */
static bool is_tiled(const struct device *d) { return !device_is_gpu(d) && !device_is_cpu(d); }

struct pjrt_buffer **dense_buffer(struct loaded *l, int array) {
    return &l->dense->buffers[array];
}

int64_t dense_count(const struct loaded *l) { return l->dense ? l->dense->n_filled : 0; }

int64_t dense_drained(const struct loaded *l) { return l->dense ? l->dense->n_drained : 0; }

bool dense_can(const struct loaded *l) { return !l->has_int8_cache || !is_tiled(l->device); }

/* Blocks of a sequence, at most. */
static int longest(const struct loaded *l, int block_size) {
    return is_tiled(l->device) ? MAX(l->device->blockwise / block_size, 1) : INT_MAX;
}

static struct dense *new_dense(const struct loaded *l) {
    bool any = false;
    for (int g = 0; g < l->program->n_groups; g++)
        any |= dense_is_paged(l, g);
    if (!any || !dense_can(l) || l->device->dense_bytes == 0)
        return NULL;
    struct dense *d = xcalloc(1, sizeof *d);
    d->buffers = xcalloc((size_t)l->n_caches + 1, sizeof *d->buffers);
    d->fill = xcalloc((size_t)FILL_INTS * FILL_MANY, sizeof *d->fill);
    d->ints = xcalloc((size_t)FILL_INTS * FILL_MANY, sizeof *d->ints);
    for (int g = 0; g < l->program->n_groups; g++) {
        d->versions[g] = xcalloc((size_t)l->n_blocks[g] + 1, sizeof *d->versions[g]);
        d->newer[g] = xcalloc((size_t)l->n_blocks[g] + 1, sizeof *d->newer[g]);
        memset(d->newer[g], -1, ((size_t)l->n_blocks[g] + 1) * sizeof *d->newer[g]);
    }
    return d;
}

/* Of rows that fit. */
static size_t most_slots(const struct loaded *l, int group, size_t n_seqs) {
    size_t width = (size_t)MIN(shape_widest_table(l), longest(l, l->block_size)),
           room = (size_t)(l->device->dense_bytes / cache_block_bytes(l, group, l->block_size));
    return MIN(n_seqs * width, room) + 1;
}

/* No step may allocate: what is noted of rows has room for the largest. */
void dense_reserve(struct loaded *l, int most_seqs) {
    struct dense *d = l->dense = l->dense ? l->dense : new_dense(l);
    size_t n = (size_t)most_seqs;
    if (!d || d->most_seqs >= most_seqs)
        return;
    BUG_IF(d->shape.n_seqs > 0);
    for (int g = 0; g < l->program->n_groups; g++) {
        free(d->slots[g]);
        d->slots[g] = dense_is_paged(l, g) ? xcalloc(most_slots(l, g, n), sizeof *d->slots[g]) : NULL;
    }
    free(d->rows);
    free(d->order);
    free(d->is_stale);
    d->rows = xcalloc(n, sizeof *d->rows);
    d->order = xcalloc(n, sizeof *d->order);
    d->is_stale = xcalloc(n, sizeof *d->is_stale);
    d->most_seqs = most_seqs;
}

static void drop_arrays(struct loaded *l) {
    struct dense *d = l->dense;
    for (int i = 0; i < l->n_caches; i++) {
        pjrt_buffer_free(l->device->pjrt, d->buffers[i]);
        d->buffers[i] = NULL;
    }
    d->shape = (struct launch_shape){0};
}

void dense_free(struct loaded *l) {
    struct dense *d = l->dense;
    if (!d)
        return;
    drop_arrays(l);
    for (int g = 0; g < l->program->n_groups; g++) {
        free(d->versions[g]);
        free(d->newer[g]);
        free(d->slots[g]);
    }
    free(d->buffers);
    free(d->fill);
    free(d->ints);
    free(d->rows);
    free(d->order);
    free(d->is_stale);
    free(d);
    l->dense = NULL;
}

/* ---- sizes ---- */

int64_t dense_bytes(const struct loaded *l, int n_seqs, int block_size, const int *table_width) {
    int64_t n = 0;
    for (int g = 0; g < l->program->n_groups; g++)
        if (dense_is_paged(l, g))
            n += (int64_t)n_seqs * MIN(table_width[g], longest(l, block_size)) * cache_block_bytes(l, g, block_size);
    return n;
}

bool dense_fits(const struct loaded *l, const struct launch_shape *s) {
    int width[MAX_CACHE_GROUPS] = {0};
    bool fits = l->dense && s->n_queries == 1 && s->n_seqs <= l->dense->most_seqs;
    for (int g = 0; g < l->program->n_groups && fits; g++) {
        if (dense_is_paged(l, g)) { // a ring lies in one run as it is
            width[g] = dense_width(l, s, g);
            fits = width[g] <= longest(l, l->block_size);
        }
    }
    return fits && dense_bytes(l, s->n_seqs, l->block_size, width) <= l->device->dense_bytes;
}

void dense_keep_size(struct loaded *l, struct launch_shape *s) {
    struct dense *d = l->dense;
    struct launch_shape larger = *s;
    if (!d || d->shape.n_seqs == 0 || s->n_queries != 1)
        return;
    larger.n_seqs = MAX(s->n_seqs, d->shape.n_seqs);
    larger.context = MAX(s->context, d->shape.context);
    d->is_large = larger.n_seqs > s->n_seqs || larger.context > s->context;
    if (d->n_unused < UNUSED_STEPS && dense_fits(l, &larger))
        *s = larger;
}

/* ---- who is where ---- */

static int first_entry(const struct loaded *l, int group, int position) {
    int window = l->program->groups[group].window;
    return window > 0 && position >= window ? (position - window + 1) / l->block_size : 0;
}

static int position_of(const struct batch_plan *plan, int seq) { return plan->position[plan->query_start[seq]]; }

static int32_t block_of(const struct batch_plan *plan, int group, int seq, int entry) {
    return plan->block_table[group][(int64_t)seq * plan->table_width[group] + entry];
}

static struct slot *slot_of(const struct dense *d, int group, int row, int entry) {
    return &d->slots[group][(int64_t)row * d->width[group] + entry % d->width[group]];
}

/* Whether the row has the block as it is now. */
static bool has_block(const struct dense *d, int group, int row, int entry, int32_t block) {
    const struct slot *slot = slot_of(d, group, row, entry);
    return slot->block == block && block >= 0 && slot->version == d->versions[group][block];
}

/* All that the sequence's next token sees, from the newest block, which no other sequence has. */
static bool has_row(const struct loaded *l, const struct batch_plan *plan, int seq, int row) {
    int position = position_of(plan, seq), last = (position - 1) / l->block_size;
    bool has = position > 0;
    for (int g = 0; g < l->program->n_groups && has; g++)
        for (int e = last; dense_is_paged(l, g) && has && e >= first_entry(l, g, position); e--)
            has = has_block(l->dense, g, row, e, block_of(plan, g, seq, e));
    return has;
}

static int find_row(const struct loaded *l, const struct batch_plan *plan, int seq, int from) {
    int n = l->dense->shape.n_seqs;
    for (int i = 0; i < n; i++)
        if (has_row(l, plan, seq, (from + i) % n))
            return (from + i) % n;
    return -1;
}

/* A row beyond the n-th is left: rows of a launch have no holes. */
void dense_arrange(const struct loaded *l, const struct batch_plan *plan, int *seqs, int n) {
    int *rows = l->dense->rows, *order = l->dense->order;
    memset(order, -1, (size_t)n * sizeof *order);
    for (int i = 0, next = 0; i < n; i++) {
        int row = rows[i] = find_row(l, plan, seqs[i], next);
        if (row >= 0)
            next = row + 1;
        if (row >= 0 && row < n && order[row] < 0)
            order[row] = seqs[i];
        else
            rows[i] = -1;
    }
    for (int i = 0, hole = 0; i < n; i++) {
        if (rows[i] >= 0)
            continue;
        while (order[hole] >= 0)
            hole++;
        order[hole] = seqs[i];
    }
    memcpy(seqs, order, (size_t)n * sizeof *seqs);
}

/* ---- launches that fill or drain ---- */

/* The n from `first` on of what is noted of a group, padded. */
static void pack_fill(const struct loaded *l, int group, int first, int n) {
    struct dense *d = l->dense;
    const int32_t none[FILL_INTS] = {[FILL_ROW] = d->shape.n_seqs, [FILL_BLOCK] = l->n_blocks[group]};
    for (int k = 0; k < FILL_INTS; k++)
        for (int i = 0; i < n; i++)
            d->ints[k * n + i] = first + i < d->n_fill ? d->fill[k * FILL_MANY + first + i] : none[k];
}

static enum status launch_fill(struct loaded *l, const struct compiled *program, int n_arrays, int n,
                               struct error *err) {
    const struct pjrt *p = l->device->pjrt;
    struct pjrt_buffer *ints;
    TRY(pjrt_upload(p, l->device->index, PJRT_S32, (int64_t[]){FILL_INTS * n}, 1, l->dense->ints, &ints, err));
    for (int i = 0; i < n_arrays; i++) {
        int array = l->array_ids[i];
        l->arguments[i] = l->caches[array].buffer;
        l->arguments[n_arrays + i] = l->dense->buffers[array];
        l->given[i] = program->drains ? &l->caches[array].buffer : &l->dense->buffers[array];
    }
    l->arguments[2 * n_arrays] = ints;
    enum status st = compiled_execute(l, program, 2 * n_arrays + 1, err);
    pjrt_buffer_free(p, ints);
    for (int i = 0; i < n_arrays && st == OK; i++) {
        pjrt_buffer_free(p, *l->given[i]);
        *l->given[i] = l->outputs[i];
    }
    return st;
}

/* Brings what is noted of a group: into the copies, or out of them. */
static enum status bring(struct loaded *l, int group, bool is_drain, struct error *err) {
    struct dense *d = l->dense;
    int n = d->n_fill <= 2 * FILL_FEW ? FILL_FEW : FILL_MANY, n_arrays = copied_arrays(l, group, l->array_ids);
    const struct compiled *program;
    if (d->n_fill == 0)
        return OK;
    TRY((is_drain ? compiled_drain : compiled_dense)(l, &d->shape, n, group, &program, err));
    for (int first = 0; first < d->n_fill; first += n) {
        pack_fill(l, group, first, n);
        TRY(launch_fill(l, program, n_arrays, n, err));
    }
    *(is_drain ? &d->n_drained : &d->n_filled) += d->n_fill;
    d->n_fill = 0;
    return OK;
}

static enum status note_brought(struct loaded *l, int group, bool is_drain, const int32_t values[FILL_INTS],
                                struct error *err) {
    struct dense *d = l->dense;
    for (int k = 0; k < FILL_INTS; k++)
        d->fill[k * FILL_MANY + d->n_fill] = values[k];
    return ++d->n_fill == FILL_MANY ? bring(l, group, is_drain, err) : OK;
}

/* ---- draining ---- */

/* Notes the block, if its copy is newer. */
static enum status drain_block(struct loaded *l, int group, int32_t block, struct error *err) {
    struct dense *d = l->dense;
    int32_t at = block < 0 ? -1 : d->newer[group][block];
    if (at < 0)
        return OK;
    d->newer[group][block] = -1;
    return note_brought(
        l, group, true,
        (int32_t[FILL_INTS]){
            [FILL_ROW] = at / d->width[group], [FILL_SLOT] = at % d->width[group], [FILL_BLOCK] = block},
        err);
}

/* Notes the block of a slot, if it is that slot that is newer: something else is to stand there. */
static enum status drain_slot(struct loaded *l, int group, const struct slot *slot, struct error *err) {
    const struct dense *d = l->dense;
    bool is_newer = slot->block >= 0 && d->newer[group][slot->block] == (int32_t)(slot - d->slots[group]);
    return is_newer ? drain_block(l, group, slot->block, err) : OK;
}

static enum status drain_all(struct loaded *l, struct error *err) {
    struct dense *d = l->dense;
    for (int g = 0; g < l->program->n_groups; g++) {
        for (int i = 0; dense_is_paged(l, g) && i < d->shape.n_seqs * d->width[g]; i++)
            TRY(drain_slot(l, g, &d->slots[g][i], err));
        TRY(bring(l, g, true, err));
    }
    return OK;
}

/* What a sequence's next rows, n_steps in a row of the copies, put out of its place there; of one that is filled anew
 * all that stands in the row, and what it is filled from. */
static enum status drain_row(struct loaded *l, const struct batch_plan *plan, int group, int seq, int row, int n_steps,
                             struct error *err) {
    struct dense *d = l->dense;
    int position = position_of(plan, seq), last = (position + n_steps - 1) / l->block_size;
    if (d->is_stale[row])
        for (int e = 0; e < d->width[group]; e++)
            TRY(drain_slot(l, group, slot_of(d, group, row, e), err));
    for (int e = first_entry(l, group, position); d->is_stale[row] && e * l->block_size < position; e++)
        TRY(drain_block(l, group, block_of(plan, group, seq, e), err));
    for (int e = position / l->block_size; e <= last; e++) {
        const struct slot *slot = slot_of(d, group, row, e);
        if (slot->block != block_of(plan, group, seq, e))
            TRY(drain_slot(l, group, slot, err));
    }
    return OK;
}

enum status dense_drain_rows(struct loaded *l, const struct batch_plan *plan, const int *seqs, int n,
                             struct error *err) {
    for (int g = 0; l->dense && g < l->program->n_groups; g++) {
        if (!dense_is_paged(l, g))
            continue;
        for (int i = 0; i < n; i++) {
            int position = position_of(plan, seqs[i]);
            for (int e = first_entry(l, g, position); e * l->block_size < position; e++)
                TRY(drain_block(l, g, block_of(plan, g, seqs[i], e), err));
        }
        TRY(bring(l, g, true, err));
    }
    return OK;
}

enum status dense_drain_copied(struct loaded *l, const struct cache_copy *copies, int n, struct error *err) {
    for (int i = 0; i < n && l->dense; i++)
        if (copies[i].group >= 0 && dense_is_paged(l, copies[i].group)) {
            TRY(drain_block(l, copies[i].group, copies[i].from, err));
            TRY(bring(l, copies[i].group, true, err));
        }
    return OK;
}

/* ---- filling ---- */

static enum status make_arrays(struct loaded *l, const struct launch_shape *s, struct error *err) {
    struct dense *d = l->dense;
    const struct compiled *zeros;
    TRY(drain_all(l, err));
    drop_arrays(l);
    TRY(compiled_dense(l, s, DENSE_ZEROS, 0, &zeros, err));
    TRY(compiled_execute(l, zeros, 0, err));
    for (int i = 0, n = 0; i < l->n_caches; i++)
        if (dense_has(l, i))
            d->buffers[i] = l->outputs[n++];
    d->shape = *s;
    d->n_unused = 0;
    for (int g = 0; g < l->program->n_groups; g++) {
        if (!dense_is_paged(l, g))
            continue;
        d->width[g] = dense_width(l, s, g);
        memset(d->slots[g], -1, (size_t)s->n_seqs * (size_t)d->width[g] * sizeof *d->slots[g]);
    }
    return OK;
}

static enum status note(struct loaded *l, int group, int row, int slot, int32_t block, int n_tokens,
                        struct error *err) {
    struct dense *d = l->dense;
    d->slots[group][(int64_t)row * d->width[group] + slot] =
        (struct slot){block, block < 0 ? 0 : d->versions[group][block]};
    return note_brought(l, group, false, (int32_t[FILL_INTS]){row, slot, MAX(block, 0), n_tokens}, err);
}

/* Slots of a row as the sequence's next token needs them: blocks that it sees, zeros where another's are. */
static enum status fill_row(struct loaded *l, const struct batch_plan *plan, int group, int seq, int row,
                            struct error *err) {
    struct dense *d = l->dense;
    int position = position_of(plan, seq), first = first_entry(l, group, position),
        end = (position + l->block_size - 1) / l->block_size, width = d->width[group];
    BUG_IF(end - first > width);
    for (int e = first; e < end; e++)
        TRY(note(l, group, row, e % width, block_of(plan, group, seq, e),
                 MIN(position - e * l->block_size, l->block_size), err));
    for (int e = end; e < first + width; e++)
        if (slot_of(d, group, row, e)->block >= 0)
            TRY(note(l, group, row, e % width, -1, 0, err));
    return OK;
}

enum status dense_prepare(struct loaded *l, const struct batch_plan *plan, const int *seqs, int n, int n_steps,
                          const struct launch_shape *s, struct error *err) {
    struct dense *d = l->dense;
    if (d->shape.n_seqs != s->n_seqs || d->shape.context != s->context)
        TRY(make_arrays(l, s, err));
    bool *is_stale = d->is_stale;
    enum status st = OK;
    for (int i = 0; i < n; i++)
        is_stale[i] = !has_row(l, plan, seqs[i], i);
    for (int g = 0; g < l->program->n_groups && st == OK; g++) {
        if (!dense_is_paged(l, g))
            continue;
        for (int i = 0; i < n && st == OK; i++)
            st = drain_row(l, plan, g, seqs[i], i, n_steps, err);
        if (st == OK)
            st = bring(l, g, true, err);
        for (int i = 0; i < n && st == OK; i++)
            if (is_stale[i])
                st = fill_row(l, plan, g, seqs[i], i, err);
        if (st == OK)
            st = bring(l, g, false, err);
    }
    return st;
}

/* ---- what is written ---- */

void dense_put(struct loaded *l, const struct batch_plan *plan, const int *seqs, int n, int n_steps) {
    struct dense *d = l->dense;
    d->n_unused = d->is_large ? d->n_unused + n_steps : 0;
    for (int g = 0; g < l->program->n_groups; g++)
        for (int i = 0; i < n && dense_is_paged(l, g); i++) {
            int first = position_of(plan, seqs[i]) / l->block_size,
                last = (position_of(plan, seqs[i]) + n_steps - 1) / l->block_size;
            for (int e = first; e <= last; e++) {
                int32_t block = block_of(plan, g, seqs[i], e);
                struct slot *slot = slot_of(d, g, i, e);
                if (block < 0)
                    continue;
                *slot = (struct slot){block, ++d->versions[g][block]};
                d->newer[g][block] = (int32_t)(slot - d->slots[g]);
            }
        }
}

void dense_wrote_block(struct loaded *l, int group, int block) {
    if (l->dense && dense_is_paged(l, group)) {
        l->dense->versions[group][block]++;
        l->dense->newer[group][block] = -1;
    }
}

void dense_wrote_rows(struct loaded *l, const struct batch_plan *plan, int seq, int n_steps) {
    int first = plan->query_start[seq], n = plan->query_start[seq + 1] - first;
    for (int g = 0; l->dense && n > 0 && g < l->program->n_groups; g++)
        for (int e = plan->position[first] / l->block_size;
             dense_is_paged(l, g) && e <= (plan->position[first + n - 1] + n_steps - 1) / l->block_size; e++)
            if (block_of(plan, g, seq, e) >= 0)
                dense_wrote_block(l, g, block_of(plan, g, seq, e));
}
