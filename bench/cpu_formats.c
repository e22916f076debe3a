/* cpu_formats.c - how fast the CPU multiplies weights as safetensors store them with few rows of activations: GB of
 * weights a second, and per cent of the rate at which the same threads read memory in the same run.
 *
 * usage: build/release/bench/cpu_formats [--kernels NAME] [--threads N] [--rows N] [--float32] [--cols N] [--mib N]
 *        [FORMAT...]
 * Weights are random, in large pages, 96 MiB or as many as are said: one or two stay in a cache, which shows what
 * instructions alone would give. Medians; plain reads of the same weights take turns with products.
 * --float32 keeps activations as they are. */
#include "backend/cpu/fast/fast.h"
#include "backend/cpu/kernels/blocks.h"
#include "backend/cpu/measure.h"
#include "base/clock.h"
#include "base/pool.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { PIECE_BYTES = 128 << 10, PIECE_ROWS = 32, MOST_PASSES = 1000 };
static int64_t weight_bytes = 96 << 20;

struct layout {
    const char *name;
    const struct qformat *format;
    enum dtype dtype, scale_dtype;
    int bits;
    int64_t block_rows, block_cols; // of scales; 0: all
};

static const struct layout layouts[] = {
    {"bf16", &qformat_plain, DT_BF16, 0, 16, 0, 0},
    {"fp8", &qformat_scaled, DT_F8_E4M3, DT_F32, 8, 0, 0},
    {"fp8-channel", &qformat_scaled, DT_F8_E4M3, DT_F32, 8, 1, 0},
    {"fp8-block", &qformat_scaled, DT_F8_E4M3, DT_F32, 8, 128, 128},
    {"int8", &qformat_scaled, DT_I8, DT_F32, 8, 1, 0},
    {"nvfp4", &qformat_nvfp4, DT_U8, DT_F8_E4M3, 4, 1, 16},
    {"mxfp4", &qformat_mxfp4, DT_U8, DT_F8_E8M0, 4, 1, 32},
};

struct run {
    const struct kernels *kernels, *plain;
    struct placed placed;
    struct mat x, y;
    float *scratch; // of all workers
    struct pool_range *range;
    const unsigned char *bytes; // of the weights
    int64_t n_bytes;
    float sums[64];
};

static unsigned char *large_pages(int64_t n) {
    unsigned char *p = mmap(NULL, (size_t)n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED)
        abort();
    madvise(p, (size_t)n, MADV_HUGEPAGE);
    return p;
}

static uint32_t random_bits(void) {
    static uint64_t state = 88172645463325252u;
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    return (uint32_t)(state >> 32);
}

/* About normally distributed, 64 at most. */
static float random_normal(void) {
    uint32_t b = random_bits();
    return ((float)(b & 255) + (float)(b >> 8 & 255) + (float)(b >> 16 & 255) + (float)(b >> 24) - 510) / 8;
}

/* As weights are that were quantised well: few are denormal. A run of them, again and again. */
static void fill(unsigned char *p, int64_t n, enum dtype dt) {
    enum { RUN = 1 << 20 };
    for (int64_t i = 0; i < n && i < RUN; i++)
        switch (dt) {
        case DT_F8_E4M3: p[i] = f32_to_f8_e4m3(random_normal()); break;
        case DT_F8_E8M0: p[i] = (unsigned char)(120 + random_bits() % 8); break;
        case DT_BF16:
            if (i % 2)
                memcpy(p + i - 1, &(uint16_t){f32_to_bf16(random_normal())}, 2);
            break;
        default: p[i] = (unsigned char)random_bits();
        }
    for (int64_t i = RUN; i < n; i += RUN)
        memcpy(p + i, p, (size_t)MIN(RUN, n - i));
}

static void multiply(void *arg, int worker, int n_workers) {
    struct run *r = arg;
    (void)n_workers;
    struct product p = {.kernels = r->kernels,
                        .weight = &r->placed,
                        .x = r->x,
                        .scratch = r->scratch + worker * product_scratch(r->x.width)};
    for (int64_t begin, end; pool_range_take(r->range, worker, &begin, &end);)
        product_rows(&p, begin, end, (struct mat){r->y.at + begin, r->y.stride, r->y.rows, end - begin}, NULL);
}

static void read_weights(void *arg, int worker, int n_workers) {
    struct run *r = arg;
    int64_t begin, end;
    pool_share(r->n_bytes / 4, 1024, worker, n_workers, &begin, &end);
    r->sums[worker] += r->plain->read((const float *)(const void *)r->bytes + begin, end - begin);
}

static double seconds_of(struct pool *pool, void (*pass)(void *, int, int), struct run *r) {
    int64_t start = clock_us();
    pool_run(pool, pass, r);
    return clock_seconds_since(start);
}

