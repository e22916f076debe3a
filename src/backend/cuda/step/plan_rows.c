/* plan_rows.c - what is asked of the rows of a step, as the device reads it: a drow each, and lists (histories, biases,
 * bans, masks) one behind the other. */
#include "backend/cuda/step/plan_rows.h"
#include "backend/cuda/cuda.h"
#include "backend/cuda/device/device.h"
#include "backend/cuda/value.h"

#include "base/random.h"

#include <math.h>
#include <string.h>

static bool penalises(const struct sample_params *p) {
    return p->repetition_penalty != 1 || p->presence_penalty != 0 || p->frequency_penalty != 0;
}

/* The first token of the history that matters: without a penalty on what repeats the prompt, the first generated one.
 */
static int32_t first_seen(const struct sample_params *p) {
    int32_t from = p->repetition_penalty != 1 ? 0 : p->n_prompt;
    return penalises(p) ? MIN(from, p->n_history) : p->n_history;
}

/* Whether the filter of the head, if there is one, may take the row: it knows masks, so what is allowed becomes one. */
static bool is_best(const struct executable *exe, const struct sample_params *p) {
    return exe->filter.scratch && sample_is_best(p);
}
static bool masks_allowed(const struct executable *exe, const struct sample_params *p) {
    return p->n_allowed > 0 && is_best(exe, p);
}

static size_t mask_entries(const struct executable *exe, const struct sample_params *p) {
    return p->mask || masks_allowed(exe, p) ? (size_t)sample_mask_words(exe->program->vocab_size) : 0;
}

static size_t n_list_entries(const struct executable *exe, const struct sample_params *p) {
    return mask_entries(exe, p) + 2 * (size_t)p->n_bias + 2 * ((size_t)p->n_banned + (size_t)p->n_bad) +
           (masks_allowed(exe, p) ? 0 : (size_t)p->n_allowed) + (size_t)(p->n_history - first_seen(p));
}

/* The lists of a step may be any length, but most steps have none: memory grows when a longer one comes, and stays.
 * Where the device has no more memory, the sampler reads them from the host's (plan_lists_fit): slower, and right;
 * shorter ones are tried again. */
static enum status make_room(struct executable *exe, struct step_slot *slot, size_t n, struct error *err) {
    struct loaded *loaded = exe->loaded;
    size_t capacity = 1u << 14;
    while (capacity < n)
        capacity *= 2;
    if (slot->n_lists < n) {
        int32_t *lists;
        TRY(pinned_take(loaded->device, &lists, (int64_t)(capacity * sizeof *lists),
                        "a step's histories, biases, bans and masks", err));
        cudaFreeHost(slot->lists);
        slot->lists = lists;
        slot->n_lists = capacity;
    }
    if (slot->n_there < n) {
        cudaFree(slot->lists_there);
        slot->lists_there = NULL;
        slot->n_there = 0;
        cudaError_t code = cudaMalloc((void **)&slot->lists_there, capacity * sizeof *slot->lists_there);
        if (code == cudaErrorMemoryAllocation) {
            cudaGetLastError();
            return OK;
        }
        DEVICE_TRY(loaded->device, err, code, "lists of %zu entries", capacity);
        slot->n_there = capacity;
    }
    return OK;
}

/* Whether all but the last token of the sequence stand where the next one comes; *newest is what the newest token,
 * which the host may not know, has to be for that, or -1. */
static bool may_complete(const struct sample_params *p, const struct bad_sequence *bad, int32_t *newest) {
    int32_t before = bad->n - 1, n_seen = p->n_history + p->has_newest, first = n_seen - before;
    *newest = -1;
    if (first < p->n_prompt)
        return false;
    for (int32_t i = 0; i < before; i++) {
        if (first + i == p->n_history)
            *newest = bad->tokens[i];
        else if (p->history[first + i] != bad->tokens[i])
            return false;
    }
    return true;
}

static size_t write_banned(const struct sample_params *p, int32_t *lists, size_t n, struct drow *row) {
    row->banned = (int32_t)n;
    for (int32_t i = 0; i < p->n_banned; i++, n += 2)
        lists[n] = p->banned[i], lists[n + 1] = -1;
    for (int32_t i = 0; i < p->n_bad; i++) {
        const struct bad_sequence *bad = &p->bad[i];
        if (!may_complete(p, bad, &lists[n + 1]))
            continue;
        lists[n] = bad->tokens[bad->n - 1];
        n += 2;
    }
    row->n_banned = (int32_t)(n - (size_t)row->banned) / 2;
    return n;
}

/* Entries of four bytes, which need not be there if there are none. */
static size_t append(int32_t *lists, size_t n, const void *from, size_t n_entries) {
    if (n_entries > 0)
        memcpy(lists + n, from, n_entries * sizeof *lists);
    return n + n_entries;
}

