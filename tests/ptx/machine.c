/* machine.c - clusters, blocks and warps, and who of them runs (machine.h).
 *
 * The lanes of a warp stand in groups, all of a group at one instruction. The group that is furthest behind runs, so
 * that those of a branch meet again behind it; one that cannot go on is stuck until others have run. What wants all
 * lanes waits until they have met. */
#include "module.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_RUN = 1 << 20, IDLE = 64 };     // instructions of a turn; of one that is idle
enum { PATIENCE = 300, MOST_IDLE = 20000 }; // idle turns of all until another cluster is to help, and until nobody will
enum { FEW_IDLE = 8 };                       // where there are other devices, until one of those is to

// ---- faults and chance ----------------------------------------------------------------------------------------------

_Noreturn void machine_fault(const struct warp *w, const char *format, ...) {
    va_list rest;
    fflush(stdout);
    if (w) {
        const struct block *b = w->block;
        const struct function *f = b->cluster->launch->f;
        const struct group *g = &w->groups[w->at];
        const struct insn *i = g->pc < f->n_code ? &f->code[g->pc] : NULL;
        fprintf(stderr, "ptx: %s, line %d (%s), block (%u, %u, %u), warp %d, lanes %08x: ", f->name, i ? i->line : 0,
                i ? i->name : "?", b->index[0], b->index[1], b->index[2], w->index, g->lanes);
    } else {
        fputs("ptx: ", stderr);
    }
    va_start(rest, format);
    vfprintf(stderr, format, rest);
    va_end(rest);
    fputc('\n', stderr);
    abort();
}

