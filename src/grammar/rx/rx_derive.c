/* rx_derive.c - derivatives of expressions by a byte, and rows of transitions made of them. See rx_pool.h. */
#include "grammar/rx_pool.h"

#include <xxhash.h>

// ---- one derivative ---------------------------------------------------------------------------------------------

static rx_id derive(struct rx_pool *p, rx_id a, uint8_t byte);

static rx_id derive_seq(struct rx_pool *p, rx_id a, uint8_t byte) {
    rx_id small[16], *parts = small, out;
    size_t n = 0, cap = ARRAY_LEN(small);
    for (;; a = p->nodes[a].b) { // along the right end, as far as what stands before may be empty
        struct rx_node x = p->nodes[a];
        if (n == cap) {
            rx_id *more = xmalloc(2 * cap * sizeof *more);
            memcpy(more, parts, n * sizeof *more);
            if (parts != small)
                free(parts);
            parts = more;
            cap *= 2;
        }
        if (x.kind != RX_K_SEQ) {
            parts[n++] = derive(p, a, byte);
            break;
        }
        rx_id first = derive(p, x.a, byte);
        parts[n++] = rx_seq_as_is(p, first, x.b);
        if (!rx_nullable(p, x.a))
            break;
    }
    out = n == 1 ? parts[0] : rx_list(p, RX_K_ALT, parts, n);
    if (parts != small)
        free(parts);
    return out;
}

static rx_id derive_list(struct rx_pool *p, rx_id a, uint8_t byte) {
    uint32_t n = p->nodes[a].b, list = p->nodes[a].a;
    rx_id small[64], *parts = n <= ARRAY_LEN(small) ? small : xmalloc(n * sizeof *parts);
    size_t m = 0;
    rx_id bound = p->nodes[a].kind == RX_K_AND ? (rx_id)p->nodes[a].max : RX_NEVER, bound_behind = RX_NEVER;
    for (uint32_t i = 0; i < n; i++) {
        rx_id d = derive(p, p->lists[list + i], byte);
        if (bound != RX_NEVER && p->lists[list + i] == bound)
            bound_behind = d;
        if (d != RX_NEVER || p->nodes[a].kind == RX_K_AND)
            parts[m++] = d;
    }
    rx_id out = rx_list(p, p->nodes[a].kind, parts, m);
    if (bound_behind != RX_NEVER)
        rx_set_bound(p, out, bound_behind);
    if (parts != small)
        free(parts);
    return out;
}

static rx_id derive(struct rx_pool *p, rx_id a, uint8_t byte) {
    struct rx_node x = p->nodes[a];
    if (x.kind == RX_K_BYTES)
        return rx_set_has(&p->sets[x.a], byte) ? RX_EMPTY : RX_NEVER;
    if (p->memo_epoch[a] == p->epoch)
        return p->memo[a];
    rx_id out = RX_NEVER;
    switch ((enum rx_kind)x.kind) {
    case RX_K_SEQ: out = derive_seq(p, a, byte); break;
    case RX_K_ALT:
    case RX_K_AND: out = derive_list(p, a, byte); break;
    case RX_K_NOT: out = a == RX_ALL ? RX_ALL : rx_not(p, derive(p, x.a, byte)); break;
    case RX_K_REPEAT: {
        rx_id first = derive(p, x.a, byte);
        rx_id rest = first == RX_NEVER
                         ? RX_NEVER
                         : rx_repeat(p, x.a, MAX(x.min - 1, 0), x.max == RX_NO_MAX ? RX_NO_MAX : x.max - 1);
        out = rx_seq_as_is(p, first, rest);
        break;
    }
    case RX_K_MULTIPLE: out = rx_derive_multiple(p, a, byte); break;
    default: break;
    }
    p->memo_epoch[a] = p->epoch;
    p->memo[a] = out;
    return out;
}

static void next_epoch(struct rx_pool *p) {
    if (++p->epoch == 0) {
        memset(p->memo_epoch, 0, p->cap_nodes * sizeof *p->memo_epoch);
        p->epoch = 1;
    }
}

rx_id rx_derive(struct rx_pool *p, rx_id a, uint8_t byte) {
    next_epoch(p);
    return derive(p, a, byte);
}

// ---- which bytes behave alike -----------------------------------------------------------------------------------

enum { MAX_SETS = 63 };

/* Which bytes need no derivative of their own: those that are in the same ones of the sets that a text may begin with.
 * */
struct partition {
    struct rx_set borders; // bytes that may differ from the one before
    uint32_t sets[MAX_SETS], n_sets;
    bool many;   // more sets than these: bytes apart are not compared
    bool digits; // of a MULTIPLE: '.' and each digit differ
};

