/* test_gemv.c - the weight-stream LINEAR of the CUDA backend (src/backend/cuda/linear/gemv.cu, gemv_once.cu) against
 * double precision.
 *
 * Weights of every format, random shapes whose rows and columns divide by nothing, every number of tokens, biases,
 * gated pairs. What must not be written is poisoned before and looked at after; what must not be read is NaN.
 *
 * Bounds. Products of e4m3 and half and of two halves are exact in float32; a sum of n of them in float32, in an order
 * of the kernel's own, is off by at most n * 2^-24 of the sum of sizes, and by about the root of n of that for random
 * terms: 1e-5 of the sum of sizes is allowed. y in 16 bits adds half a unit of its last place. */
#include "backend/cuda/device/device.h"
#include "backend/cuda/linear/ending.h"
#include "backend/cuda/linear/gemv.h"
#include "backend/cuda/value.h"
#include "base/status.h"
#include "check.h"
#include "core/dtype.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static uint64_t state;
static uint32_t next_random(void) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(state >> 33);
}
static int random_below(int n) { return (int)(next_random() % (uint32_t)n); }
static float random_float(void) { return (float)next_random() / 1073741824.0f - 1; }

static void must(cudaError_t code, const char *what) {
    if (code != cudaSuccess) {
        fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(code));
        abort();
    }
}

struct shape {
    enum element weight, y;
    int in, out, tokens;
    bool gated, bias;
    int act;
};

static double e4m3_value(uint8_t v) {
    int e = v >> 3 & 15, m = v & 7;
    double size = e ? ldexp(8 + m, e - 10) : ldexp(m, -9);
    return v & 0x80 ? -size : size;
}

static double value_of(enum element e, const void *at, size_t i) {
    switch (e) {
    case ELEMENT_E4M3: return e4m3_value(((const uint8_t *)at)[i]);
    case ELEMENT_F16: return (double)f16_to_f32(((const uint16_t *)at)[i]);
    case ELEMENT_BF16: return (double)bf16_to_f32(((const uint16_t *)at)[i]);
    default: return (double)((const float *)at)[i];
    }
}

static size_t size_of(enum element e) { return e == ELEMENT_E4M3 ? 1 : e == ELEMENT_F32 ? 4 : 2; }

static void fill(enum element e, void *at, size_t n) {
    for (size_t i = 0; i < n; i++) {
        float v = random_float();
        if (e == ELEMENT_E4M3) {
            uint8_t byte = (uint8_t)next_random();
            ((uint8_t *)at)[i] = (byte & 0x7f) == 0x7f ? 0 : byte; // every value, subnormals too, but NaN
        } else if (e == ELEMENT_F16)
            ((uint16_t *)at)[i] = f32_to_f16(v);
        else if (e == ELEMENT_BF16)
            ((uint16_t *)at)[i] = f32_to_bf16(v);
        else
            ((float *)at)[i] = v;
    }
}

static void *to_device(const void *from, size_t n_bytes) {
    void *at;
    must(cudaMalloc(&at, n_bytes), "memory");
    must(cudaMemcpy(at, from, n_bytes, cudaMemcpyHostToDevice), "copy");
    return at;
}

static double activated(int act, double gate, double up) {
    switch (act) {
    case 0: return gate / (1 + exp(-gate)) * up;
    case 1: return 0.5 * gate * (1 + tanh(0.7978845608028654 * (gate + 0.044715 * gate * gate * gate))) * up;
    default: return 0.5 * gate * (1 + erf(gate * 0.7071067811865476)) * up;
    }
}

struct problem {
    struct shape s;
    size_t x_stride, y_stride, y_width;
    void *w, *x, *y; // on the host
    float *scale, *bias;
    void *dw, *dx, *dy, *dscale, *dbias;
};

enum { GAP = 8 }; // elements between rows of x (NaN) and of y (poison)

