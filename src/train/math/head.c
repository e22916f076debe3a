/* head.c - see head.h: where tensors are, and the head in float32. */
#include "train/math/head.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define REAL float
#define NAME(x) x##_f32
#include "train/math/head_body.h"

static bool has(enum head_kind kind, enum head_tensor t) {
    switch (t) {
    case HEAD_INPUT_NORM:
    case HEAD_GATE:
    case HEAD_Q_NORM:
    case HEAD_K_NORM: return kind == HEAD_MTP;
    case HEAD_LM_HEAD: return kind == HEAD_EAGLE3;
    default: return true;
    }
}

int64_t head_rows(const struct head_shape *s, enum head_tensor t) {
    if (!has(s->kind, t))
        return 0;
    switch (t) {
    case HEAD_FC:
    case HEAD_OUT:
    case HEAD_DOWN: return s->hidden;
    case HEAD_QKV: return (int64_t)(s->n_heads + 2 * s->n_kv_heads) * s->head_dim;
    case HEAD_GATE: return (int64_t)s->n_heads * s->head_dim;
    case HEAD_GATE_UP: return 2 * s->ffn;
    case HEAD_LM_HEAD: return s->vocab;
    default: return 1;
    }
}

int64_t head_cols(const struct head_shape *s, enum head_tensor t) {
    switch (t) {
    case HEAD_FC: return s->kind == HEAD_MTP ? 2 * s->hidden : s->taps;
    case HEAD_QKV: return s->kind == HEAD_MTP ? s->hidden : 2 * s->hidden;
    case HEAD_Q_NORM:
    case HEAD_K_NORM: return s->head_dim;
    case HEAD_OUT: return (int64_t)s->n_heads * s->head_dim;
    case HEAD_DOWN: return s->ffn;
    default: return s->hidden;
    }
}

int64_t head_at(const struct head_shape *s, enum head_tensor t) {
    int64_t at = 0;
    for (int i = 0; i < (int)t; i++)
        at += head_rows(s, (enum head_tensor)i) * head_cols(s, (enum head_tensor)i);
    return at;
}

int64_t head_size(const struct head_shape *s) { return head_at(s, N_HEAD_TENSORS); }
