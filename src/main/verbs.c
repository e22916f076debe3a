/* verbs.c - the list of verbs, and finding one by its name. */
#include "main/verbs.h"

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

const char *verb_nearest(const char *typed) {
    const char *names[ARRAY_LEN(verbs)];
    for (size_t i = 0; i < n_verbs; i++)
        names[i] = verbs[i]->name;
    return nearest_name(typed, names, n_verbs);
}