static void problem_init(struct problem *p, struct shape s) {
    enum element product = s.weight == ELEMENT_BF16 ? ELEMENT_BF16 : ELEMENT_F16;
    *p = (struct problem){
        .s = s, .x_stride = ((size_t)s.in + 7) / 8 * 8 + GAP, .y_width = (size_t)(s.gated ? s.out / 2 : s.out)};
    p->y_stride = p->y_width + GAP;
    size_t n_w = (size_t)s.out * (size_t)s.in, n_x = (size_t)s.tokens * p->x_stride,
           y_bytes = (size_t)s.tokens * p->y_stride * size_of(s.y);
    p->w = xcalloc(n_w, size_of(s.weight));
    p->x = xcalloc(n_x, 2);
    p->y = xcalloc(1, y_bytes);
    p->scale = xcalloc((size_t)s.out, sizeof(float));
    p->bias = xcalloc((size_t)s.out, sizeof(float));
    fill(s.weight, p->w, n_w);
    memset(p->x, 0xff, n_x * 2); // NaN
    for (int t = 0; t < s.tokens; t++)
        fill(product, (uint16_t *)p->x + (size_t)t * p->x_stride, (size_t)s.in);
    for (int i = 0; i < s.out; i++) {
        p->scale[i] = s.weight == ELEMENT_E4M3 ? ldexpf(1 + random_float() / 2, -9) : 1;
        p->bias[i] = s.bias ? random_float() : 0;
    }
    memset(p->y, 0xff, y_bytes);
    p->dw = to_device(p->w, n_w * size_of(s.weight));
    p->dx = to_device(p->x, n_x * 2);
    p->dy = to_device(p->y, y_bytes);
    p->dscale = to_device(p->scale, (size_t)s.out * sizeof(float));
    p->dbias = to_device(p->bias, (size_t)s.out * sizeof(float));
}

static void problem_release(struct problem *p) {
    void *host[] = {p->w, p->x, p->y, p->scale, p->bias}, *device[] = {p->dw, p->dx, p->dy, p->dscale, p->dbias};
    for (int i = 0; i < 5; i++) {
        free(host[i]);
        cudaFree(device[i]);
    }
}

static struct dgemv gemv_of(const struct problem *p, bool bias) {
    const struct shape *s = &p->s;
    return (struct dgemv){.w = {p->dw, s->out, s->in, s->weight, s->weight == ELEMENT_E4M3 ? p->dscale : NULL},
                          .bias = bias ? p->dbias : NULL,
                          .ending = {.kind = s->gated ? ENDING_GATED : ENDING_PLAIN, .act = s->act}};
}

/* y of rows [first, first + n) of x. False: many tokens of long rows have no place, or not in this cut. */
static bool run(struct problem *p, int first, int n, const struct gemv_cut *cut) {
    const struct shape *s = &p->s;
    enum element product = s->weight == ELEMENT_BF16 ? ELEMENT_BF16 : ELEMENT_F16;
    struct launch l = {.stream = NULL};
    struct dgemv a = gemv_of(p, s->bias);
    a.held = random_below(80);
    struct dmat x = {(uint16_t *)p->dx + (size_t)first * p->x_stride, (int64_t)p->x_stride, s->in, product, NULL};
    struct dmat y = {(char *)p->dy + (size_t)first * p->y_stride * size_of(s->y), (int64_t)p->y_stride, (int)p->y_width,
                     s->y, NULL};
    if (!gemv_takes(&a, x, y, n)) {
        fail_msg("%d rows of %d are not taken", n, s->in);
    }
    if (cut && !gemv_takes_cut(&a, n, cut))
        return false;
    if (cut)
        launch_gemv_cut(&l, n, &a, x, y, cut);
    else
        launch_gemv(&l, n, &a, x, y);
    must(cudaGetLastError(), "launch");
    must(cudaDeviceSynchronize(), "run");
    must(cudaMemcpy(p->y, p->dy, (size_t)s->tokens * p->y_stride * size_of(s->y), cudaMemcpyDeviceToHost), "copy");
    return true;
}

static double sum_of(const struct problem *p, int token, size_t row, double *size) {
    enum element product = p->s.weight == ELEMENT_BF16 ? ELEMENT_BF16 : ELEMENT_F16;
    double sum = 0;
    *size = 0;
    for (size_t k = 0; k < (size_t)p->s.in; k++) {
        double term = value_of(p->s.weight, p->w, row * (size_t)p->s.in + k) *
                      value_of(product, p->x, (size_t)token * p->x_stride + k);
        sum += term;
        *size += fabs(term);
    }
    *size = *size * (double)p->scale[row] + fabs((double)p->bias[row]);
    return sum * (double)p->scale[row] + (double)p->bias[row];
}

static void fail_shape(const struct shape *s, const struct gemv_cut *c, const char *what, int token, int col,
                       double want, double got) {
    printf("weight %d y %d: out %d in %d tokens %d gated %d bias %d", s->weight, s->y, s->out, s->in, s->tokens,
           s->gated, s->bias);
    if (c)
        printf(" cut: m_tiles %d row_warps %d column_warps %d cluster %d blocks %d", c->m_tiles, c->row_warps,
               c->column_warps, c->cluster, c->n_blocks);
    printf(": %s: row %d column %d: wanted %.8g, got %.8g\n", what, token, col, want, got);
    fail_msg("differs");
}

