/* flag_help.h - how a verb and its flags are shown: the text of --help, of usage lines and of the manual page. */
#pragma once

#include "main/flags/flags.h"

#include <stdio.h>

/* The environment variable that stands for a flag. */
char *flag_variable(const struct flag *flag, struct arena *memory);

/* A verb's usage line, and all of its help: the flags by topic, with bounds and defaults as they are now. */
void help_usage(const struct verb_spec *verb, FILE *out);
void help_verb(const struct verb_spec *verb, FILE *out);

/* A flag as "-n, --name N", and its bounds and default as "(1 to 8; default 4)"; empty when there is nothing to say. */
void help_flag_name(const struct flag *flag, char *out, size_t out_bytes);
void help_flag_limits(const struct flag *flag, char *out, size_t out_bytes);

/* The topics of a verb's flags in the order of their first flag; returns how many, at most HELP_MAX_TOPICS. */
enum { HELP_MAX_TOPICS = 32 };
size_t help_topics(const struct verb_spec *verb, const char **topics);
