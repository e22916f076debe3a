/* blocks.c - sets of kernels whose products with blocks are those of struct block_products. */
#include "backend/cpu/kernels/blocks.h"

#include "base/status.h"

#include <pthread.h>
#if defined(__aarch64__)
#include <sys/auxv.h>
#endif

enum { MAX_SETS = 6 };
static struct kernels sets[MAX_SETS];
static const struct kernels *bases[MAX_SETS];
static const struct block_products *products[MAX_SETS];
static int n_sets;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* The products of a part, and those whose an arrangement is. NULL: the base's. */
static const struct block_products *products_of(int set, const struct weight_part *part) {
    const struct block_products *p = products[set];
    while (p && !p->of(part))
        p = p->others;
    return p;
}
static const struct block_products *arranged_by(int set, int how) {
    const struct block_products *p = products[set];
    while (p && (how < p->arrangements || how >= p->arrangements + ARRANGEMENTS_EACH))
        p = p->others;
    return p;
}

/* More rows of x than FEW_ROWS, by functions that take no more: a half lies behind the other. */
static int first_half(int n_x) { return (n_x + 1) / 2; }
static void arrange_halves(void (*arrange)(int how, const float *x, int64_t stride, int n_x, int64_t n, float *out),
                           int how, const float *x, int64_t stride, int n_x, int64_t n, float *out) {
    int half = first_half(n_x);
    arrange(how, x, stride, half, n, out);
    arrange(how, x + half * stride, stride, n_x - half, n, out + arranged_floats(n));
}
static void multiply_halves(block_product *multiply, const struct few_rows *f) {
    struct few_rows half = *f;
    half.n_x = first_half(f->n_x);
    multiply(&half);
    half.y += half.n_x * f->y_stride;
    half.n_x = f->n_x - half.n_x;
    half.x += arranged_floats(f->n_cols);
    half.near = true;
    multiply(&half);
}
static void arrange_by(int set, int how, const float *x, int64_t stride, int n_x, int64_t n, float *out) {
    const struct block_products *own = arranged_by(set, how);
    if (n_x > FEW_ROWS && !(own && own->wide))
        arrange_halves(own ? own->arrange : bases[set]->arrange, how, x, stride, n_x, n, out);
    else
        (own ? own->arrange : bases[set]->arrange)(how, x, stride, n_x, n, out);
}
static void multiply_by(int set, const struct few_rows *f) {
    const struct block_products *own = products_of(set, f->part);
    block_product *multiply = own ? own->of(f->part) : bases[set]->multiply_few;
    if (f->n_x > FEW_ROWS && !(own && own->wide))
        multiply_halves(multiply, f);
    else
        multiply(f);
}

/* Functions of one set, which must know its base. */
#define SET(i)                                                                                                  \
    static int arrangement_##i(const struct weight_part *part) {                                                \
        const struct block_products *own = products_of(i, part);                                                \
        return (own ? own->arrangement : bases[i]->arrangement)(part);                                          \
    }                                                                                                           \
    static void arrange_##i(int how, const float *x, int64_t stride, int n_x, int64_t n, float *out) {          \
        arrange_by(i, how, x, stride, n_x, n, out);                                                             \
    }                                                                                                           \
    static void multiply_few_##i(const struct few_rows *f) { multiply_by(i, f); }                               \
    static int direct_groups_##i(const struct weight_part *part) {                                              \
        const struct block_products *own = products_of(i, part);                                                \
        return own ? own->direct_groups : bases[i]->direct_groups(part);                                        \
    }                                                                                                           \
    static struct weight_part ready_##i(const struct weight_part *part, int64_t row, int64_t n_rows, int64_t n, \
                                        float *out) {                                                           \
        const struct block_products *own = products_of(i, part);                                                \
        return (own ? own->ready : bases[i]->ready)(part, row, n_rows, n, out);                                 \
    }                                                                                                           \
    static bool is_compact_##i(const struct weight_part *part) {                                                \
        const struct block_products *own = products_of(i, part);                                                \
        return own && own->compact;                                                                             \
    }
SET(0)
SET(1)
SET(2)
SET(3)
SET(4)
SET(5)
#define FUNCTIONS(i) \
    { arrangement_##i, arrange_##i, multiply_few_##i, direct_groups_##i, ready_##i, is_compact_##i }
static const struct {
    int (*arrangement)(const struct weight_part *part);
    void (*arrange)(int arrangement, const float *x, int64_t x_stride, int n_x, int64_t n, float *out);
    void (*multiply_few)(const struct few_rows *f);
    int (*direct_groups)(const struct weight_part *part);
    struct weight_part (*ready)(const struct weight_part *part, int64_t row, int64_t n_rows, int64_t n, float *out);
    bool (*is_compact)(const struct weight_part *part);
} functions[MAX_SETS] = {FUNCTIONS(0), FUNCTIONS(1), FUNCTIONS(2), FUNCTIONS(3), FUNCTIONS(4), FUNCTIONS(5)};

static const struct kernels *set_of(const struct kernels *base, const struct block_products *p) {
    for (int i = 0; i < n_sets; i++)
        if (bases[i] == base)
            return &sets[i];
    BUG_IF(n_sets == MAX_SETS);
    int i = n_sets++;
    bases[i] = base;
    products[i] = p;
    sets[i] = *base;
    for (; p; p = p->others) {
        if (p->prepare)
            p->prepare();
        sets[i].wide |= p->wide;
    }
    sets[i].arrangement = functions[i].arrangement;
    sets[i].arrange = functions[i].arrange;
    sets[i].multiply_few = functions[i].multiply_few;
    sets[i].direct_groups = functions[i].direct_groups;
    sets[i].ready = functions[i].ready;
    sets[i].is_compact = functions[i].is_compact;
    return &sets[i];
}

static const struct block_products *products_over(const struct kernels *base) {
#if defined(__x86_64__)
    bool vnni = __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512bw") &&
                __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
    if (base == &kernels_portable)
        return NULL;
    if (!vnni || base == &kernels_avx2)
        return &products_fp4_avx2;
    return base != &kernels_avx512 && kernels_amx() ? &products_fp4_amx : &products_fp4_vnni;
#elif defined(__aarch64__)
    bool has_dots = getauxval(AT_HWCAP) & HWCAP_ASIMDDP;
    return has_dots && base != &kernels_portable ? &products_dotprod : NULL;
#else
    (void)base;
    return NULL;
#endif
}

const struct kernels *kernels_of_blocks(const struct kernels *base) {
    const struct block_products *p = products_over(base);
    if (!p)
        return NULL;
    pthread_mutex_lock(&lock);
    const struct kernels *set = set_of(base, p);
    pthread_mutex_unlock(&lock);
    return set;
}
