/* strings.h - lists of borrowed texts, as JSON gives them to front ends. */
#pragma once

#include "base/json/json.h"
#include "base/str.h"

#include <stdlib.h>

struct strings {
    struct str *at;
    size_t n;
};

static inline struct str string_of(const json_t *v) {
    return (struct str){json_string_value(v), json_string_length(v)};
}

static inline void strings_put(struct strings *s, struct str text) {
    s->at = xrealloc(s->at, s->n + 1, sizeof *s->at);
    s->at[s->n++] = text;
}
static inline void strings_put_all(struct strings *s, const struct strings *more) {
    for (size_t i = 0; i < more->n; i++)
        strings_put(s, more->at[i]);
}
static inline void strings_release(struct strings *s) {
    free(s->at);
    *s = (struct strings){0};
}
static inline void strings_drop_empty(struct strings *s) {
    size_t n = 0;
    for (size_t i = 0; i < s->n; i++)
        if (s->at[i].len)
            s->at[n++] = s->at[i];
    s->n = n;
}

/* The strings of an array; false for what is none. */
static inline bool strings_read_any(struct strings *s, const json_t *list) {
    for (size_t i = 0; i < json_array_size(list); i++) {
        if (!json_is_string(json_array_get(list, i)))
            return false;
        strings_put(s, string_of(json_array_get(list, i)));
    }
    return json_is_array(list);
}

/* The same, none of them empty; a list that lacks, or is null, is empty. */
static inline bool strings_read(struct strings *s, const json_t *list) {
    if (!list || json_is_null(list))
        return true;
    bool ok = strings_read_any(s, list);
    size_t n = s->n;
    strings_drop_empty(s);
    return ok && n == s->n;
}
