/* verbs.c - the list of verbs, and finding one by its name. */
#include "main/verbs.h"

#include <stdio.h>

const struct verb_spec *const verbs[] = {
#define VERB(name) &verb_##name,
#include "main/verbs.def"
#undef VERB
};
const size_t n_verbs = ARRAY_LEN(verbs);

const struct verb_spec *verb_find(const char *name) {
    for (size_t i = 0; i < n_verbs; i++)
        if (strcmp(verbs[i]->name, name) == 0)
            return verbs[i];
    return NULL;
}

const struct verb_spec *verb_find_words(int n, const char *const *words, int *n_words) {
    char both[64];
    *n_words = 2;
    if (n > 1 && snprintf(both, sizeof both, "%s %s", words[0], words[1]) < (int)sizeof both && verb_find(both))
        return verb_find(both);
    *n_words = 1;
    return verb_find(words[0]);
}

const char *verb_nearest(const char *typed) {
    const char *names[ARRAY_LEN(verbs)];
    for (size_t i = 0; i < n_verbs; i++)
        names[i] = verbs[i]->name;
    return nearest_name(typed, names, n_verbs);
}
