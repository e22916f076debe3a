/* test_plan_block.c - a step's plan as bytes for another process: it comes back as it was, and bytes that are changed
 * are refused, or name only what there is. */
#include "check.h"

#include "backend/toy/toy.h"
#include "base/random.h"
#include "dist/plan_block.h"

#include <stdlib.h>

enum { SEQS = 3, TOKENS = 9, WIDTH = 4, TABLE = 5, BLOCK = 4 };

struct world {
    struct program *program;
    struct cache_config cache;
    struct bucket bucket;
    struct batch_plan plan, got;
};

static void world_init(struct world *w) {
    *w = (struct world){.bucket = {.max_tokens = 16, .max_seqs = 4, .max_rows = 4, .max_copies = 8}};
    w->program = toy_program(&(struct toy_shape){.vocab_size = 100, .full = true, .window = 8, .recurrent = true});
    w->cache = (struct cache_config){.block_size = BLOCK, .n_states = 6};
    for (int g = 0; g < 2; g++)
        w->cache.n_blocks[g] = 20, w->cache.table_width[g] = TABLE;
    batch_plan_init(&w->plan, w->bucket, w->program->n_groups, w->cache.table_width);
    batch_plan_init(&w->got, w->bucket, w->program->n_groups, w->cache.table_width);
    batch_plan_add_states(&w->plan, w->bucket, WIDTH);
    batch_plan_add_states(&w->got, w->bucket, WIDTH);
    struct batch_plan *p = &w->plan;
    p->n_tokens = TOKENS, p->n_seqs = SEQS, p->n_copies = 2;
    for (int s = 0; s < SEQS; s++) {
        for (int k = 0; k < TOKENS / SEQS; k++) {
            int t = p->query_start[s] + k;
            p->token_id[t] = 10 * s + k, p->position[t] = 5 * s + k;
        }
        p->query_start[s + 1] = p->query_start[s] + TOKENS / SEQS;
        p->seq_len[s] = p->n_known[s] = 5 * s + TOKENS / SEQS;
        p->state_slot[s] = s + 1;
        for (int i = 0; i < TABLE; i++)
            for (int g = 0; g < 2; g++)
                p->block_table[g][s * TABLE + i] = i < 4 ? s * 4 + i : -1;
    }
    p->copies[0] = (struct cache_copy){STATE_SLOTS, 1, 5};
    p->copies[1] = (struct cache_copy){1, 3, 19};
    for (int i = 0; i < TOKENS * WIDTH; i++)
        p->states[i] = (float)i;
}

static void world_release(struct world *w) {
    batch_plan_release(&w->plan);
    batch_plan_release(&w->got);
    program_free(w->program);
}

static enum status get(struct world *w, struct str bytes) {
    struct error err;
    return plan_block_get(&w->got, w->bucket, w->program, &w->cache, WIDTH, bytes, &err);
}

static void it_comes_back_as_it_was(void **state) {
    (void)state;
    struct world w;
    struct buf a = {0}, b = {0};
    world_init(&w);
    plan_block_put(&w.plan, w.program->n_groups, WIDTH, &a);
    EXPECT(a.len <= plan_block_most(w.bucket, w.program->n_groups, w.cache.table_width, WIDTH));
    EXPECT(get(&w, buf_view(&a)) == OK);
    plan_block_put(&w.got, w.program->n_groups, WIDTH, &b);
    EXPECT(a.len == b.len && memcmp(a.ptr, b.ptr, a.len) == 0);
    EXPECT(w.got.from_row[3] == -1); // nothing is taken from an earlier step
    buf_release(&a), buf_release(&b);
    world_release(&w);
}

static bool is_within(const struct world *w) {
    const struct batch_plan *p = &w->got;
    bool good = p->n_tokens <= w->bucket.max_tokens && p->n_seqs <= w->bucket.max_seqs && p->query_start[0] == 0;
    for (int t = 0; t < p->n_tokens; t++)
        good = good && (uint32_t)p->token_id[t] < 100 && (uint32_t)p->position[t] < TABLE * BLOCK;
    for (int s = 0; s < p->n_seqs; s++) {
        good = good && p->query_start[s] < p->query_start[s + 1] && (uint32_t)p->state_slot[s] < 6;
        for (int i = 0; i < 2 * TABLE; i++)
            good = good && p->block_table[i / TABLE][s * TABLE + i % TABLE] < 20;
    }
    for (int i = 0; i < p->n_copies; i++)
        good = good && p->copies[i].from >= 0 && p->copies[i].to >= 0 && p->copies[i].to < 20;
    return good;
}

static void changed_bytes_are_refused_or_harmless(void **state) {
    (void)state;
    struct world w;
    struct buf a = {0};
    int n_refused = 0;
    world_init(&w);
    plan_block_put(&w.plan, w.program->n_groups, WIDTH, &a);
    for (size_t n = 0; n < a.len; n++)
        EXPECT(get(&w, (struct str){a.ptr, n}) == ERR_FORMAT);
    for (uint64_t i = 0; i < 20000; i++) {
        size_t at = (size_t)(philox_uniform(test_seed(), i, 1) * (double)a.len);
        char was = a.ptr[at];
        a.ptr[at] = (char)(philox_uniform(test_seed(), i, 2) * 256);
        enum status st = get(&w, buf_view(&a));
        EXPECT(st == ERR_FORMAT || (st == OK && is_within(&w)));
        n_refused += st != OK;
        a.ptr[at] = was;
    }
    EXPECT(n_refused > 2000);
    buf_release(&a);
    world_release(&w);
}

static void refuses(struct world *w, int32_t *field, int32_t value) {
    struct buf bytes = {0};
    int32_t was = *field;
    *field = value;
    plan_block_put(&w->plan, w->program->n_groups, WIDTH, &bytes);
    EXPECT(get(w, buf_view(&bytes)) == ERR_FORMAT);
    *field = was;
    buf_release(&bytes);
}

static void what_no_sequence_has_is_refused(void **state) {
    (void)state;
    struct world w;
    struct buf bytes = {0};
    world_init(&w);
    struct batch_plan *p = &w.plan;
    int last = SEQS - 1; // at positions 10, 11, 12
    for (int i = 0; i < 4; i++)
        refuses(&w, &p->block_table[0][last * TABLE + i], -1);
    for (int i = 0; i < 4; i++) // its window of 8 begins at 3, in block 0
        refuses(&w, &p->block_table[1][last * TABLE + i], -1);
    refuses(&w, &p->adapter[1], 1);
    refuses(&w, &p->n_known[1], -1);
    refuses(&w, &p->n_sure[1], -1);
    for (int k = 0; k < TOKENS / SEQS; k++) // a block further, so that the window leaves block 0
        p->position[p->query_start[last] + k] += 4;
    p->seq_len[last] += 4;
    for (int g = 0; g < 2; g++)
        p->block_table[g][last * TABLE + 4] = 12;
    refuses(&w, &p->block_table[0][last * TABLE], -1);
    p->block_table[1][last * TABLE] = -1;
    plan_block_put(p, w.program->n_groups, WIDTH, &bytes);
    EXPECT(get(&w, buf_view(&bytes)) == OK);
    buf_release(&bytes);
    world_release(&w);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(it_comes_back_as_it_was),
                                       cmocka_unit_test(changed_bytes_are_refused_or_harmless),
                                       cmocka_unit_test(what_no_sequence_has_is_refused)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
