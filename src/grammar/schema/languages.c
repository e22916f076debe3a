/* languages.c - or, not of the languages of numbers; and, not of those of texts. */
#include "grammar/rx_pool.h"
#include "grammar/schema/reader.h"

struct numbers numbers_or(struct reader *r, struct numbers a, struct numbers b) {
    struct rx_pool *rx = ir_rx(r->ir);
    return numbers_of(rx_alt(rx, a.value, b.value), rx_alt(rx, a.text, b.text));
}

struct numbers numbers_not(struct reader *r, struct numbers a) {
    struct rx_pool *rx = ir_rx(r->ir);
    if (a.value == RX_NEVER)
        return r->any_number;
    if (a.text == r->any_number.text)
        return numbers_of(RX_NEVER, RX_NEVER);
    rx_id left = rx_and(rx, r->any_number.value, rx_not(rx, a.value));
    return numbers_of(left, rx_and(rx, left, r->short_numbers));
}

/* The texts that are not in a. */
rx_id text_not(struct reader *r, rx_id a) {
    struct rx_pool *rx = ir_rx(r->ir);
    rx_id any = r->any_text;
    return a == RX_NEVER ? any : a == any ? RX_NEVER : rx_and(rx, any, rx_not(rx, a));
}

rx_id text_and(struct reader *r, rx_id a, rx_id b) {
    struct rx_pool *rx = ir_rx(r->ir);
    rx_id any = r->any_text;
    return a == any ? b : b == any ? a : rx_and(rx, a, b);
}

bool language_is_empty(struct reader *r, rx_id a) {
    enum { STATES = 5000, WORK_A_NODE = 8, WORK_A_ROW = 150 }; // a unit is some 0.2 us
    struct rx_pool *rx = ir_rx(r->ir);
    uint32_t n_nodes = rx->n_nodes, n_rows = rx->n_rows;
    bool empty = rx_is_never(rx, a, STATES);
    reader_work(r, 20 + (size_t)(rx->n_nodes - n_nodes) * WORK_A_NODE + (size_t)(rx->n_rows - n_rows) * WORK_A_ROW);
    return empty;
}
