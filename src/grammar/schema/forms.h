/* forms.h - what a node of a schema allows, as a union by type, and the algebra of it. See reader.h.
 *
 * Strings and numbers are regular languages, exactly. An array or object form constrains children by node, so a
 * form is as large as what one schema says, whatever lies below. Forms are made once in the reader's arena and
 * never change. Functions that give bool or a pointer to a form: false, NULL where no value fits for a reason that
 * is seen at once. */
#pragma once

#include "base/json/json.h"
#include "grammar/rx.h"

struct reader;
struct place;
typedef int32_t node_id; // index into reader.nodes

enum { NODE_FALSE = 0, NODE_TRUE = 1 };
enum { UNBOUNDED = -1 }; // of a maximum

/* Numbers as two languages. `value` spells each number in one way (no exponent, no zero behind the last decimal):
 * it can be compared, joined and taken away from. `text`: how they may be written, as 1.50, 1e3. */
struct step { // digits / 10^decimals; digits 0: none
    uint32_t digits;
    int decimals;
};
struct numbers {
    rx_id value, text;
    struct step step;            // all are multiples of it,
    rx_id base_value, base_text; // and are these but for that: steps are joined to one, automata would multiply
};

struct contains {
    node_id node;
    int64_t from, min, max; // of the items from index `from` on, so many fit the node
    bool seen;              // those that fit are evaluated
};

struct array_form {
    const node_id *prefix;
    const bool *seen; // prefix[i] is evaluated, as unevaluatedItems means it
    int64_t n_prefix;
    node_id rest; // items behind the prefix
    bool rest_seen;
    bool unique;
    int64_t min, max;
    const struct contains *contains;
    int n_contains;
};

struct named { // a key that a schema names
    struct str key;
    node_id value; // NODE_FALSE: the key may not be there
    bool required, seen;
};

struct others { // keys that are not named, by language; the languages of a form part all texts among them
    rx_id keys; // may hold named ones: they do not count
    node_id value;
    bool seen;
};

struct some { // at least one key of the language has a value that fits
    rx_id keys;
    node_id value;
};

struct need { // where key `seen` stands, key `needed` must stand too; both are named
    struct str seen, needed;
};

struct object_form {
    const struct named *named; // in the order of the document
    int n_named;
    const struct others *others;
    int n_others;
    const struct some *some;
    int n_some;
    const struct need *needs;
    int n_needs;
    int64_t min, max; // of the number of keys
};

struct forms {
    bool null;
    uint8_t bools; // bit 0 false, bit 1 true
    struct numbers number;
    rx_id string; // of the text that a JSON string says, as UTF-8
    const struct array_form *arrays;
    int n_arrays;
    const struct object_form *objects;
    int n_objects;
    bool inexact; // fewer values than there are: may not be turned round by `not`
};

// numbers.c
void numbers_init(struct reader *r);
struct numbers read_numbers(struct reader *r, const json_t *schema, bool integer);
static inline struct numbers numbers_of(rx_id value, rx_id text) {
    return (struct numbers){value, text, {0, 0}, value, text};
}
struct numbers numbers_and(struct reader *r, struct numbers a, struct numbers b);
struct numbers numbers_of_values(struct reader *r, const json_t *const *values, size_t n);

// languages.c
struct numbers numbers_or(struct reader *r, struct numbers a, struct numbers b);
struct numbers numbers_not(struct reader *r, struct numbers a);
rx_id text_and(struct reader *r, rx_id a, rx_id b);
rx_id text_not(struct reader *r, rx_id a); // texts that are not in a
bool language_is_empty(struct reader *r, rx_id a);

// strings.c, formats.c
rx_id read_strings(struct reader *r, const json_t *schema);
rx_id read_pattern(struct reader *r, struct str pattern);
rx_id read_format(struct reader *r, struct str name); // any text where the format is not enforced

// spell.c: between the quotes of a JSON string, what says a text of the language
rx_id spell(struct reader *r, rx_id text);
rx_id spell_one_way(struct reader *r, rx_id text); // no text in two spellings

// enough.c
enum enough { TOO_FEW, ENOUGH, NOT_KNOWN };
enum enough has_texts(struct rx_pool *rx, rx_id language, int64_t n); // n different ones at least?

// arrays.c
const struct array_form *array_any(struct reader *r);
bool array_is_any(const struct array_form *f);
node_id array_item(const struct array_form *f, int64_t i);
bool array_and(struct reader *r, const struct array_form *a, const struct array_form *b, struct array_form *out);
void array_not(struct reader *r, const struct array_form *a, struct forms *breaks); // sets the arrays of breaks
void array_of_value(struct reader *r, const json_t *value, struct array_form *out);
const struct array_form *array_unevaluated(struct reader *r, const struct array_form *a, node_id schema);
const struct array_form *read_arrays(struct reader *r, const json_t *schema, struct place place);
int64_t max_of_two(int64_t a, int64_t b); // the smaller maximum

// objects.c, properties.c
const struct object_form *object_any(struct reader *r);
bool object_is_any(const struct object_form *f);
bool object_possible(const struct object_form *f);
const struct named *object_named(const struct object_form *f, struct str key); // or NULL
struct named object_key(struct reader *r, const struct object_form *f, struct str key);
rx_id object_unnamed(struct reader *r, const struct object_form *f, rx_id keys); // keys that f does not name
struct object_form object_with(struct reader *r, struct str key, node_id value);
struct object_form object_without(struct reader *r, struct str key);
bool object_and(struct reader *r, const struct object_form *a, const struct object_form *b, struct object_form *out);
void object_not(struct reader *r, const struct object_form *a, struct forms *breaks);
void object_of_value(struct reader *r, const json_t *value, struct object_form *out);
const struct object_form *object_unevaluated(struct reader *r, const struct object_form *a, node_id schema);
const struct object_form *read_objects(struct reader *r, const json_t *schema, struct place place);

// disjoint.c
bool disjoint(struct reader *r, node_id a, node_id b);              // certainly; false: perhaps not
const struct forms *prune(struct reader *r, const struct forms *f); // without forms that certainly no value fits

// algebra.c
const struct forms *forms_none(void);
const struct forms *forms_all(struct reader *r);
const struct forms *forms_of_value(struct reader *r, const json_t *value);
const struct forms *forms_of_values(struct reader *r, const json_t *array);
const struct forms *forms_and(struct reader *r, const struct forms *a, const struct forms *b);
const struct forms *forms_or(struct reader *r, const struct forms *a, const struct forms *b);
const struct forms *forms_not(struct reader *r, const struct forms *a);