static void add_set(struct rx_pool *p, struct partition *out, uint32_t set) {
    uint64_t carry = 0;
    for (uint32_t i = 0; i < out->n_sets; i++)
        if (out->sets[i] == set)
            return;
    if (out->n_sets < MAX_SETS)
        out->sets[out->n_sets++] = set;
    else
        out->many = true;
    for (int w = 0; w < 4; w++) {
        uint64_t bits = p->sets[set].w[w];
        out->borders.w[w] |= bits ^ (bits << 1 | carry);
        carry = bits >> 63;
    }
}

/* The sets that a byte is in, as bits; UINT64_MAX: it is to be looked at by itself. */
static uint64_t sets_of(const struct rx_pool *p, const struct partition *in, unsigned byte) {
    uint64_t bits = 0;
    if (in->many || (in->digits && byte >= '.' && byte <= '9'))
        return UINT64_MAX;
    for (uint32_t i = 0; i < in->n_sets; i++)
        bits |= (uint64_t)rx_set_has(&p->sets[in->sets[i]], byte) << i;
    return bits;
}

static void mark_borders(struct rx_pool *p, rx_id a, struct partition *out) {
    for (;;) {
        struct rx_node x = p->nodes[a];
        if (x.kind == RX_K_NEVER || x.kind == RX_K_EMPTY || p->memo_epoch[a] == p->epoch)
            return;
        p->memo_epoch[a] = p->epoch;
        switch ((enum rx_kind)x.kind) {
        case RX_K_BYTES: add_set(p, out, x.a); return;
        case RX_K_MULTIPLE: // '.', each digit, and what is behind them
            out->borders.w[0] |= (uint64_t)0x07ffc000 << 32;
            out->digits = true;
            return;
        case RX_K_ALT:
        case RX_K_AND:
            for (uint32_t i = 0; i < x.b; i++)
                mark_borders(p, p->lists[x.a + i], out);
            return;
        case RX_K_SEQ:
            mark_borders(p, x.a, out);
            if (!rx_nullable(p, x.a))
                return;
            a = x.b;
            break;
        default: a = x.a; break;
        }
    }
}

// ---- rows -------------------------------------------------------------------------------------------------------

static void grow_map_table(struct rx_pool *p) {
    uint32_t size = p->map_table ? (p->map_table_mask + 1) * 2 : 64;
    free(p->map_table);
    p->map_table = xcalloc(size, sizeof *p->map_table);
    p->map_table_mask = size - 1;
    for (uint32_t i = 0; i < p->n_maps; i++) {
        uint32_t at = (uint32_t)XXH3_64bits(p->maps[i], 256) & p->map_table_mask;
        while (p->map_table[at])
            at = (at + 1) & p->map_table_mask;
        p->map_table[at] = i + 1;
    }
}

static uint32_t map_intern(struct rx_pool *p, const uint8_t map[256]) {
    if (!p->map_table || p->n_maps * 2 > p->map_table_mask)
        grow_map_table(p);
    uint32_t at = (uint32_t)XXH3_64bits(map, 256) & p->map_table_mask;
    for (; p->map_table[at]; at = (at + 1) & p->map_table_mask)
        if (memcmp(p->maps[p->map_table[at] - 1], map, 256) == 0)
            return p->map_table[at] - 1;
    RX_GROW(p->maps, p->n_maps, p->cap_maps);
    memcpy(p->maps[p->n_maps], map, 256);
    p->map_table[at] = p->n_maps + 1;
    return p->n_maps++;
}

/* The row with targets as derivatives give them. */
static void make_raw_row(struct rx_pool *p, rx_id state) {
    struct partition part = {.borders = {{1, 0, 0, 0}}};
    next_epoch(p);
    mark_borders(p, state, &part);
    uint8_t map[256], class_of[256];
    rx_id targets[256];
    uint64_t seen[256];
    unsigned n = 0, n_seen = 0, current = 0;
    for (unsigned b = 0; b < 256; b++) {
        if (rx_set_has(&part.borders, b)) {
            uint64_t sets = sets_of(p, &part, b);
            unsigned known = 0;
            while (known < n_seen && (sets == UINT64_MAX || seen[known] != sets))
                known++;
            if (known < n_seen)
                current = class_of[known];
            else {
                rx_id target = rx_derive(p, state, (uint8_t)b);
                for (current = 0; current < n && targets[current] != target;)
                    current++;
                if (current == n)
                    targets[n++] = target;
                seen[n_seen] = sets;
                class_of[n_seen++] = (uint8_t)current;
            }
        }
        map[b] = (uint8_t)current;
    }
    if (p->failed != OK)
        return; // what was derived is not to be kept
    struct rx_row row = {.map = map_intern(p, map), .targets = (uint32_t)p->n_targets, .n = (uint16_t)n};
    while (p->n_targets + n > p->cap_targets) {
        p->cap_targets = p->cap_targets ? p->cap_targets * 2 : 256;
        p->targets = xrealloc(p->targets, p->cap_targets, sizeof *p->targets);
    }
    memcpy(p->targets + p->n_targets, targets, n * sizeof *targets);
    p->n_targets += n;
    RX_GROW(p->rows, p->n_rows, p->cap_rows);
    p->rows[p->n_rows] = row;
    p->nodes[state].row = p->n_rows++;
}

