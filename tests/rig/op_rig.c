/* op_rig.c - see op_rig.h. */
#include "op_rig.h"

#include "base/random.h"
#include "lib/backends.h"

#include <inttypes.h>
#include <math.h>

/* ---- random numbers and memory ---- */

uint64_t rig_bits(struct rig *rig) {
    struct philox r = philox4x32(test_seed(), rig->random++, 1);
    return (uint64_t)r.v[0] << 32 | r.v[1];
}

double rig_uniform(struct rig *rig, double low, double high) {
    return low + (high - low) * (double)(rig_bits(rig) >> 11) * 0x1p-53;
}

int rig_between(struct rig *rig, int low, int high) { return low + (int)(rig_bits(rig) % (uint64_t)(high - low + 1)); }

double *rig_doubles(struct rig *rig, int64_t n) { return arena_calloc(&rig->arena, (size_t)n, sizeof(double)); }

/* ---- the rig ---- */

/* Linked into the tests of a build for GPUs alone; others take libgyre-cuda.so from $GYRE_PLUGINS. */
extern const struct backend_ops backend_cuda __attribute__((weak));

const struct backend_ops *rig_backend(void) {
    const char *name = getenv("GYRE_TEST_BACKEND");
    if (!name || strcmp(name, "cpu") == 0)
        return &backend_cpu;
    if (strcmp(name, "cuda") == 0 && &backend_cuda)
        return &backend_cuda;
    static const struct backend_ops *loaded;
    struct error err;
    if (!loaded)
        EXPECT_OK(backend_get(name, &loaded, &err), err);
    return loaded;
}

bool rig_takes_case(void) {
    static uint64_t n_cases, part, of;
    const char *asked = getenv("GYRE_TEST_PART");
    if (!of && asked && (sscanf(asked, "%" SCNu64 "/%" SCNu64, &part, &of) != 2 || of == 0 || part == 0 || part > of))
        fail_msg("GYRE_TEST_PART=%s is not k/n with k from 1 to n", asked);
    return of == 0 || (n_cases++ + test_seed()) % of == part - 1;
}

bool rig_is_brief(void) { return test_is_brief(); }

struct how rig_how(const char *kernels, int n_threads) {
    bool cpu = rig_backend() == &backend_cpu;
    return (struct how){.n_threads = n_threads, .kernels = cpu ? kernels : NULL, .load.dtype = cpu ? NULL : kernels};
}

/* Where a program's time went, and who came nearest to a bound; told at its end. */
static struct {
    double begun, opening, stepping;
    int n_rigs, n_steps, n_bounds;
    struct {
        double bound, error;
        char what[120];
    } nearest[8]; // to each bound of rounding
} spent;

static double seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void tell_spent(void) {
    printf("rig: %d rigs opened in %.1f s, %d steps in %.1f s, all in %.1f s\n", spent.n_rigs, spent.opening,
           spent.n_steps, spent.stepping, seconds() - spent.begun);
    for (int i = 0; i < spent.n_bounds; i++)
        printf("rig: at most %.3g of %.3g: %s\n", spent.nearest[i].error, spent.nearest[i].bound,
               spent.nearest[i].what);
}

enum { MOST_TOKENS = 8192 }; // of a step
static const int sizes_beyond_64[] = {65,  72,  80,  96,  97,  112, 128, 130, 160, 191,
                                      192, 224, 256, 257, 320, 384, 400, 448, 500, 512};
enum { N_SIZES = 64 + ARRAY_LEN(sizes_beyond_64) };
static int size_of_step(int i) { return i < 64 ? i + 1 : sizes_beyond_64[i - 64]; }

struct rig_options rig_sizes(struct rig_options o) {
    o.n_seqs = size_of_step(N_SIZES - 1);
    for (int s = 0; s < o.n_seqs; s++)
        for (int i = 0; i < N_SIZES; i++)
            o.lens[s] += size_of_step(i) > s;
    return o;
}

/* A device keeps a table in what products are made in. */
static float kept(const struct rig_options *o, double x) {
    if (rig_backend() != &backend_cpu)
        rig_round(o->kernels, &x, 1);
    return (float)x;
}

struct rig *rig_new(struct rig_options o) {
    struct rig *rig = xcalloc(1, sizeof *rig);
    if (spent.n_rigs++ == 0) {
        spent.begun = seconds();
        atexit(tell_spent);
    }
    static uint64_t next_stream;
    o.block_size = o.block_size ? o.block_size : 16;
    o.n_threads = o.n_threads ? o.n_threads : 2;
    o.spread = o.spread > 0 ? o.spread : 1;
    uint64_t stream = o.like ? o.like->stream : next_stream;
    *rig = (struct rig){.o = o, .ops = o.like ? &backend_cpu : rig_backend(), .random = stream, .stream = stream};
    next_stream += o.like ? 0 : 1ull << 40;
    for (int s = 0; s < o.n_seqs; s++)
        rig->n_rows += o.lens[s];
    for (int i = 0; i < RIG_MAX_IN; i++)
        rig->width += o.widths[i];
    rig->told = arena_calloc(&rig->arena, (size_t)rig->n_rows + 1, sizeof *rig->told);
    int64_t n = (int64_t)rig->n_rows * rig->width;
    rig->table = arena_calloc(&rig->arena, (size_t)(n + rig->width), sizeof(float));
    for (int64_t i = 0; i < n + rig->width; i++)
        rig->table[i] = i < n ? kept(&o, rig_uniform(rig, -o.spread, o.spread)) : NAN; // the last row is poison
    struct weight *w = arena_alloc(&rig->arena, sizeof *w);
    w->parts = arena_alloc(&rig->arena, sizeof *w->parts);
    *w->parts = (struct weight_part){.format = &qformat_plain,
                                     .dtype = DT_F32,
                                     .data = rig->table,
                                     .n_rows = rig->n_rows + 1,
                                     .row_stride = rig->width,
                                     .col_stride = 1};
    w->name = "rig.table";
    w->out = rig->n_rows + 1;
    w->in = rig->width;
    w->n_parts = 1;
    rig->p = program_new("rig");
    val all = op_embed(rig->p, w, 1);
    for (int i = 0, col = 0; i < RIG_MAX_IN && o.widths[i]; col += o.widths[i++])
        rig->in[i] = val_cols(all, col, o.widths[i]);
    return rig;
}

