/* rx_clamp.c - states that behave alike for the next few bytes. See rx_pool.h.
 *
 * A counter that a token cannot use up need not be told from another such: within n bytes x{m,k} makes n rounds at
 * most. Where m > n its end is out of reach, and where k > n so is its limit. So a string of at most 1000 characters
 * has, for tokens of 20 bytes, the masks of one without a bound until 20 are left. */
#include "grammar/rx_pool.h"

static rx_id clamp(struct rx_pool *p, rx_id a, int n);

static rx_id clamp_list(struct rx_pool *p, rx_id a, int n) {
    uint32_t count = p->nodes[a].b, list = p->nodes[a].a;
    rx_id *parts = xmalloc(count * sizeof *parts);
    for (uint32_t i = 0; i < count; i++)
        parts[i] = clamp(p, p->lists[list + i], n);
    rx_id out = rx_list(p, p->nodes[a].kind, parts, count);
    free(parts);
    return out;
}

static rx_id clamp_seq(struct rx_pool *p, rx_id a, int n) {
    rx_id *parts = NULL, out;
    size_t m = 0, cap = 0;
    for (; p->nodes[a].kind == RX_K_SEQ && p->nodes[a].flags & RX_COUNTS; a = p->nodes[a].b) {
        rx_id first = clamp(p, p->nodes[a].a, n);
        RX_GROW(parts, m, cap);
        parts[m++] = first;
    }
    out = clamp(p, a, n);
    while (m > 0)
        out = rx_seq_as_is(p, parts[--m], out);
    free(parts);
    return out;
}

/* How many rounds a bound on the length surely leaves; 0: it may be more than that, too. */
static int rounds_left(const struct rx_pool *p, rx_id bound) {
    const struct rx_node *x = &p->nodes[bound];
    if (x->kind == RX_K_ALT) {
        int least = INT32_MAX;
        for (uint32_t i = 0; i < x->b; i++) {
            const struct rx_node *part = &p->nodes[p->lists[x->a + i]];
            least = part->kind == RX_K_ALT ? 0 : MIN(least, rounds_left(p, p->lists[x->a + i]));
        }
        return least;
    }
    if (x->kind == RX_K_SEQ && !(p->nodes[x->a].flags & RX_COUNTS)) // within a round
        x = &p->nodes[x->b];
    bool is_bound = x->kind == RX_K_REPEAT && x->min == 0 && x->max != RX_NO_MAX;
    return is_bound ? x->max : 0;
}

static rx_id bounded(const struct rx_pool *p, const struct rx_node *x) {
    return p->lists[x->a] == (rx_id)x->max ? p->lists[x->a + 1] : p->lists[x->a];
}

static rx_id clamp(struct rx_pool *p, rx_id a, int n) {
    struct rx_node x = p->nodes[a];
    if (!(x.flags & RX_COUNTS))
        return a;
    if (p->memo_epoch[a] == p->epoch)
        return p->memo[a];
    rx_id out = a;
    switch ((enum rx_kind)x.kind) {
    case RX_K_SEQ: out = clamp_seq(p, a, n); break;
    case RX_K_ALT: out = clamp_list(p, a, n); break;
    case RX_K_REPEAT:
        // A round takes a byte at least: where x is nullable, rounds without one change nothing, and min is 0.
        out = rx_repeat(p, clamp(p, x.a, n), MIN(x.min, n + 1), x.max > n ? RX_NO_MAX : x.max);
        break;
    case RX_K_AND: // the other part can end before the bound is met
        if (x.max != RX_NEVER && rounds_left(p, (rx_id)x.max) > n + p->nodes[bounded(p, &x)].ending)
            out = clamp(p, bounded(p, &x), n);
        break;
    default: break; // whether both sides can meet may depend on ends far off
    }
    p->memo_epoch[a] = p->epoch;
    p->memo[a] = out;
    return out;
}

/* Forgets what was found of nodes: another walk begins, that goes to each node once. */
static void begin_walk(struct rx_pool *p) {
    if (++p->epoch == 0) {
        memset(p->memo_epoch, 0, p->cap_nodes * sizeof *p->memo_epoch);
        p->epoch = 1;
    }
}

static uint32_t found(struct rx_pool *p, rx_id a, uint32_t what) {
    p->memo_epoch[a] = p->epoch;
    return p->memo[a] = what;
}

rx_id rx_clamp(struct rx_pool *p, rx_id state, int n) {
    if (!(p->nodes[state].flags & RX_COUNTS))
        return state;
    begin_walk(p);
    return clamp(p, state, n);
}

/* The counters that count now, let loose; those that a text has not come to stay as they are. */
static rx_id let_loose(struct rx_pool *p, rx_id a) {
    enum { FOREVER = INT32_MAX / 2 };
    struct rx_node x = p->nodes[a];
    if (!(x.flags & RX_COUNTS))
        return a;
    if (p->memo_epoch[a] == p->epoch)
        return p->memo[a];
    if (x.kind == RX_K_SEQ)
        return found(p, a, rx_seq_as_is(p, let_loose(p, x.a), x.b));
    if (x.kind == RX_K_REPEAT)
        return rx_repeat(p, x.a, x.min > 1 ? FOREVER : x.min, x.max > 1 ? RX_NO_MAX : x.max);
    if (x.kind != RX_K_ALT)
        return a;
    rx_id *parts = xmalloc(x.b * sizeof *parts);
    for (uint32_t i = 0; i < x.b; i++)
        parts[i] = let_loose(p, p->lists[x.a + i]);
    rx_id out = rx_list(p, RX_K_ALT, parts, x.b);
    free(parts);
    return found(p, a, out);
}

/* The least that is left of the counters that count now: rounds that must be there yet, or else those that may. */
static uint32_t slack_of(struct rx_pool *p, rx_id a) {
    struct rx_node x = p->nodes[a];
    if (!(x.flags & RX_COUNTS))
        return UINT16_MAX;
    if (x.kind == RX_K_AND || x.kind == RX_K_NOT)
        return 0;
    if (x.kind == RX_K_REPEAT)
        return (uint32_t)(x.min > 1            ? MIN(x.min - 1, UINT16_MAX)
                          : x.max == RX_NO_MAX ? UINT16_MAX
                                               : MIN(x.max - 1, UINT16_MAX));
    if (p->memo_epoch[a] == p->epoch)
        return p->memo[a];
    if (x.kind != RX_K_ALT)
        return found(p, a, slack_of(p, x.a));
    uint32_t slack = UINT16_MAX;
    for (uint32_t i = 0; i < x.b; i++)
        slack = MIN(slack, slack_of(p, p->lists[x.a + i]));
    return found(p, a, slack);
}

int rx_slack(struct rx_pool *p, rx_id state, rx_id *without) {
    if (p->nodes[state].free == RX_NEVER) {
        begin_walk(p);
        uint32_t slack = slack_of(p, state);
        begin_walk(p);
        rx_id free = let_loose(p, state);
        if (p->failed != OK)
            return *without = RX_NEVER, 0;
        p->nodes[state].slack = (uint16_t)slack;
        p->nodes[state].free = free;
    }
    *without = p->nodes[state].free;
    return p->nodes[state].slack;
}
