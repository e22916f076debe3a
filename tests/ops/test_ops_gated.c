/* test_ops_gated.c - LINEAR and the GATED_ACT behind it, which a backend may make one node of, and the LINEAR behind
 * that, which reads what it hands on; how the tests are run is said in test_ops.c. */
#include "op_judge.h"
#include "op_linear.h"
#include "op_oracle.h"
#include "reports.h"

#include <math.h>

/* ---- LINEAR and the GATED_ACT behind it: a backend may make one node of them ---- */

static void gated_pair_case(enum rig_format format, int width, int in, int n_rows, bool biased, const char *kernels) {
    if (!rig_takes_case())
        return;
    int out = 2 * width;
    struct rig *rig = rig_new(
        (struct rig_options){.n_seqs = 2, .lens = {n_rows, (n_rows + 1) / 2}, .widths = {in}, .kernels = kernels});
    struct linear l;
    rig_result(rig, op_glu(rig->p, linear_record(rig, &l, format, out, in, biased), (struct act_args){ACT_SILU, 0}));
    rig_round(rig->o.kernels, l.w, (int64_t)out * in);
    double *want = linear_gated_rows(rig, &l, ACT_SILU, READING_16);
    char what[100];
    snprintf(what, sizeof what, "linear and gated_act %s [%d, %d] x %d", rig_format_name(format), out, in, rig->n_rows);
    double most = 8 * sqrt(in) * EPS + 2 * linear_off_by_scales(format, kernels);
    rig_expect(rig, want, most, SCHEDULE_WHOLE, what);
    rig_expect(rig, want, most, SCHEDULE_RAGGED, what);
    rig_free(rig);
}

/* Half precision ends at 65504. Every other row makes gates and ups of some thousands, whose products it cuts to that:
 * these rows are counted where the LINEAR behind reads them, in the first step that is looked at, and no others. */
static void rows_that_half_precision_cuts_are_counted_case(enum rig_format format, int n_rows,
                                                           const char *quantization) {
    enum { WIDTH = 96, IN = 64 };
    if (!rig_takes_case())
        return;
    struct rig *rig = rig_new((struct rig_options){.n_seqs = 2,
                                                   .lens = {n_rows, n_rows + 1},
                                                   .widths = {IN},
                                                   .kernels = "float16",
                                                   .quantization = quantization,
                                                   .begins_clean = true});
    int n_cut = 0;
    for (int i = 0; i < rig->n_rows; i += 2, n_cut++)
        for (int k = 0; k < rig->width; k++)
            rig->table[(int64_t)i * rig->width + k] *= 400;
    struct linear l;
    val acted = op_glu(rig->p, linear_record(rig, &l, format, 2 * WIDTH, IN, false), (struct act_args){ACT_SILU, 0});
    rig_result(rig, op_linear(rig->p, acted, rig_weight(rig, format, 32, WIDTH, NULL), NULL));
    rig_run(rig, SCHEDULE_WHOLE);
    int64_t told = report_of(rig->ops, rig->at.exe, "cut_rows_total");
    EXPECT_EQ(report_of(rig->ops, rig->at.exe, "watched_steps_total"), 1);
    if (told != n_cut)
        fail_msg("%s%s, %d rows: %lld were cut, %d are told", rig_format_name(format), quantization ? " quantised" : "",
                 rig->n_rows, (long long)told, n_cut);
    rig_free(rig);
}

static void rows_that_half_precision_cuts_are_counted(void **state) {
    (void)state;
    static const int sizes[] = {9, 20, 70, 300}; // steps of fewer a sequence are graphs, which are not looked at
    if (rig_backend() == &backend_cpu)
        skip(); // which has float32
    for (size_t i = 0; i < ARRAY_LEN(sizes); i++) {
        rows_that_half_precision_cuts_are_counted_case(FORMAT_BF16, sizes[i], NULL);
        rows_that_half_precision_cuts_are_counted_case(FORMAT_BF16, sizes[i], "fp8");
        rows_that_half_precision_cuts_are_counted_case(FORMAT_F8_CHANNEL, sizes[i], NULL);
    }
}

