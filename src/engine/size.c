/* size.c - how large an engine is: exact arithmetic from options, the program's cache groups and the memory there is.
 */
#include "base/machine_memory.h"
#include "core/kv_int4.h"
#include "core/pass/pass.h"
#include "engine/draft/draft_rows.h"
#include "engine/fit.h"

enum {
    DEFAULT_BATCHED_TOKENS = 512,
    DEFAULT_SEQS = 64,
    DEFAULT_BLOCK = 64,
    CHECKPOINTS_A_SEQ = 2, // of recurrent state, for each sequence of a full step: of its prompt's end and its answer's
    COPIES_A_SEQ =
        3, // of cache before a step: a checkpoint made and one restored, one to spare; and a block of each group
    LONGEST = 1 << 24,      // tokens of a sequence: tables are made for them
    LOGIT_BYTES = 64 << 20, // for the rows of one step; scoring goes in slices of that
};

struct cache_demand {
    const struct gyre_options *options;
    const struct loaded *loaded;
    const struct program *program;
    int block_size, max_chunk, max_seqs;
    int draft_group; // whose blocks are a draft's, too; -1: there is none
    int64_t draft_bytes;
};

static int64_t saturating_mul(int64_t a, int64_t b) {
    int64_t r;
    return __builtin_mul_overflow(a, b, &r) ? INT64_MAX : r;
}

static int64_t saturating_add(int64_t a, int64_t b) {
    int64_t r;
    return __builtin_add_overflow(a, b, &r) ? INT64_MAX : r;
}

static int64_t ceil_div(int64_t a, int64_t b) { return a / b + (a % b != 0); }

/* The guesses of each step in flight, and the token between. */
int engine_n_back(const struct gyre_options *o, const struct program *p) {
    int in_flight = o->backend->max_in_flight, n = in_flight * o->n_guesses + in_flight - 1, room = INT32_MAX;
    bool is_recurrent = false;
    for (int i = 0; i < p->n_groups; i++) {
        const struct cache_group *g = &p->groups[i];
        is_recurrent |= g->kind == CACHE_STATE && g->ring == 0;
        room = g->ring > 0 ? MIN(room, g->ring - g->window) : room;
    }
    if (!is_recurrent && room < INT32_MAX)
        return room;
    return o->n_guesses > 0 && program_states_go_back(p) ? MIN(MIN(n, o->backend->max_back), room) : 0;
}

int64_t engine_block_bytes(const struct gyre_options *o, const struct program *p, const struct loaded *l, int group,
                           int block_size) {
    if (l)
        return o->backend->cache_block_bytes(l, group, block_size);
    const struct cache_group *g = &p->groups[group];
    int channels = g->kind == CACHE_KV ? shared_kv_channels(p, group) : 0, k_dim = channels > 0 ? channels : g->k_dim;
    bool int4 = g->kind == CACHE_KV && o->kv_cache_dtype && strcmp(o->kv_cache_dtype, "int4") == 0;
    if (int4)
        return saturating_mul(kv_int4_block_bytes(g->n_heads, k_dim, g->v_dim, block_size), g->n_layers);
    int64_t token = g->kind == CACHE_LATENT ? g->k_dim : (int64_t)g->n_heads * (k_dim + g->v_dim);
    int64_t floats =
        g->kind == CACHE_STATE ? cache_state_floats(g, engine_n_back(o, p)) : saturating_mul(token, block_size);
    return saturating_mul(floats, g->n_layers * (int64_t)sizeof(float));
}

/* Of a block of the draft's cache, over its groups. */
static int64_t draft_block_bytes(const struct gyre_options *o, const struct program *p, int block_size) {
    int64_t bytes = 0;
    for (int g = 0; g < p->n_groups; g++)
        bytes = saturating_add(bytes, engine_block_bytes(o, p, NULL, g, block_size));
    return bytes;
}

/* Blocks of a group for n_tokens of all sequences together, none longer than max_len: a windowed group never
 * needs more than every sequence's window. */
