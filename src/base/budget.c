/* budget.c - see budget.h. */
#include "base/budget.h"

#include "base/guard.h"

#include <stdlib.h>

bool budget_resize(struct budget *budget, void **memory, size_t old_bytes, size_t new_bytes) {
    if (!budget) {
        *memory = xrealloc(*memory, new_bytes, 1);
        return true;
    }
    BUG_IF(alloc_guard_depth > 0 || budget->used < old_bytes);
    size_t others = budget->used - old_bytes;
    if (new_bytes > budget->limit || others > budget->limit - new_bytes) {
        budget->failed = ERR_LIMIT;
        return false;
    }
    void *grown = realloc(*memory, new_bytes ? new_bytes : 1);
    if (!grown) {
        budget->failed = ERR_MEMORY;
        return false;
    }
    *memory = grown;
    budget->used = others + new_bytes;
    return true;
}

enum status budget_check(const struct budget *budget, const char *what, struct error *err) {
    if (budget->failed == OK)
        return OK;
    if (budget->failed == ERR_LIMIT)
        return fail(err, ERR_LIMIT, "%s takes more than the %zu bytes of memory that it may have", what, budget->limit);
    return fail(err, budget->failed, "%s takes more memory than there is", what);
}

void budget_free(struct budget *budget, void *memory, size_t n_bytes) {
    free(memory);
    BUG_IF(budget && budget->used < n_bytes);
    if (budget)
        budget->used -= n_bytes;
}
