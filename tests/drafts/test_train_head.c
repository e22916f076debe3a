/* test_train_head.c - the gradients of a whole EAGLE-3 head and of a whole next-token predictor: against finite
 * differences and another implementation in double precision, the float32 sets of functions against double, and the
 * same bits with any number of threads.
 *
 * Not in make test-fast: finite differences of every weight. */
#include "train/math/head.h"
#include "train_rig.h"

#include <jansson.h>

// ---- the head ---------------------------------------------------------------------------------------------------

struct head_case {
    struct crew *crew;
    struct head_f64 h;
    struct batch_f64 b;
    int64_t start[4];
    double *taps, *embed, *share, *lm_head;
    int32_t *token;
    bool *counts;
};

static void head_work(void *arg, const struct worker *w) {
    struct head_case *c = arg;
    head_train_f64(&c->h, w, &c->b);
}
static double head_value(void *arg) {
    struct head_case *c = arg;
    crew_run(c->crew, head_work, c);
    return c->h.total;
}

static void head_case_init(struct head_case *c, enum head_kind kind, int64_t grain) {
    struct error err;
    struct head_shape s = {.kind = kind,
                           .hidden = grain * draw_int(1, 4),
                           .n_kv_heads = 2,
                           .head_dim = 2 * (int)draw_int(1, 4),
                           .ffn = grain * draw_int(1, 5),
                           .vocab = draw_int(5, 40),
                           .eps = 1e-5,
                           .rope_theta = 100};
    s.taps = (kind == HEAD_MTP ? 1 : 3) * s.hidden, s.n_heads = 2 * (int)draw_int(1, 2);
    s.rope_dim = kind == HEAD_MTP ? 2 * (int)draw_int(1, s.head_dim / 2) : s.head_dim;
    for (int i = 0; i < 3; i++)
        c->start[i + 1] = c->start[i] + draw_int(1, 9);
    int64_t n = c->start[3];
    c->crew = crew_open(2, math_scratch_bytes(n, 8));
    EXPECT_OK(head_init_f64(&c->h, &s, &math_double, (int)draw_int(1, 4), n, &err), err);
    for (int64_t i = 0; i < head_size(&s); i++)
        c->h.weight[i] = 0.7 * draw();
    c->taps = draw_all(n * s.taps), c->embed = draw_all(n * s.hidden), c->share = draw_all(n * N_LABELS);
    if (kind == HEAD_MTP)
        c->h.lm_head = c->lm_head = draw_all(s.vocab * s.hidden);
    c->token = xcalloc((size_t)(n * N_LABELS), sizeof *c->token);
    c->counts = xcalloc((size_t)n, sizeof *c->counts);
    for (int64_t r = 0; r < n; r++) {
        c->counts[r] = draw_int(0, 4) > 0;
        for (int i = 0; i < N_LABELS; i++) {
            c->token[r * N_LABELS + i] = (int32_t)draw_int(0, s.vocab - 1);
            c->share[r * N_LABELS + i] = 1.0 / N_LABELS;
        }
    }
    c->b = (struct batch_f64){3, c->start, c->taps, c->embed, {N_LABELS, c->token, c->share}, c->counts};
}

static void head_case_release(struct head_case *c) {
    free(c->taps), free(c->embed), free(c->share), free(c->token), free(c->counts), free(c->lm_head);
    head_release_f64(&c->h);
    crew_free(c->crew);
}

static void the_head_has_its_gradient(void **state) {
    (void)state;
    for (int round = 0; round < 12; round++) {
        struct head_case c = {0};
        head_case_init(&c, round % 2 ? HEAD_MTP : HEAD_EAGLE3, 3);
        head_value(&c);
        int64_t size = head_size(&c.h.shape);
        double *grad = xcalloc((size_t)size, sizeof *grad);
        memcpy(grad, c.h.grad, (size_t)size * sizeof *grad);
        for (int t = 0; t < N_HEAD_TENSORS; t++) {
            int64_t at = head_at(&c.h.shape, (enum head_tensor)t), end = head_at(&c.h.shape, (enum head_tensor)(t + 1));
            for (int tries = 0; tries < 12 && at < end; tries++) {
                int64_t i = draw_int(at, end - 1);
                expect_slope(head_value, &c, &c.h.weight[i], grad[i]);
            }
        }
        free(grad);
        head_case_release(&c);
    }
}