static int64_t blocks_of(const struct cache_demand *d, int group, int64_t n_tokens, int64_t max_len) {
    int64_t one = kv_group_blocks_for(&d->program->groups[group], max_len, d->block_size, d->max_chunk);
    return MIN(ceil_div(n_tokens, d->block_size), saturating_mul(one, d->max_seqs));
}

static int64_t cache_bytes(const struct cache_demand *d, int64_t n_tokens, int64_t max_len) {
    int64_t bytes = 0;
    for (int g = 0; g < d->program->n_groups; g++) {
        int64_t block = engine_block_bytes(d->options, d->program, d->loaded, g, d->block_size);
        if (g == d->draft_group)
            block = saturating_add(block, d->draft_bytes);
        if (d->program->groups[g].kind != CACHE_STATE)
            bytes = saturating_add(bytes, saturating_mul(block, blocks_of(d, g, n_tokens, max_len)));
    }
    return bytes;
}

static int64_t state_bytes(const struct cache_demand *d) {
    int64_t bytes = 0;
    for (int g = 0; g < d->program->n_groups; g++)
        if (d->program->groups[g].kind == CACHE_STATE)
            bytes = saturating_add(bytes, engine_block_bytes(d->options, d->program, d->loaded, g, d->block_size));
    return bytes;
}

/* The longest sequence, up to max_len, whose cache fits; and 0 when not one block does. */
static int64_t longest_that_fits(const struct cache_demand *d, int64_t max_len, int64_t budget) {
    if (cache_bytes(d, max_len, max_len) <= budget)
        return max_len;
    int64_t low = 0, high = ceil_div(max_len, d->block_size);
    while (high - low > 1) {
        int64_t mid = low + (high - low) / 2, len = mid * d->block_size;
        *(cache_bytes(d, len, len) <= budget ? &low : &high) = mid;
    }
    return low * d->block_size;
}

/* The most tokens, in whole blocks and at most those of max_seqs full sequences, whose cache fits. */
static int64_t tokens_that_fit(const struct cache_demand *d, int64_t max_len, int64_t budget) {
    int64_t low = ceil_div(max_len, d->block_size), high = saturating_mul(low, d->max_seqs);
    high = MIN(high, INT32_MAX / 2) + 1;
    while (high - low > 1) {
        int64_t mid = low + (high - low) / 2;
        *(cache_bytes(d, mid * d->block_size, max_len) <= budget ? &low : &high) = mid;
    }
    return low * d->block_size;
}

/* A quarter of the memory, or less where weights, or others now, leave less; a sixteenth is for the rest, and the
 * cache's in any case, if it is free. */
static int64_t default_budget(const struct gyre_options *o, const struct engine_model *m, struct bucket bucket) {
    struct machine_memory memory;
    machine_memory_get(&memory);
    int64_t total = memory.total, least = MIN(total / 16, memory.available / 2);
    int64_t free_now =
        memory.available - m->made_bytes - m->mapped_bytes - engine_step_bytes(o, engine_own_program(m), bucket);
    return MAX(MIN(MIN(total / 4, total - m->weight_bytes - total / 16), free_now), least);
}

