/* store.h - the numbers of one tensor in the storage that they get, written to a file, and what that loses. */
#pragma once

#include "base/pool.h"
#include "quantize/output.h"
#include "quantize/target.h"

/* What storing lost: y is what is read back of x. */
struct loss {
    double squares;     // sum x^2
    double errors;      // sum (x - y)^2
    double worst;       // the largest root mean square of x - y in a block of LOSS_BLOCK columns
    int64_t row, block; // where that is
    int64_t n;          // numbers
};
enum { LOSS_BLOCK = 32 };

/* Beside them: whether to go on. done and total are bytes of the whole. */
struct store_progress {
    bool (*step)(void *context, uint64_t done, uint64_t total); // false: stop; NULL: none
    void *context;
    uint64_t done, total;
};

/* Writes t's rows as t->to says, in order. importance [matrices of a stack][cols], or NULL.
 * ERR_FORMAT names a tensor with a number that is not finite, or is too large for its type. */
enum status store_tensor(struct target *t, const float *importance, struct pool *pool, struct output *out,
                         struct loss *loss, struct store_progress *progress, struct error *err);

void loss_add(struct loss *loss, const float *x, const float *y, int64_t n, int64_t row);
void loss_join(struct loss *a, const struct loss *b);
