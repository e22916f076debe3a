/* test_mixture_predictors.c - next-token predictors that have experts, of random numbers: what they say is what the
 * formulas say, worked out here in double from the tensors of the checkpoint, of the first guess and along a chain.
 *
 *     Qwen      x = fc [N(embed t), N(h)];  x += gated attention(N(x));  x += experts(N(x)) + sigmoid(g x) shared(N(x))
 *     DeepSeek  the same with latent attention, grouped routing and a shared expert that no gate weighs
 *     out = N(x);  logits = head out;  out is h of the chain's next row
 *
 * h of a row of the text is the target's state behind its last norm, which the engine gives for a prompt (pooling). */
#include "formulas.h"
#include "mixture_rig.h"
#include "op_rig.h"

#include "engine/draft/program_drafter.h"
#include "engine/engine.h"

#include <math.h>

enum { H = 24, VOCAB = 64, N_PROMPT = 9, N_TOKENS = 14, MOST_CHAIN = 3, MOST_STEPS = 20, HEADS = 4 };
static const double LOGIT_BOUND = 2e-3; // float32 sums in another order

// ---- the formulas -----------------------------------------------------------------------------------------------

struct oracle {
    struct tensors from;
    const char *layer; // names of its tensors begin so
    double k[MOST_ROWS][HEADS * 24], v[MOST_ROWS][HEADS * 16];
};

static const double *of_layer(struct oracle *o, const char *name) { return tensor(&o->from, o->layer, name); }

static void gated_ffn(double *out, const double *gate, const double *up, const double *down, const double *x, int ffn) {
    double g[16], u[16];
    product(g, gate, x, ffn, H), product(u, up, x, ffn, H);
    for (int i = 0; i < ffn; i++)
        g[i] *= sigmoid(g[i]) * u[i];
    product(out, down, g, H, ffn);
}

static void ffn_of(struct oracle *o, double *out, const char *module, const double *x, int ffn) {
    gated_ffn(out, of_layer(o, arena_printf(&o->from.arena, "%s.gate_proj.weight", module)),
              of_layer(o, arena_printf(&o->from.arena, "%s.up_proj.weight", module)),
              of_layer(o, arena_printf(&o->from.arena, "%s.down_proj.weight", module)), x, ffn);
}

static void expert(struct oracle *o, double *out, int e, const double *x) {
    enum { FFN = 8, SIZE = FFN * H };
    if (!checkpoint_find(o->from.checkpoint, arena_printf(&o->from.arena, "%smlp.experts.gate_up_proj", o->layer))) {
        ffn_of(o, out, arena_printf(&o->from.arena, "mlp.experts.%d", e), x, FFN);
        return;
    }
    const double *gate = of_layer(o, "mlp.experts.gate_up_proj") + 2 * e * SIZE;
    gated_ffn(out, gate, gate + SIZE, of_layer(o, "mlp.experts.down_proj") + e * SIZE, x, FFN);
}

/* The two best of `choice`, weighed by their share of `score`, times scale. */
static void add_experts(struct oracle *o, double *out, const double *x, double *choice, const double *score, int n,
                        double scale) {
    int a = best_of(choice, n);
    choice[a] = -INFINITY;
    int pair[2] = {a, best_of(choice, n)};
    for (int i = 0; i < 2; i++) {
        double y[H], weight = scale * score[pair[i]] / (score[pair[0]] + score[pair[1]]);
        expert(o, y, pair[i], x);
        for (int c = 0; c < H; c++)
            out[c] += weight * y[c];
    }
}

static void add_to(double *x, const double *d) {
    for (int i = 0; i < H; i++)
        x[i] += d[i];
}

