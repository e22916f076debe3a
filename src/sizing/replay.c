/* replay.c - see replay.h. A heap of engines by the time at which their step ends; arrivals come between. */
#include "sizing/replay.h"

#include "base/random.h"
#include "engine/lanes/choose.h"
#include "sched/scheduler.h"

#include <math.h>
#include <stdlib.h>

enum { VOCABULARY = 1 << 30, MOST_KINDS = 48 }; // so that texts begin alike where the trace says so alone

struct job {
    const struct trace_request *of;
    int copy, index;
    double came_s, first_s, started_s;
    int64_t plain_us; // what the queue's model said, uncorrected
    struct arena memory;
    struct sequence sequence;
    bool has_started;
};

struct front;

struct sim_engine {
    struct front *front;
    struct kv_pool pool;
    struct scheduler scheduler;
    struct queue_model queue;
    double step_s, ends_s, busy_s; // of the step in flight
    bool computes;
    int64_t n_accepted, n_running_jobs;
};

/* Engines [first, first + n) behind one front. */
struct front {
    struct affinity *affinity;
    int first, n;
};

struct replay {
    const struct trace *trace;
    const struct replay_options *o;
    struct sim_engine *engines; // [n_engines]
    struct front *fronts;       // [n_fronts]
    int *heap, n_heap;          // engines that compute, by ends_s
    struct cache_copy *copies;  // [max_copies], of no use
    struct job *jobs;           // [n_copies * n_requests], by came_s
    int64_t n_jobs;
    double *ttft, *tpot; // [n_done]
    int64_t n_tpot;
    double now_s, ends_s;
    struct replay_result result;
};

// ---- sizes ------------------------------------------------------------------------------------------------------

/* Blocks of a group for n_tokens of all sequences, none longer than longest. */
static int64_t blocks_of(const struct replay *r, const struct cache_group *g, int64_t n_tokens, int64_t longest) {
    int bs = r->o->sizing->block_size;
    int64_t one = kv_group_blocks_for(g, longest, bs, r->o->max_tokens);
    return MAX(MIN((n_tokens + bs - 1) / bs, one * r->o->max_seqs), 1);
}

static double cache_bytes(const struct replay *r, int64_t n_tokens, int64_t longest) {
    const struct layout *l = r->o->layout;
    double bytes = 0;
    for (int i = 0; i < l->program->n_groups; i++)
        if (l->program->groups[i].kind != CACHE_STATE)
            bytes += (double)blocks_of(r, &l->program->groups[i], n_tokens, longest) *
                     step_model_block_bytes(l->model, i, r->o->sizing->block_size) / l->pp;
    return bytes;
}

/* Of cards, but no more than the requests that an engine can ever get would fill: a thousand engines are simulated in
 * the memory of one machine. */
static int64_t tokens_that_fit(const struct replay *r, int64_t longest, double room) {
    int64_t all = 0;
    for (int i = 0; i < r->o->n_requests; i++)
        all += r->trace->requests[i].n_input + r->trace->requests[i].n_output;
    double mine = 8.0 * (double)all * r->o->n_copies / r->o->n_engines + 4.0 * (double)longest;
    int64_t low = r->o->sizing->block_size, high = (int64_t)fmin(mine, 1 << 26);
    if (high <= low || cache_bytes(r, high, longest) <= room)
        return MAX(low, high);
    while (high - low > r->o->sizing->block_size) {
        int64_t mid = low + (high - low) / 2;
        *(cache_bytes(r, mid, longest) <= room ? &low : &high) = mid;
    }
    return low;
}

static int most_copies(const struct replay_options *o) { return (3 + o->layout->program->n_groups) * o->max_seqs; }

static bool has_states(const struct program *p) {
    for (int i = 0; i < p->n_groups; i++)
        if (p->groups[i].kind == CACHE_STATE)
            return true;
    return false;
}

