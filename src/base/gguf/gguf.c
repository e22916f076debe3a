/* gguf.c - see gguf.h: the bytes of the header, each length checked before it is followed. */
#include "base/gguf/gguf.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { MAX_KEYS = 1 << 16, MAX_KEY_BYTES = 65535, MAX_NAME_BYTES = 255, LEAST_TENSOR_BYTES = 24, USUAL_ALIGNMENT = 32 };

static const int item_bytes[N_GGUF_TYPES] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};

struct reader {
    const char *path, *begin, *at, *end;
    struct error *err;
};

static uint64_t load_le(const char *p, int n) {
    uint64_t v = 0;
    for (int i = n - 1; i >= 0; i--)
        v = v << 8 | (unsigned char)p[i];
    return v;
}

/* ---- pieces ---- */

static size_t left(const struct reader *r) { return (size_t)(r->end - r->at); }

static enum status cut_short(const struct reader *r, const char *what) {
    return fail(r->err, ERR_FORMAT, "%s: ends within %s: the file is cut short or is no GGUF file", r->path, what);
}

static enum status take_number(struct reader *r, int n_bytes, const char *what, uint64_t *out) {
    if (left(r) < (size_t)n_bytes)
        return cut_short(r, what);
    *out = load_le(r->at, n_bytes);
    r->at += n_bytes;
    return OK;
}

static enum status take_string(struct reader *r, const char *what, struct str *out) {
    uint64_t n = 0;
    TRY(take_number(r, 8, what, &n));
    if (n > left(r))
        return cut_short(r, what);
    *out = (struct str){r->at, (size_t)n};
    r->at += n;
    return OK;
}

/* A key or a tensor's name. */
static enum status take_name(struct reader *r, const char *what, size_t max_bytes, struct str *out) {
    TRY(take_string(r, what, out));
    if (out->len == 0 || out->len > max_bytes)
        return fail(r->err, ERR_FORMAT, "%s: %s has %zu bytes, it must have 1 to %zu", r->path, what, out->len,
                    max_bytes);
    if (!utf8_valid(*out) || memchr(out->ptr, '\0', out->len))
        return fail(r->err, ERR_FORMAT, "%s: %s \"%.*s\" is not text in UTF-8", r->path, what, (int)MIN(out->len, 60),
                    out->ptr);
    return OK;
}

/* ---- metadata ---- */

static enum status take_items(struct reader *r, struct gguf_value *v) {
    int size = item_bytes[v->type];
    v->at = r->at;
    if (v->n > left(r) / (size_t)(size ? size : 8))
        return fail(r->err, ERR_FORMAT, "%s: %.*s has %llu items, which go past the end of the file", r->path,
                    STR_ARG(v->key), (unsigned long long)v->n);
    struct str skipped;
    for (uint64_t i = 0; size == 0 && i < v->n; i++)
        TRY(take_string(r, "a string of the metadata", &skipped));
    r->at += v->n * (uint64_t)size;
    v->end = r->at;
    return OK;
}

static enum status check_type(const struct reader *r, const struct gguf_value *v, uint64_t type) {
    if (type >= N_GGUF_TYPES)
        return fail(r->err, ERR_FORMAT, "%s: %.*s has the type %llu, which is not known", r->path, STR_ARG(v->key),
                    (unsigned long long)type);
    if (v->is_array && type == GGUF_ARRAY)
        return fail(r->err, ERR_UNSUPPORTED, "%s: %.*s is an array of arrays, which is not supported", r->path,
                    STR_ARG(v->key));
    return OK;
}

static enum status take_value(struct reader *r, struct gguf_value *v) {
    uint64_t type = 0;
    *v = (struct gguf_value){.n = 1};
    TRY(take_name(r, "a key of the metadata", MAX_KEY_BYTES, &v->key));
    TRY(take_number(r, 4, "the metadata", &type));
    TRY(check_type(r, v, type));
    v->is_array = type == GGUF_ARRAY;
    if (v->is_array) {
        TRY(take_number(r, 4, "the metadata", &type));
        TRY(check_type(r, v, type));
        TRY(take_number(r, 8, "the metadata", &v->n));
    }
    v->type = (enum gguf_type)type;
    return take_items(r, v);
}

