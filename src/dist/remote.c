/* remote.c - see remote.h. */
#include "dist/remote.h"

#include "base/clock.h"
#include "dist/node_wire.h"
#include "dist/plan_block.h"
#include "dist/wire.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_ANSWER = 1 << 30, HELLO_US = 10000000, LEAVE_US = 1000000, MOST_GUESTS = 64 };

static struct node {
    struct wire *wire;
    int rank;
} nodes[MAX_NODES];

struct device {
    struct node *node;
    int patience_s;
    pthread_mutex_t lock; // one question at a time
    struct error fault;   // sticky
    struct buf question, answer;
};

struct loaded {
    struct device *device;
    const struct program *program;
    int64_t block_bytes[MAX_CACHE_GROUPS]; // of blocks of so many tokens; 0: not asked yet
    int block_size[MAX_CACHE_GROUPS];
    int64_t states_width, taps_width;
    int table_width[MAX_CACHE_GROUPS];
};

struct executable {
    struct loaded *loaded;
    int32_t number;
    float *taps; // [max_tokens, taps_width], of the step run last
};

// ---- questions --------------------------------------------------------------------------------------------------

static enum status stays_failed(struct device *d, const struct error *why, struct error *err) {
    fail(&d->fault, ERR_DEVICE, "node %d: %s", d->node->rank, why->text);
    *err = d->fault;
    return ERR_DEVICE;
}

/* The answer, which the patience is for, from when the node was last heard of. */
static enum status await_answer(struct device *d, uint32_t kind, int64_t until_us, struct error *why) {
    for (;;) {
        uint32_t answer;
        buf_clear(&d->answer);
        TRY(wire_receive(d->node->wire, &answer, &d->answer, MOST_ANSWER, until_us, why));
        if (answer == NODE_DONE)
            return OK;
        if (answer != NODE_STILL || !node_takes_long(kind))
            return fail(why, ERR_DEVICE, "%.*s", (int)MIN(d->answer.len, 600u), d->answer.ptr ? d->answer.ptr : "");
        until_us = clock_us() + (int64_t)d->patience_s * 1000000;
    }
}

/* The question lies in d->question, the answer in d->answer afterwards. Under the lock. */
static enum status ask(struct device *d, uint32_t kind, struct error *err) {
    struct error why;
    int64_t until_us = clock_us() + (int64_t)d->patience_s * 1000000;
    if (d->fault.status != OK) {
        *err = d->fault;
        return ERR_DEVICE;
    }
    enum status st = wire_send(d->node->wire, kind, buf_view(&d->question), until_us, &why);
    if (st == OK)
        st = await_answer(d, kind, until_us, &why);
    return st == OK ? OK : stays_failed(d, &why, err);
}

/* One that is answered by `size` bytes. */
static enum status ask_for(struct device *d, uint32_t kind, const void *question, size_t n, void *answer, size_t size,
                           struct error *err) {
    struct error why;
    pthread_mutex_lock(&d->lock);
    buf_clear(&d->question);
    buf_append(&d->question, question, n);
    enum status st = ask(d, kind, err);
    if (st == OK && d->answer.len != size) {
        fail(&why, ERR_DEVICE, "it answers %zu bytes, not %zu", d->answer.len, size);
        st = stays_failed(d, &why, err);
    }
    if (st == OK && size)
        memcpy(answer, d->answer.ptr, size);
    pthread_mutex_unlock(&d->lock);
    return st;
}

// ---- the backend ------------------------------------------------------------------------------------------------

static enum status remote_open(const struct device_options *options, struct device **out, struct error *err) {
    int seconds;
    TRY(device_option_patience(options->own, &seconds, err));
    BUG_IF(options->index < 1 || options->index >= MAX_NODES || !nodes[options->index].wire);
    struct device *d = *out = xcalloc(1, sizeof *d);
    d->node = &nodes[options->index];
    d->patience_s = seconds;
    pthread_mutex_init(&d->lock, NULL);
    return OK;
}

