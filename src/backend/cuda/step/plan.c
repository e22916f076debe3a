/* plan.c - the plan on its way to the device: two of them in pinned memory by turns, one on the device.
 *
 *     host     plan A and plan B, and the lists of each (history, biases, bans, masks): what step_run writes
 *     stream   ... step n | take_plan A | step n+1 | take_plan B | ...      what steps read is always the same place
 *
 * The layout depends on the bucket and the engine's tables alone, so addresses on the device never change and graphs
 * keep them; but lists have two places there too, which the plan names. take_plan reads the host's memory itself, only
 * what the step has; so nothing but kernels stands on the stream. What comes late, a mask of 19 KB a row, is copied
 * meanwhile, beside the stream, which waits for that. Results go the other way, written by the sampler to the slot of
 * its step.
 *
 * A row that is penalised brings its history along each step: 4 bytes a token, where the cache that the step reads for
 * the same token has thousands. */
#include "backend/cuda/step/plan.h"
#include "backend/cuda/cuda.h"
#include "backend/cuda/device/device.h"
#include "backend/cuda/step/compile.h"
#include "backend/cuda/step/plan_rows.h"
#include "backend/cuda/step/take_plan.h"
#include "backend/cuda/value.h"

#include <string.h>

static size_t place(size_t *total, size_t n_bytes) {
    size_t at = *total;
    *total += (n_bytes + 255) / 256 * 256;
    return at;
}

/* Of STATES; 0: there is none. */
static int states_width(const struct program *p) {
    for (int i = 0; i < p->n_ops; i++)
        if (p->ops[i].code == OP_STATES)
            return p->ops[i].out[0].width;
    return 0;
}

bool plan_has_states(const struct program *p) { return states_width(p) > 0; }

static void lay_out(struct executable *exe) {
    const struct bucket *b = &exe->bucket;
    size_t tokens = (size_t)b->max_tokens * 4, seqs = (size_t)b->max_seqs * 4, rows = (size_t)MAX(b->max_rows, 1),
           n = 0;
    struct plan_layout *at = &exe->layout;
    at->counts = place(&n, 20);
    at->places = place(&n, sizeof(struct dplaces));
    at->token_id = place(&n, tokens);
    at->from_row = place(&n, tokens);
    at->position = place(&n, tokens);
    at->state_row = plan_has_states(exe->program) ? place(&n, tokens) : 0;
    at->state_source = plan_has_states(exe->program) ? place(&n, 4) : 0;
    at->seq_of_row = place(&n, tokens);
    at->query_start = place(&n, seqs + 4);
    at->seq_len = place(&n, seqs);
    at->n_known = place(&n, seqs);
    at->state_slot = place(&n, seqs);
    at->state_base = exe->loaded->n_back > 0 ? place(&n, seqs) : 0;
    at->state_kept = exe->loaded->n_back > 0 ? place(&n, seqs) : 0;
    at->out_row = place(&n, rows * 4);
    at->newest_row = place(&n, rows * 4);
    at->rows = place(&n, rows * sizeof(struct drow));
    for (int g = 0; g < exe->program->n_groups; g++)
        at->block_table[g] = place(&n, seqs * (size_t)exe->loaded->table_width[g]);
    exe->plan_bytes = n;
}

static const int32_t *on_device(const struct executable *exe, size_t at) {
    return (const int32_t *)(const void *)(exe->plan_device + at);
}

static void point_into_plan(struct executable *exe) {
    struct device_plan *v = &exe->plan_view;
    const struct plan_layout *at = &exe->layout;
    v->counts = on_device(exe, at->counts);
    v->token_id = on_device(exe, at->token_id);
    v->position = on_device(exe, at->position);
    v->seq_of_row = on_device(exe, at->seq_of_row);
    v->query_start = on_device(exe, at->query_start);
    v->seq_len = on_device(exe, at->seq_len);
    v->n_known = on_device(exe, at->n_known);
    v->state_slot = on_device(exe, at->state_slot);
    v->out_row = on_device(exe, at->out_row);
    v->newest = on_device(exe, at->newest_row);
    v->rows = (const struct drow *)(const void *)on_device(exe, at->rows);
    v->places = (const struct dplaces *)(const void *)on_device(exe, at->places);
    for (int g = 0; g < exe->program->n_groups; g++) {
        v->block_table[g] = on_device(exe, at->block_table[g]);
        v->table_width[g] = exe->loaded->table_width[g];
    }
}

