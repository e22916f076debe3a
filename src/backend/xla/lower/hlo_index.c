/* hlo_index.c - see hlo.h: gather, scatter, windows, sums and products, sorting, collectives, loops. */
#include "backend/xla/lower/hlo_text.h"

#include <string.h>

/* ---- by index ---- */

/* Entries of x along the axes `at` [n_at], which are not in the result; the other axes stand behind the n of ids that
 * say which entry. */
static struct tensor gather(struct hlo *h, struct tensor x, struct tensor ids, int n, const int *at, int n_at) {
    struct shape shape = ids.shape, sizes = x.shape;
    int offset[HLO_MAX_RANK], rest = 0;
    BUG_IF(n + x.shape.rank - n_at > HLO_MAX_RANK);
    for (int i = 0; i < n_at; i++)
        sizes.dims[at[i]] = 1;
    for (int i = 0, k = 0; i < x.shape.rank; i++) {
        if (k < n_at && at[k] == i) {
            k++;
            continue;
        }
        offset[rest] = n + rest;
        shape.dims[n + rest++] = x.shape.dims[i];
    }
    shape.rank = n + rest;
    struct tensor y = hlo_new(h, x.type, shape), operands[] = {x, ids};
    put_call(h, y, "gather", operands, 2);
    put_text(&h->body, " <{dimension_numbers = #stablehlo.gather<offset_dims = ");
    put_numbers(&h->body, offset, rest);
    put_text(&h->body, ", collapsed_slice_dims = ");
    put_numbers(&h->body, at, n_at);
    put_text(&h->body, ", start_index_map = ");
    put_numbers(&h->body, at, n_at);
    buf_printf(&h->body, ", index_vector_dim = %d>, indices_are_sorted = false, ", n);
    put_array(&h->body, "slice_sizes", sizes.dims, sizes.rank);
    put_text(&h->body, "}>");
    put_signature(h, y, operands, 2);
    return y;
}

struct tensor hlo_take(struct hlo *h, struct tensor x, struct tensor ids) {
    return gather(h, x, ids, ids.shape.rank, AXES(0), 1);
}

struct tensor hlo_take_tokens(struct hlo *h, struct tensor x, struct tensor ids) {
    return gather(h, x, ids, 1, AXES(0, 2), 2);
}

/* The region of a scatter that replaces. */
static void put_replacing(struct hlo *h, enum hlo_type type) {
    struct tensor old = hlo_new(h, type, SCALAR), new = hlo_new(h, type, SCALAR);
    struct buf *b = &h->body;
    put_text(b, " ({\n^bb0(");
    put_name(b, old);
    put_text(b, ": ");
    put_type_of(b, old);
    put_text(b, ", ");
    put_name(b, new);
    put_text(b, ": ");
    put_type_of(b, new);
    put_text(b, "):\n\"stablehlo.return\"(");
    put_name(b, new);
    put_text(b, ") : (");
    put_type_of(b, new);
    put_text(b, ") -> ()\n})");
}

static struct tensor scatter(struct hlo *h, struct tensor x, struct tensor ids, struct tensor rows, const int *window,
                             int n_window, const int *inserted, int n_inserted, int vector_dim) {
    struct tensor y = hlo_new(h, x.type, x.shape), operands[] = {x, ids, rows};
    BUG_IF(x.type != rows.type);
    put_call(h, y, "scatter", operands, 3);
    put_text(&h->body, " <{scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = ");
    put_numbers(&h->body, window, n_window);
    put_text(&h->body, ", inserted_window_dims = ");
    put_numbers(&h->body, inserted, n_inserted);
    put_text(&h->body, ", scatter_dims_to_operand_dims = ");
    put_numbers(&h->body, inserted, n_inserted);
    buf_printf(&h->body, ", index_vector_dim = %d>, indices_are_sorted = false, unique_indices = true}>", vector_dim);
    put_replacing(h, x.type);
    put_signature(h, y, operands, 3);
    return y;
}

struct tensor hlo_put(struct hlo *h, struct tensor x, struct tensor ids, struct tensor rows) {
    int window[HLO_MAX_RANK];
    for (int i = 1; i < x.shape.rank; i++)
        window[i - 1] = i;
    return scatter(h, x, ids, rows, window, x.shape.rank - 1, AXES(0), 1, 1);
}

struct tensor hlo_put_tokens(struct hlo *h, struct tensor x, struct tensor ids, struct tensor rows) {
    return scatter(h, x, ids, rows, AXES(1, 2, 3), x.shape.rank - 2, AXES(0, 2), 2, 1);
}

static int window_operands(struct hlo *h, struct tensor *operands, int n, int rank, int axis, struct tensor first) {
    struct tensor zero = hlo_int(h, 0);
    for (int i = 0; i < rank; i++)
        operands[n++] = i == axis ? first : zero;
    return n;
}

