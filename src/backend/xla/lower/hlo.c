/* hlo.c - see hlo.h: the module, constants, work element by element, shapes. */
#include "backend/xla/lower/hlo_text.h"

#include <string.h>

static const char *const type_names[] = {
    [TYPE_PRED] = "i1",  [TYPE_S8] = "i8",   [TYPE_S32] = "i32",   [TYPE_U32] = "ui32",
    [TYPE_U64] = "ui64", [TYPE_F32] = "f32", [TYPE_BF16] = "bf16", [TYPE_F64] = "f64",
};

int64_t shape_count(struct shape s) {
    int64_t n = 1;
    for (int i = 0; i < s.rank; i++)
        n *= s.dims[i];
    return n;
}

/* ---- pieces of text ---- */

void put_text(struct buf *out, const char *text) { buf_str(out, str_of(text)); }

void put_type(struct buf *out, enum hlo_type type, struct shape shape) {
    put_text(out, "tensor<");
    for (int i = 0; i < shape.rank; i++) {
        buf_int(out, shape.dims[i]);
        buf_push(out, 'x');
    }
    buf_printf(out, "%s>", type_names[type]);
}

void put_type_of(struct buf *out, struct tensor x) { put_type(out, x.type, x.shape); }

void put_name(struct buf *out, struct tensor x) {
    buf_push(out, '%');
    buf_int(out, x.id);
    if (x.part >= 0)
        buf_printf(out, "#%d", x.part);
}

void put_numbers(struct buf *out, const int *x, int n) {
    buf_push(out, '[');
    for (int i = 0; i < n; i++)
        buf_printf(out, "%s%d", i ? ", " : "", x[i]);
    buf_push(out, ']');
}

void put_array(struct buf *out, const char *name, const int64_t *x, int n) {
    buf_printf(out, "%s = array<i64", name);
    for (int i = 0; i < n; i++)
        buf_printf(out, "%s%lld", i ? ", " : ": ", (long long)x[i]);
    buf_push(out, '>');
}

struct tensor hlo_new(struct hlo *h, enum hlo_type type, struct shape shape) {
    BUG_IF(shape.rank > HLO_MAX_RANK);
    return (struct tensor){h->n_ids++, -1, type, shape};
}

void put_call(struct hlo *h, struct tensor result, const char *op, const struct tensor *operands, int n) {
    put_name(&h->body, result);
    buf_printf(&h->body, " = \"%s%s\"(", strchr(op, '.') ? "" : "stablehlo.", op);
    for (int i = 0; i < n; i++) {
        if (i)
            put_text(&h->body, ", ");
        put_name(&h->body, operands[i]);
    }
    buf_push(&h->body, ')');
}

void put_signature(struct hlo *h, struct tensor result, const struct tensor *operands, int n) {
    put_text(&h->body, " : (");
    for (int i = 0; i < n; i++) {
        if (i)
            put_text(&h->body, ", ");
        put_type_of(&h->body, operands[i]);
    }
    put_text(&h->body, ") -> ");
    put_type_of(&h->body, result);
    buf_push(&h->body, '\n');
}

/* ---- the function ---- */

struct tensor hlo_argument(struct hlo *h, enum hlo_type type, struct shape shape, int alias) {
    struct tensor x = hlo_new(h, type, shape);
    if (h->n_arguments++)
        put_text(&h->arguments, ", ");
    put_name(&h->arguments, x);
    put_text(&h->arguments, ": ");
    put_type_of(&h->arguments, x);
    if (alias >= 0)
        buf_printf(&h->arguments, " {tf.aliasing_output = %d : i32}", alias);
    return x;
}

int hlo_result(struct hlo *h, struct tensor x) {
    if (h->n_results) {
        put_text(&h->results, ", ");
        put_text(&h->result_types, ", ");
    }
    put_name(&h->results, x);
    put_type_of(&h->result_types, x);
    return h->n_results++;
}

void hlo_module(struct hlo *h, const char *name, int n_replicas, struct buf *out) {
    BUG_IF(h->depth);
    buf_printf(out, "module @%s attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = %d : i32} {\n", name,
               n_replicas);
    put_text(out, "func.func public @main(");
    buf_str(out, buf_view(&h->arguments));
    put_text(out, ") -> (");
    buf_str(out, buf_view(&h->result_types));
    put_text(out, ") {\n");
    buf_str(out, buf_view(&h->body));
    put_text(out, "\"func.return\"(");
    buf_str(out, buf_view(&h->results));
    put_text(out, ") : (");
    buf_str(out, buf_view(&h->result_types));
    put_text(out, ") -> ()\n}\n}\n");
    buf_release(&h->arguments);
    buf_release(&h->body);
    buf_release(&h->results);
    buf_release(&h->result_types);
    *h = (struct hlo){0};
}