void rig_free(struct rig *rig) {
    on_device_close(&rig->at);
    program_free(rig->p);
    arena_release(&rig->arena);
    free(rig);
}

int rig_row(const struct rig *rig, int seq, int row) {
    for (int s = 0; s < seq; s++)
        row += rig->o.lens[s];
    return row;
}

const float *rig_input(const struct rig *rig, int i, int seq, int row) {
    const float *at = rig->table + (int64_t)rig_row(rig, seq, row) * rig->width;
    for (int k = 0; k < i; k++)
        at += rig->o.widths[k];
    return at;
}

void rig_draw_again(struct rig *rig, int seq, int row, int col, int n) {
    float *at = rig->table + (int64_t)rig_row(rig, seq, row) * rig->width + col;
    for (int i = 0; i < n; i++)
        at[i] = kept(&rig->o, rig_uniform(rig, -rig->o.spread, rig->o.spread));
}

double *rig_rows(struct rig *rig) { return rig_doubles(rig, (int64_t)rig->n_rows * rig->out.width); }

double *rig_at(const struct rig *rig, double *rows, int seq, int row) {
    return rows + (int64_t)rig_row(rig, seq, row) * rig->out.width;
}

const char *const *rig_kernels(void) {
    static const char *const all[] = {"reference", "amx", "avx512", "avx2", "neon", "portable"};
    static const char *const cuda[] = {"float32", "float16", "bfloat16", NULL}; // what products are made in
    static const char *const xla[] = {"float32", NULL};                         // whose bounds are the CPU's
    static const char *have[ARRAY_LEN(all) + 1];
    struct error err;
    if (rig_backend() != &backend_cpu)
        return strcmp(rig_backend()->name, "xla") == 0 ? xla : cuda;
    if (!have[0])
        for (size_t i = 0, n = 0; i < ARRAY_LEN(all); i++) {
            struct on_device at;
            if (on_device_open(&backend_cpu, (struct how){.n_threads = 1, .kernels = all[i]}, &at, &err) == OK)
                have[n++] = all[i];
            on_device_close(&at);
        }
    return have;
}

/* ---- weights ---- */

static const struct stored {
    const char *name;
    enum dtype dtype;
    int bits;
    const struct qformat *format;
    int block_rows, block_cols; // of scales; 0: all
    enum dtype scale;
} stored[N_STORED_FORMATS] = {
    [FORMAT_F32] = {"f32", DT_F32, 32, &qformat_plain, 0, 0, 0},
    [FORMAT_F16] = {"f16", DT_F16, 16, &qformat_plain, 0, 0, 0},
    [FORMAT_BF16] = {"bf16", DT_BF16, 16, &qformat_plain, 0, 0, 0},
    [FORMAT_BF16_SPLIT] = {"bf16 split", DT_BF16, 16, &qformat_plain, 0, 0, 0},
    [FORMAT_BF16_INTERLEAVED] = {"bf16 interleaved", DT_BF16, 16, &qformat_plain, 0, 0, 0},
    [FORMAT_BF16_TURNED] = {"bf16 turned", DT_BF16, 16, &qformat_plain, 0, 0, 0},
    [FORMAT_F8_CHANNEL] = {"f8 channel", DT_F8_E4M3, 8, &qformat_scaled, 1, 0, DT_BF16},
    [FORMAT_F8_TENSOR] = {"f8 tensor", DT_F8_E4M3, 8, &qformat_scaled, 0, 0, DT_F32},
    [FORMAT_F8_BLOCK] = {"f8 block", DT_F8_E4M3, 8, &qformat_scaled, 32, 16, DT_F32},
    [FORMAT_I8_TENSOR] = {"i8 tensor", DT_I8, 8, &qformat_scaled, 0, 0, DT_F32},
    [FORMAT_MXFP4] = {"mxfp4", DT_U8, 4, &qformat_mxfp4, 1, 32, DT_F8_E8M0},
    [FORMAT_NVFP4] = {"nvfp4", DT_U8, 4, &qformat_nvfp4, 1, 16, DT_F8_E4M3},
    [FORMAT_INT4] = {"int4", DT_I32, 4, &qformat_int4, 1, 32, DT_F16},
    [FORMAT_Q4_0] = {"q4_0", DT_U8, 0, &block_formats[QFORMAT_Q4_0], 0, 0, 0},
    [FORMAT_Q8_0] = {"q8_0", DT_U8, 0, &block_formats[QFORMAT_Q8_0], 0, 0, 0},
    [FORMAT_Q4_K] = {"q4_k", DT_U8, 0, &block_formats[QFORMAT_Q4_K], 0, 0, 0},
    [FORMAT_Q6_K] = {"q6_k", DT_U8, 0, &block_formats[QFORMAT_Q6_K], 0, 0, 0},
    [FORMAT_Q4_K_AND_Q6_K] = {"q4_k and q6_k", DT_U8, 0, &block_formats[QFORMAT_Q4_K], 0, 0, 0},
};

const char *rig_format_name(enum rig_format format) { return stored[format].name; }

/* Sign, exponent and mantissa by hand. The rig makes no codes for infinity and NaN. */
static double decode(uint32_t code, int exponent_bits, int mantissa_bits, int bias) {
    int exponent = (int)(code >> mantissa_bits & ((1u << exponent_bits) - 1));
    double fraction = ldexp((double)(code & ((1u << mantissa_bits) - 1)), -mantissa_bits);
    double value = exponent ? ldexp(1 + fraction, exponent - bias) : ldexp(fraction, 1 - bias);
    return code >> (exponent_bits + mantissa_bits) & 1 ? -value : value;
}

