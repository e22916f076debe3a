/* plan_layout.h - where plan.c puts the parts of a plan, on the host and the device alike. */
#pragma once

#include "core/plan.h"

#include <stddef.h>

/* Where the parts of a plan are, in bytes from its start. */
struct plan_layout {
    size_t counts, places, token_id, from_row, position, state_row, state_source, state_base, state_kept, seq_of_row,
        query_start, seq_len, n_known, state_slot, out_row, newest_row, rows, block_table[MAX_CACHE_GROUPS];
};
