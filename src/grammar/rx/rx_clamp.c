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
