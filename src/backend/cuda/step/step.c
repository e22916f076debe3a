/* step.c - a step: the plan goes to the device, the ops go on the stream, an event says when its results are in the
 * host's memory.
 *
 * Nothing here waits for the device but step_collect, for the oldest step in flight. */
#include "backend/cuda/step/step.h"
#include "backend/cuda/cache/block_run.h"
#include "backend/cuda/cuda.h"
#include "backend/cuda/device/device.h"
#include "backend/cuda/head/head.h"
#include "backend/cuda/ranks/join.h"
#include "backend/cuda/step/launch.h"
#include "backend/cuda/step/node.h"
#include "backend/cuda/step/plan.h"
#include "backend/cuda/value.h"

#include <string.h>

// ---- the cache --------------------------------------------------------------------------------------------------

static enum status copy_blocks(struct executable *exe, int group, int32_t from, int32_t to, struct error *err) {
    struct loaded *loaded = exe->loaded;
    int64_t bytes = loaded->caches[group].block_elements * element_bytes(loaded->caches[group].element);
    return block_run_copy(loaded, group, block_run_of(loaded, group, from), block_run_of(loaded, group, to),
                          (size_t)bytes, err);
}

static enum status copy_cache(struct executable *exe, const struct batch_plan *p, struct error *err) {
    for (int i = 0; i < p->n_copies; i++) {
        const struct cache_copy *c = &p->copies[i];
        if (c->group == STATE_SLOTS)
            exe->loaded->state_base[c->to] = exe->loaded->state_base[c->from];
        for (int g = 0; g < exe->program->n_groups; g++)
            if (c->group == g || (c->group == STATE_SLOTS && exe->program->groups[g].kind == CACHE_STATE))
                TRY(copy_blocks(exe, g, c->from, c->to, err));
    }
    return OK;
}

// ---- steps ------------------------------------------------------------------------------------------------------

/* All but SAMPLE; or what comes before the head, where its filter is to know masks. The slot's event says meanwhile
 * that the device has the plan, whose rows draw writes anew. */
static enum status launch_late(struct executable *exe, struct step_slot *slot, const struct launch *l,
                               struct error *err) {
    struct device *d = exe->loaded->device;
    const struct batch_plan *plan = slot->plan;
    enum step_part part = plan->draws_best && filter_done(exe, l->n_rows) ? STEP_BODY : STEP_FORWARD;
    exe->drawn_from = part == STEP_BODY ? (int)(compiled_lm_head(exe) - exe->ops) : exe->program->n_ops - 1;
    DEVICE_TRY(d, err, cudaEventRecord(slot->done, d->stream), "the plan of %d tokens", plan->n_tokens);
    if (graphs_have(exe, plan))
        return graphs_run(exe, plan, part, err);
    return part == STEP_BODY ? step_launch_body(exe, l, err) : step_launch_forward(exe, l, err);
}

static void count_filtered(struct executable *exe, const struct step_slot *slot, const struct launch *l) {
    exe->loaded->n_filtered += slot->plan->n_rows > 0 && slot->n_not_best == 0 && filter_done(exe, l->n_rows);
}

static enum status launch_all(struct executable *exe, struct step_slot *slot, const struct launch *l,
                              struct error *err) {
    struct device *d = exe->loaded->device;
    const struct batch_plan *plan = slot->plan;
    TRY(graphs_have(exe, plan) ? graphs_run(exe, plan, STEP_WHOLE, err) : step_launch(exe, l, err));
    DEVICE_TRY(d, err, cudaEventRecord(slot->done, d->stream), "a step of %d tokens", plan->n_tokens);
    count_filtered(exe, slot, l);
    return OK;
}

static enum status check_fault(const struct device *d, struct error *err) {
    if (d->fault.status != OK)
        *err = d->fault;
    return d->fault.status;
}

