/* budget.h - memory that may be refused: how much some work may take, and what it has taken.
 *
 * Buffers that name a budget (buf.h, text/token_ids.h) grow within it. What they cannot have they go without: what is
 * appended is dropped, and `failed` says why until whoever owns the budget has looked. So that a function of many
 * appends needs one look at its end, and no request can end the process. */
#pragma once

#include "base/status.h"

struct budget {
    size_t limit;       // bytes
    size_t used;        // of the buffers that name it
    enum status failed; // ERR_LIMIT: more than the limit was asked for; ERR_MEMORY: the system had no more
};

/* realloc from old_bytes to new_bytes of what counts in the budget; false, with nothing changed but `failed`, when that
 * cannot be. budget NULL: nothing is counted, and the process ends where there is no memory (xrealloc). */
bool budget_resize(struct budget *budget, void **memory, size_t old_bytes, size_t new_bytes);

/* OK, or what failed as a sentence about `what` ("tokenizing this text"). */
enum status budget_check(const struct budget *budget, const char *what, struct error *err);

/* free of what counts in the budget, which may be NULL. */
void budget_free(struct budget *budget, void *memory, size_t n_bytes);
