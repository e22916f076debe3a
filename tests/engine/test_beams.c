/* test_beams.c - the arithmetic of beam search against enumerating every sequence, on random models of four tokens.
 * What transformers makes of real ones is tests/cli/api/test_beams.py's. */
#include "check.h"

#include "base/random.h"
#include "engine/beams.h"

#include <math.h>

enum { VOCAB = 4, STOP = 3, MOST = 5, LEAVES = 1024 }; // LEAVES = VOCAB ^ MOST

static uint64_t counter;
static double uniform(void) { return philox_uniform(test_seed(), counter++, 5); }

/* Log-probabilities after a sequence: a hash of it, so that a model needs no memory. */
static void model(uint64_t seed, const int32_t *tokens, int n, float logprobs[VOCAB]) {
    uint64_t h = seed;
    double sum = 0;
    for (int i = 0; i < n; i++)
        h = (h ^ (uint64_t)(tokens[i] + 1)) * 0x9E3779B97F4A7C15u;
    for (int t = 0; t < VOCAB; t++)
        sum += exp(4 * philox_uniform(h, (uint64_t)t, 1));
    for (int t = 0; t < VOCAB; t++)
        logprobs[t] = (float)(4 * philox_uniform(h, (uint64_t)t, 1) - log(sum));
}

/* All of a beam's continuations, best first. */
static void choices(uint64_t seed, const struct beam *beam, int n, int32_t *tokens, float *out) {
    float logprobs[VOCAB];
    model(seed, beam->tokens, beam->n, logprobs);
    for (int k = 0; k < n; k++) {
        int best = -1;
        for (int t = 0; t < VOCAB; t++)
            if (!isnan(logprobs[t]) && (best < 0 || logprobs[t] > logprobs[best]))
                best = t;
        tokens[k] = best;
        out[k] = best < 0 ? -INFINITY : logprobs[best];
        if (best < 0)
            tokens[k] = 0;
        else
            logprobs[best] = NAN;
    }
}

static void search(uint64_t seed, struct beams *b, const struct beams_options *o, struct arena *arena) {
    beams_init(b, o, arena);
    int32_t *tokens = arena_calloc(arena, (size_t)(o->width * b->n_choices), sizeof *tokens);
    float *logprobs = arena_calloc(arena, (size_t)(o->width * b->n_choices), sizeof *logprobs);
    while (!b->done) {
        for (int i = 0; i < b->n_running; i++)
            choices(seed, &b->running[i], b->n_choices, tokens + i * b->n_choices, logprobs + i * b->n_choices);
        beams_advance(b, tokens, logprobs);
    }
}

struct answer_list {
    double scores[2 * LEAVES];
    int n;
};

static void enumerate(uint64_t seed, int32_t *tokens, int n, double sum, double penalty, struct answer_list *out) {
    float logprobs[VOCAB];
    model(seed, tokens, n, logprobs);
    for (int t = 0; t < VOCAB; t++) {
        double score = sum + (double)logprobs[t];
        tokens[n] = t;
        if (t == STOP || n + 1 == MOST)
            out->scores[out->n++] = score / pow(n + 1, penalty);
        else
            enumerate(seed, tokens, n + 1, score, penalty, out);
    }
}

static int descending(const void *a, const void *b) { return *(const double *)a < *(const double *)b ? 1 : -1; }

static const int32_t stops[] = {STOP};

static void with_room_for_all_it_finds_the_best_of_all(void **state) {
    (void)state;
    for (int trial = 0; trial < 200; trial++) {
        uint64_t seed = test_seed() + (uint64_t)trial;
        double penalty = 3 * uniform() - 1;
        struct arena arena = {0};
        struct beams b;
        // At most VOCAB - 1 continuations of each beam go on, so 3 ^ 4 beams miss nothing; choices past the vocabulary
        // are worth nothing.
        search(seed, &b,
               &(struct beams_options){
                   .width = 81, .max_tokens = MOST, .length_penalty = penalty, .stopping = BEAMS_SURE, stops, 1},
               &arena);
        struct answer_list all = {.n = 0};
        int32_t tokens[MOST];
        enumerate(seed, tokens, 0, 0, penalty, &all);
        qsort(all.scores, (size_t)all.n, sizeof *all.scores, descending);
        for (int i = 0; i < 20; i++)
            if (fabs(b.answers[i].score - all.scores[i]) > 1e-9)
                fail_msg("trial %d, penalty %g: answer %d has %g, of all sequences %g", trial, penalty, i,
                         b.answers[i].score, all.scores[i]);
        arena_release(&arena);
    }
}

static void answers_are_what_they_say(void **state) {
    (void)state;
    for (int trial = 0; trial < 500; trial++) {
        uint64_t seed = test_seed() + (uint64_t)trial;
        struct beams_options o = {.width = 1 + (int)(3 * uniform()),
                                  .max_tokens = 1 + (int)(200 * uniform() * uniform()),
                                  .length_penalty = 2 * uniform()};
        o.stopping = (enum beam_stopping)(3 * uniform());
        o.stops = stops, o.n_stops = uniform() < 0.8;
        struct arena arena = {0};
        struct beams b;
        search(seed, &b, &o, &arena);
        EXPECT_EQ(b.n_answers, o.width);
        for (int i = 0; i < b.n_answers; i++) {
            const struct beam *a = &b.answers[i];
            double sum = 0;
            EXPECT(a->n >= 1 && a->n <= o.max_tokens);
            for (int t = 0; t < a->n; t++) {
                float logprobs[VOCAB];
                model(seed, a->tokens, t, logprobs);
                EXPECT(a->logprobs[t] == logprobs[a->tokens[t]]);
                EXPECT(t == a->n - 1 || !o.n_stops || a->tokens[t] != STOP);
                sum += (double)logprobs[a->tokens[t]];
            }
            EXPECT(fabs(a->score - sum / pow(a->n, o.length_penalty)) < 1e-9 * fmax(1, fabs(a->score)));
            EXPECT(i == 0 || a->score <= b.answers[i - 1].score);
            EXPECT(a->n == o.max_tokens || a->tokens[a->n - 1] == STOP);
        }
        arena_release(&arena);
    }
}

static void one_beam_takes_the_best_token_each_time(void **state) {
    (void)state;
    struct arena arena = {0};
    struct beams b;
    search(test_seed(), &b, &(struct beams_options){.width = 1, .max_tokens = 70, .length_penalty = 1}, &arena);
    EXPECT_EQ(b.answers[0].n, 70); // grown past the first 64
    for (int t = 0; t < 70; t++) {
        float logprobs[VOCAB];
        model(test_seed(), b.answers[0].tokens, t, logprobs);
        for (int v = 0; v < VOCAB; v++)
            EXPECT(logprobs[v] <= logprobs[b.answers[0].tokens[t]]);
    }
    arena_release(&arena);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(with_room_for_all_it_finds_the_best_of_all),
        cmocka_unit_test(answers_are_what_they_say),
        cmocka_unit_test(one_beam_takes_the_best_token_each_time),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
