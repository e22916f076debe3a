/* test_matrices.c - matrices.c against plain loops over the layouts that the manual's tables and the kernels' headers
 * (mma.cuh, wgmma.cuh, kv.cuh) give, with warps made up by hand: no PTX is parsed. Operands are small whole numbers, so
 * that all sums are exact. */
#include "check.h"

#include "machine.h"
#include "numbers.h"

#include <math.h>

// ---- a warpgroup of registers and shared memory ---------------------------------------------------------------------

enum { N_WARPS = 4, N_REGISTERS = 400, N_ARGS = 160 };
static struct block block;
static struct cluster cluster;
static struct warp warps[N_WARPS];
static union lanes registers[N_WARPS][N_REGISTERS], constants[4];
static struct product products[N_WARPS][MOST_PRODUCTS];
static _Alignas(1024) unsigned char shared[SHARED_MOST];
static const char *fault;
static jmp_buf on_fault;

_Noreturn void machine_fault(const struct warp *w, const char *format, ...) {
    (void)w;
    fault = format;
    longjmp(on_fault, 1);
}
unsigned char *shared_at(struct warp *w, uint32_t address, uint32_t n) {
    if (address >> 24 != (uint32_t)w->block->rank || (address & 0xffffff) + n > SHARED_MOST)
        machine_fault(w, "outside");
    return shared + (address & 0xffffff);
}

static void make_warps(void) {
    memset(warps, 0, sizeof warps);
    memset(registers, 0, sizeof registers);
    memset(shared, 0xff, sizeof shared);
    block = (struct block){.cluster = &cluster, .rank = 3, .shared = shared, .warps = warps, .n_warps = N_WARPS};
    for (int k = 0; k < N_WARPS; k++)
        warps[k] = (struct warp){
            .block = &block, .base = {(char *)registers[k], (char *)constants}, .index = k, .products = products[k]};
    for (int lane = 0; lane < LANES; lane++)
        constants[0].u32[lane] = 0, constants[1].u32[lane] = 1, constants[2].s32[lane] = -1;
}
static uint32_t place_of(int r) { return (uint32_t)(r * (int)sizeof(union lanes)); }
static uint32_t constant(int k) { return place_of(k) | 1; } // 0, 1; 2: -1

static const struct opcode *opcode_of(const char *name) {
    for (const struct opcode *o = matrix_ops; o->name; o++) {
        size_t n = strlen(o->name);
        if (o->name[n - 1] == '*' ? !strncmp(o->name, name, n - 1) : !strcmp(o->name, name))
            return o;
    }
    fail_msg("no %s", name);
    return NULL;
}
/* Of all warps, and what came of it. */
static void run_all(struct insn *i) {
    for (int k = 0; k < N_WARPS; k++)
        EXPECT(opcode_of(i->name)->run(&warps[k], i, ~0u) == NEXT);
}
static void run_bare(const char *name) { run_all(&(struct insn){.name = name}); }
static void run_wait(int left) {
    run_all(&(struct insn){.name = "wgmma.wait_group.sync.aligned", .arg = (uint32_t[]){constant(left)}, .n_args = 1});
}

static uint64_t random_state = 1;
static int random_below(int n) {
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (int)((random_state >> 33) % (uint64_t)n);
}

// ---- matrices of 8 x 8 ----------------------------------------------------------------------------------------------

static uint16_t half_of(uint32_t word, int which) { return (uint16_t)(word >> 16 * which); }

