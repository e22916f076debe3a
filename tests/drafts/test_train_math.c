/* test_train_math.c - each backward function against finite differences of its forward one, in double precision and
 * with fresh random numbers; and products. */
#include "train/math/math.h"
#include "train_rig.h"

// ---- functions on rows ------------------------------------------------------------------------------------------

struct rows_case {
    struct crew *crew;
    void (*work)(void *arg, const struct worker *w);
    int64_t n, width, out_width;
    struct heads heads; // of x, for what works on heads: less than whole rows, perhaps
    int turned;
    double *x, *weight, *y, *dy, *inverse, *dx, *dweight, *turn;
};

static double value_of(void *arg) {
    struct rows_case *c = arg;
    crew_run(c->crew, c->work, c);
    return dot(c->n * c->out_width, c->y, c->dy);
}

static struct rows_case rows_case(void (*work)(void *arg, const struct worker *w), int64_t in, int64_t out) {
    struct rows_case c = {.work = work, .n = draw_int(1, 5), .width = draw_int(1, 20) * 2};
    int64_t n_x = c.n * c.width * in;
    c.crew = crew_open(2, math_scratch_bytes(64, 8));
    c.out_width = c.width * out;
    c.x = draw_all(n_x), c.weight = draw_all(c.width), c.turn = draw_all(c.n * c.width);
    c.y = draw_all(c.n * c.out_width), c.dy = draw_all(c.n * c.out_width);
    c.heads = (struct heads){c.n, c.width, (int)draw_int(1, 2), draw_int(1, c.width / 2)};
    c.turned = 2 * (int)draw_int(0, c.heads.width / 2);
    c.inverse = draw_all(2 * c.n), c.dx = xcalloc((size_t)n_x, 8), c.dweight = xcalloc((size_t)c.width, 8);
    return c;
}

static void rows_case_release(struct rows_case *c) {
    double *all[] = {c->x, c->weight, c->y, c->dy, c->inverse, c->dx, c->dweight, c->turn};
    for (size_t i = 0; i < ARRAY_LEN(all); i++)
        free(all[i]);
    crew_free(c->crew);
}

static void norm_forward(void *arg, const struct worker *w) {
    struct rows_case *c = arg;
    math_double.norm(w, c->heads, c->x, c->weight, 1e-5, c->y, c->inverse);
}
static void norm_backward(void *arg, const struct worker *w) {
    struct rows_case *c = arg;
    math_double.norm_back(w, c->heads, c->x, c->inverse, c->weight, c->dy, c->dx);
    math_double.norm_back_weight(w, c->heads, c->x, c->inverse, c->dy, c->dweight);
}

static void the_norm_has_its_gradient(void **state) {
    (void)state;
    for (int round = 0; round < 10; round++) {
        struct rows_case c = rows_case(norm_forward, 1, 1);
        value_of(&c);
        crew_run(c.crew, norm_backward, &c);
        for (int64_t i = 0; i < c.n * c.width; i++)
            expect_slope(value_of, &c, &c.x[i], c.dx[i]);
        for (int64_t i = 0; i < c.width; i++)
            expect_slope(value_of, &c, &c.weight[i], c.dweight[i]);
        rows_case_release(&c);
    }
}

static void glu_forward(void *arg, const struct worker *w) {
    struct rows_case *c = arg;
    math_double.glu(w, c->n, c->width, c->x, c->y);
}
static void glu_backward(void *arg, const struct worker *w) {
    struct rows_case *c = arg;
    math_double.glu_back(w, c->n, c->width, c->x, c->dy, c->dx);
}

static void the_gated_activation_has_its_gradient(void **state) {
    (void)state;
    for (int round = 0; round < 10; round++) {
        struct rows_case c = rows_case(glu_forward, 2, 1);
        crew_run(c.crew, glu_backward, &c);
        for (int64_t i = 0; i < 2 * c.n * c.width; i++)
            expect_slope(value_of, &c, &c.x[i], c.dx[i]);
        rows_case_release(&c);
    }
}

