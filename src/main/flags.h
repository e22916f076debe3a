/* flags.h - the command line of a verb: a table of flags, parsed, explained and completed from one place.
 *
 *     struct { const char *prompt; int64_t n_tokens; double temperature; bool chat; struct flag_list stop; } o = {.n_tokens = 256};
 *     const struct flag flags[] = {
 *         {"prompt", 'p', FLAG_STRING, &o.prompt, "TEXT", "Input", "the prompt"},
 *         {"n-tokens", 'n', FLAG_INT, &o.n_tokens, "N", "Output", "stop after N tokens", .min = 0, .max = 1e9},
 *         {"temperature", 0, FLAG_REAL, &o.temperature, "T", "Sampling", "0 is greedy", .min = 0, .max = 100},
 *         {"chat", 0, FLAG_BOOL, &o.chat, NULL, "Input", "apply the chat template (--no-chat: raw text)"},
 *         {"stop", 0, FLAG_LIST, &o.stop, "S", "Output", "stop at this text; may be repeated"},
 *         {"output", 0, FLAG_CHOICE, &o.output, "text|ids|json", "Output", "what to print"},
 *     };
 *     const struct verb_spec spec = {"run", "MODEL", "generates text", flags, ARRAY_LEN(flags), .min_args = 1, .max_args = 1};
 *     struct verb_args args;
 *     int rc = flags_parse(&spec, argc, argv, &args);   // < 0: go on; otherwise exit with rc (0 after --help, 2 on misuse)
 *
 * Accepted: --name VALUE, --name=VALUE, -x VALUE, -xVALUE, --bool, --no-bool, "--" ends flags, flags and
 * positional arguments in any order. Names may be written with _ for -. Every flag --some-name also reads the
 * environment variable GYRE_SOME_NAME, which the command line overrides; a bad value there is an error that
 * names the variable. Integers take 32k 4M 2g (powers of 1000) and 32Ki 16GiB (powers of 1024); sizes of
 * bytes (FLAG_SIZE) read k, M, G as powers of 1024 too, as people mean them. Reals must be finite.
 * An unknown flag is an error with the nearest known one. `gyre VERB --help` groups the flags by topic, in
 * the order in which topics first appear, with defaults (the value at parse time) and bounds. */
#pragma once

#include "base/status.h"

enum flag_kind {
    FLAG_BOOL,   // bool *
    FLAG_INT,    // int64_t *
    FLAG_SIZE,   // int64_t *, bytes
    FLAG_REAL,   // double *
    FLAG_STRING, // const char **; borrowed from argv or the environment
    FLAG_CHOICE, // const char **; the metavar lists what is allowed: a|b|c
    FLAG_LIST,   // struct flag_list *; may be given many times
    FLAG_IDS,    // struct flag_ids *; 1,2,3
};

struct flag {
    const char *name;
    char short_name; // 0: none
    enum flag_kind kind;
    void *out;
    const char *metavar, *topic, *help;
    double min, max; // for numbers, when min < max
};

struct flag_list {
    const char **items; // [n], owned by the args
    size_t n;
};

struct flag_ids {
    int32_t *ids; // [n], owned by the args
    size_t n;
    bool given; // an empty list is a list
};

struct verb_spec {
    const char *name, *operands, *summary; // "run", "MODEL", one sentence
    const struct flag *flags;
    size_t n_flags;
    size_t min_args, max_args; // positional arguments
    const char *epilogue;      // examples, for the end of --help; may be NULL
};

struct verb_args {
    const char **operands; // [n]
    size_t n;
    void *memory; // what flag_list and flag_ids own
};

/* Returns -1 to go on, 0 after --help was printed, 2 after a sentence on stderr. */
int flags_parse(const struct verb_spec *spec, int argc, char **argv, struct verb_args *args);
void flags_release(struct verb_args *args);

/* "32k" and the like; what is in error messages as `what`. Bytes: see FLAG_SIZE above. */
enum status parse_int(const char *text, const char *what, bool bytes, int64_t *out, struct error *err);

/* Prints "gyre: <sentence>" to stderr and returns 1: the last line of a verb that met a fault. */
int verb_failed(const struct error *err);
