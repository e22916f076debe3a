/* jinja_builtin.h - filters, tests, methods and global functions: everything a template can call that the
 * template did not define itself. Each is a row of a table with its parameters' names, so that arguments are
 * matched to parameters, and misuse is reported, in one place (jinja_call.c). */
#pragma once

#include "jinja/values/jinja_value.h"

enum { MAX_PARAMS = 5 };

struct keyword {
    jval name, value;
};

/* What a call gives, before it is matched to parameters. */
struct jargs {
    jval *positional; // [n]
    size_t n;
    struct keyword *keyword; // [n_keyword]
    size_t n_keyword;
};

/* What a builtin sees. */
struct jcall {
    jval self;            // the value filtered or tested, or the method's object
    jval arg[MAX_PARAMS]; // J_MISSING where not given
    struct jargs rest;    // what the parameters did not take, if the row says that it may
};

enum builtin_flags {
    TAKES_REST = 1,     // more positional arguments
    TAKES_KEYWORDS = 2, // keywords that are no parameters
    POSITIONAL = 4,     // parameters cannot be given by name
};

struct builtin {
    const char *name;
    jval (*run)(struct jinja *j, const struct jcall *c);
    size_t n_required;
    const char *params[MAX_PARAMS];
    int flags;
};

/* A row: name, function, flags, then how many of the parameters are required and their names. */
#define BUILTIN(name, run, flags, n_required, ...) \
    { name, run, n_required, {__VA_ARGS__}, flags }
#define BUILTIN0(name, run) \
    { name, run, 0, {NULL}, 0 } // without parameters

/* NULL when there is none of that name. */
const struct builtin *builtin_filter(struct str name);
const struct builtin *builtin_test(struct str name);
const struct builtin *builtin_method(jval obj, struct str name);
const struct builtin *builtin_global(struct str name);

// ---- for those who write rows ----

static inline bool given(const struct jcall *c, int i) { return jval_is_given(c->arg[i]); } // and not None

/* Leave unless the argument is of the type; `fallback` where it is not given. */
struct str arg_str(struct jinja *j, const struct jcall *c, int i);
int64_t arg_int(struct jinja *j, const struct jcall *c, int i, int64_t fallback);
bool arg_true(struct jinja *j, const struct jcall *c, int i, bool fallback);

const struct builtin *find_builtin(const struct builtin *rows, size_t n, struct str name);

/* An attribute as filters take it: "a.b.0", a number, or nothing. */
struct attr_path {
    jval *parts; // [n]
    size_t n;
    jval fallback; // for what is undefined on the way; J_MISSING: none
};
struct attr_path attr_path_of(struct jinja *j, jval attribute, jval fallback);
jval attr_path_get(struct jinja *j, const struct attr_path *path, jval item);

/* sorted(): stable, by keys[i] for items[i]; both are changed in place. */
void sort_by_keys(struct jinja *j, jval *items, jval *keys, size_t n, bool reverse);

/* What filters and tests share with the methods of str. */
bool str_is_lower(struct jinja *j, struct str s);
bool str_is_upper(struct jinja *j, struct str s);
bool str_is_title(struct jinja *j, struct str s);
bool str_is_identifier(struct jinja *j, struct str s);
bool str_is_ascii(struct jinja *j, struct str s);
bool str_all(struct jinja *j, struct str s, bool (*is)(int32_t cp));
jval str_center(struct jinja *j, jval s, int64_t width, struct str fill);
jval str_strip(struct jinja *j, jval s, const struct jcall *c, bool left,
               bool right); // arg[0]: the characters, or white space
jval str_lines(struct jinja *j, jval s, bool keep_ends);

/* The tables, each beside its functions. */
#define BUILTIN_TABLE(name)             \
    extern const struct builtin name[]; \
    extern const size_t n_##name;
BUILTIN_TABLE(text_filters)
BUILTIN_TABLE(sequence_filters)
BUILTIN_TABLE(lazy_filters)
BUILTIN_TABLE(number_filters)
BUILTIN_TABLE(str_methods)
#undef BUILTIN_TABLE
