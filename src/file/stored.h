/* stored.h - a named tensor as it lies in a file: what every file format of this room yields.
 *
 * Knows bytes, shapes and names; not what a name means. */
#pragma once

#include "core/dtype.h"

enum { STORED_MAX_RANK = 8 };

/* name is NUL-terminated UTF-8 and unique in its checkpoint. data points into a read-only map, is aligned
 * to the element and holds exactly the product of shape elements, row-major, little-endian. A scalar has
 * rank 0; a dimension of 0 makes n_bytes 0. All of it lives as long as the checkpoint that gave it. */
struct stored_tensor {
    const char *name;
    enum dtype dtype;
    int rank;
    int64_t shape[STORED_MAX_RANK]; // outermost first
    const void *data;
    size_t n_bytes;
    int file;      // which file of the checkpoint
    bool consumed; // the caller's mark: false when opened, never read or written here
};

/* A growing list of them. `(struct stored_list){0}` is empty; free(items) when done. */
struct stored_list {
    struct stored_tensor *items;
    size_t n, cap;
};
