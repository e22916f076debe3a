/* json.h - reading JSON from outside, over jansson, with errors that name the file and the field.
 *
 * jansson's json_t is used as it is (json_object_get, json_array_foreach ...). What is added here is loading with
 * bounds and typed getters whose failure is a sentence. `where` in every getter is what the user knows the value by,
 * usually the file's path.
 *
 * Numbers: integers are 64-bit; anything with a '.' or exponent is a real, and so is an integer past that (the
 * model_max_length of many tokenizer_config.json files is 10^30). jv_int takes a real that is whole and fits. Objects
 * keep their order.
 *
 * Bounds: depth is limited to JSON_READER_DEPTH, and what the values take of memory beside the bytes of strings to
 * JV_MAX_BYTES, or to what the caller says: 3 bytes of a text, `{},`, become 270. */
#pragma once

#include "base/status.h"
#include "base/str.h"

#include <jansson.h>

enum jv_flags {
    JV_ALLOW_DUPLICATES = 1, // the last of two equal keys wins, as in browsers; otherwise an error
    JV_KEEP_DIGITS = 2,      // an integer past 64 bits is not a real, but what jv_digits knows
};

/* Whether value is an integer that was too large, which JV_KEEP_DIGITS keeps: its digits, with the sign. To jansson it
 * is a string, of bytes that no string of a JSON text has; it cannot be written as JSON again. */
bool jv_digits(const json_t *value, struct str *digits);

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

/* A text that may be JSON, for a look at what it says; NULL where it is none, or its values would take more than
 * JV_LOOK_BYTES. The last of two equal keys wins. */
enum { JV_LOOK_BYTES = 64 << 20 };
json_t *jv_look(struct str text);

/* Reads and parses a file of at most max_bytes. */
enum status jv_load(const char *path, size_t max_bytes, int flags, json_t **out, struct error *err);

/* obj[key] must be an integer in [min, max] (a real with an integral value is accepted: 1e6 is met in
 * the wild). Missing or null: *out = fallback for _or; an error for the other. */
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
