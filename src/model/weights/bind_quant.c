/* bind_quant.c - binds one module's matrix in the storage that the checkpoint's quantisation settings name.
 *
 * Tensor names and conventions: docs of modelopt, compressed-tensors and DeepSeek's weight README. Activations
 * are not quantised here, so input scales are read and set aside. */
#include "model/weights/bind_internal.h"

static bool plain(struct binder *b, const char *module, int64_t rows, int64_t in, struct weight_part *out) {
    const struct stored_tensor *t =
        bind_tensor(b, arena_printf(b->arena, "%s.weight", module), 2, (int64_t[]){rows, in});
    if (!t || (!t->format && !bind_is_number(b, t)))
        return false;
    *out = t->format ? block_part(t, rows, in) : plain_part(t, rows, in);
    return true;
}

static bool has(struct binder *b, const char *name) {
    return b->load == LOAD_CHECKPOINT && checkpoint_find(b->checkpoint, name);
}

/* Scales of static activation quantisation and the like: belong to the module, not needed for exact weights. */
static void set_aside(struct binder *b, const char *module) {
    static const char *const leaves[] = {
        "input_scale", "input_global_scale", "input_scale_ub",    "input_zero_point",    "k_scale",
        "v_scale",     "output_scale",       "output_zero_point", "output_global_scale", "weight_shape"};
    for (size_t i = 0; b->load == LOAD_CHECKPOINT && i < ARRAY_LEN(leaves); i++) {
        struct stored_tensor *t = checkpoint_find(b->checkpoint, arena_printf(b->arena, "%s.%s", module, leaves[i]));
        if (t)
            t->consumed = true;
    }
}

/* A scale tensor that exporters store as [], [1], [n] or [n, 1]. */
static const struct stored_tensor *scale_tensor(struct binder *b, const char *name, enum dtype phantom, int64_t n) {
    const struct stored_tensor *found = b->load == LOAD_CHECKPOINT ? checkpoint_find(b->checkpoint, name) : NULL;
    int64_t shape[2] = {n, 1};
    int rank = found && found->rank <= 2 ? found->rank : n == 1 ? 1 : 2;
    return bind_tensor_as(b, name, phantom, rank, shape);
}

static bool scaled(struct binder *b, const char *module, int64_t rows, int64_t in, struct quant_storage q,
                   struct weight_part *out) {
    enum dtype element = q.scheme == QUANT_INT8_CHANNEL ? DT_I8 : DT_F8_E4M3;
    const struct stored_tensor *t =
        bind_tensor_as(b, arena_printf(b->arena, "%s.weight", module), element, 2, (int64_t[]){rows, in});
    if (!t || !bind_is_stored_as(b, t, element))
        return false;
    struct qscale scale = {.tensor_scale = 1};
    const struct stored_tensor *s;
    if (q.scheme == QUANT_FP8_BLOCK) {
        const char *name = arena_printf(b->arena, "%s.weight_scale_inv", module);
        if (q.compressed_tensors || (b->load == LOAD_CHECKPOINT && !has(b, name)))
            name = arena_printf(b->arena, "%s.weight_scale", module);
        int64_t grid[2] = {(rows + q.block_rows - 1) / q.block_rows, (in + q.block_cols - 1) / q.block_cols};
        s = bind_tensor_as(b, name, DT_F32, 2, grid);
        scale.block_rows = q.block_rows;
        scale.block_cols = q.block_cols;
        scale.stride = grid[1];
    } else {
        bool per_row = q.scheme != QUANT_FP8_TENSOR;
        s = scale_tensor(b, arena_printf(b->arena, "%s.weight_scale", module), DT_F32, per_row ? rows : 1);
        scale.block_rows = per_row ? 1 : 0;
        scale.stride = 1;
    }
    if (!s || !bind_is_number(b, s))
        return false;
    scale.data = s->data;
    scale.dtype = s->dtype;
    *out = plain_part(t, rows, in);
    out->format = &qformat_scaled;
    out->scale = scale;
    return true;
}

static bool nvfp4(struct binder *b, const char *module, int64_t rows, int64_t in, bool compressed_tensors,
                  struct weight_part *out) {
    if (in % 16) {
        bind_failed(b, fail(b->err, ERR_FORMAT, "%s: module %s has %lld columns, NVFP4 needs a multiple of 16",
                            b->spec->path, module, (long long)in));
        return false;
    }
    const char *packed = arena_printf(b->arena, compressed_tensors ? "%s.weight_packed" : "%s.weight", module);
    const char *global =
        arena_printf(b->arena, compressed_tensors ? "%s.weight_global_scale" : "%s.weight_scale_2", module);
    const struct stored_tensor *t = bind_tensor_as(b, packed, DT_U8, 2, (int64_t[]){rows, in / 2});
    const struct stored_tensor *s =
        bind_tensor_as(b, arena_printf(b->arena, "%s.weight_scale", module), DT_F8_E4M3, 2, (int64_t[]){rows, in / 16});
    const struct stored_tensor *g = scale_tensor(b, global, DT_F32, 1);
    if (!t || !s || !g || !bind_is_stored_as(b, t, DT_U8) || !bind_is_stored_as(b, s, DT_F8_E4M3) ||
        !bind_is_number(b, g))
        return false;
    float tensor_scale = 1;
    if (g->data)
        dtype_to_f32(g->dtype, g->data, 1, 1, &tensor_scale);
    if (compressed_tensors) // stored as the reciprocal
        tensor_scale = 1 / tensor_scale;
    struct qscale scale = {s->data, s->dtype, 1, 16, in / 16, tensor_scale};
    *out = plain_part(t, rows, in / 2);
    out->format = &qformat_nvfp4;
    out->scale = scale;
    return true;
}