static void open_engine(struct replay *r, struct sim_engine *e, struct front *front) {
    const struct replay_options *o = r->o;
    const struct program *p = o->layout->program;
    enum { SLOTS_A_SEQ = 3 };
    int n_states = has_states(p) ? SLOTS_A_SEQ * o->max_seqs : 0;
    double states = 0;
    for (int i = 0; i < p->n_groups; i++)
        if (p->groups[i].kind == CACHE_STATE)
            states += n_states * step_model_block_bytes(o->layout->model, i, 1) / o->layout->pp;
    double room = fmax(o->layout->cache_room - fmin(states, o->layout->cache_room / 2), 0);
    int64_t n_tokens = tokens_that_fit(r, o->max_len, room);
    struct kv_pool_options pool = {.groups = p->groups,
                                   .n_groups = p->n_groups,
                                   .block_size = o->sizing->block_size,
                                   .max_chunk = o->max_tokens,
                                   .max_copies = most_copies(o),
                                   .n_states = n_states,
                                   .remember_tokens = program_rope_depends_on_length(p) ? 0 : n_tokens};
    for (int i = 0; i < p->n_groups; i++) {
        pool.n_blocks[i] =
            p->groups[i].kind == CACHE_STATE ? 0 : (int)blocks_of(r, &p->groups[i], n_tokens, o->max_len);
        pool.block_bytes[i] = (int64_t)step_model_block_bytes(o->layout->model, i, o->sizing->block_size);
    }
    *e = (struct sim_engine){.front = front};
    kv_pool_init(&e->pool, &pool);
    scheduler_init(&e->scheduler, &e->pool,
                   (struct step_limits){o->max_tokens, o->max_seqs, o->max_tokens, o->itl_target_us});
    queue_model_init(&e->queue, 1);
}

static void close_engine(struct sim_engine *e) {
    scheduler_release(&e->scheduler);
    kv_pool_release(&e->pool);
    queue_model_release(&e->queue);
}

// ---- requests ---------------------------------------------------------------------------------------------------

static uint64_t mixed(uint64_t h, uint64_t x) {
    h = (h ^ x) * 0x9e3779b97f4a7c15u;
    return h ^ h >> 29;
}

/* Of a prompt: what has the same id in the same copy is the same text. */
static int32_t token_at(const struct job *j, int32_t position) {
    int block = position / TRACE_BLOCK;
    bool is_shared = block < j->of->n_blocks;
    uint64_t id = is_shared ? (uint64_t)(uint32_t)j->of->blocks[block] : (uint64_t)j->index << 32;
    uint64_t h = mixed(mixed(mixed((uint64_t)j->copy + 1, id), is_shared), (uint64_t)position % TRACE_BLOCK);
    if (!is_shared)
        h = mixed(h, (uint64_t)position);
    return (int32_t)(h % VOCABULARY);
}

static bool fits(const struct replay *r, const struct job *j, const struct sim_engine *e) {
    int64_t n = (int64_t)j->of->n_input + j->of->n_output;
    return n <= r->o->max_len && kv_pool_could_hold(&e->pool, n);
}

static int by_came(const void *a, const void *b) {
    const struct job *x = a, *y = b;
    if (x->came_s != y->came_s)
        return x->came_s < y->came_s ? -1 : 1;
    return x->copy != y->copy ? x->copy - y->copy : x->index - y->index;
}

/* Copies are shifted by up to a third of the trace's length, so that they do not all burst at once. */
static void make_jobs(struct replay *r) {
    const struct replay_options *o = r->o;
    double length = r->trace->requests[o->n_requests - 1].at_s / o->speed;
    r->n_jobs = (int64_t)o->n_copies * o->n_requests;
    r->jobs = xcalloc((size_t)r->n_jobs, sizeof *r->jobs);
    for (int c = 0, k = 0; c < o->n_copies; c++) {
        double shift = c == 0 ? 0 : philox_uniform(1, (uint64_t)c, 0) * length / 3;
        for (int i = 0; i < o->n_requests; i++, k++) {
            const struct trace_request *of = &r->trace->requests[i];
            r->jobs[k] = (struct job){.of = of, .copy = c, .index = i, .came_s = shift + of->at_s / o->speed};
        }
    }
    qsort(r->jobs, (size_t)r->n_jobs, sizeof *r->jobs, by_came);
}

