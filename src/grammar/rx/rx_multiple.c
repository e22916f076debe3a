/* rx_multiple.c - decimals that are multiples of a number, as a node that knows its own automaton: the state is the
 * remainder of the digits so far. See rx.h. */
#include "grammar/rx_pool.h"

static rx_id multiple(struct rx_pool *p, uint32_t step, uint32_t remainder, int32_t left, bool behind) {
    uint64_t rest = remainder;
    for (int32_t i = 0; i < left; i++)
        rest = rest * 10 % step;
    if (left == 0 && behind && rest != 0)
        return RX_NEVER; // only zeros may follow
    struct rx_node n = {.kind = RX_K_MULTIPLE, .a = step, .b = remainder, .min = left, .max = behind};
    n.flags = RX_BOOLEAN | (rest == 0 ? RX_NULLABLE : 0);
    uint32_t key[4] = {step, remainder, (uint32_t)left, behind};
    return rx_intern(p, n, NULL, key, sizeof key);
}

rx_id rx_derive_multiple(struct rx_pool *p, rx_id a, uint8_t byte) {
    struct rx_node n = p->nodes[a];
    bool behind = n.max;
    if (byte == '.')
        return behind ? RX_NEVER : multiple(p, n.a, n.b, n.min, true);
    if (byte < '0' || byte > '9')
        return RX_NEVER;
    if (behind && n.min == 0)
        return byte == '0' ? a : RX_NEVER;
    uint32_t remainder = (uint32_t)(((uint64_t)n.b * 10 + (uint64_t)(byte - '0')) % n.a);
    return multiple(p, n.a, remainder, n.min - behind, behind);
}

rx_id rx_multiple(struct rx_pool *p, uint32_t step, int decimals) {
    BUG_IF(step == 0 || step > RX_MAX_STEP || decimals < 0 || decimals > 18);
    rx_id some_digits = rx_repeat(p, rx_byte_range(p, '0', '9'), 1, RX_NO_MAX);
    rx_id fraction = rx_optional(p, rx_seq(p, rx_bytes(p, STR(".")), some_digits));
    return rx_and(p, rx_seq(p, some_digits, fraction), multiple(p, step, 0, decimals, false));
}
