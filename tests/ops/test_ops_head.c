/* test_ops_head.c - LINEAR to logits, SOFTCAP perhaps, and SAMPLE: a backend may look for the largest logit while it
 * multiplies, and write logits only for rows that ask for more. How the tests are run is said in test_ops.c.
 *
 * Weights and inputs are small multiples of powers of two, so that every sum is exact in whatever order it is made, and
 * equal logits are common: tokens are those of core/sample.h without exception, and logits that are asked for are
 * exact. */
#include "check.h"
#include "op_rig.h"

#include "base/random.h"

#include <math.h>

static uint64_t counter;
static double uniform(void) { return philox_uniform(test_seed(), counter++, 79); }
static int below(int n) { return (int)(uniform() * n); }

enum { N_INPUTS = 6, MOST_ROWS = 512, N_SEEN = 20, MOST_ALLOWED = 3 };

struct shape {
    int out, in;
    bool biased;
    float cap;
    const char *dtype;
};

/* A program whose logits of a token are the head's of one of a few inputs. */
struct head {
    struct shape shape;
    float *inputs, *weight, *bias, *logits; // [N_INPUTS][in], [out][in], [out], [N_INPUTS][out]
    int32_t seen[N_SEEN];                   // tokens that are penalised
    uint32_t *masks;                        // [most_rows][sample_mask_words]
    int32_t allowed[MOST_ROWS][MOST_ALLOWED];
    int most_rows;
    struct arena arena;
    struct program *p;
    const struct backend_ops *ops;
    struct on_device at;
    struct batch_plan plan;
    struct sample_params sample[MOST_ROWS];
    struct sample_scratch scratch;
};

static float *coarse(struct head *h, int64_t n, int steps) {
    float *x = arena_calloc(&h->arena, (size_t)n, sizeof *x);
    for (int64_t i = 0; i < n; i++)
        x[i] = (float)(below(2 * steps + 1) - steps) / (float)steps;
    return x;
}

static struct weight *as_weight(struct head *h, const char *name, const float *at, int64_t out, int64_t in,
                                enum dtype dtype) {
    struct weight *w = arena_alloc(&h->arena, sizeof *w);
    const void *data = at;
    if (dtype == DT_BF16) {
        uint16_t *stored = arena_calloc(&h->arena, (size_t)(out * in), sizeof *stored);
        for (int64_t i = 0; i < out * in; i++)
            stored[i] = f32_to_bf16(at[i]);
        data = stored;
    }
    *w = (struct weight){.name = name, .out = out, .in = in, .n_parts = 1};
    w->parts = arena_alloc(&h->arena, sizeof *w->parts);
    *w->parts = (struct weight_part){
        .format = &qformat_plain, .dtype = dtype, .data = data, .n_rows = out, .row_stride = in, .col_stride = 1};
    return w;
}

static void make_logits(struct head *h) {
    const struct shape *s = &h->shape;
    h->logits = arena_calloc(&h->arena, (size_t)N_INPUTS * (size_t)s->out, sizeof *h->logits);
    for (int t = 0; t < N_INPUTS; t++)
        for (int o = 0; o < s->out; o++) {
            float sum = h->bias ? h->bias[o] : 0;
            for (int i = 0; i < s->in; i++)
                sum += h->weight[(int64_t)o * s->in + i] * h->inputs[t * s->in + i];
            h->logits[(int64_t)t * s->out + o] = s->cap > 0 ? s->cap * tanhf(sum / s->cap) : sum;
        }
}

static void record(struct head *h) {
    const struct shape *s = &h->shape;
    const struct weight *w = as_weight(h, "head.weight", h->weight, s->out, s->in, DT_BF16);
    const struct weight *b = h->bias ? as_weight(h, "head.bias", h->bias, s->out, 1, DT_F32) : NULL;
    h->p = program_new("head");
    val rows = op_take_rows(h->p, op_embed(h->p, as_weight(h, "inputs", h->inputs, N_INPUTS, s->in, DT_F32), 1));
    val logits = op_linear(h->p, rows, w, b);
    op_sample(h->p, s->cap > 0 ? op_softcap(h->p, logits, s->cap) : logits);
}