static void qwen_layer(struct oracle *o, int row, double *x) {
    enum { KV_HEADS = 2, HEAD = 16, TURNED = 4, N_EXPERTS = 4, SHARED_FFN = 12 };
    double y[H], q[HEADS * 2 * HEAD], a[HEADS * HEAD], d[H], *k = o->k[row];
    norm(y, x, of_layer(o, "input_layernorm.weight"), H, 1);
    product(q, of_layer(o, "self_attn.q_proj.weight"), y, HEADS * 2 * HEAD, H);
    product(k, of_layer(o, "self_attn.k_proj.weight"), y, KV_HEADS * HEAD, H);
    product(o->v[row], of_layer(o, "self_attn.v_proj.weight"), y, KV_HEADS * HEAD, H);
    for (int h = 0; h < KV_HEADS; h++) {
        norm(k + h * HEAD, k + h * HEAD, of_layer(o, "self_attn.k_norm.weight"), HEAD, 1);
        rope(k + h * HEAD, TURNED, row, TURNED / 2);
    }
    for (int h = 0; h < HEADS; h++) {
        double *qh = q + h * 2 * HEAD, *gate = qh + HEAD;
        int kv = h / (HEADS / KV_HEADS) * HEAD;
        norm(qh, qh, of_layer(o, "self_attn.q_norm.weight"), HEAD, 1);
        rope(qh, TURNED, row, TURNED / 2);
        attend(a + h * HEAD, qh, o->k[0] + kv, HEADS * 24, HEAD, o->v[0] + kv, HEADS * 16, HEAD, row + 1);
        for (int i = 0; i < HEAD; i++)
            a[h * HEAD + i] *= sigmoid(gate[i]);
    }
    product(d, of_layer(o, "self_attn.o_proj.weight"), a, H, HEADS * HEAD);
    add_to(x, d);
    double router[N_EXPERTS], score[N_EXPERTS], gate;
    norm(y, x, of_layer(o, "post_attention_layernorm.weight"), H, 1);
    product(router, of_layer(o, "mlp.gate.weight"), y, N_EXPERTS, H);
    for (int e = 0; e < N_EXPERTS; e++)
        score[e] = exp(router[e]);
    add_experts(o, x, y, router, score, N_EXPERTS, 1);
    product(&gate, of_layer(o, "mlp.shared_expert_gate.weight"), y, 1, H);
    ffn_of(o, d, "mlp.shared_expert", y, SHARED_FFN);
    for (int i = 0; i < H; i++)
        x[i] += sigmoid(gate) * d[i];
}

static void deepseek_attention(struct oracle *o, int row, const double *y, double *d) {
    enum { RANK = 12, NOPE = 16, ROPE = 8, V = 12, HEAD = NOPE + ROPE };
    double low[RANK], q[HEADS * HEAD], c[RANK + ROPE], kv[HEADS * (NOPE + V)], a[HEADS * V];
    product(low, of_layer(o, "self_attn.q_a_proj.weight"), y, RANK, H);
    norm(low, low, of_layer(o, "self_attn.q_a_layernorm.weight"), RANK, 0);
    product(q, of_layer(o, "self_attn.q_b_proj.weight"), low, HEADS * HEAD, RANK);
    product(c, of_layer(o, "self_attn.kv_a_proj_with_mqa.weight"), y, RANK + ROPE, H);
    norm(c, c, of_layer(o, "self_attn.kv_a_layernorm.weight"), RANK, 0);
    rope(c + RANK, ROPE, row, 1);
    product(kv, of_layer(o, "self_attn.kv_b_proj.weight"), c, HEADS * (NOPE + V), RANK);
    for (int h = 0; h < HEADS; h++) {
        memcpy(o->k[row] + h * HEAD, kv + h * (NOPE + V), NOPE * sizeof *kv);
        memcpy(o->k[row] + h * HEAD + NOPE, c + RANK, ROPE * sizeof *c);
        memcpy(o->v[row] + h * 16, kv + h * (NOPE + V) + NOPE, V * sizeof *kv);
        rope(q + h * HEAD + NOPE, ROPE, row, 1);
        attend(a + h * V, q + h * HEAD, o->k[0] + h * HEAD, HEADS * 24, HEAD, o->v[0] + h * 16, HEADS * 16, V, row + 1);
    }
    product(d, of_layer(o, "self_attn.o_proj.weight"), a, H, HEADS * V);
}

