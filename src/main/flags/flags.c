/* flags.c - see flags.h.
 *
 * Reading goes in two passes. The first looks only at the shape of the line (which flag, which value, which
 * operand), so that --help finds every default untouched; the second stores: the environment where
 * the line is silent, then the line. */
#include "main/flags/flags.h"

#include "main/flags/flag_help.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

struct setting {
    const struct flag *flag;
    const char *value; // NULL for a boolean
    bool on;           // the boolean: --name or --no-name
    const char *typed; // how the person named it, for error messages
};

struct line {
    const struct verb_spec *spec;
    struct setting *settings; // [n], in the order of the line
    size_t n;
    bool wants_help;
};

// ---- values -----------------------------------------------------------------------------------------------------

/* Digits [.digits] of `text` scaled by `unit`, exactly; false when that is no whole int64 number. */
static bool scaled_digits(const char **text, int64_t unit, int64_t *out) {
    const char *p = *text;
    int64_t whole = 0, part = 0, parts = 1; // the number is whole + part / parts
    if (!isdigit((unsigned char)*p))
        return false;
    for (; isdigit((unsigned char)*p); p++)
        if (__builtin_mul_overflow(whole, 10, &whole) || __builtin_add_overflow(whole, *p - '0', &whole))
            return false;
    if (*p == '.') {
        if (!isdigit((unsigned char)*++p))
            return false;
        for (; isdigit((unsigned char)*p) && parts < 1000000; p++) {
            part = part * 10 + (*p - '0');
            parts *= 10;
        }
    }
    *text = p;
    // part < 10^6 and unit <= 2^40, so the product of the two fits.
    return part * unit % parts == 0 && !__builtin_mul_overflow(whole, unit, out) &&
           !__builtin_add_overflow(*out, part * unit / parts, out);
}

/* The factor that a suffix stands for, or 0 when it is none. */
static int64_t suffix_unit(const char *suffix, bool bytes) {
    if (*suffix == '\0' || (bytes && strcasecmp(suffix, "b") == 0))
        return 1;
    const char *found = strchr("kmgt", tolower((unsigned char)*suffix));
    if (!found)
        return 0;
    bool binary = suffix[1] == 'i';
    const char *rest = suffix + 1 + binary;
    bool has_b = *rest == 'B' || *rest == 'b';
    if (rest[has_b] != '\0' || (has_b && !binary && !bytes)) // 5MB is not a count of tokens
        return 0;
    int64_t unit = 1;
    for (int i = 0; i <= found - "kmgt"; i++)
        unit *= binary || bytes ? 1024 : 1000;
    return unit;
}

enum status parse_int(const char *text, const char *what, bool bytes, int64_t *out, struct error *err) {
    const char *p = text;
    bool negative = *p == '-';
    if (*p == '-' || *p == '+')
        p++;
    int64_t unit = suffix_unit(p + strspn(p, "0123456789."), bytes);
    int64_t value;
    if (unit == 0 || !scaled_digits(&p, unit, &value) || strspn(p, "0123456789.") != 0)
        return fail(err, ERR_ARG, "%s: \"%s\" is not %s", what, text,
                    bytes ? "a number of bytes, as 512, 64k or 16GiB" : "a whole number, as 512, 32k or 16Ki");
    *out = negative ? -value : value;
    return OK;
}

static enum status parse_real(const char *text, const char *what, double *out, struct error *err) {
    char *end;
    double value = strtod(text, &end);
    // strtod also takes nan, inf and hexadecimal, which nobody means here.
    if (*text == '\0' || *end != '\0' || strspn(text, "+-.0123456789eE") != strlen(text) || !isfinite(value))
        return fail(err, ERR_ARG, "%s: \"%s\" is not a number", what, text);
    *out = value;
    return OK;
}

static enum status parse_bool(const char *text, const char *what, bool *out, struct error *err) {
    static const char *const yes[] = {"1", "true", "yes", "on"}, *const no[] = {"0", "false", "no", "off"};
    for (size_t i = 0; i < ARRAY_LEN(yes); i++) {
        bool on = strcasecmp(text, yes[i]) == 0;
        if (on || strcasecmp(text, no[i]) == 0)
            return *out = on, OK;
    }
    return fail(err, ERR_ARG, "%s: \"%s\" is neither 1 nor 0 (nor true, false, yes, no, on, off)", what, text);
}

