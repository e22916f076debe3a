/* copies.c - barriers in shared memory (mbarrier), and the copies that run beside the warps: bulk copies and tensor
 * maps, st.async, cp.async.
 *
 * A copy that has been asked for lands later: when its barrier is looked at, each by a throw of the dice, or when
 * nobody can go on. Until then 0xff lies where it goes, and no other copy may go there. What it copies from is read as
 * it lands, as the device may, but for st.async, which comes from registers. Likewise what arrives at a barrier of
 * another block, unless a release puts it before what follows. A copy of cp.async lands when its thread waits for it. A
 * cluster that ends before its copies have landed is a fault: its shared memory is given to others.
 *
 * Sizes, alignments and addresses are checked when a copy is asked for. */
#include "machine.h"
#include "tensor_map.h"

#include <stdlib.h>
#include <string.h>

#include "parts/flights.h"

// ---- barriers: instructions -----------------------------------------------------------------------------------------

static uint32_t address_of(const struct warp *w, const struct insn *i, int k, uint32_t lane) {
    return arg_of(w, i, k)->u32[lane] + (uint32_t)i->offset;
}

static enum outcome run_init(struct warp *w, const struct insn *i, uint32_t lanes) {
    struct cluster *c = w->block->cluster;
    EACH_LANE (lane, lanes) {
        uint32_t at = address_of(w, i, 0, lane), n = arg_of(w, i, 1)->u32[lane];
        check_own(w, at);
        if (at % 8 || n == 0 || n > MOST_ARRIVALS)
            machine_fault(w, "a barrier of %u arrivals at %#x", n, at);
        for (int k = 0; k < c->n_copies; k++)
            if (c->copies[k].barrier == at)
                machine_fault(w, "the barrier at %#x begins anew, and the copy of line %d counts on it", at,
                              c->copies[k].line);
        struct barrier b = {.expected = n, .pending = n, .mark = BARRIER_MARK};
        memcpy(shared_at(w, at, 8), &b, 8);
    }
    return NEXT;
}
static enum outcome run_invalidate(struct warp *w, const struct insn *i, uint32_t lanes) {
    EACH_LANE (lane, lanes)
        memset(barrier_at(w, address_of(w, i, 0, lane)), 0xff, 8);
    return NEXT;
}

static enum outcome run_expect(struct warp *w, const struct insn *i, uint32_t lanes) {
    EACH_LANE (lane, lanes) {
        struct barrier *b = barrier_at(w, address_of(w, i, 0, lane));
        barrier_expect(w, b, arg_of(w, i, 1)->u32[lane]);
        barrier_end_phase(b);
    }
    return NEXT;
}

/* What an arrival may keep, to wait for the end of the phase that it arrived in: the barrier as it was. */
static void put_state(struct warp *w, const struct insn *i, uint32_t lane, const struct barrier *b) {
    if (i->arg[0] != DISCARD)
        memcpy(&arg_of(w, i, 0)->u64[lane], b, 8);
}
/* mbarrier.arrive state, [at]{, count} */
static enum outcome run_arrive(struct warp *w, const struct insn *i, uint32_t lanes) {
    EACH_LANE (lane, lanes) {
        uint32_t at = address_of(w, i, 1, lane), n = i->n_args > 2 ? arg_of(w, i, 2)->u32[lane] : 1;
        if (at >> 24 != (uint32_t)w->block->rank) {
            add_arrival(w, i, at, n);
            continue;
        }
        struct barrier *b = barrier_at(w, at);
        put_state(w, i, lane, b);
        barrier_arrive(w, b, n);
    }
    return NEXT;
}
/* mbarrier.arrive.expect_tx state, [at], bytes */
static enum outcome run_arrive_expect(struct warp *w, const struct insn *i, uint32_t lanes) {
    EACH_LANE (lane, lanes) {
        struct barrier *b = barrier_at(w, address_of(w, i, 1, lane));
        put_state(w, i, lane, b);
        barrier_expect(w, b, arg_of(w, i, 2)->u32[lane]);
        barrier_arrive(w, b, 1);
    }
    return NEXT;
}

