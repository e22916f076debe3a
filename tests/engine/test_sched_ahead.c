/* test_sched_ahead.c - a scheduler over a device that computes steps ahead (backend_ops.foreseen, tokens_ahead): blocks
 * that are given early, and newcomers who are held back. */
#include "check.h"

#include "sched/scheduler.h"

enum { BLOCK = 16 };

struct world {
    struct arena arena;
    struct kv_pool pool;
    struct scheduler s;
    struct sequence seqs[3];
    int n_added;
};

static struct world *open_world(int n_blocks, int n_ahead) {
    struct world *w = xcalloc(1, sizeof *w);
    const struct cache_group group = {.kind = CACHE_KV, .n_layers = 1};
    kv_pool_init(&w->pool,
                 &(struct kv_pool_options){
                     .groups = &group, .n_groups = 1, .block_size = BLOCK, .max_chunk = 64, .n_blocks = {n_blocks}});
    scheduler_init(&w->s, &w->pool, (struct step_limits){64, 4, 64, 0, .n_ahead = n_ahead});
    return w;
}

static void close_world(struct world *w) {
    scheduler_release(&w->s);
    kv_pool_release(&w->pool);
    arena_release(&w->arena);
    free(w);
}

static struct sequence *add(struct world *w, int n_tokens) {
    struct sequence *seq = &w->seqs[w->n_added];
    sequence_init(seq, &w->arena, 128, 1, BLOCK);
    for (int i = 0; i < n_tokens; i++)
        sequence_append(seq, i);
    seq->rank.order = w->n_added++;
    scheduler_add(&w->s, seq);
    return seq;
}

static void step(struct world *w) {
    EXPECT(scheduler_plan(&w->s));
    EXPECT(!scheduler_check(&w->s));
    struct sequence *done[3];
    int n = w->s.n_step;
    memcpy(done, w->s.step, (size_t)n * sizeof *done);
    scheduler_start(&w->s);
    scheduler_collect(&w->s, 0);
    for (int i = 0; i < n; i++)
        scheduler_append(&w->s, done[i], 7);
}

/* Two sequences with a token left in their blocks, and three ahead: a second block each, as long as two stay free. */
static void blocks_are_given_ahead_where_there_are_plenty(void **state) {
    (void)state;
    for (int n_blocks = 3; n_blocks < 8; n_blocks++) {
        struct world *w = open_world(n_blocks, 3);
        const struct sequence *first = add(w, BLOCK - 1), *second = add(w, BLOCK - 1);
        step(w);
        EXPECT(first->tables[0].end == 1 && second->tables[0].end == 1);
        step(w);
        EXPECT_EQ(first->tables[0].end, n_blocks >= 5 ? 2 : 1);
        EXPECT_EQ(second->tables[0].end, n_blocks >= 6 ? 2 : 1);
        close_world(w);
    }
}

/* Beside a sequence with a token left in its block, a prompt of seven blocks that comes in two steps: what its second
 * chunk needs, and a block for each, stays free. */
static void who_is_in_its_prompt_has_blocks_for_a_chunk(void **state) {
    (void)state;
    for (int n_blocks = 8; n_blocks < 14; n_blocks++) {
        struct world *w = open_world(n_blocks, 3);
        const struct sequence *decodes = add(w, BLOCK - 1), *prompt = add(w, 7 * BLOCK);
        step(w);
        EXPECT(decodes->tables[0].end == 1 && prompt->tables[0].end == 4);
        step(w);
        EXPECT_EQ(decodes->tables[0].end, n_blocks >= 12 ? 2 : 1);
        EXPECT(prompt->tables[0].end == 7 && w->s.n_preempted == 0);
        close_world(w);
    }
}

/* However important, as long as somebody runs. */
static void who_comes_waits_for_steps_that_are_foreseen(void **state) {
    (void)state;
    struct world *w = open_world(9, 0);
    struct sequence *runs = add(w, 9), *comes;
    step(w);
    comes = add(w, 9);
    comes->rank.priority = -1;
    for (int held = 1; held >= 0; held--) {
        w->s.holds_new = held;
        step(w);
        EXPECT_EQ(comes->n_computed, held ? 0 : 9);
        EXPECT_EQ(w->s.blocked, held ? BLOCKED_AHEAD : ADMITTED_ALL);
    }
    w->s.holds_new = true;
    scheduler_remove(&w->s, runs);
    scheduler_remove(&w->s, comes);
    comes = add(w, 9);
    step(w);
    EXPECT_EQ(comes->n_computed, 9);
    close_world(w);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(blocks_are_given_ahead_where_there_are_plenty),
        cmocka_unit_test(who_is_in_its_prompt_has_blocks_for_a_chunk),
        cmocka_unit_test(who_comes_waits_for_steps_that_are_foreseen),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
