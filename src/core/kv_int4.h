/* kv_int4.h - rows of keys and values in four bits: what --kv-cache-dtype int4 keeps.
 *
 * A row is what a KV head and token have. It is rotated, so that no few channels are larger than the others, and cut
 * into groups of KV_INT4_GROUP elements, each with a scale:
 *
 *     rotation   y = H (s x) / sqrt(b), H the Hadamard matrix of b x b, s a fixed pattern of signs. b is the row's
 *                width n, or, where that is no power of two, the largest one that divides it: then blocks of b
 *     scale      bf16 d: of largest / -7, -7.5, -8 and -8.5, signs and all, the one that leaves least squared error
 *     codes      c = round(y / d) + 8 in 0 .. 15, y becomes d (c - 8). A byte of a group of m elements, in the last
 *                group perhaps less than 32, has elements i (low) and i + ceil(m / 2)
 *     bytes      n / 2 + 2 ceil(n / 32)
 *
 * The rotation is orthonormal: queries that are rotated alike meet rotated keys in the same products, and the weighted
 * sum of rotated values is rotated back once. Measured on normal numbers, squared error of variance 1: 0.0068 at these
 * 4.5 bits; a scale and an offset a group of 64, as many bits, 0.0080; one scale of 128, 4.125 bits, 0.0098. */
#pragma once

#include <stdint.h>

enum { KV_INT4_GROUP = 32 };

static inline int64_t kv_int4_groups(int64_t n) { return (n + KV_INT4_GROUP - 1) / KV_INT4_GROUP; }
static inline int64_t kv_int4_code_bytes(int64_t n) {
    return n / KV_INT4_GROUP * (KV_INT4_GROUP / 2) + (n % KV_INT4_GROUP + 1) / 2;
}
static inline int64_t kv_int4_row_bytes(int64_t n) { return 2 * kv_int4_groups(n) + kv_int4_code_bytes(n); }

/* Of n_heads keys and values of so many tokens, in whole lines of 16 bytes. */
int64_t kv_int4_block_bytes(int64_t n_heads, int64_t k_dim, int64_t v_dim, int64_t n_tokens);

/* Where a row lies; strides in elements. */
struct kv_int4_row {
    uint16_t *scales; // [groups], bf16
    uint8_t *codes;   // [code_bytes]
    int64_t scale_stride, code_stride;
};

void kv_int4_rotate(float *x, int n);
void kv_int4_rotate_back(float *x, int n);

/* Rotates x and stores it. A group with something that is not finite is read as NaNs. */
void kv_int4_keep(float *x, int n, struct kv_int4_row to);
void kv_int4_load(struct kv_int4_row from, int n, float *x); // as it is stored: rotated
