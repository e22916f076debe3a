/* sequence.c - see sequence.h. */
#include "sched/sequence.h"

#include "base/status.h"

void sequence_init(struct sequence *seq, struct arena *arena, int32_t capacity, int n_groups, int block_size) {
    *seq = (struct sequence){.capacity = capacity,
                             .first_row = INT32_MAX,
                             .expected = {NOT_EXPECTED, NOT_EXPECTED},
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

bool sequence_append(struct sequence *seq, int32_t token) {
    BUG_IF(seq->n_known >= seq->capacity);
    int32_t at = seq->n_known;
    bool is_right = at >= seq->n_tokens || sequence_expects(seq, at) || seq->tokens[at] == token;
    seq->tokens[at] = token;
    seq->n_known++;
    seq->n_tokens = MAX(seq->n_tokens, seq->n_known);
    if (is_right)
        return true;
    sequence_expect_no_more(seq);
    seq->n_computed = MIN(seq->n_computed, at);
    seq->n_backs++;
    return false;
}

void sequence_guess(struct sequence *seq, const int32_t *tokens, int n) {
    BUG_IF(n > seq->capacity - 1 - seq->n_tokens);
    for (int i = 0; i < n; i++)
        seq->tokens[seq->n_tokens++] = tokens[i];
}

void sequence_drop_guesses(struct sequence *seq) {
    int32_t last_expected = MAX(seq->expected[0], seq->expected[1]);
    seq->n_tokens = MAX(MAX(seq->n_known, seq->n_computed + seq->n_scheduled), last_expected + 1);
}

bool sequence_decodes(const struct sequence *seq) {
    return seq->n_computed < seq->n_tokens && seq->n_computed >= seq->n_known - 1;
}

void sequence_expect(struct sequence *seq) {
    bool one_more = seq->n_computed == seq->n_tokens && seq->n_tokens + 1 < seq->capacity;
    seq->expected[1] = seq->expected[0];
    seq->expected[0] = one_more ? seq->n_tokens++ : NOT_EXPECTED;
}

void sequence_expect_no_more(struct sequence *seq) {
    seq->n_tokens = seq->n_known;
    seq->expected[0] = seq->expected[1] = NOT_EXPECTED;
}

int32_t sequence_row_start(const struct sequence *seq) {
    return MAX(seq->n_computed, MIN(seq->first_row, seq->n_known - 1));
}

int sequence_rows(const struct sequence *seq, int n) { return MAX(0, seq->n_computed + n - sequence_row_start(seq)); }
