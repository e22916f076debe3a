/* test_trees.c - several guesses for one place: a tree is kept and cut into branches as its scores say; with trees
 * every token and log-probability is that without guesses, greedy and drawn, for full, windowed and latent caches, in
 * float32 and int4, with caches too small for all, and cancels; and a draft guesses behind a branch what it guesses in
 * a chain. Half of what is guessed is put right and some made up, so that branches are taken often whatever the draft
 * is worth. Not in make test-fast: test_guesses has chains. */
#include "draft_rig.h"
#include "op_rig.h"

#include "base/random.h"
#include "engine/draft/guess_tree.h"
#include "engine/draft/program_drafter.h"
#include "engine/engine.h"

#include <math.h>

enum { N_TEXTS = 6, N_PROMPT = 37, MOST_TOKENS = 48, N_ROUNDS = 2 };

static uint64_t counter;
static int below(int n) { return (int)(philox4x32(test_seed(), counter++, 77).v[0] % (uint32_t)n); }

// ---- the tree alone ---------------------------------------------------------------------------------------------

static bool path_of(const struct guess_tree *t, int i, int32_t *tokens) {
    bool is_kept = true;
    for (; i >= 0; i = t->at[i].parent) {
        is_kept &= t->at[i].is_kept;
        tokens[t->at[i].depth] = t->at[i].token;
    }
    return is_kept;
}

/* Tokens up to the position on the way through a branch. */
static int way_of(const struct branches *b, const int32_t *trunk, int32_t first, int number, int32_t at, int32_t *out) {
    for (int32_t p = first; p <= at; p++) {
        int on = branches_on_way(b, number, p);
        out[p - first] = on == 0 ? trunk[p - first] : b->at[on - 1].tokens[p - b->at[on - 1].first];
    }
    return (int)(at - first) + 1;
}

/* Whether some way through trunk and branches has these tokens. */
static bool has_way(const struct branches *b, const int32_t *trunk, int n_trunk, const int32_t *tokens, int n) {
    int32_t way[MOST_BRANCH_TOKENS], first = 100;
    for (int i = 0; i <= b->n; i++) {
        int32_t end = i == 0 ? first + n_trunk : b->at[i - 1].first + b->at[i - 1].n;
        if (end - first >= n && way_of(b, trunk, first, i, first + n - 1, way) == n &&
            memcmp(way, tokens, (size_t)n * sizeof *way) == 0)
            return true;
    }
    return false;
}

static void grow(struct guess_tree *t, int depths, int topk, int most) {
    int front[MOST_TOPK] = {-1}, n = 1, n_made = 0;
    t->n = 0;
    for (int depth = 0; depth < depths; depth++) {
        for (int i = 0; i < n; i++)
            for (int k = 0; k < topk; k++)
                guess_tree_add(t, front[i], 1000 + n_made++, below(4) == 0 ? 0 : -below(100) * 0.05);
        n = guess_tree_front(t, depth, topk, most, front);
        EXPECT(n <= topk && (depth > 0 || n > 0));
    }
}

static void what_scores_best_is_kept_and_is_a_tree(void **state) {
    (void)state;
    struct branches *b = xcalloc(1, sizeof *b + MOST_BRANCHES * sizeof *b->at);
    for (int round = 0; round < 2000; round++) {
        int depths = 1 + below(8), topk = 2 + below(4), most = 1 + below(MOST_TREE_GUESSES), n_kept = 0, n_out;
        struct guess_tree t;
        int32_t trunk[MOST_GUESSES], path[MOST_GUESSES];
        guess_tree_init(&t, depths, topk);
        grow(&t, depths, topk, most);
        guess_tree_keep(&t, most);
        b->most = most - 1;
        n_out = guess_tree_trunk(&t, trunk);
        int n_trunk = n_out;
        guess_tree_branches(&t, 100, b);
        float least = INFINITY, best_left = -INFINITY;
        for (int i = 0; i < t.n; i++) {
            if (!t.at[i].is_kept) {
                best_left = fmaxf(best_left, t.at[i].score);
                continue;
            }
            n_kept++;
            least = fminf(least, t.at[i].score);
            EXPECT(path_of(&t, i, path));
            EXPECT(has_way(b, trunk, n_trunk, path, t.at[i].depth + 1));
        }
        for (int i = 0; i < b->n; i++) {
            n_out += b->at[i].n;
            EXPECT(b->at[i].parent <= i && b->at[i].n_blocks == 0);
        }
        EXPECT(n_kept == MIN(most, t.n) && n_out == n_kept && best_left <= least);
        guess_tree_release(&t);
    }
    free(b);
}