static void remote_memory(const struct device *d, struct device_memory *out) {
    (void)d;
    *out = (struct device_memory){0};
}

static enum status remote_check(struct device *d, struct error *err) {
    return ask_for(d, NODE_CHECK, "", 0, NULL, 0, err);
}

static void remote_close(struct device *d) {
    buf_release(&d->question);
    buf_release(&d->answer);
    pthread_mutex_destroy(&d->lock);
    free(d);
}

/* The other process records the same stage of the same model itself. */
static enum status remote_load(struct device *d, const struct program *p, const struct load_options *options,
                               struct loaded **out, struct error *err) {
    struct node_load q = {options->n_back, 0};
    TRY(ask_for(d, NODE_LOAD, &q, sizeof q, NULL, 0, err));
    struct loaded *l = *out = xcalloc(1, sizeof *l);
    *l = (struct loaded){.device = d, .program = p};
    l->states_width = p->ops[0].code == OP_STATES ? p->ops[0].out[0].width : 0;
    for (int i = 0; i < p->n_taps; i++)
        l->taps_width += p->taps[i].width;
    return OK;
}

static void remote_unload(struct loaded *l) { free(l); }

static enum status remote_alloc_cache(struct loaded *l, const struct cache_config *config, struct error *err) {
    memcpy(l->table_width, config->table_width, sizeof l->table_width);
    return ask_for(l->device, NODE_ALLOC_CACHE, config, sizeof *config, NULL, 0, err);
}

/* A node that does not answer is told by what comes next. */
static int64_t remote_cache_block_bytes(const struct loaded *l, int group, int block_size) {
    struct loaded *own = (struct loaded *)l;
    struct node_block q = {group, block_size};
    struct error ignored;
    if (l->block_size[group] != block_size &&
        ask_for(l->device, NODE_BLOCK_BYTES, &q, sizeof q, &own->block_bytes[group], sizeof(int64_t), &ignored) == OK)
        own->block_size[group] = block_size;
    return l->block_size[group] == block_size ? l->block_bytes[group] : 0;
}

/* Of devices that have memory of their own. What a node answers is not trusted. */
static enum status remote_cache_room(struct loaded *l, struct bucket bucket, int n, int block_size,
                                     const int *table_width, double share, int64_t *out, struct error *err) {
    struct node_room q = {.bucket = bucket, .n = n, .block_size = block_size, .share = share};
    for (int g = 0; g < l->program->n_groups; g++)
        q.table_width[g] = table_width[g];
    TRY(ask_for(l->device, NODE_CACHE_ROOM, &q, sizeof q, out, sizeof *out, err));
    if (*out >= 0)
        return OK;
    struct error why;
    fail(&why, ERR_DEVICE, "it says that its cache has room for %lld bytes", (long long)*out);
    pthread_mutex_lock(&l->device->lock);
    enum status st = stays_failed(l->device, &why, err);
    pthread_mutex_unlock(&l->device->lock);
    return st;
}

/* So that a step allocates nothing: a frame is received in pieces, for each of which there is room. */
static enum status make_room(struct loaded *l, struct bucket b, struct error *err) {
    enum { PIECE = 2 << 20 };
    struct device *d = l->device;
    size_t answer = (size_t)b.max_tokens * (size_t)l->taps_width * sizeof(float) + PIECE;
    size_t question = plan_block_most(b, l->program->n_groups, l->table_width, l->states_width) + 64;
    buf_clear(&d->question), buf_clear(&d->answer);
    bool is_there = buf_reserve(&d->question, question) && buf_reserve(&d->answer, answer);
    return is_there ? OK : fail(err, ERR_MEMORY, "no memory for what steps of %d tokens send", b.max_tokens);
}