/* A random element of about the size of 1, its code at `at` (for 4 bits: in the nibble of column col). */
static double random_element(struct rig *rig, enum dtype dtype, int bits, unsigned char *at, int64_t col) {
    double x = rig_uniform(rig, -1, 1);
    uint32_t sign = (uint32_t)(rig_bits(rig) & 1);
    uint16_t code16;
    uint32_t code = 0;
    switch (dtype) {
    case DT_F32: {
        float f = (float)x;
        memcpy(at, &f, 4);
        return f;
    }
    case DT_F16:
        code16 = (uint16_t)(sign << 15 | (uint32_t)rig_between(rig, rig->o.quantization ? 5 << 10 : 0,
                                                               15 << 10)); // subnormals, but not for FP8
        memcpy(at, &code16, 2);
        return decode(code16, 5, 10, 15);
    case DT_BF16:
        code16 = (uint16_t)(sign << 15 | (uint32_t)rig_between(rig, 118 << 7, 127 << 7));
        memcpy(at, &code16, 2);
        return decode(code16, 8, 7, 127);
    case DT_F8_E4M3:
        *at = (unsigned char)(sign << 7 | (uint32_t)rig_between(rig, 0, 8 << 3));
        return decode(*at, 4, 3, 7);
    case DT_I8: *at = (unsigned char)rig_between(rig, 0, 255); return (double)(int8_t)*at / 128;
    default:
        BUG_IF(bits != 4);
        code = (uint32_t)rig_between(rig, 0, 15);
        *at = (unsigned char)(col & 1 ? (*at & 15) | code << 4 : (*at & 0xF0) | code);
        return dtype == DT_I32 ? (double)code : decode(code, 2, 1, 1);
    }
}

static double random_scale(struct rig *rig, enum dtype dtype, unsigned char *at) {
    uint16_t code16;
    float f;
    switch (dtype) {
    case DT_F32:
        f = (float)rig_uniform(rig, 0.5, 2);
        memcpy(at, &f, 4);
        return f;
    case DT_BF16:
        code16 = (uint16_t)rig_between(rig, 126 << 7, 128 << 7);
        memcpy(at, &code16, 2);
        return decode(code16, 8, 7, 127);
    case DT_F16:
        code16 = (uint16_t)(rig_between(rig, 11 << 4, 13 << 4) << 6); // products with codes have ten bits
        memcpy(at, &code16, 2);
        return decode(code16, 5, 10, 15);
    case DT_F8_E8M0: *at = (unsigned char)rig_between(rig, 125, 128); return ldexp(1, *at - 127);
    default: *at = (unsigned char)rig_between(rig, 6 << 3, 8 << 3); return decode(*at, 4, 3, 7);
    }
}

/* Zero points of a row and group each, and how they are stored: eight rows to a word. */
static const struct qpacked *random_zeros(struct rig *rig, int64_t out, int64_t in, int64_t n_groups, double *zero) {
    uint32_t *words = arena_calloc(&rig->arena, (size_t)((out + 7) / 8 * n_groups), sizeof *words);
    struct qpacked *packed = arena_calloc(&rig->arena, 1, sizeof *packed);
    for (int64_t o = 0; o < out; o++)
        for (int64_t g = 0; g < n_groups; g++) {
            uint32_t z = (uint32_t)rig_between(rig, 6, 9);
            zero[o * n_groups + g] = z;
            words[o / 8 * n_groups + g] |= z << o % 8 * 4;
        }
    *packed = (struct qpacked){.order = PACKED_COLUMNS,
                               .bits = 4,
                               .stored_rows = out,
                               .stored_cols = in,
                               .n_groups = n_groups,
                               .has_zeros = true,
                               .zeros = words};
    return packed;
}

/* Blocks of random bytes, with multipliers that make values of about the size of 1; want is what the CPU makes of
 * them. */
static struct weight_part random_blocks(struct rig *rig, const struct qformat *f, int64_t out, int64_t in,
                                        double *want) {
    static const struct { // where float16 multipliers are, and about how large
        enum qformat_id id;
        int at[2], exponent[2];
    } multipliers[] = {{QFORMAT_Q4_0, {0, 0}, {12, 12}},
                       {QFORMAT_Q8_0, {0, 0}, {8, 8}},
                       {QFORMAT_Q4_K, {0, 2}, {5, 8}},
                       {QFORMAT_Q6_K, {208, 208}, {3, 3}}};
    int64_t row_bytes = block_row_bytes(f, in);
    unsigned char *data = arena_alloc(&rig->arena, (size_t)(out * row_bytes));
    BUG_IF(in % f->block_cols != 0);
    for (int64_t i = 0; i < out * row_bytes; i++)
        data[i] = (unsigned char)rig_bits(rig);
    for (size_t m = 0; m < ARRAY_LEN(multipliers); m++)
        for (int64_t b = 0; multipliers[m].id == f->id && b < out * in / f->block_cols; b++)
            for (int k = 0; k < 2; k++) {
                uint16_t code = (uint16_t)(rig_between(rig, 0, 1) << 15 | rig_between(rig, 0, 1023) |
                                           (multipliers[m].exponent[k] + rig_between(rig, 0, 1)) << 10);
                memcpy(data + b * f->block_bytes + multipliers[m].at[k], &code, 2);
            }
    struct weight_part part = {
        .format = f, .dtype = DT_U8, .data = data, .n_rows = out, .row_stride = row_bytes, .col_stride = 1};
    float *row = arena_alloc(&rig->arena, (size_t)in * sizeof *row);
    for (int64_t o = 0; o < out; o++) {
        f->row_to_f32(&part, o, in, row);
        for (int64_t i = 0; i < in; i++)
            want[o * in + i] = row[i];
    }
    return part;
}

