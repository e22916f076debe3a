/* machine.c - opening a machine. See machine.h. */
#include "grammar/machine/machine.h"

struct machine *machine_open(const struct net *net, size_t max_bytes, struct error *err) {
    struct machine *m = xcalloc(1, sizeof *m);
    m->net = net;
    m->max_bytes = max_bytes;
    m->rx = rx_pool_copy(net->ir->rx);
    m->rx->max_nodes = UINT32_MAX; // memory is the bound from here on
    VEC_PUSH(m->frames, (struct frame){0});
    VEC_PUSH(m->rows, (struct row){0});
    VEC_PUSH(m->configs, (struct config){.forced = CONFIG_FREE, .mask = -1});
    VEC_PUSH(m->member_bits, 0); // so that an empty list of them has an address
    VEC_PUSH(m->texts, (struct text_node){0});
    VEC_PUSH(m->texts, (struct text_node){0}); // the empty one
    machine_allow(m, 0);
    uint32_t row = row_start(m);
    m->start = row ? config_of_row(m, row) : 0;
    if (m->failed != OK) {
        fail(err, m->failed, "%s", m->why);
        machine_free(m);
        return NULL;
    }
    return m;
}

void machine_free(struct machine *m) {
    if (!m)
        return;
    void *owned[] = {m->frames.at,         m->links.at,       m->call_sets.at,       m->calls.at,
                     m->rows.at,           m->row_items.at,   m->waits.at,           m->heads.at,
                     m->configs.at,        m->threads.at,     m->member_states.at,   m->member_bits.at,
                     m->next.at,           m->next_rows.at,   m->frame_index.slots,  m->call_set_index.slots,
                     m->row_index.slots,   m->advances.slots, m->config_index.slots, m->member_index.slots,
                     m->unions.slots,      m->steps.slots,    m->distinct.at,        m->texts.at,
                     m->distinct_of.slots, m->text_of.slots};
    for (size_t i = 0; i < ARRAY_LEN(owned); i++)
        free(owned[i]);
    closing_free(m->closing);
    rx_pool_free(m->rx);
    free(m);
}
