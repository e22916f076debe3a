/* bind_packed.c - binds one module's matrix of integers in words: GPTQ, AWQ, compressed-tensors pack-quantized.
 * Layouts: core/formats/qformat_packed.c.
 *
 * Names: X.qweight, X.qzeros, X.scales, X.g_idx; of compressed-tensors X.weight_packed, X.weight_zero_point,
 * X.weight_scale, X.weight_g_idx. The group indices may be absent: columns are in the order of groups then. */
#include "model/weights/bind_internal.h"

/* Names and shapes of a module's tensors. */
struct packed_names {
    const char *words, *zeros, *scales, *groups;
    int64_t words_shape[2], zeros_shape[2], scales_shape[2];
};

static int64_t up_to(int64_t n, int64_t of) { return (n + of - 1) / of; }

static struct packed_names names_of(enum packed_order order, int64_t rows, int64_t in, int64_t groups,
                                    int64_t per_word) {
    switch (order) {
    case PACKED_GPTQ:
        return (struct packed_names){
            "qweight", "qzeros", "scales", "g_idx", {in / per_word, rows}, {groups, rows / per_word}, {groups, rows}};
    case PACKED_AWQ:
        return (struct packed_names){
            "qweight", "qzeros", "scales", "g_idx", {in, rows / per_word}, {groups, rows / per_word}, {groups, rows}};
    default:
        return (struct packed_names){"weight_packed", "weight_zero_point",         "weight_scale",
                                     "weight_g_idx",  {rows, up_to(in, per_word)}, {up_to(rows, per_word), groups},
                                     {rows, groups}};
    }
}

static bool refuse(struct binder *b, const char *module, const char *what, int64_t n, int64_t of) {
    bind_failed(b, fail(b->err, ERR_FORMAT, "%s: module %s has %lld %s, %s needs a multiple of %lld", b->spec->path,
                        module, (long long)n, what, quant_name(b->spec->quant), (long long)of));
    return false;
}

static const struct stored_tensor *words_tensor(struct binder *b, const char *module, const char *leaf,
                                                const int64_t *shape) {
    const struct stored_tensor *t = bind_tensor_as(b, arena_printf(b->arena, "%s.%s", module, leaf), DT_I32, 2, shape);
    if (t && t->dtype != DT_I32 && t->dtype != DT_U32) {
        bind_failed(b, fail(b->err, ERR_FORMAT, "%s: tensor %s is stored as %s, words of 32 bits are wanted",
                            b->spec->path, t->name, dtype_name(t->dtype)));
        return NULL;
    }
    return t;
}

/* *out: the groups of columns, NULL where they are in order. */
static bool group_indices(struct binder *b, const char *name, int64_t in, int64_t groups, int64_t group_size,
                          const int32_t **out) {
    const struct stored_tensor *t;
    *out = NULL;
    if (b->load != LOAD_CHECKPOINT || !checkpoint_find(b->checkpoint, name))
        return true;
    if (!(t = bind_tensor_as(b, name, DT_I32, 1, &in)))
        return false;
    bool in_order = true;
    for (int64_t i = 0; i < in; i++) {
        int32_t group = -1;
        if (t->dtype == DT_I32)
            memcpy(&group, (const char *)t->data + i * 4, sizeof group);
        if (group < 0 || group >= groups) {
            bind_failed(b, fail(b->err, ERR_FORMAT, "%s: tensor %s: the group of column %lld is none of 0 to %lld",
                                b->spec->path, name, (long long)i, (long long)groups - 1));
            return false;
        }
        in_order = in_order && group == (group_size ? i / group_size : 0);
    }
    if (in_order)
        return true;
    int32_t *copy = arena_alloc(b->arena, (size_t)in * sizeof *copy); // aligned
    memcpy(copy, t->data, (size_t)in * sizeof *copy);
    *out = copy;
    return true;
}

static const struct qformat *format_of(int bits) {
    return bits == 2 ? &qformat_int2 : bits == 4 ? &qformat_int4 : &qformat_int8;
}

bool bind_packed(struct binder *b, const char *module, int64_t rows, int64_t in, struct quant_storage q,
                 struct weight_part *out) {
    enum packed_order order = q.scheme == QUANT_GPTQ  ? PACKED_GPTQ
                              : q.scheme == QUANT_AWQ ? PACKED_AWQ
                                                      : PACKED_COLUMNS;
    int64_t per_word = 32 / q.bits, groups = q.group_size ? up_to(in, q.group_size) : 1;
    if (order == PACKED_GPTQ && in % per_word)
        return refuse(b, module, "columns", in, per_word);
    if (order != PACKED_COLUMNS && rows % per_word)
        return refuse(b, module, "rows", rows, per_word);
    struct packed_names n = names_of(order, rows, in, groups, per_word);
    const struct stored_tensor *words = words_tensor(b, module, n.words, n.words_shape),
                               *zeros = q.asymmetric ? words_tensor(b, module, n.zeros, n.zeros_shape) : NULL;
    enum dtype phantom = order == PACKED_COLUMNS ? b->spec->dtype : DT_F16;
    const struct stored_tensor *scales =
        bind_tensor_as(b, arena_printf(b->arena, "%s.%s", module, n.scales), phantom, 2, n.scales_shape);
    struct qpacked *packed = arena_alloc(b->arena, sizeof *packed);
    *packed = (struct qpacked){.order = order,
                               .bits = q.bits,
                               .stored_rows = rows,
                               .stored_cols = in,
                               .n_groups = groups,
                               .has_zeros = q.asymmetric,
                               .zeros = zeros ? zeros->data : NULL,
                               .zero_more = q.scheme == QUANT_GPTQ && !q.gptq_v2 ? 1 : 0};
    if (!words || (q.asymmetric && !zeros) || !scales || !bind_is_number(b, scales) ||
        !group_indices(b, arena_printf(b->arena, "%s.%s", module, n.groups), in, groups, q.group_size,
                       &packed->group_of))
        return false;
    *out = (struct weight_part){.format = format_of(q.bits),
                                .dtype = DT_I32,
                                .data = words->data,
                                .n_rows = rows,
                                .row_stride = n.words_shape[1],
                                .col_stride = 1,
                                .scale = {.data = scales->data,
                                          .dtype = scales->dtype,
                                          .block_rows = 1,
                                          .block_cols = q.group_size,
                                          .stride = groups,
                                          .tensor_scale = 1},
                                .packed = packed};
    return true;
}
