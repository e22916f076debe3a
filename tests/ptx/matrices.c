/* matrices.c - what a warp does with matrices: ldmatrix, stmatrix, movmatrix, mma.sync, and wgmma with all that belongs
 * to it (machine.h).
 *
 * A register of 32 lanes is 8 rows of four words, row g in lanes 4g .. 4g + 3: as bytes in memory, a matrix of 8 x 8
 * numbers of 16 bits, or 8 x 16 of 8 bits, row after row. Of sums in 32 bits two such registers are a matrix, the even
 * columns and the odd ones.
 *
 * A product of wgmma is put down when it is met (struct product) and computed when its batch is waited for: only then
 * are shared operands read, and sums written. Products of the same sums are then computed one after another with the
 * sums in `sums`, as these lie badly for it in registers. Each warp computes its own 16 rows and waits for no other.
 * Sums are float32, rounded to nearest; those of float16 are rounded to it behind every product; those of int32 are
 * exact and wrap; those of e4m3 are what a device makes of them, bit for bit (parts/sums_of_e4m3.h). */
#include "machine.h"
#include "numbers.h"

#include <stdio.h>
#include <stdlib.h>

typedef float octet __attribute__((vector_size(32)));
typedef uint16_t octet_of_16 __attribute__((vector_size(16)));

/* Whether all of a warp is here, as .sync.aligned wants it. */
static bool whole_warp(const struct warp *w, const struct insn *i, uint32_t lanes) {
    if (w->exited)
        machine_fault(w, "%s in a warp of which lanes %08x have left", i->name, w->exited);
    return lanes == ~0u;
}

#include "parts/squares.h"

#include "parts/small_products.h"

// ---- wgmma: what an instruction says --------------------------------------------------------------------------------

enum sum { SUM_F32, SUM_F16, SUM_S32 };
enum {
    MOST_N = 256,
    MOST_K = 32,
    ROWS = 16 /* of a warp */,
    STEP_BYTES = 32 /* of the contraction, whatever is multiplied */
};

struct form {
    int n, k, n_sums; // registers of sums
    enum sum sum;
    enum element a, b;
    bool a_in_registers, a_turned, b_turned;
    float sign;             // of the product
    int at_a, at_b, at_add; // arguments
};

static enum element element_named(const struct warp *w, const struct insn *i, const char *name) {
    for (int e = 0; e < N_ELEMENTS; e++)
        if (!strcmp(ELEMENTS[e].name, name))
            return (enum element)e;
    machine_fault(w, "%s: elements of %s are not known", i->name, name);
}

/* A factor of 1 or -1, or whether an operand is turned: an argument that is a constant. */
static int immediate(const struct warp *w, const struct insn *i, int k) { return arg_of(w, i, k)->s32[0]; }

/* The name: sizes, sums and elements. */
static void read_name(const struct warp *w, const struct insn *i, struct form *f) {
    char sum[8], a[8], b[24];
    if (sscanf(i->name, "wgmma.mma_async.sync.aligned.m64n%dk%d.%7[^.].%7[^.].%23s", &f->n, &f->k, sum, a, b) != 5)
        machine_fault(w, "%s is not known", i->name);
    f->a = element_named(w, i, a);
    f->b = element_named(w, i, b);
    f->sum = !strcmp(sum, "f16") ? SUM_F16 : !strcmp(sum, "s32") ? SUM_S32 : SUM_F32;
    bool sum_known = f->sum == SUM_S32 ? f->a >= S8 && f->b >= S8
                                       : f->a < S8 && f->b < S8 && (f->sum == SUM_F16 || !strcmp(sum, "f32"));
    if (!sum_known || f->n < 8 || f->n > MOST_N || f->n % 8 || f->k * ELEMENTS[f->a].bytes != STEP_BYTES ||
        ELEMENTS[f->b].bytes != ELEMENTS[f->a].bytes)
        machine_fault(w, "%s is not known", i->name);
}

/* The arguments: {sums}, descriptor or {four words} of the left operand, descriptor of the right one, whether to add;
 * of floats then the factors of both; of 16 bits then whether the left operand is turned, unless it is in registers,
 * and whether the right one is. */
