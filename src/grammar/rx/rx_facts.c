/* rx_facts.c - what is known of an expression from what is known of its parts. See rx_pool.h. */
#include "grammar/rx_pool.h"

static uint16_t shortest_of(const struct rx_pool *p, const struct rx_node *n, const uint32_t *list) {
    uint64_t sum = 0;
    switch ((enum rx_kind)n->kind) {
    case RX_K_NEVER: return RX_LENGTH_MAX;
    case RX_K_EMPTY:
    case RX_K_NOT: return 0;
    case RX_K_BYTES: return 1;
    case RX_K_MULTIPLE: return !(n->flags & RX_NULLABLE);
    case RX_K_SEQ: sum = (uint64_t)p->nodes[n->a].shortest + p->nodes[n->b].shortest; break;
    case RX_K_REPEAT: sum = (uint64_t)p->nodes[n->a].shortest * (uint64_t)n->min; break;
    case RX_K_ALT:
    case RX_K_AND:
        sum = n->kind == RX_K_ALT ? RX_LENGTH_MAX : 0;
        for (uint32_t i = 0; i < n->b; i++) {
            uint64_t part = p->nodes[list[i]].shortest;
            sum = n->kind == RX_K_ALT ? MIN(sum, part) : MAX(sum, part);
        }
        break;
    }
    return (uint16_t)MIN(sum, RX_LENGTH_MAX);
}

/* From wherever a beginning of a text leads, how many bytes more an end takes at most. */
static uint16_t ending_of(const struct rx_pool *p, const struct rx_node *n, const uint32_t *list) {
    uint64_t most = 0;
    switch ((enum rx_kind)n->kind) {
    case RX_K_NEVER:
    case RX_K_EMPTY: return 0;
    case RX_K_BYTES: return 1;
    case RX_K_NOT:
    case RX_K_AND:
    case RX_K_MULTIPLE: return RX_LENGTH_MAX;
    case RX_K_SEQ:
        most = MAX((uint64_t)p->nodes[n->a].ending + p->nodes[n->b].shortest, (uint64_t)p->nodes[n->b].ending);
        break;
    case RX_K_REPEAT:
        most = p->nodes[n->a].ending + (uint64_t)p->nodes[n->a].shortest * (uint64_t)MAX(n->min - 1, 0);
        break;
    case RX_K_ALT:
        for (uint32_t i = 0; i < n->b; i++)
            most = MAX(most, (uint64_t)p->nodes[list[i]].ending);
        break;
    }
    return (uint16_t)MIN(most, RX_LENGTH_MAX);
}

/* What its parts already say; false: perhaps. */
static bool is_surely_alive(const struct rx_pool *p, const struct rx_node *n, const uint32_t *list) {
    if (n->kind == RX_K_SEQ)
        return rx_known_alive(p, n->a) == 1 && rx_known_alive(p, n->b) == 1;
    for (uint32_t i = 0; n->kind == RX_K_ALT && i < n->b; i++)
        if (rx_known_alive(p, list[i]) == 1)
            return true;
    return false;
}

void rx_take_facts(const struct rx_pool *p, struct rx_node *n, const uint32_t *list) {
    n->shortest = shortest_of(p, n, list);
    n->ending = ending_of(p, n, list);
    if (is_surely_alive(p, n, list))
        n->flags |= RX_ALIVE;
}