static void matrices_are_loaded(void **state) {
    (void)state;
    static const char *const names[2][3] = {
        {"ldmatrix.sync.aligned.m8n8.x1.shared.b16", "ldmatrix.sync.aligned.m8n8.x2.shared.b16",
         "ldmatrix.sync.aligned.m8n8.x4.shared.b16"},
        {"ldmatrix.sync.aligned.m8n8.x1.trans.shared.b16", "ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16",
         "ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16"}};
    for (int turned = 0; turned < 2; turned++)
        for (int size = 0; size < 3; size++) {
            make_warps();
            uint16_t m[32][8];
            uint32_t args[5];
            int n = 1 << size;
            for (int row = 0; row < 8 * n; row++) {
                uint32_t at = 2048 + 16 * (uint32_t)(row * 37 % 64);
                registers[0][0].u32[row] = (3u << 24) + at - 32; // the first matrix is written where the addresses are
                for (int k = 0; k < 8; k++)
                    m[row][k] = (uint16_t)random_below(65536);
                memcpy(shared + at, m[row], 16);
            }
            for (int k = 0; k < n; k++)
                args[k] = place_of(k);
            args[n] = place_of(0);
            struct insn i = {.name = names[turned][size],
                             .arg = args,
                             .n_args = (uint16_t)(n + 1),
                             .n_braced = (uint16_t)n,
                             .offset = 32};
            EXPECT(opcode_of(i.name)->run(&warps[0], &i, 0xffff) == AGAIN);
            EXPECT(opcode_of(i.name)->run(&warps[0], &i, ~0u) == NEXT);
            for (int k = 0; k < n; k++)
                for (int lane = 0; lane < LANES; lane++)
                    for (int h = 0; h < 2; h++) {
                        int row = lane / 4, column = lane % 4 * 2 + h;
                        EXPECT_EQ(half_of(registers[0][k].u32[lane], h),
                                  turned ? m[8 * k + column][row] : m[8 * k + row][column]);
                    }
        }
}

static void matrices_are_stored_and_turned(void **state) {
    (void)state;
    for (int turned = 0; turned < 2; turned++) {
        make_warps();
        uint32_t args[5] = {place_of(9), place_of(0), place_of(1), place_of(2), place_of(3)};
        for (int lane = 0; lane < LANES; lane++) {
            registers[0][9].u32[lane] = (3u << 24) + 4096 + 48 * (uint32_t)lane;
            for (int k = 0; k < 4; k++)
                registers[0][k].u32[lane] = (uint32_t)(k << 24 | lane << 16 | lane << 8 | k);
        }
        struct insn i = {.name = turned ? "stmatrix.sync.aligned.m8n8.x4.trans.shared.b16"
                                        : "stmatrix.sync.aligned.m8n8.x4.shared.b16",
                         .arg = args,
                         .n_args = 5,
                         .n_braced = 4};
        EXPECT(opcode_of(i.name)->run(&warps[0], &i, ~0u) == NEXT);
        for (int row = 0; row < 32; row++)
            for (int c = 0; c < 8; c++) {
                uint16_t x;
                memcpy(&x, shared + 4096 + 48 * row + 2 * c, 2);
                int r = turned ? c : row % 8, k = turned ? row % 8 : c;
                EXPECT_EQ(x, half_of(registers[0][row / 8].u32[4 * r + k / 2], k % 2));
            }
    }
    uint32_t args[2] = {place_of(5), place_of(2)};
    struct insn i = {.name = "movmatrix.sync.aligned.m8n8.trans.b16", .arg = args, .n_args = 2};
    EXPECT(opcode_of(i.name)->run(&warps[0], &i, ~0u) == NEXT);
    for (int r = 0; r < 8; r++)
        for (int c = 0; c < 8; c++)
            EXPECT_EQ(half_of(registers[0][5].u32[4 * r + c / 2], c % 2),
                      half_of(registers[0][2].u32[4 * c + r / 2], r % 2));
}

// ---- numbers --------------------------------------------------------------------------------------------------------

enum kind { F16, BF16, E4M3, E5M2, S8, U8, N_KINDS };
static const char *const KIND_NAMES[] = {"f16", "bf16", "e4m3", "e5m2", "s8", "u8"};
static int bytes_of(enum kind k) { return k <= BF16 ? 2 : 1; }

/* A number from -4 to 4 as it is stored; of u8 from 0 to 8. */
static int random_number(enum kind k) { return random_below(9) - (k == U8 ? 0 : 4); }
static void put_number(enum kind k, int x, unsigned char *to) {
    uint16_t h = k == F16    ? half_from_float((float)x)
                 : k == BF16 ? bf16_from_float((float)x)
                 : k == E4M3 ? e4m3_from_float((float)x)
                             : (uint16_t)x;
    if (k == E5M2) // the numbers that it has: 3 bits of significance are enough for those
        h = (uint16_t)(half_from_float((float)x) >> 8);
    memcpy(to, &h, (size_t)bytes_of(k));
}