/* Phases of other parity than the barrier's own have ended. */
static enum outcome wait(struct warp *w, const struct insn *i, uint32_t lanes, const uint32_t parity[LANES]) {
    uint32_t ended = 0, before = 0, *flag = flag_of(w, i, 0);
    EACH_LANE (lane, lanes) {
        uint32_t at = address_of(w, i, 1, lane);
        check_own(w, at);
        if (at != before)
            land_some(w->block->cluster, before = at);
        ended |= (uint32_t)(barrier_at(w, at)->phase != parity[lane]) << lane;
    }
    *flag = (*flag & ~lanes) | ended;
    return ended == lanes ? NEXT : YIELD;
}
/* mbarrier.try_wait.parity p, [at], parity */
static enum outcome run_wait_parity(struct warp *w, const struct insn *i, uint32_t lanes) {
    const union lanes *parity = arg_of(w, i, 2);
    EACH_LANE (lane, lanes)
        if (parity->u32[lane] > 1)
            machine_fault(w, "a wait for parity %u", parity->u32[lane]);
    return wait(w, i, lanes, parity->u32);
}
/* mbarrier.try_wait p, [at], state */
static enum outcome run_wait(struct warp *w, const struct insn *i, uint32_t lanes) {
    uint32_t parity[LANES] = {0};
    EACH_LANE (lane, lanes) {
        struct barrier state;
        memcpy(&state, &arg_of(w, i, 2)->u64[lane], 8);
        if (state.mark != BARRIER_MARK)
            machine_fault(w, "a wait for a phase that is none");
        parity[lane] = state.phase;
    }
    return wait(w, i, lanes, parity);
}

// ---- addresses of other blocks --------------------------------------------------------------------------------------

/* The compiler takes addresses ahead of the branch that asks whether there is such a block: one that is not there has
 * an address that is nowhere. */
static const uint64_t NOWHERE = (uint64_t)0xdead << 48;

static uint32_t rank_of(const struct insn *i, const struct warp *w, uint32_t lane) {
    uint32_t rank = arg_of(w, i, 2)->u32[lane];
    return rank < (uint32_t)w->block->cluster->n_blocks ? rank : UINT8_MAX;
}
static enum outcome run_mapa(struct warp *w, const struct insn *i, uint32_t lanes) {
    EACH_LANE (lane, lanes)
        arg_of(w, i, 0)->u32[lane] = (arg_of(w, i, 1)->u32[lane] & 0xffffff) | rank_of(i, w, lane) << 24;
    return NEXT;
}
/* Of an address that is generic: a pointer. */
static enum outcome run_mapa_generic(struct warp *w, const struct insn *i, uint32_t lanes) {
    const struct cluster *c = w->block->cluster;
    EACH_LANE (lane, lanes) {
        uint64_t at = arg_of(w, i, 1)->u64[lane];
        uint32_t rank = rank_of(i, w, lane);
        int k = 0;
        while (k < c->n_blocks && at - (uintptr_t)c->blocks[k].shared >= SHARED_MOST)
            k++;
        bool is_there = k < c->n_blocks && rank != UINT8_MAX;
        arg_of(w, i, 0)->u64[lane] = is_there ? at - (uintptr_t)c->blocks[k].shared + (uintptr_t)c->blocks[rank].shared
                                              : NOWHERE | (at & 0xffffff);
    }
    return NEXT;
}

// ---- bulk copies ----------------------------------------------------------------------------------------------------

/* Of an instruction with several addresses nobody would know whose the offset is. */
static void check_no_offset(struct warp *w, const struct insn *i) {
    if (i->offset)
        machine_fault(w, "'%s' with an offset", i->name);
}

