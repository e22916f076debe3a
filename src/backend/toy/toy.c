/* toy.c - see toy.h. */
#include "backend/toy/toy.h"

#include "base/clock.h"

#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

struct toy_faults toy_faults = {.bad_token = -1};

/* A slot of the cache is the hash of the tokens up to there, and its position in the lower bits. */
typedef uint64_t toy_slot;
enum { POSITION_BITS = 24 };
enum { NEAR = 4, SAMPLES = 2 }; // slots that a row looks at: the last ones, then each twice as far; and any others
enum { STATE_BYTES = 64 };
static const uint64_t POSITION_MASK = (1u << POSITION_BITS) - 1;

/* What the first n_kept tokens made, and those behind them as they came: it can go back to where any of these begins.
 */
struct toy_state {
    uint64_t hash;
    int32_t n_kept, n_behind, behind[TOY_MAX_BACK];
};

struct device {
    double step_us, token_us; // simulated
};

struct loaded {
    struct device *device;
    const struct program *program;
    struct cache_config config;
    int block_shift;
    toy_slot *slots[MAX_CACHE_GROUPS]; // [n_blocks * block_size]
    struct toy_state *states;          // [n_states]
    char *window;                      // NULL: it was never shared
};

struct executable {
    struct loaded *loaded;
    struct bucket bucket;
    struct toy_step {
        const struct batch_plan *plan;
        const struct sample_params *sample; // NULL: nobody has drawn yet
        int64_t ready_us;                   // when it may be collected
    } in_flight[2];                         // by turns
    int64_t n_started, n_collected;
    const struct batch_plan *plan; // that is computed
    const struct sample_params *sample;
    int32_t *row_token;      // [max_rows]: the tokens of the step collected last, for the next one's from_row ...
    int32_t *next_row_token; // ... and of the one that is computed
    int n_row_tokens;
    struct sample_scratch scratch;
    float *logits; // [max_rows, vocab_size]
};

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

// ---- the device -------------------------------------------------------------------------------------------------

static double microseconds_of(const char *variable) {
    const char *text = getenv(variable);
    double us = text ? strtod(text, NULL) : 0;
    return us > 0 && us < 1e7 ? us : 0;
}

static enum status toy_open(const struct device_options *options, struct device **out, struct error *err) {
    (void)options, (void)err;
    *out = xcalloc(1, sizeof **out);
    (*out)->step_us = microseconds_of("GYRE_TOY_STEP_US");
    (*out)->token_us = microseconds_of("GYRE_TOY_TOKEN_US");
    return OK;
}

static void toy_close(struct device *d) { free(d); }

static enum status toy_load(struct device *d, const struct program *p, const struct load_options *options,
                            struct loaded **out, struct error *err) {
    (void)options;
    TRY(backend_refuse_ranks("toy", p, err));
    *out = xcalloc(1, sizeof **out);
    **out = (struct loaded){.device = d, .program = p};
    return OK;
}

static enum status toy_alloc_cache(struct loaded *l, const struct cache_config *config, struct error *err) {
    const struct program *p = l->program;
    l->config = *config;
    l->block_shift = __builtin_ctz((unsigned)config->block_size);
    for (int g = 0; g < p->n_groups; g++) {
        size_t n = (size_t)(config->n_blocks[g] + config->n_host_blocks[g]) * (size_t)config->block_size;
        l->slots[g] = calloc(n + 1, sizeof *l->slots[g]); // pages of zeros, until a sequence uses them
        if (!l->slots[g])
            return fail(err, ERR_MEMORY, "%s: no memory for a cache of %d blocks", p->name, config->n_blocks[g]);
    }
    l->states = xcalloc((size_t)(config->n_states + config->n_host_states), sizeof *l->states);
    return OK;
}

/* 8 bytes a token, whatever the group. */
static int64_t toy_block_bytes(const struct loaded *l, int group, int block_size) {
    return l->program->groups[group].kind == CACHE_STATE ? STATE_BYTES : (int64_t)sizeof(toy_slot) * block_size;
}

static int64_t toy_handed_bytes(const struct loaded *l, int g) { return toy_block_bytes(l, g, l->config.block_size); }

