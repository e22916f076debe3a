/* jinja_value.h - values as Python has them, as far as a sandboxed template can tell.
 *
 * A jval is 16 bytes and copied freely; what it points to is in the arena of the render, or in the template
 * for constants, and is never changed once made. (Exceptions, private to one render: the attributes of a
 * namespace, the position of an iterator, a loop, a cycler, a joiner.) Since lists and dicts cannot change,
 * slices share memory, and a value can contain itself only through a namespace.
 *
 * Text is UTF-8; positions and lengths that a template sees count code points. Integers are 64 bits; larger ones that a
 * caller gives count as floats and are printed as they came. What is done with
 * texts is in jinja_str.h, with numbers in jinja_number.h; jinja_format.h writes and reads other forms of values. */
#pragma once

#include "jinja/jinja.h"

enum jkind {
    J_MISSING = 0, // not a value: an argument not given, a variable not set
    J_UNDEFINED,
    J_NONE,
    J_BOOL,
    J_INT,
    J_FLOAT,
    J_STR,
    J_LIST,
    J_TUPLE,
    J_DICT,
    J_RANGE,
    J_VIEW,      // dict.keys(), values(), items()
    J_ITER,      // a generator or other iterator: consumed once, always true, no length
    J_NAMESPACE, // namespace()
    J_LOOP,      // the loop variable
    J_CYCLER,
    J_JOINER,
    J_MACRO,
    J_NATIVE, // a global function, or a method bound to its object
};

struct node;
struct builtin;

typedef struct jval {
    enum jkind kind;
    uint32_t digits; // J_FLOAT: of an integer past 64 bits, which of the render's are its digits (jval_digits); else 0
    union {
        bool b;
        int64_t i;
        double f;
        struct jstr *s;
        struct jseq *seq; // list, tuple
        struct jdict *d;
        struct jrange *range;
        struct jview *view;
        struct jiter *iter;
        struct jnamespace *ns;
        struct jloop *loop;
        struct jcycler *cycler;
        struct jjoiner *joiner;
        struct jmacro *macro;
        struct jnative *native;
        struct jundefined *undef;
    };
} jval;

/* A text that grows at its end: `s ~ x` writes x behind s when nothing else was written there yet, so that
 * building a long text piece by piece costs its length and not its square. */
struct jstr_room {
    char *end, *limit;
};

struct jstr {
    const char *ptr;
    size_t len;
    size_t n_chars; // code points; SIZE_MAX: not counted yet
    struct jstr_room *room;
    bool markup; // Markup of markupsafe: adding plain text to it escapes that
};

struct jseq {
    jval *items; // [n]
    size_t n;
    bool group; // of |groupby: has .grouper and .list
};

struct jdict {
    struct jentry {
        jval key, value;
        uint64_t hash;
    } * entries; // [n] in the order of insertion
    size_t n, cap;
    uint32_t *index; // [n_index] hash table of entry number + 1, once there are more than a few
    size_t n_index;
};

struct jrange {
    int64_t start, stop, step, n;
};

/* Element i; no overflow, whatever start and step are, for every i below n. */
static inline int64_t jrange_at(const struct jrange *r, int64_t i) {
    return (int64_t)((uint64_t)r->start + (uint64_t)i * (uint64_t)r->step);
}

struct jview {
    struct jdict *d;
    enum jview_of { VIEW_KEYS, VIEW_VALUES, VIEW_ITEMS } of;
};

struct jiter {
    bool (*next)(struct jinja *j, struct jiter *it, jval *out); // false at the end
    const char *type;                                           // what Python calls it
    jval source;
    size_t at, n;
    struct jiter *inner; // of one that filters or maps another
    void *state;
};

struct jnamespace {
    struct jdict *d;
    bool printing;
};

struct jcycler {
    struct jseq *items;
    size_t at;
};

struct jjoiner {
    jval separator;
    bool used;
};

/* The loop variable, and what drives the loop: asking whether an item is the last fetches the next one. */
struct jloop {
    jval iterable;
    struct jiter source;
    int64_t index0; // -1 before the first
    int64_t length; // -1: not known yet
    jval after;     // fetched ahead, or J_MISSING
    jval current, before, changed;
    int64_t depth0;
    const struct node *recursive; // NULL: cannot be called
    struct activation *act;       // where a recursive loop's function was defined
};

struct jmacro {
    const struct node *node;
    struct activation *act; // where it was defined
    struct jstr *name;      // NULL: the body of a call block
};

struct jnative {
    const struct builtin *fn;
    jval self; // of a method
};

/* Why something is undefined; the sentence is only made when somebody trips over it. */
struct jundefined {
    const char *hint; // the sentence, if it is known already
    jval obj;         // J_MISSING: a variable
    jval name;
};

// ---- making values ----