/* ---- constants ---- */

static struct tensor constant(struct hlo *h, enum hlo_type type, struct shape shape, const char *value) {
    struct tensor x = hlo_new(h, type, shape);
    put_call(h, x, "constant", NULL, 0);
    buf_printf(&h->body, " <{value = dense<%s> : ", value);
    put_type_of(&h->body, x);
    put_text(&h->body, "}>");
    put_signature(h, x, NULL, 0);
    return x;
}

struct tensor hlo_float(struct hlo *h, float x) {
    return hlo_full(h, TYPE_F32, SCALAR, (double)x);
}
struct tensor hlo_int(struct hlo *h, int32_t x) {
    return hlo_full(h, TYPE_S32, SCALAR, x);
}

struct tensor hlo_u64(struct hlo *h, uint64_t x) {
    char text[32];
    snprintf(text, sizeof text, "%llu", (unsigned long long)x);
    return constant(h, TYPE_U64, SCALAR, text);
}

struct tensor hlo_full(struct hlo *h, enum hlo_type type, struct shape shape, double x) {
    char text[32];
    float f = (float)x;
    uint32_t bits;
    uint64_t wide;
    memcpy(&bits, &f, sizeof bits);
    memcpy(&wide, &x, sizeof wide);
    if (type == TYPE_F32)
        snprintf(text, sizeof text, "0x%08X", bits);
    else if (type == TYPE_BF16)
        snprintf(text, sizeof text, "0x%04X", bits >> 16);
    else if (type == TYPE_F64)
        snprintf(text, sizeof text, "0x%016llX", (unsigned long long)wide);
    else if (type == TYPE_PRED)
        snprintf(text, sizeof text, "%s", x != 0 ? "true" : "false");
    else
        snprintf(text, sizeof text, "%lld", (long long)x);
    return constant(h, type, shape, text);
}

struct tensor hlo_ints(struct hlo *h, const int32_t *x, int n) {
    struct buf text = {0};
    buf_push(&text, '[');
    for (int i = 0; i < n; i++)
        buf_printf(&text, "%s%d", i ? ", " : "", x[i]);
    buf_push(&text, ']');
    struct tensor out = constant(h, TYPE_S32, SHAPE(n), text.ptr);
    buf_release(&text);
    return out;
}

struct tensor hlo_iota(struct hlo *h, enum hlo_type type, struct shape shape, int axis) {
    struct tensor x = hlo_new(h, type, shape);
    put_call(h, x, "iota", NULL, 0);
    buf_printf(&h->body, " <{iota_dimension = %d : i64}>", axis);
    put_signature(h, x, NULL, 0);
    return x;
}

/* ---- element by element ---- */

static struct tensor plain(struct hlo *h, const char *op, const struct tensor *operands, int n, enum hlo_type type) {
    struct tensor y = hlo_new(h, type, operands[n - 1].shape);
    put_call(h, y, op, operands, n);
    put_signature(h, y, operands, n);
    return y;
}

struct tensor hlo_unary(struct hlo *h, const char *op, struct tensor x) {
    return plain(h, op, &x, 1, x.type);
}

struct tensor hlo_barrier(struct hlo *h, struct tensor x) {
    return plain(h, "optimization_barrier", &x, 1, x.type);
}

/* Where one of two has rank 0. */
static void meet(struct hlo *h, struct tensor *a, struct tensor *b) {
    if (a->shape.rank == 0 && b->shape.rank > 0)
        *a = hlo_spread(h, *a, b->shape, NULL);
    if (b->shape.rank == 0 && a->shape.rank > 0)
        *b = hlo_spread(h, *b, a->shape, NULL);
    BUG_IF(!shape_equals(a->shape, b->shape) || a->type != b->type);
}

struct tensor hlo_binary(struct hlo *h, const char *op, struct tensor a, struct tensor b) {
    meet(h, &a, &b);
    return plain(h, op, (struct tensor[]){a, b}, 2, a.type);
}

struct tensor hlo_compare(struct hlo *h, const char *how, struct tensor a, struct tensor b) {
    meet(h, &a, &b);
    bool is_float = a.type == TYPE_F32 || a.type == TYPE_BF16 || a.type == TYPE_F64;
    bool is_signed = a.type == TYPE_S32 || a.type == TYPE_S8;
    struct tensor y = hlo_new(h, TYPE_PRED, a.shape);
    put_call(h, y, "compare", (struct tensor[]){a, b}, 2);
    buf_printf(&h->body,
               " <{comparison_direction = #stablehlo<comparison_direction %s>, compare_type = "
               "#stablehlo<comparison_type %s>}>",
               how,
               is_float    ? "FLOAT"
               : is_signed ? "SIGNED"
                           : "UNSIGNED");
    put_signature(h, y, (struct tensor[]){a, b}, 2);
    return y;
}