/* Of a block, or of a slot's state, which takes less than what a slot counts as. */
static void *toy_at(const struct loaded *l, int group, int block, size_t *n) {
    bool is_state = l->program->groups[group].kind == CACHE_STATE;
    size_t size = (size_t)l->config.block_size;
    BUG_IF(block < 0 || block >= (is_state ? l->config.n_states + l->config.n_host_states
                                           : l->config.n_blocks[group] + l->config.n_host_blocks[group]));
    *n = is_state ? sizeof *l->states : size * sizeof(toy_slot);
    return is_state ? (void *)&l->states[block] : &l->slots[group][(size_t)block * size];
}
_Static_assert(sizeof(struct toy_state) <= STATE_BYTES, "a slot's bytes hold its state");

static enum status toy_get_cache(struct loaded *l, int group, const int32_t *blocks, int n, void *out, size_t stride,
                                 struct error *err) {
    (void)err;
    for (int i = 0; i < n; i++) {
        size_t size;
        const void *at = toy_at(l, group, blocks[i], &size);
        char *to = (char *)out + (size_t)i * stride;
        memset(to, 0, (size_t)toy_handed_bytes(l, group));
        memcpy(to, at, size);
    }
    return OK;
}

static enum status toy_put_cache(struct loaded *l, int group, const int32_t *blocks, int n, const void *in,
                                 size_t stride, struct error *err) {
    (void)err;
    for (int i = 0; i < n; i++) {
        size_t size;
        void *at = toy_at(l, group, blocks[i], &size);
        memcpy(at, (const char *)in + (size_t)i * stride, size);
    }
    return OK;
}

static enum status toy_compile(struct loaded *l, struct bucket bucket, struct executable **out, struct error *err) {
    (void)err;
    size_t n_vocab = (size_t)l->program->vocab_size;
    struct executable *exe = xcalloc(1, sizeof *exe);
    *exe = (struct executable){.loaded = l, .bucket = bucket};
    sample_scratch_init(&exe->scratch, l->program->vocab_size);
    exe->row_token = xcalloc((size_t)bucket.max_rows, sizeof *exe->row_token);
    exe->next_row_token = xcalloc((size_t)bucket.max_rows, sizeof *exe->next_row_token);
    exe->logits = xcalloc((size_t)bucket.max_rows * n_vocab, sizeof *exe->logits);
    *out = exe;
    return OK;
}

// ---- the cache --------------------------------------------------------------------------------------------------

/* Of sequence s of the step; whatever stands there. */
static toy_slot *slot_at(const struct executable *exe, int group, int s, int32_t position) {
    const struct loaded *l = exe->loaded;
    int32_t at = position >> l->block_shift, width = exe->plan->table_width[group];
    BUG_IF(position < 0 || at >= width);
    int32_t block = exe->plan->block_table[group][(size_t)s * (size_t)width + (size_t)at];
    BUG_IF(block < 0 || block >= l->config.n_blocks[group]);
    return &l->slots[group][((size_t)block << l->block_shift) + (size_t)(position & (l->config.block_size - 1))];
}

/* What was written for this position. */
static toy_slot read_slot(const struct executable *exe, int group, int s, int32_t position) {
    toy_slot slot = *slot_at(exe, group, s, position);
    BUG_IF((slot & POSITION_MASK) != (uint64_t)position);
    return slot;
}

static bool is_paged(const struct executable *exe, int group) {
    return exe->loaded->program->groups[group].kind != CACHE_STATE;
}

/* The first position that a token at `position` can see. */
static int32_t first_visible(const struct executable *exe, int group, int32_t position) {
    int window = exe->loaded->program->groups[group].window;
    return window ? MAX(0, position - window + 1) : 0;
}

static void store_in_group(const struct executable *exe, int group, int s, int32_t position, int32_t token) {
    uint64_t before =
        position > first_visible(exe, group, position) ? read_slot(exe, group, s, position - 1) : (uint64_t)group + 1;
    *slot_at(exe, group, s, position) = (mix(before, (uint64_t)token + 1) & ~POSITION_MASK) | (uint64_t)position;
}

/* Returns the hash of all that the recurrent state has seen. */
static uint64_t store_in_state(const struct executable *exe, int s, int32_t position, int32_t token) {
    int32_t slot = exe->plan->state_slot[s];
    BUG_IF(slot < 0 || slot >= exe->loaded->config.n_states);
    struct toy_state *state = &exe->loaded->states[slot];
    if (position == 0)
        *state = (struct toy_state){0};
    BUG_IF(position < state->n_kept || position > state->n_kept + state->n_behind);
    state->n_behind = position - state->n_kept;
    if (state->n_behind == TOY_MAX_BACK) {
        state->hash = mix(state->hash, (uint64_t)state->behind[0] + 1);
        memmove(state->behind, state->behind + 1, (TOY_MAX_BACK - 1) * sizeof *state->behind);
        state->n_kept++;
        state->n_behind--;
    }
    state->behind[state->n_behind++] = token;
    uint64_t hash = state->hash;
    for (int i = 0; i < state->n_behind; i++)
        hash = mix(hash, (uint64_t)state->behind[i] + 1);
    return hash;
}