struct tensor hlo_window(struct hlo *h, struct tensor x, int axis, struct tensor first, int64_t size) {
    struct tensor operands[1 + HLO_MAX_RANK] = {x};
    int n = window_operands(h, operands, 1, x.shape.rank, axis, first);
    struct shape shape = x.shape;
    shape.dims[axis] = size;
    struct tensor y = hlo_new(h, x.type, shape);
    put_call(h, y, "dynamic_slice", operands, n);
    put_text(&h->body, " <{");
    put_array(&h->body, "slice_sizes", shape.dims, shape.rank);
    put_text(&h->body, "}>");
    put_signature(h, y, operands, n);
    return y;
}

struct tensor hlo_set_window(struct hlo *h, struct tensor x, int axis, struct tensor first, struct tensor part) {
    struct tensor operands[2 + HLO_MAX_RANK] = {x, part};
    int n = window_operands(h, operands, 2, x.shape.rank, axis, first);
    struct tensor y = hlo_new(h, x.type, x.shape);
    put_call(h, y, "dynamic_update_slice", operands, n);
    put_signature(h, y, operands, n);
    return y;
}

/* ---- regions ---- */

/* ^bb0(%4: tensor<i32>, ...): */
static void put_block(struct hlo *h, const struct tensor *args, int n) {
    put_text(&h->body, "^bb0(");
    for (int i = 0; i < n; i++) {
        if (i)
            put_text(&h->body, ", ");
        put_name(&h->body, args[i]);
        put_text(&h->body, ": ");
        put_type_of(&h->body, args[i]);
    }
    put_text(&h->body, "):\n");
}

static void put_list(struct hlo *h, const struct tensor *x, int n, void (*put)(struct buf *, struct tensor)) {
    for (int i = 0; i < n; i++) {
        if (i)
            put_text(&h->body, ", ");
        put(&h->body, x[i]);
    }
}

static void put_return(struct hlo *h, const struct tensor *x, int n) {
    put_text(&h->body, "\"stablehlo.return\"(");
    put_list(h, x, n, put_name);
    put_text(&h->body, ") : (");
    put_list(h, x, n, put_type_of);
    put_text(&h->body, ") -> ()\n");
}

/* Values of a region's own, of the types of x. */
static void arguments_like(struct hlo *h, const struct tensor *x, int n, struct tensor *out) {
    for (int i = 0; i < n; i++)
        out[i] = hlo_new(h, x[i].type, x[i].shape);
}

/* ---- sums and products ---- */

/* The region that adds, or what `op` says, two scalars. */
static void put_combining(struct hlo *h, const char *op, enum hlo_type type) {
    struct tensor a = hlo_new(h, type, SCALAR), b = hlo_new(h, type, SCALAR);
    struct buf *out = &h->body;
    put_text(out, " ({\n^bb0(");
    put_name(out, a);
    put_text(out, ": ");
    put_type_of(out, a);
    put_text(out, ", ");
    put_name(out, b);
    put_text(out, ": ");
    put_type_of(out, b);
    put_text(out, "):\n");
    struct tensor c = hlo_binary(h, op, a, b);
    put_text(out, "\"stablehlo.return\"(");
    put_name(out, c);
    put_text(out, ") : (");
    put_type_of(out, c);
    put_text(out, ") -> ()\n})");
}

static struct tensor neutral(struct hlo *h, const char *op, enum hlo_type type) {
    bool is_float = type == TYPE_F32 || type == TYPE_F64 || type == TYPE_BF16;
    if (strcmp(op, "maximum") == 0)
        return hlo_full(h, type, SCALAR, is_float ? -(double)__builtin_inff() : type == TYPE_S32 ? INT32_MIN : 0);
    if (strcmp(op, "minimum") == 0)
        return hlo_full(h, type, SCALAR, is_float ? (double)__builtin_inff() : type == TYPE_S32 ? INT32_MAX : 0);
    return hlo_full(h, type, SCALAR, strcmp(op, "and") == 0);
}

struct tensor hlo_reduce(struct hlo *h, const char *op, struct tensor x, int axis) {
    struct tensor operands[] = {x, neutral(h, op, x.type)};
    struct shape shape = {.rank = x.shape.rank - 1};
    for (int i = 0, n = 0; i < x.shape.rank; i++)
        if (i != axis)
            shape.dims[n++] = x.shape.dims[i];
    struct tensor y = hlo_new(h, x.type, shape);
    put_call(h, y, "reduce", operands, 2);
    buf_printf(&h->body, " <{dimensions = array<i64: %d>}>", axis);
    put_combining(h, op, x.type);
    put_signature(h, y, operands, 2);
    return y;
}