/* One stored tensor [out, in] as a part; want[o * in + i] gets its meaning. */
static struct weight_part random_part(struct rig *rig, enum rig_format format, int64_t out, int64_t in, double *want) {
    const struct stored *s = &stored[format];
    if (format >= N_FORMATS)
        return random_blocks(rig, s->format, out, in, want);
    bool turned = format == FORMAT_BF16_TURNED;
    int64_t row_bytes = (in * s->bits + 7) / 8, element = MAX(s->bits / 8, 1);
    unsigned char *data = arena_alloc(&rig->arena, (size_t)(out * row_bytes));
    int64_t block_rows = s->block_rows ? s->block_rows : out, block_cols = s->block_cols ? s->block_cols : in;
    int64_t n_col_blocks = (in + block_cols - 1) / block_cols, n_row_blocks = (out + block_rows - 1) / block_rows;
    bool scaled = s->format != &qformat_plain;
    double *scale = rig_doubles(rig, n_row_blocks * n_col_blocks), tensor_scale = format == FORMAT_NVFP4 ? 0.75 : 1;
    size_t scale_bytes = scaled ? dtype_bytes(s->scale) : 0;
    unsigned char *scales = arena_alloc(&rig->arena, (size_t)(n_row_blocks * n_col_blocks) * scale_bytes + 1);
    for (int64_t i = 0; i < n_row_blocks * n_col_blocks; i++)
        scale[i] = scaled ? random_scale(rig, s->scale, scales + (size_t)i * scale_bytes) : 1;
    double *zero = rig_doubles(rig, n_row_blocks * n_col_blocks);
    const struct qpacked *packed = format == FORMAT_INT4 ? random_zeros(rig, out, in, n_col_blocks, zero) : NULL;
    for (int64_t o = 0; o < out; o++)
        for (int64_t i = 0; i < in; i++) {
            int64_t at = turned         ? (i * out + o) * element
                         : s->bits == 4 ? o * row_bytes + i / 2
                                        : o * row_bytes + i * element;
            double x = random_element(rig, s->dtype, s->bits, data + at, i);
            if (s->dtype == DT_I8)
                x *= 128; // the tensor's scale below is meant for the integer
            if (packed)
                x -= zero[o * n_col_blocks + i / block_cols];
            want[o * in + i] = x * scale[o / block_rows * n_col_blocks + i / block_cols] * tensor_scale;
        }
    struct weight_part part = {.format = s->format,
                               .dtype = s->dtype,
                               .data = data,
                               .n_rows = out,
                               .row_stride = turned         ? 1
                                             : s->bits == 4 ? row_bytes
                                                            : in,
                               .col_stride = turned ? out : 1,
                               .packed = packed};
    if (scaled)
        part.scale = (struct qscale){scales, s->scale, s->block_rows, s->block_cols, n_col_blocks, (float)tensor_scale};
    return part;
}

static void add_part(struct rig *rig, struct weight *w, enum rig_format format, int64_t n_rows, double *want) {
    w->parts[w->n_parts++] = random_part(rig, format, n_rows, w->in, want);
}

const struct weight *rig_weight(struct rig *rig, enum rig_format format, int64_t out, int64_t in, double **values) {
    double *want = rig_doubles(rig, out * in);
    struct weight *w = arena_alloc(&rig->arena, sizeof *w);
    *w = (struct weight){.name = stored[format].name, .out = out, .in = in};
    w->parts = arena_calloc(&rig->arena, 3, sizeof *w->parts);
    if ((format == FORMAT_BF16_SPLIT || format == FORMAT_F8_TENSOR) && out >= 3) {
        int64_t a = out / 3, b = out / 2;
        add_part(rig, w, format, a, want);
        add_part(rig, w, format, b, want + a * in);
        add_part(rig, w, format, out - a - b, want + (a + b) * in);
    } else if (format == FORMAT_Q4_K_AND_Q6_K) {
        int64_t first = out / 32 * 16;
        add_part(rig, w, FORMAT_Q4_K, first, want);
        add_part(rig, w, FORMAT_Q6_K, out - first, want + first * in);
    } else if (format == FORMAT_BF16_INTERLEAVED && out % 2 == 0) {
        double *tensor = rig_doubles(rig, out * in);
        struct weight_part whole = random_part(rig, format, out, in, tensor);
        for (int k = 0; k < 2; k++) {
            struct weight_part *part = &w->parts[w->n_parts++];
            *part = whole;
            part->n_rows = out / 2;
            part->row_stride = 2 * in;
            part->data = (const uint16_t *)whole.data + k * in;
            for (int64_t o = 0; o < out / 2; o++)
                memcpy(want + (k * out / 2 + o) * in, tensor + (2 * o + k) * in, (size_t)in * sizeof *want);
        }
    } else {
        add_part(rig, w, format, out, want);
    }
    if (values)
        *values = want;
    return w;
}

const struct weight *rig_vector(struct rig *rig, int64_t n, double low, double high, double **values) {
    uint16_t *data = arena_calloc(&rig->arena, (size_t)n, sizeof *data);
    double *want = rig_doubles(rig, n);
    for (int64_t i = 0; i < n; i++) {
        data[i] = f32_to_bf16((float)rig_uniform(rig, low, high));
        want[i] = decode(data[i], 8, 7, 127);
    }
    struct weight *w = arena_alloc(&rig->arena, sizeof *w);
    *w = (struct weight){.name = "rig.vector", .out = n, .in = 1, .n_parts = 1};
    w->parts = arena_alloc(&rig->arena, sizeof *w->parts);
    *w->parts = (struct weight_part){
        .format = &qformat_plain, .dtype = DT_BF16, .data = data, .n_rows = n, .row_stride = 1, .col_stride = 1};
    if (values)
        *values = want;
    return w;
}

/* ---- running ---- */

static int table_width(const struct rig *rig) {
    int longest = 1;
    for (int s = 0; s < rig->o.n_seqs; s++)
        longest = MAX(longest, rig->o.lens[s]);
    return (longest + rig->o.block_size - 1) / rig->o.block_size;
}

/* The poison fills every slot, in steps of so many. */
static struct bucket bucket_of(const struct rig *rig) {
    int n_tokens = MIN(rig->o.n_seqs * table_width(rig) * rig->o.block_size, MOST_TOKENS);
    return (struct bucket){n_tokens, rig->o.n_seqs, n_tokens, 0};
}

/* The CPU's plain functions; for a device its fast ones, which those have been held to. */
static const char *oracle_kernels(void) { return rig_backend() == &backend_cpu ? "reference" : NULL; }

static void refuse_what_is_timed(const struct rig *rig) {
    bool is_wide = rig->o.kernels && strcmp(rig->o.kernels, "float32") == 0;
    for (int i = 0; i < rig->p->n_ops; i++) {
        const struct op *op = &rig->p->ops[i];
        const struct weight *w = op->weights[0];
        if (op->code != OP_LINEAR)
            continue;
        bool is_narrow = rig->o.quantization || w->parts[0].dtype == DT_F8_E4M3;
        if (w->out * w->in * (is_wide ? 4 : is_narrow ? 1 : 2) >= RIG_TIMED_BYTES)
            fail_msg("a case in brief has a product of [%lld, %lld], which is timed", (long long)w->out,
                     (long long)w->in);
    }
}