static enum status parse_choice(const char *text, const char *what, const char *allowed, const char **out,
                                struct error *err) {
    for (const char *p = allowed; *p;) {
        size_t n = strcspn(p, "|");
        if (strlen(text) == n && memcmp(text, p, n) == 0)
            return *out = text, OK;
        p += n + (p[n] == '|');
    }
    return fail(err, ERR_ARG, "%s: \"%s\" is none of %s", what, text, allowed);
}

static enum status parse_ids(const char *text, const char *what, struct arena *memory, struct flag_ids *out,
                             struct error *err) {
    size_t n = *text != '\0';
    for (const char *p = text; *p; p++)
        n += *p == ',';
    *out = (struct flag_ids){.ids = arena_calloc(memory, n, sizeof *out->ids), .n = n, .given = true};
    const char *p = text;
    for (size_t i = 0; i < n; i++) {
        while (*p == ' ')
            p++;
        char *end;
        errno = 0;
        long long id = strtoll(p, &end, 10);
        if (!isdigit((unsigned char)*p) || errno || id > INT32_MAX || (*end != '\0' && *end != ','))
            return fail(err, ERR_ARG,
                        "%s: item %zu is not a whole number of 0 or more: wanted such with commas, as 1,2,3", what,
                        i + 1);
        out->ids[i] = (int32_t)id;
        p = end + (*end == ',');
    }
    return OK;
}

static void append_item(struct flag_list *list, const char *item, struct arena *memory) {
    const char **items = arena_calloc(memory, list->n + 1, sizeof *items); // lists are short: quadratic is fine
    if (list->n)
        memcpy(items, list->items, list->n * sizeof *items);
    items[list->n++] = item;
    list->items = items;
}

static enum status check_bounds(const struct flag *f, const char *what, double value, struct error *err) {
    if (f->min < f->max && (value < f->min || value > f->max))
        return fail(err, ERR_ARG, "%s: %.17g is not between %.17g and %.17g", what, value, f->min, f->max);
    return OK;
}

static enum status store_value(const struct flag *f, const char *what, const char *value, struct arena *memory,
                               struct error *err) {
    switch (f->kind) {
    case FLAG_BOOL: return parse_bool(value, what, f->out, err);
    case FLAG_INT:
    case FLAG_SIZE:
        if (strcmp(value, "auto") == 0 && f->metavar && strstr(f->metavar, "|auto"))
            return *(int64_t *)f->out = 0, OK;
        TRY(parse_int(value, what, f->kind == FLAG_SIZE, f->out, err));
        return check_bounds(f, what, (double)*(int64_t *)f->out, err);
    case FLAG_REAL: TRY(parse_real(value, what, f->out, err)); return check_bounds(f, what, *(double *)f->out, err);
    case FLAG_STRING: *(const char **)f->out = value; return OK;
    case FLAG_CHOICE: return parse_choice(value, what, f->metavar, f->out, err);
    case FLAG_LIST: append_item(f->out, value, memory); return OK;
    case FLAG_IDS: return parse_ids(value, what, memory, f->out, err);
    }
    BUG_IF(true);
}

// ---- the first pass: the shape of the line ------------------------------------------------------------------------

/* --Name and GYRE-like spellings are not taken; _ for - is. */
static bool same_name(const char *name, const char *typed, size_t n) {
    if (strlen(name) != n)
        return false;
    for (size_t i = 0; i < n; i++)
        if (name[i] != (typed[i] == '_' ? '-' : typed[i]))
            return false;
    return true;
}

static const struct flag *find_long(const struct verb_spec *spec, const char *typed, size_t n, bool *on) {
    *on = true;
    for (size_t i = 0; i < spec->n_flags; i++)
        if (same_name(spec->flags[i].name, typed, n))
            return &spec->flags[i];
    if (n < 3 || !same_name("no-", typed, 3))
        return NULL;
    *on = false;
    for (size_t i = 0; i < spec->n_flags; i++)
        if (spec->flags[i].kind == FLAG_BOOL && same_name(spec->flags[i].name, typed + 3, n - 3))
            return &spec->flags[i];
    return NULL;
}

static const struct flag *find_short(const struct verb_spec *spec, char c) {
    for (size_t i = 0; i < spec->n_flags; i++)
        if (c != '\0' && spec->flags[i].short_name == c)
            return &spec->flags[i];
    return NULL;
}

const char *nearest_name(const char *typed, const char *const *names, size_t n) {
    const char *best = NULL;
    struct str t = str_of(typed);
    int limit = 1 + (int)MIN(t.len, (size_t)30) / 3; // a third of the letters may be wrong
    for (size_t i = 0; i < n; i++) {
        struct str name = str_of(names[i]);
        bool begins = t.len >= 2 && str_starts(name, t);
        int d = begins ? 1 : str_distance(t, name);
        if (d <= limit) {
            best = names[i];
            limit = d - 1;
        }
    }
    return best;
}