static enum status remote_compile(struct loaded *l, struct bucket bucket, struct executable **out, struct error *err) {
    int32_t number;
    TRY(make_room(l, bucket, err));
    TRY(ask_for(l->device, NODE_COMPILE, &bucket, sizeof bucket, &number, sizeof number, err));
    struct executable *exe = *out = xcalloc(1, sizeof *exe);
    *exe = (struct executable){.loaded = l, .number = number};
    exe->taps = xcalloc((size_t)bucket.max_tokens * (size_t)l->taps_width + 1, sizeof *exe->taps);
    return OK;
}

static void remote_free_executable(struct executable *exe) {
    if (!exe)
        return;
    free(exe->taps);
    free(exe);
}

static int remote_report(const struct executable *exe, struct device_report out[MAX_DEVICE_REPORTS]) {
    (void)exe, (void)out;
    return 0;
}

static enum status remote_run(struct executable *exe, const struct batch_plan *plan, const struct sample_params *sample,
                              struct error *err) {
    struct loaded *l = exe->loaded;
    struct device *d = l->device;
    struct error why;
    size_t wanted = (size_t)plan->n_tokens * (size_t)l->taps_width * sizeof *exe->taps;
    int32_t head[2] = {exe->number, 0};
    (void)sample;
    pthread_mutex_lock(&d->lock);
    buf_clear(&d->question);
    buf_append(&d->question, head, sizeof head);
    plan_block_put(plan, l->program->n_groups, l->states_width, &d->question);
    enum status st = ask(d, NODE_RUN, err);
    if (st == OK && d->answer.len != wanted) {
        fail(&why, ERR_DEVICE, "a step of %d tokens gives %zu bytes, not %zu", plan->n_tokens, d->answer.len, wanted);
        st = stays_failed(d, &why, err);
    }
    if (st == OK)
        memcpy(exe->taps, d->answer.ptr, wanted);
    pthread_mutex_unlock(&d->lock);
    return st;
}

static enum status remote_collect(struct executable *exe, struct sample_result *results, struct error *err) {
    (void)exe, (void)results, (void)err;
    return OK;
}

static enum status remote_hidden(struct executable *exe, int tap, int t, const float **out, struct error *err) {
    const struct loaded *l = exe->loaded;
    int64_t at = t * l->taps_width;
    (void)err;
    BUG_IF(tap < 1 || tap > l->program->n_taps);
    for (int i = 0; i < tap - 1; i++)
        at += l->program->taps[i].width;
    *out = exe->taps + at;
    return OK;
}

const struct backend_ops backend_remote = {
    .name = "remote",
    .ragged = true,
    .max_in_flight = 1,
    .open = remote_open,
    .memory = remote_memory,
    .check = remote_check,
    .close = remote_close,
    .load = remote_load,
    .unload = remote_unload,
    .alloc_cache = remote_alloc_cache,
    .cache_block_bytes = remote_cache_block_bytes,
    .cache_room = remote_cache_room,
    .compile = remote_compile,
    .free_executable = remote_free_executable,
    .report = remote_report,
    .run = remote_run,
    .collect = remote_collect,
    .hidden = remote_hidden,
};

// ---- who comes --------------------------------------------------------------------------------------------------

/* Who has connected and not said yet what it is. */
struct guest {
    struct wire *wire; // NULL: a free place
    int64_t until_us;  // it must have said it
};

/* All that it says is there. One that is not wanted is sent away; its process ends with the sentence. */
static enum status greet(struct wire *w, int n_nodes, uint64_t identity, struct error *err) {
    struct buf bytes = {0};
    struct node_hello h = {0};
    uint32_t kind;
    enum status st = wire_receive(w, &kind, &bytes, sizeof h, clock_us(), err);
    if (st == OK && (kind != NODE_HELLO || bytes.len != sizeof h))
        st = fail(err, ERR_FORMAT, "it does not say what it is");
    if (st == OK)
        memcpy(&h, bytes.ptr, sizeof h);
    buf_release(&bytes);
    TRY(st);
    if (h.identity != identity)
        return fail(err, ERR_FORMAT,
                    "node %d has another model, build or number format than node 0, or is of another job", h.rank);
    if (h.n_nodes != n_nodes || h.rank < 1 || h.rank >= n_nodes)
        return fail(err, ERR_FORMAT, "node %d of %d is not one of those that node 0 waits for", h.rank, h.n_nodes);
    if (nodes[h.rank].wire && !wire_is_closed(nodes[h.rank].wire))
        return fail(err, ERR_FORMAT, "node %d is here already", h.rank);
    wire_close(nodes[h.rank].wire);
    nodes[h.rank] = (struct node){w, h.rank};
    return OK;
}

