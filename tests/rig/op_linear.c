/* op_linear.c - see op_linear.h. */
#include "op_linear.h"

#include "op_judge.h"
#include "op_oracle.h"

#include <math.h>

val linear_record(struct rig *rig, struct linear *l, enum rig_format format, int out, int in, bool biased) {
    *l = (struct linear){.out = out, .in = in};
    const struct weight *weight = rig_weight(rig, format, out, in, &l->w);
    const struct weight *bias = biased ? rig_vector(rig, out, -1, 1, &l->b) : NULL;
    return op_linear(rig->p, rig->in[0], weight, bias);
}

double linear_row(const struct rig *rig, const struct linear *l, enum rig_reading how, double *x, double *y) {
    rig_read(rig->o.kernels, how, x, l->in);
    double size = rig_multiply(l->w, l->out, l->in, x, y);
    for (int o = 0; l->b && o < l->out; o++)
        y[o] += l->b[o];
    return size;
}

double *linear_rows(struct rig *rig, const struct linear *l, enum rig_reading how) {
    double *want = rig_rows(rig);
    RIG_EACH_ROW(rig, s, t)
    rig->floor = fmax(rig->floor, linear_row(rig, l, how, rig_wide_input(rig, 0, s, t), rig_at(rig, want, s, t)));
    return want;
}

double linear_off_by_scales(enum rig_format format, const char *kernels) {
    bool rounds = format == FORMAT_Q4_K || format == FORMAT_Q6_K || format == FORMAT_Q4_K_AND_Q6_K;
    return rounds && strcmp(kernels, "float32") != 0 ? 0x1p-9 : 0;
}

bool is_by_e4m3(enum rig_format format, int out, int in, const char *quantization, const char *kernels) {
    if (rig_backend() == &backend_cpu || strcmp(kernels, "float32") == 0 || out % 16 != 0 || in % 16 != 0)
        return false;
    return format == FORMAT_F8_CHANNEL || format == FORMAT_F8_TENSOR || format == FORMAT_F8_BLOCK ||
           (quantization && format < FORMAT_F8_CHANNEL);
}

double *linear_gated_rows(struct rig *rig, const struct linear *l, enum activation act, enum rig_reading how) {
    double *want = rig_rows(rig), *y = rig_doubles(rig, l->out);
    RIG_EACH_ROW(rig, s, t) {
        double size = 1 + linear_row(rig, l, how, rig_wide_input(rig, 0, s, t), y);
        rig->floor = fmax(rig->floor, size * size);
        for (int i = 0; i < l->out / 2; i++)
            rig_at(rig, want, s, t)[i] =
                y[l->out / 2 + i] * (act == ACT_SILU ? y[i] * rig_sigmoid(y[i]) : rig_sigmoid(y[i]));
    }
    return want;
}

double *by_e4m3_rows(struct rig *rig, const struct by_e4m3 *c, enum rig_reading how) {
    return c->act ? linear_gated_rows(rig, &c->l, *c->act, how) : linear_rows(rig, &c->l, how);
}

void by_e4m3_judge(struct rig *rig, struct by_e4m3 *c, const enum rig_schedule *schedules, size_t n_schedules,
                   const char *what) {
    const double *stored = by_e4m3_rows(rig, c, READING_AS_IT_IS), *read[N_ROW_READINGS];
    struct rig_bounds coarse = {.most = RIG_F8_BOUND,
                                .cosine = rig->n_rows * rig->out.width >= 1000 ? RIG_F8_COSINE : 0};
    struct rig_bounds as_read = {.most = RIG_F8_READ_BOUND, .rms = RIG_F8_READ_RMS};
    if (c->act)
        coarse.most = 1;
    bool as_it_is = c->format == FORMAT_F8_CHANNEL || c->format == FORMAT_F8_TENSOR ||
                    (c->format == FORMAT_F8_BLOCK && c->l.in <= 16); // has a scale a row
    if (!as_it_is)
        for (int o = 0; o < c->l.out; o++)
            rig_round_weight_row(c->l.w + (int64_t)o * c->l.in, c->l.in);
    for (int how = 0; how < N_ROW_READINGS; how++)
        read[how] = by_e4m3_rows(rig, c, (enum rig_reading)how);
    for (size_t i = 0; i < n_schedules; i++) {
        if (rig_is_brief() && schedules[i] == SCHEDULE_RAGGED)
            continue; // as CHUNK_1
        const double *got = rig_run(rig, schedules[i]), *nearest = rig_nearest(rig, got, read, N_ROW_READINGS);
        rig_judge(rig, got, nearest, as_read, schedules[i], what);
        if (c->act)
            coarse.cosine = RIG_F8_LEFT(rig_cosine(rig, nearest, stored));
        rig_judge(rig, got, stored, coarse, schedules[i], what);
    }
}

void linear_case(enum rig_format format, int out, int in, int n_rows, bool biased, const char *kernels) {
    if (!rig_takes_case())
        return;
    struct rig *rig = rig_new(
        (struct rig_options){.n_seqs = 2, .lens = {n_rows, (n_rows + 1) / 2}, .widths = {in}, .kernels = kernels});
    struct linear l;
    rig_result(rig, linear_record(rig, &l, format, out, in, biased));
    const double *read[2];
    read[1] = linear_rows(rig, &l, READING_16);
    rig_round(rig->o.kernels, l.w, (int64_t)out * in);
    read[0] = linear_rows(rig, &l, READING_16);
    // Codes are multiplied, which nothing rounds: of one row by gemm_w4_few.cu, of bytes with a scale a row.
    bool by_codes = format == FORMAT_Q4_0 || format == FORMAT_I8_TENSOR || format == FORMAT_I8_CHANNEL;
    char what[100];
    snprintf(what, sizeof what, "linear %s [%d, %d] x %d", rig_format_name(format), out, in, rig->n_rows);
    double most = 4 * sqrt(in) * EPS + linear_off_by_scales(format, kernels);
    for (int i = 0; i < 2; i++) {
        enum rig_schedule schedule = i ? SCHEDULE_RAGGED : SCHEDULE_WHOLE;
        const double *got = rig_run(rig, schedule), *nearest = rig_nearest(rig, got, read, by_codes ? 2 : 1);
        rig_judge(rig, got, nearest, (struct rig_bounds){.most = most}, schedule, what);
    }
    rig_free(rig);
}

void linear_by_e4m3_case(enum rig_format format, int out, int in, int n_rows, bool biased, const char *quantization,
                         const char *kernels) {
    if (!rig_takes_case())
        return;
    struct rig *rig = rig_new((struct rig_options){.n_seqs = 2,
                                                   .lens = {n_rows, (n_rows + 1) / 2},
                                                   .widths = {in},
                                                   .kernels = kernels,
                                                   .quantization = quantization});
    struct by_e4m3 c = {.format = format};
    rig_result(rig, linear_record(rig, &c.l, format, out, in, biased));
    char what[120];
    snprintf(what, sizeof what, "linear by e4m3 %s%s [%d, %d] x %d", rig_format_name(format),
             quantization ? " quantised" : "", out, in, rig->n_rows);
    by_e4m3_judge(rig, &c, of_few_sequences, ARRAY_LEN(of_few_sequences), what);
    rig_free(rig);
}
