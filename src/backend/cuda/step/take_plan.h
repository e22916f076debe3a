/* take_plan.h - plan.cu: the plan from the host to the device. */
#pragma once

#include "backend/cuda/value.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- plan.cu ---- */
struct dtake { // from where to where; counts and parts of the plan, in int32 from the block's start
    const int32_t *from;
    int32_t *to;
    int n_tokens, n_seqs, n_rows, n_not_plain, n_not_best, n_groups, log_block_size;
    int counts, token_id, from_row, position, state_row, state_source, // 0: the program has no STATES
        seq_of_row, query_start, seq_len, n_known, state_slot, state_base, state_kept, out_row, newest_row, rows,
        places;
    int64_t block_table[CUDA_MAX_GROUPS];
    int table_width[CUDA_MAX_GROUPS];
    const int32_t *lists_from;
    int32_t *lists;
    int64_t n_lists;
    struct dplaces at;
    const int32_t *token_of; // [what SAMPLE gives]: the token that EMBED knows it as; NULL: the same
    int source;              // plan.state_source
};
/* The plan as the host wrote it becomes the device's: the part of it that is used, tokens of the step before put in. */
void launch_take_plan(cudaStream_t stream, const struct dtake *take);

#ifdef __cplusplus
}
#endif