// ---- texts ------------------------------------------------------------------------------------------------------

struct text {
    int32_t tokens[MOST_TOKENS], first_guess[MOST_TOKENS + 1]; // the draft's own; -1: none
    float logprobs[MOST_TOKENS];
    int n;
    bool is_checked; // its draft guesses the same in a chain
    uint64_t id;
    const struct text *truth; // NULL: nobody knows it
};

struct world {
    const char *target, *draft, *method, *kv;
    int64_t cache_bytes, swap_bytes;
    int topk, rows, guess_seqs, block_size; // topk 0: a guess a step; below: none
    bool cancels, is_plain, with_adapters;
};

static struct drafter own; // the draft's, behind those that put guesses right

static int guess(void *context, const struct sequence *seq, int32_t *out, int max) {
    const struct request *r = seq->owner;
    const struct text *truth = ((const struct text *)r->asked.user)->truth;
    int n = own.guess(context, seq, out, max);
    for (int i = 0; i < n; i++) {
        int32_t at = seq->n_known - r->n_prompt + i;
        out[i] = at < truth->n && below(2) == 0 ? truth->tokens[at] : below(3) == 0 ? below(1024) : out[i];
    }
    return n;
}

static void branch(void *context, const struct sequence *seq, struct branches *out) {
    const struct request *r = seq->owner;
    const struct text *truth = ((const struct text *)r->asked.user)->truth;
    own.branch(context, seq, out);
    for (int i = 0; i < out->n; i++)
        for (int k = 0; k < out->at[i].n; k++) {
            int32_t at = out->at[i].first + k - r->n_prompt;
            if (at < truth->n && below(4) > 0)
                out->at[i].tokens[k] = truth->tokens[at];
        }
}

static struct gyre *open_world(const struct world *w) {
    static const char *const plain[] = {"kernels=reference", NULL};
    struct gyre_options o = {.struct_size = sizeof o};
    struct gyre *g;
    struct gyre_error err;
    o.model = w->target, o.backend = rig_backend(), o.n_threads = 1, o.dtype = "float32", o.kv_cache_dtype = w->kv;
    o.max_model_len = 112, o.block_size = w->block_size ? w->block_size : 8, o.kv_cache_bytes = w->cache_bytes;
    o.swap_bytes = w->swap_bytes, o.max_batched_tokens = 64, o.device_options = w->is_plain ? plain : NULL;
    if (w->topk >= 0)
        o.n_guesses = w->topk == 0 ? 1 : 5, o.draft_model = w->draft, o.draft_method = w->method,
        o.guess_seqs = w->guess_seqs, o.draft_topk = w->topk, o.draft_rows = w->rows, o.always_guess = true;
    EXPECT_OK(gyre_open(&o, &g, &err), err);
    own = g->drafter;
    if (w->topk > 0)
        g->drafter.guess = guess, g->drafter.branch = branch;
    g->scheduler.always_swap = w->swap_bytes > 0;
    return g;
}

static void submit(struct gyre *g, int i, int round, const struct text *truth, struct text *t) {
    struct gyre_request q = gyre_request_default(g);
    struct gyre_error err;
    int32_t prompt[N_PROMPT];
    for (int k = 0; k < N_PROMPT; k++)
        prompt[k] = k < 17 ? 3 + 7 * k : 3 + 5 * (k % 6) + 11 * i; // all begin alike
    q.prompt = prompt, q.n_prompt = N_PROMPT - 3 * i, q.max_tokens = MOST_TOKENS - 5 * i, q.ignore_eos = true,
    q.user = t;
    q.temperature = i < 3 ? 0 : 0.8f, q.seed = test_seed() + (uint64_t)i, q.top_k = 0, q.top_p = 1, q.min_p = 0;
    q.repetition_penalty = i == 1 || i == 4 ? 1.2f : 1; // these get chains
    q.min_tokens = 9, q.logprobs = round == 0;
    *t = (struct text){.truth = truth, .is_checked = q.temperature == 0};
    memset(t->first_guess, -1, sizeof t->first_guess);
    EXPECT_OK(gyre_submit(g, &q, &t->id, &err), err);
}