static void check_rows(const struct problem *p, const struct gemv_cut *cut, int every) {
    const struct shape *s = &p->s;
    double unit = s->y == ELEMENT_F32 ? 0 : s->y == ELEMENT_F16 ? 0x1p-11 : 0x1p-8;
    for (int t = 0; t < s->tokens; t++) {
        for (size_t i = 0; i < p->y_width; i++) {
            if (every > 1 && random_below(every) != 0 && i != 0 && i != p->y_width - 1)
                continue;
            double size, up_size = 0, want = sum_of(p, t, i, &size), bound = 1e-5 * size;
            if (s->gated) {
                double up = sum_of(p, t, i + p->y_width, &up_size);
                bound = 1e-5 * (1.2 * size * fabs(up) + (1 + fabs(want)) * up_size);
                want = activated(s->act, want, up);
            }
            double got = value_of(s->y, p->y, (size_t)t * p->y_stride + i);
            bound += unit * fabs(want) + (s->y == ELEMENT_F16 ? 0x1p-24 : 0) + 1e-6 * fabs(want) + 1e-30;
            if (!(fabs(got - want) <= bound) && !(s->y == ELEMENT_F16 && fabs(want) > 65000))
                fail_shape(s, cut, "value", t, (int)i, want, got);
        }
        for (size_t i = p->y_width; i < p->y_stride; i++)
            for (size_t b = 0; b < size_of(s->y); b++)
                if (((uint8_t *)p->y)[((size_t)t * p->y_stride + i) * size_of(s->y) + b] != 0xff)
                    fail_shape(s, cut, "written beside the row", t, (int)i, 0, 0);
    }
}

static void one(struct shape s, const struct gemv_cut *cut, int every) {
    struct problem p;
    problem_init(&p, s);
    if (run(&p, 0, s.tokens, cut))
        check_rows(&p, cut, every);
    problem_release(&p);
}

static const enum element FORMATS[] = {ELEMENT_E4M3, ELEMENT_F16, ELEMENT_BF16};
static const enum element RESULTS[] = {ELEMENT_F32, ELEMENT_F16, ELEMENT_BF16};

static void every_number_of_tokens(void **unused) {
    (void)unused;
    for (int f = 0; f < 3; f++)
        for (int n = 1; n <= GEMV_MAX_ROWS; n++)
            one((struct shape){FORMATS[f], RESULTS[n % 3], 16 * (20 + random_below(60)), 2 * (100 + random_below(300)),
                               n, n % 4 == 1, n % 3 == 1, n % 3},
                NULL, 8);
}

static void shapes_that_divide_by_nothing(void **unused) {
    (void)unused;
    for (int i = 0; i < 150; i++) {
        enum element w = FORMATS[i % 3];
        int in = w == ELEMENT_E4M3 ? 16 * (1 + random_below(90)) : 8 * (1 + random_below(180)),
            tokens = 1 + random_below(GEMV_MAX_ROWS);
        bool gated = random_below(2);
        one((struct shape){w, RESULTS[random_below(3)], in,
                           gated ? 2 * (1 + random_below(600)) : 1 + random_below(1200), tokens, gated, random_below(2),
                           random_below(3)},
            NULL, 12);
    }
}

/* Whether a run takes the next case: all of them, or those of $GYRE_TEST_PART, k/n. */
static bool takes_case(void) {
    static int n_cases;
    const char *asked = getenv("GYRE_TEST_PART");
    int part = 1, of = 1;
    if (asked && (sscanf(asked, "%d/%d", &part, &of) != 2 || part < 1 || part > of))
        fail_msg("GYRE_TEST_PART=%s is not k/n with k from 1 to n", asked);
    return n_cases++ % of == part - 1;
}

static void shapes_of_models(void **unused) {
    (void)unused;
    static const int shapes[][3] = {{4608, 3584, 0},  {3584, 3584, 0},  {37888, 3584, 1}, {3584, 18944, 0},
                                    {4096, 14336, 0}, {28672, 4096, 1}, {5376, 21504, 0}};
    static const int tokens[] = {1, 2, 3, 4, 8, 5, 7};
    for (int i = 0; i < 7; i++)
        for (int t = i % 2; t < 7; t += 2) {
            if (!takes_case())
                continue;
            enum element w = FORMATS[(i + t) % 3];
            one((struct shape){w, RESULTS[(i + t / 2) % 3], shapes[i][1], shapes[i][0], tokens[t], shapes[i][2], i == 0,
                               0},
                NULL, shapes[i][0] * tokens[t] / 200 + 2);
        }
}