static void small_products(void **state) {
    (void)state;
    for (int bf16 = 0; bf16 < 2; bf16++) {
        make_warps();
        int a[16][16], b[16][8];
        unsigned char pair[4];
        uint32_t args[14];
        for (int k = 0; k < 4; k++)
            args[k] = place_of(20 + k), args[4 + k] = place_of(k), args[8 + k % 2] = place_of(4 + k % 2),
            args[10 + k] = place_of(20 + k);
        for (int lane = 0; lane < LANES; lane++) {
            int g = lane / 4, t = lane % 4;
            for (int r = 0; r < 6; r++) {
                for (int h = 0; h < 2; h++) {
                    int x = random_number(F16);
                    if (r < 4)
                        a[g + 8 * (r & 1)][2 * t + h + 8 * (r >> 1)] = x;
                    else
                        b[2 * t + h + 8 * (r - 4)][g] = x;
                    put_number(bf16 ? BF16 : F16, x, pair + 2 * h);
                }
                memcpy(&registers[0][r].u32[lane], pair, 4);
            }
            for (int r = 0; r < 4; r++)
                registers[0][20 + r].f32[lane] = (float)(100 * lane + r);
        }
        struct insn i = {.name = bf16 ? "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32"
                                      : "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32",
                         .arg = args,
                         .n_args = 14,
                         .n_braced = 4};
        EXPECT(opcode_of(i.name)->run(&warps[0], &i, ~0u) == NEXT);
        for (int lane = 0; lane < LANES; lane++)
            for (int r = 0; r < 4; r++) {
                int row = lane / 4 + 8 * (r >> 1), column = lane % 4 * 2 + (r & 1), sum = 100 * lane + r;
                for (int k = 0; k < 16; k++)
                    sum += a[row][k] * b[k][column];
                EXPECT_EQ((long long)registers[0][20 + r].f32[lane], sum);
            }
    }
}

// ---- products of a warpgroup ----------------------------------------------------------------------------------------

/* An operand of so many rows (of M or N), in shared memory at `at`; width: 128, 64, 32 or 16 bytes a line; step: which
 * 32 bytes of the line, unless turned. */
struct placed {
    uint32_t at, width;
    int step;
    bool turned;
    enum kind kind;
};
static uint32_t swizzled(uint32_t width, uint32_t line, uint32_t at) { // kv_swizzled of kv.cuh
    return at ^ (width == 128 ? line & 7 : width == 64 ? line >> 1 & 3 : width == 32 ? line >> 2 & 1 : 0) << 4;
}
enum { APART = 128 }; // pieces of lines, or eights of them, are more than they must be from each other

static uint32_t place_in(const struct placed *p, uint32_t row, uint32_t k) {
    uint32_t b = (uint32_t)bytes_of(p->kind);
    if (!p->turned) { // lines of rows
        uint32_t byte = k * b + 32 * (uint32_t)p->step, eight = 8 * p->width + APART * 8;
        if (p->width == 16)
            return p->at + row / 8 * eight + byte / 16 * 16384 + row % 8 * 16 + byte % 16;
        return p->at + row / 8 * eight + row % 8 * p->width + swizzled(p->width, row, byte);
    }
    if (p->width == 16)
        return p->at + row / 8 * 384 + k / 8 * 16384 + k % 8 * 16 + row % 8 * 2;
    uint32_t per = p->width / 2; // rows of a line of an index of the contraction
    return p->at + row / per * 3072 + k / 8 * 16384 + k % 8 * p->width + swizzled(p->width, k, row % per * 2);
}
static uint64_t descriptor(const struct placed *p) {
    uint64_t mode = p->width == 128 ? 1 : p->width == 64 ? 2 : p->width == 32 ? 3 : 0;
    uint64_t start = p->at + (p->turned || p->width == 16 ? 0 : 32 * (uint64_t)p->step), leading = 16,
             stride = 8 * p->width + APART * 8;
    if (p->width == 16)
        leading = 16384;
    if (p->turned)
        leading = p->width == 16 ? 16384 : 3072, stride = p->width == 16 ? 384 : 16384;
    return start >> 4 | leading >> 4 << 16 | stride >> 4 << 32 | mode << 62;
}

