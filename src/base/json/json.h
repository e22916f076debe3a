/* json.h - reading JSON from outside, over jansson, with errors that name the file and the field.
 *
 * jansson's json_t is used as it is (json_object_get, json_array_foreach ...). What is added here is loading with
 * bounds and typed getters whose failure is a sentence. `where` in every getter is what the user knows the value by,
 * usually the file's path.
 *
 * Numbers: integers are 64-bit; anything with a '.' or exponent is a real, and so is an integer past that (the
 * model_max_length of many tokenizer_config.json files is 10^30). jv_int takes a real that is whole and fits. What such
 * reals leave out of the text, struct jv_numbers keeps. Objects keep their order.
 *
 * Bounds: depth is limited to JSON_READER_DEPTH, and what the values take of memory beside the bytes of strings to
 * JV_MAX_BYTES, or to what the caller says: 3 bytes of a text, `{},`, become 270. */
#pragma once

#include "base/status.h"
#include "base/str.h"

#include <jansson.h>

enum jv_flags {
    JV_ALLOW_DUPLICATES = 1, // the last of two equal keys wins, as in browsers; otherwise an error
    JV_PYTHON = 2,           // NaN, Infinity and -Infinity, as Python's json writes them, are strings of these names
};

/* As they were written: integers past 64 bits, and numbers past a double (1e400, whose value is then the largest one
 * there is). Of one thread at a time. */
struct jv_numbers {
    struct jv_number {
        json_t *value; // a real; a reference of the table's own
        char *text;
    } * at; // [n]
    size_t n, capacity;
    bool sorted;
};

/* The text of a value that is in the table, borrowed from it. all may be NULL: a table of none. */
bool jv_numbers_find(struct jv_numbers *all, const json_t *value, struct str *text);
void jv_numbers_release(struct jv_numbers *all);

enum { JV_MAX_BYTES = 256 << 20 }; // about 5 million numbers, or 900,000 objects

/* From here on an allocation of jansson's that fails ends the alloc_scope (guard.h), if there is one, but for those of
 * jv_parse. */
void jv_use_scopes(void);

/* Parses one JSON text (any type at the root). On success *out is owned by the caller (json_decref). ERR_FORMAT for a
 * text that is not JSON, with its line and column; ERR_LIMIT for too many values; ERR_MEMORY where there was none for
 * them. */
enum status jv_parse(struct str text, const char *where, int flags, json_t **out, struct error *err);

/* The same where the values may take *budget bytes, which becomes what they leave of it. */
enum status jv_parse_within(struct str text, const char *where, int flags, size_t *budget, json_t **out,
                            struct error *err);

/* The same, which adds to *numbers what belongs there. With none, a number past a double is ERR_FORMAT. */
enum status jv_parse_numbers(struct str text, const char *where, int flags, size_t *budget, struct jv_numbers *numbers,
                             json_t **out, struct error *err);

/* A text that may be JSON, for a look at what it says; NULL where it is none, or its values would take more than
 * JV_LOOK_BYTES. The last of two equal keys wins. */
enum { JV_LOOK_BYTES = 64 << 20 };
json_t *jv_look(struct str text);

/* Reads and parses a file of at most max_bytes. */
enum status jv_load(const char *path, size_t max_bytes, int flags, json_t **out, struct error *err);

/* Whether value is an integer, or a real that is whole (1.0, 1e6: JavaScript knows no other), and fits into 64 bits. */
bool jv_whole(const json_t *value, int64_t *out);

/* obj[key] must be whole and in [min, max]. Missing or null: *out = fallback for _or; an error for the other. */
enum status jv_int(const json_t *obj, const char *where, const char *key, int64_t min, int64_t max, int64_t *out,
                   struct error *err);
enum status jv_int_or(const json_t *obj, const char *where, const char *key, int64_t min, int64_t max, int64_t fallback,
                      int64_t *out, struct error *err);

/* obj[key] must be a finite number. */
enum status jv_real(const json_t *obj, const char *where, const char *key, double *out, struct error *err);
enum status jv_real_or(const json_t *obj, const char *where, const char *key, double fallback, double *out,
                       struct error *err);

enum status jv_bool_or(const json_t *obj, const char *where, const char *key, bool fallback, bool *out,
                       struct error *err);

/* The string is borrowed from obj. Strings with a NUL byte are refused. */
enum status jv_string(const json_t *obj, const char *where, const char *key, const char **out, struct error *err);
enum status jv_string_or(const json_t *obj, const char *where, const char *key, const char *fallback, const char **out,
                         struct error *err);

/* *out is NULL when the key is missing or null; an error when it is there with another type. */
enum status jv_object_or_null(const json_t *obj, const char *where, const char *key, json_t **out, struct error *err);
enum status jv_array_or_null(const json_t *obj, const char *where, const char *key, json_t **out, struct error *err);

/* "an object", "a string" ...: for sentences. */
const char *jv_type_name(const json_t *value);
