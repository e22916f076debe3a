/* version.c - gyre version. */
#include "main/verbs.h"

#include <stdio.h>

static int run(const struct verb_args *args) {
    (void)args;
    puts("gyre 0.1.0");
    return 0;
}

const struct verb_spec verb_version = {"version", "", "prints the version", .run = run};