/* Of four groups of two the two whose sums are largest may be chosen from. */
static void deepseek_layer(struct oracle *o, int row, double *x) {
    enum { N_EXPERTS = 8, N_GROUPS = 4 };
    double y[H], d[H], score[N_EXPERTS], choice[N_EXPERTS], group[N_GROUPS];
    norm(y, x, of_layer(o, "input_layernorm.weight"), H, 0);
    deepseek_attention(o, row, y, d);
    add_to(x, d);
    norm(y, x, of_layer(o, "post_attention_layernorm.weight"), H, 0);
    product(score, of_layer(o, "mlp.gate.weight"), y, N_EXPERTS, H);
    for (int e = 0; e < N_EXPERTS; e++) {
        score[e] = sigmoid(score[e]);
        choice[e] = score[e] + of_layer(o, "mlp.gate.e_score_correction_bias")[e];
    }
    for (int i = 0; i < N_GROUPS; i++)
        group[i] = choice[2 * i] + choice[2 * i + 1];
    int first = best_of(group, N_GROUPS);
    group[first] = -INFINITY;
    int second = best_of(group, N_GROUPS);
    for (int e = 0; e < N_EXPERTS; e++)
        if (e / 2 != first && e / 2 != second)
            choice[e] = -INFINITY;
    add_experts(o, x, y, choice, score, N_EXPERTS, 2.5);
    ffn_of(o, d, "mlp.shared_experts", y, 8);
    add_to(x, d);
}

/* Row p, of the token behind it and h of p; out may be h. */
static void predictor_row(struct oracle *o, enum rig_mixture kind, int row, int32_t token, const double *h, double *out,
                          double *logits) {
    bool is_deepseek = kind == RIG_DEEPSEEK_V3;
    double more = is_deepseek ? 0 : 1, embed[H] = {0}, both[2 * H], x[H];
    const char *top = is_deepseek ? o->layer : "mtp.";
    if (row > 0 || !is_deepseek) // DeepSeek's first row has no token
        memcpy(embed, tensor(&o->from, "model.", "embed_tokens.weight") + token * H, sizeof embed);
    norm(both, embed, tensor(&o->from, top, is_deepseek ? "enorm.weight" : "pre_fc_norm_embedding.weight"), H, more);
    norm(both + H, h, tensor(&o->from, top, is_deepseek ? "hnorm.weight" : "pre_fc_norm_hidden.weight"), H, more);
    product(x, tensor(&o->from, top, is_deepseek ? "eh_proj.weight" : "fc.weight"), both, H, 2 * H);
    (is_deepseek ? deepseek_layer : qwen_layer)(o, row, x);
    norm(out, x, tensor(&o->from, top, is_deepseek ? "shared_head.norm.weight" : "norm.weight"), H, more);
    product(logits, tensor(&o->from, "", "lm_head.weight"), out, VOCAB, H);
}

// ---- the engine -------------------------------------------------------------------------------------------------

/* What was guessed behind so many known tokens, and the logits of the last guess. */
struct guessed {
    int n_known, n;
    int32_t tokens[MOST_GUESSES];
    float logits[VOCAB];
};

struct run {
    int32_t tokens[N_PROMPT + N_TOKENS];
    int n_tokens, n_steps;
    struct guessed steps[MOST_STEPS];
};

static struct gyre *open_engine(const char *folder, int n_guesses) {
    struct gyre_options o = {.struct_size = sizeof o, .model = folder, .backend = rig_backend()};
    struct gyre *g;
    struct gyre_error err;
    o.n_threads = 1, o.dtype = "float32", o.max_model_len = 64, o.block_size = 8, o.kv_cache_bytes = 4 << 20;
    o.no_prefix_cache = true, o.n_guesses = n_guesses, o.draft_method = n_guesses ? "mtp" : NULL;
    EXPECT_OK(gyre_open(&o, &g, &err), err);
    g->drafter.is_fixed = g->drafter.tells_logits = true;
    return g;
}

static void keep_guesses(struct gyre *g, const struct request *r, struct run *run) {
    struct guessed *s = &run->steps[run->n_steps];
    const float *logits;
    struct error err;
    int row;
    bool is_told = run->n_steps > 0 && r && run->steps[run->n_steps - 1].n_known == r->sequence.n_known;
    if (!r || r->draft.n == 0 || r->draft.at != r->sequence.n_known || is_told)
        return;
    struct executable *exe = program_drafter_exe(g, &row);
    EXPECT_OK(g->ops->logits(exe, row, &logits, &err), err);
    *s = (struct guessed){.n_known = r->sequence.n_known, .n = r->draft.n};
    memcpy(s->tokens, r->draft.tokens, (size_t)s->n * sizeof *s->tokens);
    memcpy(s->logits, logits, sizeof s->logits);
    EXPECT(++run->n_steps < MOST_STEPS);
}