struct step {
    rx_id state;
    uint32_t next; // of its targets, as target_rank orders them
};

struct search {
    struct step *path;
    rx_id *seen;
    size_t n, cap, n_seen, cap_seen;
};

static bool enter(struct rx_pool *p, struct search *s, rx_id state) {
    if (p->nodes[state].searched == p->n_searches)
        return false;
    p->nodes[state].searched = p->n_searches;
    RX_GROW(s->seen, s->n_seen, s->cap_seen);
    s->seen[s->n_seen++] = state;
    RX_GROW(s->path, s->n, s->cap);
    s->path[s->n++] = (struct step){state, 0};
    if (!p->nodes[state].row)
        make_raw_row(p, state);
    return true;
}

/* The place of a target among those of its row: those whose texts may be shortest come first. So a bound on a text's
 * length is not walked to its end. */
static uint32_t target_rank(const struct rx_pool *p, const struct rx_row *row, uint32_t i) {
    return (uint32_t)p->nodes[p->targets[row->targets + i]].shortest << 8 | i;
}

/* The first target from *rank on; false: there is none. *rank is behind it then. */
static bool next_target(const struct rx_pool *p, const struct rx_row *row, uint32_t *rank, rx_id *target) {
    uint32_t best = UINT32_MAX;
    for (uint32_t i = 0; i < row->n; i++) {
        uint32_t its = target_rank(p, row, i);
        if (its >= *rank && its < best) {
            best = its;
            *target = p->targets[row->targets + i];
        }
    }
    *rank = best + 1;
    return best != UINT32_MAX;
}

/* Searches the automaton for a text of `a`, depth first. What stands on the way to one is alive; if there is none, all
 * that was seen is dead. */
static bool search_alive(struct rx_pool *p, rx_id a, uint32_t max_states) {
    struct search s = {0};
    bool alive = false;
    p->n_searches++;
    enter(p, &s, a);
    while (s.n && !alive && p->failed == OK) {
        struct step *top = &s.path[s.n - 1];
        struct rx_row row = p->rows[p->nodes[top->state].row];
        for (uint32_t i = 0; top->next == 0 && i < row.n;
             i++) // one that is at its end is nearer than what is behind others
            alive |= rx_known_alive(p, p->targets[row.targets + i]) == 1;
        if (alive)
            break;
        rx_id target;
        if (!next_target(p, &row, &top->next, &target)) {
            s.n--;
            continue;
        }
        if (rx_known_alive(p, target) == -1)
            enter(p, &s, target);
        if (s.n_seen > max_states)
            rx_fail(p, ERR_LIMIT, "a regular expression with `and` or `not` has too many states");
    }
    if (alive)
        for (size_t i = 0; i < s.n; i++)
            p->nodes[s.path[i].state].flags |= RX_ALIVE;
    else if (p->failed == OK)
        for (size_t i = 0; i < s.n_seen; i++)
            p->nodes[s.seen[i]].flags |= RX_DEAD;
    free(s.path);
    free(s.seen);
    return alive;
}

bool rx_is_never(struct rx_pool *p, rx_id a, uint32_t max_states) {
    int known = rx_known_alive(p, a);
    return known == -1 ? !search_alive(p, a, max_states) : !known;
}

uint32_t rx_row_make(struct rx_pool *p, rx_id state) {
    if (!p->nodes[state].row)
        make_raw_row(p, state);
    struct rx_row row = p->rows[p->nodes[state].row];
    bool live[256];
    for (uint32_t i = 0; i < row.n; i++)
        live[i] = !rx_is_never(p, p->targets[row.targets + i], p->max_states);
    if (p->failed != OK)
        return 0;
    for (uint32_t i = 0; i < row.n; i++)
        if (!live[i])
            p->targets[row.targets + i] = RX_NEVER;
    for (unsigned b = 0; b < 256; b++)
        if (live[p->maps[row.map][b]])
            rx_set_add(&row.first, b);
    p->rows[p->nodes[state].row] = row;
    p->nodes[state].clean = true;
    return p->nodes[state].row;
}

bool rx_match(struct rx_pool *p, rx_id a, struct str text) {
    for (size_t i = 0; i < text.len && a != RX_NEVER; i++)
        a = rx_step(p, a, (uint8_t)text.ptr[i]);
    return rx_nullable(p, a);
}

bool rx_meet(struct rx_pool *p, rx_id a, rx_id b, uint32_t max_states) {
    return !rx_is_never(p, rx_and(p, a, b), max_states);
}