/* With an adapter a token is another one. */
static uint64_t store_token(const struct executable *exe, int s, int32_t position, int32_t token) {
    uint64_t h = 0;
    token = (int32_t)((uint32_t)token ^ (uint32_t)exe->plan->adapter[s] * 0x9E3779B1u);
    for (int g = 0; g < exe->loaded->program->n_groups; g++)
        if (is_paged(exe, g))
            store_in_group(exe, g, s, position, token);
        else
            h = store_in_state(exe, s, position, token);
    return h;
}

/* Row `row`'s slots, in the blocks of other sequences too. */
static void keep_also(const struct executable *exe, int s, int row, int32_t position) {
    for (int i = 0; i < exe->plan->n_also; i++)
        for (int g = 0; exe->plan->also[i].row == row && g < exe->loaded->program->n_groups; g++)
            *slot_at(exe, g, exe->plan->also[i].seq, position) = read_slot(exe, g, s, position);
}

/* What a row at `position` sees of a group. */
static uint64_t look_at_group(const struct executable *exe, int group, int s, int32_t position) {
    int32_t first = first_visible(exe, group, position);
    uint64_t h = 0;
    for (int32_t back = 0; back <= position - first; back = back < NEAR ? back + 1 : 2 * back)
        h = mix(h, read_slot(exe, group, s, position - back));
    uint64_t any = read_slot(exe, group, s, position);
    for (int i = 0; i < SAMPLES; i++, any = mix(any, 1))
        h = mix(h, read_slot(exe, group, s, first + (int32_t)((any >> 32) % (uint64_t)(position - first + 1))));
    return h;
}

// ---- a step -----------------------------------------------------------------------------------------------------

static bool fails_now(atomic_int *steps) { return *steps > 0 && atomic_fetch_sub(steps, 1) == 1; }

static enum status toy_run(struct executable *exe, const struct batch_plan *plan, const struct sample_params *sample,
                           struct error *err) {
    if (fails_now(&toy_faults.run_fails_in))
        return fail(err, ERR_DEVICE, "the toy broke when it was started");
    const struct device *d = exe->loaded->device;
    BUG_IF(exe->n_started - exe->n_collected == backend_toy.max_in_flight);
    const struct toy_step *before = &exe->in_flight[(exe->n_started - 1) & 1];
    BUG_IF(exe->n_started > exe->n_collected && !before->sample);
    struct toy_step *step = &exe->in_flight[exe->n_started++ & 1];
    *step = (struct toy_step){.plan = plan, .sample = sample};
    if (d->step_us > 0 || d->token_us > 0)
        step->ready_us = MAX(clock_us(), before->ready_us) + (int64_t)(d->step_us + d->token_us * plan->n_tokens);
    return OK;
}

static enum status toy_draw(struct executable *exe, const struct sample_params *sample, struct error *err) {
    (void)err;
    struct toy_step *step = &exe->in_flight[(exe->n_started - 1) & 1];
    BUG_IF(exe->n_started == exe->n_collected || step->sample || !sample);
    step->sample = sample;
    return OK;
}

/* The token of a row of the step before. */
static int32_t token_of_row(const struct executable *exe, int32_t row) {
    BUG_IF(row < 0 || row >= exe->n_row_tokens);
    return exe->row_token[row];
}

/* The winner stands above all others, so that it can be known without them. */
static void fill_logits(float *logits, int32_t n, uint64_t h, int32_t winner) {
    for (int32_t v = 0; v < n; v++)
        logits[v] = (float)(mix(h, (uint64_t)v + 1000) >> 40) * 0x1p-21f; // 0 .. 8
    logits[winner] = 8.5f;
}

