/* safetensors.c - see safetensors.h. */
#include "file/safetensors.h"

#include "base/json/json.h"

#include <stdlib.h>

// The reference implementation's bound; a header of a 100,000-tensor checkpoint has about 12 MB.
static const uint64_t max_header_bytes = 100 * 1000 * 1000;

/* What the functions below share: the file, where its data lies, and whom to tell. */
struct reader {
    const char *path;
    const char *data; // first byte after the header
    size_t n_data_bytes;
    int file;
    struct arena *names;
    struct stored_list *list;
    struct error *err;
};

static uint64_t load_u64_le(const char *p) {
    uint64_t v = 0;
    for (int i = 7; i >= 0; i--)
        v = v << 8 | (unsigned char)p[i];
    return v;
}

uint64_t safetensors_data_begin(const char *bytes, size_t n_bytes) {
    return n_bytes < 8 ? 0 : 8 + load_u64_le(bytes);
}

static enum status read_dtype(const struct reader *r, const json_t *entry, struct stored_tensor *t) {
    const json_t *v = json_object_get(entry, "dtype");
    if (!json_is_string(v))
        return fail(r->err, ERR_FORMAT, "%s: tensor %s: \"dtype\" is %s, it must be a string", r->path, t->name,
                    jv_type_name(v));
    if (!dtype_from_file_name(json_string_value(v), &t->dtype))
        return fail(r->err, ERR_UNSUPPORTED, "%s: tensor %s: dtype \"%s\" is not known", r->path, t->name,
                    json_string_value(v));
    return OK;
}

// Fills rank and shape, and *n_bytes with what they and the dtype come to.
static enum status read_shape(const struct reader *r, const json_t *entry, struct stored_tensor *t, size_t *n_bytes) {
    const json_t *v = json_object_get(entry, "shape"), *dim;
    if (!json_is_array(v))
        return fail(r->err, ERR_FORMAT, "%s: tensor %s: \"shape\" is %s, it must be an array", r->path, t->name,
                    jv_type_name(v));
    if (json_array_size(v) > STORED_MAX_RANK)
        return fail(r->err, ERR_UNSUPPORTED, "%s: tensor %s: \"shape\" has %zu dimensions, at most %d are supported",
                    r->path, t->name, json_array_size(v), STORED_MAX_RANK);
    *n_bytes = dtype_bytes(t->dtype);
    size_t i;
    bool fits = true;
    json_array_foreach(v, i, dim) {
        if (!json_is_integer(dim) || json_integer_value(dim) < 0)
            return fail(r->err, ERR_FORMAT,
                        "%s: tensor %s: dimension %zu of \"shape\" is not a whole number of at least 0", r->path,
                        t->name, i);
        t->shape[t->rank++] = json_integer_value(dim);
        fits = size_mul(*n_bytes, (size_t)json_integer_value(dim), n_bytes) && *n_bytes <= INT64_MAX && fits;
    }
    if (!fits)
        return fail(r->err, ERR_FORMAT, "%s: tensor %s: the product of \"shape\" does not fit in 63 bits", r->path,
                    t->name);
    return OK;
}

static enum status read_offsets(const struct reader *r, const json_t *entry, struct stored_tensor *t, size_t n_bytes) {
    const json_t *v = json_object_get(entry, "data_offsets"), *b = json_array_get(v, 0), *e = json_array_get(v, 1);
    if (json_array_size(v) != 2 || !json_is_integer(b) || !json_is_integer(e) || json_integer_value(b) < 0)
        return fail(r->err, ERR_FORMAT, "%s: tensor %s: \"data_offsets\" is not a pair of whole numbers of at least 0",
                    r->path, t->name);
    if (json_integer_value(e) < json_integer_value(b))
        return fail(r->err, ERR_FORMAT, "%s: tensor %s: \"data_offsets\" ends at %lld before it begins at %lld",
                    r->path, t->name, (long long)json_integer_value(e), (long long)json_integer_value(b));
    size_t begin = (size_t)json_integer_value(b), end = (size_t)json_integer_value(e);
    if (end > r->n_data_bytes)
        return fail(r->err, ERR_FORMAT, "%s: tensor %s ends at byte %zu of the data, the file has %zu: it is cut short",
                    r->path, t->name, end, r->n_data_bytes);
    if (end - begin != n_bytes)
        return fail(r->err, ERR_FORMAT, "%s: tensor %s: \"data_offsets\" spans %zu bytes, shape and dtype come to %zu",
                    r->path, t->name, end - begin, n_bytes);
    if (((uintptr_t)r->data + begin) % dtype_bytes(t->dtype))
        return fail(r->err, ERR_UNSUPPORTED,
                    "%s: tensor %s begins at byte %zu of the data, which is no multiple of its element size %zu",
                    r->path, t->name, begin, dtype_bytes(t->dtype));
    t->data = r->data + begin;
    t->n_bytes = n_bytes;
    return OK;
}