// ---- the heap ---------------------------------------------------------------------------------------------------

static bool sooner(const struct replay *r, int a, int b) {
    return r->engines[r->heap[a]].ends_s < r->engines[r->heap[b]].ends_s;
}

static void swap(struct replay *r, int a, int b) {
    int t = r->heap[a];
    r->heap[a] = r->heap[b];
    r->heap[b] = t;
}

static void push(struct replay *r, int engine) {
    int at = r->n_heap++;
    r->heap[at] = engine;
    for (; at > 0 && sooner(r, at, (at - 1) / 2); at = (at - 1) / 2)
        swap(r, at, (at - 1) / 2);
}

static int pop(struct replay *r) {
    int first = r->heap[0], at = 0;
    r->heap[0] = r->heap[--r->n_heap];
    for (;;) {
        int least = at;
        for (int k = 2 * at + 1; k <= 2 * at + 2; k++)
            if (k < r->n_heap && sooner(r, k, least))
                least = k;
        if (least == at)
            return first;
        swap(r, at, least);
        at = least;
    }
}

// ---- steps ------------------------------------------------------------------------------------------------------

/* Sequences that decode are one kind; each prompt is another, and the last holds all that are left. */
static int kinds_of(const struct scheduler *s, struct work_kind kinds[MOST_KINDS]) {
    int n = 1;
    kinds[0] = (struct work_kind){0};
    for (int i = 0; i < s->n_step; i++) {
        const struct sequence *seq = s->step[i];
        int at = seq->n_scheduled == 1 ? 0 : n < MOST_KINDS ? n++ : MOST_KINDS - 1;
        struct work_kind *k = &kinds[at];
        if (at > 0 && k->n_seqs == 0)
            *k = (struct work_kind){0};
        double before = k->n_seqs;
        k->n_before = (k->n_before * before + seq->n_computed) / (before + 1);
        k->n_new = (k->n_new * before + seq->n_scheduled) / (before + 1);
        k->n_seqs = before + 1;
    }
    return n;
}

static void note_starts(struct replay *r, struct sim_engine *e) {
    for (int i = 0; i < e->scheduler.n_step; i++) {
        struct job *j = e->scheduler.step[i]->owner;
        if (j->has_started)
            continue;
        j->has_started = true;
        queue_model_leave(&e->queue, 0, j->of->n_input);
        queue_model_waited(&e->queue, j->plain_us, (int64_t)((r->now_s - j->came_s) * 1e6));
    }
}

/* The next step, if there is something to compute. */
static void start(struct replay *r, int engine) {
    struct sim_engine *e = &r->engines[engine];
    struct scheduler *s = &e->scheduler;
    struct work_kind kinds[MOST_KINDS] = {0};
    struct step_time parts;
    if (s->n_running + scheduler_n_queued(s) == 0 || !scheduler_plan(s))
        return;
    kv_pool_take_copies(&e->pool, r->copies);
    note_starts(r, e);
    queue_model_step(&e->queue, s);
    int n = kinds_of(s, kinds), first = kinds[0].n_seqs > 0 ? 0 : 1;
    e->step_s = layout_step_s(r->o->layout, r->o->sizing, kinds + first, n - first, &parts) / reach_of_steps.serving;
    e->ends_s = r->now_s + e->step_s;
    e->busy_s += e->step_s;
    e->computes = true;
    scheduler_start(s);
    push(r, engine);
    r->result.n_steps++;
}

static void finish(struct replay *r, struct sim_engine *e, struct job *j) {
    int n = j->of->n_output;
    sequence_expect_no_more(&j->sequence);
    scheduler_remove(&e->scheduler, &j->sequence);
    queue_model_end(&e->queue);
    queue_model_answered(&e->queue, n);
    r->ttft[r->result.n_done++] = (j->first_s - j->came_s) * 1e3;
    if (n > 1)
        r->tpot[r->n_tpot++] = (r->now_s - j->first_s) / (n - 1) * 1e3;
    r->result.n_input += j->of->n_input;
    r->result.n_output += n;
    r->result.n_reused += MAX(j->sequence.n_recalled, 0);
    r->ends_s = fmax(r->ends_s, r->now_s);
    arena_release(&j->memory);
}