void hlo_reduce_together(struct hlo *h, const struct tensor *x, const struct tensor *start, int n, int axis,
                         void (*join)(struct hlo *h, const struct tensor *a, const struct tensor *b,
                                      struct tensor *out),
                         struct tensor *out) {
    struct tensor args[2 * HLO_MAX_REDUCED], joined[HLO_MAX_REDUCED], operands[2 * HLO_MAX_REDUCED];
    int id = h->n_ids++;
    BUG_IF(n > HLO_MAX_REDUCED);
    memcpy(operands, x, (size_t)n * sizeof *x);
    memcpy(operands + n, start, (size_t)n * sizeof *start);
    buf_printf(&h->body, "%%%d:%d = \"stablehlo.reduce\"(", id, n);
    put_list(h, operands, 2 * n, put_name);
    buf_printf(&h->body, ") <{dimensions = array<i64: %d>}> ({\n", axis);
    h->depth++;
    arguments_like(h, operands + n, n, args);
    arguments_like(h, operands + n, n, args + n);
    put_block(h, args, 2 * n);
    join(h, args, args + n, joined);
    put_return(h, joined, n);
    h->depth--;
    for (int i = 0; i < n; i++) {
        out[i] = (struct tensor){id, i, x[i].type, {.rank = x[i].shape.rank - 1}};
        for (int k = 0, to = 0; k < x[i].shape.rank; k++)
            if (k != axis)
                out[i].shape.dims[to++] = x[i].shape.dims[k];
    }
    put_text(&h->body, "}) : (");
    put_list(h, operands, 2 * n, put_type_of);
    put_text(&h->body, ") -> (");
    put_list(h, out, n, put_type_of);
    put_text(&h->body, ")\n");
}

static int n_axes(const int *axes) {
    int n = 0;
    while (n < 3 && axes[n] >= 0)
        n++;
    return n;
}

static bool has_axis(const int *axes, int axis) {
    for (int i = 0; i < n_axes(axes); i++)
        if (axes[i] == axis)
            return true;
    return false;
}

static void add_free(struct shape *out, struct tensor x, const int *batch, const int *over) {
    for (int i = 0; i < x.shape.rank; i++)
        if (!has_axis(batch, i) && !has_axis(over, i)) {
            BUG_IF(out->rank == HLO_MAX_RANK);
            out->dims[out->rank++] = x.shape.dims[i];
        }
}

struct tensor hlo_dot(struct hlo *h, struct tensor a, struct tensor b, struct dot_axes axes, enum hlo_type type) {
    struct shape shape = {.rank = 0};
    int n_batch = n_axes(axes.batch_a), n_over = n_axes(axes.over_a);
    for (int i = 0; i < n_batch; i++) {
        BUG_IF(a.shape.dims[axes.batch_a[i]] != b.shape.dims[axes.batch_b[i]]);
        shape.dims[shape.rank++] = a.shape.dims[axes.batch_a[i]];
    }
    for (int i = 0; i < n_over; i++)
        BUG_IF(a.shape.dims[axes.over_a[i]] != b.shape.dims[axes.over_b[i]]);
    BUG_IF(a.type != b.type);
    add_free(&shape, a, axes.batch_a, axes.over_a);
    add_free(&shape, b, axes.batch_b, axes.over_b);
    struct tensor y = hlo_new(h, type, shape), operands[] = {a, b};
    const char *precision = a.type == TYPE_F32 ? "HIGHEST" : "DEFAULT";
    put_call(h, y, "dot_general", operands, 2);
    put_text(&h->body, " <{dot_dimension_numbers = #stablehlo.dot<");
    if (n_batch) {
        put_text(&h->body, "lhs_batching_dimensions = ");
        put_numbers(&h->body, axes.batch_a, n_batch);
        put_text(&h->body, ", rhs_batching_dimensions = ");
        put_numbers(&h->body, axes.batch_b, n_batch);
        put_text(&h->body, ", ");
    }
    put_text(&h->body, "lhs_contracting_dimensions = ");
    put_numbers(&h->body, axes.over_a, n_over);
    put_text(&h->body, ", rhs_contracting_dimensions = ");
    put_numbers(&h->body, axes.over_b, n_over);
    buf_printf(&h->body, ">, precision_config = [#stablehlo<precision %s>, #stablehlo<precision %s>]}>", precision,
               precision);
    put_signature(h, y, operands, 2);
    return y;
}

