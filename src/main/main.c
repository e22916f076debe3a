/* main.c - the gyre command: finds the verb, reads its flags and hands over. One file a verb. */
#include "console/terminal.h"
#include "main/flags/help.h"
#include "main/model/model_path.h"
#include "main/model/model_pull.h"
#include "main/verbs.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

/* Output that did not reach its file must not look whole. */
static int close_stdout(int rc) {
    errno = 0;
    if (fflush(stdout) == 0 && !ferror(stdout))
        return rc;
    struct error err;
    fail(&err, ERR_IO, "standard output: cannot write: %s", errno ? strerror(errno) : "an earlier write failed");
    return verb_failed(&err);
}

/* A name of the hub may stand wherever a model's folder does; who generates with it brings it, too. */
static int resolve_model(const struct verb_spec *verb, struct verb_args *args) {
    struct error err;
    bool takes_model = strstr(verb->operands, "MODEL") || strcmp(verb->operands, "TOK") == 0;
    bool may_pull = verb == &verb_run || verb == &verb_serve;
    if (!takes_model || args->n == 0 || model_name_resolve(&args->operands[0], may_pull, &args->memory, &err) == OK)
        return -1;
    return verb_failed(&err);
}

static int run_verb(const struct verb_spec *verb, int argc, char **argv) {
    struct verb_args args;
    int rc = flags_parse(verb, argc, argv, &args);
    if (rc < 0)
        rc = resolve_model(verb, &args);
    if (rc < 0)
        rc = verb->run(&args); // of gyre run: main/run/run.c:run, whose generate() has steps made
    flags_release(&args);
    return rc;
}

/* next: what stands behind it, NULL: nothing. */
static int no_verb(const char *name, const char *next) {
    const char *near = verb_nearest(name);
    bool names_model = strcmp(name, "-m") == 0 || strcmp(name, "--model") == 0;
    if (names_model || (!near && model_path_is_likely(name))) {
        const char *model = names_model ? next ? next : "MODEL" : name;
        terminal_say(stderr, "gyre: a verb comes first, then the model, without a flag: gyre run %s, ", model);
        terminal_say(stderr, "or gyre serve %s\n", model);
    } else if (name[0] == '-') {
        terminal_say(stderr, "gyre: a verb comes first, and flags behind it, as in: gyre run MODEL %s\n", name);
    } else {
        terminal_say(stderr, "gyre: there is no verb %s%s%s%s\n", name, near ? "; did you mean " : "",
                     near ? near : "", near ? "?" : "");
    }
    fprintf(stderr, "The verbs are listed by: gyre help\n");
    return 2;
}

int main(int argc, char **argv) {
    if (argc < 2) {
        help_overview(stderr);
        return 2;
    }
    char *name = argv[1];
    int n_words;
    if (strcmp(name, "--help") == 0 || strcmp(name, "-h") == 0)
        name = "help";
    else if (strcmp(name, "--version") == 0)
        name = "version";
    argv[1] = name;
    const struct verb_spec *verb = verb_find_words(argc - 1, (const char *const *)argv + 1, &n_words);
    if (!verb)
        return no_verb(name, argc > 2 ? argv[2] : NULL);
    return close_stdout(run_verb(verb, argc - n_words, argv + n_words));
}