static bool has_flag(const struct verb_spec *spec, const char *name) {
    for (size_t i = 0; i < spec->n_flags; i++)
        if (strcmp(spec->flags[i].name, name) == 0)
            return true;
    return false;
}

/* What a flag of another program is here; NULL when nobody knows it. */
static const char *elsewhere(const struct verb_spec *spec, const char *typed) {
    static const struct {
        const char *typed, *flag, *says; // flag: says is of use where the verb has it
    } others[] = {
        {"-m", NULL, "the model is given without a flag"},
        {"--model", NULL, "the model is given without a flag"},
        {"-c", "max-model-len", "the length of the context is --max-model-len"},
        {"--ctx-size", "max-model-len", "the length of the context is --max-model-len"},
        {"--context-length", "max-model-len", "the length of the context is --max-model-len"},
        {"-ngl", "device", "--device cuda puts all of a model on a GPU"},
        {"--n-gpu-layers", "device", "--device cuda puts all of a model on a GPU"},
        {"--gpu-layers", "device", "--device cuda puts all of a model on a GPU"},
        {"--n-predict", "max-tokens", "the most tokens of an answer are --max-tokens, or -n"},
    };
    bool takes_model = spec->operands && (strstr(spec->operands, "MODEL") || strcmp(spec->operands, "TOK") == 0);
    for (size_t i = 0; i < ARRAY_LEN(others); i++)
        if (strcmp(others[i].typed, typed) == 0 && (others[i].flag ? has_flag(spec, others[i].flag) : takes_model))
            return others[i].says;
    return NULL;
}

static int unknown_flag(const struct verb_spec *spec, const char *typed, struct arena *memory) {
    const char *shown = arena_strdup(memory, (struct str){typed, strcspn(typed, "=")});
    const char *known = elsewhere(spec, shown);
    if (known)
        return verb_misused(spec, "there is no flag %s: %s", shown, known);
    size_t n = 0, max = 2 * spec->n_flags + 1;
    const char **names = arena_calloc(memory, max, sizeof *names);
    names[n++] = "--help";
    for (size_t i = 0; i < spec->n_flags; i++) {
        names[n++] = arena_printf(memory, "--%s", spec->flags[i].name);
        if (spec->flags[i].kind == FLAG_BOOL)
            names[n++] = arena_printf(memory, "--no-%s", spec->flags[i].name);
    }
    const char *near = nearest_name(shown, names, n);
    return near ? verb_misused(spec, "there is no flag %s; did you mean %s?", shown, near)
                : verb_misused(spec, "there is no flag %s", shown);
}

/* One argument that begins with --; *i is where it stands, and moves past its value. Returns -1 to go on. */
static int read_long(struct line *line, int argc, char **argv, int *i, struct arena *memory) {
    const char *typed = argv[*i], *name = typed + 2, *value = NULL;
    size_t n = strcspn(name, "=");
    if (same_name("help", name, strlen(name))) {
        line->wants_help = true;
        return -1;
    }
    bool on;
    const struct flag *f = find_long(line->spec, name, n, &on);
    if (!f)
        return unknown_flag(line->spec, typed, memory);
    if (f->kind == FLAG_BOOL) {
        if (name[n] == '=')
            return verb_misused(line->spec, "--%s takes no value; its opposite is --no-%s", f->name, f->name);
    } else if (name[n] == '=') {
        value = name + n + 1;
    } else {
        value = argv[++*i]; // argv ends with NULL
        if (*i >= argc || !value)
            return verb_misused(line->spec, "--%s wants a value: %s", f->name, f->metavar);
    }
    line->settings[line->n++] = (struct setting){f, value, on, arena_printf(memory, "--%s", f->name)};
    return -1;
}

/* One argument that begins with a single -. */
static int read_short(struct line *line, int argc, char **argv, int *i, struct arena *memory) {
    const char *typed = argv[*i];
    const struct flag *f = find_short(line->spec, typed[1]);
    if (!f && strcmp(typed, "-h") == 0) {
        line->wants_help = true;
        return -1;
    }
    if (!f || (f->kind == FLAG_BOOL && typed[2] != '\0') || (typed[2] && elsewhere(line->spec, typed)))
        return unknown_flag(line->spec, typed, memory);
    const char *value = NULL;
    if (f->kind != FLAG_BOOL) {
        value = typed[2] ? typed + 2 : argv[++*i];
        if (*i >= argc || !value)
            return verb_misused(line->spec, "-%c wants a value: %s", f->short_name, f->metavar);
    }
    line->settings[line->n++] = (struct setting){f, value, true, arena_printf(memory, "-%c", f->short_name)};
    return -1;
}

