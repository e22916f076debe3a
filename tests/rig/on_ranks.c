/* on_ranks.c - see on_ranks.h. */
#include "on_ranks.h"

#include <math.h>

static const double BOUND = 2e-3, LEAST_MARGIN = 0.01, SMALL_BOUND = 2e-5; // the last: of the largest logit

uint64_t test_random(void) { // xorshift64*
    static uint64_t state;
    state = state ? state : test_seed();
    state ^= state >> 12;
    state ^= state << 25;
    state ^= state >> 27;
    return state * 2685821657736338717ull >> 16;
}

/* ---- models ---- */

void scene_open(struct scene *sc, const char *folder) {
    char path[300];
    struct error err;
    *sc = (struct scene){.folder = folder};
    EXPECT_OK(model_open(folder, &(struct model_options){0}, &sc->model, &err), err);
    snprintf(path, sizeof path, "%s/golden.json", folder);
    EXPECT_OK(jv_load(path, 1 << 24, 0, &sc->golden, &err), err);
    const json_t *cases = json_object_get(sc->golden, "cases");
    sc->n_seqs = (int)json_array_size(cases);
    EXPECT(sc->n_seqs > 0 && sc->n_seqs <= MAX_SEQS);
    for (int i = 0; i < sc->n_seqs; i++) {
        struct seq *q = &sc->seqs[i];
        q->golden = json_array_get(cases, (size_t)i);
        const json_t *ids = json_object_get(q->golden, "ids");
        q->n_prompt = (int)json_array_size(ids);
        EXPECT(q->n_prompt > 0 && q->n_prompt + N_DECODE <= MAX_LEN);
        for (int t = 0; t < q->n_prompt; t++)
            q->tokens[t] = (int32_t)json_integer_value(json_array_get(ids, (size_t)t));
        sc->table_width = MAX(sc->table_width, (q->n_prompt + N_DECODE + BLOCK - 1) / BLOCK);
    }
}

/* Without the longer prompts. */
void scene_shorten(struct scene *sc, int most) {
    int n = 0;
    for (int i = 0; i < sc->n_seqs; i++)
        if (sc->seqs[i].n_prompt <= most)
            sc->seqs[n++] = sc->seqs[i];
    sc->n_seqs = n;
}

void scene_close(struct scene *sc) {
    json_decref(sc->golden);
    model_free(sc->model);
}

static double number_at(const json_t *object, const char *key, int i) {
    return json_number_value(json_array_get(json_object_get(object, key), (size_t)i));
}

/* ---- ranks ---- */

static struct bucket bucket_of(const struct scene *sc) { return (struct bucket){MAX_STEP, sc->n_seqs, sc->n_seqs, 0}; }

void ranks_compile(const struct scene *sc, struct ranks *r, struct how how) {
    struct loaded *loaded[MAX_RANKS];
    struct cache_config config = {.block_size = BLOCK, .n_states = sc->n_seqs};
    struct error err;
    for (int i = 0; i < r->n; i++) {
        EXPECT_OK(on_device_load(&backend_cpu, how, r->programs[i], &r->at[i], &err), err);
        loaded[i] = r->at[i].loaded;
    }
    if (r->n > 1)
        EXPECT_OK(backend_cpu.join(loaded, r->n, &err), err);
    for (int g = 0; g < r->programs[0]->n_groups; g++) {
        config.n_blocks[g] = sc->n_seqs * sc->table_width;
        config.table_width[g] = sc->table_width;
    }
    for (int i = 0; i < r->n; i++) {
        EXPECT_OK(backend_cpu.alloc_cache(loaded[i], &config, &err), err);
        EXPECT_OK(backend_cpu.compile(loaded[i], bucket_of(sc), &r->at[i].exe, &err), err);
    }
    r->pool = pool_open(r->n);
}

/* The sentence, if the model cannot be cut so. */
static bool ranks_open(const struct scene *sc, int n, bool by_expert, struct how how, struct ranks *r,
                       struct error *err) {
    *r = (struct ranks){.n = n};
    for (int i = 0; i < n; i++) {
        struct shard_options options = {i, n, by_expert};
        enum status st = pass_shard(sc->model->program, &options, &r->programs[i], err);
        EXPECT(st == OK || (st == ERR_UNSUPPORTED && i == 0 && !r->programs[i]));
        if (st != OK)
            return false;
    }
    ranks_compile(sc, r, how);
    return true;
}

void whole_open(const struct scene *sc, struct how how, struct ranks *r) {
    *r = (struct ranks){.n = 1};
    r->programs[0] = program_copy(sc->model->program);
    ranks_compile(sc, r, how);
}

void ranks_close(struct ranks *r) {
    for (int i = 0; i < r->n; i++) {
        on_device_close(&r->at[i]);
        program_free(r->programs[i]);
    }
    pool_free(r->pool);
}

static void run_rank(void *arg, int rank, int n_ranks) {
    struct ranks *r = arg;
    struct error err;
    (void)n_ranks;
    r->status[rank] = on_device_step(&r->at[rank], r->plan, r->sample, false, r->results[rank], &err);
}

void ranks_step(struct ranks *r, const struct scene *sc) {
    r->plan = &sc->plan;
    r->sample = sc->sample;
    pool_run(r->pool, run_rank, r);
    for (int i = 0; i < r->n; i++)
        EXPECT_EQ(r->status[i], OK);
}

const float *ranks_logits(const struct ranks *r, int rank, int row) {
    const float *out;
    struct error err;
    EXPECT_OK(backend_cpu.logits(r->at[rank].exe, row, &out, &err), err);
    return out;
}

/* ---- steps ---- */

