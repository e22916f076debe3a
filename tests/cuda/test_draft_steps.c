/* test_draft_steps.c - steps in which sequences have up to eight tokens, each with a row, as drafts are checked, or the
 * last of a sequence alone, as what a grammar forces: they are captured graphs, and compute what the same steps do op
 * by op, bit for bit.
 *
 *     build/cuda/test_draft_steps     wants a GPU */
#include "backend/cuda/attention/lists.h"
#include "backend/cuda/cuda.h"
#include "backend/cuda/step/launch.h"
#include "backend/cuda/step/padded.h"
#include "check.h"
#include "on_device.h"

#include "base/random.h"
#include "model/model.h"

#include <stdlib.h>

extern const struct backend_ops backend_cuda;

enum { SEQS = 5, ROWS = SEQS * ATTENTION_FEW_TOKENS, BLOCK = 16, BLOCKS = 8, N_STEPS = 24 };

static uint64_t counter;
static int below(int n) { return (int)(philox_uniform(test_seed(), counter++, 91) * n); }

struct rig {
    struct on_device at;
    struct batch_plan plan;
    struct sample_params sample[ROWS];
    struct sample_result got[ROWS];
};

static void rig_open(struct rig *r, const struct program *p, bool eager) {
    struct bucket bucket = {ROWS, SEQS, ROWS, 0};
    struct cache_config config = {.block_size = BLOCK, .n_states = SEQS};
    for (int g = 0; g < p->n_groups; g++)
        config.n_blocks[g] = SEQS * BLOCKS, config.table_width[g] = BLOCKS;
    *r = (struct rig){.at = {.ops = NULL}};
    on_device_compile(&backend_cuda, (struct how){.eager = eager, .load.dtype = getenv("GYRE_TEST_DTYPE")}, p, &config,
                      bucket, &r->at);
    batch_plan_init(&r->plan, bucket, p->n_groups, config.table_width);
    for (int g = 0; g < p->n_groups; g++)
        for (int i = 0; i < SEQS * BLOCKS; i++)
            r->plan.block_table[g][i] = i;
}

static void rig_close(struct rig *r) {
    on_device_close(&r->at);
    batch_plan_release(&r->plan);
}

/* Sequence s has n[s] tokens more; done[s] of it are in the cache. */
static void fill(struct rig *r, const int *n, const int *done, const int32_t *tokens, bool last_alone) {
    struct batch_plan *p = &r->plan;
    int t = 0;
    p->n_rows = 0;
    for (int s = 0; s < SEQS; s++) {
        p->query_start[s] = t;
        p->state_slot[s] = s;
        p->seq_len[s] = p->n_known[s] = done[s] + n[s];
        for (int i = 0; i < n[s]; i++, t++) {
            p->token_id[t] = tokens[t];
            p->from_row[t] = -1;
            p->position[t] = done[s] + i;
            if (last_alone && i < n[s] - 1)
                continue;
            r->sample[p->n_rows] = sample_params_default();
            r->sample[p->n_rows].want_logits = true;
            p->out_row[p->n_rows++] = t;
        }
    }
    p->query_start[SEQS] = p->n_tokens = t;
    p->n_seqs = SEQS;
}

static const float *run(struct rig *r, int row) {
    struct error err;
    const float *logits;
    if (row == 0) {
        EXPECT_OK(backend_cuda.run(r->at.exe, &r->plan, r->sample, &err), err);
        EXPECT_OK(backend_cuda.collect(r->at.exe, r->got, &err), err);
    }
    EXPECT_OK(backend_cuda.logits(r->at.exe, row, &logits, &err), err);
    return logits;
}

/* One shape comes again and again, between others. */
static void draw_step(int step, int *n, int32_t *tokens, int vocab) {
    static const int again[SEQS] = {3, 8, 1, 1, 5};
    for (int s = 0; s < SEQS; s++)
        n[s] = step % 3 == 0 ? again[s] : 1 + below(ATTENTION_FEW_TOKENS);
    for (int t = 0; t < ROWS; t++)
        tokens[t] = below(vocab);
}

static void steps_of_few_tokens_are_captured_and_compute_the_same(void **state) {
    (void)state;
    static const char *const models[] = {"tests/models/llama", "tests/models/gemma3", "tests/models/qwen3_5"};
    for (size_t m = 0; m < ARRAY_LEN(models); m++) {
        struct model *model;
        struct error err;
        EXPECT_OK(model_open(models[m], &(struct model_options){0}, &model, &err), err);
        static struct rig eager, captured;
        rig_open(&eager, model->program, true);
        rig_open(&captured, model->program, false);
        int done[SEQS] = {0}, n[SEQS], width = model->program->vocab_size;
        for (int step = 0; step < N_STEPS; step++) {
            int32_t tokens[ROWS];
            draw_step(step, n, tokens, width);
            for (int s = 0; s < SEQS; s++)
                if (done[s] + n[s] > BLOCK * BLOCKS)
                    done[s] = 0;
            bool last_alone = step % 2 == 1;
            fill(&eager, n, done, tokens, last_alone);
            fill(&captured, n, done, tokens, last_alone);
            EXPECT(graphs_have(captured.at.exe, &captured.plan) && !graphs_have(eager.at.exe, &eager.plan));
            for (int r = 0; r < eager.plan.n_rows; r++)
                if (memcmp(run(&eager, r), run(&captured, r), (size_t)width * sizeof(float)) != 0)
                    fail_msg("%s: step %d of %d tokens: row %d differs", models[m], step, eager.plan.n_tokens, r);
            const struct step_graphs *g = &captured.at.exe->graphs[last_alone ? STEP_FEW : STEP_DRAFTS];
            EXPECT(eager.plan.n_tokens == SEQS || g->of[STEP_WHOLE][padded_index(eager.plan.n_tokens)]);
            for (int s = 0; s < SEQS; s++)
                done[s] += n[s];
        }
        rig_close(&eager);
        rig_close(&captured);
        model_free(model);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(steps_of_few_tokens_are_captured_and_compute_the_same)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