static void write_text(const char *folder, int n_guesses, struct run *run) {
    struct gyre *g = open_engine(folder, n_guesses);
    struct gyre_request q = gyre_request_default(g);
    struct gyre_error err;
    struct gyre_event e[16];
    uint64_t id;
    *run = (struct run){.n_tokens = N_PROMPT};
    for (int i = 0; i < N_PROMPT; i++)
        run->tokens[i] = (7 + 11 * i) % VOCAB;
    q.prompt = run->tokens, q.n_prompt = N_PROMPT, q.max_tokens = N_TOKENS, q.ignore_eos = true, q.temperature = 0;
    q.repetition_penalty = 1;
    EXPECT_OK(gyre_submit(g, &q, &id, &err), err);
    while (gyre_busy(g)) {
        for (int i = 0, n = gyre_poll(g, e, 16); i < n; i++)
            if (e[i].kind == GYRE_TOKEN)
                run->tokens[run->n_tokens++] = e[i].token;
        if (n_guesses > 0)
            keep_guesses(g, request_table_find(&g->requests, id), run);
    }
    gyre_close(g);
}

/* The target's state behind its last norm, of each token but the last. */
static void read_states(const char *folder, const struct run *run, double (*h)[H]) {
    struct gyre *g = open_engine(folder, 0);
    struct gyre_error err;
    struct gyre_event e[4];
    uint64_t id;
    for (int p = 0; p < run->n_tokens - 1; p++) {
        struct gyre_request q = gyre_request_default(g);
        q.prompt = run->tokens, q.n_prompt = p + 1, q.max_tokens = 0, q.pooling = GYRE_POOL_LAST;
        EXPECT_OK(gyre_submit(g, &q, &id, &err), err);
        while (gyre_busy(g))
            for (int i = 0, n = gyre_poll(g, e, 4); i < n; i++)
                for (int c = 0; e[i].kind == GYRE_DONE && c < H; c++)
                    h[p][c] = (double)e[i].pooled[c];
    }
    gyre_close(g);
}

static void judge(struct oracle *o, enum rig_mixture kind, const struct run *run, const struct guessed *s,
                  double (*h)[H]) {
    double out[H], logits[VOCAB];
    int n = s->n_known - 1; // rows of the text
    for (int p = 0; p < n; p++)
        predictor_row(o, kind, p, run->tokens[p + 1], h[p], out, logits);
    for (int i = 0; i < s->n; i++) {
        double best = logits[best_of(logits, VOCAB)];
        EXPECT(logits[s->tokens[i]] >= best - 2 * LOGIT_BOUND); // near ties may fall otherwise
        if (i + 1 < s->n)
            predictor_row(o, kind, n + i, s->tokens[i], out, out, logits);
    }
    for (int i = 0; i < VOCAB; i++)
        if (!(fabs(logits[i] - (double)s->logits[i]) <= LOGIT_BOUND))
            fail_msg("behind %d tokens, %d guesses: logit %d is %g, wanted %g", s->n_known, s->n, i,
                     (double)s->logits[i], logits[i]);
}

static void check_mixture(enum rig_mixture kind) {
    static struct run plain, run;
    static double h[N_PROMPT + N_TOKENS][H];
    static struct oracle o;
    char folder[RIG_PATH];
    struct error err;
    rig_mixture(kind, folder);
    o = (struct oracle){.layer = kind == RIG_DEEPSEEK_V3 ? "model.layers.2." : "mtp.layers.0."};
    arena_init(&o.from.arena);
    EXPECT_OK(checkpoint_open(&o.from.checkpoint, folder, &err), err);
    write_text(folder, 0, &plain);
    for (int k = 1; k <= MOST_CHAIN; k += 2) {
        write_text(folder, k, &run);
        EXPECT_EQ(run.n_tokens, N_PROMPT + N_TOKENS);
        assert_memory_equal(run.tokens, plain.tokens, sizeof run.tokens);
        EXPECT(run.n_steps > N_TOKENS / (k + 1) - 1);
        read_states(folder, &run, h);
        for (int i = 0; i < run.n_steps; i++)
            judge(&o, kind, &run, &run.steps[i], h);
    }
    checkpoint_free(o.from.checkpoint);
    arena_release(&o.from.arena);
    rig_remove_draft(folder);
}

static void qwen3_5_with_experts_one_by_one_says_what_its_formulas_say(void **state) {
    (void)state;
    check_mixture(RIG_QWEN3_5_MOE);
}

static void qwen3_5_with_experts_in_stacks_says_what_its_formulas_say(void **state) {
    (void)state;
    check_mixture(RIG_QWEN3_5_STACK);
}

