/* parity_rows.h - rows that a model's program makes on a backend, up to any of its ops, and how near they are to
 * others. For test_parity.c, which says how its two backends are compared. */
#pragma once

#include "on_device.h"

enum { PARITY_TOKENS = 45, PARITY_BLOCK = 16 }; // of a prompt and what follows it; of the cache

struct row_set {
    int width;
    float *at; // [PARITY_TOKENS][width]
};

/* The program up to op `last`, whose result number `out` becomes the logits. Arrays are its own, what they point to is
 * not. */
struct program program_cut(const struct program *p, int last, int out);

/* The logits of all tokens, in chunks; the caller frees them. */
struct row_set program_rows(const struct backend_ops *ops, const struct how *how, const struct program *p,
                            const int32_t *tokens);

struct closeness {
    double most, rms, cosine;
    int worst_row;
};

/* Not a number counts as infinitely far. */
struct closeness rows_compare(const struct row_set *got, const struct row_set *want);

/* What is tested, as the environment says, and what it is compared with. */
struct how parity_tested(const struct program *p);
struct how parity_reference(void);

/* What products are made in there; a test model's 16 bits are bfloat16, whose products are in float16. */
const char *parity_dtype(void);
bool parity_is_exact(void); // in float32
bool parity_by_e4m3(const struct weight *w);
