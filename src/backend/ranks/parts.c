/* parts.c - see parts.h. */
#include "backend/ranks/parts.h"

#include "base/status.h"

/* Sequences [begin, end) of the step, whose rows begin at `row`. Returns how many rows they have. */
static int fill_part(struct part *p, const struct batch_plan *plan, int begin, int end, int row) {
    int first = plan->query_start[begin], n_tokens = plan->query_start[end] - first;
    struct batch_plan *mine = &p->plan;
    *mine = *plan;
    mine->token_id += first, mine->position += first, mine->from_row += first;
    mine->seq_len += begin, mine->n_known += begin, mine->n_sure += begin;
    mine->state_slot += begin, mine->adapter += begin, mine->held += begin;
    for (int g = 0; g < MAX_CACHE_GROUPS; g++)
        if (mine->block_table[g])
            mine->block_table[g] += (size_t)begin * (size_t)mine->table_width[g];
    mine->query_start = p->query_start;
    mine->out_row = p->out_row;
    mine->n_seqs = end - begin, mine->n_tokens = n_tokens;
    mine->n_copies = begin == 0 ? plan->n_copies : 0; // before all else
    for (int s = begin; s <= end; s++)
        p->query_start[s - begin] = plan->query_start[s] - first;
    int n = 0;
    for (; row + n < plan->n_rows && plan->out_row[row + n] < first + n_tokens; n++)
        p->out_row[n] = plan->out_row[row + n] - first;
    p->first_token = first, p->first_row = row, p->n_rows = n;
    return n;
}

int plan_cut(const struct batch_plan *plan, int most, struct part *parts) {
    int n = 0, begin = 0, row = 0;
    most = MIN(most, MAX(plan->n_seqs, 1));
    while (begin < plan->n_seqs || n == 0) {
        int left = most - n, end = MIN(begin + 1, plan->n_seqs);
        int64_t share = (plan->n_tokens - plan->query_start[begin]) / MAX(left, 1);
        while (end < plan->n_seqs && (left == 1 || plan->query_start[end + 1] - plan->query_start[begin] <= share))
            end++;
        row += fill_part(&parts[n++], plan, begin, end, row);
        begin = end;
    }
    return n;
}
