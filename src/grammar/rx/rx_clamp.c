/* rx_clamp.c - states that behave alike for the next few bytes. See rx_pool.h.
 *
 * A counter that a token cannot use up need not be told from another such: within n bytes x{m,k} makes n rounds at
 * most. Where m > n its end is out of reach, and where k > n so is its limit. So a string of at most 1000 characters
 * has, for tokens of 20 bytes, the masks of one without a bound until 20 are left. */
#include "grammar/rx_pool.h"

enum { FREE = -1, FOREVER = INT32_MAX / 2 }; // in place of n: see rx_slack

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
        if (n == FREE)
            out = rx_repeat(p, clamp(p, x.a, n), x.min > 1 ? FOREVER : x.min, x.max > 1 ? RX_NO_MAX : x.max);
        else
            out = rx_repeat(p, clamp(p, x.a, n), MIN(x.min, n + 1), x.max > n ? RX_NO_MAX : x.max);
        break;
    default: break; // AND, NOT: whether both sides can meet may depend on ends far off
    }
    p->memo_epoch[a] = p->epoch;
    p->memo[a] = out;
    return out;
}

rx_id rx_clamp(struct rx_pool *p, rx_id state, int n) {
    if (!(p->nodes[state].flags & RX_COUNTS))
        return state;
    if (++p->epoch == 0) {
        memset(p->memo_epoch, 0, p->cap_nodes * sizeof *p->memo_epoch);
        p->epoch = 1;
    }
    return clamp(p, state, n);
}

/* The least of what bounds the counters of a state: rounds that must be there yet, or else those that may. */
static int slack_of(struct rx_pool *p, rx_id a) {
    int slack = UINT16_MAX;
    for (;; a = p->nodes[a].b) {
        struct rx_node x = p->nodes[a];
        if (!(x.flags & RX_COUNTS))
            return slack;
        if (x.free != RX_NEVER)
            return MIN(slack, x.slack);
        if (x.kind == RX_K_AND || x.kind == RX_K_NOT)
            return 0;
        if (x.kind == RX_K_REPEAT) {
            int here = x.min > 1 ? x.min - 1 : x.max == RX_NO_MAX ? UINT16_MAX : x.max - 1;
            return MIN(slack, MIN(here, slack_of(p, x.a)));
        }
        if (x.kind == RX_K_ALT) {
            for (uint32_t i = 0; i < x.b; i++)
                slack = MIN(slack, slack_of(p, p->lists[x.a + i]));
            return slack;
        }
        slack = MIN(slack, slack_of(p, x.a));
    }
}

int rx_slack(struct rx_pool *p, rx_id state, rx_id *without) {
    if (p->nodes[state].free == RX_NEVER) {
        int slack = slack_of(p, state);
        rx_id free = rx_clamp(p, state, FREE);
        if (p->failed != OK)
            return *without = RX_NEVER, 0;
        p->nodes[state].slack = (uint16_t)slack;
        p->nodes[state].free = free;
    }
    *without = p->nodes[state].free;
    return p->nodes[state].slack;
}