static enum status read_tensor(const struct reader *r, const char *name, const json_t *entry) {
    struct stored_tensor *t = stored_list_add(r->list);
    t->name = arena_strdup(r->names, str_of(name));
    t->file = r->file;
    if (!json_is_object(entry))
        return fail(r->err, ERR_FORMAT, "%s: tensor %s is %s, it must be an object", r->path, name,
                    jv_type_name(entry));
    size_t n_bytes = 0;
    TRY(read_dtype(r, entry, t));
    TRY(read_shape(r, entry, t, &n_bytes));
    return read_offsets(r, entry, t, n_bytes);
}

static enum status check_metadata(const struct reader *r, const json_t *metadata) {
    if (json_is_null(metadata))
        return OK;
    if (!json_is_object(metadata))
        return fail(r->err, ERR_FORMAT, "%s: \"__metadata__\" is %s, it must be an object", r->path,
                    jv_type_name(metadata));
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)metadata, key, value) {
        if (!json_is_string(value))
            return fail(r->err, ERR_FORMAT, "%s: \"__metadata__\": \"%s\" is %s, it must be a string", r->path, key,
                        jv_type_name(value));
    }
    return OK;
}

static enum status read_entries(const struct reader *r, json_t *header) {
    if (!json_is_object(header))
        return fail(r->err, ERR_FORMAT, "%s: the header is %s, it must be an object", r->path, jv_type_name(header));
    const char *name;
    json_t *entry;
    json_object_foreach(header, name, entry) {
        if (strcmp(name, "__metadata__") == 0)
            TRY(check_metadata(r, entry));
        else
            TRY(read_tensor(r, name, entry));
    }
    return OK;
}

static int by_place(const void *a, const void *b) {
    const struct stored_tensor *x = a, *y = b;
    if (x->data != y->data)
        return (const char *)x->data < (const char *)y->data ? -1 : 1;
    if (x->n_bytes != y->n_bytes) // empty ones first, so that ends never go back
        return x->n_bytes < y->n_bytes ? -1 : 1;
    return strcmp(x->name, y->name);
}

// Sorts the tensors of this file, items[first..n), by place and checks that they cover the data.
static enum status check_coverage(const struct reader *r, size_t first) {
    struct stored_tensor *items = r->list->items;
    size_t n = r->list->n, covered = 0;
    if (n > first)
        qsort(items + first, n - first, sizeof *items, by_place);
    for (size_t i = first; i < n; i++) {
        size_t begin = (size_t)((const char *)items[i].data - r->data);
        if (begin < covered)
            return fail(r->err, ERR_FORMAT, "%s: tensors %s and %s overlap", r->path, items[i - 1].name, items[i].name);
        if (begin > covered)
            return fail(r->err, ERR_FORMAT, "%s: bytes %zu to %zu of the data, before tensor %s, belong to no tensor",
                        r->path, covered, begin, items[i].name);
        covered = begin + items[i].n_bytes;
    }
    if (covered != r->n_data_bytes)
        return fail(r->err, ERR_FORMAT, "%s: the last %zu bytes belong to no tensor", r->path,
                    r->n_data_bytes - covered);
    return OK;
}

static enum status find_header(const char *bytes, size_t n_bytes, const char *path, struct str *header,
                               struct error *err) {
    if (n_bytes < 8)
        return fail(err, ERR_FORMAT, "%s: has %zu bytes, too few for a safetensors file", path, n_bytes);
    if (str_starts((struct str){bytes, n_bytes}, STR("version https://git-lfs")))
        return fail(
            err, ERR_FORMAT,
            "%s: is a Git LFS pointer, the weights themselves were not downloaded: run git lfs pull in its folder",
            path);
    uint64_t n_header = load_u64_le(bytes);
    if (n_header > max_header_bytes)
        return fail(err, ERR_FORMAT, "%s: the header length %llu is over the limit of %llu: not a safetensors file",
                    path, (unsigned long long)n_header, (unsigned long long)max_header_bytes);
    if (n_header > n_bytes - 8)
        return fail(err, ERR_FORMAT, "%s: the header has %llu bytes, the file %zu: it is cut short", path,
                    (unsigned long long)n_header, n_bytes);
    *header = (struct str){bytes + 8, (size_t)n_header};
    if (n_header == 0 || bytes[8] != '{')
        return fail(err, ERR_FORMAT, "%s: the header does not begin with '{'", path);
    return OK;
}

enum status safetensors_parse(const char *bytes, size_t n_bytes, const char *path, int file, struct arena *names,
                              struct stored_list *list, struct error *err) {
    struct str header;
    json_t *root;
    TRY(find_header(bytes, n_bytes, path, &header, err));
    TRY(jv_parse(header, path, 0, &root, err));
    struct reader r = {.path = path,
                       .data = bytes + 8 + header.len,
                       .file = file,
                       .names = names,
                       .list = list,
                       .err = err};
    r.n_data_bytes = n_bytes - 8 - header.len;
    size_t first = list->n;
    enum status st = read_entries(&r, root);
    json_decref(root);
    if (st == OK)
        st = check_coverage(&r, first);
    if (st != OK)
        list->n = first;
    return st;
}