void hlo_sort_descending(struct hlo *h, struct tensor *keys, struct tensor *values) {
    struct tensor a = hlo_new(h, keys->type, SCALAR), b = hlo_new(h, keys->type, SCALAR);
    struct tensor c = hlo_new(h, values->type, SCALAR), d = hlo_new(h, values->type, SCALAR);
    struct tensor y = hlo_new(h, keys->type, keys->shape), args[] = {a, b, c, d};
    struct buf *out = &h->body;
    buf_printf(out, "%%%d:2 = \"stablehlo.sort\"(", y.id);
    put_name(out, *keys);
    put_text(out, ", ");
    put_name(out, *values);
    buf_printf(out, ") <{dimension = %d : i64, is_stable = true}> ({\n^bb0(", keys->shape.rank - 1);
    for (int i = 0; i < 4; i++) {
        if (i)
            put_text(out, ", ");
        put_name(out, args[i]);
        put_text(out, ": ");
        put_type_of(out, args[i]);
    }
    put_text(out, "):\n");
    struct tensor before = hlo_compare(h, "GT", a, b);
    put_text(out, "\"stablehlo.return\"(");
    put_name(out, before);
    put_text(out, ") : (tensor<i1>) -> ()\n}) : (");
    for (int i = 0; i < 2; i++) {
        put_type_of(out, *keys);
        put_text(out, ", ");
        put_type_of(out, *values);
        if (i == 0)
            put_text(out, ") -> (");
    }
    put_text(out, ")\n");
    y.part = 0;
    *keys = y;
    *values = (struct tensor){y.id, 1, values->type, values->shape};
}

/* ---- devices ---- */

static void put_groups(struct hlo *h, int n) {
    put_text(&h->body, "replica_groups = dense<[[");
    for (int i = 0; i < n; i++)
        buf_printf(&h->body, "%s%d", i ? ", " : "", i);
    buf_printf(&h->body, "]]> : tensor<1x%dxi64>", n);
}

struct tensor hlo_all_reduce(struct hlo *h, struct tensor x, int n_replicas) {
    struct tensor y = hlo_new(h, x.type, x.shape);
    put_call(h, y, "all_reduce", &x, 1);
    put_text(&h->body, " <{");
    put_groups(h, n_replicas);
    put_text(&h->body, "}>");
    put_combining(h, "add", x.type);
    put_signature(h, y, &x, 1);
    return y;
}

struct tensor hlo_all_gather(struct hlo *h, struct tensor x, int axis, int n_replicas) {
    struct shape shape = x.shape;
    shape.dims[axis] *= n_replicas;
    struct tensor y = hlo_new(h, x.type, shape);
    put_call(h, y, "all_gather", &x, 1);
    buf_printf(&h->body, " <{all_gather_dim = %d : i64, ", axis);
    put_groups(h, n_replicas);
    put_text(&h->body, "}>");
    put_signature(h, y, &x, 1);
    return y;
}

/* ---- loops ---- */

void hlo_loop_begin(struct hlo *h, struct loop *loop, struct tensor n, const struct tensor *start, int n_carried) {
    struct tensor all[1 + HLO_MAX_CARRIED] = {hlo_int(h, 0)}, seen[1 + HLO_MAX_CARRIED] = {0};
    BUG_IF(n_carried > HLO_MAX_CARRIED);
    memcpy(all + 1, start, (size_t)n_carried * sizeof *start);
    loop->n_carried = n_carried;
    loop->id = h->n_ids++;
    h->depth++;
    buf_printf(&h->body, "%%%d:%d = \"stablehlo.while\"(", loop->id, 1 + n_carried);
    put_list(h, all, 1 + n_carried, put_name);
    put_text(&h->body, ") ({\n");
    arguments_like(h, all, 1 + n_carried, seen);
    put_block(h, seen, 1 + n_carried);
    struct tensor more = hlo_compare(h, "LT", seen[0], n);
    put_return(h, &more, 1);
    put_text(&h->body, "}, {\n");
    arguments_like(h, all, 1 + n_carried, seen);
    put_block(h, seen, 1 + n_carried);
    loop->at = seen[0];
    memcpy(loop->now, seen + 1, (size_t)n_carried * sizeof *seen);
}

void hlo_loop_end(struct hlo *h, struct loop *loop, const struct tensor *next, struct tensor *out) {
    struct tensor all[1 + HLO_MAX_CARRIED] = {hlo_binary(h, "add", loop->at, hlo_int(h, 1))};
    for (int i = 0; i < loop->n_carried; i++) {
        BUG_IF(!shape_equals(next[i].shape, loop->now[i].shape) || next[i].type != loop->now[i].type);
        all[1 + i] = next[i];
        out[i] = (struct tensor){loop->id, 1 + i, next[i].type, next[i].shape};
    }
    put_return(h, all, 1 + loop->n_carried);
    put_text(&h->body, "}) : (");
    put_list(h, all, 1 + loop->n_carried, put_type_of);
    put_text(&h->body, ") -> (");
    put_list(h, all, 1 + loop->n_carried, put_type_of);
    put_text(&h->body, ")\n");
    h->depth--;
}