static void read_arguments(const struct warp *w, const struct insn *i, struct form *f) {
    int n_factors = f->sum == SUM_S32 ? 0 : 2, n_turns = ELEMENTS[f->a].bytes == 2 ? 2 : 0, n = i->n_args - i->n_braced;
    f->n_sums = f->sum == SUM_F16 ? f->n / 4 : f->n / 2;
    f->a_in_registers = n != 3 + n_factors + n_turns;
    if (f->a_in_registers && n_turns)
        n_turns = 1;
    if (i->n_braced != f->n_sums || n != (f->a_in_registers ? 6 : 3) + n_factors + n_turns)
        machine_fault(w, "%s has %d arguments, %d of them sums, which is not known", i->name, i->n_args, i->n_braced);
    f->at_a = f->n_sums;
    f->at_b = f->at_a + (f->a_in_registers ? 4 : 1);
    f->at_add = f->at_b + 1;
    f->sign = n_factors ? (float)(immediate(w, i, f->at_add + 1) * immediate(w, i, f->at_add + 2)) : 1;
    f->a_turned = n_turns == 2 && immediate(w, i, f->at_add + 3);
    f->b_turned = n_turns && immediate(w, i, f->at_add + 2 + n_turns);
}

/* What an instruction says, read once. */
static const struct form *form_of(const struct warp *w, const struct insn *i) {
    if (!i->own) {
        struct form *f = calloc(1, sizeof *f);
        if (!f)
            machine_fault(w, "no memory");
        read_name(w, i, f);
        read_arguments(w, i, f);
        insn_keep(i, f);
    }
    return i->own;
}

// ---- wgmma: what is put down ----------------------------------------------------------------------------------------

/* A descriptor, which must be the same in all lanes. */
static uint64_t descriptor_of(const struct warp *w, const struct insn *i, int k) {
    const uint64_t *d = arg_of(w, i, k)->u64;
    for (int lane = 1; lane < LANES; lane++)
        if (d[lane] != d[0])
            machine_fault(w, "%s: lanes 0 and %d have different descriptors, %#llx and %#llx", i->name, lane,
                          (unsigned long long)d[0], (unsigned long long)d[lane]);
    return d[0];
}

static bool adds(const struct warp *w, const struct insn *i, int k) {
    uint32_t flags = *flag_of(w, i, k);
    if (flags && flags != ~0u && !(i->arg[k] & 1))
        machine_fault(w, "%s: lanes differ in whether to add, %08x", i->name, flags);
    return flags;
}

static enum outcome run_product(struct warp *w, const struct insn *i, uint32_t lanes) {
    if (!whole_warp(w, i, lanes))
        return AGAIN;
    const struct form *f = form_of(w, i);
    if (w->n_products == MOST_PRODUCTS)
        machine_fault(w, "%d products of a warp are under way", MOST_PRODUCTS);
    if (!w->products && !(w->products = malloc(MOST_PRODUCTS * sizeof *w->products))) // machine.c frees it
        machine_fault(w, "no memory");
    struct product *p = &w->products[w->n_products++];
    p->insn = i;
    p->a = f->a_in_registers ? 0 : descriptor_of(w, i, f->at_a);
    for (int k = 0; f->a_in_registers && k < 4; k++)
        memcpy(p->a_words[k], arg_of(w, i, f->at_a + k)->u32, sizeof p->a_words[k]);
    p->b = descriptor_of(w, i, f->at_b);
    p->add = adds(w, i, f->at_add);
    return NEXT;
}

static enum outcome run_fence(struct warp *w, const struct insn *i, uint32_t lanes) {
    return whole_warp(w, i, lanes) ? NEXT : AGAIN;
}

static enum outcome run_commit(struct warp *w, const struct insn *i, uint32_t lanes) {
    if (!whole_warp(w, i, lanes))
        return AGAIN;
    if (w->n_batches == MOST_BATCHES)
        machine_fault(w, "%d batches of products of a warp are under way", MOST_BATCHES);
    w->batch[w->n_batches++] = w->n_products - w->n_committed;
    w->n_closed++;
    w->n_committed = w->n_products;
    return NEXT;
}

