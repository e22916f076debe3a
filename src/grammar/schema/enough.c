/* enough.c - whether a language has as many texts as are to differ from one another. */
#include "grammar/rx_pool.h"
#include "grammar/schema/reader.h"

enum { MAX_VISITED = 1000 };

struct visit {
    rx_id state;
    uint32_t from; // index of the visit before
    uint8_t byte;
};

static bool visited(const struct visit *v, size_t n, rx_id state) {
    for (size_t i = 0; i < n; i++)
        if (v[i].state == state)
            return true;
    return false;
}

/* Puts the states that follow visit `at` behind the others; false where there is no room. */
static bool visit_next(struct rx_pool *rx, struct visit *v, size_t *n, size_t at) {
    const struct rx_row row = *rx_row_get(rx, v[at].state);
    bool done[256] = {0};
    for (unsigned byte = 0; byte < 256; byte++) {
        uint8_t class = rx->maps[row.map][byte];
        rx_id next = rx->targets[row.targets + class];
        if (!done[class] && next != RX_NEVER && !visited(v, *n, next)) {
            if (*n == MAX_VISITED)
                return false;
            v[(*n)++] = (struct visit){next, (uint32_t)at, (uint8_t)byte};
        }
        done[class] = true;
    }
    return true;
}

/* One of the shortest texts of a language, as an expression; RX_NEVER where there is none, or (*known false) none was
 * found in time. Breadth first. */
static rx_id shortest(struct rx_pool *rx, rx_id language, bool *known) {
    struct visit *v = xcalloc(MAX_VISITED, sizeof *v);
    size_t n = 1, at = 0;
    v[0].state = language;
    for (*known = true; at < n && !rx_accepts(rx, v[at].state); at++)
        if (!visit_next(rx, v, &n, at)) {
            *known = false;
            break;
        }
    rx_id out = at < n && rx_accepts(rx, v[at].state) ? RX_EMPTY : RX_NEVER;
    for (; out != RX_NEVER && at > 0; at = v[at].from)
        out = rx_seq_as_is(rx, rx_byte_range(rx, v[at].byte, v[at].byte), out);
    free(v);
    return out;
}

enum enough has_texts(struct rx_pool *rx, rx_id language, int64_t n) {
    enum { MAX_TEXTS = 64 };
    if (n > MAX_TEXTS)
        return NOT_KNOWN;
    for (int64_t i = 0; i < n; i++) {
        bool known;
        rx_id one = language == RX_NEVER ? RX_NEVER : shortest(rx, language, &known);
        if (one == RX_NEVER)
            return language == RX_NEVER || known ? TOO_FEW : NOT_KNOWN;
        language = rx_and(rx, language, rx_not(rx, one));
    }
    return ENOUGH;
}
