/* bind_internal.h - what the binder's files share among themselves. */
#pragma once

#include "model/weights/bind.h"

/* Keeps the first failure. */
static inline void bind_failed(struct binder *b, enum status status) {
    if (b->status == OK)
        b->status = status;
}

/* All of a tensor of plain numbers as rows of `in`. */
static inline struct weight_part plain_part(const struct stored_tensor *t, int64_t rows, int64_t in) {
    return (struct weight_part){.format = &qformat_plain,
                                .dtype = t->dtype,
                                .data = t->data,
                                .n_rows = rows,
                                .row_stride = in,
                                .col_stride = 1};
}

/* All of a tensor in blocks as rows of `in`. */
static inline struct weight_part block_part(const struct stored_tensor *t, int64_t rows, int64_t in) {
    struct weight_part p = plain_part(t, rows, block_row_bytes(t->format, in));
    p.format = t->format;
    return p;
}

/* A module's whole matrix [rows, in] as one part, in the storage that the quantisation settings say. */
bool bind_module(struct binder *b, const char *module, int64_t rows, int64_t in, struct weight_part *out);

/* Likewise in words of integers (QUANT_GPTQ, QUANT_AWQ, QUANT_INT4_GROUP). */
bool bind_packed(struct binder *b, const char *module, int64_t rows, int64_t in, struct quant_storage q,
                 struct weight_part *out);

/* Likewise as bitsandbytes stores it, and how that is, where the settings say q. */
bool bind_bnb(struct binder *b, const char *module, int64_t rows, int64_t in, struct quant_storage q,
              struct weight_part *out);
struct quant_storage bind_bnb_storage(struct binder *b, const char *module, struct quant_storage q);

/* n_bytes of random elements that live in b->dummy; NULL after a failure. */
const void *dummy_fill(struct binder *b, enum dtype dtype, int rank, const int64_t *shape, size_t n_bytes);
