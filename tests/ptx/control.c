/* control.c - branches, barriers of threads, votes and shuffles. */
#include "machine.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

static enum outcome run_nothing(struct warp *w, const struct insn *i, uint32_t lanes) {
    (void)w, (void)i, (void)lanes;
    return NEXT;
}

// ---- where lanes go -------------------------------------------------------------------------------------------------

static enum outcome run_bra(struct warp *w, const struct insn *i, uint32_t lanes) {
    warp_jump(w, lanes, i->target);
    return MOVED;
}
static enum outcome run_exit(struct warp *w, const struct insn *i, uint32_t lanes) {
    (void)i;
    warp_exit(w, lanes);
    return MOVED;
}
static enum outcome run_trap(struct warp *w, const struct insn *i, uint32_t lanes) {
    (void)i, (void)lanes;
    machine_fault(w, "a trap");
}

// ---- what lanes of a warp do together -------------------------------------------------------------------------------

/* All lanes of the mask that are alive have come. */
static bool have_met(const struct warp *w, uint32_t mask, uint32_t lanes) { return (mask & ~w->exited & ~lanes) == 0; }
/* The member mask is the last operand. */
static uint32_t members(const struct warp *w, const struct insn *i, uint32_t lanes) {
    return arg_of(w, i, i->n_args - 1)->u32[__builtin_ctz(lanes)];
}

static enum outcome run_warp_sync(struct warp *w, const struct insn *i, uint32_t lanes) {
    return have_met(w, members(w, i, lanes), lanes) ? NEXT : AGAIN;
}

/* Of shfl: the lane that is read, and whether it is in reach; c: as the instruction has it. */
static bool lane_read(char mode, uint32_t lane, uint32_t b, uint32_t c, uint32_t *from) {
    uint32_t segment = c >> 8 & 31, clamp = c & 31, top = (lane & segment) | (clamp & ~segment), first = lane & segment;
    int32_t at;
    bool in_reach;
    b &= 31;
    switch (mode) {
    case 'u': at = (int32_t)lane - (int32_t)b, in_reach = at >= (int32_t)top; break;
    case 'd': at = (int32_t)(lane + b), in_reach = at <= (int32_t)top; break;
    case 'b': at = (int32_t)(lane ^ b), in_reach = at <= (int32_t)top; break;
    default: at = (int32_t)(first | (b & ~segment)), in_reach = at <= (int32_t)top; break;
    }
    *from = in_reach ? (uint32_t)at : lane;
    return in_reach;
}

struct lanes_read {
    uint32_t from[LANES], in_reach;
};
static void find_lanes(const struct insn *i, const union lanes *b, const union lanes *c, uint32_t lanes,
                       struct lanes_read *out) {
    char mode = i->name[strlen("shfl.sync.")];
    out->in_reach = 0;
    EACH_LANE (lane, lanes)
        out->in_reach |= (uint32_t)lane_read(mode, lane, b->u32[lane], c->u32[lane], &out->from[lane]) << lane;
}

/* Where numbers stand in the instruction it is the same lanes each time. */
static const struct lanes_read *lanes_read(struct warp *w, const struct insn *i, uint32_t lanes,
                                           struct lanes_read *room) {
    const union lanes *b = arg_of(w, i, i->n_args - 3), *c = arg_of(w, i, i->n_args - 2);
    bool is_fixed = lanes == ~0u && i->arg[i->n_args - 3] & 1 && i->arg[i->n_args - 2] & 1;
    if (is_fixed && i->own)
        return i->own;
    if (is_fixed && !(room = malloc(sizeof *room)))
        machine_fault(w, "no memory");
    find_lanes(i, b, c, lanes, room);
    if (is_fixed)
        insn_keep(i, room);
    return room;
}