// ---- wgmma: operands in shared memory -------------------------------------------------------------------------------

/* Where a descriptor's operand lies. Its pieces are 16 bytes. `rows` operands have lines (of M or N) with the
 * contraction along them, of which two pieces are multiplied; turned ones, of 16 bits, have a line for each of the 16
 * of the contraction, with M or N along it.
 *
 *     Lines are `width` bytes apart, eight of them; the next eight are `eight` bytes further. Of a line width / 16
 *     pieces follow each other, the next as many are `across` bytes further. Then the piece's number in the line is
 *     changed (exclusive or) by bits 7.. of the address, as many as it has. */
struct operand {
    uint32_t start, eight, across, width;
};

static struct operand operand_of(const struct warp *w, const struct product *p, uint64_t descriptor, bool turned) {
    static const uint32_t widths[4] = {16, 128, 64, 32};
    struct operand o = {.start = (uint32_t)(descriptor & 0x3fff) << 4, .width = widths[descriptor >> 62]};
    uint32_t leading = (uint32_t)(descriptor >> 16 & 0x3fff) << 4, stride = (uint32_t)(descriptor >> 32 & 0x3fff) << 4;
    bool exchanged =
        turned &&
        o.width == 16; // of lines of one piece the stride is from piece to piece, of others from eight lines to eight
    o.eight = exchanged ? leading : stride;
    o.across = exchanged ? stride : leading;
    if (descriptor >> 49 & 7)
        machine_fault(w, "the product of line %d: a descriptor with a base offset, %#llx, is not known", p->insn->line,
                      (unsigned long long)descriptor);
    return o;
}

/* A piece of each of eight lines, the first a multiple of 8. */
static void take_eight(struct warp *w, const struct operand *o, int line, int piece, unsigned char *to, int pitch) {
    uint32_t pieces = o->width / 16, along = o->start % o->width / 16 + (uint32_t)piece % pieces;
    uint32_t at = o->start / o->width * o->width + (uint32_t)line / 8 * o->eight + (uint32_t)piece / pieces * o->across;
    if (along >= pieces)
        machine_fault(w, "a product's operand at shared address %#x goes over the end of lines of %u bytes", o->start,
                      o->width);
    at &= 0x3ffff;
    const unsigned char *from = shared_at(w, (uint32_t)w->block->rank << 24 | at, 8 * o->width);
    for (uint32_t k = 0; k < 8; k++, at += o->width, from += o->width, to += pitch)
        memcpy(to, from + ((along ^ (at >> 7 & (pieces - 1))) << 4), 16);
}

/* Pieces of lines, line after line: to[n_lines][n_pieces][16]. n_lines: a multiple of 8. */
static void take(struct warp *w, const struct operand *o, int first_line, int n_lines, int first_piece, int n_pieces,
                 unsigned char *to) {
    for (int line = 0; line < n_lines; line += 8)
        for (int piece = 0; piece < n_pieces; piece++)
            take_eight(w, o, first_line + line, first_piece + piece, to + (line * n_pieces + piece) * 16,
                       n_pieces * 16);
}

// ---- wgmma: products ------------------------------------------------------------------------------------------------

/* The left operand in registers: matrices of rows 0.., 8.., then the same of the second piece. */
static void left_of_registers(const struct warp *w, const struct product *p, const struct form *f,
                              unsigned char raw[ROWS][STEP_BYTES]) {
    for (int k = 0; k < 4; k++) {
        if (memcmp(p->a_words[k], arg_of(w, p->insn, f->at_a + k)->u32, sizeof p->a_words[k]))
            machine_fault(w, "registers of the left operand of line %d's product were written before it was waited for",
                          p->insn->line);
        for (int row = 0; row < 8; row++)
            memcpy(raw[row + 8 * (k & 1)] + 16 * (k >> 1), &p->a_words[k][4 * row], 16);
    }
}