/* As a mask, of those that the row's own lets through. */
static void write_allowed(const struct sample_params *p, int32_t *words, size_t n_words) {
    memset(words, 0, n_words * sizeof *words);
    for (int32_t i = 0; i < p->n_allowed; i++) {
        int32_t token = p->allowed[i];
        uint32_t bit = 1u << token % 32, word = (uint32_t)words[token / 32];
        if (!p->mask || p->mask[token / 32] & bit)
            words[token / 32] = (int32_t)(word | bit);
    }
}

/* What the row asks for goes behind the n entries that there are; returns how many there are then. */
static size_t write_lists(const struct executable *exe, const struct sample_params *p, int32_t *lists, size_t n,
                          struct drow *row) {
    size_t n_words = mask_entries(exe, p);
    row->bias = (int32_t)n;
    row->n_bias = p->n_bias;
    n = append(lists, n, p->bias, 2 * (size_t)p->n_bias);
    n = write_banned(p, lists, n, row);
    row->allowed = (int32_t)n;
    row->n_allowed = masks_allowed(exe, p) ? 0 : p->n_allowed;
    n = append(lists, n, p->allowed, (size_t)row->n_allowed);
    row->mask = n_words > 0 ? (int32_t)n : -1;
    if (masks_allowed(exe, p))
        write_allowed(p, lists + n, n_words);
    else if (n_words > 0)
        memcpy(lists + n, p->mask, n_words * sizeof *lists);
    n += n_words;
    int32_t from = first_seen(p);
    row->history = (int32_t)n;
    row->n_history = p->n_history - from;
    row->n_prompt = MAX(p->n_prompt - from, 0);
    return append(lists, n, p->history + from, (size_t)row->n_history);
}
_Static_assert(sizeof(struct logit_bias) == 2 * sizeof(int32_t), "a bias is two entries");

static void write_row(const struct sample_params *p, struct drow *row) {
    bool is_scored = p->want_logprob || p->target >= 0 || p->n_top_logprobs > 0;
    bool is_changed = p->n_bias > 0 || p->n_banned > 0 || p->n_allowed > 0 || p->mask || p->n_bad > 0 || penalises(p);
    *row = (struct drow){.temperature = p->temperature,
                         .top_p = p->top_p,
                         .least = p->min_p > 0 ? logf(p->min_p) : -INFINITY,
                         .repetition = p->repetition_penalty,
                         .presence = p->presence_penalty,
                         .frequency = p->frequency_penalty,
                         .top_k = p->top_k,
                         .target = p->target,
                         .mask = -1,
                         .n_top = p->n_top_logprobs,
                         .is_plain = sample_is_plain(p),
                         .is_scored = is_scored,
                         .is_changed = is_changed};
    if (p->temperature > 0)
        row->bits = philox_bits53(p->seed, p->sequence, p->position);
}

void plan_rows_write_late(struct executable *exe, struct step_slot *slot) {
    struct drow *rows = (struct drow *)(void *)(slot->plan_host + exe->layout.rows);
    int32_t *newest = (int32_t *)(void *)(slot->plan_host + exe->layout.newest_row);
    for (int r = 0; r < slot->plan->n_rows; r++) {
        rows[r] = (struct drow){.target = -1, .mask = -1};
        newest[r] = -1;
    }
    slot->n_not_plain = slot->n_not_best = slot->plan->n_rows;
    slot->n_listed = 0;
    slot->sent_ahead = false;
}

enum status plan_rows_write(struct executable *exe, struct step_slot *slot, struct error *err) {
    const struct sample_params *sample = slot->sample;
    int n_rows = slot->plan->n_rows;
    struct drow *rows = (struct drow *)(void *)(slot->plan_host + exe->layout.rows);
    int32_t *newest = (int32_t *)(void *)(slot->plan_host + exe->layout.newest_row);
    size_t n = 0;
    slot->n_not_plain = slot->n_not_best = 0;
    for (int r = 0; r < n_rows; r++) {
        write_row(&sample[r], &rows[r]);
        slot->n_not_plain += !rows[r].is_plain;
        slot->n_not_best += !is_best(exe, &sample[r]);
        newest[r] = sample[r].has_newest && rows[r].is_changed ? sample[r].newest_row : -1;
        if (rows[r].is_changed)
            n += n_list_entries(exe, &sample[r]);
    }
    slot->n_listed = n;
    if (n == 0)
        return OK;
    if (n > INT32_MAX)
        return fail(err, ERR_LIMIT, "%s: the histories, biases, bans and masks of a step have %zu entries",
                    exe->program->name, n);
    TRY(make_room(exe, slot, n, err));
    n = 0;
    for (int r = 0; r < n_rows; r++)
        if (rows[r].is_changed)
            n = write_lists(exe, &sample[r], slot->lists, n, &rows[r]);
    slot->n_listed = n;
    if (!plan_lists_fit(slot)) // the filter reads masks so often that they have to be near
        slot->n_not_best = MAX(slot->n_not_best, slot->n_not_plain);
    return OK;
}

bool plan_lists_fit(const struct step_slot *slot) { return slot->n_listed <= slot->n_there; }
