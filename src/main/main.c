/* main.c - the gyre command: finds the verb and hands over. One file a verb. */
#include "main/verbs.h"

#include <stdio.h>
#include <string.h>

static const struct verb {
    const char *name;
    int (*run)(int argc, char **argv); // argv[0] is the verb; returns the exit code
} verbs[] = {
#define VERB(name) {#name, verb_##name},
#include "main/verbs.def"
#undef VERB
};

int main(int argc, char **argv) {
    for (size_t i = 0; argc > 1 && i < sizeof verbs / sizeof verbs[0]; i++)
        if (strcmp(argv[1], verbs[i].name) == 0)
            return verbs[i].run(argc - 1, argv + 1);
    fprintf(stderr, "usage: gyre VERB ...\n");
    return 2;
}
