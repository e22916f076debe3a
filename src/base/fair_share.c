/* fair_share.c - see fair_share.h. */
#include "base/fair_share.h"

#include "base/status.h"

#include <stdlib.h>

void fair_share_init(struct fair_share *f, int n_tenants) {
    BUG_IF(n_tenants < 1);
    *f = (struct fair_share){
        .finish = xcalloc((size_t)n_tenants, sizeof *f->finish), .n_tenants = n_tenants, .mean_answer = 64};
}

void fair_share_release(struct fair_share *f) {
    free(f->finish);
    *f = (struct fair_share){0};
}

int64_t fair_share_cost(const struct fair_share *f, int64_t n_prompt, int64_t max_tokens) {
    return n_prompt + MIN(max_tokens, (int64_t)f->mean_answer) + 1;
}

static void move_finish(struct fair_share *f, int tenant, int64_t finish) {
    f->finish[tenant] = finish;
    f->latest = MAX(f->latest, finish);
}

int64_t fair_share_arrive(struct fair_share *f, int tenant, int64_t cost, bool idle) {
    if (idle)
        f->now = f->latest; // nobody owes anybody anything
    int64_t tag = MAX(f->now, f->finish[tenant]);
    move_finish(f, tenant, tag + cost);
    return tag;
}

void fair_share_start(struct fair_share *f, int64_t tag) { f->now = MAX(f->now, tag); }

void fair_share_settle(struct fair_share *f, int tenant, int64_t cost, int64_t n_prompt, int64_t n_answer) {
    f->mean_answer += ((double)n_answer - f->mean_answer) / 32;
    move_finish(f, tenant, f->finish[tenant] + n_prompt + n_answer + 1 - cost);
}
