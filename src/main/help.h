/* help.h - what a person, a shell and man can read about the verbs: all of it comes from their flag tables. */
#pragma once

#include "main/flags.h"

#include <stdio.h>

/* The verbs with one line each. */
void help_overview(FILE *out);

/* A verb's usage line, and all of its help: the flags by topic, with bounds and defaults as they are now. */
void help_usage(const struct verb_spec *verb, FILE *out);
void help_verb(const struct verb_spec *verb, FILE *out);

/* A flag as "-n, --name N", and its bounds and default as "(1 to 8; default 4)"; empty when there is nothing to say. */
void help_flag_name(const struct flag *flag, char *out, size_t out_bytes);
void help_flag_limits(const struct flag *flag, char *out, size_t out_bytes);

/* The topics of a verb's flags in the order of their first flag; returns how many, at most HELP_MAX_TOPICS. */
enum { HELP_MAX_TOPICS = 32 };
size_t help_topics(const struct verb_spec *verb, const char **topics);

/* The manual page gyre(1) in man's macros: manual.c. */
void manual_page(FILE *out);

/* Completion scripts for each shell: completion.c. */
void completion_bash(FILE *out);
void completion_zsh(FILE *out);
void completion_fish(FILE *out);
