/* plan_block.c - see plan_block.h. */
#include "dist/plan_block.h"

#include <string.h>

struct head {
    int32_t n_tokens, n_seqs, n_rows, n_copies;
};

/* Bytes that a plan is written to, or read from. */
struct moving {
    struct buf *out; // NULL: it is read
    struct str left;
    bool is_short; // of bytes, to read
};

static void move(struct moving *m, void *array, int64_t n, size_t size) {
    size_t bytes = (size_t)n * size;
    if (m->out) {
        buf_append(m->out, array, bytes);
        return;
    }
    m->is_short |= bytes > m->left.len;
    if (m->is_short)
        return;
    if (bytes)
        memcpy(array, m->left.ptr, bytes);
    m->left = (struct str){m->left.ptr + bytes, m->left.len - bytes};
}

/* Of as many tokens, sequences and copies as the plan says. Rows stay where tokens are drawn. */
static void move_arrays(const struct batch_plan *plan, int n_groups, int64_t states_width, struct moving *m) {
    int64_t T = plan->n_tokens, S = plan->n_seqs;
    move(m, plan->token_id, T, sizeof(int32_t));
    move(m, plan->position, T, sizeof(int32_t));
    move(m, plan->query_start, S + 1, sizeof(int32_t));
    move(m, plan->seq_len, S, sizeof(int32_t));
    move(m, plan->n_known, S, sizeof(int32_t));
    move(m, plan->n_sure, S, sizeof(int32_t));
    move(m, plan->state_slot, S, sizeof(int32_t));
    move(m, plan->adapter, S, sizeof(int32_t));
    for (int g = 0; g < n_groups; g++)
        move(m, plan->block_table[g], S * plan->table_width[g], sizeof(int32_t));
    move(m, plan->copies, plan->n_copies, sizeof *plan->copies);
    if (states_width)
        move(m, plan->states, T * states_width, sizeof(float));
}

void plan_block_put(const struct batch_plan *plan, int n_groups, int64_t states_width, struct buf *out) {
    struct head h = {plan->n_tokens, plan->n_seqs, plan->n_rows, plan->n_copies};
    struct moving m = {.out = out};
    move(&m, &h, 1, sizeof h);
    move_arrays(plan, n_groups, states_width, &m);
}

size_t plan_block_most(struct bucket b, int n_groups, const int *table_width, int64_t states_width) {
    size_t a_token = 2 * sizeof(int32_t) + (size_t)states_width * sizeof(float), a_seq = 6 * sizeof(int32_t);
    for (int g = 0; g < n_groups; g++)
        a_seq += (size_t)table_width[g] * sizeof(int32_t);
    return sizeof(struct head) + (size_t)b.max_tokens * a_token + ((size_t)b.max_seqs + 1) * a_seq +
           (size_t)b.max_copies * sizeof(struct cache_copy);
}

// ---- whether it names what is there -----------------------------------------------------------------------------

static bool in(int64_t x, int64_t first, int64_t end) { return x >= first && x < end; }

static int64_t n_blocks_of(const struct program *p, const struct cache_config *c, int g) {
    return p->groups[g].kind == CACHE_STATE ? 0 : (int64_t)c->n_blocks[g] + c->n_host_blocks[g];
}

static bool tokens_are_good(const struct batch_plan *plan, const struct program *p, const struct cache_config *c) {
    int64_t most = INT32_MAX;
    for (int g = 0; g < p->n_groups; g++)
        if (p->groups[g].kind != CACHE_STATE)
            most = MIN(most, (int64_t)plan->table_width[g] * c->block_size);
    for (int t = 0; t < plan->n_tokens; t++)
        if (!in(plan->token_id[t], 0, p->vocab_size) || !in(plan->position[t], 0, most))
            return false;
    return true;
}

