/* fast_kv_int4.c - attention over a cache of int4: runs of keys and values as panels of floats, for the products of
 * fast_attention.c.
 *
 * Codes become floats once an item, 32 positions at a time, in a panel that stays in the first-level cache; what meets
 * it is multiplied as over a cache of floats, so a row gives the same bits whatever rows are beside it. Bytes: k_dim /
 * 2 + v_dim / 2 and the scales, of a position and KV head; vector instructions an eight elements: five to make floats,
 * and a multiply-add and a half for each query head. */
#include "backend/cpu/fast/fast.h"

int64_t int4_attention_scratch(const struct attention_args *a, int64_t rows) {
    int64_t panel = (int64_t)MAX(a->head_dim, a->v_head_dim) * PANEL_ROWS;
    return panel + (a->rotary_dim > 0 ? rows * a->v_head_dim : 0);
}

/* The channels whose keys are values' to q_v, zeros between; the others to the front. */
static void split_query(const struct attention_args *a, float *q, float *q_v) {
    for (int i = 0; i < a->head_dim; i++) {
        int at = turned_channel(i, a->head_dim, a->rotary_dim); // at <= i
        q_v[i] = at >= 0 ? 0 : q[i];
        if (at >= 0)
            q[at] = q[i];
    }
}

void int4_queries(const struct attention_args *a, int64_t rows, float *q, float *q_v) {
    for (int64_t r = 0; r < rows; r++, q += a->head_dim, q_v += a->v_head_dim) {
        if (a->rotary_dim > 0) {
            split_query(a, q, q_v);
            kv_int4_rotate(q_v, a->v_head_dim);
        }
        kv_int4_rotate(q, a->rotary_dim > 0 ? a->rotary_dim : a->head_dim);
    }
}

static struct kv_int4_row keys_from(const struct kv_int4_block *b, int64_t slot) {
    return (struct kv_int4_row){b->k.scales + slot, b->k.codes + slot, b->k.scale_stride, b->k.code_stride};
}

static struct kv_int4_row values_from(const struct kv_int4_block *b, int64_t slot) {
    return (struct kv_int4_row){b->v.scales + slot * kv_int4_groups(b->v_dim),
                                b->v.codes + slot * kv_int4_code_bytes(b->v_dim), 1, 1};
}

void int4_score(const struct int4_run *run, const float *q, const float *q_v, float *turned, float *scores,
                int64_t stride) {
    const struct kernels *k = run->kernels;
    const struct attention_args *a = run->args;
    const struct kv_int4_block *b = &run->block;
    for (int64_t j = 0; j < run->n; j += PANEL_ROWS) {
        int64_t n = MIN(run->n - j, PANEL_ROWS);
        k->int4_keys(keys_from(b, j), b->k_dim, n, run->panel);
        k->multiply(run->rows, n, b->k_dim, q, a->head_dim, run->panel, PANEL_ROWS, scores + j, stride, false);
        if (a->rotary_dim == 0)
            continue;
        k->int4_values(values_from(b, j), b->v_dim, n, run->panel);
        k->pack(run->panel, b->v_dim, n, b->v_dim, turned);
        k->multiply(run->rows, n, b->v_dim, q_v, b->v_dim, turned, PANEL_ROWS, scores + j, stride, true);
    }
}

void int4_add(const struct int4_run *run, const float *p, int64_t p_stride, float *sum, int64_t stride) {
    const struct kv_int4_block *b = &run->block;
    for (int64_t j = 0; j < run->n; j += PANEL_ROWS) {
        int64_t n = MIN(run->n - j, PANEL_ROWS);
        run->kernels->int4_values(values_from(b, j), b->v_dim, n, run->panel);
        run->kernels->multiply(run->rows, b->v_dim, n, p + j, p_stride, run->panel, b->v_dim, sum, stride, true);
    }
}