struct problem {
    int n, k;
    enum kind a_kind, b_kind;
    const char *sum;
    bool a_in_registers;
    struct placed a, b;
    int first_sum, first_a; // registers
    bool add, minus_a, minus_b;
    int left[64][32], right[256][32];
};

static void place_operands(struct problem *p) {
    for (int k = 0; k < p->k; k++) {
        for (int row = 0; row < 64; row++) {
            int x = p->left[row][k] = random_number(p->a_kind);
            if (!p->a_in_registers)
                put_number(p->a_kind, x, shared + place_in(&p->a, (uint32_t)row, (uint32_t)k));
        }
        for (int row = 0; row < p->n; row++)
            put_number(p->b_kind, p->right[row][k] = random_number(p->b_kind),
                       shared + place_in(&p->b, (uint32_t)row, (uint32_t)k));
    }
    int per = 4 / bytes_of(p->a_kind); // elements of a word
    for (int lane = 0; p->a_in_registers && lane < LANES * N_WARPS; lane++)
        for (int r = 0; r < 4; r++)
            for (int e = 0; e < per; e++) {
                int row = 16 * (lane / 32) + lane % 32 / 4 + 8 * (r & 1), k = lane % 4 * per + e + 4 * per * (r >> 1);
                put_number(p->a_kind, p->left[row][k],
                           (unsigned char *)&registers[lane / 32][p->first_a + r].u32[lane % 32] +
                               e * bytes_of(p->a_kind));
            }
}

static void issue(struct problem *p) {
    static char names[64][80];
    static uint32_t all_args[64][N_ARGS];
    static struct insn all[64];
    static int next;
    uint32_t *args = all_args[next];
    struct insn *i = &all[next];
    char *name = names[next];
    next = (next + 1) % 64;
    int n = 0, n_sums = !strcmp(p->sum, "f16") ? p->n / 4 : p->n / 2;
    snprintf(name, sizeof names[0], "wgmma.mma_async.sync.aligned.m64n%dk%d.%s.%s.%s", p->n, p->k, p->sum,
             KIND_NAMES[p->a_kind], KIND_NAMES[p->b_kind]);
    while (n < n_sums)
        args[n] = place_of(p->first_sum + n), n++;
    for (int k = 0; p->a_in_registers && k < 4; k++)
        args[n++] = place_of(p->first_a + k);
    if (!p->a_in_registers)
        args[n++] = place_of(300);
    args[n++] = place_of(301);
    args[n++] = place_of(302);
    if (strcmp(p->sum, "s32"))
        args[n++] = constant(p->minus_a ? 2 : 1), args[n++] = constant(p->minus_b ? 2 : 1);
    if (bytes_of(p->a_kind) == 2 && !p->a_in_registers)
        args[n++] = constant(p->a.turned);
    if (bytes_of(p->a_kind) == 2)
        args[n++] = constant(p->b.turned);
    free((void *)(uintptr_t)i->own);
    *i = (struct insn){.name = name, .arg = args, .n_args = (uint16_t)n, .n_braced = (uint16_t)n_sums};
    for (int k = 0; k < N_WARPS; k++) {
        for (int lane = 0; lane < LANES; lane++)
            registers[k][300].u64[lane] = descriptor(&p->a), registers[k][301].u64[lane] = descriptor(&p->b);
        registers[k][302].u32[0] = p->add ? ~0u : 0;
    }
    run_all(i);
}

