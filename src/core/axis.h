/* axis.h - which part of a model the rows or columns of a matrix belong to, so that pass_shard can cut the matrix.
 *
 * A family sizes what it binds in dims in place of numbers, and says nothing else about devices:
 *
 *     struct dim D = dim_whole(s->hidden_size), F = dim_ffn(s->ffn_size);
 *     w->down = bind_matrix(b, D, F, "layers.%d.mlp.down_proj", l);     // rows are whole, columns follow the FFN
 *
 * A dim is units [first, first + n) of its axis, of `unit` rows or columns each, all of them a number of times over,
 * and this for each of its experts:
 *
 *     q_proj                        dim_heads(H, head_dim)
 *     gate and up rows in one       dim_times(dim_ffn(F), 2)
 *     gate_up of all experts        dim_experts(dim_times(dim_ffn(F), 2), 0, E)
 *     the rows of head h alone      dim_share(dim_heads(H, head_dim), h, H) */
#pragma once

#include <stdint.h>

enum axis {
    AXIS_NONE,        // every device has all of it
    AXIS_HEADS,       // query heads, and what attention makes of them
    AXIS_KV_HEADS,    // repeated where there are fewer than devices
    AXIS_VALUE_HEADS, // of the delta rule
    AXIS_KEY_HEADS,   // repeated likewise
    AXIS_FFN,
    AXIS_VOCAB,
    N_AXES
};

struct dim {
    int64_t size; // rows or columns in all
    enum axis axis;
    int64_t first, n, unit;
    int64_t of;                      // units that the whole axis has
    int64_t first_expert, n_experts; // n_experts 0: no experts
};

static inline struct dim dim_of(enum axis axis, int64_t n, int64_t unit) {
    return (struct dim){.size = n * unit, .axis = axis, .n = n, .unit = unit, .of = n};
}
static inline struct dim dim_whole(int64_t size) { return dim_of(AXIS_NONE, 1, size); }
static inline struct dim dim_heads(int64_t n, int64_t width) { return dim_of(AXIS_HEADS, n, width); }
static inline struct dim dim_kv_heads(int64_t n, int64_t width) { return dim_of(AXIS_KV_HEADS, n, width); }
static inline struct dim dim_value_heads(int64_t n, int64_t width) { return dim_of(AXIS_VALUE_HEADS, n, width); }
static inline struct dim dim_key_heads(int64_t n, int64_t width) { return dim_of(AXIS_KEY_HEADS, n, width); }
static inline struct dim dim_ffn(int64_t n) { return dim_of(AXIS_FFN, n, 1); }
static inline struct dim dim_vocab(int64_t n) { return dim_of(AXIS_VOCAB, n, 1); }

static inline struct dim dim_times(struct dim d, int64_t times) {
    d.size *= times;
    return d;
}

static inline struct dim dim_experts(struct dim d, int64_t first, int64_t n) {
    d.size *= n;
    d.first_expert = first;
    d.n_experts = n;
    return d;
}

/* Part i of n equal parts of its units, once. */
static inline struct dim dim_share(struct dim d, int64_t i, int64_t n) {
    struct dim part = dim_of(d.axis, d.n / n, d.unit);
    part.first = d.first + i * part.n;
    part.of = d.of;
    return part;
}
