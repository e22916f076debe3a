/* test_dspark.c - blocks whose first row gives a guess, and DSpark's, whose guesses follow one another, of random
 * numbers: what they say is what the formulas say, worked out here in double from the tensors of the checkpoint, and no
 * token changes by them.
 *
 *     c_j    = what the target's program makes of its layers at position j (feature), as the engine has it
 *     rows   i = 0 .. B-1 at positions n + i, of the newest token and masks; x += attention(N x);  x += mlp(N x)
 *            k and v are of c_0 .. c_n-1 as they are and of N x of all rows of the block
 *     guess  i: head h + w2 e, with h = N x of row i and e = w1[token before], or sigmoid(Wg [h, e] + bg) * e */
#include "dspark_rig.h"
#include "formulas.h"

#include "op_rig.h"

#include "engine/draft/program_drafter.h"
#include "engine/engine.h"

enum { N_PROMPT = 12, N_TOKENS = 24, MOST_TEXT = N_PROMPT + N_TOKENS + BLOCK };
static const double LOGIT_BOUND = 2e-3; // float32 sums in another order
static const char target[] = "tests/models/qwen3";

// ---- the formulas -----------------------------------------------------------------------------------------------

struct oracle {
    const struct kind *kind;
    struct tensors draft, target;
    double c[MOST_TEXT][H];
    double k[MOST_ROWS][KV_HEADS * HEAD], v[MOST_ROWS][KV_HEADS * HEAD];
};

static const double *of_layer(struct oracle *o, int l, const char *name) {
    char prefix[24];
    snprintf(prefix, sizeof prefix, "layers.%d.", l);
    return tensor(&o->draft, prefix, name);
}

static const double *end_of(struct oracle *o, const char *name) {
    bool is_own =
        o->kind->has_own_ends || o->kind->is_tied || (o->kind->has_own_vocab && strcmp(name, "lm_head.weight") == 0);
    bool is_tied = !checkpoint_find(o->target.checkpoint, "lm_head.weight");
    if (is_own)
        return tensor(&o->draft, "", o->kind->is_tied ? "embed_tokens.weight" : name);
    return strcmp(name, "lm_head.weight") == 0 && !is_tied ? tensor(&o->target, "", name)
                                                           : tensor(&o->target, "model.", "embed_tokens.weight");
}

static void key_and_value(struct oracle *o, int l, int row, const double *y) {
    product(o->k[row], of_layer(o, l, "self_attn.k_proj.weight"), y, KV_HEADS * HEAD, H);
    product(o->v[row], of_layer(o, l, "self_attn.v_proj.weight"), y, KV_HEADS * HEAD, H);
    for (int h = 0; h < KV_HEADS; h++) {
        double *k = o->k[row] + h * HEAD;
        norm(k, k, of_layer(o, l, "self_attn.k_norm.weight"), HEAD, 0);
        rope(k, HEAD, row, HEAD / 2);
    }
}

static void attention(struct oracle *o, int l, int row, int n_rows, const double *y, double *d) {
    double q[HEADS * HEAD], a[HEADS * HEAD];
    product(q, of_layer(o, l, "self_attn.q_proj.weight"), y, HEADS * HEAD, H);
    for (int h = 0; h < HEADS; h++) {
        int kv = h / (HEADS / KV_HEADS) * HEAD, stride = KV_HEADS * HEAD;
        norm(q + h * HEAD, q + h * HEAD, of_layer(o, l, "self_attn.q_norm.weight"), HEAD, 0);
        rope(q + h * HEAD, HEAD, row, HEAD / 2);
        attend(a + h * HEAD, q + h * HEAD, o->k[0] + kv, stride, HEAD, o->v[0] + kv, stride, HEAD, n_rows);
    }
    product(d, of_layer(o, l, "self_attn.o_proj.weight"), a, H, HEADS * HEAD);
}

static void mlp(struct oracle *o, int l, const double *y, double *d) {
    double gate[MLP], up[MLP];
    product(gate, of_layer(o, l, "mlp.gate_proj.weight"), y, MLP, H);
    product(up, of_layer(o, l, "mlp.up_proj.weight"), y, MLP, H);
    for (int i = 0; i < MLP; i++)
        gate[i] *= sigmoid(gate[i]) * up[i];
    product(d, of_layer(o, l, "mlp.down_proj.weight"), gate, H, MLP);
}