void rig_result(struct rig *rig, val out) {
    struct program *p = rig->p;
    rig->out = out;
    op_sample(p, op_take_rows(p, out));
    bool cpu = rig->ops == &backend_cpu;
    if (rig_is_brief() && !cpu)
        refuse_what_is_timed(rig);
    double begun = seconds();
    struct how how = {.n_threads = rig->o.n_threads,
                      .kernels = rig->o.like ? oracle_kernels()
                                 : cpu       ? rig->o.kernels
                                             : NULL,
                      .eager = rig_is_brief(),
                      .load = {.dtype = cpu ? NULL : rig->o.kernels,
                               .quantization = cpu ? NULL : rig->o.quantization,
                               .dummy_weights = rig->o.dummy_weights,
                               .n_back = rig->o.n_back,
                               .kv_dtype = cpu ? NULL : rig->o.kv_dtype}};
    struct cache_config config = {.block_size = rig->o.block_size, .n_states = rig->o.n_seqs};
    for (int g = 0; g < p->n_groups; g++)
        config.n_blocks[g] = rig->o.n_seqs * table_width(rig), config.table_width[g] = table_width(rig);
    on_device_compile(rig->ops, how, p, &config, bucket_of(rig), &rig->at);
    spent.opening += seconds() - begun;
}

static void shuffle(struct rig *rig, int32_t *x, int n) {
    for (int i = 0; i < n; i++)
        x[i] = i;
    for (int i = n - 1; i > 0; i--) {
        int j = rig_between(rig, 0, i);
        int32_t t = x[i];
        x[i] = x[j];
        x[j] = t;
    }
}

/* A plan whose tables and slots are random permutations of all there is. */
static void make_plan(struct rig *rig, struct batch_plan *plan) {
    int widths[MAX_CACHE_GROUPS], n = rig->o.n_seqs * table_width(rig);
    for (int g = 0; g < MAX_CACHE_GROUPS; g++)
        widths[g] = table_width(rig);
    batch_plan_init(plan, bucket_of(rig), rig->p->n_groups, widths);
    for (int g = 0; g < rig->p->n_groups; g++)
        shuffle(rig, plan->block_table[g], n);
    shuffle(rig, plan->state_slot, rig->o.n_seqs);
}

/* Rows [done, done + count) of the sequences with count > 0, in one step. Only they have a place in the plan. */
struct piece {
    int done[RIG_MAX_SEQS], count[RIG_MAX_SEQS];
    int wrong[RIG_MAX_SEQS], sure[RIG_MAX_SEQS]; // rows behind that are another's; of count, those that are sure
};

static bool is_sparse(const struct rig *rig) { return rig_is_brief() && !rig->o.like && !rig->tells_all; }

/* Which of a step's tokens have a row among its results: all; or, of the last step and of one in three before, few: the
 * first, the last and some between. */
static void choose_rows(struct rig *rig, struct batch_plan *plan, struct sample_params *sample, bool all, bool last) {
    enum { FEW = 4, DECODING = 8 };
    int n = plan->n_tokens,
        most = n == plan->n_seqs ? DECODING : FEW; // steps of one row a sequence are what graphs are made of
    int n_asked = all ? n : !last && rig_between(rig, 0, 2) > 0 ? 0 : n <= most ? n : FEW;
    for (int r = 0; r < n_asked; r++) {
        int from = (int)((int64_t)r * (n - 1) / MAX(n_asked - 1, 1)),
            to = (int)((int64_t)(r + 1) * (n - 1) / MAX(n_asked - 1, 1));
        plan->out_row[r] = n_asked == n                 ? r
                           : r == 0 || r == n_asked - 1 ? from
                                                        : rig_between(rig, from, MAX(from, to - 1));
        sample[r] = sample_params_default();
        sample[r].want_logits = true;
    }
    plan->n_rows = n_asked;
}

static void run_piece(struct rig *rig, const struct batch_plan *home, const struct piece *piece, bool poison, bool last,
                      double *out) {
    struct batch_plan plan;
    struct error err;
    double begun = seconds();
    make_plan(rig, &plan);
    int rows[MOST_TOKENS];
    for (int s = 0; s < rig->o.n_seqs; s++) {
        if (!piece->count[s])
            continue;
        int at = plan.n_seqs++;
        for (int i = 0; i < piece->count[s] + piece->wrong[s]; i++) {
            int t = plan.n_tokens++;
            BUG_IF(t >= (int)ARRAY_LEN(rows));
            rows[t] = poison ? 0 : i < piece->count[s] ? rig_row(rig, s, piece->done[s] + i) : -1;
            plan.token_id[t] = poison ? rig->n_rows : rows[t] >= 0 ? rows[t] : rig_between(rig, 0, rig->n_rows - 1);
            plan.position[t] = piece->done[s] + i;
        }
        plan.query_start[at + 1] = plan.n_tokens;
        plan.seq_len[at] = piece->done[s] + piece->count[s] + piece->wrong[s];
        plan.n_sure[at] = piece->done[s] + (piece->wrong[s] > 0 ? piece->sure[s] : piece->count[s]);
        plan.n_known[at] = rig->o.lens[s];
        plan.state_slot[at] = home->state_slot[s];
        plan.adapter[at] = s % (rig->o.n_adapters + 1);
        for (int g = 0; g < rig->p->n_groups; g++)
            memcpy(plan.block_table[g] + at * table_width(rig), home->block_table[g] + s * table_width(rig),
                   (size_t)table_width(rig) * sizeof(int32_t));
    }
    struct sample_params *sample = xcalloc((size_t)plan.n_tokens + 1, sizeof *sample);
    choose_rows(rig, &plan, sample, poison || !is_sparse(rig), last);
    struct sample_result *results = xcalloc((size_t)plan.n_rows + 1, sizeof *results);
    EXPECT_OK(rig->ops->run(rig->at.exe, &plan, sample, &err), err);
    EXPECT_OK(rig->ops->collect(rig->at.exe, results, &err), err);
    for (int r = 0; !poison && r < plan.n_rows; r++) {
        int row = rows[plan.out_row[r]];
        if (row < 0)
            continue;
        rig->told[row] = true;
        const float *logits;
        EXPECT_OK(rig->ops->logits(rig->at.exe, r, &logits, &err), err);
        for (int i = 0; i < rig->out.width; i++)
            out[(int64_t)row * rig->out.width + i] = (double)logits[i];
    }
    free(results);
    free(sample);
    batch_plan_release(&plan);
    spent.stepping += seconds() - begun;
    spent.n_steps++;
}