/* cp.async.bulk [to], [from], bytes, [barrier]{, policy}; from global memory, or the block's own shared memory. */
static enum outcome copy_bytes(struct warp *w, const struct insn *i, uint32_t lanes, bool is_shared) {
    check_no_offset(w, i);
    EACH_LANE (lane, lanes) {
        uint64_t from = is_shared ? arg_of(w, i, 1)->u32[lane] : arg_of(w, i, 1)->u64[lane];
        struct pending_copy p = {.kind = BYTES,
                                 .to = arg_of(w, i, 0)->u32[lane],
                                 .n = arg_of(w, i, 2)->u32[lane],
                                 .barrier = arg_of(w, i, 3)->u32[lane]};
        if (p.to % 16 || from % 16 || p.n % 16 || p.n == 0)
            machine_fault(w, "a copy of %u bytes from %#llx to %#x", p.n, (unsigned long long)from, p.to);
        if (is_shared && is_in_flight(w->block->cluster, (uint32_t)from, p.n))
            machine_fault(w, "a copy from %#llx, where another goes that has not landed", (unsigned long long)from);
        p.from = is_shared ? shared_at(w, (uint32_t)from, p.n) : global_at(w, from, p.n);
        add_copy(w, i, &p);
    }
    return NEXT;
}
static enum outcome run_bulk(struct warp *w, const struct insn *i, uint32_t lanes) {
    return copy_bytes(w, i, lanes, false);
}
static enum outcome run_bulk_shared(struct warp *w, const struct insn *i, uint32_t lanes) {
    return copy_bytes(w, i, lanes, true);
}

static void check_map(struct warp *w, const struct insn *i, const struct pending_copy *p) {
    static const uint32_t SPANS[] = {[SWIZZLE_NONE] = 0, [SWIZZLE_32B] = 32, [SWIZZLE_64B] = 64, [SWIZZLE_128B] = 128};
    const struct tensor_map *m = &p->map;
    if (m->magic != TENSOR_MAP_MAGIC)
        machine_fault(w, "there is no tensor map");
    if (m->rank != strstr(i->name, ".tensor.")[8] - '0')
        machine_fault(w, "a map of rank %d", m->rank);
    uint32_t bytes = m->box[0] * m->element_bytes;
    if (bytes % 16 || (m->swizzle && bytes != SPANS[m->swizzle]))
        machine_fault(w, "a box of rows of %u bytes with swizzle %d", bytes, m->swizzle);
    for (int d = 0; d < m->rank; d++)
        if (m->element_stride[d] != 1)
            machine_fault(w, "a box of every %dth element", m->element_stride[d]);
    if (m->fills_nan)
        machine_fault(w, "a map that fills with NaN");
    if (p->to % 128)
        machine_fault(w, "a box to %#x", p->to);
}

/* The first and the last row that the box has in the tensor are in an allocation. */
static void check_rows(struct warp *w, const struct pending_copy *p) {
    const struct tensor_map *m = &p->map;
    uint32_t first[MOST_RANK] = {0}, last[MOST_RANK] = {0};
    struct inside row = inside_of(m, 0, p->at[0]);
    for (int d = 0; d < m->rank; d++) {
        struct inside s = inside_of(m, d, p->at[d]);
        if (s.first >= s.end)
            return;
        first[d] = s.first, last[d] = s.end - 1;
    }
    bool is_inside;
    uint64_t begin = m->address + (uint64_t)row.first * m->element_bytes;
    uint32_t n = (row.end - row.first) * m->element_bytes;
    global_at(w, begin + (uint64_t)row_offset(p, first, &is_inside), n);
    global_at(w, begin + (uint64_t)row_offset(p, last, &is_inside), n);
}

