/* worker.c - see worker.h. Node 0 is not trusted to be well: sizes are checked, and a plan before it runs. */
#include "dist/worker.h"

#include "base/clock.h"
#include "base/machine_memory.h"
#include "core/pass/pass.h"
#include "dist/node_wire.h"
#include "dist/plan_block.h"
#include "dist/pulse.h"
#include "dist/wire.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MOST_EXECUTABLES = 64, CONNECT_MS = 1000, MOST_QUESTION = 1 << 30, MOST_BUCKET = 1 << 20 };
static const int64_t ANSWER_US = 60000000, IDLE_US = INT64_C(365) * 86400000000, STALL_US = 600000000;

struct worker {
    const struct worker_options *o;
    struct wire *wire;
    struct program *program; // of the stage
    struct device *device;
    struct loaded *loaded;
    struct cache_config cache;
    bool has_cache;
    struct bucket buckets[MOST_EXECUTABLES];
    struct executable *exes[MOST_EXECUTABLES];
    struct batch_plan plans[MOST_EXECUTABLES];
    int n_exes;
    int64_t states_width, taps_width;
    struct buf question, answer;
    struct pulse pulse; // of the question that takes long
};

static enum status expect(const struct worker *w, size_t n, struct error *err) {
    return w->question.len == n ? OK : fail(err, ERR_FORMAT, "node 0 asks in %zu bytes, not %zu", w->question.len, n);
}

// ---- what is asked ----------------------------------------------------------------------------------------------

static void moved(void *context, int64_t done, int64_t total) {
    (void)done, (void)total;
    pulse_moved(context);
}

static enum status load(struct worker *w, struct error *err) {
    struct node_load q;
    struct load_options options = w->o->load;
    TRY(expect(w, sizeof q, err));
    memcpy(&q, w->question.ptr, sizeof q);
    if (w->loaded || q.n_back < 0 || q.n_back > w->o->backend->max_back)
        return fail(err, ERR_FORMAT, "node 0 asks for what cannot be loaded");
    options.n_back = q.n_back;
    options.progress = (struct load_progress){moved, &w->pulse};
    if (w->o->read_ahead)
        w->o->read_ahead(w->o->context, w->program, &options.progress);
    TRY(w->o->backend->load(w->device, w->program, &options, &w->loaded, err));
    w->states_width = w->program->ops[0].code == OP_STATES ? w->program->ops[0].out[0].width : 0;
    for (int i = 0; i < w->program->n_taps; i++)
        w->taps_width += w->program->taps[i].width;
    return OK;
}

static enum status block_bytes(struct worker *w, struct error *err) {
    struct node_block q;
    TRY(expect(w, sizeof q, err));
    memcpy(&q, w->question.ptr, sizeof q);
    if (!w->loaded || q.group < 0 || q.group >= w->program->n_groups || q.block_size < 1 || q.block_size > 1 << 14)
        return fail(err, ERR_FORMAT, "node 0 asks for blocks that there are not");
    int64_t bytes = w->o->backend->cache_block_bytes(w->loaded, q.group, q.block_size);
    buf_append(&w->answer, &bytes, sizeof bytes);
    return OK;
}

static bool is_size(int n) { return n >= 0 && n <= MOST_BUCKET; }

static bool is_bucket(struct bucket b) {
    return b.max_tokens >= 1 && b.max_seqs >= 1 && is_size(b.max_tokens) && is_size(b.max_seqs) &&
           is_size(b.max_rows) && is_size(b.max_copies);
}

static enum status cache_room(struct worker *w, struct error *err) {
    struct node_room q;
    int64_t room;
    TRY(expect(w, sizeof q, err));
    memcpy(&q, w->question.ptr, sizeof q);
    bool is_good = w->loaded && !w->has_cache && w->o->backend->cache_room && is_bucket(q.bucket) && q.n >= 1 &&
                   q.n <= MOST_EXECUTABLES && q.block_size >= 1 && q.block_size <= 1 << 14 && q.share >= 0 &&
                   q.share <= 1;
    for (int g = 0; g < MAX_CACHE_GROUPS; g++)
        is_good = is_good && q.table_width[g] >= 0 && q.table_width[g] <= 1 << 24;
    if (!is_good)
        return fail(err, ERR_FORMAT, "node 0 asks for the room of a cache that cannot be");
    TRY(w->o->backend->cache_room(w->loaded, q.bucket, q.n, q.block_size, q.table_width, q.share, &room, err));
    buf_append(&w->answer, &room, sizeof room);
    return OK;
}

