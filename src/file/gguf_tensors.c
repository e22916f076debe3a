/* gguf_tensors.c - see gguf_tensors.h. */
#include "file/gguf_tensors.h"

#include <stdlib.h>

/* What a type is called, and what it is here; a format of QFORMAT_PLAIN is elements of the dtype. Types that no writer
 * puts into files (sums beside activations, rows repacked for one processor) have names only. */
static const struct type {
    uint32_t number;
    const char *name;
    bool known;
    enum dtype dtype;
    enum qformat_id format;
} types[] = {
    {0, "F32", true, DT_F32, QFORMAT_PLAIN},
    {1, "F16", true, DT_F16, QFORMAT_PLAIN},
    {2, "Q4_0", true, DT_U8, QFORMAT_Q4_0},
    {3, "Q4_1", true, DT_U8, QFORMAT_Q4_1},
    {6, "Q5_0", true, DT_U8, QFORMAT_Q5_0},
    {7, "Q5_1", true, DT_U8, QFORMAT_Q5_1},
    {8, "Q8_0", true, DT_U8, QFORMAT_Q8_0},
    {9, "Q8_1"},
    {10, "Q2_K", true, DT_U8, QFORMAT_Q2_K},
    {11, "Q3_K", true, DT_U8, QFORMAT_Q3_K},
    {12, "Q4_K", true, DT_U8, QFORMAT_Q4_K},
    {13, "Q5_K", true, DT_U8, QFORMAT_Q5_K},
    {14, "Q6_K", true, DT_U8, QFORMAT_Q6_K},
    {15, "Q8_K"},
    {16, "IQ2_XXS", true, DT_U8, QFORMAT_IQ2_XXS},
    {17, "IQ2_XS", true, DT_U8, QFORMAT_IQ2_XS},
    {18, "IQ3_XXS", true, DT_U8, QFORMAT_IQ3_XXS},
    {19, "IQ1_S", true, DT_U8, QFORMAT_IQ1_S},
    {20, "IQ4_NL", true, DT_U8, QFORMAT_IQ4_NL},
    {21, "IQ3_S", true, DT_U8, QFORMAT_IQ3_S},
    {22, "IQ2_S", true, DT_U8, QFORMAT_IQ2_S},
    {23, "IQ4_XS", true, DT_U8, QFORMAT_IQ4_XS},
    {24, "I8", true, DT_I8, QFORMAT_PLAIN},
    {25, "I16", true, DT_I16, QFORMAT_PLAIN},
    {26, "I32", true, DT_I32, QFORMAT_PLAIN},
    {27, "I64", true, DT_I64, QFORMAT_PLAIN},
    {28, "F64", true, DT_F64, QFORMAT_PLAIN},
    {29, "IQ1_M", true, DT_U8, QFORMAT_IQ1_M},
    {30, "BF16", true, DT_BF16, QFORMAT_PLAIN},
    {34, "TQ1_0", true, DT_U8, QFORMAT_TQ1_0},
    {35, "TQ2_0", true, DT_U8, QFORMAT_TQ2_0},
    {39, "MXFP4", true, DT_U8, QFORMAT_MXFP4_HALVES},
    {40, "NVFP4"},
    {41, "Q1_0"},
};

struct reader {
    const struct gguf *g;
    const char *bytes;
    size_t n_bytes;
    struct stored_list *list;
    struct error *err;
};

static enum status find_type(const struct reader *r, const struct gguf_tensor *t, const struct type **out) {
    const struct type *found = NULL;
    for (size_t i = 0; i < ARRAY_LEN(types); i++)
        if (types[i].number == t->type)
            found = &types[i];
    *out = found;
    if (found && found->known)
        return OK;
    return fail(r->err, ERR_UNSUPPORTED, "%s: tensor %.*s is of type %s (%u), which is not supported", r->g->path,
                STR_ARG(t->name), found ? found->name : "unknown", (unsigned)t->type);
}