/* Of one sequence under CHUNK_1: what leads to a random place in one step, some tokens one by one, the rest in one
 * step. */
static int by_ones(struct rig *rig, int s, int done) {
    enum { LONG = 100 };
    int len = rig->o.lens[s], ones = rig_is_brief() ? 3 : len > LONG ? 50 : len;
    if (done == 0 && len > ones)
        rig->ones_end[s] = ones + rig_between(rig, 0, len - ones);
    else if (done == 0)
        rig->ones_end[s] = len;
    int first = rig->ones_end[s] - ones;
    return done < first ? first - done : done < rig->ones_end[s] ? 1 : len - done;
}

/* Some tokens, now and then many, and as many wrong ones as the state can go back behind what is sure. */
static int guessed(struct rig *rig, int s, int left, struct piece *piece) {
    int most = rig_between(rig, 0, 4) ? rig_between(rig, 1, 6) : rig_between(rig, 17, 40), n = MIN(most, left);
    int sure = rig_between(rig, 1, n);
    piece->sure[s] = MAX(sure, n - rig->o.n_back + 1);
    int wrong = rig_between(rig, 0, rig->o.n_back - (n - piece->sure[s]));
    piece->wrong[s] = MIN(wrong, left - n);
    return n;
}

/* How many rows of each sequence the next step takes. */
static void next_counts(struct rig *rig, enum rig_schedule schedule, struct piece *piece) {
    bool taken = false;
    int size = schedule == SCHEDULE_SIZES ? size_of_step(rig->sizes_left[--rig->n_sizes_left]) : 0;
    for (int s = 0; s < rig->o.n_seqs; s++) {
        int left = rig->o.lens[s] - piece->done[s], want = left;
        switch (schedule) {
        case SCHEDULE_ONE_BY_ONE: want = taken ? 0 : left; break;
        case SCHEDULE_CHUNK_1: want = left > 0 ? by_ones(rig, s, piece->done[s]) : 0; break;
        case SCHEDULE_CHUNK_7: want = 7; break;
        case SCHEDULE_CHUNK_64: want = 64; break;
        case SCHEDULE_RAGGED: want = rig_between(rig, 0, 2) ? rig_between(rig, 1, 9) : 0; break;
        case SCHEDULE_SIZES: want = s < size; break;
        case SCHEDULE_BACK: want = left > 0 && rig_between(rig, 0, 2) ? guessed(rig, s, left, piece) : 0; break;
        default: break;
        }
        piece->count[s] = MIN(want, left);
        taken = taken || piece->count[s] > 0;
    }
}

static int rows_taken(const struct rig *rig, const struct piece *piece) {
    int n = 0;
    for (int s = 0; s < rig->o.n_seqs; s++)
        n += piece->count[s];
    return n;
}

static void poison_all(struct rig *rig, const struct batch_plan *home) {
    int each = table_width(rig) * rig->o.block_size, at_once = MOST_TOKENS / each;
    BUG_IF(at_once < 1);
    for (int first = 0; first < rig->o.n_seqs; first += at_once) {
        struct piece piece = {0};
        for (int s = first; s < MIN(first + at_once, rig->o.n_seqs); s++)
            piece.count[s] = each;
        run_piece(rig, home, &piece, true, false, NULL);
    }
}

double *rig_run(struct rig *rig, enum rig_schedule schedule) {
    if (rig_is_brief() && schedule == SCHEDULE_RAGGED)
        schedule = SCHEDULE_CHUNK_1;
    double *out = rig_rows(rig);
    for (int64_t i = 0; i < (int64_t)rig->n_rows * rig->out.width; i++)
        out[i] = NAN;
    memset(rig->told, 0, (size_t)rig->n_rows);
    struct batch_plan home;
    make_plan(rig, &home);
    struct piece piece = {0};
    if (!rig->o.like && !rig->o.begins_clean && !rig_is_brief()) // initcheck finds what was never written
        poison_all(rig, &home);
    if (schedule == SCHEDULE_SIZES)
        shuffle(rig, rig->sizes_left, rig->n_sizes_left = N_SIZES);
    for (int left = rig->n_rows; left > 0;) {
        next_counts(rig, schedule, &piece);
        if (rows_taken(rig, &piece) == 0)
            continue;
        run_piece(rig, &home, &piece, false, left == rows_taken(rig, &piece), out);
        for (int s = 0; s < rig->o.n_seqs; s++)
            piece.done[s] += piece.count[s];
        left -= rows_taken(rig, &piece);
    }
    batch_plan_release(&home);
    return out;
}

bool rig_tells(const struct rig *rig, int row) { return rig->told[row] || !is_sparse(rig); }

/* As rig_error; `at` gets where it is, among all values. */
static double worst_error(const struct rig *rig, const double *got, const double *want, int64_t *at) {
    double worst = 0;
    *at = 0;
    for (int r = 0; r < rig->n_rows; r++) {
        if (!rig_tells(rig, r))
            continue;
        const double *g = got + (int64_t)r * rig->out.width, *w = want + (int64_t)r * rig->out.width;
        double size = rig->floor, error = 0;
        int col = 0;
        for (int i = 0; i < rig->out.width; i++) {
            double off = isnan(g[i]) ? INFINITY : fabs(g[i] - w[i]);
            size = fmax(size, fabs(w[i]));
            if (off > error)
                error = off, col = i;
        }
        if (error / fmax(size, 1e-30) > worst) {
            worst = error / fmax(size, 1e-30);
            *at = (int64_t)r * rig->out.width + col;
        }
    }
    return worst;
}

double rig_error(const struct rig *rig, const double *got, const double *want) {
    int64_t at;
    return worst_error(rig, got, want, &at);
}

