/* configs.c - sets of threads, and how a byte moves them. See machine.h. */
#include "grammar/machine/machine.h"

#include <xxhash.h>

static int by_thread(const void *a, const void *b) {
    const struct thread *x = a, *y = b;
    if (x->row != y->row)
        return x->row < y->row ? -1 : 1;
    if (x->terminal != y->terminal)
        return x->terminal < y->terminal ? -1 : 1;
    if (x->at != y->at)
        return x->at < y->at ? -1 : 1;
    return x->text < y->text ? -1 : x->text > y->text;
}

/* The config of the threads in `next`; may_end: whether the text may end here. */
static uint32_t intern(struct machine *m, bool may_end) {
    size_t n = 0;
    if (m->next.n > 1)
        sort_items(m->next.at, m->next.n, sizeof *m->next.at, by_thread);
    for (size_t i = 0; i < m->next.n; i++)
        if (n == 0 || by_thread(&m->next.at[n - 1], &m->next.at[i]))
            m->next.at[n++] = m->next.at[i];
    if (n == 0 && !may_end)
        return 0;
    uint64_t hash = XXH3_64bits_withSeed(m->next.at, n * sizeof *m->next.at, may_end);
    uint64_t at = number_index_begin(&m->config_index, hash);
    for (uint32_t found; (found = number_index_next(&m->config_index, hash, &at));) {
        const struct config *c = &m->configs.at[found - 1];
        if (c->may_end == may_end && c->n == n &&
            same_bytes(m->threads.at + c->first, m->next.at, n * sizeof *m->next.at))
            return found - 1;
    }
    struct config c = {.first = (uint32_t)m->threads.n,
                       .n = (uint32_t)n,
                       .may_end = may_end,
                       .forced = CONFIG_UNASKED,
                       .mask = -1};
    for (size_t i = 0; i < n; i++)
        VEC_PUSH(m->threads, m->next.at[i]);
    VEC_PUSH(m->configs, c);
    number_index_put(&m->config_index, hash, (uint32_t)m->configs.n);
    return (uint32_t)m->configs.n - 1;
}

/* Adds the threads that begin in a row. */
static void begin_row(struct machine *m, uint32_t row) {
    const struct row *r = &m->rows.at[row];
    for (uint32_t i = 0; i < r->n_heads; i++) {
        uint32_t t = m->heads.at[r->heads + i];
        VEC_PUSH(m->next, (struct thread){row, t, terminal_rx(m, t), terminal_is_distinct(m, t) ? TEXT_EMPTY : 0});
    }
}

uint32_t config_of_thread(struct machine *m, struct thread thread) {
    m->next.n = 0;
    VEC_PUSH(m->next, thread);
    return intern(m, false);
}

uint32_t config_of_row(struct machine *m, uint32_t row) {
    m->next.n = 0;
    begin_row(m, row);
    return intern(m, m->rows.at[row].may_end);
}

/* Joins the rows of next_rows to one, and begins it. */
static bool begin_next_row(struct machine *m, bool *may_end) {
    uint32_t row = 0;
    for (size_t i = 0; i < m->next_rows.n; i++) {
        row = i == 0 ? m->next_rows.at[0] : row_union(m, row, m->next_rows.at[i]);
        if (!row)
            return false;
    }
    if (row) {
        begin_row(m, row);
        *may_end = m->rows.at[row].may_end;
    }
    return true;
}

static bool put_next_row(struct machine *m, uint32_t row) {
    if (!row)
        return false;
    for (size_t i = 0; i < m->next_rows.n; i++)
        if (m->next_rows.at[i] == row)
            return true;
    VEC_PUSH(m->next_rows, row);
    return true;
}

uint32_t config_step(struct machine *m, uint32_t config, uint8_t byte) {
    uint64_t key = (uint64_t)config << 8 | byte;
    uint32_t *known = number_map_find(&m->steps, key);
    if (known)
        return *known;
    const struct config c = m->configs.at[config];
    bool may_end = false, ok = machine_spend(m, c.n + 1);
    m->next.n = m->next_rows.n = 0;
    for (uint32_t i = 0; i < c.n && ok; i++) {
        struct thread t = m->threads.at[c.first + i];
        t.at = rx_step(m->rx, t.at, byte);
        if (t.at == RX_NEVER)
            continue;
        if (t.text)
            t.text = distinct_text(m, t.text, byte);
        if (rx_accepts(m->rx, t.at))
            ok = put_next_row(m, row_advance_behind(m, t));
        if (!rx_set_is_empty(&rx_row_get(m->rx, t.at)->first))
            VEC_PUSH(m->next, t);
    }
    ok = ok && begin_next_row(m, &may_end) && machine_spend(m, 1);
    uint32_t out = ok ? intern(m, may_end) : 0;
    if (ok)
        number_map_put(&m->steps, key, out);
    return out;
}

uint32_t config_steps(struct machine *m, uint32_t config, struct str bytes) {
    for (size_t i = 0; i < bytes.len && config; i++)
        config = config_step(m, config, (uint8_t)bytes.ptr[i]);
    return config;
}

bool config_known_steps(const struct machine *m, uint32_t config, struct str bytes, uint32_t *out) {
    const uint32_t *known = &config;
    for (size_t i = 0; i < bytes.len && known && *known; i++)
        known = number_map_find(&m->steps, (uint64_t)*known << 8 | (uint8_t)bytes.ptr[i]);
    *out = known ? *known : 0;
    return known != NULL;
}

uint32_t config_take_terminals(struct machine *m, uint32_t config, const bool *terminals) {
    const struct config c = m->configs.at[config];
    bool may_end = false, ok = machine_spend(m, c.n + 1);
    m->next.n = m->next_rows.n = 0;
    for (uint32_t i = 0; i < c.n && ok; i++) {
        struct thread t = m->threads.at[c.first + i];
        if (!terminal_is_distinct(m, t.terminal) && terminals[t.terminal])
            ok = put_next_row(m, row_advance(m, t.row, t.terminal));
    }
    ok = ok && m->next_rows.n && begin_next_row(m, &may_end);
    return ok ? intern(m, may_end) : 0;
}

struct rx_set config_first_bytes(struct machine *m, uint32_t config) {
    const struct config c = m->configs.at[config];
    struct rx_set out = {0};
    for (uint32_t i = 0; i < c.n; i++) {
        const struct rx_set *first = &rx_row_get(m->rx, m->threads.at[c.first + i].at)->first;
        for (int w = 0; w < 4; w++)
            out.w[w] |= first->w[w];
    }
    return out;
}