static int compare_str(struct str a, struct str b) {
    int order = memcmp(a.ptr, b.ptr, MIN(a.len, b.len));
    return order ? order : (a.len > b.len) - (a.len < b.len);
}

static int by_key(const void *a, const void *b) {
    return compare_str(((const struct gguf_value *)a)->key, ((const struct gguf_value *)b)->key);
}

static enum status take_values(struct reader *r, struct gguf *g, uint64_t n) {
    if (n > MAX_KEYS)
        return fail(r->err, ERR_LIMIT, "%s: has %llu keys of metadata, the limit is %d", r->path, (unsigned long long)n,
                    MAX_KEYS);
    g->values = xcalloc((size_t)n + 1, sizeof *g->values);
    for (; g->n_values < n; g->n_values++)
        TRY(take_value(r, &g->values[g->n_values]));
    qsort(g->values, g->n_values, sizeof *g->values, by_key);
    for (size_t i = 1; i < g->n_values; i++)
        if (str_eq(g->values[i - 1].key, g->values[i].key))
            return fail(r->err, ERR_FORMAT, "%s: the key %.*s is there twice", r->path, STR_ARG(g->values[i].key));
    return OK;
}

/* ---- tensors ---- */

static enum status take_tensor(struct reader *r, const struct gguf *g, struct gguf_tensor *t) {
    uint64_t n = 0, type = 0;
    *t = (struct gguf_tensor){0};
    TRY(take_name(r, "a tensor's name", MAX_NAME_BYTES, &t->name));
    TRY(take_number(r, 4, "the table of tensors", &n));
    if (n > GGUF_MAX_DIMS)
        return fail(r->err, ERR_FORMAT, "%s: tensor %.*s has %llu dimensions, at most %d are possible", r->path,
                    STR_ARG(t->name), (unsigned long long)n, GGUF_MAX_DIMS);
    for (; t->n_dims < (int)n; t->n_dims++) {
        TRY(take_number(r, 8, "the table of tensors", &t->dims[t->n_dims]));
        if (t->dims[t->n_dims] > INT64_MAX)
            return fail(r->err, ERR_FORMAT, "%s: tensor %.*s has a dimension of more than 63 bits", r->path,
                        STR_ARG(t->name));
        if (t->dims[t->n_dims] == 0)
            return fail(r->err, ERR_FORMAT, "%s: tensor %.*s has a dimension of 0", r->path, STR_ARG(t->name));
    }
    TRY(take_number(r, 4, "the table of tensors", &type));
    t->type = (uint32_t)type;
    TRY(take_number(r, 8, "the table of tensors", &t->offset));
    if (t->offset % g->alignment)
        return fail(r->err, ERR_FORMAT, "%s: tensor %.*s begins at byte %llu of the data, no multiple of %llu", r->path,
                    STR_ARG(t->name), (unsigned long long)t->offset, (unsigned long long)g->alignment);
    return OK;
}

static enum status take_tensors(struct reader *r, struct gguf *g, uint64_t n) {
    if (n > left(r) / LEAST_TENSOR_BYTES)
        return cut_short(r, "the table of tensors");
    g->tensors = xcalloc((size_t)n + 1, sizeof *g->tensors);
    for (; g->n_tensors < n; g->n_tensors++)
        TRY(take_tensor(r, g, &g->tensors[g->n_tensors]));
    return OK;
}

/* ---- the file ---- */

static enum status take_head(struct reader *r, struct gguf *g, uint64_t *n_tensors, uint64_t *n_keys) {
    if (str_starts((struct str){r->at, left(r)}, STR("version https://git-lfs")))
        return fail(r->err, ERR_FORMAT, "%s: is a Git LFS pointer, not the file itself: run git lfs pull in its folder",
                    r->path);
    if (left(r) > 0 && r->at[0] == '<')
        return fail(r->err, ERR_FORMAT,
                    "%s: looks like a web page and is no GGUF file: fetch the file that the page tells of", r->path);
    if (!str_starts((struct str){r->at, left(r)}, STR("GGUF")))
        return fail(r->err, ERR_FORMAT, "%s: does not begin with GGUF, so it is no GGUF file", r->path);
    r->at += 4;
    uint64_t version = 0;
    TRY(take_number(r, 4, "the header", &version));
    if (version != 2 && version != 3)
        return fail(r->err, ERR_UNSUPPORTED,
                    version & 0xFFFF ? "%s: is GGUF version %u, gyre reads 2 and 3"
                                     : "%s: is a big-endian GGUF file (version %u), which gyre does not read",
                    r->path, (unsigned)version);
    g->version = (uint32_t)version;
    TRY(take_number(r, 8, "the header", n_tensors));
    return take_number(r, 8, "the header", n_keys);
}