static void add_chunk(struct scene *sc, int s, int n) {
    struct batch_plan *p = &sc->plan;
    struct seq *q = &sc->seqs[s];
    int at = p->n_seqs++;
    for (int i = 0; i < n; i++) {
        p->token_id[p->n_tokens] = q->tokens[q->n_computed];
        p->from_row[p->n_tokens] = -1;
        p->position[p->n_tokens++] = q->n_computed++;
    }
    p->query_start[at + 1] = p->n_tokens;
    p->seq_len[at] = q->n_computed;
    p->n_known[at] = q->n_tokens;
    p->state_slot[at] = s;
    p->adapter[at] = q->adapter;
    for (int g = 0; g < sc->model->program->n_groups; g++)
        for (int i = 0; i < sc->table_width; i++)
            p->block_table[g][at * sc->table_width + i] = s * sc->table_width + i;
    if (q->n_computed < q->n_tokens)
        return;
    sc->row_seq[p->n_rows] = s;
    sc->sample[p->n_rows] = sample_params_default();
    sc->sample[p->n_rows].want_logits = true;
    p->out_row[p->n_rows++] = p->n_tokens - 1;
}

bool scene_step(struct scene *sc) {
    struct batch_plan *p = &sc->plan;
    p->n_tokens = p->n_seqs = p->n_rows = 0;
    bool is_left = false;
    for (int s = 0; s < sc->n_seqs; s++) {
        const struct seq *q = &sc->seqs[s];
        int left = MIN(q->n_tokens - q->n_computed, MAX_STEP - p->n_tokens), n = (int)(test_random() % MAX_CHUNK) + 1;
        is_left = is_left || left > 0;
        if (left > 0 && (test_random() % 4 || p->n_tokens == 0))
            add_chunk(sc, s, MIN(n, left));
    }
    return is_left;
}

static double margin_of(const float *logits, int n) {
    float best = -INFINITY, next = -INFINITY;
    for (int i = 0; i < n; i++) {
        next = logits[i] > best ? best : fmaxf(next, logits[i]);
        best = fmaxf(best, logits[i]);
    }
    return (double)best - (double)next;
}

static int best_of(const float *logits, int n) {
    int best = 0;
    for (int i = 1; i < n; i++)
        if (logits[i] > logits[best])
            best = i;
    return best;
}

static void check_row(struct scene *sc, const struct ranks *whole, const struct ranks *r, int row, const char *how) {
    const struct seq *q = &sc->seqs[sc->row_seq[row]];
    int n = sc->model->program->vocab_size, n_drawn = q->n_tokens - q->n_prompt;
    const float *want = ranks_logits(whole, 0, row), *is = ranks_logits(r, 0, row);
    double off = 0, largest = 0;
    for (int i = 0; i < n; i++) {
        largest = fmax(largest, fabs((double)want[i]));
        off = fmax(off, fabs((double)want[i] - (double)is[i]));
        if (n_drawn == 0 && q->golden)
            off = fmax(off, fabs(number_at(q->golden, "last_logits", i) - (double)is[i]));
    }
    if (!(off <= (q->golden ? BOUND : SMALL_BOUND * largest)))
        fail_msg("%s, %s: logits of sequence %d, token %d, are off by %g", sc->folder, how, sc->row_seq[row], n_drawn,
                 off);
    sc->worst = fmax(sc->worst, off);
    if (margin_of(want, n) >= LEAST_MARGIN * (q->golden ? 1 : largest))
        EXPECT_EQ(r->results[0][row].token, whole->results[0][row].token);
    EXPECT_EQ(r->results[0][row].token, best_of(is, n));
    for (int i = 1; i < r->n; i++) {
        EXPECT(memcmp(is, ranks_logits(r, i, row), (size_t)n * sizeof *is) == 0);
        EXPECT_EQ(r->results[i][row].token, r->results[0][row].token);
    }
}

void scene_begin(struct scene *sc) {
    int width[MAX_CACHE_GROUPS];
    for (int g = 0; g < MAX_CACHE_GROUPS; g++)
        width[g] = sc->table_width;
    batch_plan_init(&sc->plan, bucket_of(sc), sc->model->program->n_groups, width);
    for (int s = 0; s < sc->n_seqs; s++) {
        sc->seqs[s].n_computed = 0;
        sc->seqs[s].n_tokens = sc->seqs[s].n_prompt;
    }
}

/* The sequences once through, from the beginning. */
void ranks_compare(struct scene *sc, struct ranks *whole, struct ranks *r, const char *how) {
    scene_begin(sc);
    while (scene_step(sc)) {
        ranks_step(whole, sc);
        ranks_step(r, sc);
        for (int row = 0; row < sc->plan.n_rows; row++) {
            struct seq *q = &sc->seqs[sc->row_seq[row]];
            check_row(sc, whole, r, row, how);
            if (q->n_tokens < q->n_prompt + N_DECODE)
                q->tokens[q->n_tokens++] = whole->results[0][row].token;
        }
    }
    batch_plan_release(&sc->plan);
}

void scene_compare(struct scene *sc, struct ranks *whole, int n, bool by_expert, struct how how, const char *refusal) {
    char text[80];
    struct ranks r;
    struct error err;
    snprintf(text, sizeof text, "%d ranks%s", n, by_expert ? ", experts apart" : "");
    if (!ranks_open(sc, n, by_expert, how, &r, &err)) {
        if (!refusal || !strstr(err.text, refusal))
            fail_msg("%s, %s: %s", sc->folder, text, err.text);
        return;
    }
    if (refusal)
        fail_msg("%s, %s: is not refused", sc->folder, text);
    ranks_compare(sc, whole, &r, text);
    ranks_close(&r);
}
