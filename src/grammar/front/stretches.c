/* stretches.c - see stretches.h; and an expression as terminals that are cut between them (front.h, ir_of_rx). */
#include "grammar/front/stretches.h"

#include "grammar/front.h"
#include "grammar/rx_pool.h"

enum { WIDE = 32, MANY = 1000 }; // bytes of a set

static uint32_t count(struct rx_pool *p, rx_id a, bool *wide) {
    struct rx_node x = p->nodes[a];
    *wide = false;
    if (x.kind == RX_K_BYTES) {
        const struct rx_set *s = &p->sets[x.a];
        int n = 0;
        for (int w = 0; w < 4; w++)
            n += __builtin_popcountll(s->w[w]);
        *wide = n >= WIDE;
        return 0;
    }
    if (x.kind == RX_K_NEVER || x.kind == RX_K_EMPTY)
        return 0;
    if (p->memo_epoch[a] == p->epoch) {
        *wide = p->memo[a] & 1;
        return p->memo[a] >> 1;
    }
    uint32_t n = 0;
    bool one = false;
    switch ((enum rx_kind)x.kind) {
    case RX_K_SEQ:
        for (rx_id at = a;; at = p->nodes[at].b) {
            bool seq = p->nodes[at].kind == RX_K_SEQ;
            n += count(p, seq ? p->nodes[at].a : at, &one);
            *wide |= one;
            if (!seq)
                break;
        }
        break;
    case RX_K_ALT:
    case RX_K_AND:
        for (uint32_t i = 0; i < x.b; i++) {
            uint32_t part = count(p, p->lists[x.a + i], &one);
            n = x.kind == RX_K_AND ? MAX(n, part) : n + part;
            *wide |= one;
        }
        break;
    case RX_K_NOT: n = count(p, x.a, wide); break;
    case RX_K_MULTIPLE: break; // digits
    default:
        n = count(p, x.a, wide);
        if (*wide && n == 0 && (x.max == RX_NO_MAX || x.max > 4))
            n = 1;
    }
    n = MIN(n, MANY);
    p->memo_epoch[a] = p->epoch;
    p->memo[a] = n << 1 | *wide;
    return n;
}

uint32_t stretches_count(struct rx_pool *pool, rx_id rx) {
    bool wide;
    if (++pool->epoch == 0) {
        memset(pool->memo_epoch, 0, pool->cap_nodes * sizeof *pool->memo_epoch);
        pool->epoch = 1;
    }
    return count(pool, rx, &wide);
}

bool stretches_good_terminal(struct rx_pool *pool, rx_id rx) { return stretches_count(pool, rx) <= 1; }

static ir_id cut_seq(struct ir *ir, rx_id a) {
    struct rx_pool *p = ir_rx(ir);
    ir_id *parts = NULL;
    size_t n = 0, cap = 0;
    rx_id joined = RX_EMPTY;
    for (bool more = true; more;) {
        more = p->nodes[a].kind == RX_K_SEQ;
        rx_id one = more ? p->nodes[a].a : a, rest = more ? p->nodes[a].b : RX_EMPTY;
        uint32_t k = stretches_count(p, one);
        if (k == 0)
            joined = rx_seq(p, joined, one);
        if (joined != RX_EMPTY && (k || !more)) {
            RX_GROW(parts, n, cap);
            parts[n++] = ir_terminal(ir, joined);
            joined = RX_EMPTY;
        }
        if (k) {
            RX_GROW(parts, n, cap);
            parts[n++] = ir_of_rx(ir, one);
        }
        a = rest;
    }
    ir_id out = ir_seq_of(ir, parts, n);
    free(parts);
    return out;
}

ir_id ir_of_rx(struct ir *ir, rx_id rx) {
    struct rx_pool *p = ir_rx(ir);
    if (stretches_good_terminal(p, rx))
        return ir_terminal(ir, rx);
    struct rx_node x = p->nodes[rx];
    if (x.kind == RX_K_SEQ)
        return cut_seq(ir, rx);
    if (x.kind == RX_K_REPEAT)
        return ir_repeat(ir, ir_of_rx(ir, x.a), x.min, x.max);
    if (x.kind != RX_K_ALT)
        return ir_terminal(ir, rx);
    ir_id *parts = xmalloc(x.b * sizeof *parts);
    for (uint32_t i = 0; i < x.b; i++)
        parts[i] = ir_of_rx(ir, p->lists[x.a + i]);
    ir_id out = ir_alt_of(ir, parts, x.b);
    free(parts);
    return out;
}