struct narrow_case {
    struct head_f32 h;
    struct batch_f32 b;
    float *taps, *embed, *share, *lm_head;
};

static void narrow_work(void *arg, const struct worker *w) {
    struct narrow_case *c = arg;
    head_train_f32(&c->h, w, &c->b);
}

static void narrow_case_init(struct narrow_case *n, const struct head_case *c, const struct math_f32 *math) {
    struct error err;
    const struct head_shape *s = &c->h.shape;
    int64_t rows = c->start[3];
    EXPECT_OK(head_init_f32(&n->h, s, math, c->h.steps, rows, &err), err);
    for (int64_t i = 0; i < head_size(s); i++)
        n->h.weight[i] = (float)c->h.weight[i];
    n->taps = narrow(c->taps, rows * s->taps), n->embed = narrow(c->embed, rows * s->hidden);
    n->share = narrow(c->share, rows * N_LABELS);
    if (c->lm_head)
        n->h.lm_head = n->lm_head = narrow(c->lm_head, s->vocab * s->hidden);
    n->b = (struct batch_f32){3, c->start, n->taps, n->embed, {N_LABELS, c->token, n->share}, c->counts};
}

static void narrow_case_release(struct narrow_case *n) {
    free(n->taps), free(n->embed), free(n->share), free(n->lm_head);
    head_release_f32(&n->h);
}

static void each_set_in_float32_agrees_with_double(void **state) {
    (void)state;
    const char *names[] = {"avx512", "avx2", "portable"};
    for (int round = 0; round < 18; round++) {
        struct head_case c = {0};
        struct narrow_case n = {0};
        const struct math_f32 *math = math_find(names[round % 3]);
        if (!math)
            continue;
        head_case_init(&c, round < 9 ? HEAD_EAGLE3 : HEAD_MTP, draw_int(1, 16));
        head_value(&c);
        narrow_case_init(&n, &c, math);
        crew_run(c.crew, narrow_work, &n);
        EXPECT(fabs(n.h.total - c.h.total) < 1e-5 * (1 + fabs(c.h.total)));
        double error = 0, all = 0;
        for (int64_t i = 0; i < head_size(&c.h.shape); i++) {
            error += pow((double)n.h.grad[i] - c.h.grad[i], 2);
            all += pow(c.h.grad[i], 2);
        }
        EXPECT(error < 1e-8 * all); // 1e-4 of its length: cancellation of up to four steps
        narrow_case_release(&n);
        head_case_release(&c);
    }
}

static void any_number_of_threads_gives_the_same_bits(void **state) {
    (void)state;
    for (int kind = HEAD_EAGLE3; kind <= HEAD_MTP; kind++) {
        struct head_case c = {0};
        struct narrow_case n = {0};
        head_case_init(&c, (enum head_kind)kind, 16);
        narrow_case_init(&n, &c, math_find(NULL));
        size_t bytes = (size_t)head_size(&c.h.shape) * sizeof(float);
        float *first = xcalloc(1, bytes);
        for (int threads = 1; threads <= 5; threads++) {
            struct crew *crew = crew_open(threads, math_scratch_bytes(c.start[3], 4));
            crew_run(crew, narrow_work, &n);
            if (threads == 1)
                memcpy(first, n.h.grad, bytes);
            EXPECT(memcmp(first, n.h.grad, bytes) == 0);
            crew_free(crew);
        }
        free(first);
        narrow_case_release(&n);
        head_case_release(&c);
    }
}

// ---- another implementation -------------------------------------------------------------------------------------

static double wave(int64_t i, double salt) { return sin(1.3 * (double)i + salt); }

static double *waves(int64_t n, double factor, double salt) {
    double *x = xcalloc((size_t)n, sizeof *x);
    for (int64_t i = 0; i < n; i++)
        x[i] = factor * wave(i, salt);
    return x;
}