static void sample(struct executable *exe, int out, uint64_t h, int32_t token, struct sample_result *result) {
    int32_t n = exe->loaded->program->vocab_size, winner = (int32_t)((h >> 20) % (uint64_t)n);
    struct sample_params params = exe->sample[out];
    if (sample_is_plain(&params)) {
        result->token = result->argmax = winner;
        result->logprob = 0; // nobody asked
        result->not_finite = token == toy_faults.bad_token;
        result->nothing_left = false;
        return;
    }
    float *logits = exe->logits + (size_t)out * (size_t)n;
    fill_logits(logits, n, h, winner);
    if (token == toy_faults.bad_token)
        logits[0] = NAN;
    if (params.has_newest)
        params.newest = token_of_row(exe, params.newest_row);
    sample_row(logits, n, &params, &exe->scratch, result);
}

static void run_row(struct executable *exe, int s, int row, int *out, struct sample_result *results) {
    const struct batch_plan *plan = exe->plan;
    int32_t position = plan->position[row], from_row = plan->from_row[row];
    int32_t token = from_row < 0 ? plan->token_id[row] : token_of_row(exe, from_row);
    BUG_IF(token < 0 || token >= exe->loaded->program->vocab_size);
    uint64_t h = store_token(exe, s, position, token);
    keep_also(exe, s, row, position);
    if (*out == plan->n_rows || plan->out_row[*out] != row)
        return;
    for (int g = 0; g < exe->loaded->program->n_groups; g++)
        if (is_paged(exe, g))
            h = mix(h, look_at_group(exe, g, s, position));
    sample(exe, *out, h, token, &results[*out]);
    exe->next_row_token[*out] = results[*out].token;
    ++*out;
}

static void run_sequence(struct executable *exe, int s, int *out, struct sample_result *results) {
    const struct batch_plan *plan = exe->plan;
    int first = plan->query_start[s], end = plan->query_start[s + 1];
    BUG_IF(first >= end || plan->seq_len[s] != plan->position[end - 1] + 1 || plan->n_known[s] < plan->seq_len[s]);
    for (int row = first; row < end; row++) {
        BUG_IF(plan->position[row] != plan->position[first] + row - first);
        run_row(exe, s, row, out, results);
    }
}

static void sleep_until(int64_t us) {
    struct timespec t = {.tv_sec = us / 1000000, .tv_nsec = us % 1000000 * 1000};
    while (clock_us() < us)
        clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL);
}

static void copy_cache(const struct executable *exe) {
    struct loaded *l = exe->loaded;
    for (int i = 0; i < exe->plan->n_copies; i++) {
        struct cache_copy c = exe->plan->copies[i];
        int n = c.group == STATE_SLOTS ? l->config.n_states + l->config.n_host_states
                                       : l->config.n_blocks[c.group] + l->config.n_host_blocks[c.group];
        BUG_IF(c.from < 0 || c.from >= n || c.to < 0 || c.to >= n || c.from == c.to);
        if (c.group == STATE_SLOTS) {
            l->states[c.to] = l->states[c.from];
            continue;
        }
        size_t size = (size_t)l->config.block_size;
        memcpy(l->slots[c.group] + (size_t)c.to * size, l->slots[c.group] + (size_t)c.from * size,
               size * sizeof(toy_slot));
    }
}

static enum status toy_collect(struct executable *exe, struct sample_result *results, struct error *err) {
    BUG_IF(exe->n_collected == exe->n_started);
    const struct toy_step *step = &exe->in_flight[exe->n_collected++ & 1];
    const struct batch_plan *plan = exe->plan = step->plan;
    exe->sample = step->sample;
    BUG_IF(!exe->sample && plan->n_rows > 0);
    if (fails_now(&toy_faults.collect_fails_in))
        return fail(err, ERR_DEVICE, "the toy broke while it computed");
    BUG_IF(plan->n_tokens > exe->bucket.max_tokens || plan->n_seqs > exe->bucket.max_seqs ||
           plan->n_rows > exe->bucket.max_rows);
    BUG_IF(plan->n_tokens <= 0 || plan->query_start[0] != 0 || plan->query_start[plan->n_seqs] != plan->n_tokens);
    int out = 0;
    copy_cache(exe);
    for (int s = 0; s < plan->n_seqs; s++)
        run_sequence(exe, s, &out, results);
    BUG_IF(out != plan->n_rows);
    int32_t *tokens = exe->row_token;
    exe->row_token = exe->next_row_token;
    exe->next_row_token = tokens;
    exe->n_row_tokens = plan->n_rows;
    if (step->ready_us > 0)
        sleep_until(step->ready_us);
    return OK;
}

