/* sequence.c - see sequence.h. */
#include "sched/sequence.h"

#include "base/status.h"

void sequence_init(struct sequence *seq, struct arena *arena, int32_t capacity, int n_groups, int block_size) {
    *seq = (struct sequence){.capacity = capacity,
                             .first_row = INT32_MAX,
                             .state_slot = NO_STATE_SLOT,
                             .node = NO_NODE,
                             .answer_checkpoint = NO_NODE,
                             .n_recalled = -1};
    seq->tokens = arena_calloc(arena, (size_t)capacity, sizeof *seq->tokens);
    int32_t width = (capacity + block_size - 1) / block_size;
    for (int g = 0; g < n_groups; g++) {
        seq->tables[g].block = arena_calloc(arena, (size_t)width, sizeof(int32_t));
        for (int32_t i = 0; i < width; i++)
            seq->tables[g].block[i] = NO_BLOCK;
    }
}

void sequence_append(struct sequence *seq, int32_t token) {
    BUG_IF(seq->n_known >= seq->capacity);
    seq->tokens[seq->n_known++] = token;
    seq->n_tokens = MAX(seq->n_tokens, seq->n_known);
}

void sequence_expect(struct sequence *seq) {
    if (seq->n_computed == seq->n_tokens && seq->n_tokens + 1 < seq->capacity)
        seq->n_tokens++;
}

void sequence_expect_no_more(struct sequence *seq) { seq->n_tokens = seq->n_known; }

int32_t sequence_row_start(const struct sequence *seq) { return MAX(seq->n_computed, MIN(seq->first_row, seq->n_tokens - 1)); }

int sequence_rows(const struct sequence *seq, int n) { return MAX(0, seq->n_computed + n - sequence_row_start(seq)); }