static void a_gated_projection_is_its_two_halves(void **state) {
    (void)state;
    static const enum rig_format formats[] = {FORMAT_BF16, FORMAT_BF16_SPLIT, FORMAT_F8_CHANNEL};
    for (const char *const *kernels = rig_kernels(); *kernels; kernels++)
        for (size_t f = 0; f < ARRAY_LEN(formats); f++) {
            if (!is_by_e4m3(formats[f], 2 * 96, 128, NULL, *kernels))
                gated_pair_case(formats[f], 96, 128, 1, false, *kernels);
            gated_pair_case(formats[f], 51, 208, 5, true, *kernels);
            gated_pair_case(formats[f], 34, 64, 21, true, *kernels);
            if (!is_by_e4m3(formats[f], 2 * 200, 896, NULL, *kernels)) // which another test holds
                gated_pair_case(formats[f], 200, 896, 70, false, *kernels);
            gated_pair_case(formats[f], 17, 22, 3, true, *kernels);
        }
    for (const char *const *kernels = rig_kernels(); *kernels && rig_backend() != &backend_cpu; kernels++)
        for (enum rig_format f = FORMAT_Q4_0; f < FORMAT_Q4_K_AND_Q6_K; f++)
            gated_pair_case(f, 40, 256, f % 2 ? 7 : 40, f % 2, *kernels);
}

/* ---- LINEAR, GATED_ACT, LINEAR ---- */

/* Gates and ups, their product, and its way down, where whoever makes a value in e4m3 may give it scales of its own
 * blocks of columns. */
struct gated_down {
    struct linear up, down;
    double *x, *ups, *product, *off, *read, *step, *sorted,
        *y; // scratch, of one row; off: how far a value of the product may be off
};

/* How far a sum of products of e4m3 is off at most, of its size: what is seen, see RIG_F8_READ_BOUND. */
static const double SUM_OFF = 0.006;

static void multiply_gated(struct rig *rig, struct gated_down *c, enum rig_reading how, const double *x) {
    memcpy(c->x, x, (size_t)c->up.in * sizeof *x);
    double off = SUM_OFF * linear_row(rig, &c->up, how, c->x, c->ups);
    for (int i = 0; i < c->down.in; i++) {
        double gate = c->ups[i], up = c->ups[c->down.in + i];
        c->product[i] = gate * rig_sigmoid(gate) * up;
        c->off[i] =
            off * (fabs(gate) + fabs(up)) + SUM_OFF * fabs(c->product[i]); // and the scale with the row's largest
    }
}

/* y of the product that is read in this way. */
static double multiply_down(const struct rig *rig, struct gated_down *c, enum rig_reading how) {
    memcpy(c->read, c->product, (size_t)c->down.in * sizeof *c->read);
    return linear_row(rig, &c->down, how, c->read, c->y);
}

/* What read[i] may be as well, less itself: its neighbour in e4m3, a sixteenth to an eighth of itself off, or a few
 * units of subnormals; 0 for nothing else. */
static void find_steps(const struct rig *rig, struct gated_down *c, enum rig_reading how, int side) {
    const int n = c->down.in;
    for (int i = 0; i < n; i++)
        c->step[i] = c->product[i] + side * c->off[i];
    rig_read(rig->o.kernels, how, c->step, n);
    for (int i = 0; i < n; i++) {
        c->step[i] -= c->read[i];
        if (fabs(c->step[i]) <= fabs(c->read[i]) / 32) // the same number, by a scale that is a little off
            c->step[i] = 0;
    }
}

static int by_size(const void *a, const void *b) {
    double x = fabs(*(const double *)a), y = fabs(*(const double *)b);
    return (x < y) - (x > y);
}

/* Of the steps the largest alone, fewer than there are columns to tell them by: the others are small, and many. */
static void leave_large_steps(struct gated_down *c) {
    const int n = c->down.in, most = c->down.out / 4;
    memcpy(c->sorted, c->step, (size_t)n * sizeof *c->step);
    qsort(c->sorted, (size_t)n, sizeof *c->sorted, by_size);
    for (int i = 0; most < n && i < n; i++)
        if (fabs(c->step[i]) <= fabs(c->sorted[most]))
            c->step[i] = 0;
}

/* Takes those steps with which y is nearer to what was got, and back those that it is nearer without. */
static void take_steps(struct gated_down *c, const double *got, double *y) {
    const int n = c->down.in, out = c->down.out;
    bool moved = true;
    for (int pass = 0; moved && pass < 8; pass++) {
        moved = false;
        for (int i = 0; i < n; i++) {
            double nearer = 0, step = c->step[i];
            const double *w = c->down.w + i;
            for (int o = 0; step != 0 && o < out; o++)
                nearer += step * w[(int64_t)o * n] * (2 * (got[o] - y[o]) - step * w[(int64_t)o * n]);
            if (!(nearer > 0))
                continue;
            for (int o = 0; o < out; o++)
                y[o] += step * w[(int64_t)o * n];
            c->step[i] = -step;
            moved = true;
        }
    }
}

/* Of all ways to read x and then the product, the row that is nearest to what was got, once a number that lies in the
 * middle between two of e4m3 is the one with which it is nearer. Returns the size of such a sum. */