/* cp.async.bulk.tensor [to], [map, {coordinates}], [barrier]{, mask of blocks}{, policy} */
static struct pending_copy box_of(struct warp *w, const struct insn *i, uint32_t lane) {
    struct pending_copy p = {.kind = BOX, .to = arg_of(w, i, 0)->u32[lane], .n = 1};
    memcpy(&p.map, generic_at(w, arg_of(w, i, 1)->u64[lane], sizeof p.map), sizeof p.map);
    check_map(w, i, &p);
    for (int d = 0; d < p.map.rank; d++) {
        p.at[d] = arg_of(w, i, 2 + d)->s32[lane];
        p.n *= p.map.box[d];
    }
    p.n *= p.map.element_bytes;
    p.barrier = arg_of(w, i, 2 + p.map.rank)->u32[lane];
    check_rows(w, &p);
    return p;
}
static enum outcome run_bulk_tensor(struct warp *w, const struct insn *i, uint32_t lanes) {
    check_no_offset(w, i);
    EACH_LANE (lane, lanes) {
        struct pending_copy p = box_of(w, i, lane);
        add_copy(w, i, &p);
    }
    return NEXT;
}
/* To the same places of each block of the mask, and to the barriers there. */
static void add_to_blocks(struct warp *w, const struct insn *i, struct pending_copy *p, uint32_t blocks) {
    int n = w->block->cluster->n_blocks;
    uint32_t to = p->to & 0xffffff, barrier = p->barrier & 0xffffff;
    if (blocks == 0 || blocks >> n)
        machine_fault(w, "a copy to blocks %#x of %d", blocks, n);
    EACH_LANE (rank, blocks) {
        p->to = to | rank << 24, p->barrier = barrier | rank << 24;
        add_copy(w, i, p);
    }
}
static enum outcome run_bulk_tensor_multicast(struct warp *w, const struct insn *i, uint32_t lanes) {
    check_no_offset(w, i);
    EACH_LANE (lane, lanes) {
        struct pending_copy p = box_of(w, i, lane);
        add_to_blocks(w, i, &p, (uint16_t)arg_of(w, i, 3 + p.map.rank)->u32[lane]);
    }
    return NEXT;
}

static enum outcome run_nothing(struct warp *w, const struct insn *i, uint32_t lanes) {
    (void)w, (void)i, (void)lanes;
    return NEXT;
}

// ---- stores to other blocks -----------------------------------------------------------------------------------------

/* st.async [to], value or {values}, [barrier] */
static enum outcome run_st_async(struct warp *w, const struct insn *i, uint32_t lanes) {
    check_no_offset(w, i);
    uint32_t n = i->n_args - 2u, size = i->name[strlen(i->name) - 2] == '6' ? 8 : 4; // b64 or b32
    EACH_LANE (lane, lanes) {
        struct pending_copy p = {.kind = WORDS,
                                 .to = arg_of(w, i, 0)->u32[lane],
                                 .n = n * size,
                                 .barrier = arg_of(w, i, i->n_args - 1)->u32[lane]};
        if (p.n > sizeof p.words || p.to % p.n)
            machine_fault(w, "%u bytes to %#x", p.n, p.to);
        for (uint32_t k = 0; k < n; k++) {
            const union lanes *from = arg_of(w, i, 1 + (int)k);
            memcpy(p.words + k * size, size == 8 ? (const void *)&from->u64[lane] : &from->u32[lane], size);
        }
        add_copy(w, i, &p);
    }
    return NEXT;
}

// ---- cp.async: copies of a thread -----------------------------------------------------------------------------------

/* Copies of a warp's threads that have not landed. Each thread closes batches and waits for its own. */
struct async_copy {
    uint32_t n, room;
    uint32_t n_batches[LANES]; // closed
    struct one_async {
        uint32_t to, n, n_read; // the rest is zero
        uint32_t lane, batch;
        const unsigned char *from;
    } copies[];
};

static void add_async(struct warp *w, struct one_async copy) {
    struct async_copy *q = w->cp_async;
    if (!q || q->n == q->room) {
        uint32_t room = q ? 2 * q->room : 64;
        struct async_copy *grown = realloc(q, sizeof *q + room * sizeof *q->copies);
        if (!grown)
            machine_fault(w, "no memory");
        if (!q)
            memset(grown, 0, sizeof *grown);
        grown->room = room;
        w->cp_async = q = grown;
    }
    copy.batch = q->n_batches[copy.lane];
    q->copies[q->n++] = copy;
}