static enum status check_cache(const struct worker *w, const struct cache_config *c, struct error *err) {
    bool is_good = c->n_states >= 0 && c->n_host_states >= 0 && !c->by_need && c->block_size >= 1;
    for (int g = 0; g < MAX_CACHE_GROUPS; g++)
        is_good = is_good && c->n_blocks[g] >= 0 && c->n_host_blocks[g] >= 0 && c->table_width[g] >= 0 &&
                  (int64_t)c->n_blocks[g] + c->n_host_blocks[g] <= INT32_MAX && c->table_width[g] <= 1 << 24;
    return is_good && w->loaded && !w->has_cache ? OK : fail(err, ERR_FORMAT, "node 0 asks for a cache that cannot be");
}

/* Node 0 cannot know what memory there is here. */
static enum status cache_fits(const struct worker *w, const struct cache_config *c, struct error *err) {
    struct machine_memory memory;
    int64_t bytes = 0;
    for (int g = 0; g < w->program->n_groups; g++) {
        bool is_state = w->program->groups[g].kind == CACHE_STATE;
        int64_t n = is_state ? (int64_t)c->n_states + c->n_host_states : (int64_t)c->n_blocks[g] + c->n_host_blocks[g];
        int64_t all, one = w->o->backend->cache_block_bytes(w->loaded, g, c->block_size);
        if (__builtin_mul_overflow(one, n, &all) || __builtin_add_overflow(bytes, all, &bytes))
            return fail(err, ERR_MEMORY, "its share of the cache is larger than memory can be");
    }
    machine_memory_get(&memory);
    return !w->o->backend->in_place || bytes <= memory.available
               ? OK
               : fail(err, ERR_MEMORY,
                      "its share of the cache takes %lld MiB, and of %s memory %lld are free: --kv-cache-memory on "
                      "node 0 says how much there is",
                      (long long)(bytes >> 20), memory.whose, (long long)(memory.available >> 20));
}

static enum status alloc_cache(struct worker *w, struct error *err) {
    TRY(expect(w, sizeof w->cache, err));
    struct cache_config c;
    memcpy(&c, w->question.ptr, sizeof c);
    TRY(check_cache(w, &c, err));
    TRY(cache_fits(w, &c, err));
    w->cache = c;
    w->has_cache = true;
    return w->o->backend->alloc_cache(w->loaded, &w->cache, err);
}

/* Nobody else knows of it: node 0 tells of its own. */
static void tell_warnings(const struct worker *w, struct executable *exe) {
    const struct backend_ops *ops = w->o->backend;
    char warning[320];
    for (int i = 0; ops->warning && ops->warning(exe, i, warning, sizeof warning); i++)
        fprintf(stderr, "gyre: node %d: %s\n", w->o->rank, warning);
}

static enum status compile(struct worker *w, struct error *err) {
    struct bucket b;
    TRY(expect(w, sizeof b, err));
    memcpy(&b, w->question.ptr, sizeof b);
    if (!w->has_cache || w->n_exes == MOST_EXECUTABLES || !is_bucket(b))
        return fail(err, ERR_FORMAT, "node 0 asks for steps that cannot be");
    TRY(w->o->backend->compile(w->loaded, b, &w->exes[w->n_exes], err));
    struct batch_plan *plan = &w->plans[w->n_exes];
    batch_plan_init(plan, b, w->program->n_groups, w->cache.table_width);
    if (w->states_width)
        batch_plan_add_states(plan, b, (int)w->states_width);
    w->buckets[w->n_exes] = b;
    tell_warnings(w, w->exes[w->n_exes]);
    int32_t number = w->n_exes++;
    buf_append(&w->answer, &number, sizeof number);
    return OK;
}

static enum status give_taps(struct worker *w, struct executable *exe, int n_tokens, struct error *err) {
    for (int t = 0; t < n_tokens; t++)
        for (int k = 0; k < w->program->n_taps; k++) {
            const float *row;
            TRY(w->o->backend->hidden(exe, k + 1, t, &row, err));
            buf_append(&w->answer, row, (size_t)w->program->taps[k].width * sizeof *row);
        }
    return OK;
}

