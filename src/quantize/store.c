/* store.c - see store.h. Rows go through the pool in chunks of some megabytes; each worker reads, stores and reads back
 * rows of its own. */
#include "quantize/store.h"

#include "quantize/round/blocks.h"

#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>

enum { CHUNK_NUMBERS = 1 << 20 };

void loss_add(struct loss *loss, const float *x, const float *y, int64_t n, int64_t row) {
    for (int64_t at = 0; at < n; at += LOSS_BLOCK) {
        double errors = 0, squares = 0;
        int64_t end = MIN(at + LOSS_BLOCK, n);
        for (int64_t i = at; i < end; i++) {
            double off = (double)x[i] - (double)y[i];
            errors += off * off;
            squares += (double)x[i] * (double)x[i];
        }
        loss->errors += errors;
        loss->squares += squares;
        double rms = sqrt(errors / (double)(end - at));
        if (rms > loss->worst)
            loss->worst = rms, loss->row = row, loss->block = at / LOSS_BLOCK;
    }
    loss->n += n;
}

void loss_join(struct loss *a, const struct loss *b) {
    a->squares += b->squares;
    a->errors += b->errors;
    a->n += b->n;
    if (b->worst > a->worst)
        a->worst = b->worst, a->row = b->row, a->block = b->block;
}

struct chunk {
    const struct target *t;
    const float *importance;
    int64_t first, n; // rows
    size_t row_bytes;
    uint8_t *bytes;
    float *rows;         // [workers][2][cols]
    struct loss *losses; // [workers]
    atomic_bool odd;     // a number cannot be stored
};

/* Elements of a dtype. */
static void store_plain(enum dtype dt, const float *x, int64_t n, uint8_t *out) {
    for (int64_t i = 0; i < n; i++) {
        uint16_t h = dt == DT_F16 ? f32_to_f16(x[i]) : f32_to_bf16(x[i]);
        if (dt == DT_F32)
            memcpy(out + i * 4, &x[i], 4);
        else
            memcpy(out + i * 2, &h, 2);
    }
}

static void read_back(const struct storage *to, const uint8_t *bytes, int64_t n, float *y) {
    const struct qformat *f = qformat_of_blocks(to->format);
    for (int64_t at = 0; f && at < n; at += f->block_cols, bytes += f->block_bytes)
        f->block_to_f32(bytes, y + at);
    if (!f)
        dtype_to_f32(to->dtype, bytes, 1, n, y);
}

static bool all_finite(const float *x, int64_t n) {
    float sum = 0;
    for (int64_t i = 0; i < n; i++)
        sum += x[i] * 0;
    return sum == 0;
}

static void store_rows(void *arg, int worker, int n_workers) {
    struct chunk *c = arg;
    const struct target *t = c->t;
    float *x = c->rows + (int64_t)worker * 2 * t->cols, *y = x + t->cols;
    int64_t begin, end;
    pool_share(c->n, 1, worker, n_workers, &begin, &end);
    for (int64_t i = begin; i < end; i++) {
        uint8_t *out = c->bytes + (size_t)i * c->row_bytes;
        int64_t row = c->first + i;
        target_row(t, row, x);
        if (!all_finite(x, t->cols)) {
            atomic_store(&c->odd, true);
            return;
        }
        int64_t n_matrices = t->n_dims == 3 ? (int64_t)t->dims[2] : 1;
        const float *w = c->importance ? c->importance + row / (t->rows / n_matrices) * t->cols : NULL;
        if (t->to.format == QFORMAT_PLAIN)
            store_plain(t->to.dtype, x, t->cols, out);
        else
            blocks_write(t->to.format, x, w, t->cols, out);
        read_back(&t->to, out, t->cols, y);
        if (!all_finite(y, t->cols))
            atomic_store(&c->odd, true);
        loss_add(&c->losses[worker], x, y, t->cols, row);
    }
}

/* A tensor that stays as it is. */
static bool is_copy(const struct target *t) {
    const struct weight_part *p = t->n_parts == 1 && !t->values ? &t->parts[0] : NULL;
    bool plain = p && p->format->id == QFORMAT_PLAIN && p->dtype == t->to.dtype && p->row_stride == t->cols;
    return p && p->col_stride == 1 && !t->row_of && !t->col_of && t->change == CHANGE_NONE && !t->turn_heads &&
           !t->is_vector && t->to.format == p->format->id && (plain || t->to.format != QFORMAT_PLAIN);
}

static enum status go_on(struct store_progress *p, size_t n, struct error *err) {
    p->done += n;
    if (!p->step || p->step(p->context, p->done, p->total))
        return OK;
    return fail(err, ERR_IO, "interrupted: nothing was written");
}

static enum status store_chunks(struct chunk *c, struct pool *pool, struct output *out, int64_t most,
                                struct store_progress *progress, struct error *err) {
    const struct target *t = c->t;
    for (c->first = 0; c->first < t->rows; c->first += c->n) {
        c->n = MIN(most, t->rows - c->first);
        pool_run(pool, store_rows, c);
        if (atomic_load(&c->odd))
            return fail(err, ERR_FORMAT, "tensor %s has a number that is not finite, or too large for its type",
                        t->name);
        TRY(output_write(out, c->bytes, (size_t)c->n * c->row_bytes, err));
        TRY(go_on(progress, (size_t)c->n * c->row_bytes, err));
    }
    return OK;
}

static enum status copy_tensor(const struct target *t, struct output *out, struct loss *loss,
                               struct store_progress *progress, struct error *err) {
    enum { PIECE = 16 << 20 };
    const char *at = t->parts[0].data;
    loss->n = t->rows * t->cols;
    for (uint64_t left = target_bytes(t); left > 0;) {
        size_t n = (size_t)MIN(left, (uint64_t)PIECE);
        TRY(output_write(out, at, n, err));
        TRY(go_on(progress, n, err));
        at += n;
        left -= n;
    }
    return OK;
}

enum status store_tensor(struct target *t, const float *importance, struct pool *pool, struct output *out,
                         struct loss *loss, struct store_progress *progress, struct error *err) {
    *loss = (struct loss){0};
    if (is_copy(t))
        return copy_tensor(t, out, loss, progress, err);
    int n_workers = pool_size(pool);
    int64_t most = MIN(t->rows, MAX(n_workers, CHUNK_NUMBERS / MAX(t->cols, 1)));
    struct chunk c = {.t = t, .importance = importance, .row_bytes = (size_t)(target_bytes(t) / (uint64_t)t->rows)};
    TRY(target_prepare(t, err));
    c.bytes = xcalloc((size_t)most, MAX(c.row_bytes, 1u));
    c.rows = xcalloc((size_t)n_workers * 2 * (size_t)t->cols, sizeof *c.rows);
    c.losses = xcalloc((size_t)n_workers, sizeof *c.losses);
    enum status st = store_chunks(&c, pool, out, most, progress, err);
    for (int i = 0; i < n_workers; i++)
        loss_join(loss, &c.losses[i]);
    free(c.bytes), free(c.rows), free(c.losses);
    target_done(t);
    return st;
}