static enum status find_alignment(struct gguf *g, struct error *err) {
    int64_t n;
    TRY(gguf_int_or(g, "general.alignment", 1, 1 << 30, USUAL_ALIGNMENT, &n, err));
    if (n & (n - 1))
        return fail(err, ERR_FORMAT, "%s: general.alignment is %lld, it must be a power of two", g->path, (long long)n);
    g->alignment = (uint64_t)n;
    return OK;
}

static enum status parse(struct reader *r, struct gguf *g) {
    uint64_t n_tensors = 0, n_keys = 0;
    TRY(take_head(r, g, &n_tensors, &n_keys));
    TRY(take_values(r, g, n_keys));
    TRY(find_alignment(g, r->err));
    TRY(take_tensors(r, g, n_tensors));
    size_t used = (size_t)(r->at - r->begin), beyond = used % g->alignment;
    g->data_begin = used + MIN(beyond ? (size_t)g->alignment - beyond : 0, left(r));
    return OK;
}

enum status gguf_parse(const char *bytes, size_t n_bytes, const char *path, struct gguf *out, struct error *err) {
    *out = (struct gguf){.path = path, .map = {.slot = -1}};
    struct reader r = {.path = path, .begin = bytes, .at = bytes, .end = bytes + n_bytes, .err = err};
    enum status st = parse(&r, out);
    if (st != OK)
        gguf_release(out);
    return st;
}

enum status gguf_open(const char *path, struct gguf *out, struct error *err) {
    struct file_map map;
    *out = (struct gguf){.map = {.slot = -1}};
    TRY(file_map_open(&map, path, 0, err));
    enum status st = gguf_parse(map.bytes, map.n_bytes, path, out, err);
    if (file_map_damaged(&map)) {
        gguf_release(out);
        st = fail(err, ERR_IO, "%s: the file became shorter while it was read", path);
    }
    if (st == OK)
        out->map = map;
    else
        file_map_close(&map);
    return st;
}

void gguf_release(struct gguf *g) {
    free(g->values);
    free(g->tensors);
    file_map_close(&g->map);
    *g = (struct gguf){.map = {.slot = -1}};
}

bool gguf_is(const char *path) {
    char head[4] = {0};
    FILE *f = fopen(path, "rb");
    size_t n = f ? fread(head, 1, sizeof head, f) : 0;
    if (f)
        fclose(f);
    return n == sizeof head && memcmp(head, "GGUF", sizeof head) == 0;
}

/* ---- values ---- */

const struct gguf_value *gguf_get(const struct gguf *g, const char *key) {
    struct gguf_value wanted = {.key = str_of(key)};
    return g->n_values ? bsearch(&wanted, g->values, g->n_values, sizeof wanted, by_key) : NULL;
}

bool gguf_is_int(enum gguf_type t) { return t != GGUF_STRING && t != GGUF_ARRAY && t != GGUF_F32 && t != GGUF_F64; }

int64_t gguf_item_int(const struct gguf_value *v, uint64_t i) {
    int size = item_bytes[v->type];
    uint64_t u = load_le(v->at + i * (uint64_t)size, size);
    switch (v->type) {
    case GGUF_I8: return (int8_t)u;
    case GGUF_I16: return (int16_t)u;
    case GGUF_I32: return (int32_t)u;
    case GGUF_I64: return (int64_t)u;
    default: return u > INT64_MAX ? INT64_MAX : (int64_t)u;
    }
}

double gguf_item_real(const struct gguf_value *v, uint64_t i) {
    float f;
    double d;
    switch (v->type) {
    case GGUF_F32: memcpy(&f, v->at + i * sizeof f, sizeof f); return (double)f;
    case GGUF_F64: memcpy(&d, v->at + i * sizeof d, sizeof d); return d;
    default: return (double)gguf_item_int(v, i);
    }
}