static enum status toy_logits(struct executable *exe, int row, const float **out, struct error *err) {
    if (toy_faults.logits_fail_in > 0 && --toy_faults.logits_fail_in == 0)
        return fail(err, ERR_DEVICE, "the toy broke when its logits were fetched");
    *out = exe->logits + (size_t)row * (size_t)exe->loaded->program->vocab_size;
    return OK;
}

static void toy_free_executable(struct executable *exe) {
    sample_scratch_release(&exe->scratch);
    free(exe->logits);
    free(exe->row_token);
    free(exe->next_row_token);
    free(exe);
}

static void toy_unload(struct loaded *l) {
    for (int g = 0; g < MAX_CACHE_GROUPS; g++)
        free(l->slots[g]);
    free(l->states);
    free(l->window);
    free(l);
}

static void toy_memory(const struct device *d, struct device_memory *out) { (void)d, *out = (struct device_memory){0}; }

static int toy_report(const struct executable *exe, struct device_report out[MAX_DEVICE_REPORTS]) {
    int64_t rows = exe->bucket.max_rows, vocab = exe->loaded->program->vocab_size;
    int64_t step = rows * (2 * (int64_t)sizeof(int32_t) + vocab * (int64_t)sizeof(float)) + sample_scratch_bytes(vocab);
    out[0] = (struct device_report){"step_bytes", "a step: values, scratch, results", "bytes", NULL, step};
    return 1;
}

/* A window of the host's memory, which this process alone reaches: its name is where it lies, and in which process. */
struct toy_window {
    pid_t process;
    char *at, none[48];
    uint64_t number;
};
_Static_assert(sizeof(struct toy_window) == WINDOW_NAME, "all of it is the name");

static enum status toy_share(struct loaded *l, char name[WINDOW_NAME], struct error *err) {
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    pthread_mutex_lock(&lock);
    if (!l->window) {
        l->window = calloc(1, WINDOW_MEMORY); // pages of zeros
        BUG_IF(l->window && getrandom(l->window + WINDOW_BYTES, sizeof(uint64_t), 0) != sizeof(uint64_t));
    }
    pthread_mutex_unlock(&lock);
    if (!l->window)
        return fail(err, ERR_UNSUPPORTED, "no memory for a window");
    struct toy_window w = {.process = getpid(), .at = l->window};
    memcpy(&w.number, l->window + WINDOW_BYTES, sizeof w.number);
    memset(name, 0, WINDOW_NAME);
    memcpy(name, &w, sizeof w);
    return OK;
}

static enum status toy_show(struct loaded *l, int group, const int32_t *blocks, int n, size_t at, struct error *err) {
    size_t each = (size_t)toy_handed_bytes(l, group);
    BUG_IF(at + (size_t)n * each > WINDOW_BYTES);
    return toy_get_cache(l, group, blocks, n, l->window + at, each, err);
}

static enum status toy_take(struct loaded *l, const char name[WINDOW_NAME], int group, const int32_t *blocks, int n,
                            size_t at, struct error *err) {
    struct toy_window w;
    memcpy(&w, name, sizeof w);
    if (w.process != getpid() || toy_faults.no_windows || memcmp(w.at + WINDOW_BYTES, &w.number, sizeof w.number) != 0)
        return fail(err, ERR_UNSUPPORTED, "a toy's window is of its process alone");
    return toy_put_cache(l, group, blocks, n, w.at + at, (size_t)toy_handed_bytes(l, group), err);
}

static const struct backend_handover toy_handover = {.bytes = toy_handed_bytes,
                                                     .get = toy_get_cache,
                                                     .put = toy_put_cache,
                                                     .share = toy_share,
                                                     .show = toy_show,
                                                     .take = toy_take};

const struct backend_ops backend_toy = {
    .name = "toy",
    .ragged = true,
    .rejects = true,
    .branches = true,
    .no_weights = true,
    .max_back = TOY_MAX_BACK,
    .max_in_flight = 2,
    .open = toy_open,
    .memory = toy_memory,
    .close = toy_close,
    .load = toy_load,
    .unload = toy_unload,
    .alloc_cache = toy_alloc_cache,
    .cache_block_bytes = toy_block_bytes,
    .handover = &toy_handover,
    .compile = toy_compile,
    .free_executable = toy_free_executable,
    .report = toy_report,
    .run = toy_run,
    .draw = toy_draw,
    .collect = toy_collect,
    .logits = toy_logits,
};
