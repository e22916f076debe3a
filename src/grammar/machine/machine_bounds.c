/* machine_bounds.c - what a machine takes, and how much work a call may do. See machine.h. */
#include "grammar/machine/machine.h"

#define VEC_BYTES(v) ((v).cap * sizeof *(v).at)

size_t machine_bytes(const struct machine *m) {
    return sizeof *m + VEC_BYTES(m->frames) + VEC_BYTES(m->links) + VEC_BYTES(m->call_sets) + VEC_BYTES(m->calls) +
           VEC_BYTES(m->rows) + VEC_BYTES(m->row_items) + VEC_BYTES(m->waits) + VEC_BYTES(m->heads) +
           VEC_BYTES(m->configs) + VEC_BYTES(m->threads) + VEC_BYTES(m->member_states) + VEC_BYTES(m->member_bits) +
           number_index_bytes(&m->frame_index) + number_index_bytes(&m->call_set_index) +
           number_index_bytes(&m->row_index) + number_index_bytes(&m->config_index) +
           number_index_bytes(&m->member_index) + number_map_bytes(&m->advances) + number_map_bytes(&m->unions) +
           number_map_bytes(&m->steps) + VEC_BYTES(m->distinct) + VEC_BYTES(m->texts) +
           number_map_bytes(&m->distinct_of) + number_map_bytes(&m->text_of) + rx_pool_bytes(m->rx);
}

bool machine_is_full(const struct machine *m) { return machine_bytes(m) > m->max_bytes; }

void machine_fail(struct machine *m, enum status status, const char *why) {
    if (m->failed == OK) {
        m->failed = status;
        m->why = why;
    }
}

enum { WORK_A_CALL = 20 * 1000 * 1000, WORK_BETWEEN_LOOKS = 1 << 15, TIME_A_CALL_US = 250 * 1000 };

static void look(struct machine *m) {
    m->next_look = m->work_left - WORK_BETWEEN_LOOKS;
    if (machine_is_full(m))
        machine_fail(m, ERR_LIMIT, "the grammar takes more memory than one may while texts are matched");
    rx_check_time(m->rx);
}

void machine_allow(struct machine *m, size_t n_bytes) {
    m->work_left = WORK_A_CALL + 1000 * (int64_t)n_bytes;
    m->next_look = m->work_left - WORK_BETWEEN_LOOKS;
    m->failed = OK;
    m->rx->failed = OK;
    rx_allow_time(m->rx, TIME_A_CALL_US + 20 * (int64_t)n_bytes);
    if (machine_is_full(m))
        machine_fail(m, ERR_LIMIT, "the grammar takes more memory than one may while texts are matched");
}

bool machine_spend(struct machine *m, int64_t work) {
    m->work_left -= work;
    if (m->work_left < m->next_look)
        look(m);
    if (m->work_left < 0)
        machine_fail(m, ERR_LIMIT, "the grammar is too ambiguous: one step of it takes too long");
    if (m->rx->failed != OK)
        machine_fail(m, m->rx->failed, m->rx->why);
    return m->failed == OK;
}