/* cp.async [to], [from], bytes{, bytes that are read}. With a hint for the cache and one more, that one is a predicate:
 * nothing is read. */
static enum outcome run_cp_async(struct warp *w, const struct insn *i, uint32_t lanes) {
    check_no_offset(w, i);
    bool has_policy = strstr(i->name, "cache_hint"), has_more = i->n_args - has_policy > 3;
    EACH_LANE (lane, lanes) {
        uint64_t from = arg_of(w, i, 1)->u64[lane];
        struct one_async p = {.to = arg_of(w, i, 0)->u32[lane], .n = arg_of(w, i, 2)->u32[lane], .lane = lane};
        p.n_read = !has_more ? p.n : !has_policy ? arg_of(w, i, 3)->u32[lane] : *flag_of(w, i, 3) >> lane & 1 ? 0 : p.n;
        if ((p.n != 4 && p.n != 8 && p.n != 16) || p.to % p.n || from % p.n || p.n_read > p.n)
            machine_fault(w, "a copy of %u of %u bytes from %#llx to %#x", p.n_read, p.n, (unsigned long long)from,
                          p.to);
        p.from = p.n_read ? global_at(w, from, p.n_read) : NULL;
        begin_flight(w, p.to, p.n);
        add_async(w, p);
    }
    return NEXT;
}

static enum outcome run_cp_commit(struct warp *w, const struct insn *i, uint32_t lanes) {
    (void)i;
    if (w->cp_async)
        EACH_LANE (lane, lanes)
            w->cp_async->n_batches[lane]++;
    return NEXT;
}

static void land_async(struct cluster *c, const struct one_async *p) {
    unsigned char *to = known_shared(c, p->to);
    memset(to, 0, p->n);
    if (p->n_read)
        memcpy(to, p->from, p->n_read);
    set_in_flight(c, p->to, p->n, false);
}
/* Lands what the lanes have asked for, but for their last batches; open: and what is in no batch yet. */
static void land_of_lanes(struct warp *w, uint32_t lanes, uint32_t but_for, bool open) {
    struct async_copy *q = w->cp_async;
    uint32_t left = 0;
    if (!q)
        return;
    for (uint32_t k = 0; k < q->n; k++) {
        const struct one_async *p = &q->copies[k];
        bool may_wait = !open && p->batch + but_for >= q->n_batches[p->lane];
        if (may_wait || !(lanes >> p->lane & 1))
            q->copies[left++] = *p;
        else
            land_async(w->block->cluster, p);
    }
    q->n = left;
}
static enum outcome run_cp_wait_group(struct warp *w, const struct insn *i, uint32_t lanes) {
    land_of_lanes(w, lanes, arg_of(w, i, 0)->u32[0], false);
    return NEXT;
}
static enum outcome run_cp_wait_all(struct warp *w, const struct insn *i, uint32_t lanes) {
    (void)i;
    land_of_lanes(w, lanes, 0, true);
    return NEXT;
}

// ---- the end --------------------------------------------------------------------------------------------------------

/* What a cluster's threads have not waited for: nobody sees it. */
static void end_async(struct cluster *c) {
    for (int b = 0; b < c->n_blocks; b++)
        for (int k = 0; k < c->blocks[b].n_warps; k++) {
            struct warp *w = &c->blocks[b].warps[k];
            land_of_lanes(w, ~0u, 0, true);
            if (w->cp_async)
                memset(w->cp_async->n_batches, 0, sizeof w->cp_async->n_batches);
        }
}

/* An arrival is on its way for a while: a block that ends so soon behind it may be gone when it comes, which ends the
 * kernel on a device. One that has had the time has come, though nobody has looked. */