/* What STATES and tokens of the step before take, of a draft. */
static enum status alloc_draft(struct executable *exe, struct error *err) {
    const struct program *p = exe->program;
    struct device *d = exe->loaded->device;
    size_t n_bytes = (size_t)p->vocab_size * sizeof *exe->token_of;
    if (plan_has_states(p))
        TRY(device_alloc(exe, &exe->state_sources, STATE_SOURCES * (int64_t)sizeof *exe->state_sources,
                         "sources of states", err));
    if (p->token_of)
        TRY(device_alloc(exe, &exe->token_of, (int64_t)n_bytes, "tokens of the draft", err));
    if (exe->state_sources)
        DEVICE_TRY(d, err,
                   cudaMemsetAsync(exe->state_sources, 0, STATE_SOURCES * sizeof *exe->state_sources, d->stream),
                   "no sources of states");
    if (exe->token_of)
        DEVICE_TRY(d, err, cudaMemcpyAsync(exe->token_of, p->token_of, n_bytes, cudaMemcpyHostToDevice, d->stream),
                   "%d tokens of the draft", p->vocab_size);
    return OK;
}

enum status plan_alloc(struct executable *exe, struct error *err) {
    struct loaded *loaded = exe->loaded;
    size_t rows = (size_t)MAX(exe->bucket.max_rows, 1), tops = rows * MOST_TOP_LOGPROBS;
    lay_out(exe);
    TRY(device_alloc(exe, &exe->plan_device, (int64_t)exe->plan_bytes, "a plan", err));
    TRY(device_alloc(exe, &exe->row_token, (int64_t)(rows * sizeof *exe->row_token), "tokens", err));
    TRY(alloc_draft(exe, err));
    if (exe->only_sized)
        return OK;
    DEVICE_TRY(loaded->device, err, cudaMemsetAsync(exe->plan_device, 0, exe->plan_bytes, loaded->device->stream),
               "an empty plan");
    DEVICE_TRY(loaded->device, err,
               cudaMemsetAsync(exe->row_token, 0, rows * sizeof *exe->row_token, loaded->device->stream), "%zu tokens",
               rows);
    for (int i = 0; i < STEPS_IN_FLIGHT; i++) {
        struct step_slot *s = &exe->slots[i];
        TRY(pinned_take(loaded->device, &s->plan_host, (int64_t)exe->plan_bytes, "a plan", err));
        TRY(pinned_take(loaded->device, &s->sampled, (int64_t)(rows * sizeof *s->sampled), "results", err));
        TRY(pinned_take(loaded->device, &s->top_token, (int64_t)(tops * sizeof *s->top_token), "results", err));
        TRY(pinned_take(loaded->device, &s->top_logprob, (int64_t)(tops * sizeof *s->top_logprob), "results", err));
        DEVICE_TRY(loaded->device, err, cudaEventCreateWithFlags(&s->done, cudaEventDisableTiming), "an event");
        DEVICE_TRY(loaded->device, err, cudaEventCreateWithFlags(&s->listed, cudaEventDisableTiming), "an event");
    }
    point_into_plan(exe);
    return OK;
}

void plan_free(struct executable *exe) {
    for (int i = 0; i < STEPS_IN_FLIGHT; i++) {
        struct step_slot *s = &exe->slots[i];
        cudaFreeHost(s->plan_host);
        cudaFreeHost(s->lists);
        cudaFree(s->lists_there);
        cudaFreeHost(s->sampled);
        cudaFreeHost(s->top_token);
        cudaFreeHost(s->top_logprob);
        if (s->done)
            cudaEventDestroy(s->done);
        if (s->listed)
            cudaEventDestroy(s->listed);
    }
    cudaFree(exe->plan_device);
    cudaFree(exe->row_token);
    cudaFree(exe->state_sources);
    cudaFree(exe->given_states);
    cudaFree(exe->token_of);
}

const int32_t *plan_state_base(const struct executable *exe) { return on_device(exe, exe->layout.state_base); }
const int32_t *plan_state_kept(const struct executable *exe) { return on_device(exe, exe->layout.state_kept); }

struct dstates plan_states(const struct executable *exe) {
    return (struct dstates){exe->state_sources, on_device(exe, exe->layout.state_row),
                            on_device(exe, exe->layout.state_source)};
}