/* The sum at a row and a column, of thread 32w + 4g + t: wgmma.cuh, wgmma_e4m3_f16.cuh. */
static double sum_at(const struct problem *p, int row, int column) {
    int w = row / 16, g = row % 8, half = row % 16 / 8, j = column / 8, t = column % 8 / 2, odd = column % 2;
    const union lanes *r = registers[w] + p->first_sum;
    if (!strcmp(p->sum, "f16"))
        return half_to_float(half_of(r[2 * j + half].u32[4 * g + t], odd));
    r += 4 * j + 2 * half + odd;
    return !strcmp(p->sum, "s32") ? r->s32[4 * g + t] : (double)r->f32[4 * g + t];
}
static int product_at(const struct problem *p, int row, int column) {
    int sum = 0;
    for (int k = 0; k < p->k; k++)
        sum += p->left[row][k] * p->right[column][k];
    return p->minus_a != p->minus_b ? -sum : sum;
}

/* p twice, in two batches of which the first is not waited for at first, with others between; `p` adds the second time.
 */
static void check(struct problem *p) {
    make_warps();
    place_operands(p);
    p->add = false;
    run_bare("wgmma.fence.sync.aligned");
    issue(p);
    run_bare("wgmma.commit_group.sync.aligned");
    struct problem q = *p; // other sums, that are added to
    q.add = true;
    q.first_sum = 150;
    issue(&q);
    p->add = true;
    issue(p);
    run_bare("wgmma.commit_group.sync.aligned");
    EXPECT(sum_at(p, 17, 5) == 0);
    run_wait(1);
    for (int row = 0; row < 64; row++)
        for (int column = 0; column < p->n; column++)
            if (sum_at(p, row, column) != product_at(p, row, column) || sum_at(&q, row, column) != 0)
                fail_msg(
                    "%s of %s x %s n %d, widths %u %u, turned %d %d, registers %d: row %d, column %d is %g, wanted %d",
                    p->sum, KIND_NAMES[p->a_kind], KIND_NAMES[p->b_kind], p->n, p->a.width, p->b.width, p->a.turned,
                    p->b.turned, p->a_in_registers, row, column, sum_at(p, row, column), product_at(p, row, column));
    run_wait(0);
    for (int row = 0; row < 64; row++)
        for (int column = 0; column < p->n; column++)
            EXPECT(sum_at(p, row, column) == 2 * product_at(p, row, column) &&
                   sum_at(&q, row, column) == product_at(p, row, column));
    for (int k = 0; k < N_WARPS; k++)
        EXPECT(warps[k].n_products == 0 && warps[k].n_batches == 0 && warps[k].n_committed == 0);
}

static void products_of_all_forms(void **state) {
    (void)state;
    static const int sizes[] = {8, 24, 64, 144, 256};
    static const uint32_t widths[] = {128, 64, 32, 16};
    static struct problem p;
    for (int kind = 0; kind < N_KINDS; kind++)
        for (int half_sums = 0; half_sums < (kind >= S8 ? 1 : 2); half_sums++)
            for (int form = 0; form < 2 * 2 * 2 * 4 * 4; form++) {
                bool a_in_registers = form & 1, a_turned = form & 2, b_turned = form & 4;
                enum kind other = kind == E4M3 && form & 8 ? E5M2 : kind == S8 && form & 8 ? U8 : (enum kind)kind;
                if ((bytes_of((enum kind)kind) == 1 || a_in_registers) && a_turned)
                    continue;
                if (bytes_of((enum kind)kind) == 1 && b_turned)
                    continue;
                p = (struct problem){.n = sizes[random_below(5)],
                                     .k = 32 / bytes_of((enum kind)kind),
                                     .a_kind = (enum kind)kind,
                                     .b_kind = other};
                p.sum = kind >= S8 ? "s32" : half_sums ? "f16" : "f32";
                p.a_in_registers = a_in_registers;
                p.a = (struct placed){.at = 1024, .width = widths[form >> 3 & 3], .turned = a_turned, .kind = p.a_kind};
                p.b = (struct placed){.at = 65536, .width = widths[form >> 5], .turned = b_turned, .kind = p.b_kind};
                p.a.step = random_below((int)p.a.width / 32 + (p.a.width == 16)),
                p.b.step = random_below((int)p.b.width / 32 + (p.b.width == 16));
                p.first_a = 320;
                p.minus_a = kind < S8 && random_below(4) == 0, p.minus_b = kind < S8 && random_below(4) == 0;
                check(&p);
            }
}

