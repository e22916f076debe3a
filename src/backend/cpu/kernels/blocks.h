/* blocks.h - products of GGUF's block formats, NVFP4 and MXFP4 with activations of 8 bits.
 *
 * x is rounded by 32 columns: numerics.md says what that loses. A set of such products takes blocks as they are stored;
 * formats that it has none for, and everything else, are those of the set of kernels it is put over. */
#pragma once

#include "backend/cpu/kernels/kernels.h"

typedef void block_product(const struct few_rows *f);

enum {
    VNNI_ARRANGEMENTS = 200,
    AVX2_ARRANGEMENTS = 210,
    DOTPROD_ARRANGEMENTS = 220,
    FP4_ARRANGEMENTS = 230,
    AMX_ARRANGEMENTS = 240,
    ARRANGEMENTS_EACH = 10
};

struct block_products {
    block_product *(*of)(const struct weight_part *part); // NULL: none
    int arrangements;                                     // of x: the first of ARRANGEMENTS_EACH that are its own
    int (*arrangement)(const struct weight_part *part);
    void (*arrange)(int arrangement, const float *x, int64_t x_stride, int n_x, int64_t n, float *out);
    bool compact;      // of kernels.h
    bool wide;         // takes 2 * FEW_ROWS rows of x; others get them in halves
    int direct_groups; // of kernels.h, as is ready; NULL where that is all
    struct weight_part (*ready)(const struct weight_part *part, int64_t row, int64_t n_rows, int64_t n, float *out);
    void (*prepare)(void);               // before all others, never twice at once; NULL: nothing is to be
    const struct block_products *others; // of formats that it has none for; NULL: nobody has
};

/* Columns and bytes of a block, where the format is known to the compiler. */
static inline __attribute__((always_inline)) int cols_of_block(const enum qformat_id f) {
    switch (f) {
#define X(id, name, cols, bytes) \
    case QFORMAT_##id: return cols;
        BLOCK_FORMATS(X)
#undef X
    default: return 1;
    }
}
static inline __attribute__((always_inline)) int bytes_of_block(const enum qformat_id f) {
    switch (f) {
#define X(id, name, cols, bytes) \
    case QFORMAT_##id: return bytes;
        BLOCK_FORMATS(X)
#undef X
    default: return 1;
    }
}

/* The set `base` with the products of the best instructions that it stands for: AMX over its set and that of bf16 where
 * the processor has it; AVX-512 VNNI, or AVX2 over the set of that name and where the processor lacks them; Arm's dot
 * product. NULL: there are none. */
const struct kernels *kernels_of_blocks(const struct kernels *base);

#if defined(__x86_64__)
extern const struct block_products products_vnni, products_amx, products_avx2, products_fp4_vnni, products_fp4_amx,
    products_fp4_avx2;
#elif defined(__aarch64__)
extern const struct block_products products_dotprod;
#endif
