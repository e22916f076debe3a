/* flights.h - part of copies.c: barriers, the copies that are under way, and how they land. */
#pragma once

// ---- barriers -------------------------------------------------------------------------------------------------------

/* The 64 bits of a barrier in shared memory. Nobody else knows what they are; memory that was never a barrier has
 * another mark. */
struct barrier {
    uint64_t expected : 20, pending : 20; // arrivals: of each phase; still to come in this one
    int64_t bytes : 21;                   // expected and not yet come; below 0: came before they were expected
    uint64_t phase : 1, mark : 2;
};
_Static_assert(sizeof(struct barrier) == 8, "as an mbarrier");
enum { BARRIER_MARK = 1, MOST_ARRIVALS = (1 << 20) - 1 };

/* Where shared memory lies that shared_at has found once. */
static unsigned char *known_shared(struct cluster *c, uint32_t address) {
    return c->blocks[address >> 24].shared + (address & 0xffffff);
}

static struct barrier *barrier_at(struct warp *w, uint32_t address) {
    if (address % 8)
        machine_fault(w, "a barrier at %#x", address);
    struct barrier *b = (struct barrier *)shared_at(w, address, 8);
    if (w->block->cluster->blocks[address >> 24].n_alive == 0)
        machine_fault(w, "a barrier of a block that has ended, %#x", address);
    if (b->mark != BARRIER_MARK)
        machine_fault(w, "there is no barrier at %#x", address);
    return b;
}
/* Only the block that has a barrier may wait at it, or begin it. */
static void check_own(struct warp *w, uint32_t address) {
    if (address >> 24 != (uint32_t)w->block->rank)
        machine_fault(w, "a barrier of another block, %#x", address);
}

static void barrier_expect(struct warp *w, struct barrier *b, int64_t bytes) {
    bytes += b->bytes;
    if (bytes > MOST_ARRIVALS || bytes < -MOST_ARRIVALS)
        machine_fault(w, "a barrier that expects %lld bytes", (long long)bytes);
    b->bytes = bytes;
}

static void barrier_end_phase(struct barrier *b) {
    if (b->pending == 0 && b->bytes == 0) {
        b->pending = b->expected;
        b->phase ^= 1;
    }
}

static void barrier_arrive(struct warp *w, struct barrier *b, uint32_t n) {
    if (n == 0 || n > b->pending)
        machine_fault(w, "%u arrive at a barrier that waits for %u of %u, and for %d bytes", n, (uint32_t)b->pending,
                      (uint32_t)b->expected, (int)b->bytes);
    b->pending -= n;
    barrier_end_phase(b);
}

// ---- copies that are under way --------------------------------------------------------------------------------------

enum { MOST_RANK = TENSOR_MAP_MOST_RANK };
struct pending_copy {
    enum { BYTES, BOX, WORDS, ARRIVAL } kind;
    uint32_t to, n;            // address in shared memory; bytes
    uint32_t barrier;          // in the same block: has n bytes less to expect when it lands
    const unsigned char *from; // BYTES: in global or shared memory
    unsigned char words[32];   // WORDS: themselves
    struct tensor_map map;     // BOX
    int32_t at[MOST_RANK];     // coordinates of its first element
    int line;                  // of the instruction
    const struct warp *asker;
    uint64_t n_run, n_turns; // of the asker and of the cluster, when it was asked for
};

/* Of a run of a block's bits (in_flight), the ones of one word; `at` goes on to the next word. */
static uint64_t bits_of_flight(uint32_t *at, uint32_t end) {
    uint32_t first = *at % 64, n = end - *at < 64 - first ? end - *at : 64 - first;
    *at += n;
    return (n == 64 ? UINT64_MAX : ((uint64_t)1 << n) - 1) << first;
}
static bool is_in_flight(const struct cluster *c, uint32_t address, uint32_t n) {
    const uint64_t *words = c->blocks[address >> 24].in_flight;
    uint64_t found = 0;
    for (uint32_t at = (address & 0xffffff) / 4, end = at + n / 4; at < end;) {
        uint64_t word = words[at / 64];
        found |= word & bits_of_flight(&at, end);
    }
    return found;
}
static void set_in_flight(struct cluster *c, uint32_t address, uint32_t n, bool is) {
    uint64_t *words = c->blocks[address >> 24].in_flight;
    for (uint32_t at = (address & 0xffffff) / 4, end = at + n / 4; at < end;) {
        uint64_t *word = &words[at / 64], bits = bits_of_flight(&at, end);
        *word = is ? *word | bits : *word & ~bits;
    }
}
/* Nothing else may be on the way there. What lies there is lost already. */
static void begin_flight(struct warp *w, uint32_t address, uint32_t n) {
    unsigned char *to = shared_at(w, address, n);
    if (is_in_flight(w->block->cluster, address, n))
        machine_fault(w, "%u bytes to %#x, where another copy goes that has not landed", n, address);
    memset(to, 0xff, n);
    set_in_flight(w->block->cluster, address, n, true);
}

static void add_pending(struct warp *w, const struct insn *i, const struct pending_copy *copy) {
    struct cluster *c = w->block->cluster;
    if (c->n_copies == c->room_copies) {
        c->room_copies = c->room_copies ? 2 * c->room_copies : 64;
        c->copies = realloc(c->copies, (size_t)c->room_copies * sizeof *c->copies);
        if (!c->copies)
            machine_fault(w, "no memory");
    }
    struct pending_copy *p = &c->copies[c->n_copies++];
    *p = *copy;
    p->line = i->line, p->asker = w, p->n_run = w->n_run, p->n_turns = c->n_turns;
}