/* Those that have come and not left again. */
static int count_here(int n_nodes) {
    int n = 0;
    for (int i = 1; i < n_nodes; i++)
        n += nodes[i].wire && !wire_is_closed(nodes[i].wire);
    return n;
}

static void send_away(struct wire *w, const char *why) {
    struct error ignored;
    fprintf(stderr, "gyre: a node was sent away: %s\n", why);
    wire_send(w, NODE_FAILED, str_of(why), clock_us() + LEAVE_US, &ignored);
    wire_close(w);
}

/* Nobody who is silent is waited for: what guests say is read when it has come whole. */
static void hear(struct guest *guest, const struct awaited *a) {
    struct error why;
    bool is_late = clock_us() >= guest->until_us;
    if (!is_late && !wire_has_frame(guest->wire, sizeof(struct node_hello)))
        return;
    if (is_late)
        send_away(guest->wire, "it does not say what it is");
    else if (greet(guest->wire, a->n_nodes, a->identity, &why) != OK)
        send_away(guest->wire, why.text);
    guest->wire = NULL;
}

/* Where all places are taken, that of whoever has been silent for the longest time. */
static enum status let_in(int fd, struct guest guests[MOST_GUESTS], struct error *err) {
    struct wire *w;
    struct guest *place = guests;
    TRY(wire_accept(fd, &w, err));
    for (struct guest *g = guests; g < guests + MOST_GUESTS && place->wire; g++)
        if (!g->wire || g->until_us < place->until_us)
            place = g;
    wire_close(place->wire);
    *place = (struct guest){w, clock_us() + HELLO_US};
    return OK;
}

static enum status await_all(int fd, const struct awaited *a, struct guest guests[MOST_GUESTS], struct error *err) {
    enum { TICK_MS = 100 };
    for (int n; (n = count_here(a->n_nodes)) < a->n_nodes - 1;) {
        if (clock_us() >= a->until_us)
            return fail(err, ERR_IO, "%d of %d nodes came in time", n, a->n_nodes - 1);
        if (wire_comes(fd, TICK_MS))
            TRY(let_in(fd, guests, err));
        for (struct guest *g = guests; g < guests + MOST_GUESTS; g++)
            if (g->wire)
                hear(g, a);
    }
    return OK;
}

enum status remote_nodes_await(const struct awaited *a, struct error *err) {
    int fd, port;
    BUG_IF(a->n_nodes > MAX_NODES);
    TRY(wire_listen(a->address, &fd, &port, err));
    fprintf(stderr, "waits for %d nodes on port %d\n", a->n_nodes - 1, port);
    struct guest guests[MOST_GUESTS] = {{NULL, 0}};
    enum status st = await_all(fd, a, guests, err);
    for (int i = 0; i < MOST_GUESTS; i++)
        wire_close(guests[i].wire);
    wire_close_listening(fd);
    return st;
}

void remote_nodes_leave(void) {
    struct error ignored;
    for (int i = 0; i < MAX_NODES; i++) {
        if (nodes[i].wire)
            wire_send(nodes[i].wire, NODE_LEAVE, (struct str){"", 0}, clock_us() + LEAVE_US, &ignored);
        wire_close(nodes[i].wire);
        nodes[i] = (struct node){0};
    }
}