/* Each sequence that has computed all that is known gets a token. */
static void collect(struct replay *r, struct sim_engine *e, struct sequence **done) {
    struct step_in_flight *f = &e->scheduler.in_flight[0];
    int n = 0;
    for (int i = 0; i < f->n_seqs; i++)
        if (f->seqs[i]->n_computed >= f->seqs[i]->n_known)
            done[n++] = f->seqs[i];
    scheduler_collect(&e->scheduler, e->step_s * 1e6);
    e->computes = false;
    for (int i = 0; i < n; i++) {
        struct job *j = done[i]->owner;
        int32_t made = done[i]->n_known - j->of->n_input;
        if (made == 0)
            j->first_s = r->now_s;
        scheduler_append(&e->scheduler, done[i], (int32_t)(mixed((uint64_t)j->index, (uint64_t)made) % VOCABULARY));
        if (made + 1 == j->of->n_output)
            finish(r, e, j);
    }
}

// ---- arrivals ---------------------------------------------------------------------------------------------------

static int choose(struct replay *r, const struct front *f, const struct job *j, const int32_t *tokens) {
    struct gyre_request request = {.prompt = tokens, .n_prompt = j->of->n_input};
    struct engine_queue queues[MOST_ENGINES];
    int order[MOST_ENGINES] = {0};
    if (f->n == 1)
        return f->first;
    for (int i = 0; i < f->n; i++)
        queues[i] = (struct engine_queue){&r->engines[f->first + i].queue, false};
    engines_order(f->affinity, queues, f->n, &request, order);
    affinity_note(f->affinity, &request, order[0]);
    return f->first + order[0];
}

/* Users keep to a front, as they would behind a balancer that goes by session. */
static void arrive(struct replay *r, struct job *j) {
    struct front *f = &r->fronts[j->copy % r->result.n_fronts];
    const struct program *p = r->o->layout->program;
    struct sequence *seq = &j->sequence;
    if (!fits(r, j, &r->engines[f->first])) {
        r->result.n_refused++;
        return;
    }
    sequence_init(seq, &j->memory, j->of->n_input + j->of->n_output, p->n_groups, r->o->sizing->block_size);
    for (int32_t i = 0; i < j->of->n_input; i++)
        seq->tokens[i] = token_at(j, i);
    seq->n_tokens = seq->n_known = j->of->n_input;
    seq->owner = j;
    int engine = choose(r, f, j, seq->tokens);
    struct sim_engine *e = &r->engines[engine];
    seq->rank = (struct sequence_rank){.order = e->n_accepted++};
    j->plain_us = queue_model_plain_us(&e->queue, 0);
    queue_model_enter(&e->queue, 0, j->of->n_input);
    scheduler_add(&e->scheduler, seq);
    if (!e->computes)
        start(r, engine);
}

// ---- all of it --------------------------------------------------------------------------------------------------

static void open_all(struct replay *r) {
    int n = r->o->n_engines, n_fronts = (n + MOST_ENGINES - 1) / MOST_ENGINES;
    r->result.n_fronts = n_fronts;
    r->engines = xcalloc((size_t)n, sizeof *r->engines);
    r->heap = xcalloc((size_t)n, sizeof *r->heap);
    r->fronts = xcalloc((size_t)n_fronts, sizeof *r->fronts);
    for (int i = 0, first = 0; i < n_fronts; first += r->fronts[i++].n)
        r->fronts[i] = (struct front){NULL, first, (n - first) / (n_fronts - i)};
    for (int i = 0; i < n_fronts; i++)
        r->fronts[i].affinity = affinity_new(r->o->sizing->block_size, r->fronts[i].n);
    for (int i = 0; i < n_fronts; i++)
        for (int k = 0; k < r->fronts[i].n; k++)
            open_engine(r, &r->engines[r->fronts[i].first + k], &r->fronts[i]);
    make_jobs(r);
    r->copies = xcalloc((size_t)most_copies(r->o), sizeof *r->copies);
    r->ttft = xcalloc((size_t)r->n_jobs, sizeof *r->ttft);
    r->tpot = xcalloc((size_t)r->n_jobs, sizeof *r->tpot);
}