/* Rows of x hold the gate, then what it lets through. */
static void gate_forward(void *arg, const struct worker *w) {
    struct rows_case *c = arg;
    math_double.gate(w, c->n * c->width, c->x, c->x + c->n * c->width, c->y);
}
static void gate_backward(void *arg, const struct worker *w) {
    struct rows_case *c = arg;
    int64_t n = c->n * c->width;
    math_double.gate_back(w, n, c->x, c->x + n, c->dy, c->dx, c->dx + n);
}

static void the_gate_has_its_gradient(void **state) {
    (void)state;
    for (int round = 0; round < 10; round++) {
        struct rows_case c = rows_case(gate_forward, 2, 1);
        crew_run(c.crew, gate_backward, &c);
        for (int64_t i = 0; i < 2 * c.n * c.width; i++)
            expect_slope(value_of, &c, &c.x[i], c.dx[i]);
        rows_case_release(&c);
    }
}

/* turn is any numbers: then the turn back is not the way back, but the gradient. */
static void rope_forward(void *arg, const struct worker *w) {
    struct rows_case *c = arg;
    int64_t first, end;
    worker_share(w, c->n, 1, &first, &end);
    memcpy(c->y + first * c->width, c->x + first * c->width, (size_t)((end - first) * c->width) * sizeof *c->y);
    math_double.rope(w, c->heads, c->turned, c->turn, 1, c->y);
}
static void rope_backward(void *arg, const struct worker *w) {
    struct rows_case *c = arg;
    math_double.rope(w, c->heads, c->turned, c->turn, -1, c->dx);
}

static void the_rotation_has_its_gradient(void **state) {
    (void)state;
    for (int round = 0; round < 10; round++) {
        struct rows_case c = rows_case(rope_forward, 1, 1);
        memcpy(c.dx, c.dy, (size_t)(c.n * c.width) * sizeof *c.dx);
        crew_run(c.crew, rope_backward, &c);
        for (int64_t i = 0; i < c.n * c.width; i++)
            expect_slope(value_of, &c, &c.x[i], c.dx[i]);
        rows_case_release(&c);
    }
}

// ---- cross entropy ----------------------------------------------------------------------------------------------

struct entropy_case {
    struct rows_case rows; // y: the logits, which become the gradient; inverse: losses
    int32_t *token;
    double *share, *row_weight;
};

static void entropy_work(void *arg, const struct worker *w) {
    struct entropy_case *c = arg;
    struct labels_f64 labels = {N_LABELS, c->token, c->share};
    math_double.entropy(w, c->rows.n, c->rows.width, c->rows.y, &labels, c->row_weight, c->rows.inverse);
}

static double entropy_value(void *arg) {
    struct entropy_case *c = arg;
    double sum = 0;
    memcpy(c->rows.y, c->rows.x, (size_t)(c->rows.n * c->rows.width) * sizeof(double));
    crew_run(c->rows.crew, entropy_work, c);
    for (int64_t r = 0; r < c->rows.n; r++)
        sum += c->rows.inverse[r];
    return sum;
}

static void cross_entropy_has_its_gradient(void **state) {
    (void)state;
    for (int round = 0; round < 10; round++) {
        struct entropy_case c = {.rows = rows_case(NULL, 1, 1)};
        int64_t n = c.rows.n;
        c.token = xcalloc((size_t)(n * N_LABELS), sizeof *c.token);
        c.share = draw_all(n * N_LABELS), c.row_weight = draw_all(n);
        for (int64_t r = 0; r < n; r++) {
            double sum = 0;
            for (int i = 0; i < N_LABELS; i++) {
                c.token[r * N_LABELS + i] = (int32_t)draw_int(0, c.rows.width - 1);
                sum += c.share[r * N_LABELS + i] = fabs(c.share[r * N_LABELS + i]) + 1e-3;
            }
            for (int i = 0; i < N_LABELS; i++)
                c.share[r * N_LABELS + i] /= sum;
            c.row_weight[r] *= draw_int(0, 3) > 0;
        }
        entropy_value(&c);
        memcpy(c.rows.dx, c.rows.y, (size_t)(n * c.rows.width) * sizeof(double));
        for (int64_t i = 0; i < n * c.rows.width; i++)
            expect_slope(entropy_value, &c, &c.rows.x[i], c.rows.dx[i]);
        free(c.token), free(c.share), free(c.row_weight);
        rows_case_release(&c.rows);
    }
}