/* A number as a multiple of 2^(e - 13), towards zero. */
static double cut(double x, int e) { return trunc(ldexp(x, 13 - e)) * ldexp(1, e - 13); }

/* What becomes of a sum of e4m3: all is cut by the largest exponent, then the sum is, or it is rounded to float16, ties
 * to even. */
static double e4m3_sum(const struct problem *p, int row, int column, double was) {
    int e = was != 0 ? ilogb(was) : -64;
    double sum = 0;
    for (int k = 0; k < p->k; k++)
        if (p->left[row][k] && p->right[column][k] && e < ilogb(p->left[row][k]) + ilogb(p->right[column][k]))
            e = ilogb(p->left[row][k]) + ilogb(p->right[column][k]);
    for (int k = 0; k < p->k; k++)
        sum += cut(p->left[row][k] * p->right[column][k], e);
    sum += cut(was, e);
    return strcmp(p->sum, "f16") ? (sum == 0 ? 0 : cut(sum, ilogb(sum))) : half_to_float(half_from_float((float)sum));
}

/* Sums to begin with, of which products keep little or much. */
static void draw_sums(const struct problem *p, double was[64][8]) {
    bool halves = !strcmp(p->sum, "f16");
    for (int lane = 0; lane < LANES * N_WARPS; lane++)
        for (int k = 0; k < 4; k++) {
            int row = 16 * (lane / 32) + lane % 32 / 4 + 8 * (k >> 1), column = lane % 4 * 2 + (k & 1);
            float x = ldexpf((float)(random_below(4001) - 2000), random_below(15) - 10);
            uint16_t half = half_from_float(x);
            union lanes *r = &registers[lane / 32][halves ? k >> 1 : k];
            was[row][column] = halves ? half_to_float(half) : x;
            if (halves)
                memcpy((unsigned char *)&r->u32[lane % 32] + 2 * (k & 1), &half, sizeof half);
            else
                r->f32[lane % 32] = x;
        }
}

static void sums_of_e4m3_are_cut(void **state) {
    (void)state;
    static struct problem p;
    for (int i = 0; i < 40; i++) {
        double was[64][8];
        p = (struct problem){
            .n = 8, .k = 32, .a_kind = E4M3, .b_kind = E4M3, .sum = i % 2 ? "f16" : "f32", .add = true};
        p.a = (struct placed){.at = 1024, .width = 128, .kind = E4M3};
        p.b = (struct placed){.at = 65536, .width = 128, .kind = E4M3};
        make_warps();
        place_operands(&p);
        draw_sums(&p, was);
        issue(&p);
        issue(&p);
        run_bare("wgmma.commit_group.sync.aligned");
        run_wait(0);
        for (int row = 0; row < 64; row++)
            for (int column = 0; column < 8; column++)
                EXPECT(sum_at(&p, row, column) ==
                       e4m3_sum(&p, row, column, e4m3_sum(&p, row, column, was[row][column])));
    }
}

/* What a kernel may not do ends the program. */
static void faults_are_found(void **state) {
    (void)state;
    static struct problem p;
    p = (struct problem){.n = 16,
                         .k = 32,
                         .a_kind = E4M3,
                         .b_kind = E4M3,
                         .sum = "f32",
                         .a_in_registers = true,
                         .first_a = 320,
                         .b = {.at = 65536, .width = 128, .kind = E4M3}};
    make_warps();
    place_operands(&p);
    issue(&p);
    run_bare("wgmma.commit_group.sync.aligned");
    registers[0][321].u32[7]++;
    fault = NULL;
    if (!setjmp(on_fault))
        run_wait(0);
    EXPECT(fault && strstr(fault, "left operand"));

    make_warps();
    warps[0].exited = 1;
    fault = NULL;
    if (!setjmp(on_fault))
        run_bare("wgmma.fence.sync.aligned");
    EXPECT(fault && strstr(fault, "have left"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(matrices_are_loaded),  cmocka_unit_test(matrices_are_stored_and_turned),
        cmocka_unit_test(small_products),       cmocka_unit_test(products_of_all_forms),
        cmocka_unit_test(sums_of_e4m3_are_cut), cmocka_unit_test(faults_are_found)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
