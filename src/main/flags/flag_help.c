/* flag_help.c - see flag_help.h. */
#include "main/flags/flag_help.h"

#include <ctype.h>
#include <string.h>

enum { HELP_COLUMN = 30, HELP_WIDTH = 110 };

// ---- one flag -----------------------------------------------------------------------------------------------------

char *flag_variable(const struct flag *f, struct arena *memory) {
    char *name = arena_printf(memory, "GYRE_%s", f->name);
    for (char *p = name; *p; p++)
        *p = *p == '-' ? '_' : (char)toupper((unsigned char)*p);
    return name;
}

void help_flag_name(const struct flag *f, char *out, size_t out_bytes) {
    char head[8] = "    ";
    if (f->short_name)
        snprintf(head, sizeof head, "-%c, ", f->short_name);
    if (f->kind == FLAG_BOOL)
        snprintf(out, out_bytes, "%s--[no-]%s", head, f->name);
    else
        snprintf(out, out_bytes, "%s--%s %s", head, f->name, f->metavar);
}

static void print_size(int64_t bytes, char *out, size_t out_bytes) {
    static const char *const units[] = {"", "KiB", "MiB", "GiB", "TiB"};
    size_t u = 0;
    while (bytes != 0 && bytes % 1024 == 0 && u + 1 < ARRAY_LEN(units)) {
        bytes /= 1024;
        u++;
    }
    snprintf(out, out_bytes, "%lld%s", (long long)bytes, units[u]);
}

static void print_number(const struct flag *f, double value, char *out, size_t out_bytes) {
    if (f->kind == FLAG_REAL)
        snprintf(out, out_bytes, "%.10g", value);
    else if (f->kind == FLAG_SIZE)
        print_size((int64_t)value, out, out_bytes);
    else
        snprintf(out, out_bytes, "%.0f", value);
}

static bool has_bounds(const struct flag *f) { return f->min < f->max; }

/* The value now, as one would type it; empty when it says "not set". */
static void print_default(const struct flag *f, char *out, size_t out_bytes) {
    out[0] = '\0';
    switch (f->kind) {
    case FLAG_BOOL:
        if (*(const bool *)f->out)
            snprintf(out, out_bytes, "on");
        return;
    case FLAG_INT:
    case FLAG_SIZE:
    case FLAG_REAL: {
        double value = f->kind == FLAG_REAL ? *(const double *)f->out : (double)*(const int64_t *)f->out;
        if (!has_bounds(f) || (value >= f->min && value <= f->max))
            print_number(f, value, out, out_bytes);
        return;
    }
    case FLAG_STRING:
    case FLAG_CHOICE:
        if (*(const char *const *)f->out)
            snprintf(out, out_bytes, "%s", *(const char *const *)f->out);
        return;
    case FLAG_LIST:
    case FLAG_IDS: return;
    }
}

void help_flag_limits(const struct flag *f, char *out, size_t out_bytes) {
    char low[32], high[32], now[128];
    print_default(f, now, sizeof now);
    print_number(f, f->min, low, sizeof low);
    print_number(f, f->max, high, sizeof high);
    out[0] = '\0';
    // A huge upper bound guards our arithmetic; to a reader it only says "no limit".
    if (has_bounds(f) && f->max < 1e9)
        snprintf(out, out_bytes, "(%s to %s%s%s)", low, high, now[0] ? "; default " : "", now);
    else if (has_bounds(f) && f->min > 0)
        snprintf(out, out_bytes, "(%s or more%s%s)", low, now[0] ? "; default " : "", now);
    else if (now[0])
        snprintf(out, out_bytes, "(default %s)", now);
}

// ---- one verb -----------------------------------------------------------------------------------------------------

size_t help_topics(const struct verb_spec *verb, const char **topics) {
    size_t n = 0;
    for (size_t i = 0; i < verb->n_flags; i++) {
        size_t k = 0;
        while (k < n && strcmp(topics[k], verb->flags[i].topic) != 0)
            k++;
        BUG_IF(k == HELP_MAX_TOPICS);
        topics[k] = verb->flags[i].topic;
        n = MAX(n, k + 1);
    }
    return n;
}

void help_usage(const struct verb_spec *verb, FILE *out) {
    fprintf(out, "usage: gyre %s%s%s%s\n", verb->name, *verb->operands ? " " : "", verb->operands,
            verb->n_flags ? " [FLAGS]" : "");
}

/* Prints words from column HELP_COLUMN on; `at` is the column where the cursor stands. */
static void print_wrapped(const char *text, int *at, FILE *out) {
    for (const char *p = text; *p;) {
        p += strspn(p, " ");
        int n = (int)strcspn(p, " ");
        if (*at > HELP_COLUMN && *at + 1 + n > HELP_WIDTH) {
            fputc('\n', out);
            *at = 0;
        }
        if (*at < HELP_COLUMN)
            *at += fprintf(out, "%*s", HELP_COLUMN - *at, "");
        else if (n > 0 && *at > HELP_COLUMN)
            *at += fprintf(out, " ");
        *at += fprintf(out, "%.*s", n, p);
        p += n;
    }
}

static void print_flag(const struct flag *f, FILE *out) {
    char name[128], limits[256];
    help_flag_name(f, name, sizeof name);
    help_flag_limits(f, limits, sizeof limits);
    int at = fprintf(out, "  %s", name);
    if (at >= HELP_COLUMN - 1) {
        fputc('\n', out);
        at = 0;
    }
    print_wrapped(f->help, &at, out);
    print_wrapped(limits, &at, out);
    fputc('\n', out);
}

void help_verb(const struct verb_spec *verb, FILE *out) {
    help_usage(verb, out);
    fprintf(out, "gyre %s: %s.\n", verb->name, verb->summary);
    const char *topics[HELP_MAX_TOPICS];
    size_t n = help_topics(verb, topics);
    for (size_t t = 0; t < n; t++) {
        fprintf(out, "\n%s:\n", topics[t]);
        for (size_t i = 0; i < verb->n_flags; i++)
            if (strcmp(verb->flags[i].topic, topics[t]) == 0)
                print_flag(&verb->flags[i], out);
    }
    if (verb->n_flags) {
        struct arena memory = {0};
        fprintf(out, "\nEvery flag can be set in the environment too: --%s as %s.\n", verb->flags[0].name,
                flag_variable(&verb->flags[0], &memory));
        arena_release(&memory);
    }
    if (verb->epilogue)
        fprintf(out, "\n%s\n", verb->epilogue);
}
