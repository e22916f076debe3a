/* normal_form.h - Unicode normal forms over utf8proc, at the speed of a scan where nothing changes. */
#pragma once

#include "base/buf.h"

#include <stdlib.h>

enum normal_form { FORM_NFC, FORM_NFD, FORM_NFKC, FORM_NFKD };

/* Code points of the stretch at hand, and of marks that are put in order. `(struct normal_memory){0}` is empty and
 * valid. What its budget, which may be NULL, has no room for is left out of the text. */
struct normal_memory {
    struct budget *budget;
    int32_t *cps, *spare;
    size_t cap, spare_cap;
};
static inline void normal_memory_release(struct normal_memory *m) {
    budget_free(m->budget, m->cps, m->cap * sizeof *m->cps);
    budget_free(m->budget, m->spare, m->spare_cap * sizeof *m->spare);
    *m = (struct normal_memory){.budget = m->budget};
}

/* When text (valid UTF-8) is in the form already, returns true and leaves out alone; else appends the normalised
 * text to out. */
bool normal_form_apply(enum normal_form form, struct normal_memory *m, struct str text, struct buf *out);

/* Whether cp stays as it is in this form and nothing before it can take it in. */
bool normal_form_is_inert(enum normal_form form, uint32_t cp);
