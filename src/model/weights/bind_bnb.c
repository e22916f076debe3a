/* bind_bnb.c - binds one module's matrix as bitsandbytes stores it: int8 rows, or codes of 4 bits (nf4, fp4).
 *
 *     int8    X.weight i8 [out, in], X.SCB f32 [out] (the largest of each row: w = q SCB / 127), X.weight_format u8, 0
 *     4 bits  X.weight u8 [n / 2, 1], X.weight.quant_map f32 [16], X.weight.absmax f32 [n / blocksize], and
 *             X.weight.quant_state.bitsandbytes__nf4 (or __fp4): JSON as bytes, quant_type, blocksize, shape
 *     nested  X.weight.absmax u8, X.weight.nested_absmax f32, X.weight.nested_quant_map f32 [256]; in the JSON
 *             nested_blocksize and nested_offset
 *
 * Outliers of activations, which bitsandbytes multiplies apart, are of its products and not of the file. */
#include "model/weights/bind_internal.h"

#include "base/json/json.h"

enum { LARGEST_STATE = 1 << 16, LARGEST_BLOCK = 1 << 20 };

static const char *named(struct binder *b, const char *module, const char *leaf) {
    return arena_printf(b->arena, "%s.%s", module, leaf);
}

static const struct stored_tensor *found(struct binder *b, const char *name) {
    return b->load == LOAD_CHECKPOINT ? checkpoint_find(b->checkpoint, name) : NULL;
}

static bool refuse(struct binder *b, const struct stored_tensor *t, const char *why) {
    bind_failed(b, fail(b->err, ERR_FORMAT, "%s: tensor %s: %s", checkpoint_path(b->checkpoint, t), t->name, why));
    return false;
}

static const struct stored_tensor *tensor(struct binder *b, const char *name, enum dtype dtype, int rank,
                                          const int64_t *shape) {
    const struct stored_tensor *t = bind_tensor_as(b, name, dtype, rank, shape);
    return t && bind_is_stored_as(b, t, dtype) ? t : NULL;
}

static bool int8_rows(struct binder *b, const char *module, int64_t rows, int64_t in, struct weight_part *out) {
    const struct stored_tensor *t = tensor(b, named(b, module, "weight"), DT_I8, 2, (int64_t[]){rows, in});
    const struct stored_tensor *largest = t ? tensor(b, named(b, module, "SCB"), DT_F32, 1, &rows) : NULL;
    if (!largest)
        return false;
    const char *order = named(b, module, "weight_format");
    if (b->load == LOAD_PHANTOM || found(b, order)) { // absent in old files
        const struct stored_tensor *o = tensor(b, order, DT_U8, 0, NULL);
        if (!o)
            return false;
        if (o->data && *(const uint8_t *)o->data != 0)
            return refuse(b, o, "rows alone are read, not the orders of tiles of old cards");
    }
    float *scales = b->load == LOAD_PHANTOM ? NULL : arena_alloc(b->arena, (size_t)rows * sizeof *scales);
    for (int64_t r = 0; scales && r < rows; r++) {
        memcpy(&scales[r], (const char *)largest->data + r * (int64_t)sizeof *scales, sizeof *scales);
        scales[r] /= 127;
    }
    *out = plain_part(t, rows, in);
    out->format = &qformat_scaled;
    out->scale = (struct qscale){scales, DT_F32, 1, 0, 1, 1};
    return true;
}

/* ---- 4 bits ---- */

/* What the JSON says. */
struct state {
    int64_t block, outer_block;
    double offset;
    bool nested;
};

static const struct stored_tensor *state_tensor(struct binder *b, const char *module) {
    const struct stored_tensor *t = found(b, named(b, module, "weight.quant_state.bitsandbytes__nf4"));
    return t ? t : found(b, named(b, module, "weight.quant_state.bitsandbytes__fp4"));
}

static enum status read_state(const json_t *json, const char *where, int64_t rows, int64_t in, struct state *s,
                              struct error *err) {
    json_t *shape;
    if (!json_is_object(json))
        return fail(err, ERR_FORMAT, "%s is %s, it must be an object", where, jv_type_name(json));
    TRY(jv_int(json, where, "blocksize", 1, LARGEST_BLOCK, &s->block, err));
    TRY(jv_array_or_null(json, where, "shape", &shape, err));
    if (json_array_size(shape) != 2 || json_integer_value(json_array_get(shape, 0)) != rows ||
        json_integer_value(json_array_get(shape, 1)) != in)
        return fail(err, ERR_FORMAT, "%s: \"shape\" is not [%lld, %lld], as config.json has it", where, (long long)rows,
                    (long long)in);
    s->nested = json_object_get(json, "nested_blocksize") != NULL;
    if (!s->nested)
        return OK;
    TRY(jv_int(json, where, "nested_blocksize", 1, LARGEST_BLOCK, &s->outer_block, err));
    return jv_real(json, where, "nested_offset", &s->offset, err);
}