static enum status check_options(const struct gyre_options *o, const struct engine_model *m, struct error *err) {
    if (o->max_batched_tokens < 0 || o->max_batched_tokens > 1 << 20)
        return fail(err, ERR_ARG, "max_batched_tokens: %d is not between 1 and 1048576", o->max_batched_tokens);
    if (o->max_seqs < 0 || o->max_seqs > 1 << 14)
        return fail(err, ERR_ARG, "max_seqs: %d is not between 1 and 16384", o->max_seqs);
    if (o->block_size < 0 || o->block_size > 1 << 14 || (o->block_size & (o->block_size - 1)) != 0)
        return fail(err, ERR_ARG, "block_size: %d is not a power of two between 1 and 16384", o->block_size);
    if (o->kv_cache_bytes < 0)
        return fail(err, ERR_ARG, "kv_cache_bytes: %lld is negative", (long long)o->kv_cache_bytes);
    if (!(o->gpu_memory_utilization >= 0 && o->gpu_memory_utilization <= 1))
        return fail(err, ERR_ARG, "gpu_memory_utilization: %g is not between 0 and 1", o->gpu_memory_utilization);
    if (o->swap_bytes < 0)
        return fail(err, ERR_ARG, "swap_bytes: %lld is negative", (long long)o->swap_bytes);
    if (o->max_model_len < 0 || o->max_model_len > m->max_positions)
        return fail(err, ERR_ARG, "max_model_len: %lld is not between 1 and the %lld positions that the model has",
                    (long long)o->max_model_len, (long long)m->max_positions);
    return OK;
}

static struct bucket bucket_of(const struct gyre_options *o, const struct program *p) {
    int tokens = o->backend->default_tokens ? o->backend->default_tokens : DEFAULT_BATCHED_TOKENS;
    int seqs = o->backend->default_seqs ? o->backend->default_seqs : DEFAULT_SEQS;
    struct bucket b = {.max_tokens = o->max_batched_tokens ? o->max_batched_tokens : tokens,
                       .max_seqs = o->max_seqs ? o->max_seqs : seqs};
    b.max_seqs = MIN(b.max_seqs, b.max_tokens);
    int64_t rows = LOGIT_BYTES / ((int64_t)sizeof(float) * p->vocab_size);
    b.max_copies = (COPIES_A_SEQ + p->n_groups) * b.max_seqs;
    b.max_rows = (int)MAX((int64_t)b.max_seqs, MIN(rows, (int64_t)b.max_tokens));
    return b;
}

/* Who says how many tokens a step has means a prompt's too. */
static int chunk_of(const struct gyre_options *o, struct bucket b) {
    bool all = o->max_batched_tokens > 0 || o->backend->default_chunk == 0;
    return all ? b.max_tokens : MIN(o->backend->default_chunk, b.max_tokens);
}

struct program *engine_rings(const struct gyre_options *o, const struct engine_model *m) {
    int64_t longest = MIN(o->max_model_len > 0 ? o->max_model_len : m->max_positions, LONGEST);
    if (!o->backend->rings_beyond || longest <= o->backend->rings_beyond(o->device_options))
        return NULL;
    return pass_rings(m->program, MIN(chunk_of(o, bucket_of(o, m->program)), LONGEST)); // engine_size refuses more
}

static void fill_blocks(const struct cache_demand *d, int64_t n_tokens, int64_t max_len, struct cache_config *cache) {
    for (int g = 0; g < d->program->n_groups; g++) {
        if (d->program->groups[g].kind == CACHE_STATE)
            continue;
        cache->n_blocks[g] = (int)blocks_of(d, g, n_tokens, max_len);
        cache->table_width[g] = (int)ceil_div(max_len, d->block_size);
    }
}

/* As much of each group as swap_bytes are of the whole cache, and no more than max_seqs sequences can need. A step may
 * then begin with the copies of all of it, to a limit. */
static void size_host(const struct cache_demand *d, struct engine_sizes *out) {
    enum { MOST_COPIES = 1 << 16 };
    double share = (double)d->options->swap_bytes / (double)MAX(out->kv_cache_bytes, 1);
    int64_t n = 0;
    for (int g = 0; g < d->program->n_groups; g++) {
        int64_t one = kv_group_blocks_for(&d->program->groups[g], out->max_model_len, d->block_size, d->max_chunk);
        double most = (double)MIN(saturating_mul(one, d->max_seqs), INT32_MAX / 4);
        n += out->cache.n_host_blocks[g] = (int)MIN(out->cache.n_blocks[g] * share, most);
    }
    n += out->cache.n_host_states = (int)MIN(out->cache.n_states * share, d->max_seqs);
    out->bucket.max_copies += (int)MIN(n, MOST_COPIES);
}