/* 8 x 8 numbers, in lines that are so far apart. */
static void turn_square(float *to, int to_pitch, const float *from, int from_pitch) {
    octet m[8];
    for (int k = 0; k < 8; k++)
        memcpy(&m[k], from + k * from_pitch, sizeof m[k]);
    turn(m);
    for (int k = 0; k < 8; k++)
        memcpy(to + k * to_pitch, &m[k], sizeof m[k]);
}

/* This warp's rows of the left operand, those of an index of the contraction together: left[k][row]. */
static void take_left(struct warp *w, const struct product *p, const struct form *f, float left[MOST_K][ROWS]) {
    unsigned char raw[ROWS][STEP_BYTES];
    float rows[ROWS * MOST_K];
    int first = w->index % 4 * ROWS;
    struct operand o = operand_of(w, p, p->a, f->a_turned);
    if (f->a_in_registers)
        left_of_registers(w, p, f, raw);
    else if (f->a_turned)
        take(w, &o, 0, f->k, first / 8, 2, raw[0]);
    else
        take(w, &o, first, ROWS, 0, 2, raw[0]);
    decode(f->a, f->a_turned ? left[0] : rows, raw, ROWS * f->k);
    for (int k = 0; k < f->k && !f->a_turned; k += 8)
        for (int row = 0; row < ROWS; row += 8)
            turn_square(&left[k][row], ROWS, rows + row * f->k + k, f->k);
    for (int k = 0; k < f->k && f->sign < 0; k++)
        for (int row = 0; row < ROWS; row++)
            left[k][row] = -left[k][row];
}

/* sums[n][row] += sum over k of left[k][row] * right[n step_n + k step_k]. n: a multiple of 4. */
__attribute__((always_inline)) static inline void multiply(float (*restrict sums)[ROWS], const float left[MOST_K][ROWS],
                                                           const float *restrict right, int n, int n_k, int step_n,
                                                           int step_k) {
    for (int first = 0; first < n; first += 4) {
        octet s[4][2], l[2];
        memcpy(s, sums[first], sizeof s);
        for (int k = 0; k < n_k; k++) {
            memcpy(l, left[k], sizeof l);
#pragma GCC unroll 4
            for (int c = 0; c < 4; c++) {
                float r = right[(first + c) * step_n + k * step_k];
                s[c][0] += r * l[0];
                s[c][1] += r * l[1];
            }
        }
        memcpy(sums[first], s, sizeof s);
    }
}

#include "parts/sums_of_e4m3.h"

/* The right operand is taken, decoded and multiplied in parts that stay near. */
enum { PART = 64 }; // columns

static void multiply_rows(struct warp *w, const struct form *f, const struct operand *o, const float left[MOST_K][ROWS],
                          float (*sums)[ROWS]) {
    unsigned char raw[PART * STEP_BYTES];
    float right[PART * MOST_K];
    struct left_of_e4m3 l;
    bool e4m3 = f->a == E4M3 && f->b == E4M3;
    if (e4m3)
        look_at_left(&l, left);
    for (int first = 0; first < f->n; first += PART) {
        int n = f->n - first < PART ? f->n - first : PART;
        take(w, o, first, n, 0, 2, raw);
        decode(f->b, right, raw, n * f->k);
        for (int k = 0; k < n && e4m3; k++)
            multiply_e4m3(sums[first + k], left, &l, right + k * MOST_K, f->sum == SUM_F16);
        if (e4m3)
            continue;
        if (f->k == 32)
            multiply(sums + first, left, right, n, 32, 32, 1);
        else
            multiply(sums + first, left, right, n, 16, 16, 1);
    }
}
static void multiply_turned(struct warp *w, const struct form *f, const struct operand *o,
                            const float left[MOST_K][ROWS], float (*sums)[ROWS]) {
    unsigned char raw[16 * PART * 2];
    float right[16 * PART];
    for (int first = 0; first < f->n; first += PART) {
        int n = f->n - first < PART ? f->n - first : PART;
        take(w, o, 0, 16, first / 8, n / 8, raw);
        decode(f->b, right, raw, 16 * n);
        multiply(sums + first, left, right, n, 16, 1, n);
    }
}

/* Sums of a warp in columns: sums[n][row]. Of int32 they are in `whole`, and each product's alone in sums, where they
 * are exact. */
