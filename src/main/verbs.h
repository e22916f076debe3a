/* verbs.h - the verbs of the gyre command; verb_X is defined by the file X.c. */
#pragma once

#include "main/flags/flags.h"

#define VERB(name) extern const struct verb_spec verb_##name;
#include "main/verbs.def"
#undef VERB

extern const struct verb_spec *const verbs[]; // [n_verbs], in the order of verbs.def
extern const size_t n_verbs;

const struct verb_spec *verb_find(const char *name); // may return NULL

/* The verb that words begin with; some have two words ("bench serve"). *n_words is how many. May return NULL. */
const struct verb_spec *verb_find_words(int n, const char *const *words, int *n_words);
const char *verb_nearest(const char *typed); // did you mean; may return NULL