static inline jval jval_none(void) { return (jval){.kind = J_NONE}; }
static inline jval jval_missing(void) { return (jval){.kind = J_MISSING}; }
static inline jval jval_bool(bool b) { return (jval){.kind = J_BOOL, .b = b}; }
static inline jval jval_int(int64_t i) { return (jval){.kind = J_INT, .i = i}; }
static inline jval jval_float(double f) { return (jval){.kind = J_FLOAT, .f = f}; }
jval jval_str(struct jinja *j, struct str s);    // copies
jval jval_borrow(struct jinja *j, struct str s); // the bytes outlive the render, or are in the arena
jval jval_markup(struct jinja *j, jval s, bool markup);
jval jval_seq(struct jinja *j, enum jkind list_or_tuple, jval *items, size_t n); // takes items
jval jval_pair(struct jinja *j, jval a, jval b);                                 // a tuple
jval jval_dict(struct jinja *j);
jval jval_iter(struct jinja *j, const struct jiter *it); // copies *it
jval jval_undefined(struct jinja *j, struct str name);
jval jval_undefined_hint(struct jinja *j, const char *hint);
jval jval_undefined_item(struct jinja *j, jval obj, jval name);
jval jval_of_sink(struct jinja *j); // sink_close as a string

/* Leaves with the sentence that Jinja has for this undefined value. */
_Noreturn void jinja_undefined_error(struct jinja *j, jval undefined);
_Noreturn void jinja_type_error(struct jinja *j, const char *format, ...) __attribute__((format(printf, 2, 3)));

const char *jval_type(jval v); // type(v).__name__

static inline bool jval_is_str(jval v) { return v.kind == J_STR; }
static inline bool jval_is_seq(jval v) { return v.kind == J_LIST || v.kind == J_TUPLE; }
static inline bool jval_is_given(jval v) { return v.kind != J_MISSING && v.kind != J_NONE; } // for optional arguments
static inline struct str jval_text(jval v) { return (struct str){v.s->ptr, v.s->len}; }

// ---- lists that grow (jinja_value.c) ----

struct jlist {
    jval *items;
    size_t n, cap;
};
void jlist_push(struct jinja *j, struct jlist *l, jval v);
static inline jval jlist_take(struct jinja *j, struct jlist *l) { return jval_seq(j, J_LIST, l->items, l->n); }

// ---- dicts (jinja_dict.c) ----

void jdict_set(struct jinja *j, struct jdict *d, jval key, jval value); // leaves when key is not hashable
jval *jdict_find(struct jinja *j, const struct jdict *d, jval key);     // NULL when absent
jval *jdict_find_str(const struct jdict *d, struct str key);
jval jdict_copy(struct jinja *j, const struct jdict *d);
uint64_t jval_hash(struct jinja *j, jval v);
bool jval_is_hashable(jval v);

// ---- what all values can do ----

bool jval_true(struct jinja *j, jval v);
bool jval_same(jval a, jval b); // `is`
bool jval_eq(struct jinja *j, jval a, jval b);
enum jorder { ORDER_LT, ORDER_LE, ORDER_GT, ORDER_GE };
bool jval_order(struct jinja *j, enum jorder op, jval a, jval b);
bool jval_in(struct jinja *j, jval item, jval container);
int64_t jval_len(struct jinja *j, jval v);             // leaves when it has none
bool jval_len_if(jval v, struct jinja *j, int64_t *n); // false when it has none

void jinja_emit_str(struct jinja *j, jval v);  // str(v)
void jinja_emit_repr(struct jinja *j, jval v); // repr(v)
void jinja_emit_float(struct jinja *j, double f);
void jinja_emit_ascii(struct jinja *j, jval v); // ascii(v)
jval jval_to_str(struct jinja *j, jval v);      // soft_str: a string stays itself, markup too
jval jval_to_plain(struct jinja *j, jval v);    // str(v): without markup

// ---- iteration (jinja_iter.c) ----

void jiter_of(struct jinja *j, jval v, struct jiter *it); // leaves when v cannot be iterated
bool jval_is_iterable(jval v);
static inline bool jiter_next(struct jinja *j, struct jiter *it, jval *out) {
    jinja_step(j, 1);
    return it->next(j, it, out);
}
jval jval_to_list(struct jinja *j, jval v);  // list(v)
jval jval_reversed(struct jinja *j, jval v); // reversed(v), an iterator; J_MISSING when v cannot be

// ---- the loop variable (jinja_loop.c) ----

bool jloop_next(struct jinja *j, struct jloop *l, jval *out);
int64_t jloop_length(struct jinja *j, struct jloop *l);
jval jloop_getattr(struct jinja *j, struct jloop *l, struct str name); // J_MISSING when there is none

// ---- attributes, items, slices (jinja_access.c) ----

jval jval_getattr(struct jinja *j, jval obj, jval name);
jval jval_getitem(struct jinja *j, jval obj, jval key);
jval jval_slice(struct jinja *j, jval obj, jval start, jval stop, jval step);
