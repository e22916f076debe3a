/* op_judge.c - see op_judge.h. */
#include "op_judge.h"

#include "op_oracle.h"

#include <math.h>

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

const double *rig_nearest(struct rig *rig, const double *got, const double *const *want, int n) {
    double *chosen = rig_rows(rig);
    int width = rig->out.width;
    for (int64_t r = 0; r < rig->n_rows; r++) {
        double least = INFINITY;
        for (int i = 0; i < n; i++) {
            double far = rig_distance(got + r * width, want[i] + r * width, width);
            if (i > 0 && !(far < least))
                continue;
            least = far;
            memcpy(chosen + r * width, want[i] + r * width, (size_t)width * sizeof *chosen);
        }
    }
    return chosen;
}

/* Who came nearest to each bound of rounding; told when the program ends. */
static struct {
    double bound, error;
    char what[120];
} nearest[8];
static int n_bounds;

static void tell_nearest(void) {
    for (int i = 0; i < n_bounds; i++)
        printf("rig: at most %.3g of %.3g: %s\n", nearest[i].error, nearest[i].bound, nearest[i].what);
}

static void note_error(const struct rig *rig, double error, double bound, enum rig_schedule schedule,
                       const char *what) {
    int i = 0;
    while (i < n_bounds && nearest[i].bound != bound)
        i++;
    if (bound < 1e-3 || i == (int)ARRAY_LEN(nearest) || (i < n_bounds && error <= nearest[i].error))
        return;
    if (n_bounds == 0)
        atexit(tell_nearest);
    n_bounds = MAX(n_bounds, i + 1);
    nearest[i].bound = bound;
    nearest[i].error = error;
    snprintf(nearest[i].what, sizeof nearest[i].what, "%s, schedule %d, %s", what, schedule,
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
    if (rig_is_sparse(rig)) // the others are means over many rows
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
