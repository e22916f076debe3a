/* version.c - gyre version. */
#include "main/verbs.h"

#include <stdio.h>

static int run(const struct verb_args *args) {
    (void)args;
    puts("gyre " GYRE_VERSION);
    return 0;
}

const struct verb_spec verb_version = {"version", "", "prints the version", .run = run};