/* shfl.sync.MODE.b32 d[|p], a, b, c, members */
static enum outcome run_shfl(struct warp *w, const struct insn *i, uint32_t lanes) {
    int n = i->n_args;
    uint32_t a[LANES];
    struct lanes_read room;
    if (!have_met(w, members(w, i, lanes), lanes))
        return AGAIN;
    const struct lanes_read *r = lanes_read(w, i, lanes, &room);
    memcpy(a, arg_of(w, i, n - 4)->u32, sizeof a);
    uint32_t nobody[LANES], *d = i->arg[0] == DISCARD ? nobody : arg_of(w, i, 0)->u32;
    if (lanes == ~0u)
        for (int lane = 0; lane < LANES; lane++)
            d[lane] = a[r->from[lane]];
    else
        EACH_LANE (lane, lanes) {
            if (!(lanes >> r->from[lane] & 1))
                machine_fault(w, "lane %u reads lane %u, which is not there", lane, r->from[lane]);
            d[lane] = a[r->from[lane]];
        }
    if (n == 6 && i->arg[1] != DISCARD)
        *flag_of(w, i, 1) = (*flag_of(w, i, 1) & ~lanes) | r->in_reach;
    return NEXT;
}

/* Of the predicate that is asked for, as lanes have it. */
static bool ballot(const struct warp *w, const struct insn *i, uint32_t lanes, uint32_t *votes) {
    uint32_t mask = members(w, i, lanes);
    *votes = *flag_of(w, i, 1) & lanes & mask;
    return have_met(w, mask, lanes);
}
static enum outcome put_flag(struct warp *w, const struct insn *i, uint32_t lanes, bool is) {
    uint32_t *to = flag_of(w, i, 0);
    *to = (*to & ~lanes) | (is ? lanes : 0);
    return NEXT;
}
static enum outcome run_any(struct warp *w, const struct insn *i, uint32_t lanes) {
    uint32_t votes;
    return ballot(w, i, lanes, &votes) ? put_flag(w, i, lanes, votes != 0) : AGAIN;
}
static enum outcome run_all(struct warp *w, const struct insn *i, uint32_t lanes) {
    uint32_t votes;
    return ballot(w, i, lanes, &votes) ? put_flag(w, i, lanes, votes == lanes) : AGAIN;
}
static enum outcome run_ballot(struct warp *w, const struct insn *i, uint32_t lanes) {
    uint32_t votes;
    if (!ballot(w, i, lanes, &votes))
        return AGAIN;
    EACH_LANE (lane, lanes)
        arg_of(w, i, 0)->u32[lane] = votes;
    return NEXT;
}
/* Time is what this warp has run. A mov of 32 bits takes the lower half of it. */
static enum outcome run_clock(struct warp *w, const struct insn *i, uint32_t lanes) {
    EACH_LANE (lane, lanes)
        arg_of(w, i, 0)->u64[lane] = w->n_run;
    return NEXT;
}
/* Time on the clock, which goes on while others run. */
static enum outcome run_timer(struct warp *w, const struct insn *i, uint32_t lanes) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    EACH_LANE (lane, lanes)
        arg_of(w, i, 0)->u64[lane] = (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
    return NEXT;
}
static enum outcome run_activemask(struct warp *w, const struct insn *i, uint32_t lanes) {
    EACH_LANE (lane, lanes)
        arg_of(w, i, 0)->u32[lane] = lanes;
    return NEXT;
}

/* redux.sync.OP.TYPE d, a, members */
static enum outcome run_redux(struct warp *w, const struct insn *i, uint32_t lanes) {
    const char *op = i->name + strlen("redux.sync.");
    bool is_signed = strstr(op, ".s32") != NULL, first = true;
    uint32_t r = 0;
    if (!have_met(w, members(w, i, lanes), lanes))
        return AGAIN;
    EACH_LANE (lane, lanes) {
        uint32_t x = arg_of(w, i, 1)->u32[lane];
        bool less = is_signed ? (int32_t)x < (int32_t)r : x < r;
        if (first)
            r = x;
        else if (!strncmp(op, "add", 3))
            r += x;
        else if (!strncmp(op, "min", 3))
            r = less ? x : r;
        else if (!strncmp(op, "max", 3))
            r = less ? r : x;
        else if (!strncmp(op, "and", 3))
            r &= x;
        else if (!strncmp(op, "or", 2))
            r |= x;
        else if (!strncmp(op, "xor", 3))
            r ^= x;
        else
            machine_fault(w, "'%s' is not understood", i->name);
        first = false;
    }
    EACH_LANE (lane, lanes)
        arg_of(w, i, 0)->u32[lane] = r;
    return NEXT;
}