static void add_to(double *x, const double *d) {
    for (int i = 0; i < H; i++)
        x[i] += d[i];
}

/* States of the block's rows behind the last norm, of a text of n tokens before the newest. */
static void block_states(struct oracle *o, int32_t newest, int n, double (*x)[H]) {
    double y[BLOCK][H], d[H];
    for (int i = 0; i < BLOCK; i++)
        memcpy(x[i], end_of(o, "embed_tokens.weight") + (i == 0 ? newest : MASK) * H, sizeof x[i]);
    for (int l = 0; l < LAYERS; l++) {
        for (int j = 0; j < n; j++)
            key_and_value(o, l, j, o->c[j]);
        for (int i = 0; i < BLOCK; i++) {
            norm(y[i], x[i], of_layer(o, l, "input_layernorm.weight"), H, 0);
            key_and_value(o, l, n + i, y[i]);
        }
        for (int i = 0; i < BLOCK; i++) {
            attention(o, l, n + i, n + BLOCK, y[i], d);
            add_to(x[i], d);
            norm(y[i], x[i], of_layer(o, l, "post_attention_layernorm.weight"), H, 0);
            mlp(o, l, y[i], d);
            add_to(x[i], d);
        }
    }
    for (int i = 0; i < BLOCK; i++)
        norm(x[i], x[i], tensor(&o->draft, "", "norm.weight"), H, 0);
}

static int n_vocab(const struct oracle *o) { return o->kind->has_own_vocab ? OWN_VOCAB : VOCAB; }

static void guess_logits(struct oracle *o, const double *h, int32_t before, double *logits) {
    static double more[VOCAB];
    product(logits, end_of(o, "lm_head.weight"), h, n_vocab(o), H);
    if (!o->kind->has_markov)
        return;
    double both[H + RANK], gate[RANK], *e = both + H;
    memcpy(both, h, H * sizeof *both);
    memcpy(e, tensor(&o->draft, "markov_head.", "markov_w1.weight") + before * RANK, RANK * sizeof *e);
    if (o->kind->is_gated) {
        product(gate, tensor(&o->draft, "markov_head.", "gate_proj.weight"), both, RANK, H + RANK);
        for (int i = 0; i < RANK; i++)
            e[i] *= sigmoid(gate[i] + tensor(&o->draft, "markov_head.", "gate_proj.bias")[i]);
    }
    product(more, tensor(&o->draft, "markov_head.", "markov_w2.weight"), e, n_vocab(o), RANK);
    for (int i = 0; i < n_vocab(o); i++)
        logits[i] += more[i];
}

// ---- the engine -------------------------------------------------------------------------------------------------

struct text {
    int32_t tokens[MOST_TEXT];
    float logprobs[MOST_TEXT];
    int n;
};

static int length(void) { return test_is_brief() ? 8 : N_TOKENS; }

static const float TEMPERATURE = 0.7f;
static bool with_rejection;

static struct gyre *open_engine(const char *draft, int n_guesses) {
    struct gyre_options o = {.struct_size = sizeof o, .model = target, .backend = rig_backend()};
    struct gyre *g;
    struct gyre_error err;
    o.n_threads = 1, o.dtype = "float32", o.max_model_len = 96, o.block_size = 8, o.kv_cache_bytes = 4 << 20;
    o.n_guesses = n_guesses, o.draft_model = n_guesses ? draft : NULL;
    o.draft_rejection = n_guesses > 0 && with_rejection;
    EXPECT_OK(gyre_open(&o, &g, &err), err);
    g->drafter.is_fixed = g->drafter.tells_logits = true;
    return g;
}

