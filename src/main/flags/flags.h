/* flags.h - the command line of a verb: a table of flags, parsed, explained and completed from one place.
 *
 * A verb is one file that defines one verb_spec; its options are file-scope variables, so that --help, the
 * man page and the completions can be made from the table without running the verb:
 *
 *     static struct {
 *         const char *prompt; int64_t n_tokens; double temperature; bool chat; struct flag_list stop; const char
 *         *output;
 *     } opt = {.n_tokens = 256, .temperature = 1, .output = "text"};
 *     static const struct flag flags[] = {
 *         {"prompt", 'p', FLAG_STRING, &opt.prompt, "TEXT", "Input", "the prompt"},
 *         {"n-tokens", 'n', FLAG_INT, &opt.n_tokens, "N", "Output", "stop after N tokens", .min = 0, .max = 1e9},
 *         {"temperature", 0, FLAG_REAL, &opt.temperature, "T", "Sampling", "0 is greedy", .min = 0, .max = 100},
 *         {"chat", 0, FLAG_BOOL, &opt.chat, NULL, "Input", "apply the chat template (--no-chat: raw text)"},
 *         {"stop", 0, FLAG_LIST, &opt.stop, "S", "Output", "stop at this text; may be repeated"},
 *         {"output", 0, FLAG_CHOICE, &opt.output, "text|ids|json", "Output", "what to print"},
 *     };
 *     static int run(const struct verb_args *args) { ... args->operands[0] ...; return 0; }
 *     const struct verb_spec verb_run = {"run", "MODEL", "generates text", flags, ARRAY_LEN(flags), 1, 1, .run = run};
 *
 * and the line VERB(run) in verbs.def. main() parses, calls run and releases.
 *
 * Accepted: --name VALUE, --name=VALUE, -x VALUE, -xVALUE, --bool, --no-bool, "--" ends flags, flags and
 * positional arguments in any order. Names may be written with _ for -. Every flag --some-name that the command
 * line does not give reads the environment variable GYRE_SOME_NAME (booleans: 1 0 true false yes no on off); a bad
 * value there is an error that names the variable. Integers take 32k 4M 2g (powers of 1000) and 32Ki 16GiB
 * (powers of 1024); sizes of bytes (FLAG_SIZE) read k, M, G, kB ... as powers of 1024 too, as people mean them.
 * Both take decimals before a suffix when the product is whole: 1.5k. Reals must be finite.
 * An unknown flag is an error with the nearest known one. `gyre VERB --help` groups the flags by topic, in
 * the order in which topics first appear, with defaults (the value before parsing) and bounds. A default outside
 * the bounds means "not set" and is not shown. */
#pragma once

#include "base/arena.h"
#include "base/folder.h"
#include "base/status.h"

enum flag_kind {
    FLAG_BOOL,   // bool *
    FLAG_INT,    // int64_t *; a metavar that ends in |auto allows that word, which is 0
    FLAG_SIZE,   // int64_t *, bytes
    FLAG_REAL,   // double *
    FLAG_STRING, // const char **; borrowed from argv or the environment
    FLAG_CHOICE, // const char **; the metavar lists what is allowed: a|b|c
    FLAG_LIST,   // struct flag_list *; may be given many times
    FLAG_IDS,    // struct flag_ids *; 1,2,3, none below 0
};

struct flag {
    const char *name;
    char short_name; // 0: none
    enum flag_kind kind;
    void *out;
    const char *metavar, *topic, *help;
    double min, max; // for numbers, when min < max
};

/* The row of every verb that opens a model's files. */
#define ALLOW_LINKS_FLAG                                                                                            \
    {                                                                                                               \
        "allow-links", 0, FLAG_BOOL, &folder_allow_links, NULL, "Model",                                            \
            "follow links from the model's folder to files anywhere; only for a folder that you made yourself, or " \
            "trust"                                                                                                 \
    }

struct flag_list {
    const char **items; // [n], owned by the args
    size_t n;
};

struct flag_ids {
    int32_t *ids; // [n], owned by the args
    size_t n;
    bool given; // an empty list is a list
};

struct verb_args {
    const char **operands; // [n]
    size_t n;
    const struct verb_spec *spec;
    bool *given;         // [spec->n_flags], by the command line or the environment
    struct arena memory; // what operands, given, flag_list and flag_ids lie in
};

struct verb_spec {
    const char *name, *operands, *summary; // "run", "MODEL", "generates text": one clause, no full stop
    const struct flag *flags;
    size_t n_flags;
    size_t min_args, max_args;                // positional arguments
    const char *epilogue;                     // examples, for the end of --help; may be NULL
    int (*run)(const struct verb_args *args); // returns the exit code
    /* Rewrites the line before it is read, where it has other programs' names; NULL: it is read as it is. Returns -1
     * to go on, or an exit code after a sentence on stderr. */
    int (*translate)(const struct verb_spec *spec, struct arena *memory, int *argc, char ***argv);
};

/* Returns -1 to go on, 0 after --help was printed, 2 after a sentence on stderr. argv[0] is the verb. The args
 * must be released in every case. */
int flags_parse(const struct verb_spec *spec, int argc, char **argv, struct verb_args *args);
void flags_release(struct verb_args *args);

/* Was --name given, on the command line or in the environment? For defaults that come from elsewhere, as a
 * temperature from generation_config.json. The name must be in the table. */
bool flag_given(const struct verb_args *args, const char *name);

/* Prints a sentence, the verb's usage line and where to read more on stderr; returns 2. For misuse that the
 * table cannot say, as two flags that exclude each other. */
int verb_misused(const struct verb_spec *spec, const char *format, ...) __attribute__((format(printf, 2, 3), cold));

/* Prints "gyre: <sentence>" to stderr and returns 1: the last line of a verb that met a fault. */
int verb_failed(const struct error *err);

/* "32k" and the like; what is in error messages as `what`. Bytes: see FLAG_SIZE above. */
enum status parse_int(const char *text, const char *what, bool bytes, int64_t *out, struct error *err);

/* The name among the n that a person who typed `typed` most likely meant, or NULL when none is near. */
const char *nearest_name(const char *typed, const char *const *names, size_t n);