/* Blocks that a sequence's rows may look into are there; others may be -1, as those are that were given back. */
static bool table_is_good(const struct batch_plan *plan, const struct program *p, const struct cache_config *c, int s,
                          int g) {
    int64_t window = p->groups[g].window, width = plan->table_width[g];
    int64_t at = plan->position[plan->query_start[s]], last = (plan->seq_len[s] - 1) / c->block_size;
    int64_t first = window > 0 ? MAX(at - window + 1, 0) / c->block_size : 0;
    if (last >= width)
        return false;
    for (int64_t i = 0; i < width; i++)
        if (!in(plan->block_table[g][s * width + i], i >= first && i <= last ? 0 : -1, n_blocks_of(p, c, g)))
            return false;
    return true;
}

static bool tables_are_good(const struct batch_plan *plan, const struct program *p, const struct cache_config *c,
                            int s) {
    for (int g = 0; g < p->n_groups; g++)
        if (p->groups[g].kind != CACHE_STATE && !table_is_good(plan, p, c, s, g))
            return false;
    return true;
}

static bool has_states(const struct program *p) {
    bool has = false;
    for (int g = 0; g < p->n_groups; g++)
        has |= p->groups[g].kind == CACHE_STATE;
    return has;
}

static bool sequences_are_good(const struct batch_plan *plan, const struct program *p, const struct cache_config *c) {
    if (plan->query_start[0] != 0 || plan->query_start[plan->n_seqs] != plan->n_tokens)
        return false;
    for (int s = 0; s < plan->n_seqs; s++) {
        int first = plan->query_start[s], end = plan->query_start[s + 1];
        if (first >= end || end > plan->n_tokens || plan->position[first] < 0 ||
            plan->seq_len[s] != plan->position[end - 1] + 1LL || plan->adapter[s] != 0 || plan->n_known[s] < 0 ||
            plan->n_sure[s] < 0 || !tables_are_good(plan, p, c, s) ||
            (has_states(p) && !in(plan->state_slot[s], 0, c->n_states)))
            return false;
        for (int t = first + 1; t < end; t++)
            if (plan->position[t] != plan->position[t - 1] + 1LL)
                return false;
    }
    return true;
}

static bool copies_are_good(const struct batch_plan *plan, const struct program *p, const struct cache_config *c) {
    for (int i = 0; i < plan->n_copies; i++) {
        struct cache_copy k = plan->copies[i];
        int64_t n = k.group == STATE_SLOTS        ? (int64_t)c->n_states + c->n_host_states
                    : in(k.group, 0, p->n_groups) ? n_blocks_of(p, c, k.group)
                                                  : 0;
        if (!in(k.from, 0, n) || !in(k.to, 0, n))
            return false;
    }
    return true;
}

enum status plan_block_get(struct batch_plan *plan, struct bucket b, const struct program *p,
                           const struct cache_config *cache, int64_t states_width, struct str bytes,
                           struct error *err) {
    struct moving m = {.left = bytes};
    struct head h = {0};
    move(&m, &h, 1, sizeof h);
    if (m.is_short || !in(h.n_tokens, 1, b.max_tokens + 1LL) || !in(h.n_seqs, 1, b.max_seqs + 1LL) || h.n_rows != 0 ||
        !in(h.n_copies, 0, b.max_copies + 1LL))
        return fail(err, ERR_FORMAT, "a step's plan is larger than steps may be");
    plan->n_tokens = h.n_tokens, plan->n_seqs = h.n_seqs, plan->n_rows = 0, plan->n_copies = h.n_copies;
    move_arrays(plan, p->n_groups, states_width, &m);
    if (m.is_short || m.left.len > 0)
        return fail(err, ERR_FORMAT, "a step's plan has another length than it says");
    if (!sequences_are_good(plan, p, cache) || !tokens_are_good(plan, p, cache) || !copies_are_good(plan, p, cache))
        return fail(err, ERR_FORMAT, "a step's plan names tokens, blocks or slots that there are not");
    return OK;
}