static uint64_t submit(struct gyre *g, int i, struct text *t) {
    struct gyre_request q = gyre_request_default(g);
    struct gyre_error err;
    uint64_t id;
    t->n = N_PROMPT;
    for (int k = 0; k < N_PROMPT; k++)
        t->tokens[k] = 3 + 7 * k + 31 * i;
    q.prompt = t->tokens, q.n_prompt = N_PROMPT, q.max_tokens = length(), q.ignore_eos = true, q.user = t;
    q.temperature = i < 2 ? 0 : TEMPERATURE, q.seed = test_seed() + (uint64_t)i, q.top_k = 0, q.top_p = 1, q.min_p = 0;
    q.repetition_penalty = i == 1 ? 1.2f : 1, q.logprobs = true;
    EXPECT_OK(gyre_submit(g, &q, &id, &err), err);
    return id;
}

static void take(struct gyre *g) {
    struct gyre_event e[32];
    for (int i = 0, n = gyre_poll(g, e, 32); i < n; i++)
        if (e[i].kind == GYRE_TOKEN) {
            struct text *t = e[i].user;
            t->logprobs[t->n] = e[i].logprob;
            t->tokens[t->n++] = e[i].token;
        }
}

/* Of the step that was collected last; those of wrong guesses are written again. */
static void read_features(struct gyre *g, struct oracle *o) {
    const struct batch_plan *plan = &g->steps[(g->n_collected - 1) % MAX_STEPS_IN_FLIGHT].plan;
    struct error err;
    for (int t = 0; t < plan->n_tokens; t++) {
        const float *c;
        EXPECT_OK(g->ops->hidden(g->exe, g->draft->feature, t, &c, &err), err);
        for (int i = 0; i < H; i++)
            o->c[plan->position[t]][i] = (double)c[i];
    }
}

/* Of a guess that rejection sampling judges: all of it, in the target's tokens. */
static void judge_distribution(const struct oracle *o, const double *logits, const float *q) {
    double sum = 0, most = logits[best_of(logits, n_vocab(o))];
    int each = o->kind->has_own_vocab ? 3 : 1;
    for (int i = 0; i < n_vocab(o); i++)
        sum += exp((logits[i] - most) / (double)TEMPERATURE);
    for (int t = 0; t < VOCAB; t++) {
        bool is_ours = t % each == 0 && t / each < n_vocab(o);
        double wanted = is_ours ? exp((logits[t / each] - most) / (double)TEMPERATURE) / sum : 0;
        if (!(fabs((double)q[t] - wanted) <= 4 * LOGIT_BOUND / (double)TEMPERATURE * wanted + 1e-7))
            fail_msg("token %d has probability %g, wanted %g", t, (double)q[t], wanted);
    }
}

static void judge(struct gyre *g, struct oracle *o, const struct request *r) {
    static double logits[VOCAB], x[BLOCK][H];
    const struct proposal *p = &r->draft;
    const float *said;
    struct error err;
    int row, n = r->sequence.n_known - 1, last = p->n - 1;
    int32_t before = r->sequence.tokens[n];
    block_states(o, before, n, x);
    for (int i = 0; i < p->n; i++, before = p->tokens[i - 1]) {
        guess_logits(o, x[i], before, logits);
        int own = o->kind->has_own_vocab ? p->tokens[i] / 3 : p->tokens[i];
        EXPECT(!o->kind->has_own_vocab || p->tokens[i] % 3 == 0);
        if (g->drafter.rejects)
            judge_distribution(o, logits, p->q + (size_t)i * VOCAB);
        else
            EXPECT(logits[own] >= logits[best_of(logits, n_vocab(o))] - 2 * LOGIT_BOUND); // near ties
    }
    struct executable *exe = program_drafter_exe(g, &row);
    if (!o->kind->has_markov)
        row += last;
    EXPECT_OK(g->ops->logits(exe, row, &said, &err), err);
    for (int i = 0; i < n_vocab(o); i++)
        if (!(fabs(logits[i] - (double)said[i]) <= LOGIT_BOUND))
            fail_msg("behind %d tokens: logit %d of guess %d is %g, wanted %g", n + 1, i, last, (double)said[i],
                     logits[i]);
}