static void every_cut(void **unused) {
    (void)unused;
    for (int i = 0; i < 120; i++) {
        struct gemv_cut cut = {1 + random_below(3), 1 << random_below(4), 1, 1 << random_below(4), 0, random_below(2)};
        cut.column_warps = 1 << random_below(4);
        while (cut.row_warps * cut.column_warps > 8)
            cut.row_warps == 1 ? (cut.column_warps /= 2) : (cut.row_warps /= 2);
        cut.n_blocks = cut.cluster * (1 + random_below(16));
        enum element w = FORMATS[i % 3];
        bool gated = random_below(2);
        one((struct shape){w, RESULTS[random_below(3)], 16 * (1 + random_below(100)), 2 * (1 + random_below(400)),
                           1 + random_below(8), gated, random_below(2), 0},
            &cut, 12);
    }
}

/* Behind a block's own columns of x lies what was in shared memory before, here NaN of a wider product, and is met by
 * zeros of W. Of the four blocks of a cluster the first has 9 chunks, two steps of eight warps, and the last has 8, the
 * last of them half: its columns end a part of x before the others'. */
static void what_was_in_shared_memory_is_not_summed(void **unused) {
    (void)unused;
    enum { TOKENS = 7 };
    const struct gemv_cut cut = {1, 1, 8, 4, 132, false};
    struct problem wider, p;
    problem_init(&wider, (struct shape){ELEMENT_BF16, ELEMENT_F32, 1056, 560, TOKENS, true, true, 0});
    problem_init(&p, (struct shape){ELEMENT_BF16, ELEMENT_F32, 1040, 560, TOKENS, true, true, 0});
    must(cudaMemset(wider.dx, 0xff, TOKENS * wider.x_stride * sizeof(uint16_t)), "NaN");
    EXPECT(run(&wider, 0, TOKENS, &cut));
    EXPECT(run(&p, 0, TOKENS, &cut));
    check_rows(&p, &cut, 1);
    problem_release(&wider);
    problem_release(&p);
}

/* Whoever else is in the step, in whatever place: a row of y has the same bits, as long as the step is cut alike. */
static void a_row_does_not_know_the_others(void **unused) {
    (void)unused;
    for (int f = 0; f < 3; f++) {
        struct problem p;
        problem_init(&p, (struct shape){FORMATS[f], ELEMENT_F32, 1040, 998, 8, f == 1, true, 0});
        struct dgemv a = gemv_of(&p, true);
        struct gemv_cut cut = gemv_cut_of(&a, 1);
        size_t n_bytes = 8 * p.y_stride * sizeof(float);
        float *whole = xcalloc(1, n_bytes);
        EXPECT(run(&p, 0, 8, &cut));
        memcpy(whole, p.y, n_bytes);
        for (int first = 0, n; first < 8; first += n) {
            n = 1 + random_below(8 - first);
            must(cudaMemset(p.dy, 0xff, n_bytes), "poison");
            EXPECT(run(&p, first, n, &cut));
            for (int t = first; t < first + n; t++)
                assert_memory_equal((float *)p.y + (size_t)t * p.y_stride, whole + (size_t)t * p.y_stride,
                                    p.y_width * sizeof(float));
        }
        free(whole);
        problem_release(&p);
    }
}

static void run_once(struct problem *p, const struct dgemv *a, const struct gemv_once_cut *c) {
    struct launch l = {.stream = NULL};
    struct dmat x = {p->dx, (int64_t)p->x_stride, p->s.in, ELEMENT_F16, NULL};
    struct dmat y = {p->dy, (int64_t)p->y_stride, (int)p->y_width, p->s.y, NULL};
    launch_gemv_once(&l, a, x, y, c);
    must(cudaGetLastError(), "launch");
    must(cudaDeviceSynchronize(), "run");
    must(cudaMemcpy(p->y, p->dy, p->y_stride * size_of(p->s.y), cudaMemcpyDeviceToHost), "copy");
}

/* gemv_once.cu: one token, one pass and several, all tiles, columns that end anywhere in a chunk. Its bits are those of
 * the cut of gemv.cu with eight column warps. Every second product finds NaN of a wider one in shared memory. */