static int by_size(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The median; sorts. */
static double middle(double *x, int n) {
    qsort(x, (size_t)n, sizeof *x, by_size);
    return x[n / 2];
}

static void measure(const struct layout *l, struct run *r, struct pool *pool, int64_t n_cols, int n_x) {
    int64_t row_bytes = n_cols * l->bits / 8, n_rows = weight_bytes / row_bytes / 128 * 128;
    int64_t scale_cols = l->block_cols ? n_cols / l->block_cols : 1;
    int64_t n_scales = (l->block_rows ? n_rows / l->block_rows : 1) * scale_cols;
    int64_t scale_bytes = l->format == &qformat_plain ? 0 : n_scales * (int64_t)dtype_bytes(l->scale_dtype);
    unsigned char *data = large_pages(n_rows * row_bytes), *scales = large_pages(scale_bytes + 64);
    fill(data, n_rows * row_bytes, l->dtype);
    if (scale_bytes > 0)
        fill(scales, scale_bytes, l->scale_dtype);
    for (int64_t i = 0; l->scale_dtype == DT_F32 && i < n_scales; i++)
        ((float *)(void *)scales)[i] = 0.01f;
    struct weight_part part = {.format = l->format,
                               .dtype = l->dtype,
                               .data = data,
                               .n_rows = n_rows,
                               .row_stride = row_bytes / (int64_t)dtype_bytes(l->dtype),
                               .col_stride = 1,
                               .scale = {scales, l->scale_dtype, l->block_rows, l->block_cols, scale_cols, 1}};
    struct weight weight = {.name = l->name, .out = n_rows, .in = n_cols, .n_parts = 1, .parts = &part};
    int64_t first_row[2] = {0, n_rows};
    r->placed = (struct placed){.weight = &weight, .parts = &part, .first_row = first_row};
    r->x = (struct mat){calloc((size_t)(n_x * n_cols), sizeof(float)), n_cols, n_x, n_cols};
    r->y = (struct mat){calloc((size_t)(n_x * n_rows), sizeof(float)), n_rows, n_x, n_rows};
    r->scratch = aligned_alloc(64, (size_t)(pool_size(pool) * product_scratch(n_cols)) * sizeof(float));
    for (int64_t i = 0; i < n_x * n_cols; i++)
        r->x.at[i] = (float)(i * 37 % 101 - 50) / 50;
    r->bytes = data;
    r->n_bytes = n_rows * row_bytes;
    int n = (int)MIN(MAX(9, (1 << 30) / weight_bytes), MOST_PASSES);
    double multiplied[MOST_PASSES], part_of_read[MOST_PASSES];
    for (int i = 0; i < n; i++) {
        pool_range_deal(r->range, n_rows, MAX(PIECE_BYTES / row_bytes / PIECE_ROWS * PIECE_ROWS, PIECE_ROWS));
        double seconds = seconds_of(pool, multiply, r);
        multiplied[i] = (double)(r->n_bytes + scale_bytes) / seconds * 1e-9;
        part_of_read[i] = multiplied[i] * seconds_of(pool, read_weights, r) / (double)r->n_bytes * 1e9;
    }
    printf("%-12s %6.1f GB/s, %3.0f %% of plain reads\n", l->name, middle(multiplied, n),
           100 * middle(part_of_read, n));
    fflush(stdout);
    munmap(data, (size_t)(n_rows * row_bytes));
    munmap(scales, (size_t)scale_bytes + 64);
    free(r->x.at);
    free(r->y.at);
    free(r->scratch);
}

static bool is_named(int n, char **names, const char *name) {
    for (int i = 0; i < n; i++)
        if (strcmp(names[i], name) == 0)
            return true;
    return n == 0;
}

int main(int argc, char **argv) {
    const char *kernels = NULL;
    int n_threads = 0, n_x = 1, at = 1;
    int64_t n_cols = 4096;
    bool exact = false;
    for (; at < argc && argv[at][0] == '-'; at++) {
        if (strcmp(argv[at], "--float32") == 0)
            exact = true;
        else if (at + 1 < argc && strcmp(argv[at], "--kernels") == 0)
            kernels = argv[++at];
        else if (at + 1 < argc && strcmp(argv[at], "--threads") == 0)
            n_threads = atoi(argv[++at]);
        else if (at + 1 < argc && strcmp(argv[at], "--rows") == 0)
            n_x = atoi(argv[++at]);
        else if (at + 1 < argc && strcmp(argv[at], "--cols") == 0)
            n_cols = atoi(argv[++at]);
        else if (at + 1 < argc && strcmp(argv[at], "--mib") == 0)
            weight_bytes = (int64_t)atoi(argv[++at]) << 20;
        else
            return fprintf(stderr, "cpu_formats: what is %s?\n", argv[at]), 2;
    }
    struct run r = {.plain = kernels_find(kernels)};
    if (!r.plain)
        return fprintf(stderr, "cpu_formats: this processor has no %s\n", kernels), 1;
    const struct kernels *of_blocks = exact ? NULL : kernels_of_blocks(r.plain);
    struct pool *pool = pool_open(n_threads);
    r.kernels = of_blocks ? of_blocks : r.plain;
    r.range = pool_range_new(pool_size(pool));
    printf("%s, threads %d, rows of x %d, columns %lld, activations %s\n", r.plain->name, pool_size(pool), n_x,
           (long long)n_cols, exact ? "float32" : "int8 where products take them");
    for (size_t i = 0; i < ARRAY_LEN(layouts); i++)
        if (is_named(argc - at, argv + at, layouts[i].name))
            measure(&layouts[i], &r, pool, n_cols, n_x);
    pool_range_free(r.range);
    pool_free(pool);
    return 0;
}