void copies_end(struct block *b) {
    enum { SOON_RUN = 50, SOON_TURNS = 4 };
    struct cluster *c = b->cluster;
    for (int k = c->n_copies - 1; k >= 0; k--) {
        const struct pending_copy *p = &c->copies[k];
        if (p->kind != ARRIVAL || p->to >> 24 != (uint32_t)b->rank)
            continue;
        if (p->asker->n_run - p->n_run < SOON_RUN && c->n_turns - p->n_turns < SOON_TURNS)
            machine_fault(NULL,
                          "block (%u, %u, %u) ends before the arrival of line %d has come, at %#x: who told it has run "
                          "%d instructions since",
                          b->index[0], b->index[1], b->index[2], p->line, p->to, (int)(p->asker->n_run - p->n_run));
        land(c, k);
    }
}

void copies_order(struct warp *w) {
    struct cluster *c = w->block->cluster;
    for (int k = c->n_copies - 1; k >= 0; k--)
        if (c->copies[k].kind == ARRIVAL && c->copies[k].asker == w)
            land(c, k);
}

bool copies_land(struct cluster *c, bool all) {
    if (all) {
        if (c->n_copies > 0)
            machine_fault(NULL,
                          "the cluster of block (%u, %u, %u) has ended before the copy of line %d has landed at %#x "
                          "(%d are under way)",
                          c->blocks[0].index[0], c->blocks[0].index[1], c->blocks[0].index[2], c->copies[0].line,
                          c->copies[0].to, c->n_copies);
        end_async(c);
        return false;
    }
    if (c->n_copies == 0)
        return false;
    land(c, (int)(machine_random(c) % (uint64_t)c->n_copies));
    return true;
}

#define BULK "shared::cluster.global.mbarrier::complete_tx::bytes"
#define TENSOR(rank)                                                                                          \
    {"cp.async.bulk.tensor." rank "." BULK, run_bulk_tensor},                                                 \
        {"cp.async.bulk.tensor." rank "." BULK ".L2::cache_hint", run_bulk_tensor},                           \
        {"cp.async.bulk.tensor." rank "." BULK ".multicast::cluster", run_bulk_tensor_multicast}, {           \
        "cp.async.bulk.tensor." rank "." BULK ".multicast::cluster.L2::cache_hint", run_bulk_tensor_multicast \
    }

const struct opcode copy_ops[] = {
    {"mbarrier.init.*", run_init},
    {"mbarrier.inval.*", run_invalidate},
    {"mbarrier.expect_tx.*", run_expect},
    {"mbarrier.arrive.expect_tx.*", run_arrive_expect},
    {"mbarrier.arrive.shared*", run_arrive},
    {"mbarrier.arrive.release.*", run_arrive},
    {"mbarrier.try_wait.parity.*", run_wait_parity},
    {"mbarrier.test_wait.parity.*", run_wait_parity},
    {"mbarrier.try_wait.*", run_wait},
    {"mbarrier.test_wait.*", run_wait},
    {"mapa.shared::cluster.u32", run_mapa},
    {"mapa.u64", run_mapa_generic},
    {"cp.async.bulk." BULK, run_bulk},
    {"cp.async.bulk." BULK ".L2::cache_hint", run_bulk},
    {"cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes", run_bulk_shared},
    TENSOR("1d"),
    TENSOR("2d"),
    TENSOR("3d"),
    TENSOR("4d"),
    TENSOR("5d"),
    {"cp.async.bulk.prefetch.*", run_nothing},
    {"st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.*", run_st_async},
    {"st.async.shared::cluster.mbarrier::complete_tx::bytes.*", run_st_async},
    {"cp.async.ca.shared.global*", run_cp_async},
    {"cp.async.cg.shared.global*", run_cp_async},
    {"cp.async.commit_group", run_cp_commit},
    {"cp.async.wait_group", run_cp_wait_group},
    {"cp.async.wait_all", run_cp_wait_all},
    {NULL, NULL},
};
