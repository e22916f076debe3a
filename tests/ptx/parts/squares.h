/* squares.h - part of matrices.c: matrices of 8 x 8: ldmatrix, stmatrix, movmatrix. */
#pragma once

// ---- turning 8 x 8 --------------------------------------------------------------------------------------------------

/* Rows to columns: rows 4 apart are interleaved, three times. Vectors are written out, as loops over numbers take four
 * times as long. */
#define INTERLEAVED_LOW 0, 8, 1, 9, 2, 10, 3, 11
#define INTERLEAVED_HIGH 4, 12, 5, 13, 6, 14, 7, 15
#define TURN(name, vector, index)                                                                 \
    static inline void name(vector m[8]) {                                                        \
        typedef index places __attribute__((vector_size(sizeof(vector))));                        \
        for (int time = 0; time < 3; time++) {                                                    \
            vector was[8];                                                                        \
            memcpy(was, m, sizeof was);                                                           \
            _Pragma("GCC unroll 4") for (int k = 0; k < 4; k++) {                                 \
                m[2 * k] = __builtin_shuffle(was[k], was[k + 4], (places){INTERLEAVED_LOW});      \
                m[2 * k + 1] = __builtin_shuffle(was[k], was[k + 4], (places){INTERLEAVED_HIGH}); \
            }                                                                                     \
        }                                                                                         \
    }
TURN(turn, octet, int32_t)
TURN(turn_16, octet_of_16, int16_t)
#undef TURN

// ---- matrices of 8 x 8 ----------------------------------------------------------------------------------------------

typedef octet_of_16 matrix[8];

static void get_matrix(const struct warp *w, const struct insn *i, int k, matrix m) {
    memcpy(m, arg_of(w, i, k)->u32, sizeof(matrix));
}
static void set_matrix(const struct warp *w, const struct insn *i, int k, matrix m) {
    memcpy(arg_of(w, i, k)->u32, m, sizeof(matrix));
}

/* A row of 16 bytes; lane 8m + r has the address of row r of matrix m. */
static unsigned char *row_at(struct warp *w, const struct insn *i, uint32_t address) {
    address += (uint32_t)i->offset;
    if (address % 16)
        machine_fault(w, "%s of a row at shared address %#x, which is no multiple of 16", i->name, address);
    return shared_at(w, address, 16);
}

static int n_matrices(const struct insn *i) { return i->n_args - 1; }

static void load_matrices(struct warp *w, const struct insn *i, matrix m[4]) {
    const union lanes *address = arg_of(w, i, n_matrices(i));
    for (int k = 0; k < n_matrices(i); k++)
        for (int row = 0; row < 8; row++)
            memcpy(&m[k][row], row_at(w, i, address->u32[8 * k + row]), 16);
}

static enum outcome run_ldmatrix(struct warp *w, const struct insn *i, uint32_t lanes) {
    if (!whole_warp(w, i, lanes))
        return AGAIN;
    matrix m[4];
    load_matrices(w, i, m); // all of them: the address may be in a register that is written
    for (int k = 0; k < n_matrices(i); k++)
        set_matrix(w, i, k, m[k]);
    return NEXT;
}
static enum outcome run_ldmatrix_trans(struct warp *w, const struct insn *i, uint32_t lanes) {
    if (!whole_warp(w, i, lanes))
        return AGAIN;
    matrix m[4];
    load_matrices(w, i, m);
    for (int k = 0; k < n_matrices(i); k++) {
        turn_16(m[k]);
        set_matrix(w, i, k, m[k]);
    }
    return NEXT;
}

static void store_matrix(struct warp *w, const struct insn *i, int k, matrix m) {
    for (int row = 0; row < 8; row++)
        memcpy(row_at(w, i, arg_of(w, i, 0)->u32[8 * k + row]), &m[row], 16);
}

static enum outcome run_stmatrix(struct warp *w, const struct insn *i, uint32_t lanes) {
    if (!whole_warp(w, i, lanes))
        return AGAIN;
    matrix m;
    for (int k = 0; k < n_matrices(i); k++) {
        get_matrix(w, i, 1 + k, m);
        store_matrix(w, i, k, m);
    }
    return NEXT;
}
static enum outcome run_stmatrix_trans(struct warp *w, const struct insn *i, uint32_t lanes) {
    if (!whole_warp(w, i, lanes))
        return AGAIN;
    matrix m;
    for (int k = 0; k < n_matrices(i); k++) {
        get_matrix(w, i, 1 + k, m);
        turn_16(m);
        store_matrix(w, i, k, m);
    }
    return NEXT;
}

static enum outcome run_movmatrix_trans(struct warp *w, const struct insn *i, uint32_t lanes) {
    if (!whole_warp(w, i, lanes))
        return AGAIN;
    matrix m;
    get_matrix(w, i, 1, m);
    turn_16(m);
    set_matrix(w, i, 0, m);
    return NEXT;
}
