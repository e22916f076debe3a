/* math_body.h - math.h's functions, included once for each set of instructions with REAL, NAME, MATH, MATH_NAME, EXP,
 * and a vector of LANES numbers: vec, vec_set, vec_fma. The compiler makes vector code of the plain loops, for which
 * these files have flags of their own (Makefile). */
#include "train/math/math_product.h"

// ---- rows -------------------------------------------------------------------------------------------------------

static REAL dot(int64_t n, const REAL *a, const REAL *b) {
    REAL sum = 0;
    for (int64_t i = 0; i < n; i++)
        sum += a[i] * b[i];
    return sum;
}

static void add_times(int64_t n, REAL factor, const REAL *x, REAL *y) {
    for (int64_t i = 0; i < n; i++)
        y[i] += factor * x[i];
}

static void norm(const struct worker *w, struct heads h, const REAL *x, const REAL *weight, REAL eps, REAL *y,
                 REAL *inverse) {
    int64_t r, end;
    for (worker_share(w, h.n, 1, &r, &end); r < end; r++)
        for (int i = 0; i < h.n_heads; i++) {
            const REAL *a = x + r * h.stride + i * h.width;
            REAL *to = y + r * h.stride + i * h.width;
            REAL s = inverse[r * h.n_heads + i] = 1 / SQRT(dot(h.width, a, a) / (REAL)h.width + eps);
            for (int64_t c = 0; c < h.width; c++)
                to[c] = a[c] * s * weight[c];
        }
}

/* With u = weight * dy: dx = s (u - x s^2 mean(u x)). */
static void norm_back_head(int64_t width, REAL s, const REAL *a, const REAL *weight, const REAL *d, REAL *dx) {
    REAL sum = 0;
    for (int64_t i = 0; i < width; i++)
        sum += weight[i] * d[i] * a[i];
    sum *= s * s / (REAL)width;
    for (int64_t i = 0; i < width; i++)
        dx[i] += s * (weight[i] * d[i] - a[i] * sum);
}

static void norm_back(const struct worker *w, struct heads h, const REAL *x, const REAL *inverse, const REAL *weight,
                      const REAL *dy, REAL *dx) {
    int64_t r, end;
    for (worker_share(w, h.n, 1, &r, &end); r < end; r++)
        for (int i = 0; i < h.n_heads; i++) {
            int64_t at = r * h.stride + i * h.width;
            norm_back_head(h.width, inverse[r * h.n_heads + i], x + at, weight, dy + at, dx + at);
        }
}

static void norm_back_weight(const struct worker *w, struct heads h, const REAL *x, const REAL *inverse, const REAL *dy,
                             REAL *dweight) {
    int64_t first, end;
    worker_share(w, h.width, 16, &first, &end);
    for (int64_t r = 0; r < h.n; r++)
        for (int i = 0; i < h.n_heads; i++) {
            int64_t at = r * h.stride + i * h.width;
            REAL s = inverse[r * h.n_heads + i];
            for (int64_t c = first; c < end; c++)
                dweight[c] += dy[at + c] * x[at + c] * s;
        }
}

static void rope(const struct worker *w, struct heads h, int turned, const REAL *turn, REAL sign, REAL *x) {
    int64_t r, end, half = turned / 2;
    for (worker_share(w, h.n, 1, &r, &end); r < end; r++) {
        const REAL *cosine = turn + r * turned, *sine = cosine + half;
        for (int i = 0; i < h.n_heads; i++) {
            REAL *a = x + r * h.stride + i * h.width, *b = a + half;
            for (int64_t c = 0; c < half; c++) {
                REAL first = a[c], second = b[c], s = sign * sine[c];
                a[c] = first * cosine[c] - second * s;
                b[c] = second * cosine[c] + first * s;
            }
        }
    }
}

static void glu(const struct worker *w, int64_t n, int64_t width, const REAL *gate_up, REAL *y) {
    int64_t r, end;
    for (worker_share(w, n, 1, &r, &end); r < end; r++) {
        const REAL *gate = gate_up + r * 2 * width, *up = gate + width;
        for (int64_t i = 0; i < width; i++)
            y[r * width + i] = gate[i] / (1 + EXP(-gate[i])) * up[i];
    }
}

