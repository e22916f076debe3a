/* step_cost.c - see step_cost.h. */
#include "sched/step_cost.h"

#include <math.h>
#include <string.h>

enum { N = 3, ENOUGH = 4, FIRST_REACH = 32 };
enum { LARGE_COPY = 1 << 20 }; // bytes
/* The fit follows a prompt whose steps grow dearer by a third as its context leaves one cache after the other, with a
 * lag of as many steps as it remembers; half of what it knows along a direction is some 7 steps old. Largest and
 * scattered steps are remembered longer. */
static const double fit_forgetting = 0.9, forgetting = 0.98;

/* Scaled to the same order, so that the equations stay well conditioned. */
static void features(struct step_work work, double x[N]) {
    x[0] = 1;
    x[1] = (double)work.tokens * 1e-2;
    x[2] = (double)work.pairs * 1e-5;
}

void step_cost_init(struct step_cost *c) {
    *c = (struct step_cost){.us_a_copied_mb = 200, .excess = 1};
    for (int i = 0; i < N; i++)
        c->information[i][i] = 1e-6;
}

static double dot(const double a[N], const double b[N]) {
    double s = 0;
    for (int i = 0; i < N; i++)
        s += a[i] * b[i];
    return s;
}

/* R = R - (1 - fit_forgetting) R x x^T R / (x^T R x) + x x^T: forgets along x alone, as much as x then says anew. */
static void update_information(double r[N][N], const double x[N]) {
    double rx[N];
    for (int i = 0; i < N; i++)
        rx[i] = dot(r[i], x);
    double along = (1 - fit_forgetting) / dot(x, rx);
    for (int i = 0; i < N; i++)
        for (int j = 0; j < N; j++)
            r[i][j] += x[i] * x[j] - along * rx[i] * rx[j];
}

/* R g = x by Cholesky's decomposition R = L L^T. */
static void solve(const double r[N][N], const double x[N], double g[N]) {
    double l[N][N] = {{0}}, y[N];
    for (int i = 0; i < N; i++)
        for (int j = 0; j <= i; j++) {
            double s = r[i][j];
            for (int k = 0; k < j; k++)
                s -= l[i][k] * l[j][k];
            l[i][j] = i == j ? sqrt(fmax(s, 1e-9 * r[i][i])) : s / l[j][j];
        }
    for (int i = 0; i < N; i++) {
        y[i] = x[i];
        for (int k = 0; k < i; k++)
            y[i] -= l[i][k] * y[k];
        y[i] /= l[i][i];
    }
    for (int i = N - 1; i >= 0; i--) {
        g[i] = y[i];
        for (int k = i + 1; k < N; k++)
            g[i] -= l[k][i] * g[k];
        g[i] /= l[i][i];
    }
}

/* How far above its prediction a step ended: as a factor that those before it had too, and what is beyond that,
 * squared, on average. */
static void learn_excess(struct step_cost *c, struct step_work work, double us) {
    double predicted = step_cost_predict(c, work), over = 0;
    if (predicted > 0) {
        over = fmax(0, us - predicted * c->excess);
        c->excess = fmax(1, c->excess + 0.25 * (fmin(us / predicted, 2) - c->excess));
    }
    c->scatter = forgetting * c->scatter + (1 - forgetting) * over * over;
}

/* A quarter of each new measurement, weighed by how much was copied: the rest of a step varies by more than a small
 * copy. */
static void learn_copy(struct step_cost *c, struct step_work work, double us) {
    double mb = (double)work.copied * 1e-6;
    work.copied = 0;
    double rest = step_cost_predict(c, work);
    if (rest > 0)
        c->us_a_copied_mb += (fmax(0, us - rest) / mb - c->us_a_copied_mb) * 0.25 * mb / (mb + 1);
}

void step_cost_learn(struct step_cost *c, struct step_work work, double us) {
    if (work.copied > LARGE_COPY) { // teaches little of the rest
        learn_copy(c, work, us);
        return;
    }
    double x[N], gain[N];
    learn_excess(c, work, us);
    features(work, x);
    double error = us - (double)work.copied * 1e-6 * c->us_a_copied_mb - dot(c->weight, x);
    update_information(c->information, x);
    solve(c->information, x, gain);
    for (int i = 0; i < N; i++)
        c->weight[i] += gain[i] * error;
    c->reach = fmax((double)work.tokens, c->reach * forgetting);
    c->n_steps++;
}

double step_cost_predict(const struct step_cost *c, struct step_work work) {
    double x[N];
    if (c->n_steps < ENOUGH)
        return 0;
    features(work, x);
    return fmax(0, dot(c->weight, x)) + (double)work.copied * 1e-6 * c->us_a_copied_mb;
}

static struct step_work with_chunk(struct step_work work, int64_t n_computed, int64_t n) {
    work.tokens += n;
    work.pairs += n * n_computed + n * (n + 1) / 2;
    return work;
}

int step_cost_chunk(const struct step_cost *c, struct step_work work, int64_t n_computed, int max, double target_us) {
    if (c->n_steps < ENOUGH || max <= 1)
        return max < 1 ? 1 : max;
    target_us -= fmin(fmax(2 * sqrt(c->scatter), target_us / 6), target_us / 2);
    target_us /= c->excess;
    double reach = fmax(2 * c->reach - (double)work.tokens, FIRST_REACH);
    int low = 1, high = (int)fmin(max, reach) + 1; // [low, high): low fits or is the least there is
    while (high - low > 1) {
        int mid = low + (high - low) / 2;
        if (step_cost_predict(c, with_chunk(work, n_computed, mid)) <= target_us)
            low = mid;
        else
            high = mid;
    }
    return low;
}
