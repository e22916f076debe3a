/* version.c - gyre version. */
#include "main/verbs.h"

#include <stdio.h>

int verb_version(int argc, char **argv) {
    (void)argc, (void)argv;
    puts("gyre 0.1.0");
    return 0;
}
