/* texts.h - texts as tokens, one after the other: what a draft is trained on. */
#pragma once

#include "base/status.h"

struct texts {
    int32_t *ids;   // of all
    int64_t *start; // [n + 1]: where each begins; NULL as long as there is none
    int64_t n, cap, ids_cap;
};

void texts_add(struct texts *t, const int32_t *ids, int64_t n);
void texts_release(struct texts *t); // zeroed is empty

static inline int64_t texts_length(const struct texts *t, int64_t i) { return t->start[i + 1] - t->start[i]; }
static inline const int32_t *texts_ids(const struct texts *t, int64_t i) { return t->ids + t->start[i]; }
static inline int64_t texts_tokens(const struct texts *t) { return t->n ? t->start[t->n] : 0; }