struct sums {
    _Alignas(32) float sums[MOST_N][ROWS];
    _Alignas(32) int32_t whole[MOST_N][ROWS];
};
/* Of eight columns, 8j.., and eight of the rows. */
static float *kept_sums(struct sums *s, const struct form *f, int j, int half) {
    return f->sum == SUM_S32 ? (float *)&s->whole[8 * j][8 * half] : &s->sums[8 * j][8 * half];
}

static void get_sums(const struct warp *w, const struct insn *i, const struct form *f, struct sums *s) {
    octet rows[8];
    for (int j = 0; j < f->n / 8; j++)
        for (int half = 0; half < 2; half++) {
            if (f->sum == SUM_F16)
                decode_f16((float *)rows, arg_of(w, i, 2 * j + half)->u32, 64);
            else
                join_columns(rows, arg_of(w, i, 4 * j + 2 * half), arg_of(w, i, 4 * j + 2 * half + 1));
            turn_square(kept_sums(s, f, j, half), ROWS, (float *)rows, 8);
        }
}

static void set_halves(union lanes *to, const octet rows[8]) {
    float all[64];
    uint16_t halves[64];
    memcpy(all, rows, sizeof all);
    for (int k = 0; k < 64; k++)
        halves[k] = half_from_float(all[k]);
    memcpy(to->u32, halves, sizeof halves);
}
static void set_sums(const struct warp *w, const struct insn *i, const struct form *f, struct sums *s) {
    octet rows[8];
    for (int j = 0; j < f->n / 8; j++)
        for (int half = 0; half < 2; half++) {
            turn_square((float *)rows, 8, kept_sums(s, f, j, half), ROWS);
            if (f->sum == SUM_F16)
                set_halves(arg_of(w, i, 2 * j + half), rows);
            else
                part_columns(arg_of(w, i, 4 * j + 2 * half), arg_of(w, i, 4 * j + 2 * half + 1), rows);
        }
}

/* Behind a product: sums as they are kept. */
static void settle_sums(const struct form *f, struct sums *s) {
    for (int n = 0; n < f->n && f->sum == SUM_F16; n++)
        for (int row = 0; row < ROWS; row++)
            s->sums[n][row] = half_rounded(s->sums[n][row]);
    for (int n = 0; n < f->n && f->sum == SUM_S32; n++)
        for (int row = 0; row < ROWS; row++)
            s->whole[n][row] = (int32_t)((uint32_t)s->whole[n][row] + (uint32_t)(int32_t)s->sums[n][row]);
}

static void compute(struct warp *w, const struct product *p, struct sums *s) {
    const struct form *f = form_of(w, p->insn);
    _Alignas(32) float left[MOST_K][ROWS];
    struct operand right = operand_of(w, p, p->b, f->b_turned);
    take_left(w, p, f, left);
    if (!p->add)
        memset(s->whole, 0, (size_t)f->n * sizeof s->whole[0]);
    if (!p->add || f->sum == SUM_S32)
        memset(s->sums, 0, (size_t)f->n * sizeof s->sums[0]);
    if (f->b_turned)
        multiply_turned(w, f, &right, left, s->sums);
    else
        multiply_rows(w, f, &right, left, s->sums);
    settle_sums(f, s);
}

// ---- wgmma: which, and when -----------------------------------------------------------------------------------------

static bool same_sums(const struct form *f, const uint32_t *sums, const struct form *g, const uint32_t *others) {
    return f->n_sums == g->n_sums && f->sum == g->sum && !memcmp(sums, others, (size_t)f->n_sums * sizeof *sums);
}
/* Of sums that are not the same: whether none begin among the others. */
static bool apart(const struct form *f, const uint32_t *sums, const struct form *g, const uint32_t *others) {
    bool among = false;
    for (int k = 0; k < f->n_sums; k++)
        among |= sums[k] == others[0];
    for (int k = 0; k < g->n_sums; k++)
        among |= others[k] == sums[0];
    return !among;
}

/* Computes products[first], and those behind it that go on with its sums, up to the n-th. Those of other sums may stand
 * between. They leave no insn behind. */
