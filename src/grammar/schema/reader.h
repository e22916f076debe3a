/* reader.h - how the files of this folder say a JSON Schema among themselves: nodes, and what a node allows.
 *
 * A node is a set of JSON values: a schema of the document, a value, or nodes joined by and, or, not. Equal nodes have
 * one number, so recursion ends, and what a node allows is worked out once, when it is first asked for (node_forms).
 *
 *   refs.c        where a $ref leads
 *   node.c        nodes, each once
 *   node_forms.c  what a node allows, as forms (forms.h)
 *   read.c        the keywords of a schema; by type numbers.c, strings.c, formats.c, arrays.c, properties.c
 *   algebra.c     and, or, not of forms, with languages.c, arrays.c and objects.c
 *   disjoint.c    what two nodes certainly do not share
 *   emit*.c       forms as nodes of ir.h; spell.c: texts as JSON strings
 *
 * The first refusal is kept, and from then on every function returns quickly with something harmless (`refused`). */
#pragma once

#include "base/arena.h"
#include "base/json/json.h"
#include "grammar/front.h"
#include "grammar/schema/forms.h"

enum node_kind { KIND_FALSE, KIND_TRUE, KIND_SCHEMA, KIND_VALUE, KIND_AND, KIND_OR, KIND_NOT };

/* Where a schema stands: what its relative references are relative to, and through which resources it was reached. */
struct place {
    int base;  // index of reader.resources
    int scope; // index of reader.scopes; 0 where no $dynamicRef is in the document
};

struct node {
    enum node_kind kind;
    const json_t *json; // of KIND_SCHEMA and KIND_VALUE
    struct place place;
    const node_id *args;
    int n_args;
    const struct forms *forms; // NULL: not worked out yet
    bool working;              // is being worked out: a $ref that leads here leads to itself
};

struct resource {
    struct str uri; // absolute, without a fragment; "" for a document without $id
    const json_t *root;
    int draft; // 4, 6, 7, 2019, 2020
};

struct anchor {
    int resource;
    struct str name;
    const json_t *json;
    bool dynamic;
};

struct scope {
    int outer, resource;
};

struct emitted {
    ir_id ir;
    bool done;
};

enum { READER_FORMATS = 13 };

struct reader {
    struct arena arena;
    struct ir *ir;
    struct grammar_style style;
    const json_t *document;
    struct node *nodes;
    int n_nodes, cap_nodes;
    node_id *slots; // hash table of nodes
    int n_slots;
    struct resource *resources;
    int n_resources, cap_resources;
    struct anchor *anchors;
    int n_anchors, cap_anchors;
    struct scope *scopes;
    int n_scopes, cap_scopes;
    bool has_dynamic, has_unevaluated;
    struct emitted *emitted; // by node
    int cap_emitted;
    node_id *todo; // rules that are not defined yet
    int n_todo, cap_todo;
    rx_id space, comma, colon;
    rx_id *spelled[2]; // by rx_id, 0: not made yet; [1]: with every spelling of any character
    uint32_t cap_spelled[2];
    rx_id any_char_spelled;
    rx_id formats[READER_FORMATS]; // 0: not made yet
    const json_t *current;         // the schema that is being read or emitted, for refusals
    int depth, joins;              // of node_forms and node_schema within themselves
    size_t work;                   // steps taken, of MAX_WORK
    int trying;                    // node_try calls: a refusal in one is no refusal, but makes it give up
    bool gave_up;                  // it did
    enum status status;
    struct error *err;
    struct numbers any_number, integers, wholes; // wholes: 1.0 too
    rx_id plain_numbers;                         // any_number.text without exponents
    rx_id short_numbers;                         // whole, or of 15 digits, which a double keeps
    rx_id any_char, any_text;
    const struct forms *all;
};

enum {
    MAX_DEPTH = 400,    // of nodes that are being worked out inside one another
    MAX_FORMS = 2048,   // arrays or objects of one node
    MAX_WORK = 2000000, // forms joined, keys compared
    MAX_ARENA_BYTES = 128 << 20,
};

/* Keeps the first refusal. */
void reader_refuse(struct reader *r, enum status status, const char *format, ...)
    __attribute__((format(printf, 3, 4), cold));
static inline bool refused(const struct reader *r) { return r->status != OK || r->gave_up; }

/* Counts n steps; refuses past MAX_WORK, or when memory is. */
void reader_work(struct reader *r, size_t n);

/* A whole number from 0 on; `fallback` where there is none. */
int64_t reader_count(struct reader *r, const json_t *schema, const char *key, int64_t fallback);

static inline void copy_bytes(void *to, const void *from, size_t n) {
    if (n > 0) // an empty list has no address
        memcpy(to, from, n);
}

// refs.c
void refs_index(struct reader *r); // finds resources and anchors
/* The schema that reference `ref`, read at `at`, leads to; NULL (refused) where there is none. *place becomes its
 * place. */
const json_t *refs_find(struct reader *r, const char *keyword, struct str ref, struct place at, struct place *place);
const json_t *refs_find_dynamic(struct reader *r, struct str ref, struct place at, struct place *place);
const json_t *refs_find_recursive(struct reader *r, struct place at, struct place *place);
/* The place of schema `json`, which stands in one of place `outer`. */
struct place refs_place(struct reader *r, const json_t *json, struct place outer);

// node.c
void nodes_init(struct reader *r);
node_id node_schema(struct reader *r, const json_t *json, struct place outer);
node_id node_value(struct reader *r, const json_t *value);
node_id node_and(struct reader *r, node_id a, node_id b);
node_id node_or(struct reader *r, node_id a, node_id b);
node_id node_not(struct reader *r, node_id a);

// node_forms.c
const struct forms *node_forms(struct reader *r, node_id id); // never NULL
const struct forms *node_try(struct reader *r, node_id id);   // NULL where it is not known yet, or refused

// read.c
const struct forms *read_schema(struct reader *r, const json_t *schema, struct place place);

// emit.c
ir_id emit_schema(struct reader *r, node_id root);