static double nearest_down_row(struct rig *rig, struct gated_down *c, const double *x, const double *got,
                               double *want) {
    double far[N_ROW_READINGS][N_READINGS], least = INFINITY, nearest = INFINITY, size = 0;
    for (int first = 0; first < N_ROW_READINGS; first++) {
        multiply_gated(rig, c, (enum rig_reading)first, x);
        for (int second = 0; second < N_READINGS; second++) {
            size = multiply_down(rig, c, (enum rig_reading)second);
            far[first][second] = rig_distance(got, c->y, c->down.out);
            least = fmin(least, far[first][second]);
        }
    }
    for (int first = 0; first < N_ROW_READINGS; first++) {
        multiply_gated(rig, c, (enum rig_reading)first, x);
        for (int second = 0; second < N_READINGS; second++) {
            if (far[first][second] > 4 * least)
                continue;
            multiply_down(rig, c, (enum rig_reading)second);
            for (int side = -1; side <= 1; side += 2) {
                find_steps(rig, c, (enum rig_reading)second, side);
                leave_large_steps(c);
                take_steps(c, got, c->y);
            }
            double requantised = rig_distance(got, c->y, c->down.out);
            if (requantised >= nearest)
                continue;
            nearest = requantised;
            memcpy(want, c->y, (size_t)c->down.out * sizeof *want);
        }
    }
    return size;
}

static void down_case(int ffn, int width, int n_rows, const char *kernels) {
    if (!rig_takes_case())
        return;
    struct rig_options o = {.n_seqs = 2, .lens = {n_rows, (n_rows + 1) / 2}, .widths = {width}, .kernels = kernels};
    struct rig *rig = rig_new(n_rows ? o : rig_sizes(o));
    struct gated_down c;
    val gated = op_glu(rig->p, linear_record(rig, &c.up, FORMAT_F8_CHANNEL, 2 * ffn, width, false),
                       (struct act_args){ACT_SILU, 0});
    c.down = (struct linear){.out = width, .in = ffn};
    const struct weight *weight = rig_weight(rig, FORMAT_F8_CHANNEL, width, ffn, &c.down.w);
    rig_result(rig, op_linear(rig->p, gated, weight, NULL));
    c.x = rig_doubles(rig, width), c.y = rig_doubles(rig, width), c.ups = rig_doubles(rig, 2 * ffn),
    c.product = rig_doubles(rig, ffn);
    c.off = rig_doubles(rig, ffn), c.read = rig_doubles(rig, ffn), c.step = rig_doubles(rig, ffn),
    c.sorted = rig_doubles(rig, ffn);
    char what[100];
    snprintf(what, sizeof what, "down [%d, %d] of gated x %d", width, ffn, n_rows);
    static const enum rig_schedule few[] = {SCHEDULE_WHOLE, SCHEDULE_CHUNK_1};
    for (int i = 0; i < (n_rows ? 2 : 1); i++) {
        enum rig_schedule schedule = n_rows ? few[i] : SCHEDULE_SIZES;
        double *got = rig_run(rig, schedule), *want = rig_rows(rig);
        RIG_EACH_ROW(rig, s, t) {
            const double *x = rig_wide_input(rig, 0, s, t), *got_row = rig_at(rig, got, s, t);
            if (rig_tells(rig, rig_row(rig, s, t)))
                rig->floor = fmax(rig->floor, nearest_down_row(rig, &c, x, got_row, rig_at(rig, want, s, t)));
        }
        rig_judge(rig, got, want, (struct rig_bounds){.most = RIG_F8_REQUANT_BOUND}, schedule, what);
        double rms = rig_rms(rig, got, want); // of a few rows too, as it is what tells readings apart
        if (!(rms <= RIG_F8_REQUANT_RMS))
            fail_msg("%s, schedule %d, %s: rms %.3g of %.3g", what, (int)schedule, kernels, rms, RIG_F8_REQUANT_RMS);
    }
    rig_free(rig);
}

static void what_a_gated_product_hands_on_is_read_as_it_was_written(void **state) {
    (void)state;
    static const int shapes[][3] = {{128, 256, 1},   {640, 512, 5},  {384, 128, 40},  {272, 400, 33},
                                    {512, 256, 130}, {256, 384, 64}, {11264, 48, 70}, {256, 128, 0}};
    for (const char *const *kernels = rig_kernels(); *kernels; kernels++)
        for (size_t i = 0; i < ARRAY_LEN(shapes); i++)
            if (is_by_e4m3(FORMAT_F8_CHANNEL, shapes[i][0], shapes[i][1], NULL, *kernels) &&
                (shapes[i][2] > 0 || !rig_is_brief()))
                down_case(shapes[i][0], shapes[i][1], shapes[i][2], *kernels);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_a_gated_product_hands_on_is_read_as_it_was_written),
        cmocka_unit_test(rows_that_half_precision_cuts_are_counted),
        cmocka_unit_test(a_gated_projection_is_its_two_halves),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