/* compressed-tensors: a power of two a 32 columns, as a byte. */
static bool mxfp4(struct binder *b, const char *module, int64_t rows, int64_t in, struct weight_part *out) {
    if (in % 32) {
        bind_failed(b, fail(b->err, ERR_FORMAT, "%s: module %s has %lld columns, MXFP4 needs a multiple of 32",
                            b->spec->path, module, (long long)in));
        return false;
    }
    const struct stored_tensor *t = bind_tensor_as(b, arena_printf(b->arena, "%s.weight_packed", module), DT_U8, 2,
                                                   (int64_t[]){rows, in / 2}),
                               *s = bind_tensor_as(b, arena_printf(b->arena, "%s.weight_scale", module), DT_U8, 2,
                                                   (int64_t[]){rows, in / 32});
    if (!t || !s || !bind_is_stored_as(b, t, DT_U8) || (s->dtype != DT_F8_E8M0 && !bind_is_stored_as(b, s, DT_U8)))
        return false;
    *out = plain_part(t, rows, in / 2);
    out->format = &qformat_mxfp4;
    out->scale = (struct qscale){s->data, DT_F8_E8M0, 1, 32, in / 32, 1};
    return true;
}

/* Bytes only: storages whose kernels are not here. */
static bool only_told(struct binder *b, const char *module, int64_t rows, int64_t in, struct quant_storage q,
                      struct weight_part *out) {
    *out = (struct weight_part){
        .format = &qformat_plain, .dtype = DT_U8, .n_rows = rows, .row_stride = in, .col_stride = 1};
    if (b->load != LOAD_PHANTOM) {
        bind_failed(b, fail(b->err, ERR_UNSUPPORTED, "%s: module %s is stored as %s, which gyre does not read",
                            b->spec->path, module, quant_name(b->spec->quant)));
        return false;
    }
    if (q.scheme == QUANT_MXFP4) {
        b->stored_bytes[DT_U8] += rows * (in / 2 + (in + 31) / 32);
        return true;
    }
    // GPTQ of 3 bits and its like: 32 values lie in as many words as they have bits
    int64_t groups = q.group_size > 0 ? (in + q.group_size - 1) / q.group_size : 1;
    b->stored_bytes[DT_I32] += rows * in * q.bits / 8 + rows * groups * q.bits / 8 + in * 4;
    b->stored_bytes[DT_F16] += rows * groups * 2;
    return true;
}

bool bind_module(struct binder *b, const char *module, int64_t rows, int64_t in, struct weight_part *out) {
    if (b->status != OK)
        return false;
    struct quant_storage q = quant_of(b->spec->quant, module);
    if (quant_is_bnb(b->spec->quant))
        q = bind_bnb_storage(b, module, q);
    if (b->load == LOAD_DUMMY && q.scheme != QUANT_NONE) {
        bind_failed(b,
                    fail(b->err, ERR_UNSUPPORTED,
                         "%s: on this device dummy weights are not quantised; remove quantization_config to use them",
                         b->spec->path));
        return false;
    }
    b->n_parameters += rows * in;
    bool done = false;
    switch (q.scheme) {
    case QUANT_NONE: done = plain(b, module, rows, in, out); break;
    case QUANT_FP8_TENSOR:
    case QUANT_FP8_CHANNEL:
    case QUANT_FP8_BLOCK:
    case QUANT_INT8_CHANNEL: done = scaled(b, module, rows, in, q, out); break;
    case QUANT_NVFP4: done = nvfp4(b, module, rows, in, q.compressed_tensors, out); break;
    case QUANT_INT4_GROUP:
    case QUANT_GPTQ:
    case QUANT_AWQ:
        done = 32 % q.bits ? only_told(b, module, rows, in, q, out) : bind_packed(b, module, rows, in, q, out);
        break;
    case QUANT_MXFP4:
        done = q.compressed_tensors ? mxfp4(b, module, rows, in, out) : only_told(b, module, rows, in, q, out);
        break;
    case QUANT_BNB_INT8:
    case QUANT_BNB_CODES: done = bind_bnb(b, module, rows, in, q, out); break;
    }
    set_aside(b, module);
    if (done)
        bind_note(b, arena_printf(b->arena, "%s.weight", module), true, in, *out);
    return done;
}
