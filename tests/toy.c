/* toy.c - see toy.h. */
#include "toy.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct toy_faults toy_faults = {.bad_token = -1};

struct backend {
    const struct program *program;
    struct cache_config config;
    struct toy_slot {
        int32_t token, position;
    } * slots[MAX_CACHE_GROUPS]; // [n_blocks * block_size]
    struct toy_state {
        uint64_t hash;
        int32_t n_seen;
    } * states; // [n_states]
};

struct executable {
    struct backend *backend;
    const struct batch_plan *plan;
    struct bucket bucket;
    struct sample_scratch scratch;
    float *logits; // [max_rows, vocab_size]
};

#define INSIST(cond)                                                                \
    do {                                                                            \
        if (!(cond)) {                                                              \
            fprintf(stderr, "toy backend, line %d: not so: %s\n", __LINE__, #cond); \
            abort();                                                                \
        }                                                                           \
    } while (0)

struct program *toy_program(const struct toy_shape *shape) {
    struct program *p = program_new("toy");
    p->vocab_size = shape->vocab_size;
    if (shape->full)
        program_cache_kv(p, 1, 8, 8, 0);
    if (shape->window)
        program_cache_kv(p, 1, 8, 8, shape->window);
    if (shape->latent)
        program_cache_latent(p, 16);
    if (shape->recurrent)
        program_cache_state(p, 4, 16);
    return p;
}

static uint64_t mix(uint64_t h, uint64_t x) {
    h = (h ^ x) * 0x9E3779B97F4A7C15u;
    return h ^ h >> 29;
}

static enum status toy_open(const struct backend_options *options, struct backend **out, struct error *err) {
    (void)options, (void)err;
    *out = xcalloc(1, sizeof **out);
    return OK;
}

static enum status toy_place_weights(struct backend *b, const struct program *p, struct error *err) {
    (void)err;
    b->program = p;
    return OK;
}

static enum status toy_alloc_cache(struct backend *b, const struct program *p, const struct cache_config *config, struct error *err) {
    (void)err;
    b->config = *config;
    for (int g = 0; g < p->n_groups; g++)
        b->slots[g] = xcalloc((size_t)config->n_blocks[g] * (size_t)config->block_size, sizeof *b->slots[g]);
    b->states = xcalloc((size_t)config->n_states, sizeof *b->states);
    return OK;
}

/* 8 bytes a token, whatever the group. */
static int64_t toy_block_bytes(const struct program *p, int group, int block_size) {
    return p->groups[group].kind == CACHE_STATE ? 64 : 8 * (int64_t)block_size;
}

static enum status toy_compile(struct backend *b, const struct program *p, struct bucket bucket, struct executable **out,
                               struct error *err) {
    (void)err;
    struct executable *exe = xcalloc(1, sizeof *exe);
    *exe = (struct executable){.backend = b, .bucket = bucket};
    sample_scratch_init(&exe->scratch, p->vocab_size);
    exe->logits = xcalloc((size_t)bucket.max_rows * (size_t)p->vocab_size, sizeof *exe->logits);
    *out = exe;
    return OK;
}

static enum status toy_run(struct executable *exe, const struct batch_plan *plan, struct error *err) {
    if (toy_faults.run_fails_in > 0 && --toy_faults.run_fails_in == 0)
        return fail(err, ERR_DEVICE, "the toy broke when it was started");
    exe->plan = plan;
    return OK;
}

static struct toy_slot *slot_of(const struct executable *exe, int group, int s, int32_t position) {
    const struct backend *b = exe->backend;
    int32_t at = position / b->config.block_size;
    INSIST(at < exe->plan->table_width[group]);
    int32_t block = exe->plan->block_table[group][s * exe->plan->table_width[group] + at];
    INSIST(block >= 0 && block < b->config.n_blocks[group]);
    return &b->slots[group][block * b->config.block_size + position % b->config.block_size];
}

static uint64_t hash_group(const struct executable *exe, int group, int s, int32_t position) {
    int window = exe->backend->program->groups[group].window;
    uint64_t h = (uint64_t)group;
    for (int32_t j = window ? MAX(0, position - window + 1) : 0; j <= position; j++) {
        const struct toy_slot *slot = slot_of(exe, group, s, j);
        INSIST(slot->position == j);
        h = mix(h, (uint64_t)slot->token + 1);
    }
    return h;
}

/* The token enters every cache of its sequence; returns the hash of what the recurrent state has seen. */
static uint64_t store_token(const struct executable *exe, int s, int32_t position, int32_t token) {
    const struct program *p = exe->backend->program;
    uint64_t h = 0;
    for (int g = 0; g < p->n_groups; g++) {
        if (p->groups[g].kind != CACHE_STATE) {
            *slot_of(exe, g, s, position) = (struct toy_slot){token, position};
            continue;
        }
        INSIST(exe->plan->state_slot[s] >= 0 && exe->plan->state_slot[s] < exe->backend->config.n_states);
        struct toy_state *state = &exe->backend->states[exe->plan->state_slot[s]];
        if (position == 0)
            *state = (struct toy_state){0};
        INSIST(state->n_seen++ == position);
        h = state->hash = mix(state->hash, (uint64_t)token + 1);
    }
    return h;
}

static void fill_logits(const struct executable *exe, uint64_t h, int32_t token, float *logits) {
    for (int v = 0; v < exe->backend->program->vocab_size; v++)
        logits[v] = (float)(mix(h, (uint64_t)v + 1000) >> 40) * 0x1p-21f; // 0 .. 8
    if (token == toy_faults.bad_token)
        logits[0] = NAN;
}

static void run_row(struct executable *exe, int s, int row, int *out, struct sample_result *results) {
    const struct batch_plan *plan = exe->plan;
    const struct program *p = exe->backend->program;
    int32_t position = plan->position[row], token = plan->token_id[row];
    INSIST(token >= 0 && token < p->vocab_size);
    uint64_t h = store_token(exe, s, position, token);
    if (*out == plan->n_rows || plan->out_row[*out] != row)
        return;
    for (int g = 0; g < p->n_groups; g++)
        if (p->groups[g].kind != CACHE_STATE)
            h = mix(h, hash_group(exe, g, s, position));
    float *logits = exe->logits + (size_t)*out * (size_t)p->vocab_size;
    fill_logits(exe, h, token, logits);
    sample_row(logits, p->vocab_size, &plan->sample[*out], &exe->scratch, &results[*out]);
    ++*out;
}

static enum status toy_collect(struct executable *exe, struct sample_result *results, struct error *err) {
    const struct batch_plan *plan = exe->plan;
    if (toy_faults.collect_fails_in > 0 && --toy_faults.collect_fails_in == 0)
        return fail(err, ERR_DEVICE, "the toy broke while it computed");
    INSIST(plan->n_tokens <= exe->bucket.max_tokens && plan->n_seqs <= exe->bucket.max_seqs && plan->n_rows <= exe->bucket.max_rows);
    INSIST(plan->n_tokens > 0 && plan->query_start[0] == 0 && plan->query_start[plan->n_seqs] == plan->n_tokens);
    int out = 0;
    for (int s = 0; s < plan->n_seqs; s++) {
        int first = plan->query_start[s], end = plan->query_start[s + 1];
        INSIST(first < end && plan->seq_len[s] == plan->position[end - 1] + 1 && plan->n_known[s] >= plan->seq_len[s]);
        for (int row = first; row < end; row++) {
            INSIST(plan->position[row] == plan->position[first] + row - first);
            run_row(exe, s, row, &out, results);
        }
    }
    INSIST(out == plan->n_rows);
    return OK;
}

static const float *toy_logits(struct executable *exe, int row) {
    return exe->logits + (size_t)row * (size_t)exe->backend->program->vocab_size;
}

static void toy_free_executable(struct executable *exe) {
    sample_scratch_release(&exe->scratch);
    free(exe->logits);
    free(exe);
}

static void toy_free(struct backend *b) {
    for (int g = 0; g < MAX_CACHE_GROUPS; g++)
        free(b->slots[g]);
    free(b->states);
    free(b);
}

const struct backend_ops backend_toy = {
    .name = "toy",
    .ragged = true,
    .open = toy_open,
    .place_weights = toy_place_weights,
    .alloc_cache = toy_alloc_cache,
    .cache_block_bytes = toy_block_bytes,
    .compile = toy_compile,
    .run = toy_run,
    .collect = toy_collect,
    .logits = toy_logits,
    .free_executable = toy_free_executable,
    .free = toy_free,
};
