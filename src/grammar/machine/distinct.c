/* distinct.c - members none of whose others stands twice: see machine.h.
 *
 * A key that has been is taken out of the terminal by `and not`. A derivative by a byte that leads off it simplifies to
 * the state that the terminal has without it, so masks of states are shared as before; only states along texts that
 * have been are new. What a terminal has read is a number, as long as it is read. */
#include "grammar/machine/machine.h"

uint32_t distinct_terminal(struct machine *m, uint32_t terminal, rx_id except) {
    uint64_t key = (uint64_t)terminal << 32 | except;
    uint32_t *known = number_map_find(&m->distinct_of, key);
    if (known)
        return *known;
    rx_id rx = m->net->terminals[terminal].rx;
    rx = except == RX_NEVER ? rx : rx_and(m->rx, rx, rx_not(m->rx, except));
    bool alive = !rx_is_never(m->rx, rx, m->rx->max_states);
    VEC_PUSH(m->distinct, (struct distinct_terminal){rx, alive});
    uint32_t out = m->net->n_terminals + (uint32_t)m->distinct.n - 1;
    number_map_put(&m->distinct_of, key, out);
    return out;
}

bool distinct_is_alive(const struct machine *m, uint32_t terminal) {
    return m->distinct.at[terminal - m->net->n_terminals].alive;
}

uint32_t distinct_text(struct machine *m, uint32_t text, uint8_t byte) {
    uint64_t key = (uint64_t)text << 8 | byte;
    uint32_t *known = number_map_find(&m->text_of, key);
    if (known)
        return *known;
    VEC_PUSH(m->texts, (struct text_node){text, byte});
    uint32_t out = (uint32_t)m->texts.n - 1;
    number_map_put(&m->text_of, key, out);
    return out;
}

rx_id distinct_except(struct machine *m, rx_id except, uint32_t text) {
    rx_id literal = RX_EMPTY;
    for (; text != TEXT_EMPTY; text = m->texts.at[text].before)
        literal = rx_seq_as_is(m->rx, rx_byte_range(m->rx, m->texts.at[text].byte, m->texts.at[text].byte), literal);
    return rx_alt(m->rx, except, literal);
}

bool distinct_has_two(struct machine *m, rx_id at) {
    enum { MAX_STEPS = 64 }; // where there is one way alone
    for (int i = 0; i < MAX_STEPS; i++) {
        struct rx_set first = rx_row_get(m->rx, at)->first;
        int n = 0, byte = 0;
        for (int w = 0; w < 4; w++) {
            n += __builtin_popcountll(first.w[w]);
            byte = first.w[w] ? 64 * w + __builtin_ctzll(first.w[w]) : byte;
        }
        if (n + rx_accepts(m->rx, at) >= 2)
            return true;
        if (n == 0)
            return false;
        at = rx_step(m->rx, at, (uint8_t)byte);
    }
    return false;
}

bool step_is_doubtful(struct machine *m, uint32_t config, uint8_t byte) {
    const struct config c = m->configs.at[config];
    for (uint32_t i = 0; i < c.n; i++) {
        const struct thread t = m->threads.at[c.first + i];
        rx_id at = t.text ? rx_step(m->rx, t.at, byte) : RX_NEVER;
        if (at != RX_NEVER && (rx_accepts(m->rx, at) || !distinct_has_two(m, at)))
            return true;
    }
    return false;
}