/* Slots for recurrent state, one at least: for max_seqs sequences and their checkpoints, in at most half of the budget,
 * and fewer where the cache of one sequence of least_len tokens needs the room. Returns their bytes. */
static int64_t size_states(const struct cache_demand *d, int64_t budget, int64_t least_len, struct engine_sizes *out) {
    int64_t state = state_bytes(d);
    if (state == 0)
        return 0;
    int64_t useful = d->max_seqs * (int64_t)(d->options->no_prefix_cache ? 1 : 1 + CHECKPOINTS_A_SEQ);
    int64_t left = budget - cache_bytes(d, least_len, least_len);
    out->cache.n_states = (int)MAX(1, MIN(MIN(budget / 2, left) / state, useful));
    return saturating_mul(state, out->cache.n_states);
}

static enum status find_budget(const struct cache_demand *d, const struct engine_model *m, struct loaded *l,
                               struct bucket bucket, int64_t max_len, int64_t *out, struct error *err) {
    const struct gyre_options *o = d->options;
    int table_width[MAX_CACHE_GROUPS] = {0};
    *out = o->kv_cache_bytes ? o->kv_cache_bytes : default_budget(o, m, bucket);
    if (o->kv_cache_bytes || !o->backend->cache_room)
        return OK;
    for (int g = 0; g < m->program->n_groups; g++)
        if (m->program->groups[g].kind != CACHE_STATE)
            table_width[g] = (int)ceil_div(max_len, d->block_size);
    return o->backend->cache_room(l, bucket, 1, d->block_size, table_width, o->gpu_memory_utilization, out, err);
}

/* What is wanted, in whole MiB: never 0, and never what there is of too little. */
static long long mib_above(int64_t bytes) { return (long long)((bytes + (1 << 20) - 1) >> 20); }

enum status engine_size(const struct gyre_options *o, const struct engine_model *m, struct loaded *l,
                        struct engine_sizes *out, struct error *err) {
    TRY(check_options(o, m, err));
    *out = (struct engine_sizes){.bucket = bucket_of(o, m->program)};
    out->max_chunk = chunk_of(o, out->bucket);
    out->cache.block_size = o->block_size ? o->block_size : DEFAULT_BLOCK;
    struct cache_demand d = {o, l, engine_own_program(m), out->cache.block_size, out->max_chunk, out->bucket.max_seqs,
                             -1};
    if (m->draft && !m->draft->reads_target) {
        d.draft_group = draft_group(m->program);
        d.draft_bytes = draft_block_bytes(o, m->draft->step, d.block_size);
    }

    int64_t asked_len = MIN(o->max_model_len ? o->max_model_len : m->max_positions, LONGEST), budget;
    TRY(find_budget(&d, m, l, out->bucket, asked_len, &budget, err));
    int64_t states = size_states(&d, budget, o->max_model_len ? asked_len : 1, out);
    out->max_model_len = longest_that_fits(&d, asked_len, budget - states);
    if (states > budget || out->max_model_len == 0)
        return fail(err, ERR_MEMORY,
                    "the cache of one block of %d tokens does not fit in the %lld MiB that the cache may have",
                    out->cache.block_size, (long long)(budget >> 20));
    if (o->max_model_len && out->max_model_len < asked_len)
        return fail(err, ERR_MEMORY,
                    "max_model_len: the cache of a sequence of %lld tokens takes %lld MiB, and it may have %lld",
                    (long long)o->max_model_len, mib_above(cache_bytes(&d, asked_len, asked_len)),
                    (long long)(budget >> 20));
    out->kv_cache_tokens = tokens_that_fit(&d, out->max_model_len, budget - states);
    out->kv_cache_bytes = cache_bytes(&d, out->kv_cache_tokens, out->max_model_len) + states;
    fill_blocks(&d, out->kv_cache_tokens, out->max_model_len, &out->cache);
    size_host(&d, out);
    return OK;
}