double rig_cosine(const struct rig *rig, const double *got, const double *want) {
    double both = 0, of_got = 0, of_want = 0;
    for (int64_t i = 0; i < (int64_t)rig->n_rows * rig->out.width; i++) {
        if (!rig_tells(rig, (int)(i / rig->out.width)))
            continue;
        both += got[i] * want[i];
        of_got += got[i] * got[i];
        of_want += want[i] * want[i];
    }
    return both / sqrt(of_got * of_want);
}

double rig_rms(const struct rig *rig, const double *got, const double *want) {
    double off = 0, size = 0;
    for (int64_t i = 0; i < (int64_t)rig->n_rows * rig->out.width; i++) {
        if (!rig_tells(rig, (int)(i / rig->out.width)))
            continue;
        off += (got[i] - want[i]) * (got[i] - want[i]);
        size += want[i] * want[i];
    }
    return isfinite(off) ? sqrt(off / fmax(size, 1e-300)) : INFINITY;
}

/* ---- what a device rounds ---- */

void rig_round(const char *dtype, double *x, int64_t n) {
    bool half = dtype && strcmp(dtype, "float16") == 0, brain = dtype && strcmp(dtype, "bfloat16") == 0;
    for (int64_t i = 0; (half || brain) && i < n; i++)
        x[i] = (double)(half ? f16_to_f32(f32_to_f16((float)x[i])) : bf16_to_f32(f32_to_bf16((float)x[i])));
}

static double largest_of(const double *x, int n) {
    double most = 0;
    for (int i = 0; i < n; i++)
        most = fmax(most, fabs(x[i]));
    return most;
}

/* E4M3_FULL of the CUDA backend: what the largest size of a row that a product reads becomes. */
static const float FULL = 28;

static void round_by_largest(double *x, int n, double largest, float full) {
    float most = fmaxf((float)largest, 1e-30f);
    for (int i = 0; i < n; i++)
        x[i] = (double)f8_e4m3_to_f32(f32_to_f8_e4m3((float)x[i] * (full / most))) * (double)(most / full);
}

void rig_round_e4m3(double *x, int n) { round_by_largest(x, n, largest_of(x, n), 448); }

static float e4m3_of(float x, float factor) { return f8_e4m3_to_f32(f32_to_f8_e4m3(x * factor)); }

/* e4m3_norm of the CUDA backend. */
static double norm_of_weight_row(int n) {
    return (65504 - 16 * (n / 32.0 + 16)) / (sqrt(n) * (double)FULL) - sqrt(n) * 0x1p-9;
}

void rig_round_weight_row(double *x, int n) {
    static const float times[] = {1.0f,       1.0905077f, 1.1892071f, 1.2968396f,
                                  1.4142135f, 1.5422108f, 1.6817929f, 1.8340081f},
                       per[] = {1.0f,        0.91700404f, 0.84089642f, 0.77110541f,
                                0.70710678f, 0.64841978f, 0.59460356f, 0.54525387f};
    float most = fmaxf((float)largest_of(x, n), 1e-30f);
    double least = INFINITY;
    size_t best = 0;
    for (size_t k = 0; k < ARRAY_LEN(times); k++) {
        float factor = 448 / most * per[k], scale = most / 448 * times[k];
        double off = 0;
        for (int i = 0; i < n; i++) {
            float d = fmaf(-e4m3_of((float)x[i], factor), scale, (float)x[i]);
            off += (double)d * (double)d;
        }
        best = off < least ? k : best;
        least = fmin(least, off);
    }
    double squares = 0, up = 1;
    for (int i = 0; i < n; i++)
        squares += pow((double)e4m3_of((float)x[i], 448 / most * per[best]), 2);
    while (sqrt(squares) / up > norm_of_weight_row(n))
        up *= 2;
    for (int i = 0; i < n; i++)
        x[i] =
            (double)e4m3_of((float)x[i], 448 / most * per[best] / (float)up) * (double)(most / 448 * times[best]) * up;
}

static void round_int8(double *x, int n) {
    float most = fmaxf((float)largest_of(x, n), 1e-30f);
    for (int i = 0; i < n; i++)
        x[i] = rint(x[i] * (double)(127 / most)) * (double)(most / 127);
}

/* By the k-th power of two from the least that leaves all within FULL. */
static void round_by_power(double *x, int n, int k) {
    double most = largest_of(x, n), scale = most > 0 ? exp2(ceil(log2(most / (double)FULL)) + k) : 1;
    for (int i = 0; i < n; i++)
        x[i] = (double)f8_e4m3_to_f32(f32_to_f8_e4m3((float)(x[i] / scale))) * scale;
}

void rig_read(const char *dtype, enum rig_reading how, double *x, int n) {
    if (how >= READING_POWERS) {
        rig_round(dtype, x, n);
        round_by_power(x, n, (int)how - READING_POWERS);
        return;
    }
    int block = how >= READING_BLOCKS ? 32 << (how - READING_BLOCKS) / 2 : n;
    bool of_16 = how >= READING_BLOCKS ? (how - READING_BLOCKS) % 2 : how != READING_E4M3 && how != READING_AS_IT_IS;
    double largest = largest_of(x, n);
    if (of_16)
        rig_round(dtype, x, n);
    if (how == READING_E4M3_AFTER_16)
        round_by_largest(x, n, largest, FULL);
    else if (how > READING_16)
        for (int i = 0; i < n; i += block)
            round_by_largest(x + i, MIN(block, n - i), largest_of(x + i, MIN(block, n - i)), FULL);
}

double rig_distance(const double *a, const double *b, int n) {
    double squares = 0;
    for (int i = 0; i < n; i++)
        squares += (a[i] - b[i]) * (a[i] - b[i]);
    return squares;
}

const double *rig_nearest(struct rig *rig, const double *got, const double *const *want, int n) {
    double *nearest = rig_rows(rig);
    int width = rig->out.width;
    for (int64_t r = 0; r < rig->n_rows; r++) {
        double least = INFINITY;
        for (int i = 0; i < n; i++) {
            double far = rig_distance(got + r * width, want[i] + r * width, width);
            if (i > 0 && !(far < least))
                continue;
            least = far;
            memcpy(nearest + r * width, want[i] + r * width, (size_t)width * sizeof *nearest);
        }
    }
    return nearest;
}

