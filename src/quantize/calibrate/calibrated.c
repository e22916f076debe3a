/* calibrated.c - see calibrated.h. */
#include "quantize/calibrate/calibrated.h"

#include <stdlib.h>

static const size_t max_pair_bytes = (size_t)2 << 30;

static enum status find_folds(struct calibrated *k, const struct calibration *c, struct error *err) {
    bool awq = k->method == METHOD_AWQ;
    TRY(folds_find(c->model, c->taken, k->layers, awq, &k->folds, err));
    for (size_t i = 0; i < k->folds.n; i++) {
        struct fold *f = &k->folds.items[i];
        const struct input_stats *stats;
        TRY(stats_of(k->stats, f->readers[0], &stats, err));
        if (awq)
            TRY(fold_awq(f, k->layers, stats, err));
        else
            fold_smooth(f, k->layers, stats);
    }
    return OK;
}

enum status calibrated_begin(struct calibrated *k, enum method method, const struct calibration *c,
                             const struct layer_matrices *layers, struct error *err) {
    *k = (struct calibrated){.method = method, .layers = layers};
    if (method == METHOD_NEAREST)
        return OK;
    k->matrices = xcalloc(layers->n, sizeof *k->matrices);
    for (size_t i = 0; i < layers->n; i++)
        k->matrices[i] = layers->items[i].b;
    k->stats = stats_new(c, k->matrices, layers->n, method != METHOD_SMOOTH, max_pair_bytes);
    return method == METHOD_GPTQ ? OK : find_folds(k, c, err);
}

void calibrated_release(struct calibrated *k) {
    stats_free(k->stats);
    folds_release(&k->folds);
    gptq_free(k->gptq);
    free(k->matrices);
    *k = (struct calibrated){0};
}

enum status calibrated_prepare(struct calibrated *k, size_t i, struct error *err) {
    const struct input_stats *stats;
    gptq_free(k->gptq);
    k->gptq = NULL;
    if (k->method != METHOD_GPTQ)
        return OK;
    TRY(stats_of(k->stats, i, &stats, err));
    k->n_unread += stats->n_rows == 0;
    return stats->n_rows ? gptq_new(stats->h, stats->n, &k->gptq, err) : OK;
}

void calibrated_row(const struct calibrated *k, const struct layer_matrix *m, int64_t row, float *x, float *work,
                    uint8_t *codes, uint8_t *scales, float *y) {
    folds_apply(&k->folds, k->layers, m->b, row, x, m->b->cols);
    if (k->gptq)
        gptq_row(k->gptq, &m->codes, x, work, codes, scales, y);
    else
        codes_write(&m->codes, x, NULL, m->b->cols, codes, scales, y);
}

static void put_number(enum dtype dt, float x, void *out, int64_t i) {
    if (dt == DT_F32)
        ((float *)out)[i] = x;
    else
        ((uint16_t *)out)[i] = dt == DT_F16 ? f32_to_f16(x) : f32_to_bf16(x);
}

void *calibrated_vector(const struct calibrated *k, const struct bound_list *taken, const struct stored_tensor *t) {
    for (size_t i = 0; k->folds.n && i < taken->n; i++) {
        const struct bound *b = &taken->items[i];
        if (b->is_matrix || b->part.data != t->data || !folds_change(&k->folds, b))
            continue;
        void *out = xcalloc(1, t->n_bytes);
        for (int64_t row = 0; row < b->rows; row++) {
            float x;
            b->part.format->row_to_f32(&b->part, row, 1, &x);
            folds_apply(&k->folds, k->layers, b, row, &x, 1);
            put_number(t->dtype, x, out, row);
        }
        return out;
    }
    return NULL;
}
