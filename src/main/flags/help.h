/* help.h - what a person, a shell and man can read about all verbs: it comes from their flag tables. */
#pragma once

#include <stdio.h>

/* The verbs with one line each. */
void help_overview(FILE *out);

/* The manual page gyre(1) in man's macros: manual.c. */
void manual_page(FILE *out);

/* Completion scripts for each shell: completion.c. */
void completion_bash(FILE *out);
void completion_zsh(FILE *out);
void completion_fish(FILE *out);
