/* tool_value.h - values of tagged arguments, which become JSON by the tool's schema. For this folder and tools/. */
#pragma once

#include "base/buf.h"
#include "base/json/json.h"

enum {
    TYPE_STRING = 1,
    TYPE_NUMBER = 2,
    TYPE_BOOL = 4,
    TYPE_NULL = 8,
    TYPE_ARRAY = 16,
    TYPE_OBJECT = 32,
    TYPE_ALL = 63
};

/* References and alternatives make of a short schema very many: 30 references to itself, 8 deep, are 30^8. */
enum { MAX_SCHEMA_VISITS = 2000 };

/* What a schema lets a value be; NULL, or more alternatives than MAX_SCHEMA_VISITS: anything. root is the parameters'
 * schema, which has the definitions. */
int value_types(const json_t *schema, const json_t *root);

/* The same as one of many looks: *n_left, the schemas that all of them may visit, falls, below 0 where that is more. */
int value_types_of(const json_t *schema, const json_t *root, int64_t *n_left);

/* What a reference leads to: "#" is root, "#/$defs/A" and "#/properties/a" are within. NULL: nothing. */
const json_t *value_referred(const json_t *ref, const json_t *root);

/* The schema that a reference stands for, or one behind the other, up to 8; itself, where it is none. NULL: nothing. */
const json_t *value_schema(const json_t *schema, const json_t *root);

/* Appends what text says as JSON, of those types: JSON, or a literal of Python. false: it is none of these, and a
 * string where one may be. */
bool value_put(struct str text, int types, struct buf *out);

/* A look for the end of a value. */
struct value_end {
    size_t looked; // bytes that need no other look
    int n_open;    // elements of that name within it
};

/* Where the value at the beginning of text ends, before its close: `open` and `close` are marks around an element of
 * its key. Goes on from *end, as text grows. NOT_FOUND: not in text. Where open is empty close ends it anywhere. */
size_t value_find_end(struct str text, struct str open, struct str close, struct value_end *end);

/* Appends a value whose parts are elements of their own, mark<name>...mark</name>, as JSON: an array of elements
 * `item`, or where the schema says array; otherwise an object, in which what stands twice is an array. open is "mark<".
 * false: it is not made of elements alone, or of too many levels. */
bool value_put_elements(struct str text, struct str open, const json_t *schema, const json_t *root, struct buf *out);