static void follow_text(const char *folder, int n_guesses, struct oracle *o) {
    static struct text plain, text;
    struct gyre *without = open_engine(NULL, 0), *g = open_engine(folder, n_guesses);
    int n_judged = 0, which = with_rejection ? 2 : 0; // which is drawn, and then another text
    submit(without, which, &plain);
    while (gyre_busy(without))
        take(without);
    uint64_t id = submit(g, which, &text);
    while (gyre_busy(g)) {
        int64_t n_before = g->n_collected;
        take(g);
        const struct request *r = request_table_find(&g->requests, id);
        if (g->n_collected == n_before)
            continue;
        EXPECT_EQ(g->n_collected, n_before + 1);
        read_features(g, o);
        if (r && r->draft.n > 0 && r->draft.at == r->sequence.n_known) {
            EXPECT_EQ(r->draft.n, MIN(n_guesses, N_PROMPT + length() - 1 - r->sequence.n_known));
            judge(g, o, r);
            n_judged++;
        }
    }
    EXPECT(n_judged > (test_is_brief() ? 0 : 3));
    EXPECT_EQ(text.n, N_PROMPT + length());
    if (!with_rejection)
        assert_memory_equal(text.tokens, plain.tokens, sizeof text.tokens);
    gyre_close(without);
    gyre_close(g);
}

static void check(const struct kind *kind) {
    static struct oracle o;
    char folder[RIG_PATH];
    struct error err;
    o = (struct oracle){.kind = kind};
    write_draft(kind, folder);
    EXPECT_OK(checkpoint_open(&o.draft.checkpoint, folder, &err), err);
    EXPECT_OK(checkpoint_open(&o.target.checkpoint, target, &err), err);
    for (int k = test_is_brief() ? BLOCK : 2; k <= BLOCK; k += 4) // the whole block: one guess more than masks
        follow_text(folder, k, &o);
    checkpoint_free(o.draft.checkpoint), checkpoint_free(o.target.checkpoint);
    arena_release(&o.draft.arena), arena_release(&o.target.arena);
    rig_remove_draft(folder);
}

static void a_block_that_begins_at_the_newest_token_says_what_its_formulas_say(void **state) {
    (void)state;
    check(&anchored);
}

/* Also where the target's embedding is its head. */
static void an_embedding_of_its_own_is_the_head_where_they_are_tied(void **state) {
    (void)state;
    check(&tied);
}

static void guesses_that_follow_one_another_are_as_the_formulas_say(void **state) {
    (void)state;
    check(&vanilla);
    if (!test_is_brief())
        check(&speculators);
}

static void guesses_behind_a_gate_are_as_the_formulas_say(void **state) {
    (void)state;
    check(&gated);
}

static void guesses_of_a_vocabulary_of_their_own_are_as_the_formulas_say(void **state) {
    (void)state;
    check(&few_tokens);
    if (!test_is_brief())
        check(&few_tokens_of_dflash);
}

enum { N_TEXTS = 5, N_ROUNDS = 2 };

static void write_texts(const char *folder, int n_guesses, struct text (*texts)[N_TEXTS]) {
    struct gyre *g = open_engine(folder, n_guesses);
    for (int round = 0; round < N_ROUNDS; round++) { // prompts are found in the cache
        for (int i = 0; i < N_TEXTS; i++)
            submit(g, i, &texts[round][i]);
        while (gyre_busy(g))
            take(g);
        EXPECT(scheduler_check(&g->scheduler) == NULL);
    }
    EXPECT(n_guesses == 0 || g->drafter.n_guessed > 10 * length());
    gyre_close(g);
}

/* On the CPU to the bit. */
static void texts_and_logprobs_are_those_without(void **state) {
    (void)state;
    static const struct kind *const kinds[] = {&anchored, &vanilla, &gated, &few_tokens};
    static struct text plain[N_ROUNDS][N_TEXTS], guessed[N_ROUNDS][N_TEXTS];
    char folder[RIG_PATH];
    if (rig_backend() != &backend_cpu)
        skip(); // sums in another order
    memset(plain, 0, sizeof plain);
    write_texts(NULL, 0, plain);
    for (size_t i = 0; i < ARRAY_LEN(kinds); i++) {
        memset(guessed, 0, sizeof guessed);
        write_draft(kinds[i], folder);
        write_texts(folder, BLOCK, guessed);
        assert_memory_equal(plain, guessed, sizeof plain);
        rig_remove_draft(folder);
    }
}