static void add_copy(struct warp *w, const struct insn *i, const struct pending_copy *copy) {
    if (copy->to >> 24 != copy->barrier >> 24)
        machine_fault(w, "a copy to %#x that counts on a barrier of another block, %#x", copy->to, copy->barrier);
    barrier_at(w, copy->barrier);
    begin_flight(w, copy->to, copy->n);
    add_pending(w, i, copy);
}

/* At a barrier of another block: n arrivals. */
static void add_arrival(struct warp *w, const struct insn *i, uint32_t barrier, uint32_t n) {
    if (i->arg[0] != DISCARD)
        machine_fault(w, "a state of a barrier of another block, %#x", barrier);
    barrier_at(w, barrier);
    add_pending(w, i, &(struct pending_copy){.kind = ARRIVAL, .to = barrier, .n = n, .barrier = barrier});
}

// ---- landing --------------------------------------------------------------------------------------------------------

/* A row of a box, of which elements from `first` to `end` are in the tensor, into shared memory. The swizzle exchanges
 * chunks of 16 bytes by the address' own bits: of 128 bytes, bits 4 to 6 by bits 7 to 9. */
static void land_row(const struct tensor_map *m, unsigned char *block, uint32_t to, const unsigned char *from,
                     uint32_t first, uint32_t end) {
    static const uint32_t MASKS[] = {[SWIZZLE_NONE] = 0, [SWIZZLE_32B] = 1, [SWIZZLE_64B] = 3, [SWIZZLE_128B] = 7};
    unsigned char row[256 * 8];
    uint32_t bytes = m->box[0] * m->element_bytes;
    if (first > 0 || end < m->box[0]) {
        memset(row, 0, bytes);
        if (first < end)
            memcpy(row + first * m->element_bytes, from + (size_t)first * m->element_bytes,
                   (size_t)(end - first) * m->element_bytes);
        from = row;
    }
    for (uint32_t k = 0; k < bytes; k += 16) {
        uint32_t place = to + k;
        place ^= (place >> 7 & MASKS[m->swizzle]) << 4;
        memcpy(block + place, from + k, 16);
    }
}

/* Of a dimension of a box, the elements that are in the tensor: from `first` to before `end`. */
struct inside {
    uint32_t first, end;
};
static struct inside inside_of(const struct tensor_map *m, int dimension, int64_t at) {
    int64_t box = m->box[dimension], end = (int64_t)tensor_map_size(m, dimension) - at;
    return (struct inside){(uint32_t)(at > 0      ? 0
                                      : -at < box ? -at
                                                  : box),
                           (uint32_t)(end < 0     ? 0
                                      : end < box ? end
                                                  : box)};
}

/* Of a row of the box: how far its first element lies behind the tensor's, and whether the row is in the tensor. */
static int64_t row_offset(const struct pending_copy *p, const uint32_t index[MOST_RANK], bool *is_inside) {
    int64_t offset = (int64_t)p->at[0] * p->map.element_bytes;
    *is_inside = true;
    for (int d = 1; d < p->map.rank; d++) {
        int64_t at = (int64_t)p->at[d] + index[d];
        *is_inside = *is_inside && at >= 0 && at < (int64_t)tensor_map_size(&p->map, d);
        offset += at * (int64_t)p->map.stride[d];
    }
    return offset;
}

static bool next_row(const struct tensor_map *m, uint32_t index[MOST_RANK]) {
    for (int d = 1; d < m->rank; d++) {
        if (++index[d] < m->box[d])
            return true;
        index[d] = 0;
    }
    return false;
}

static void land_box(struct cluster *c, const struct pending_copy *p) {
    const struct tensor_map *m = &p->map;
    unsigned char *block = c->blocks[p->to >> 24].shared;
    struct inside s = inside_of(m, 0, p->at[0]);
    uint32_t index[MOST_RANK] = {0}, to = p->to & 0xffffff;
    do {
        bool is_inside;
        int64_t offset = row_offset(p, index, &is_inside);
        land_row(m, block, to, (const unsigned char *)(uintptr_t)(m->address + (uint64_t)offset), s.first,
                 is_inside ? s.end : 0);
        to += m->box[0] * m->element_bytes;
    } while (next_row(m, index));
}

static void land(struct cluster *c, int k) {
    struct pending_copy p = c->copies[k];
    c->copies[k] = c->copies[--c->n_copies];
    struct barrier *b = (struct barrier *)known_shared(c, p.barrier);
    if (b->mark != BARRIER_MARK)
        machine_fault(NULL, "what line %d asked for lands, and its barrier at %#x is none any more", p.line, p.barrier);
    switch (p.kind) {
    case ARRIVAL: barrier_arrive(NULL, b, p.n); return;
    case BYTES: memcpy(known_shared(c, p.to), p.from, p.n); break;
    case WORDS: memcpy(known_shared(c, p.to), p.words, p.n); break;
    case BOX: land_box(c, &p); break;
    }
    set_in_flight(c, p.to, p.n, false);
    barrier_expect(NULL, b, -(int64_t)p.n);
    barrier_end_phase(b);
}

/* Somebody looks at a barrier: about half of the copies that count on it have landed. */
static void land_some(struct cluster *c, uint32_t barrier) {
    for (int k = c->n_copies - 1; k >= 0; k--)
        if (c->copies[k].barrier == barrier && machine_random(c) & 1)
            land(c, k);
}
