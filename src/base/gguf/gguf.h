/* gguf.h - the header of a GGUF file (versions 2 and 3): metadata by key, and the table of tensors.
 *
 *     0        4          8             16       24
 *     | "GGUF" | version  | n_tensors   | n_keys | keys and values | names, shapes, types, offsets | pad | data |
 *
 *     key      string, type u32, value          string  n u64, n bytes          array  type u32, n u64, n items
 *     tensor   name string, n_dims u32, dims u64 each, type u32, offset u64 from the beginning of data
 *
 * All numbers are little-endian. data begins at the next multiple of general.alignment (32 where the key is missing).
 * A key is looked up by its name, a value read by one of the functions below, whose errors name file and key.
 *
 * Refused, each with one sentence: other versions and big-endian files; counts and lengths past the end of the file;
 * a key or tensor that is empty, twice there, or has bytes that are no UTF-8 or zero; types that are not known; arrays
 * of arrays; more than 4 dimensions; an alignment that is no power of two, an offset that is no multiple of it.
 * What a tensor's type means, and whether its data are in the file, is the room file's matter. */
#pragma once

#include "base/file.h"

enum gguf_type {
    GGUF_U8,
    GGUF_I8,
    GGUF_U16,
    GGUF_I16,
    GGUF_U32,
    GGUF_I32,
    GGUF_F32,
    GGUF_BOOL,
    GGUF_STRING,
    GGUF_ARRAY,
    GGUF_U64,
    GGUF_I64,
    GGUF_F64,
    N_GGUF_TYPES
};

struct gguf_value {
    struct str key;
    enum gguf_type type; // of an array: that of its items
    bool is_array;
    uint64_t n;      // items; 1 where it is no array
    const char *at;  // the first item
    const char *end; // behind the last
};

enum { GGUF_MAX_DIMS = 4 };

struct gguf_tensor {
    struct str name;
    int n_dims;
    uint64_t dims[GGUF_MAX_DIMS]; // innermost first; each from 1 to INT64_MAX
    uint32_t type;
    uint64_t offset; // from data_begin
};

struct gguf {
    const char *path;
    uint32_t version;
    uint64_t alignment;
    size_t data_begin; // at most the file's size
    struct gguf_value *values;
    size_t n_values; // sorted by key
    struct gguf_tensor *tensors;
    size_t n_tensors;    // in the order of the file
    struct file_map map; // of gguf_open
};

/* Everything in *out points into the bytes, which with `path` outlive it. gguf_open maps the file and keeps the path's
 * pointer. After an error *out is empty. O(bytes of the header). */
enum status gguf_parse(const char *bytes, size_t n_bytes, const char *path, struct gguf *out, struct error *err);
enum status gguf_open(const char *path, struct gguf *out, struct error *err);
void gguf_release(struct gguf *g); // an empty one is fine

/* Whether the file begins as GGUF files do; false for one that cannot be read. */
bool gguf_is(const char *path);

const struct gguf_value *gguf_get(const struct gguf *g, const char *key); // NULL when there is none

/* A value of the right kind, and in the bounds; a missing one is `fallback` in the functions _or, else ERR_FORMAT.
 * Whole numbers of any type are read as such, and floats of both sizes. */
enum status gguf_string(const struct gguf *g, const char *key, struct str *out, struct error *err);
enum status gguf_string_or(const struct gguf *g, const char *key, struct str fallback, struct str *out,
                           struct error *err);
enum status gguf_int(const struct gguf *g, const char *key, int64_t min, int64_t max, int64_t *out, struct error *err);
enum status gguf_int_or(const struct gguf *g, const char *key, int64_t min, int64_t max, int64_t fallback, int64_t *out,
                        struct error *err);
enum status gguf_real_or(const struct gguf *g, const char *key, double fallback, double *out, struct error *err);
enum status gguf_bool_or(const struct gguf *g, const char *key, bool fallback, bool *out, struct error *err);

/* Arrays: NULL in *out when there is none. The items are strings, whole numbers or floats, as the function says. */
enum status gguf_strings(const struct gguf *g, const char *key, const struct gguf_value **out, struct error *err);
enum status gguf_ints(const struct gguf *g, const char *key, const struct gguf_value **out, struct error *err);
enum status gguf_reals(const struct gguf *g, const char *key, const struct gguf_value **out, struct error *err);

int64_t gguf_item_int(const struct gguf_value *v, uint64_t i); // i < n; beyond INT64_MAX: INT64_MAX
double gguf_item_real(const struct gguf_value *v, uint64_t i);
bool gguf_is_int(enum gguf_type type); // whole numbers and truth values

/* The string at *at, which begins as v->at and goes behind it; end: v->end. A file that is written while it is mapped
 * may have other lengths than were checked: what goes past the end is an empty string, and so is all behind it. */
struct str gguf_next_string(const char **at, const char *end);