/* What is drawn with a temperature is other text, from distributions that are as the formulas say. */
static void greedy_texts_with_rejection_are_those_without(void **state) {
    (void)state;
    static const struct kind *const kinds[] = {&vanilla, &few_tokens};
    static struct text plain[N_ROUNDS][N_TEXTS], guessed[N_ROUNDS][N_TEXTS];
    char folder[RIG_PATH];
    if (rig_backend() != &backend_cpu)
        skip(); // which alone rejects
    memset(plain, 0, sizeof plain);
    write_texts(NULL, 0, plain);
    with_rejection = true;
    for (size_t i = 0; i < ARRAY_LEN(kinds); i++) {
        memset(guessed, 0, sizeof guessed);
        write_draft(kinds[i], folder);
        write_texts(folder, BLOCK, guessed);
        for (int round = 0; round < N_ROUNDS; round++) {
            assert_memory_equal(plain[round], guessed[round], 2 * sizeof plain[round][0]);
            for (int k = 2; k < N_TEXTS; k++)
                EXPECT_EQ(guessed[round][k].n, N_PROMPT + length());
        }
        rig_remove_draft(folder);
        check(kinds[i]);
    }
    with_rejection = false;
}

static void refuse_kind(const struct kind *kind, const char *said) {
    struct gyre_options o = {.struct_size = sizeof o, .model = target, .backend = &backend_cpu};
    struct gyre *g;
    struct gyre_error err;
    char folder[RIG_PATH];
    write_draft(kind, folder);
    o.n_guesses = 4, o.draft_model = folder, o.n_threads = 1, o.max_model_len = 96;
    EXPECT(gyre_open(&o, &g, &err) != GYRE_OK);
    if (!strstr(err.text, said))
        fail_msg("%s: %s is not in it", err.text, said);
    rig_remove_draft(folder);
}

static void refuse(const char *config, const char *said) {
    refuse_kind(&(struct kind){config, true, false, false}, said);
}

static void tokens_that_are_not_the_targets_are_refused_by_place(void **state) {
    (void)state;
    struct kind kind = few_tokens;
    kind.hostile = INT64_MAX; // whose sum with its place is none
    refuse_kind(&kind, "tensor d2t has 9223372036854775807 at 299, and their sum is no token of the target's 1024");
    kind.hostile = VOCAB - OWN_VOCAB + 1;
    refuse_kind(&kind, "tensor d2t has 725 at 299, ");
    kind.hostile = -OWN_VOCAB;
    refuse_kind(&kind, "tensor d2t has -300 at 299, ");
}

static void what_is_not_known_is_refused_by_name(void **state) {
    (void)state;
    refuse(DEEPSPEC "\"markov_rank\": 16, \"markov_head_type\": \"rnn\"}", "\"markov_head_type\" rnn");
    refuse(DEEPSPEC "\"markov_rank\": 16, \"draft_vocab_size\": 512}", "markov_w2");
    refuse(DEEPSPEC "\"markov_rank\": 8}", "markov_w1");
    refuse("{\"architectures\": [\"Gemma4DSparkModel\"], \"model_type\": \"gemma4_text\", " SIZES "}",
           "Gemma4DSparkModel");
    refuse("{\"speculators_model_type\": \"dflash2\", \"model_type\": \"speculators\", \"transformer_layer_config\": "
           "{" SIZES "}}",
           "dflash2");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_block_that_begins_at_the_newest_token_says_what_its_formulas_say),
        cmocka_unit_test(an_embedding_of_its_own_is_the_head_where_they_are_tied),
        cmocka_unit_test(guesses_that_follow_one_another_are_as_the_formulas_say),
        cmocka_unit_test(guesses_behind_a_gate_are_as_the_formulas_say),
        cmocka_unit_test(guesses_of_a_vocabulary_of_their_own_are_as_the_formulas_say),
        cmocka_unit_test(texts_and_logprobs_are_those_without),
        cmocka_unit_test(greedy_texts_with_rejection_are_those_without),
        cmocka_unit_test(tokens_that_are_not_the_targets_are_refused_by_place),
        cmocka_unit_test(what_is_not_known_is_refused_by_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