struct tensor hlo_select(struct hlo *h, struct tensor where, struct tensor yes, struct tensor no) {
    if (yes.shape.rank == 0 && where.shape.rank > 0)
        yes = hlo_spread(h, yes, where.shape, NULL);
    meet(h, &yes, &no);
    BUG_IF(!shape_equals(where.shape, yes.shape));
    return plain(h, "select", (struct tensor[]){where, yes, no}, 3, yes.type);
}

struct tensor hlo_convert(struct hlo *h, struct tensor x, enum hlo_type type) {
    return x.type == type ? x : plain(h, "convert", &x, 1, type);
}

struct tensor hlo_bits(struct hlo *h, struct tensor x, enum hlo_type type) {
    return plain(h, "bitcast_convert", &x, 1, type);
}

/* ---- shapes ---- */

struct tensor hlo_reshape(struct hlo *h, struct tensor x, struct shape shape) {
    BUG_IF(shape_count(x.shape) != shape_count(shape));
    if (shape_equals(x.shape, shape))
        return x;
    struct tensor y = hlo_new(h, x.type, shape);
    put_call(h, y, "reshape", &x, 1);
    put_signature(h, y, &x, 1);
    return y;
}

struct tensor hlo_spread(struct hlo *h, struct tensor x, struct shape shape, const int *axes) {
    int64_t to[HLO_MAX_RANK];
    for (int i = 0; i < x.shape.rank; i++) {
        to[i] = axes[i];
        BUG_IF(shape.dims[axes[i]] != x.shape.dims[i]);
    }
    struct tensor y = hlo_new(h, x.type, shape);
    put_call(h, y, "broadcast_in_dim", &x, 1);
    put_text(&h->body, " <{");
    put_array(&h->body, "broadcast_dimensions", to, x.shape.rank);
    put_text(&h->body, "}>");
    put_signature(h, y, &x, 1);
    return y;
}

struct tensor hlo_rows(struct hlo *h, struct tensor x, struct shape shape) {
    int axes[HLO_MAX_RANK];
    for (int i = 0; i < x.shape.rank; i++)
        axes[i] = i;
    return hlo_spread(h, x, shape, axes);
}

struct tensor hlo_cols(struct hlo *h, struct tensor x, struct shape shape) {
    int axes[HLO_MAX_RANK];
    for (int i = 0; i < x.shape.rank; i++)
        axes[i] = shape.rank - x.shape.rank + i;
    return hlo_spread(h, x, shape, axes);
}

struct tensor hlo_transpose(struct hlo *h, struct tensor x, const int *axes) {
    struct shape shape = x.shape;
    int64_t from[HLO_MAX_RANK];
    for (int i = 0; i < shape.rank; i++) {
        from[i] = axes[i];
        shape.dims[i] = x.shape.dims[axes[i]];
    }
    struct tensor y = hlo_new(h, x.type, shape);
    put_call(h, y, "transpose", &x, 1);
    put_text(&h->body, " <{");
    put_array(&h->body, "permutation", from, shape.rank);
    put_text(&h->body, "}>");
    put_signature(h, y, &x, 1);
    return y;
}

struct tensor hlo_slice(struct hlo *h, struct tensor x, int axis, int64_t first, int64_t n) {
    int64_t from[HLO_MAX_RANK] = {0}, to[HLO_MAX_RANK], steps[HLO_MAX_RANK];
    struct shape shape = x.shape;
    BUG_IF(first < 0 || n < 1 || first > shape.dims[axis] - n);
    if (n == shape.dims[axis])
        return x;
    for (int i = 0; i < shape.rank; i++) {
        to[i] = shape.dims[i];
        steps[i] = 1;
    }
    from[axis] = first;
    to[axis] = first + n;
    shape.dims[axis] = n;
    struct tensor y = hlo_new(h, x.type, shape);
    put_call(h, y, "slice", &x, 1);
    put_text(&h->body, " <{");
    put_array(&h->body, "start_indices", from, shape.rank);
    put_array(&h->body, ", limit_indices", to, shape.rank);
    put_array(&h->body, ", strides", steps, shape.rank);
    put_text(&h->body, "}>");
    put_signature(h, y, &x, 1);
    return y;
}

struct tensor hlo_concat(struct hlo *h, int axis, const struct tensor *parts, int n) {
    struct shape shape = parts[0].shape;
    if (n == 1)
        return parts[0];
    for (int i = 1; i < n; i++)
        shape.dims[axis] += parts[i].shape.dims[axis];
    struct tensor y = hlo_new(h, parts[0].type, shape);
    put_call(h, y, "concatenate", parts, n);
    buf_printf(&h->body, " <{dimension = %d : i64}>", axis);
    put_signature(h, y, parts, n);
    return y;
}