struct str gguf_next_string(const char **at, const char *end) {
    size_t room = (size_t)(end - *at);
    uint64_t n = room < 8 ? 0 : load_le(*at, 8);
    if (room < 8 || n > room - 8) {
        *at = end;
        return STR("");
    }
    struct str s = {*at + 8, (size_t)n};
    *at = s.ptr + s.len;
    return s;
}

enum kind { KIND_STRING, KIND_INT, KIND_REAL, KIND_BOOL };
static const char *const kind_names[] = {"a text", "a whole number", "a number", "true or false"};
static const char *const array_names[] = {"an array of texts", "an array of whole numbers", "an array of numbers", ""};

static bool is_kind(enum gguf_type t, enum kind kind) {
    switch (kind) {
    case KIND_STRING: return t == GGUF_STRING;
    case KIND_INT: return gguf_is_int(t) && t != GGUF_BOOL;
    case KIND_REAL: return t != GGUF_STRING && t != GGUF_BOOL;
    case KIND_BOOL: return t == GGUF_BOOL || t == GGUF_U8;
    }
    return false;
}

/* The value of a key; NULL in *out where it is missing. */
static enum status find_kind(const struct gguf *g, const char *key, enum kind kind, bool is_array,
                             const struct gguf_value **out, struct error *err) {
    const struct gguf_value *v = gguf_get(g, key);
    *out = v;
    if (!v || (v->is_array == is_array && is_kind(v->type, kind)))
        return OK;
    return fail(err, ERR_FORMAT, "%s: %s must be %s", g->path, key, is_array ? array_names[kind] : kind_names[kind]);
}

static enum status missing(const struct gguf *g, const char *key, struct error *err) {
    return fail(err, ERR_FORMAT, "%s: the key %s is missing", g->path, key);
}

enum status gguf_string_or(const struct gguf *g, const char *key, struct str fallback, struct str *out,
                           struct error *err) {
    const struct gguf_value *v;
    TRY(find_kind(g, key, KIND_STRING, false, &v, err));
    const char *at = v ? v->at : NULL;
    *out = v ? gguf_next_string(&at, v->end) : fallback;
    return OK;
}

enum status gguf_string(const struct gguf *g, const char *key, struct str *out, struct error *err) {
    return gguf_get(g, key) ? gguf_string_or(g, key, STR(""), out, err) : missing(g, key, err);
}

enum status gguf_int_or(const struct gguf *g, const char *key, int64_t min, int64_t max, int64_t fallback, int64_t *out,
                        struct error *err) {
    const struct gguf_value *v;
    TRY(find_kind(g, key, KIND_INT, false, &v, err));
    *out = v ? gguf_item_int(v, 0) : fallback;
    if (v && (*out < min || *out > max))
        return fail(err, ERR_FORMAT, "%s: %s is %lld, it must be from %lld to %lld", g->path, key, (long long)*out,
                    (long long)min, (long long)max);
    return OK;
}

enum status gguf_int(const struct gguf *g, const char *key, int64_t min, int64_t max, int64_t *out, struct error *err) {
    return gguf_get(g, key) ? gguf_int_or(g, key, min, max, 0, out, err) : missing(g, key, err);
}

enum status gguf_real_or(const struct gguf *g, const char *key, double fallback, double *out, struct error *err) {
    const struct gguf_value *v;
    TRY(find_kind(g, key, KIND_REAL, false, &v, err));
    *out = v ? gguf_item_real(v, 0) : fallback;
    return isfinite(*out) ? OK : fail(err, ERR_FORMAT, "%s: %s is not finite", g->path, key);
}

enum status gguf_bool_or(const struct gguf *g, const char *key, bool fallback, bool *out, struct error *err) {
    const struct gguf_value *v;
    TRY(find_kind(g, key, KIND_BOOL, false, &v, err));
    *out = v ? gguf_item_int(v, 0) != 0 : fallback;
    return OK;
}

enum status gguf_strings(const struct gguf *g, const char *key, const struct gguf_value **out, struct error *err) {
    return find_kind(g, key, KIND_STRING, true, out, err);
}

enum status gguf_ints(const struct gguf *g, const char *key, const struct gguf_value **out, struct error *err) {
    return find_kind(g, key, KIND_INT, true, out, err);
}

enum status gguf_reals(const struct gguf *g, const char *key, const struct gguf_value **out, struct error *err) {
    return find_kind(g, key, KIND_REAL, true, out, err);
}