/* match.any.sync.b32 d, a, members: those that have the same */
static enum outcome run_match(struct warp *w, const struct insn *i, uint32_t lanes) {
    if (!have_met(w, members(w, i, lanes), lanes))
        return AGAIN;
    uint32_t same[LANES] = {0};
    EACH_LANE (lane, lanes)
        EACH_LANE (other, lanes)
            same[lane] |= (uint32_t)(arg_of(w, i, 1)->u32[lane] == arg_of(w, i, 1)->u32[other]) << other;
    EACH_LANE (lane, lanes)
        arg_of(w, i, 0)->u32[lane] = same[lane];
    return NEXT;
}

/* elect.sync d|p, members: the first of them */
static enum outcome run_elect(struct warp *w, const struct insn *i, uint32_t lanes) {
    uint32_t first = (uint32_t)__builtin_ctz(lanes);
    if (!have_met(w, members(w, i, lanes), lanes))
        return AGAIN;
    if (i->arg[0] != DISCARD)
        EACH_LANE (lane, lanes)
            arg_of(w, i, 0)->u32[lane] = first;
    uint32_t *p = flag_of(w, i, 1);
    *p = (*p & ~lanes) | 1u << first;
    return NEXT;
}

// ---- barriers of a block --------------------------------------------------------------------------------------------

/* How many threads a barrier wants: those that are said, or all that are alive. */
static uint32_t wanted_at(const struct warp *w, const struct insn *i, int count, uint32_t lanes) {
    if (i->n_args > count) {
        uint32_t n = arg_of(w, i, count)->u32[__builtin_ctz(lanes)];
        if (n == 0 || n % LANES || n > (uint32_t)w->block->n_warps * LANES)
            machine_fault(w, "a barrier for %u threads", n);
        return n;
    }
    return (uint32_t)w->block->n_alive;
}

static uint32_t barrier_number(const struct warp *w, const struct insn *i, int at, uint32_t lanes) {
    uint32_t k = arg_of(w, i, at)->u32[__builtin_ctz(lanes)];
    if (k >= NAMED_BARRIERS)
        machine_fault(w, "there is no barrier %u", k);
    return k;
}

/* A warp that has exited lanes counts as a whole where threads are counted. */
static uint32_t threads_of(const struct warp *w, const struct insn *i, int count, uint32_t lanes) {
    return (uint32_t)__builtin_popcount(i->n_args > count && (lanes | w->exited) == ~0u ? ~0u : lanes);
}

/* Comes once, then waits. number, count: where the operands are. votes: what these lanes say. */
static bool has_passed(struct warp *w, const struct insn *i, uint32_t lanes, int number, int count, uint32_t votes) {
    struct block *b = w->block;
    struct group *g = &w->groups[w->at];
    uint32_t k = barrier_number(w, i, number, lanes), wanted = wanted_at(w, i, count, lanes);
    if (!g->waits) {
        b->barriers[k].arrived += threads_of(w, i, count, lanes);
        b->barriers[k].votes += votes;
        g->waits = b->barriers[k].phase + 1;
    }
    if (g->waits == b->barriers[k].phase + 1 && b->barriers[k].arrived > wanted)
        machine_fault(w, "%u threads at barrier %u, which is for %u", b->barriers[k].arrived, k, wanted);
    if (g->waits == b->barriers[k].phase + 1 && b->barriers[k].arrived == wanted) {
        b->barriers[k].result = b->barriers[k].votes;
        b->barriers[k].votes = b->barriers[k].arrived = 0;
        b->barriers[k].phase++;
    }
    if (g->waits == b->barriers[k].phase + 1)
        return false;
    g->waits = 0;
    return true;
}

static enum outcome run_bar_sync(struct warp *w, const struct insn *i, uint32_t lanes) {
    return has_passed(w, i, lanes, 0, 1, 0) ? NEXT : AGAIN;
}

