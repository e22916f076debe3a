/* cpu_replay.c - recurrent states that can go back (load_options.n_back): what the last tokens gave is kept beside a
 * state that does not have it yet.
 *
 *     a slot   [ state of the tokens before base | marks | rows of tokens base, base + 1 ... end ]
 *
 * A step may begin anywhere from base to end. It computes again from base on, by the kept rows, then its own tokens.
 * What is sure (batch_plan.n_sure) moves into the state; of the rest the rows are kept, and the state that they give is
 * thrown away. The recurrence does not know where a step begins, so what is computed again is the same to the bit. */
#include "backend/cpu/cpu.h"

#include <string.h>

static const struct cache_group *group_of(const struct call *c, int cache) {
    return &c->program->groups[c->program->caches[cache].group];
}

struct replay replay_of(const struct call *c, int cache, int seq, int64_t width, bool is_conv) {
    const struct cache_group *g = group_of(c, cache);
    const struct batch_plan *plan = c->plan;
    int n_back = c->loaded->n_back;
    struct replay r = {.row = plan->query_start[seq], .width = width};
    r.first = r.base = plan->position[r.row];
    r.end = r.kept = r.first + (plan->query_start[seq + 1] - plan->query_start[seq]);
    if (n_back == 0)
        return r;
    float *extra = conv_state(c, cache, seq) + g->state_floats;
    r.base_mark = (int32_t *)(void *)extra + !is_conv;
    r.rows = is_conv ? extra + STATE_MARKS : extra + STATE_MARKS + (int64_t)n_back * g->conv_width;
    r.base = r.first == 0 ? 0 : *r.base_mark;
    r.kept = MAX(MIN(plan->n_sure[seq], r.end), r.base);
    BUG_IF(r.base > r.first || r.first - r.base > n_back || r.end - r.kept > n_back);
    return r;
}

void replay_keep(const struct replay *r, struct mat in, int64_t begin, int64_t end) {
    for (int32_t p = r->kept; p < r->end; p++) // towards older places
        memmove(r->rows + (p - r->kept) * r->width + begin, replay_row(r, in, p) + begin,
                (size_t)(end - begin) * sizeof(float));
}

struct delta_inputs delta_inputs_of(const struct call *c, const struct replay *r, int32_t position) {
    int64_t t = r->row + position - r->first;
    if (position >= r->first)
        return (struct delta_inputs){mat_row(c->in[0], t), mat_row(c->in[1], t), mat_row(c->in[2], t)};
    const float *row = r->rows + (position - r->base) * r->width;
    return (struct delta_inputs){row, row + c->in[0].width, row + c->in[0].width + c->in[1].width};
}

static void keep_token(const struct call *c, const struct replay *r, int32_t position) {
    float *to = r->rows + (position - r->kept) * r->width;
    struct delta_inputs from = delta_inputs_of(c, r, position);
    memmove(to, from.qkv, (size_t)c->in[0].width * sizeof *to);
    memmove(to + c->in[0].width, from.b, (size_t)c->in[1].width * sizeof *to);
    memmove(to + c->in[0].width + c->in[1].width, from.a, (size_t)c->in[2].width * sizeof *to);
}

void delta_keep(const struct call *c) {
    int cache = c->op->args.delta_rule.cache;
    if (c->loaded->n_back == 0)
        return;
    call_barrier(c); // all heads have read what was kept
    for (int seq = c->worker; seq < c->plan->n_seqs; seq += c->n_workers) {
        struct replay r = replay_of(c, cache, seq, delta_width(c), false);
        for (int32_t p = r.kept; p < r.end; p++)
            keep_token(c, &r, p);
    }
    replay_end(c, cache, delta_width(c), false);
}

void replay_end(const struct call *c, int cache, int64_t width, bool is_conv) {
    if (c->loaded->n_back == 0)
        return;
    call_barrier(c); // all have read the marks
    for (int seq = 0; c->worker == 0 && seq < c->plan->n_seqs; seq++) {
        struct replay r = replay_of(c, cache, seq, width, is_conv);
        *r.base_mark = r.kept;
    }
}