static enum status run(struct worker *w, struct error *err) {
    int32_t head[2] = {-1, 0};
    static const struct sample_params nothing;
    struct sample_result none;
    if (w->question.len >= sizeof head)
        memcpy(head, w->question.ptr, sizeof head);
    if (head[0] < 0 || head[0] >= w->n_exes)
        return fail(err, ERR_FORMAT, "node 0 asks for steps that were not compiled");
    struct batch_plan *plan = &w->plans[head[0]];
    struct executable *exe = w->exes[head[0]];
    struct str bytes = {w->question.ptr + sizeof head, w->question.len - sizeof head};
    TRY(plan_block_get(plan, w->buckets[head[0]], w->program, &w->cache, w->states_width, bytes, err));
    TRY(w->o->backend->run(exe, plan, &nothing, err));
    TRY(w->o->backend->collect(exe, &none, err));
    return give_taps(w, exe, plan->n_tokens, err);
}

static enum status answer(struct worker *w, uint32_t kind, struct error *err) {
    switch (kind) {
    case NODE_LOAD: return load(w, err);
    case NODE_BLOCK_BYTES: return block_bytes(w, err);
    case NODE_CACHE_ROOM: return cache_room(w, err);
    case NODE_ALLOC_CACHE: return alloc_cache(w, err);
    case NODE_COMPILE: return compile(w, err);
    case NODE_RUN: return run(w, err);
    case NODE_CHECK: return expect(w, 0, err);
    case NODE_FAILED: return fail(err, ERR_FORMAT, "%.*s", (int)MIN(w->question.len, 600u), w->question.ptr);
    default: return fail(err, ERR_FORMAT, "node 0 asks for what is not known here");
    }
}

static enum status answer_in_time(struct worker *w, uint32_t kind, struct error *err) {
    if (!node_takes_long(kind))
        return answer(w, kind, err);
    pulse_begin(&w->pulse, w->wire, NODE_STILL, w->o->stall_us ? w->o->stall_us : STALL_US);
    enum status st = answer(w, kind, err);
    pulse_end(&w->pulse);
    return st;
}

// ---- its life ---------------------------------------------------------------------------------------------------

static enum status join(struct worker *w, struct error *err) {
    const struct worker_options *o = w->o;
    struct node_hello h = {o->identity, o->rank, o->n_nodes};
    while (wire_connect(o->address, CONNECT_MS, &w->wire, err) != OK) {
        if (clock_us() >= o->until_us)
            return err->status;
        usleep(100000);
    }
    return wire_send(w->wire, NODE_HELLO, (struct str){(const char *)&h, sizeof h}, clock_us() + ANSWER_US, err);
}

static enum status lost(const struct worker *w, const struct error *why, struct error *err) {
    return fail(err, why->status, "node %d has lost node 0: %s", w->o->rank, why->text);
}

static enum status next_question(struct worker *w, uint32_t *kind, struct error *err) {
    struct error why;
    buf_clear(&w->question);
    buf_clear(&w->answer);
    enum status st = wire_await(w->wire, clock_us() + IDLE_US, &why);
    if (st == OK)
        st = wire_receive(w->wire, kind, &w->question, MOST_QUESTION, clock_us() + ANSWER_US, &why);
    return st == OK ? OK : lost(w, &why, err);
}

static enum status work(struct worker *w, struct error *err) {
    for (;;) {
        uint32_t kind;
        struct error why;
        TRY(next_question(w, &kind, err));
        if (kind == NODE_LEAVE)
            return OK;
        enum status st = answer_in_time(w, kind, err);
        if (kind == NODE_FAILED)
            return st;
        struct str said = st == OK ? buf_view(&w->answer) : str_of(err->text);
        enum status sent = wire_send(w->wire, st == OK ? NODE_DONE : NODE_FAILED, said, clock_us() + ANSWER_US, &why);
        if (st == OK && sent != OK)
            return lost(w, &why, err);
        TRY(st);
    }
}

static void release(struct worker *w) {
    const struct backend_ops *ops = w->o->backend;
    for (int i = 0; i < w->n_exes; i++) {
        ops->free_executable(w->exes[i]);
        batch_plan_release(&w->plans[i]);
    }
    if (w->loaded)
        ops->unload(w->loaded);
    if (w->device)
        ops->close(w->device);
    program_free(w->program);
    wire_close(w->wire);
    buf_release(&w->question);
    buf_release(&w->answer);
}

enum status worker_run(const struct worker_options *options, struct error *err) {
    struct worker *w = xcalloc(1, sizeof *w);
    w->o = options;
    enum status st = pass_stage(options->program, options->rank - 1, options->n_nodes, &w->program, err);
    if (st == OK)
        st = options->backend->open(&options->device, &w->device, err);
    if (st == OK)
        st = join(w, err);
    if (st == OK && options->joined)
        options->joined();
    if (st == OK)
        st = work(w, err);
    release(w);
    free(w);
    return st;
}