/* at, of: a bias that is no number; -1: none. */
static void head_open(struct head *h, struct shape s, int at, float of) {
    int steps = below(2) ? 2 : 8;
    *h = (struct head){.shape = s, .ops = rig_backend()};
    bool cpu = h->ops == &backend_cpu;
    h->most_rows = cpu || rig_is_brief() ? 24 : MOST_ROWS;
    h->inputs = coarse(h, (int64_t)N_INPUTS * s.in, steps);
    h->weight = coarse(h, (int64_t)s.out * s.in, steps);
    h->bias = s.biased ? coarse(h, s.out, steps) : NULL;
    if (at >= 0)
        h->bias[at] = of;
    make_logits(h);
    record(h);
    for (int i = 0; i < N_SEEN; i++)
        h->seen[i] = below(s.out);
    h->masks = arena_calloc(&h->arena, (size_t)(h->most_rows * sample_mask_words(s.out)), sizeof *h->masks);
    sample_scratch_init(&h->scratch, s.out);
    struct bucket bucket = {h->most_rows, h->most_rows, h->most_rows, 0};
    batch_plan_init(&h->plan, bucket, 0, NULL);
    struct how how = {.n_threads = 1,
                      .kernels = cpu ? "portable" : NULL,
                      .eager = rig_is_brief(),
                      .load.dtype = cpu ? NULL : s.dtype};
    struct cache_config config = {.block_size = 16};
    on_device_compile(h->ops, how, h->p, &config, bucket, &h->at);
}

static void head_close(struct head *h) {
    on_device_close(&h->at);
    program_free(h->p);
    sample_scratch_release(&h->scratch);
    batch_plan_release(&h->plan);
    arena_release(&h->arena);
}

/* What is asked of a row: as a rule nothing, in some steps of some rows more. */
static struct sample_params some_params(const struct head *h, bool mixed) {
    struct sample_params p = sample_params_default();
    switch (mixed ? below(8) : 0) {
    case 1: p.want_logits = true; break;
    case 2:
        p.temperature = 0.7f;
        p.top_k = 40;
        p.seed = (uint64_t)below(1 << 30);
        break;
    case 3:
        p.want_logprob = true;
        p.target = -1;
        p.n_top_logprobs = 3;
        break;
    case 4:
        p.temperature = 1; // among all
        p.seed = (uint64_t)below(1 << 30);
        break;
    case 5:
        p.temperature = below(2) ? 0.8f : 0;
        p.top_p = 0.9f;
        p.seed = (uint64_t)below(1 << 30);
        p.want_logprob = below(2);
        p.repetition_penalty = 1.3f;
        p.frequency_penalty = 0.2f;
        p.history = h->seen;
        p.n_history = N_SEEN;
        break;
    default: break;
    }
    return p;
}

/* Few tokens or most may come, by bits or by words, or those of a list. */
static void restrict_row(struct head *h, int r, struct sample_params *p) {
    int64_t n_words = sample_mask_words(h->shape.out);
    uint32_t *mask = h->masks + r * n_words;
    int kind = below(6), one = below(h->shape.out);
    if (kind == 0)
        return;
    if (kind == 1 || kind == 2) {
        p->allowed = h->allowed[r], p->n_allowed = 1 + below(MOST_ALLOWED);
        for (int i = 0; i < p->n_allowed; i++)
            h->allowed[r][i] = i > 0 && below(3) == 0 ? h->allowed[r][0] : below(h->shape.out);
    }
    if (kind == 1)
        return;
    for (int64_t i = 0; i < n_words; i++)
        mask[i] = kind == 5 ? 0 : kind == 4 ? (below(4) ? 0 : ~0u) : (uint32_t)(uniform() * 4294967296.0);
    mask[one / 32] |= 1u << one % 32;
    p->mask = mask;
    if (kind == 2) // something is left
        mask[h->allowed[r][0] / 32] |= 1u << h->allowed[r][0] % 32;
}

