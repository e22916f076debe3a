/* scheduler_branches.c - branches get what a step that is planned has left; see branches.h. */
#include "sched/branches.h"
#include "sched/scheduler.h"

/* Whether the row before its first one is in the step, and there is room for its own. */
static bool takes_branch(struct scheduler *s, struct sequence *seq, const struct branch *b, int number) {
    const struct branch *parent = b->parent > 0 ? &seq->branches->at[b->parent - 1] : NULL;
    int32_t end = parent ? parent->first + parent->n : seq->n_computed + seq->n_scheduled;
    bool fits = s->n_step_branches < s->limits.max_branches && s->n_step_tokens + b->n <= s->limits.max_tokens &&
                s->n_step_rows + b->n <= s->limits.max_rows;
    return fits && b->first <= end && kv_pool_hold_branch(s->pool, seq, number, s->n_running);
}

/* Those that are left out take their own branches with them; numbers close up. */
void scheduler_plan_branches(struct scheduler *s, struct sequence *seq, bool in_step) {
    struct branches *all = seq->branches;
    int number[MOST_BRANCHES + 1] = {0}, n = in_step ? all->n : 0;
    all->n = all->taken = 0;
    for (int i = 1; i <= n; i++) {
        struct branch *b = &all->at[all->n];
        *b = all->at[i - 1];
        number[i] = -1;
        b->parent = number[b->parent];
        if (b->parent < 0 || !takes_branch(s, seq, b, all->n + 1))
            continue;
        number[i] = ++all->n;
        s->n_step_branches++;
        s->n_step_tokens += b->n;
        s->n_step_rows += b->n;
        s->step_work.tokens += b->n;
        s->step_work.pairs += (int64_t)b->n * b->first;
    }
}

void scheduler_settle(struct scheduler *s, struct sequence *seq) { kv_pool_drop_branches(s->pool, seq); }