enum status cuda_states_from(struct executable *exe, int i, struct executable *from, int tap, struct error *err) {
    struct device *d = exe->loaded->device;
    BUG_IF(i < 0 || i >= STATE_SOURCES || !exe->state_sources || tap < 0 || tap > from->program->n_taps);
    TRY(device_enter(d, err));
    DEVICE_TRY(d, err,
               cudaMemcpyAsync(&exe->state_sources[i], &from->kept[tap], sizeof from->kept[tap], cudaMemcpyHostToDevice,
                               d->stream), // behind what cleared it, and before steps
               "a source of states");
    return OK;
}

// ---- sending ----------------------------------------------------------------------------------------------------

static void copy_numbers(struct step_slot *slot, size_t at, const int32_t *from, int n) {
    memcpy(slot->plan_host + at, from, (size_t)n * sizeof *from);
}

/* What of each sequence is in its state, and what is to be: it moves on to what is sure (recurrent/delta.h). */
static void write_bases(struct executable *exe, struct step_slot *slot, const struct batch_plan *p) {
    int32_t *base = (int32_t *)(void *)(slot->plan_host + exe->layout.state_base),
            *kept = (int32_t *)(void *)(slot->plan_host + exe->layout.state_kept), n_back = exe->loaded->n_back;
    for (int s = 0; s < p->n_seqs && n_back > 0; s++) {
        int32_t first = p->position[p->query_start[s]], end = first + p->query_start[s + 1] - p->query_start[s];
        int32_t *has = &exe->loaded->state_base[p->state_slot[s]];
        base[s] = first == 0 ? 0 : *has;
        kept[s] = MAX(MIN(p->n_sure[s], end), base[s]);
        BUG_IF(base[s] > first || first - base[s] > n_back || end - kept[s] > n_back);
        *has = kept[s];
    }
}

/* Of a table only the entries that hold tokens of the sequence, as the places of their blocks. */
static void write_tables(struct executable *exe, struct step_slot *slot, const struct batch_plan *p) {
    int block_size = exe->loaded->block_size;
    for (int g = 0; g < exe->program->n_groups; g++) {
        size_t width = (size_t)p->table_width[g];
        int32_t *table = (int32_t *)(void *)(slot->plan_host + exe->layout.block_table[g]);
        const struct group_cache *cache = &exe->loaded->caches[g];
        BUG_IF(p->table_width[g] != exe->loaded->table_width[g]);
        for (int s = 0; s < p->n_seqs && width > 0; s++) {
            size_t n = MIN((size_t)((p->seq_len[s] + block_size - 1) / block_size), width);
            const int32_t *from = p->block_table[g] + (size_t)s * width;
            for (size_t i = 0; i < n; i++)
                table[(size_t)s * width + i] = cache_place(cache, from[i]);
        }
    }
}

static struct dtake take_of(const struct executable *exe, const struct step_slot *slot, const struct batch_plan *p) {
    const struct plan_layout *at = &exe->layout;
    struct dtake t = {.from = (const int32_t *)(const void *)slot->plan_host,
                      .to = (int32_t *)(void *)exe->plan_device,
                      .n_tokens = p->n_tokens,
                      .n_seqs = p->n_seqs,
                      .n_rows = p->n_rows,
                      .n_not_plain = slot->n_not_plain,
                      .n_not_best = slot->n_not_best,
                      .n_groups = exe->program->n_groups,
                      .log_block_size = __builtin_ctz((unsigned)exe->loaded->block_size),
                      .counts = (int)(at->counts / 4),
                      .token_id = (int)(at->token_id / 4),
                      .from_row = (int)(at->from_row / 4),
                      .position = (int)(at->position / 4),
                      .state_row = (int)(at->state_row / 4),
                      .state_source = (int)(at->state_source / 4),
                      .seq_of_row = (int)(at->seq_of_row / 4),
                      .query_start = (int)(at->query_start / 4),
                      .seq_len = (int)(at->seq_len / 4),
                      .n_known = (int)(at->n_known / 4),
                      .state_slot = (int)(at->state_slot / 4),
                      .state_base = (int)(at->state_base / 4),
                      .state_kept = (int)(at->state_kept / 4),
                      .out_row = (int)(at->out_row / 4),
                      .newest_row = (int)(at->newest_row / 4),
                      .rows = (int)(at->rows / 4),
                      .places = (int)(at->places / 4),
                      .lists_from = slot->lists,
                      .lists = slot->lists_there,
                      .n_lists = plan_lists_fit(slot) && !slot->sent_ahead ? (int64_t)slot->n_listed : 0,
                      .at = {plan_lists_fit(slot) ? slot->lists_there : slot->lists, slot->sampled, slot->top_token,
                             slot->top_logprob, exe->row_token},
                      .token_of = exe->token_of,
                      .source = p->state_source};
    for (int g = 0; g < exe->program->n_groups; g++) {
        t.block_table[g] = (int64_t)(at->block_table[g] / 4);
        t.table_width[g] = exe->loaded->table_width[g];
    }
    return t;
}