static void glu_back(const struct worker *w, int64_t n, int64_t width, const REAL *gate_up, const REAL *dy,
                     REAL *dgate_up) {
    int64_t r, end;
    for (worker_share(w, n, 1, &r, &end); r < end; r++) {
        const REAL *gate = gate_up + r * 2 * width, *up = gate + width, *d = dy + r * width;
        REAL *dgate = dgate_up + r * 2 * width, *dup = dgate + width;
        for (int64_t i = 0; i < width; i++) {
            REAL s = 1 / (1 + EXP(-gate[i])), silu = gate[i] * s;
            dup[i] = d[i] * silu;
            dgate[i] = d[i] * up[i] * (s + silu * (1 - s));
        }
    }
}

static void gate(const struct worker *w, int64_t n, const REAL *gate, const REAL *x, REAL *y) {
    int64_t i, end;
    for (worker_share(w, n, 16, &i, &end); i < end; i++)
        y[i] = x[i] / (1 + EXP(-gate[i]));
}

static void gate_back(const struct worker *w, int64_t n, const REAL *gate, const REAL *x, const REAL *dy, REAL *dgate,
                      REAL *dx) {
    int64_t i, end;
    for (worker_share(w, n, 16, &i, &end); i < end; i++) {
        REAL s = 1 / (1 + EXP(-gate[i]));
        dgate[i] = dy[i] * x[i] * s * (1 - s);
        dx[i] = dy[i] * s;
    }
}

/* x becomes exp(x - *most), and the sum is returned. */
static REAL exponentials(int64_t n, REAL *x, REAL *most) {
    REAL sum = 0, m = *most;
    for (int64_t i = 0; i < n; i++)
        m = x[i] > m ? x[i] : m;
    for (int64_t i = 0; i < n; i++)
        x[i] = EXP(x[i] - m);
    for (int64_t i = 0; i < n; i++)
        sum += x[i];
    *most = m;
    return sum;
}

static void entropy(const struct worker *w, int64_t n, int64_t width, REAL *x, const struct NAME(labels) * labels,
                    const REAL *weight, REAL *loss) {
    int64_t r, end;
    for (worker_share(w, n, 1, &r, &end); r < end; r++) {
        REAL *a = x + r * width, wanted = 0, most = a[0];
        const int32_t *token = labels->token + r * labels->n;
        const REAL *share = labels->share + r * labels->n;
        loss[r] = 0;
        if (weight[r] == 0) {
            memset(a, 0, (size_t)width * sizeof *a);
            continue;
        }
        for (int i = 0; i < labels->n; i++)
            wanted += share[i] * a[token[i]];
        REAL sum = exponentials(width, a, &most), factor = weight[r] / sum;
        for (int64_t i = 0; i < width; i++)
            a[i] *= factor;
        for (int i = 0; i < labels->n; i++)
            a[token[i]] -= weight[r] * share[i];
        loss[r] = weight[r] * (LOG(sum) + most - wanted);
    }
}

static void add(const struct worker *w, int64_t n, REAL *a, const REAL *b) {
    int64_t i, end;
    for (worker_share(w, n, 16, &i, &end); i < end; i++)
        a[i] += b[i];
}

static void adamw(const struct worker *w, const struct NAME(adamw) * o, int64_t n, REAL scale, const REAL *grad,
                  REAL *m, REAL *v, REAL *weight) {
    int64_t i, end;
    REAL first = (REAL)(1 - pow((double)o->beta1, (double)o->step)), b1 = o->beta1, b2 = o->beta2;
    REAL second = (REAL)(1 - pow((double)o->beta2, (double)o->step)), keep = 1 - o->lr * o->weight_decay;
    for (worker_share(w, n, 16, &i, &end); i < end; i++) {
        REAL g = grad[i] * scale;
        m[i] = b1 * m[i] + (1 - b1) * g;
        v[i] = b2 * v[i] + (1 - b2) * g * g;
        weight[i] = keep * weight[i] - o->lr * (m[i] / first) / (SQRT(v[i] / second) + o->eps);
    }
}

#include "train/math/math_attention.h"

const struct NAME(math) MATH = {MATH_NAME, product,   norm,    norm_back, norm_back_weight, rope, glu, glu_back,
                                gate,      gate_back, entropy, attend,    attend_back,      add,  adamw};