// ---- attention --------------------------------------------------------------------------------------------------

struct attention_case {
    struct crew *crew;
    struct attention_f64 a;
    int64_t start[4], width, out_width;
    double *qkv[4], *dqkv[4], *dout;
    const double *qkv_of[4];
};

static void attend_work(void *arg, const struct worker *w) {
    math_double.attend(w, &((struct attention_case *)arg)->a);
}
static void attend_back_work(void *arg, const struct worker *w) {
    struct attention_case *c = arg;
    math_double.attend_back(w, &c->a, c->dout, c->dqkv);
}
static double attend_value(void *arg) {
    struct attention_case *c = arg;
    crew_run(c->crew, attend_work, c);
    return dot(c->start[3] * c->out_width, c->a.out, c->dout);
}

static void attention_case_init(struct attention_case *c) {
    int n_kv = (int)draw_int(1, 2), hd = 2 * (int)draw_int(1, 5);
    c->a = (struct attention_f64){(int)draw_int(1, 3) * n_kv, n_kv, hd, (int)draw_int(0, 3), 3, c->start, c->qkv_of};
    for (int i = 0; i < 3; i++)
        c->start[i + 1] = c->start[i] + draw_int(i == 2 ? 60 : 0, i == 2 ? 70 : 6); // more than a block of queries
    c->width = (c->a.n_heads + 2 * n_kv) * hd;
    c->out_width = c->a.n_heads * hd;
    c->crew = crew_open(2, math_scratch_bytes(c->start[3], 8));
    for (int i = 0; i <= c->a.step; i++) {
        c->qkv_of[i] = c->qkv[i] = draw_all(c->start[3] * c->width);
        c->dqkv[i] = xcalloc((size_t)(c->start[3] * c->width), 8);
    }
    c->dout = draw_all(c->start[3] * c->out_width);
    c->a.out = draw_all(c->start[3] * c->out_width), c->a.lse = draw_all(c->start[3] * c->a.n_heads);
}

static void attention_of_chains_has_its_gradient(void **state) {
    (void)state;
    for (int round = 0; round < (test_is_brief() ? 2 : 8); round++) {
        struct attention_case c = {0};
        attention_case_init(&c);
        attend_value(&c);
        crew_run(c.crew, attend_back_work, &c);
        for (int i = 0; i <= c.a.step; i++)
            for (int tries = 0; tries < 60; tries++) {
                int64_t at = draw_int(0, c.start[3] * c.width - 1);
                bool is_query = at % c.width < c.out_width;
                if (i == c.a.step || !is_query)
                    expect_slope(attend_value, &c, &c.qkv[i][at], c.dqkv[i][at]);
            }
        for (int i = 0; i <= c.a.step; i++)
            free(c.qkv[i]), free(c.dqkv[i]);
        free(c.dout), free(c.a.out), free(c.a.lse);
        crew_free(c.crew);
    }
}

// ---- AdamW ------------------------------------------------------------------------------------------------------

static void adamw_work(void *arg, const struct worker *w) {
    struct rows_case *c = arg;
    struct adamw_f64 o = {.lr = 0.01, .beta1 = 0.9, .beta2 = 0.97, .eps = 1e-8, .weight_decay = 0.1, .step = 1};
    math_double.adamw(w, &o, c->n * c->width, 0.5, c->dy, c->dx, c->y, c->x);
}