/* A phantom's is what is written unless asked otherwise. */
static bool state_of(struct binder *b, const char *module, int64_t rows, int64_t in, struct quant_storage q,
                     struct state *s) {
    *s = (struct state){.block = 64, .outer_block = 256, .nested = q.nested};
    if (b->load == LOAD_PHANTOM)
        return true;
    const struct stored_tensor *t = state_tensor(b, module);
    if (!t)
        t = bind_tensor_as(b, named(b, module, "weight.quant_state.bitsandbytes__nf4"), DT_U8, 1, &(int64_t){0});
    else
        t = tensor(b, t->name, DT_U8, 1, t->shape);
    if (!t)
        return false;
    if (t->n_bytes > LARGEST_STATE)
        return refuse(b, t, "is too long");
    json_t *json;
    struct str text = {(const char *)t->data, t->n_bytes};
    const char *where = arena_printf(b->arena, "%s: tensor %s", checkpoint_path(b->checkpoint, t), t->name);
    enum status status = jv_parse(text, where, 0, &json, b->err);
    if (status == OK) {
        status = read_state(json, where, rows, in, s, b->err);
        json_decref(json);
    }
    if (status != OK)
        bind_failed(b, status);
    return status == OK;
}

/* n floats of a tensor, aligned. */
static bool floats(struct binder *b, const char *name, int64_t n, float *out) {
    const struct stored_tensor *t = tensor(b, name, DT_F32, 1, &n);
    if (t && t->data)
        memcpy(out, t->data, (size_t)n * sizeof *out);
    return t != NULL;
}

static int64_t up_to(int64_t n, int64_t of) { return (n + of - 1) / of; }

static bool scales(struct binder *b, const char *module, int64_t n, const struct state *s, struct qcodes *k) {
    int64_t blocks = up_to(n, s->block), outer = s->nested ? up_to(blocks, s->outer_block) : 0;
    const struct stored_tensor *t =
        tensor(b, named(b, module, "weight.absmax"), s->nested ? DT_U8 : DT_F32, 1, &blocks);
    if (!t)
        return false;
    k->scales = t->data;
    if (!s->nested)
        return true;
    float *values = arena_calloc(b->arena, 256, sizeof *values);
    t = tensor(b, named(b, module, "weight.nested_absmax"), DT_F32, 1, &outer);
    if (!t || !floats(b, named(b, module, "weight.nested_quant_map"), 256, values))
        return false;
    k->outer = t->data;
    k->outer_values = values;
    k->outer_block = s->outer_block;
    k->offset = (float)s->offset;
    return true;
}

static bool codes4(struct binder *b, const char *module, int64_t rows, int64_t in, struct quant_storage q,
                   struct weight_part *out) {
    struct state s;
    struct qcodes *k = arena_calloc(b->arena, 1, sizeof *k);
    int64_t n = rows * in, shape[2] = {up_to(n, 2), 1};
    const char *name = named(b, module, "weight");
    const struct stored_tensor *stored = found(b, name);
    if (stored && stored->rank == 2 && stored->shape[0] == 1) // either way round
        shape[0] = 1, shape[1] = up_to(n, 2);
    const struct stored_tensor *t = tensor(b, name, DT_U8, 2, shape);
    if (!t || !state_of(b, module, rows, in, q, &s) || !scales(b, module, n, &s, k) ||
        !floats(b, named(b, module, "weight.quant_map"), 16, k->values))
        return false;
    k->stored_cols = in;
    k->block = s.block;
    *out = plain_part(t, rows, in);
    out->format = &qformat_codes4;
    out->codes = k;
    return true;
}

/* Which modules were left alone is seen in the file, and not in the settings: libraries differ in what they skip. */
struct quant_storage bind_bnb_storage(struct binder *b, const char *module, struct quant_storage q) {
    if (b->load != LOAD_CHECKPOINT)
        return q;
    if (state_tensor(b, module))
        return (struct quant_storage){.scheme = QUANT_BNB_CODES, .bits = 4, .weight_only = true};
    if (found(b, named(b, module, "SCB")))
        return (struct quant_storage){.scheme = QUANT_BNB_INT8, .bits = 8, .weight_only = true};
    const struct stored_tensor *t = found(b, named(b, module, "weight"));
    return t && dtype_is_float(t->dtype) ? (struct quant_storage){.scheme = QUANT_NONE} : q;
}

bool bind_bnb(struct binder *b, const char *module, int64_t rows, int64_t in, struct quant_storage q,
              struct weight_part *out) {
    return q.scheme == QUANT_BNB_INT8 ? int8_rows(b, module, rows, in, out) : codes4(b, module, rows, in, q, out);
}