enum status step_run(struct executable *exe, const struct batch_plan *plan, const struct sample_params *sample,
                     struct error *err) {
    struct loaded *loaded = exe->loaded;
    struct step_slot *slot = &exe->slots[exe->n_started % STEPS_IN_FLIGHT];
    BUG_IF(plan->n_tokens > exe->bucket.max_tokens || plan->n_seqs > exe->bucket.max_seqs ||
           plan->n_rows > exe->bucket.max_rows);
    BUG_IF(exe->n_started - exe->n_collected == STEPS_IN_FLIGHT || exe->is_late);
    TRY(check_fault(loaded->device, err));
    slot->plan = plan;
    slot->sample = sample;
    TRY(device_enter(loaded->device, err));
    TRY(copy_cache(exe, plan, err));
    TRY(filter_again(exe, err));
    TRY(plan_send(exe, slot, err));
    struct launch l = launch_for(exe, plan);
    l.watches = !graphs_have(exe, plan) && watch_begins(loaded);
    // launch.c:step_launch, or the graph that graphs.c recorded of it
    TRY(sample ? launch_all(exe, slot, &l, err) : launch_late(exe, slot, &l, err));
    exe->is_late = !sample;
    exe->n_started++;
    return OK;
}

enum status step_draw(struct executable *exe, const struct sample_params *sample, struct error *err) {
    struct device *d = exe->loaded->device;
    struct step_slot *slot = &exe->slots[(exe->n_started - 1) % STEPS_IN_FLIGHT];
    BUG_IF(!exe->is_late);
    TRY(check_fault(d, err));
    TRY(device_enter(d, err));
    DEVICE_TRY(d, err, cudaEventSynchronize(slot->done), "the plan of %d tokens", slot->plan->n_tokens);
    slot->sample = sample;
    TRY(plan_send_late_rows(exe, slot, err));
    struct launch l = launch_for(exe, slot->plan);
    TRY(step_launch_ops(exe, &l, exe->drawn_from, exe->program->n_ops, err));
    DEVICE_TRY(d, err, cudaEventRecord(slot->done, d->stream), "the draws of %d rows", slot->plan->n_rows);
    if (exe->drawn_from < exe->program->n_ops - 1)
        count_filtered(exe, slot, &l);
    exe->is_late = false;
    return OK;
}

const struct step_slot *step_collected(const struct executable *exe) {
    return &exe->slots[(exe->n_collected - 1) % STEPS_IN_FLIGHT];
}

static void take_result(const struct step_slot *slot, int r, struct sample_result *result) {
    const struct dsampled *d = &slot->sampled[r];
    *result = (struct sample_result){.token = d->token,
                                     .argmax = d->argmax,
                                     .logprob = d->logprob,
                                     .target_logprob = d->target_logprob,
                                     .target_rank = d->target_rank,
                                     .not_finite = d->flags & SAMPLED_NOT_FINITE,
                                     .nothing_left = d->flags & SAMPLED_NOTHING_LEFT};
    size_t n = (size_t)slot->sample[r].n_top_logprobs, at = (size_t)r * MOST_TOP_LOGPROBS;
    memcpy(result->top_token, slot->top_token + at, n * sizeof *result->top_token);
    memcpy(result->top_logprob, slot->top_logprob + at, n * sizeof *result->top_logprob);
}
_Static_assert((int)MOST_TOP_LOGPROBS == (int)MAX_TOP_LOGPROBS, "the device has room for as many as may be asked for");

enum status step_collect(struct executable *exe, struct sample_result *results, struct error *err) {
    struct loaded *loaded = exe->loaded;
    BUG_IF(exe->n_collected == exe->n_started - exe->is_late);
    const struct step_slot *slot = &exe->slots[exe->n_collected % STEPS_IN_FLIGHT];
    TRY(device_enter(loaded->device, err));
    DEVICE_TRY(loaded->device, err, cudaEventSynchronize(slot->done),
               "%s: a step of %d tokens, %d sequences and %d rows, %s", exe->program->name, slot->plan->n_tokens,
               slot->plan->n_seqs, slot->plan->n_rows, graphs_have(exe, slot->plan) ? "captured" : "op by op");
    TRY(ranks_check(loaded, err));
    for (int r = 0; r < slot->plan->n_rows; r++)
        take_result(slot, r, &results[r]);
    exe->n_collected++;
    return OK;
}
