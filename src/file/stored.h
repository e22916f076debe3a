/* stored.h - a named tensor as it lies in a file: what every file format of this room yields.
 *
 * Knows bytes, shapes and names; not what a name means. */
#pragma once

#include "base/status.h"
#include "core/qformat.h"

enum { STORED_MAX_RANK = 8 };

/* name is NUL-terminated UTF-8 and unique in its checkpoint. data points into a read-only map, is aligned
 * to the element and holds exactly the product of shape elements, row-major, little-endian; of a block format
 * rows of blocks, each row a whole number of them. A scalar has rank 0; a dimension of 0 makes n_bytes 0. All of it
 * lives as long as the checkpoint that gave it. */
struct stored_tensor {
    const char *name;
    enum dtype dtype;
    const struct qformat *format; // of blocks (GGUF): dtype is then u8; NULL: elements of the dtype
    int rank;
    int64_t shape[STORED_MAX_RANK]; // outermost first
    const void *data;
    size_t n_bytes;
    int file;                // which file of the checkpoint
    const char *stored_name; // NULL, or what the file calls it where it was renamed
    bool consumed;           // the caller's mark: false when opened, never read or written here
};

/* What its file calls it. */
static inline const char *stored_name(const struct stored_tensor *t) {
    return t->stored_name ? t->stored_name : t->name;
}

/* A growing list of them. `(struct stored_list){0}` is empty; free(items) when done. */
struct stored_list {
    struct stored_tensor *items;
    size_t n, cap;
};

/* One more, zeroed. The items move when the list grows. */
static inline struct stored_tensor *stored_list_add(struct stored_list *list) {
    if (list->n == list->cap) {
        list->cap = list->cap ? list->cap * 2 : 256;
        list->items = xrealloc(list->items, list->cap, sizeof *list->items);
    }
    struct stored_tensor *t = &list->items[list->n++];
    *t = (struct stored_tensor){0};
    return t;
}