static int read_line(struct line *line, int argc, char **argv, struct verb_args *args) {
    bool flags_ended = false;
    for (int i = 1; i < argc && !line->wants_help; i++) {
        const char *a = argv[i];
        int rc = -1;
        if (flags_ended || a[0] != '-' || a[1] == '\0')
            args->operands[args->n++] = a;
        else if (strcmp(a, "--") == 0)
            flags_ended = true;
        else
            rc = a[1] == '-' ? read_long(line, argc, argv, &i, &args->memory)
                             : read_short(line, argc, argv, &i, &args->memory);
        if (rc >= 0)
            return rc;
    }
    return -1;
}

// ---- the second pass ----------------------------------------------------------------------------------------------

static enum status read_environment(const struct verb_spec *spec, struct verb_args *args, struct error *err) {
    for (size_t i = 0; i < spec->n_flags; i++) {
        if (args->given[i])
            continue;
        char *name = flag_variable(&spec->flags[i], &args->memory);
        const char *value = getenv(name);
        if (!value)
            continue;
        TRY(store_value(&spec->flags[i], name, value, &args->memory, err));
        args->given[i] = true;
    }
    return OK;
}

static enum status store_settings(const struct line *line, struct verb_args *args, struct error *err) {
    for (size_t i = 0; i < line->n; i++) {
        const struct setting *s = &line->settings[i];
        if (s->value)
            TRY(store_value(s->flag, s->typed, s->value, &args->memory, err));
        else
            *(bool *)s->flag->out = s->on;
    }
    return OK;
}

static int check_operands(const struct verb_spec *spec, const struct verb_args *args) {
    int needed = (int)strcspn(spec->operands, "["); // others may be left out
    needed -= needed > 0 && spec->operands[needed - 1] == ' ';
    if (args->n < spec->min_args)
        return verb_misused(spec, args->n ? "an argument is missing: %.*s" : "%.*s is missing", needed, spec->operands);
    if (args->n > spec->max_args)
        return verb_misused(spec, "%s is one argument too many", args->operands[spec->max_args]);
    return -1;
}

int flags_parse(const struct verb_spec *spec, int argc, char **argv, struct verb_args *args) {
    *args = (struct verb_args){.spec = spec};
    int translated = spec->translate ? spec->translate(spec, &args->memory, &argc, &argv) : -1;
    if (translated >= 0)
        return translated;
    size_t n_words = argc > 0 ? (size_t)argc : 0;
    args->operands = arena_calloc(&args->memory, n_words + 1, sizeof *args->operands);
    args->given = arena_calloc(&args->memory, spec->n_flags + 1, sizeof *args->given);
    struct line line = {.spec = spec, .settings = arena_calloc(&args->memory, n_words + 1, sizeof *line.settings)};
    int rc = read_line(&line, argc, argv, args);
    if (rc >= 0)
        return rc;
    if (line.wants_help) {
        help_verb(spec, stdout);
        return 0;
    }
    for (size_t i = 0; i < line.n; i++)
        args->given[line.settings[i].flag - spec->flags] = true;
    struct error err;
    if (read_environment(spec, args, &err) || store_settings(&line, args, &err))
        return verb_misused(spec, "%s", err.text);
    return check_operands(spec, args);
}

void flags_release(struct verb_args *args) {
    arena_release(&args->memory);
    *args = (struct verb_args){0};
}

bool flag_given(const struct verb_args *args, const char *name) {
    for (size_t i = 0; i < args->spec->n_flags; i++)
        if (strcmp(args->spec->flags[i].name, name) == 0)
            return args->given[i];
    BUG_IF(true);
}

int verb_misused(const struct verb_spec *spec, const char *format, ...) {
    struct error err; // formats, cuts and cleans as every other sentence
    char text[sizeof err.text];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    fail(&err, ERR_ARG, "%s", text);
    fprintf(stderr, "gyre %s: %s\n", spec->name, err.text);
    help_usage(spec, stderr);
    fprintf(stderr, "More is told by: gyre %s --help\n", spec->name);
    return 2;
}

int verb_failed(const struct error *err) {
    fprintf(stderr, "gyre: %s\n", err->text);
    return 1;
}