/* What the draft itself guesses behind what is known. */
static void note_guesses(struct gyre *g, struct text *t) {
    const struct request *r = request_table_find(&g->requests, t->id);
    if (r && r->draft.n > 0 && t->is_checked)
        t->first_guess[r->draft.at - r->n_prompt] = r->draft.tokens[0];
}

struct seen {
    int64_t n_guessed, n_accepted, n_taken, n_same;
};

static struct seen all; // of the worlds of a test

static void expect_enough(void) {
    EXPECT(all.n_accepted > 150 && all.n_taken > 20 && all.n_same > 30);
    all = (struct seen){0};
}

static void take_events(struct gyre *g, const struct world *w) {
    struct gyre_event e[64];
    for (int i = 0, n = gyre_poll(g, e, 64); i < n; i++)
        if (e[i].kind == GYRE_TOKEN) {
            struct text *t = e[i].user;
            t->logprobs[t->n] = e[i].logprob;
            t->tokens[t->n++] = e[i].token;
            if (w->cancels && w->topk > 0 && t->id % 2 == 0 && t->n == 7)
                gyre_cancel(g, t->id);
        }
}

/* Each round asks the same again, so that prompts are found in the cache. */
static struct seen write_texts(const struct world *w, struct text (*truth)[N_TEXTS], struct text (*texts)[N_TEXTS]) {
    struct gyre *g = open_world(w);
    struct seen seen = {0};
    for (int round = 0; round < N_ROUNDS; round++) {
        for (int i = 0; i < N_TEXTS; i++)
            submit(g, i, round, truth ? &truth[round][i] : NULL, &texts[round][i]);
        while (gyre_busy(g)) {
            take_events(g, w);
            for (int i = 0; i < N_TEXTS; i++)
                note_guesses(g, &texts[round][i]);
            for (int i = 0; i < g->scheduler.n_running; i++)
                seen.n_taken += g->scheduler.running[i]->branches && g->scheduler.running[i]->branches->taken > 0;
            const char *wrong = scheduler_check(&g->scheduler);
            if (wrong)
                fail_msg("%s", wrong);
        }
    }
    seen.n_guessed = g->drafter.n_guessed, seen.n_accepted = g->drafter.n_accepted;
    gyre_close(g);
    return seen;
}

static void expect_same(const struct world *w, const struct text *a, const struct text *b) {
    EXPECT(b->n == a->n || (w->cancels && b->id % 2 == 0 && b->n >= 7));
    for (int i = 0; i < b->n; i++)
        if (a->tokens[i] != b->tokens[i] || (a->logprobs[i] != b->logprobs[i] && !isnan(a->logprobs[i])))
            fail_msg("%s, %s: token %d is %d with %.9g, without guesses %d with %.9g", w->target, w->draft, i,
                     b->tokens[i], (double)b->logprobs[i], a->tokens[i], (double)a->logprobs[i]);
}

static void compare(struct world w) {
    static struct text plain[N_ROUNDS][N_TEXTS], chained[N_ROUNDS][N_TEXTS], treed[N_ROUNDS][N_TEXTS];
    struct world without = w, chain = w;
    int n_same = 0;
    if (!rig_backend()->branches)
        skip();
    without.topk = -1, chain.topk = chain.rows = 0;
    write_texts(&without, NULL, plain);
    write_texts(&chain, NULL, chained);
    struct seen seen = write_texts(&w, plain, treed);
    for (int round = 0; round < N_ROUNDS; round++)
        for (int i = 0; i < N_TEXTS; i++) {
            const struct text *a = &chained[round][i], *b = &treed[round][i];
            expect_same(&w, &plain[round][i], b);
            for (int k = 0; k <= MOST_TOKENS; k++)
                if (a->first_guess[k] >= 0 && b->first_guess[k] >= 0) {
                    EXPECT_EQ(a->first_guess[k], b->first_guess[k]);
                    n_same++;
                }
        }
    print_message("%s, %s: %lld guesses, %lld right, %lld times in a branch; %d first ones as in chains\n", w.target,
                  w.draft, (long long)seen.n_guessed, (long long)seen.n_accepted, (long long)seen.n_taken, n_same);
    all.n_accepted += seen.n_accepted, all.n_taken += seen.n_taken, all.n_same += n_same;
}