static void one_token_at_once(void **unused) {
    (void)unused;
    struct problem wider;
    problem_init(&wider, (struct shape){ELEMENT_E4M3, ELEMENT_F32, 4096, 40, 1, false, false, 0});
    must(cudaMemset(wider.dx, 0xff, wider.x_stride * sizeof(uint16_t)), "NaN");
    int n_passes[4] = {0}, n_tiles[4] = {0};
    static const int most_rows[] = {16, 32, 48, 96, 144}; // of a block: one pass of 1 to 3 tiles, two passes, three
    for (int i = 0; i < (test_is_brief() ? 16 : 60); i++) {
        int kind = i % 5, rows = most_rows[kind] - random_below(kind < 3 ? 16 : 48), n_blocks = 1 + random_below(4),
            out = n_blocks * rows - random_below(n_blocks);
        int in = kind > 2 ? 1536 + 16 * (1 + random_below(32)) : 16 * (1 + random_below(i < 5 ? 128 : 512));
        struct problem p;
        problem_init(&p, (struct shape){ELEMENT_E4M3, RESULTS[i % 3], in, out, 1, false, random_below(2), 0});
        struct dgemv a = gemv_of(&p, p.s.bias), wide = gemv_of(&wider, false);
        a.among_experts = random_below(2);
        struct gemv_once_cut c = gemv_once_cut_by(&a, n_blocks), w = gemv_once_cut_by(&wide, 3);
        if (c.n_blocks > 0) {
            n_passes[c.n_passes]++;
            n_tiles[c.m_tiles]++;
            if (i % 2)
                run_once(&wider, &wide, &w);
            run_once(&p, &a, &c);
            check_rows(&p, NULL, 5);
            const struct gemv_cut queued = {c.m_tiles, 1, 8, 1, n_blocks, false};
            size_t n_bytes = p.y_width * size_of(p.s.y);
            void *once = xcalloc(1, n_bytes);
            memcpy(once, p.y, n_bytes);
            if (run(&p, 0, 1, &queued))
                assert_memory_equal(p.y, once, n_bytes);
            free(once);
        }
        problem_release(&p);
    }
    problem_release(&wider);
    for (int k = 1; k <= 3; k++)
        EXPECT(n_tiles[k] > 0 && n_passes[k] > 0);
}

/* Steps one after another on a stream, each started while the one before runs: what the first writes the second reads.
 */
static void a_chain_keeps_its_order(void **unused) {
    (void)unused;
    enum { WIDTH = 1024, LONG = 12 };
    for (int tokens = 1; tokens <= 8; tokens += 3) {
        struct problem p;
        problem_init(&p, (struct shape){ELEMENT_E4M3, ELEMENT_F16, WIDTH, WIDTH, tokens, false, false, 0});
        for (int i = 0; i < WIDTH; i++)
            p.scale[i] /= 8; // so that sizes stay about as they are
        must(cudaMemcpy(p.dscale, p.scale, WIDTH * sizeof(float), cudaMemcpyHostToDevice), "copy");
        void *v[2];
        size_t n_bytes = (size_t)tokens * WIDTH * 2;
        uint16_t *first = xcalloc(1, n_bytes), *one_by_one = xcalloc(1, n_bytes), *chained = xcalloc(1, n_bytes);
        fill(ELEMENT_F16, first, (size_t)tokens * WIDTH);
        for (int how = 0; how < (test_is_brief() ? 7 : 21); how++) { // the first one waits for each step
            struct launch l = {.stream = NULL};
            struct dgemv a = gemv_of(&p, false);
            for (int k = 0; k < 2; k++)
                v[k] = to_device(first, n_bytes);
            for (int i = 0; i < LONG; i++) {
                struct dmat x = {v[i % 2], WIDTH, WIDTH, ELEMENT_F16, NULL},
                            y = {v[(i + 1) % 2], WIDTH, WIDTH, ELEMENT_F16, NULL};
                launch_gemv(&l, tokens, &a, x, y);
                if (how == 0)
                    must(cudaDeviceSynchronize(), "run");
            }
            must(cudaDeviceSynchronize(), "run");
            must(cudaMemcpy(how ? chained : one_by_one, v[LONG % 2], n_bytes, cudaMemcpyDeviceToHost), "copy");
            for (int k = 0; k < 2; k++)
                cudaFree(v[k]);
            if (how)
                assert_memory_equal(chained, one_by_one, n_bytes);
        }
        free(first);
        free(one_by_one);
        free(chained);
        problem_release(&p);
    }
}

int main(void) {
    state = test_seed();
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_number_of_tokens),
                                       cmocka_unit_test(shapes_that_divide_by_nothing),
                                       cmocka_unit_test(every_cut),
                                       cmocka_unit_test(what_was_in_shared_memory_is_not_summed),
                                       cmocka_unit_test(a_row_does_not_know_the_others),
                                       cmocka_unit_test(one_token_at_once),
                                       cmocka_unit_test(a_chain_keeps_its_order),
                                       cmocka_unit_test(shapes_of_models)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