/* Elements of a row, rows, and the bytes that they come to. */
static enum status measure(const struct reader *r, const struct gguf_tensor *t, const struct type *type,
                           struct stored_tensor *s) {
    const struct qformat *f = qformat_of_blocks(type->format);
    uint64_t row = t->n_dims ? t->dims[0] : 1;
    if (f && row % (uint64_t)f->block_cols)
        return fail(r->err, ERR_FORMAT, "%s: tensor %.*s has rows of %llu elements, %s needs a multiple of %d",
                    r->g->path, STR_ARG(t->name), (unsigned long long)row, type->name, f->block_cols);
    size_t n = f ? row / (uint64_t)f->block_cols : row;
    bool fits = size_mul(n, f ? (size_t)f->block_bytes : dtype_bytes(type->dtype), &n);
    s->rank = t->n_dims;
    for (int i = 0; i < t->n_dims; i++) {
        s->shape[t->n_dims - 1 - i] = (int64_t)t->dims[i];
        fits = fits && (i == 0 || size_mul(n, (size_t)t->dims[i], &n)) && n <= INT64_MAX / 8;
    }
    size_t elements = 1;
    for (int i = 0; i < t->n_dims; i++) // of a block there are more than bytes
        fits = fits && size_mul(elements, (size_t)t->dims[i], &elements) && elements <= INT64_MAX / 8;
    if (!fits)
        return fail(r->err, ERR_FORMAT, "%s: the dimensions of tensor %.*s multiply to more than 60 bits", r->g->path,
                    STR_ARG(t->name));
    s->format = f;
    s->dtype = type->dtype;
    s->n_bytes = n;
    return OK;
}

static enum status place(const struct reader *r, const struct gguf_tensor *t, struct stored_tensor *s) {
    size_t room = r->n_bytes - r->g->data_begin;
    if (t->offset > room || s->n_bytes > room - t->offset)
        return fail(r->err, ERR_FORMAT,
                    "%s: tensor %.*s ends at byte %llu of the data, the file has %zu: it is cut short", r->g->path,
                    STR_ARG(t->name), (unsigned long long)t->offset + s->n_bytes, room);
    size_t at = r->g->data_begin + (size_t)t->offset;
    if (at % dtype_bytes(s->dtype))
        return fail(r->err, ERR_UNSUPPORTED,
                    "%s: tensor %.*s begins at byte %zu of the file, which is no multiple of its element size %zu",
                    r->g->path, STR_ARG(t->name), at, dtype_bytes(s->dtype));
    s->data = r->bytes + at;
    return OK;
}

static enum status add(const struct reader *r, const struct gguf_tensor *t, int file, struct arena *names) {
    const struct type *type;
    struct stored_tensor *s = stored_list_add(r->list);
    s->name = arena_strdup(names, t->name);
    s->file = file;
    TRY(find_type(r, t, &type));
    TRY(measure(r, t, type, s));
    return place(r, t, s);
}

static int by_place(const void *a, const void *b) {
    const struct stored_tensor *x = a, *y = b;
    if (x->data != y->data)
        return (const char *)x->data < (const char *)y->data ? -1 : 1;
    return x->n_bytes != y->n_bytes ? (x->n_bytes < y->n_bytes ? -1 : 1) : strcmp(x->name, y->name);
}

/* Sorts items[first..n) by place. */
static enum status check_overlaps(const struct reader *r, size_t first) {
    struct stored_tensor *items = r->list->items;
    size_t n = r->list->n;
    if (n > first)
        qsort(items + first, n - first, sizeof *items, by_place);
    for (size_t i = first + 1; i < n; i++)
        if ((const char *)items[i - 1].data + items[i - 1].n_bytes > (const char *)items[i].data)
            return fail(r->err, ERR_FORMAT, "%s: tensors %s and %s overlap", r->g->path, items[i - 1].name,
                        items[i].name);
    return OK;
}

enum status gguf_tensors(const struct gguf *g, const char *bytes, size_t n_bytes, int file, struct arena *names,
                         struct stored_list *list, struct error *err) {
    struct reader r = {.g = g, .bytes = bytes, .n_bytes = n_bytes, .list = list, .err = err};
    size_t first = list->n;
    enum status st = OK;
    for (size_t i = 0; i < g->n_tensors && st == OK; i++)
        st = add(&r, &g->tensors[i], file, names);
    if (st == OK)
        st = check_overlaps(&r, first);
    if (st != OK)
        list->n = first;
    return st;
}

uint32_t gguf_type_number(enum dtype dtype, enum qformat_id format) {
    for (size_t i = 0; i < ARRAY_LEN(types); i++)
        if (types[i].known && types[i].format == format && (format != QFORMAT_PLAIN || types[i].dtype == dtype))
            return types[i].number;
    BUG_IF(true);
    return 0;
}