/* Full, windowed and latent caches; penalties and sinks. */
static void draft_models_with_trees_change_no_token(void **state) {
    (void)state;
    static const char *const pairs[][2] = {{"tests/models/qwen3", "tests/models/llama"},
                                           {"tests/models/deepseek_v3", "tests/models/qwen3"},
                                           {"tests/models/gemma3", "tests/models/gemma2"},
                                           {"models/story", "models/story"}};
    for (size_t i = 0; i < (test_is_brief() ? 2 : ARRAY_LEN(pairs)); i++)
        compare((struct world){pairs[i][0], pairs[i][1], "draft_model", .cache_bytes = 32 << 20, .topk = 2 + below(4),
                               .rows = 4 + below(14), .block_size = 1 << below(5)});
    expect_enough();
}

static void heads_with_trees_change_no_token(void **state) {
    (void)state;
    static const char *const targets[] = {"tests/models/qwen3", "tests/models/gpt_oss"};
    for (size_t i = 0; i < (test_is_brief() ? 1 : ARRAY_LEN(targets)); i++) {
        char folder[RIG_PATH];
        rig_eagle3(i == 0 ? RIG_OWN_VOCAB : RIG_SPECFORGE, 128, 1024, folder);
        struct world w = {targets[i],           folder, "eagle3", .cache_bytes = 32 << 20, .topk = 2 + below(4),
                          .rows = 4 + below(14)};
        compare(w);
        w.cache_bytes = 1600 << 10, w.swap_bytes = 1 << 20, w.cancels = true, w.guess_seqs = 4;
        compare(w);
        w.is_plain = true, w.block_size = 4, w.kv = "int4";
        compare(w);
        rig_remove_draft(folder);
    }
    expect_enough();
}

static void what_cannot_branch_is_refused(void **state) {
    (void)state;
    static const struct {
        const char *model, *draft, *method, *word;
        int topk, rows;
        bool rejects;
    } cases[] = {
        {"tests/models/qwen3_5", "tests/models/qwen3", "draft_model", "recurrent", 2, 0, false},
        {"tests/models/qwen3", NULL, NULL, "no draft model", 2, 0, false},
        {"tests/models/qwen3", NULL, "suffix", "no draft model", 2, 0, false},
        {"tests/models/qwen3", "tests/models/llama", NULL, "rejection", 2, 0, true},
        {"tests/models/qwen3", "tests/models/llama", NULL, "is 9, it must", 9, 0, false},
        {"tests/models/qwen3", "tests/models/llama", NULL, "draft_rows (num_draft_tokens) is 33", 2, 33, false},
        {"tests/models/qwen3", "tests/models/llama", NULL, "draft_rows (num_draft_tokens) is 8", 1, 8, false},
    };
    if (!rig_backend()->branches)
        skip();
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct gyre_options o = {.struct_size = sizeof o, .model = cases[i].model, .backend = rig_backend()};
        struct gyre_error err;
        struct gyre *g = NULL;
        o.n_guesses = 4, o.draft_model = cases[i].draft, o.draft_method = cases[i].method, o.max_model_len = 64;
        o.draft_topk = cases[i].topk, o.draft_rows = cases[i].rows, o.draft_rejection = cases[i].rejects;
        EXPECT(gyre_open(&o, &g, &err) != 0 && !g);
        if (!strstr(err.text, cases[i].word))
            fail_msg("%s: \"%s\" does not say %s", cases[i].model, err.text, cases[i].word);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_scores_best_is_kept_and_is_a_tree),
        cmocka_unit_test(draft_models_with_trees_change_no_token),
        cmocka_unit_test(heads_with_trees_change_no_token),
        cmocka_unit_test(what_cannot_branch_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