uint64_t machine_random(struct cluster *c) {
    uint64_t z = c->random += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

static uint64_t seed(void) {
    static uint64_t s;
    if (!s) {
        const char *text = getenv("GYRE_PTX_SEED");
        s = text && *text ? strtoull(text, NULL, 10) * 2 + 1 : 1;
    }
    return s;
}

// ---- groups of a warp -----------------------------------------------------------------------------------------------

static void remove_group(struct warp *w, int i) {
    w->groups[i] = w->groups[--w->n_groups];
    if (w->at == w->n_groups)
        w->at = i;
}

/* The group that runs and another that stands where it does become one. */
static void join_groups(struct warp *w) {
    for (int i = 0; i < w->n_groups; i++) {
        struct group *g = &w->groups[w->at], *other = &w->groups[i];
        if (other != g && other->pc == g->pc && !other->waits && !g->waits) {
            g->lanes |= other->lanes;
            g->stuck = false;
            remove_group(w, i--);
        }
    }
}

void warp_jump(struct warp *w, uint32_t lanes, uint32_t pc) {
    struct group *g = &w->groups[w->at];
    if (lanes == g->lanes) {
        g->pc = pc;
        return;
    }
    g->lanes &= ~lanes;
    g->pc++;
    w->groups[w->n_groups++] = (struct group){.pc = pc, .lanes = lanes};
}

void warp_exit(struct warp *w, uint32_t lanes) {
    struct group *g = &w->groups[w->at];
    w->exited |= lanes;
    w->block->n_alive -= __builtin_popcount(lanes);
    g->lanes &= ~lanes;
    g->pc++;
    if (!g->lanes)
        remove_group(w, w->at);
    if (w->block->n_alive == 0)
        copies_end(w->block);
}

/* The next group to run; false: all are stuck. */
static bool choose_group(struct warp *w) {
    int best = -1;
    for (int i = 0; i < w->n_groups; i++)
        if (!w->groups[i].stuck && (best < 0 || w->groups[i].pc < w->groups[best].pc))
            best = i;
    if (best < 0)
        return false;
    w->at = best;
    return true;
}

static uint32_t taking_part(const struct warp *w, const struct insn *i, uint32_t lanes) {
    if (i->guard == DISCARD)
        return lanes;
    uint32_t flags = register_of(w, i->guard)->u32[0];
    return lanes & (i->guard_not ? ~flags : flags);
}

/* Until nobody can go on, or somebody else should. */
static void run_warp(struct warp *w) {
    const struct insn *code = w->block->cluster->launch->f->code;
    for (int i = 0; i < w->n_groups; i++)
        w->groups[i].stuck = false;
    uint64_t last = w->n_run + MOST_RUN;
    while (w->n_groups > 0 && w->n_run < last) {
        if (w->n_groups > 1) {
            if (!choose_group(w))
                return;
            join_groups(w);
        } else if (w->groups[0].stuck) {
            return;
        } else {
            w->at = 0;
        }
        struct group *g = &w->groups[w->at];
        const struct insn *i = &code[g->pc];
        uint32_t lanes = taking_part(w, i, g->lanes);
        w->n_run++;
        switch (lanes ? i->run(w, i, lanes) : NEXT) {
        case NEXT: g->pc++; break;
        case YIELD:
            g->pc++;
            g->stuck = true;
            break;
        case AGAIN: g->stuck = true; break;
        case MOVED: break;
        }
    }
}

// ---- a cluster ------------------------------------------------------------------------------------------------------

static void *wanted(void *p) {
    if (!p)
        machine_fault(NULL, "no memory");
    return p;
}

static void set_special(struct warp *w, enum special which, uint32_t value) {
    uint32_t place = w->block->cluster->launch->f->special[which];
    if (place != DISCARD)
        for (int lane = 0; lane < LANES; lane++)
            register_of(w, place)->u32[lane] = value;
}

static void set_threads(struct warp *w) {
    const struct launch_of *l = w->block->cluster->launch;
    const struct function *f = l->f;
    const uint32_t *n = l->threads;
    for (uint32_t lane = 0; lane < LANES; lane++) {
        uint32_t t = (uint32_t)w->index * LANES + lane, at[3] = {t % n[0], t / n[0] % n[1], t / n[0] / n[1]};
        for (int k = 0; k < 3; k++)
            if (f->special[TID_X + k] != DISCARD)
                register_of(w, f->special[TID_X + k])->u32[lane] = at[k];
        const uint32_t masks[5] = {(1u << lane) - 1, 1u << lane, -1u << lane, (2u << lane) - 1, ~((2u << lane) - 1)};
        for (int k = 0; k < 5; k++)
            if (f->special[LANEMASK_LT + k] != DISCARD)
                register_of(w, f->special[LANEMASK_LT + k])->u32[lane] = masks[k];
        if (f->special[LANEID] != DISCARD)
            register_of(w, f->special[LANEID])->u32[lane] = lane;
        if (f->local_at != DISCARD)
            register_of(w, f->local_at)->u64[lane] =
                (uintptr_t)(w->block->local + (size_t)t * ((f->local_bytes + 15) & ~15u));
    }
}

/* Multiprocessors are drawn, as nothing is promised of who runs where. */
static uint32_t processor_of(const struct block *b) {
    const uint32_t *grid = b->cluster->launch->grid;
    uint32_t i = (b->index[2] * grid[1] + b->index[1]) * grid[0] + b->index[0];
    return (i * 89 + (uint32_t)(seed() % 101) * (i / 5)) % 132;
}

static void set_registers(struct warp *w) {
    const struct block *b = w->block;
    const struct cluster *c = b->cluster;
    const struct launch_of *l = c->launch;
    const struct function *f = l->f;
    set_threads(w);
    for (int k = 0; k < 3; k++) {
        set_special(w, NTID_X + k, l->threads[k]);
        set_special(w, CTAID_X + k, b->index[k]);
        set_special(w, NCTAID_X + k, l->grid[k]);
        set_special(w, CLUSTERID_X + k, c->index[k]);
        set_special(w, NCLUSTERID_X + k, l->grid[k] / l->cluster[k]);
    }
    set_special(w, WARPID, (uint32_t)w->index);
    set_special(w, CLUSTER_CTARANK, (uint32_t)b->rank);
    set_special(w, CLUSTER_NCTARANK, (uint32_t)c->n_blocks);
    set_special(w, CLUSTER_CTAID_X, b->index[0] % l->cluster[0]);
    set_special(w, DYNAMIC_SMEM_SIZE, l->shared);
    set_special(w, SMID, processor_of(b));
    for (int lane = 0; lane < LANES; lane++) {
        if (f->shared_at != DISCARD)
            register_of(w, f->shared_at)->u32[lane] = (uint32_t)b->rank << 24;
        if (f->param_at != DISCARD)
            register_of(w, f->param_at)->u64[lane] = (uintptr_t)l->params;
    }
}

static void begin_warp(struct warp *w, struct block *b, int index, uint32_t n_threads) {
    char *registers = w->base[0];
    struct product *products = w->products;
    struct async_copy *cp_async = w->cp_async;
    *w = (struct warp){.block = b, .index = index, .products = products, .cp_async = cp_async};
    w->base[0] = registers;
    w->base[1] = b->cluster->launch->f->constants;
    uint32_t left = n_threads - (uint32_t)index * LANES, lanes = left >= LANES ? ~0u : (1u << left) - 1;
    w->exited = ~lanes;
    w->groups[0] = (struct group){.lanes = lanes};
    w->n_groups = 1;
    set_registers(w);
}

static void begin_block(struct block *b, struct cluster *c, int rank, const uint32_t first[3]) {
    const struct launch_of *l = c->launch;
    uint32_t n = l->threads[0] * l->threads[1] * l->threads[2], r = (uint32_t)rank;
    b->cluster = c, b->rank = rank, b->n_alive = (int)n;
    b->index[0] = first[0] + r % l->cluster[0];
    b->index[1] = first[1] + r / l->cluster[0] % l->cluster[1];
    b->index[2] = first[2] + r / l->cluster[0] / l->cluster[1];
    b->shared_end = l->f->static_shared + l->shared;
    memset(b->shared, 0xff, b->shared_end);
    memset(b->barriers, 0, sizeof b->barriers);
    for (int i = 0; i < b->n_warps; i++)
        begin_warp(&b->warps[i], b, i, n);
}

static bool is_over(const struct cluster *c) {
    for (int i = 0; i < c->n_blocks; i++)
        if (c->blocks[i].n_alive > 0)
            return false;
    return true;
}

static void name_those_that_wait(struct cluster *c) {
    for (int i = 0; i < c->n_blocks; i++)
        for (int k = 0; k < c->blocks[i].n_warps; k++) {
            struct warp *w = &c->blocks[i].warps[k];
            for (w->at = 0; w->at < w->n_groups; w->at++) {
                const struct insn *at = &c->launch->f->code[w->groups[w->at].pc];
                fprintf(stderr, "ptx: block (%u, %u, %u), warp %d, lanes %08x: line %d, %s\n", c->blocks[i].index[0],
                        c->blocks[i].index[1], c->blocks[i].index[2], k, w->groups[w->at].lanes, at->line, at->name);
            }
        }
}

/* A turn of each warp. */
static void run_turn(struct cluster *c) {
    int n_warps = c->blocks[0].n_warps, all = c->n_blocks * n_warps;
    bool is_idle = true;
    int first = (int)(machine_random(c) % (uint64_t)all);
    c->polls = false;
    for (int i = 0; i < all; i++) {
        struct warp *w = &c->blocks[(first + i) % all / n_warps].warps[(first + i) % n_warps];
        uint64_t before = w->n_run;
        if (w->n_groups > 0)
            run_warp(w);
        is_idle = is_idle && w->n_run - before < IDLE;
    }
    c->n_turns++;
    c->idle = is_idle ? c->idle + 1 : 0;
    if (c->idle > 2 && copies_land(c, false))
        c->idle = 0;
}

// ---- a launch -------------------------------------------------------------------------------------------------------

static void make_room(struct cluster *c) {
    const struct launch_of *l = c->launch;
    uint32_t n = l->threads[0] * l->threads[1] * l->threads[2];
    for (int i = 0; i < c->n_blocks; i++) {
        struct block *b = &c->blocks[i];
        b->n_warps = (int)((n + LANES - 1) / LANES);
        b->shared = wanted(aligned_alloc(1024, SHARED_MOST));
        b->in_flight = wanted(calloc(SHARED_MOST / 4 / 64, sizeof *b->in_flight));
        b->local =
            l->f->local_bytes ? wanted(malloc((size_t)b->n_warps * LANES * ((l->f->local_bytes + 15) & ~15u))) : NULL;
        b->warps = wanted(calloc((size_t)b->n_warps, sizeof *b->warps));
        for (int k = 0; k < b->n_warps; k++) {
            b->warps[k].base[0] = wanted(aligned_alloc(64, (l->f->register_bytes + sizeof(union lanes) + 63) & ~63u));
        }
    }
}

static void free_room(struct cluster *c) {
    free(c->copies);
    for (int i = 0; i < c->n_blocks; i++) {
        struct block *b = &c->blocks[i];
        for (int k = 0; k < b->n_warps; k++) {
            free(b->warps[k].base[0]);
            free(b->warps[k].products);
            free(b->warps[k].cp_async);
        }
        free(b->warps), free(b->shared), free(b->in_flight), free(b->local);
    }
    free(c);
}

// ---- clusters beside each other -------------------------------------------------------------------------------------

/* Rooms of clusters: those that run, then those that are free again. */
struct rooms {
    const struct launch_of *launch;
    struct cluster **all;
    int n, n_running, most;
    uint64_t n_begun, n_clusters;
};

static void begin_next(struct rooms *r) {
    const struct launch_of *l = r->launch;
    if (r->n_running == r->n) {
        struct cluster *c = r->all[r->n] = wanted(calloc(1, sizeof *c));
        *c = (struct cluster){.launch = l,
                              .n_blocks = (int)(l->cluster[0] * l->cluster[1] * l->cluster[2]),
                              .random = seed() + (uint64_t)r->n};
        make_room(c);
        r->n++;
    }
    struct cluster *c = r->all[r->n_running++];
    uint64_t at = r->n_begun++;
    uint32_t first[3];
    for (int k = 0; k < 3; k++) {
        uint32_t n = l->grid[k] / l->cluster[k];
        c->index[k] = (uint32_t)(at % n), at /= n;
        first[k] = c->index[k] * l->cluster[k];
    }
    memset(&c->barrier, 0, sizeof c->barrier);
    c->idle = 0;
    for (int i = 0; i < c->n_blocks; i++)
        begin_block(&c->blocks[i], c, i, first);
}

static void end_cluster(struct rooms *r, int i) {
    struct cluster *c = r->all[i];
    copies_land(c, true);
    r->all[i] = r->all[--r->n_running];
    r->all[r->n_running] = c;
}

/* All that run have done nothing for so many turns but look at memory. One that does not even look waits for ever. */
static bool all_wait(const struct rooms *r, int n_turns) {
    bool wait = true;
    for (int i = 0; i < r->n_running; i++) {
        struct cluster *c = r->all[i];
        wait = wait && c->idle > n_turns;
        if (c->idle > MOST_IDLE && !c->polls) {
            name_those_that_wait(c);
            machine_fault(NULL, "%s: all wait for ever", r->launch->f->name);
        }
    }
    return wait;
}

/* Whether kernels of other devices have had their turn, if all that run look at memory. */
static bool others_ran(struct rooms *r) {
    for (int i = 0; i < r->n_running; i++)
        if (!r->all[i]->polls)
            return false;
    if (!r->launch->lets_others)
        return false;
    r->launch->lets_others();
    for (int i = 0; i < r->n_running; i++)
        r->all[i]->idle = 0;
    return true;
}

static void run_all(struct rooms *r) {
    while (r->n_running > 0 || r->n_begun < r->n_clusters) {
        bool may_begin = r->n_begun < r->n_clusters && r->n_running < r->most;
        bool wait = all_wait(r, r->launch->lets_others ? FEW_IDLE : PATIENCE);
        if (wait && may_begin) {
            begin_next(r);
        } else if (!(wait && others_ran(r)) && all_wait(r, MOST_IDLE)) {
            for (int i = 0; i < r->n_running; i++)
                name_those_that_wait(r->all[i]);
            machine_fault(NULL, "%s: all wait for ever, and look at what none of them writes", r->launch->f->name);
        }
        for (int i = 0; i < r->n_running; i++) {
            run_turn(r->all[i]);
            if (is_over(r->all[i]))
                end_cluster(r, i--);
        }
    }
}

void machine_launch(const struct launch_of *l) {
    uint32_t n_blocks = l->cluster[0] * l->cluster[1] * l->cluster[2];
    if (n_blocks < 1 || n_blocks > MOST_CLUSTER || l->grid[0] % l->cluster[0] || l->grid[1] % l->cluster[1] ||
        l->grid[2] % l->cluster[2])
        machine_fault(NULL, "%s: a grid of %u x %u x %u blocks in clusters of %u x %u x %u", l->f->name, l->grid[0],
                      l->grid[1], l->grid[2], l->cluster[0], l->cluster[1], l->cluster[2]);
    if (l->f->static_shared + l->shared > SHARED_MOST)
        machine_fault(NULL, "%s: %u bytes of shared memory", l->f->name, l->f->static_shared + l->shared);
    struct rooms r = {.launch = l, .n_clusters = (uint64_t)l->grid[0] * l->grid[1] * l->grid[2] / n_blocks};
    r.most = l->at_once > 0 && (uint64_t)l->at_once < r.n_clusters ? l->at_once : (int)r.n_clusters;
    r.all = wanted(calloc((size_t)r.most, sizeof(struct cluster *)));
    run_all(&r);
    while (r.n > 0)
        free_room(r.all[--r.n]);
    free(r.all);
}