/* The first step goes lr along the sign of each gradient, whatever its size, and 1 - lr * decay towards zero. */
static void the_first_step_of_adamw_has_one_length(void **state) {
    (void)state;
    struct rows_case c = rows_case(adamw_work, 1, 1);
    int64_t n = c.n * c.width;
    double *before = xcalloc((size_t)n, 8);
    memcpy(before, c.x, (size_t)n * 8);
    memset(c.y, 0, (size_t)n * 8);
    crew_run(c.crew, adamw_work, &c);
    for (int64_t i = 0; i < n; i++) {
        double g = 0.5 * c.dy[i], along = g / (fabs(g) + 1e-8); // eps counts where a gradient is drawn near zero
        EXPECT(fabs(c.x[i] - (before[i] * 0.999 - 0.01 * along)) < 1e-6);
        EXPECT(fabs(c.dx[i] - 0.05 * c.dy[i]) < 1e-12 && fabs(c.y[i] - 0.0075 * c.dy[i] * c.dy[i]) < 1e-12);
    }
    free(before);
    rows_case_release(&c);
}

// ---- products ---------------------------------------------------------------------------------------------------

struct product_case {
    const struct math_f32 *math;
    struct matrix_f32 a, b, c;
    bool add;
};

static void product_work(void *arg, const struct worker *w) {
    struct product_case *p = arg;
    p->math->product(w, &p->c, p->add, &p->a, &p->b);
}

static struct matrix_f32 matrix_of(const float *at, int64_t rows, int64_t cols, bool is_turned) {
    int64_t gap = 3;
    return is_turned ? (struct matrix_f32){(float *)at, rows, cols, 1, rows + gap}
                     : (struct matrix_f32){(float *)at, rows, cols, cols + gap, 1};
}

static void expect_product(const struct product_case *p, const float *before, double bound) {
    for (int64_t i = 0; i < p->c.rows; i++)
        for (int64_t j = 0; j < p->c.cols; j++) {
            double sum = p->add ? (double)before[i * p->c.row_stride + j] : 0;
            for (int64_t k = 0; k < p->a.cols; k++)
                sum += (double)p->a.at[i * p->a.row_stride + k * p->a.col_stride] *
                       (double)p->b.at[k * p->b.row_stride + j * p->b.col_stride];
            EXPECT(fabs((double)p->c.at[i * p->c.row_stride + j] - sum) < bound);
        }
}

static void products_of_every_set_are_right(void **state) {
    (void)state;
    const char *names[] = {"avx512", "avx2", "portable"};
    struct crew *crew = crew_open(2, math_scratch_bytes(64, 4));
    for (int round = 0; round < 60; round++) {
        struct product_case p = {.math = math_find(names[round % 3]), .add = draw_int(0, 1)};
        int64_t m = draw_int(1, 130), n = draw_int(1, 600), k = draw_int(1, 300);
        double *numbers[3] = {draw_all((m + 3) * (k + 3)), draw_all((k + 3) * (n + 3)), draw_all((m + 3) * (n + 3))};
        float *a = narrow(numbers[0], (m + 3) * (k + 3)), *b = narrow(numbers[1], (k + 3) * (n + 3));
        float *c = narrow(numbers[2], (m + 3) * (n + 3)), *before = narrow(numbers[2], (m + 3) * (n + 3));
        p.a = matrix_of(a, m, k, draw_int(0, 1)), p.b = matrix_of(b, k, n, draw_int(0, 1));
        p.c = matrix_of(c, m, n, false);
        if (p.math) {
            crew_run(crew, product_work, &p);
            expect_product(&p, before, (double)k * 1e-6); // of 2^-24, k sums of numbers up to k
            for (int64_t i = 0; i < m; i++)               // nothing beside it is written
                EXPECT(memcmp(c + i * (n + 3) + n, before + i * (n + 3) + n, 3 * sizeof *c) == 0);
        }
        free(a), free(b), free(c), free(before);
        for (int i = 0; i < 3; i++)
            free(numbers[i]);
    }
    crew_free(crew);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(products_of_every_set_are_right),
        cmocka_unit_test(the_norm_has_its_gradient),
        cmocka_unit_test(the_gated_activation_has_its_gradient),
        cmocka_unit_test(the_gate_has_its_gradient),
        cmocka_unit_test(the_rotation_has_its_gradient),
        cmocka_unit_test(cross_entropy_has_its_gradient),
        cmocka_unit_test(attention_of_chains_has_its_gradient),
        cmocka_unit_test(the_first_step_of_adamw_has_one_length),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