static enum outcome run_bar_arrive(struct warp *w, const struct insn *i, uint32_t lanes) {
    struct block *b = w->block;
    uint32_t k = barrier_number(w, i, 0, lanes), wanted = wanted_at(w, i, 1, lanes);
    b->barriers[k].arrived += threads_of(w, i, 1, lanes);
    if (b->barriers[k].arrived > wanted)
        machine_fault(w, "%u threads at barrier %u, which is for %u", b->barriers[k].arrived, k, wanted);
    if (b->barriers[k].arrived == wanted)
        b->barriers[k].arrived = 0, b->barriers[k].phase++;
    return NEXT;
}

/* bar.red.OP d, barrier[, threads], p: votes are counted */
static enum outcome run_bar_red(struct warp *w, const struct insn *i, uint32_t lanes) {
    bool counted = i->n_args == 4, popc = strstr(i->name, "popc") != NULL, all = strstr(i->name, "and") != NULL;
    uint32_t votes = (uint32_t)__builtin_popcount(*flag_of(w, i, i->n_args - 1) & lanes),
             k = barrier_number(w, i, 1, lanes);
    uint32_t n = counted ? arg_of(w, i, 2)->u32[__builtin_ctz(lanes)] : (uint32_t)w->block->n_alive;
    struct insn plain = *i;
    plain.n_args = counted ? 3 : 2;
    if (!has_passed(w, &plain, lanes, 1, 2, votes))
        return AGAIN;
    uint32_t result = w->block->barriers[k].result;
    if (!popc)
        return put_flag(w, i, lanes, all ? result == n : result > 0);
    EACH_LANE (lane, lanes)
        arg_of(w, i, 0)->u32[lane] = result;
    return NEXT;
}

// ---- barriers of a cluster ------------------------------------------------------------------------------------------

static uint32_t alive_in(const struct cluster *c) {
    uint32_t n = 0;
    for (int i = 0; i < c->n_blocks; i++)
        n += (uint32_t)c->blocks[i].n_alive;
    return n;
}

static enum outcome run_cluster_arrive(struct warp *w, const struct insn *i, uint32_t lanes) {
    struct cluster *c = w->block->cluster;
    if ((lanes | w->exited) != ~0u)
        return AGAIN;
    if (!strstr(i->name, ".relaxed"))
        copies_order(w);
    w->cluster_phase = c->barrier.phase;
    c->barrier.arrived += (uint32_t)__builtin_popcount(lanes);
    return NEXT;
}

static enum outcome run_cluster_wait(struct warp *w, const struct insn *i, uint32_t lanes) {
    struct cluster *c = w->block->cluster;
    (void)i, (void)lanes;
    if (w->cluster_phase != c->barrier.phase)
        return NEXT;
    if (c->barrier.arrived < alive_in(c))
        return AGAIN;
    c->barrier.arrived = 0;
    c->barrier.phase++;
    return NEXT;
}

const struct opcode control_ops[] = {
    {"bra", run_bra},
    {"bra.uni", run_bra},
    {"ret", run_exit},
    {"ret.uni", run_exit},
    {"exit", run_exit},
    {"trap", run_trap},
    {"bar.warp.sync", run_warp_sync},
    {"bar.sync", run_bar_sync},
    {"barrier.sync", run_bar_sync},
    {"barrier.sync.aligned", run_bar_sync},
    {"bar.arrive", run_bar_arrive},
    {"bar.red*", run_bar_red},
    {"barrier.cluster.arrive*", run_cluster_arrive},
    {"barrier.cluster.wait*", run_cluster_wait},
    {"shfl.sync.*", run_shfl},
    {"vote.sync.any.pred", run_any},
    {"vote.sync.all.pred", run_all},
    {"vote.sync.ballot.b32", run_ballot},
    {"activemask.b32", run_activemask},
    {"machine.timer", run_timer}, // for %globaltimer
    {"machine.clock", run_clock}, // parse.c's, for %clock64 and its like
    {"redux.sync.*", run_redux},
    {"match.any.sync.b32", run_match},
    {"elect.sync", run_elect},
    {"membar*", run_nothing},
    {"fence*", run_nothing},
    {"griddepcontrol*", run_nothing},
    {"setmaxnreg*", run_nothing},
    {"nanosleep*", run_nothing},
    {"pragma*", run_nothing},
    {NULL, NULL},
};