static void compute_chain(struct warp *w, int first, int n) {
    struct sums s;
    const struct insn *i = w->products[first].insn;
    const struct form *f = form_of(w, i);
    if (w->products[first].add)
        get_sums(w, i, f, &s);
    for (int k = first; k < n; k++) {
        struct product *p = &w->products[k];
        if (!p->insn)
            continue;
        const struct form *g = form_of(w, p->insn);
        if (same_sums(f, i->arg, g, p->insn->arg)) {
            compute(w, p, &s);
            p->insn = NULL;
        } else if (!apart(f, i->arg, g, p->insn->arg))
            break;
    }
    set_sums(w, i, f, &s);
}

static void compute_oldest(struct warp *w, int n) {
    for (int k = 0; k < n; k++)
        if (w->products[k].insn)
            compute_chain(w, k, n);
    w->n_products -= n;
    w->n_committed -= n;
    memmove(w->products, w->products + n, (size_t)w->n_products * sizeof *w->products);
}

/* The warp's batches are done, up to the one of that number. */
static void finish_batches(struct warp *w, uint64_t last) {
    int left = (int)(w->n_closed - last), n_done = w->n_batches > left ? w->n_batches - left : 0, n = 0;
    for (int k = 0; k < n_done; k++)
        n += w->batch[k];
    if (n)
        compute_oldest(w, n);
    w->n_batches -= n_done;
    memmove(w->batch, w->batch + n_done, (size_t)w->n_batches * sizeof *w->batch);
}

/* All batches but the latest few are done. A product is of four warps together: it does not begin before all have asked
 * for it, and ends for all. */
static enum outcome run_wait(struct warp *w, const struct insn *i, uint32_t lanes) {
    if (!whole_warp(w, i, lanes))
        return AGAIN;
    uint64_t left = (uint64_t)immediate(w, i, 0), last = w->n_closed > left ? w->n_closed - left : 0;
    struct warp *four = w - w->index % 4;
    if (w->index / 4 * 4 + 4 > w->block->n_warps)
        machine_fault(w, "a product of fewer than four warps");
    for (int k = 0; k < 4; k++)
        if (four[k].n_closed < last) {
            if (four[k].exited == ~0u)
                machine_fault(w, "warp %d has left before a product of the four", four[k].index);
            return AGAIN;
        }
    for (int k = 0; k < 4; k++)
        finish_batches(&four[k], last);
    return NEXT;
}

const struct opcode matrix_ops[] = {
    {"ldmatrix.sync.aligned.m8n8.x1.shared.b16", run_ldmatrix},
    {"ldmatrix.sync.aligned.m8n8.x2.shared.b16", run_ldmatrix},
    {"ldmatrix.sync.aligned.m8n8.x4.shared.b16", run_ldmatrix},
    {"ldmatrix.sync.aligned.m8n8.x1.trans.shared.b16", run_ldmatrix_trans},
    {"ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16", run_ldmatrix_trans},
    {"ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16", run_ldmatrix_trans},
    {"stmatrix.sync.aligned.m8n8.x1.shared.b16", run_stmatrix},
    {"stmatrix.sync.aligned.m8n8.x2.shared.b16", run_stmatrix},
    {"stmatrix.sync.aligned.m8n8.x4.shared.b16", run_stmatrix},
    {"stmatrix.sync.aligned.m8n8.x1.trans.shared.b16", run_stmatrix_trans},
    {"stmatrix.sync.aligned.m8n8.x2.trans.shared.b16", run_stmatrix_trans},
    {"stmatrix.sync.aligned.m8n8.x4.trans.shared.b16", run_stmatrix_trans},
    {"movmatrix.sync.aligned.m8n8.trans.b16", run_movmatrix_trans},
    {"mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32", run_mma_f16},
    {"mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32", run_mma_bf16},
    {"wgmma.mma_async.sync.aligned.m64n*", run_product}, // read_name knows the rest
    {"wgmma.fence.sync.aligned", run_fence},
    {"wgmma.commit_group.sync.aligned", run_commit},
    {"wgmma.wait_group.sync.aligned", run_wait},
    {NULL, NULL},
};