void rig_round_cached(const char *dtype, const char *kv_dtype, double *x, int n) {
    if (rig_backend() == &backend_cpu)
        return;
    if (!kv_dtype)
        rig_round(dtype, x, n);
    else if (strcmp(kv_dtype, "fp8") == 0)
        rig_round_e4m3(x, n);
    else
        round_int8(x, n);
}

/* As attention_decode_takes and attention_query_element of the CUDA backend say. */
const char *rig_query_dtype(const char *dtype, const char *kv_dtype, const struct attention_args *a, int block_size) {
    bool size = (a->head_dim == 64 || a->head_dim == 128 || a->head_dim == 256 || a->head_dim == 512) &&
                a->v_head_dim == a->head_dim;
    bool plain = rig_backend() == &backend_cpu || getenv("GYRE_TEST_KERNELS"); // which read them as they are
    plain = plain || a->reach == REACH_ALL;
    if (plain || strcmp(dtype, "float32") == 0 || !size || a->paired_values || block_size < 16)
        return "float32";
    return kv_dtype ? "float16" : dtype;
}

/* ---- checks and pieces of formulas ---- */

static void note_error(const struct rig *rig, double error, double bound, enum rig_schedule schedule,
                       const char *what) {
    int i = 0;
    while (i < spent.n_bounds && spent.nearest[i].bound != bound)
        i++;
    if (bound < 1e-3 || i == (int)ARRAY_LEN(spent.nearest) || (i < spent.n_bounds && error <= spent.nearest[i].error))
        return;
    spent.n_bounds = MAX(spent.n_bounds, i + 1);
    spent.nearest[i].bound = bound;
    spent.nearest[i].error = error;
    snprintf(spent.nearest[i].what, sizeof spent.nearest[i].what, "%s, schedule %d, %s", what, schedule,
             rig->o.kernels ? rig->o.kernels : "best");
}

void rig_judge(struct rig *rig, const double *got, const double *want, struct rig_bounds bounds,
               enum rig_schedule schedule, const char *what) {
    const char *in = rig->o.kernels ? rig->o.kernels : "best";
    int64_t at;
    double most = worst_error(rig, got, want, &at), rms = rig_rms(rig, got, want), cosine = rig_cosine(rig, got, want);
    if (getenv("GYRE_TEST_TELL"))
        printf("told: %s | %s | %d | %d x %d | max %.3g of %.3g | rms %.3g of %.3g | cos %.7f of %.7f\n", what, in,
               schedule, rig->n_rows, rig->out.width, most, bounds.most, rms, bounds.rms, cosine, bounds.cosine);
    note_error(rig, most, bounds.most, schedule, what);
    if (is_sparse(rig)) // the others are means over many rows
        bounds.rms = bounds.cosine = 0;
    if (!(most <= bounds.most) || (bounds.rms > 0 && !(rms <= bounds.rms)) ||
        (bounds.cosine > 0 && !(cosine >= bounds.cosine)))
        fail_msg("%s, schedule %d, %s: error %.4g of %.3g in row %d, %d: %.9g for %.9g; rms %.3g of %.3g, cosine %.6f "
                 "of %.3f",
                 what, schedule, in, most, bounds.most, (int)(at / rig->out.width), (int)(at % rig->out.width), got[at],
                 want[at], rms, bounds.rms, cosine, bounds.cosine);
}

struct rig_bounds rig_bounds_of_16(const struct rig *rig, double exact) {
    const char *dtype = rig_backend() == &backend_cpu ? "float32" : rig->o.kernels;
    if (strcmp(dtype, "float16") == 0)
        return (struct rig_bounds){.most = fmax(exact, RIG_F16_BOUND), .rms = RIG_F16_RMS};
    if (strcmp(dtype, "bfloat16") == 0)
        return (struct rig_bounds){.most = fmax(exact, RIG_BF16_BOUND), .rms = RIG_BF16_RMS};
    return (struct rig_bounds){.most = exact};
}

void rig_expect(struct rig *rig, const double *want, double most, enum rig_schedule schedule, const char *what) {
    rig_judge(rig, rig_run(rig, schedule), want, (struct rig_bounds){.most = most}, schedule, what);
}

void rig_expect_bounds(struct rig *rig, const double *want, struct rig_bounds bounds, const char *what) {
    for (enum rig_schedule s = 0; s < N_SCHEDULES; s++)
        if (!rig_is_brief() || s == SCHEDULE_WHOLE || s == SCHEDULE_CHUNK_1)
            rig_judge(rig, rig_run(rig, s), want, bounds, s, what);
}

void rig_expect_in_every_schedule(struct rig *rig, const double *want, double most, const char *what) {
    rig_expect_bounds(rig, want, (struct rig_bounds){.most = most}, what);
}

double rig_multiply(const double *w, int64_t out, int64_t in, const double *x, double *y) {
    double largest = 0;
    for (int64_t o = 0; o < out; o++, w += in) {
        double even = 0, odd = 0, even_squares = 0, odd_squares = 0; // sums that do not wait for each other
        for (int64_t i = 0; i + 1 < in; i += 2) {
            double a = w[i] * x[i], b = w[i + 1] * x[i + 1];
            even += a;
            odd += b;
            even_squares += a * a;
            odd_squares += b * b;
        }
        double last = in % 2 ? w[in - 1] * x[in - 1] : 0;
        y[o] = even + odd + last;
        largest = fmax(largest, sqrt(even_squares + odd_squares + last * last));
    }
    return largest;
}

double *rig_wide_input(struct rig *rig, int i, int seq, int row) {
    double *x = rig_doubles(rig, rig->o.widths[i]);
    const float *in = rig_input(rig, i, seq, row);
    for (int k = 0; k < rig->o.widths[i]; k++)
        x[k] = (double)in[k];
    return x;
}

double rig_sigmoid(double x) { return 1 / (1 + exp(-x)); }

void rig_rms_norm(const double *x, const double *w, int n, double eps, bool plus_one, double *y) {
    double squares = 0;
    for (int i = 0; i < n; i++)
        squares += x[i] * x[i];
    double scale = 1 / sqrt(squares / n + eps);
    for (int i = 0; i < n; i++)
        y[i] = x[i] * scale * (w ? w[i] + plus_one : 1);
}