/* A step of n sequences of a token each, most or all of which give a row. */
static void fill_plan(struct head *h, int n, bool mixed, bool all) {
    struct batch_plan *p = &h->plan;
    bool restricted = below(2);
    p->n_tokens = p->n_seqs = n;
    p->n_rows = 0;
    p->draws_best = below(2); // if not all rows are so, that costs time alone
    for (int i = 0; i < n; i++) {
        p->token_id[i] = below(N_INPUTS);
        p->from_row[i] = -1;
        p->position[i] = 0;
        p->query_start[i + 1] = i + 1;
        p->seq_len[i] = p->n_known[i] = 1;
        if (!all && i > 0 && below(3) == 0)
            continue;
        struct sample_params asked = some_params(h, mixed);
        if (restricted)
            restrict_row(h, p->n_rows, &asked);
        asked.want_logits |= h->shape.cap > 0 && !sample_is_plain(&asked); // expect_row draws from these
        p->out_row[p->n_rows] = i;
        h->sample[p->n_rows++] = asked;
    }
}

/* A row's logits on the device: those of the reference, but for what tanhf of a cap differs by. */
static const float *logits_there(struct head *h, int r, const float *logits) {
    const struct shape *s = &h->shape;
    const float *there;
    struct error err;
    EXPECT_OK(h->ops->logits(h->at.exe, r, &there, &err), err);
    for (int i = 0; i < s->out; i++)
        if (s->cap > 0 ? fabsf(there[i] - logits[i]) > 1e-6f * s->cap : there[i] != logits[i])
            fail_msg("[%d, %d]%s cap %g, %s, row %d of %d: logit %d is %.9g, wanted %.9g", s->out, s->in,
                     s->biased ? " biased" : "", (double)s->cap, s->dtype, r, h->plan.n_rows, i, (double)there[i],
                     (double)logits[i]);
    return there;
}

/* What a row draws is exact of the logits that the device has: a last bit of a capped one may decide. */
static void expect_row(struct head *h, int r, const struct sample_result *got) {
    const struct shape *s = &h->shape;
    const struct sample_params *p = &h->sample[r];
    const float *logits = h->logits + (int64_t)h->plan.token_id[h->plan.out_row[r]] * s->out;
    struct sample_result want;
    sample_row(logits, s->out, p, &h->scratch, &want);
    EXPECT_EQ(got->not_finite, want.not_finite);
    if (want.not_finite)
        return;
    if (p->want_logits) {
        logits = logits_there(h, r, logits);
        sample_row(logits, s->out, p, &h->scratch, &want);
    }
    bool told = got->argmax == want.argmax || (sample_is_best(p) && got->argmax == got->token);
    if (!told || got->token != want.token)
        fail_msg("[%d, %d]%s cap %g, %s, row %d of %d: token %d, argmax %d; wanted %d, %d (%.9g, %.9g)", s->out, s->in,
                 s->biased ? " biased" : "", (double)s->cap, s->dtype, r, h->plan.n_rows, got->token, got->argmax,
                 want.token, want.argmax, (double)logits[got->argmax], (double)logits[want.argmax]);
    if (p->want_logprob)
        EXPECT(fabsf(got->logprob - want.logprob) <= 1e-4f * fmaxf(1, fabsf(want.logprob)));
}

static void run_step(struct head *h, int n, bool mixed, bool all) {
    static struct sample_result got[MOST_ROWS];
    struct error err;
    fill_plan(h, n, mixed, all);
    memset(got, 0xaa, sizeof got);
    EXPECT_OK(on_device_step(&h->at, &h->plan, h->sample, below(3) == 0, got, &err), err);
    for (int r = 0; r < h->plan.n_rows; r++)
        expect_row(h, r, &got[r]);
}

/* Sizes around those of tiles, few rows and many. */
static void run_steps(struct head *h) {
    static const int sizes[] = {1,  2,   8,   9,   16,  17,  31,  32,  33,  48,  64,
                                65, 100, 128, 129, 192, 255, 256, 257, 320, 385, 512};
    for (size_t i = 0; i < ARRAY_LEN(sizes) && sizes[i] <= h->most_rows; i++) {
        run_step(h, sizes[i], false, true);
        run_step(h, sizes[i], true, true);
        run_step(h, sizes[i], below(2), false);
    }
    for (int i = 0; i < 6; i++)
        run_step(h, 1 + below(h->most_rows), below(2), below(2));
}

static const char *some_dtype(void) { return below(2) ? "float16" : "bfloat16"; }

