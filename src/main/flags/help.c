/* help.c - the verb help: all verbs, one, the manual page, completions. */
#include "main/flags/help.h"

#include "main/flags/flag_help.h"
#include "main/verbs.h"

#include <string.h>

void help_overview(FILE *out) {
    fprintf(out, "usage: gyre VERB [ARGUMENTS] [FLAGS]\n\n");
    for (size_t i = 0; i < n_verbs; i++)
        fprintf(out, "  %-17s %s\n", verbs[i]->name, verbs[i]->summary);
    fprintf(out, "\nA verb's flags are listed by: gyre VERB --help\n");
}

static struct { const char *format; } opt = {.format = "text"};

static const struct flag flags[] = {
    {"format", 0, FLAG_CHOICE, &opt.format, "text|man|bash|zsh|fish", "Output",
     "man: the manual page; bash, zsh, fish: a completion script"},
};

static int help_about(const struct verb_args *args) {
    int n_words;
    const char *name = args->operands[0];
    const struct verb_spec *verb = verb_find_words((int)args->n, args->operands, &n_words);
    if (!verb) {
        const char *near = verb_nearest(name);
        return near ? verb_misused(args->spec, "there is no verb %s; did you mean %s?", name, near)
                    : verb_misused(args->spec, "there is no verb %s", name);
    }
    help_verb(verb, stdout);
    return 0;
}

static int run(const struct verb_args *args) {
    static const struct {
        const char *format;
        void (*print)(FILE *out);
    } whole[] = {{"man", manual_page},
                 {"bash", completion_bash},
                 {"zsh", completion_zsh},
                 {"fish", completion_fish},
                 {"text", help_overview}};
    const char *format = opt.format;
    opt.format = "text"; // what is printed tells defaults
    if (args->n > 0 && strcmp(format, "text") != 0)
        return verb_misused(args->spec, "--format %s is about all verbs, not about one", format);
    if (args->n > 0)
        return help_about(args);
    for (size_t i = 0; i < ARRAY_LEN(whole); i++)
        if (strcmp(format, whole[i].format) == 0)
            whole[i].print(stdout);
    return 0;
}

const struct verb_spec verb_help = {
    "help", "[VERB]", "lists the verbs, or tells all about one", flags, ARRAY_LEN(flags), .max_args = 2, .run = run};
