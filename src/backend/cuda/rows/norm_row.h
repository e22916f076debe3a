/* norm_row.h - ADD_NORM of a step of one row, done by the node that reads what it makes: gemv.cu's, moe_router.cu's
 * (norm_row.cuh). */
#pragma once

#include "backend/cuda/value.h"

enum { NORM_ROW_WIDEST = 4096 };

/* r = x + d; what is read is r / sqrt(mean(r^2) + eps) * w. Float32 rows that do not overlap, of a multiple of four
 * columns, at multiples of 16 bytes; d.at may be NULL. y: the normed row once more, for others; at NULL: nobody
 * else reads it. */
struct dnorm_row {
    struct dmat x, d, r, y;
    struct dweight w;
    float eps;
    bool plus_one;
};