static void qwen3_next_says_what_its_formulas_say(void **state) {
    (void)state;
    check_mixture(RIG_QWEN3_NEXT);
}

static void deepseek_says_what_its_formulas_say(void **state) {
    (void)state;
    check_mixture(RIG_DEEPSEEK_V3);
}

// ---- several texts at once --------------------------------------------------------------------------------------

enum { N_TEXTS = 5, N_ROUNDS = 2 };

struct text {
    int32_t tokens[N_TOKENS];
    float logprobs[N_TOKENS];
    int n;
};

static void submit_text(struct gyre *g, int i, struct text *t) {
    struct gyre_request q = gyre_request_default(g);
    struct gyre_error err;
    int32_t prompt[N_PROMPT + N_TEXTS];
    uint64_t id;
    for (int k = 0; k < N_PROMPT + i; k++)
        prompt[k] = k < 8 ? 3 + 5 * k : (3 + 7 * k + 11 * i) % VOCAB; // all begin alike
    q.prompt = prompt, q.n_prompt = N_PROMPT + i, q.max_tokens = N_TOKENS - i, q.ignore_eos = true, q.user = t;
    q.temperature = i < 2 ? 0 : 0.7f, q.seed = test_seed() + (uint64_t)i, q.top_k = 0, q.top_p = 1, q.min_p = 0;
    q.repetition_penalty = i == 1 || i == 4 ? 1.2f : 1, q.logprobs = true;
    EXPECT_OK(gyre_submit(g, &q, &id, &err), err);
    t->n = 0;
}

/* Each round asks the same again, so that prompts are found in the cache, which has no room for all texts. */
static int64_t write_texts(const char *folder, int n_guesses, struct text (*texts)[N_TEXTS]) {
    struct gyre_options o = {.struct_size = sizeof o, .model = folder, .backend = rig_backend()};
    struct gyre *g;
    struct gyre_error err;
    struct gyre_event e[32];
    o.n_threads = 1, o.dtype = "float32", o.max_model_len = 64, o.block_size = 8, o.kv_cache_bytes = 160 << 10;
    o.swap_bytes = 64 << 10, o.n_guesses = n_guesses, o.draft_method = n_guesses ? "mtp" : NULL;
    EXPECT_OK(gyre_open(&o, &g, &err), err);
    g->drafter.is_fixed = true;
    for (int round = 0; round < N_ROUNDS; round++) {
        for (int i = 0; i < N_TEXTS; i++)
            submit_text(g, i, &texts[round][i]);
        while (gyre_busy(g))
            for (int i = 0, n = gyre_poll(g, e, 32); i < n; i++)
                if (e[i].kind == GYRE_TOKEN) {
                    struct text *t = e[i].user;
                    t->logprobs[t->n] = e[i].logprob;
                    t->tokens[t->n++] = e[i].token;
                }
        EXPECT(scheduler_check(&g->scheduler) == NULL);
    }
    int64_t n_guessed = g->drafter.n_guessed;
    gyre_close(g);
    return n_guessed;
}

/* On the CPU to the bit. */
static void texts_and_logprobs_are_those_without(void **state) {
    (void)state;
    if (rig_backend() != &backend_cpu)
        skip(); // sums in another order: test_draft_models.c
    for (int kind = 0; kind < RIG_N_MIXTURES; kind++) {
        static struct text plain[N_ROUNDS][N_TEXTS], guessed[N_ROUNDS][N_TEXTS];
        char folder[RIG_PATH];
        memset(plain, 0, sizeof plain), memset(guessed, 0, sizeof guessed);
        rig_mixture((enum rig_mixture)kind, folder);
        EXPECT_EQ(write_texts(folder, 0, plain), 0);
        EXPECT(write_texts(folder, 4, guessed) > 100);
        EXPECT_EQ(plain[0][0].n, N_TOKENS);
        assert_memory_equal(plain, guessed, sizeof plain);
        rig_remove_draft(folder);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(qwen3_5_with_experts_one_by_one_says_what_its_formulas_say),
        cmocka_unit_test(qwen3_5_with_experts_in_stacks_says_what_its_formulas_say),
        cmocka_unit_test(qwen3_next_says_what_its_formulas_say),
        cmocka_unit_test(deepseek_says_what_its_formulas_say),
        cmocka_unit_test(texts_and_logprobs_are_those_without),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