static void close_all(struct replay *r) {
    for (int i = 0; i < r->o->n_engines; i++)
        close_engine(&r->engines[i]);
    for (int i = 0; i < r->result.n_fronts; i++)
        affinity_free(r->fronts[i].affinity);
    free(r->engines), free(r->fronts), free(r->heap), free(r->copies), free(r->jobs), free(r->ttft), free(r->tpot);
}

static void run(struct replay *r) {
    struct sequence **done = xcalloc((size_t)r->o->max_seqs, sizeof *done);
    for (int64_t next = 0; next < r->n_jobs || r->n_heap > 0;) {
        double step_s = r->n_heap > 0 ? r->engines[r->heap[0]].ends_s : INFINITY;
        if (next < r->n_jobs && r->jobs[next].came_s <= step_s) {
            r->now_s = r->jobs[next].came_s;
            arrive(r, &r->jobs[next++]);
            continue;
        }
        int engine = pop(r);
        r->now_s = step_s;
        collect(r, &r->engines[engine], done);
        start(r, engine);
    }
    free(done);
}

static int by_value(const void *a, const void *b) {
    return (*(const double *)a > *(const double *)b) - (*(const double *)a < *(const double *)b);
}

static struct percentiles percentiles_of(double *all, int64_t n) {
    if (n == 0)
        return (struct percentiles){0};
    qsort(all, (size_t)n, sizeof *all, by_value);
    return (struct percentiles){all[n / 2], all[n * 9 / 10], all[n * 99 / 100]};
}

static void sum_up(struct replay *r) {
    struct replay_result *out = &r->result;
    out->seconds = fmax(r->ends_s - r->jobs[0].came_s, 1e-9);
    out->tokens_per_s = (double)out->n_output / out->seconds;
    out->least_busy = 1;
    for (int i = 0; i < r->o->n_engines; i++) {
        double busy = r->engines[i].busy_s / out->seconds;
        out->busy += busy / r->o->n_engines;
        out->least_busy = fmin(out->least_busy, busy);
        out->n_preempted += r->engines[i].scheduler.n_preempted;
    }
    out->ttft_ms = percentiles_of(r->ttft, out->n_done);
    out->tpot_ms = percentiles_of(r->tpot, r->n_tpot);
}

void replay_run(const struct trace *t, const struct replay_options *o, struct replay_result *out) {
    struct replay r = {.trace = t, .o = o};
    BUG_IF(o->n_requests < 1 || o->n_requests > t->n || o->n_engines < 1 || o->n_copies < 1);
    open_all(&r);
    run(&r);
    sum_up(&r);
    *out = r.result;
    close_all(&r);
}

double replay_capacity(const struct trace *t, int n_requests, const struct sizing *s, const struct layout *l,
                       int n_seqs) {
    double n_tokens = 0, n_output = 0, prompt_s = 0;
    struct step_time parts;
    for (int i = 0; i < n_requests; i++) { // long prompts take more than their share
        const struct trace_request *of = &t->requests[i];
        struct work_kind prompt = {1, 0, of->n_input};
        prompt_s += layout_step_s(l, s, &prompt, 1, &parts) / n_requests;
        n_output += (double)of->n_output / n_requests;
        n_tokens += (of->n_input + of->n_output / 2.0) / n_requests;
    }
    double room = l->cache_room / step_model_cache_bytes(l->model, n_tokens, s->block_size);
    struct work_kind decode = {fmax(1, fmin(n_seqs, room)), n_tokens, 1};
    double step_s = layout_step_s(l, s, &decode, 1, &parts);
    return reach_of_steps.serving / (prompt_s + n_output * step_s / decode.n_seqs);
}
