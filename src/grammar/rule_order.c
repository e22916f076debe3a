/* rule_order.c - which rules call which before they take a byte: an order in which callers come first, and the rules
 * that are in a circle (left recursion). See net.h. */
#include "grammar/net.h"

#include <stdlib.h>

struct graph {
    const struct net *p;
    uint32_t *first, *edges; // rule to rules
    uint32_t n_edges, cap_edges;
    uint32_t *seen, *stack; // of states
};

static void put_edge(struct graph *g, uint32_t rule) {
    if (g->n_edges == g->cap_edges) {
        g->cap_edges = g->cap_edges ? g->cap_edges * 2 : 64;
        g->edges = xrealloc(g->edges, g->cap_edges, sizeof *g->edges);
    }
    g->edges[g->n_edges++] = rule;
}

/* The rules that `rule` may call before it takes a byte. */
static void find_edges(struct graph *g, uint32_t rule) {
    const struct net *p = g->p;
    uint32_t n = 0;
    g->stack[n++] = p->rules[rule].start;
    g->seen[p->rules[rule].start] = rule + 1;
    while (n) {
        const struct state *s = &p->states[g->stack[--n]];
        uint32_t count = 0;
        const uint32_t *next = &s->next;
        switch ((enum state_kind)s->kind) {
        case STATE_FORK: next = p->forks + s->a, count = s->b; break;
        case STATE_CALL:
            put_edge(g, s->a);
            count = p->rules[s->a].nullable;
            break;
        case STATE_REPEAT:
            put_edge(g, p->repeats[s->a].rule);
            count = p->repeats[s->a].min == 0;
            break;
        case STATE_MEMBERS: count = members_nullable(&p->members[s->a]); break;
        default: break;
        }
        for (uint32_t i = 0; i < count; i++)
            if (g->seen[next[i]] != rule + 1) {
                g->seen[next[i]] = rule + 1;
                g->stack[n++] = next[i];
            }
    }
}

struct frame {
    uint32_t rule, edge;
};

/* Tarjan's strongly connected sets, without recursion: callees are finished first. */
static void find_circles(struct net *p, const struct graph *g) {
    uint32_t n = p->n_rules, count = 0, n_open = 0, n_sets = 0, n_frames = 0;
    uint32_t *number = xcalloc(n, sizeof *number), *low = xcalloc(n, sizeof *low), *open = xcalloc(n, sizeof *open);
    bool *is_open = xcalloc(n, sizeof *is_open);
    struct frame *frames = xcalloc(n + 1, sizeof *frames);
    for (uint32_t root = 0; root < n; root++) {
        if (number[root])
            continue;
        frames[n_frames++] = (struct frame){root, g->first[root]};
        number[root] = low[root] = ++count;
        open[n_open++] = root, is_open[root] = true;
        while (n_frames) {
            struct frame *top = &frames[n_frames - 1];
            uint32_t rule = top->rule;
            if (top->edge < g->first[rule + 1]) {
                uint32_t to = g->edges[top->edge++];
                p->rules[rule].left_recursive |= to == rule;
                if (!number[to]) {
                    number[to] = low[to] = ++count;
                    open[n_open++] = to, is_open[to] = true;
                    frames[n_frames++] = (struct frame){to, g->first[to]};
                } else if (is_open[to])
                    low[rule] = MIN(low[rule], number[to]);
                continue;
            }
            n_frames--;
            if (n_frames)
                low[frames[n_frames - 1].rule] = MIN(low[frames[n_frames - 1].rule], low[rule]);
            if (low[rule] != number[rule])
                continue;
            bool many = open[n_open - 1] != rule;
            uint32_t member;
            do {
                member = open[--n_open];
                is_open[member] = false;
                p->rules[member].order = n_sets;
                p->rules[member].left_recursive |= many;
            } while (member != rule);
            n_sets++;
        }
    }
    for (uint32_t r = 0; r < n; r++)
        p->rules[r].order = n_sets - 1 - p->rules[r].order;
    free(number);
    free(low);
    free(open);
    free(is_open);
    free(frames);
}

void net_order_rules(struct net *p) {
    struct graph g = {.p = p};
    g.first = xcalloc(p->n_rules + 1, sizeof *g.first);
    g.seen = xcalloc(p->n_states, sizeof *g.seen);
    g.stack = xcalloc(p->n_states, sizeof *g.stack);
    for (uint32_t r = 0; r < p->n_rules; r++) {
        g.first[r] = g.n_edges;
        find_edges(&g, r);
    }
    g.first[p->n_rules] = g.n_edges;
    find_circles(p, &g);
    free(g.first);
    free(g.edges);
    free(g.seen);
    free(g.stack);
}