static enum status take(struct executable *exe, struct step_slot *slot, struct error *err) {
    exe->loaded->n_lists_left += !plan_lists_fit(slot);
    struct dtake t = take_of(exe, slot, slot->plan);
    launch_take_plan(exe->loaded->device->stream, &t);
    DEVICE_TRY(exe->loaded->device, err, cudaGetLastError(), "sending the plan of %d tokens", slot->plan->n_tokens);
    return OK;
}

static enum status send_rows(struct executable *exe, struct step_slot *slot, struct error *err) {
    TRY(plan_rows_write(exe, slot, err));
    slot->sent_ahead = false;
    return take(exe, slot, err);
}

enum status plan_send_late_rows(struct executable *exe, struct step_slot *slot, struct error *err) {
    struct device *d = exe->loaded->device;
    TRY(plan_rows_write(exe, slot, err));
    slot->sent_ahead = slot->n_listed > 0 && plan_lists_fit(slot);
    if (slot->sent_ahead) {
        cudaError_t code = cudaMemcpyAsync(slot->lists_there, slot->lists, slot->n_listed * sizeof *slot->lists,
                                           cudaMemcpyHostToDevice, d->ahead);
        code = code == cudaSuccess ? cudaEventRecord(slot->listed, d->ahead) : code;
        code = code == cudaSuccess ? cudaStreamWaitEvent(d->stream, slot->listed, 0) : code;
        DEVICE_TRY(d, err, code, "lists of %d rows", slot->plan->n_rows);
    }
    return take(exe, slot, err);
}

/* Rows of STATES that come with the plan are the first source. Only stages of a pipeline have such, so there is no
 * memory for them before the first. */
static enum status send_states(struct executable *exe, struct step_slot *slot, struct error *err) {
    const struct batch_plan *p = slot->plan;
    struct device *d = exe->loaded->device;
    int width = states_width(exe->program);
    size_t row_bytes = (size_t)width * sizeof *p->states;
    int32_t *row = (int32_t *)(void *)(slot->plan_host + exe->layout.state_row);
    if (!exe->given_states) {
        struct dmat given = {.stride = width, .width = width, .element = ELEMENT_F32};
        TRY(memory_take(d, &exe->given_states, (int64_t)row_bytes * exe->bucket.max_tokens, "states of a step", err));
        given.at = exe->given_states;
        DEVICE_TRY(d, err, cudaMemcpyAsync(exe->state_sources, &given, sizeof given, cudaMemcpyHostToDevice, d->stream),
                   "the source of a step's states");
    }
    DEVICE_TRY(d, err,
               cudaMemcpyAsync(exe->given_states, p->states, row_bytes * (size_t)p->n_tokens, cudaMemcpyHostToDevice,
                               d->stream),
               "states of %d tokens", p->n_tokens);
    for (int i = 0; i < p->n_tokens; i++)
        row[i] = i;
    return OK;
}

enum status plan_send(struct executable *exe, struct step_slot *slot, struct error *err) {
    const struct batch_plan *p = slot->plan;
    const struct plan_layout *at = &exe->layout;
    copy_numbers(slot, at->token_id, p->token_id, p->n_tokens);
    copy_numbers(slot, at->from_row, p->from_row, p->n_tokens);
    copy_numbers(slot, at->position, p->position, p->n_tokens);
    if (at->state_row > 0 && p->states)
        TRY(send_states(exe, slot, err));
    else if (at->state_row > 0)
        copy_numbers(slot, at->state_row, p->state_row, p->n_tokens);
    copy_numbers(slot, at->query_start, p->query_start, p->n_seqs + 1);
    copy_numbers(slot, at->seq_len, p->seq_len, p->n_seqs);
    copy_numbers(slot, at->n_known, p->n_known, p->n_seqs);
    copy_numbers(slot, at->state_slot, p->state_slot, p->n_seqs);
    copy_numbers(slot, at->out_row, p->out_row, p->n_rows);
    write_tables(exe, slot, p);
    write_bases(exe, slot, p);
    if (slot->sample)
        return send_rows(exe, slot, err);
    plan_rows_write_late(exe, slot);
    return take(exe, slot, err);
}