/* As tools/fixtures/train_head.py and train_mtp.py say. */
static void fixture_init(struct head_case *c, const struct head_shape *s) {
    struct error err;
    memcpy(c->start, (int64_t[]){0, 5, 6, 13}, sizeof c->start);
    c->crew = crew_open(2, math_scratch_bytes(13, 8));
    EXPECT_OK(head_init_f64(&c->h, s, &math_double, 3, 13, &err), err);
    for (int64_t i = 0; i < head_size(s); i++)
        c->h.weight[i] = 0.7 * wave(i, 0.5);
    if (s->kind == HEAD_MTP)
        c->h.lm_head = c->lm_head = waves(s->vocab * s->hidden, 0.7, 4);
    c->taps = waves(13 * s->taps, 1, 1), c->embed = waves(13 * s->hidden, 1, 2), c->share = xcalloc(13 * N_LABELS, 8);
    c->token = xcalloc(13 * N_LABELS, sizeof *c->token), c->counts = xcalloc(13, sizeof *c->counts);
    for (int r = 0; r < 13; r++) {
        c->counts[r] = r % 4 != 3;
        for (int i = 0; i < N_LABELS; i++) {
            c->token[r * N_LABELS + i] = (7 * r + 3 * i) % 11;
            c->share[r * N_LABELS + i] = (i + 1) / 6.0;
        }
    }
    c->b = (struct batch_f64){3, c->start, c->taps, c->embed, {N_LABELS, c->token, c->share}, c->counts};
}

static double number(const json_t *object, const char *key) { return json_number_value(json_object_get(object, key)); }

static void expect_near(double is, double wanted) {
    if (!(fabs(is - wanted) < 1e-10))
        fail_msg("it is %.12g, PyTorch has %.12g", is, wanted);
}

static void expect_fixture(const struct head_shape *s, const char *path) {
    static const char *names[N_HEAD_TENSORS] = {"fc",      "embed_norm", "hidden_norm", "input_norm", "qkv",
                                                "gate",    "q_norm",     "k_norm",      "out",        "ffn_norm",
                                                "gate_up", "down",       "norm",        "lm_head"};
    struct head_case c = {0};
    json_error_t where;
    json_t *golden = json_load_file(path, 0, &where);
    EXPECT(golden);
    fixture_init(&c, s);
    expect_near(head_value(&c), number(golden, "total"));
    for (size_t i = 0; i < 3; i++)
        expect_near(c.h.loss[i], json_number_value(json_array_get(json_object_get(golden, "loss"), i)));
    for (int t = 0; t < N_HEAD_TENSORS; t++) {
        const json_t *g = json_object_get(json_object_get(golden, "gradients"), names[t]);
        int64_t at = head_at(s, (enum head_tensor)t), n = head_at(s, (enum head_tensor)(t + 1)) - at;
        EXPECT_EQ(g != NULL, n > 0);
        double *w = waves(n, 1, 3);
        expect_near(sqrt(dot(n, c.h.grad + at, c.h.grad + at)), number(g, "norm"));
        expect_near(dot(n, c.h.grad + at, w), number(g, "dot"));
        free(w);
    }
    json_decref(golden);
    head_case_release(&c);
}

static void the_head_is_that_of_another_implementation(void **state) {
    (void)state;
    struct head_shape s = {HEAD_EAGLE3, 8, 24, 4, 2, 4, 4, 12, 11, 1e-5, 100};
    expect_fixture(&s, "tests/data/train/head.json");
}

static void the_predictor_is_that_of_another_implementation(void **state) {
    (void)state;
    struct head_shape s = {HEAD_MTP, 8, 8, 4, 2, 6, 4, 12, 11, 1e-5, 100};
    expect_fixture(&s, "tests/data/train/mtp.json");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_head_has_its_gradient),
        cmocka_unit_test(the_head_is_that_of_another_implementation),
        cmocka_unit_test(the_predictor_is_that_of_another_implementation),
        cmocka_unit_test(each_set_in_float32_agrees_with_double),
        cmocka_unit_test(any_number_of_threads_gives_the_same_bits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