static void tokens_are_those_of_the_reference(void **state) {
    (void)state;
    static const int outs[] = {1, 7, 63, 192, 300, 1000, 4099, 32000}, ins[] = {8, 64, 72, 136, 896};
    for (size_t i = 0; i < ARRAY_LEN(outs); i++) {
        if (!rig_takes_case())
            continue;
        struct head h;
        struct shape s = {outs[i], ins[below(ARRAY_LEN(ins))], below(2), 0, some_dtype()};
        if (s.out > 4099)
            s.in = ins[below(3)];
        if (rig_is_brief() && s.out * s.in * 2 >= RIG_TIMED_BYTES)
            s.in = ins[0];
        head_open(&h, s, -1, 0);
        run_steps(&h);
        head_close(&h);
    }
}

/* More tiles than any device has multiprocessors. */
static void tokens_of_a_large_vocabulary_too(void **state) {
    (void)state;
    if (!rig_takes_case())
        return;
    struct head h;
    head_open(&h, (struct shape){rig_is_brief() ? 40000 : 152064, 24, false, 0, some_dtype()}, -1, 0);
    for (int i = 0; i < (rig_is_brief() ? 1 : 8); i++)
        run_step(&h, 1 + below(h.most_rows), i == 5, true);
    head_close(&h);
}

static void caps_are_in_the_logits(void **state) {
    (void)state;
    for (int i = 0; i < 3; i++) {
        struct head h;
        if (!rig_takes_case())
            continue;
        head_open(&h, (struct shape){300 + below(5000), 64, below(2), 40, some_dtype()}, -1, 0);
        run_steps(&h);
        head_close(&h);
    }
}

/* In float32, which the head that looks for the largest itself does not do. */
static void other_products_too(void **state) {
    (void)state;
    if (!rig_takes_case())
        return;
    struct head h;
    head_open(&h, (struct shape){1000, 72, true, 0, "float32"}, -1, 0);
    run_steps(&h);
    head_close(&h);
}

static void what_is_not_a_number_is_told(void **state) {
    (void)state;
    static const float values[] = {NAN, INFINITY, -INFINITY};
    for (size_t i = 0; i < ARRAY_LEN(values); i++) {
        struct head h;
        int out = 2 + below(3000);
        if (!rig_takes_case())
            continue;
        head_open(&h, (struct shape){out, 64, true, 0, some_dtype()}, below(out), values[i]);
        run_step(&h, 1 + below(h.most_rows), false, true);
        run_step(&h, 1 + below(h.most_rows), true, false);
        head_close(&h);
    }
    struct head h;
    if (!rig_takes_case())
        return;
    head_open(&h, (struct shape){1, 64, true, 0, some_dtype()}, 0, -INFINITY);
    run_step(&h, 3, false, true);
    head_close(&h);
}

static void rows_of_which_the_best_is_wanted(void **state) {
    (void)state;
    uint32_t word = 1;
    int32_t token = 0;
    struct sample_params p = sample_params_default();
    EXPECT(sample_is_plain(&p) && sample_is_best(&p));
    p.want_argmax = true; // which it is
    EXPECT(sample_is_plain(&p) && sample_is_best(&p));
    p.mask = &word;
    EXPECT(!sample_is_plain(&p) && !sample_is_best(&p));
    p.want_argmax = false;
    EXPECT(!sample_is_plain(&p) && sample_is_best(&p));
    p.allowed = &token, p.n_allowed = 1;
    EXPECT(!sample_is_plain(&p) && sample_is_best(&p));
    struct sample_params q = p;
    q.banned = &token, q.n_banned = 1;
    EXPECT(!sample_is_best(&q));
    q = p, q.temperature = 1;
    EXPECT(!sample_is_best(&q));
    q = p, q.want_logprob = true;
    EXPECT(!sample_is_best(&q));
    q = p, q.presence_penalty = 1;
    EXPECT(!sample_is_best(&q));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tokens_are_those_of_the_reference),
        cmocka_unit_test(tokens_of_a_large_vocabulary_too),
        cmocka_unit_test(caps_are_in_the_logits),
        cmocka_unit_test(other_products_too),
        cmocka_unit_test(what_is_not_a_number_is_told),
        cmocka_unit_test(rows_of_which_the_best_is_wanted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
