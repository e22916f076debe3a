/* draft_rows.c - see draft_rows.h. */
#include "engine/draft/draft_rows.h"

#include "base/status.h"

#include <stdlib.h>
#include <string.h>

int draft_group(const struct program *target) {
    for (int i = 0; i < target->n_groups; i++)
        if (target->groups[i].kind != CACHE_STATE && target->groups[i].window == 0)
            return i;
    return -1;
}

void draft_rows_init(struct draft_rows *rows, const struct cache_config *target, const struct draft_rows_options *o) {
    int widths[MAX_CACHE_GROUPS], group = o->target_group;
    *rows = (struct draft_rows){.bucket = o->bucket,
                                .target_group = group,
                                .n_groups = o->n_groups,
                                .block_size = target->block_size,
                                .first_scratch = target->n_blocks[group] + target->n_host_blocks[group],
                                .per_seq = o->most_ahead / target->block_size + 2,
                                .shares = o->shares,
                                .n_scratch = o->n_scratch};
    rows->width = target->table_width[group] + rows->per_seq;
    rows->n_blocks = rows->first_scratch + rows->per_seq * rows->n_scratch;
    rows->n_filled = xcalloc((size_t)rows->first_scratch + 1, sizeof *rows->n_filled);
    for (int i = 0; i < o->n_groups; i++)
        widths[i] = o->shares ? target->table_width[i] : rows->width;
    for (int i = 0; i < 2; i++)
        batch_plan_init(&rows->plans[i], o->bucket, o->n_groups, widths);
    rows->plan = rows->plans;
}

void draft_rows_release(struct draft_rows *rows) {
    for (int i = 0; i < 2; i++)
        batch_plan_release(&rows->plans[i]);
    free(rows->n_filled);
}

static int32_t blocks_of(const struct draft_rows *rows, int32_t n_tokens) {
    return (n_tokens + rows->block_size - 1) / rows->block_size;
}

/* The sequence's blocks in the step, [blocks_of(seq_len)]. */
static const int32_t *table_of(const struct draft_rows *rows, const struct batch_plan *step, int s) {
    return step->block_table[rows->target_group] + (size_t)s * (size_t)step->table_width[rows->target_group];
}

void draft_rows_turn(struct draft_rows *rows) { rows->plan = &rows->plans[rows->plan == rows->plans]; }

/* What a step computes anew is not there. */
static void forget(struct draft_rows *rows, const struct batch_plan *step, int s) {
    const int32_t *table = table_of(rows, step, s);
    int32_t first = step->position[step->query_start[s]];
    for (int i = 0; i < step->n_also; i++) // its blocks have those, too
        if (step->also[i].seq == s)
            first = MIN(first, step->position[step->also[i].row]);
    for (int32_t p = first; p < step->seq_len[s]; p += rows->block_size - p % rows->block_size) {
        int32_t *n = &rows->n_filled[table[p / rows->block_size]];
        *n = MIN(*n, p % rows->block_size);
    }
}

void draft_rows_begin(struct draft_rows *rows, const struct batch_plan *step) {
    struct batch_plan *plan = rows->plan;
    plan->n_tokens = plan->n_seqs = plan->n_rows = plan->n_copies = 0;
    for (int i = 0; step && !rows->shares && i < step->n_copies; i++) {
        struct cache_copy c = step->copies[i];
        if (c.group != rows->target_group)
            continue;
        rows->n_filled[c.to] = rows->n_filled[c.from];
        for (int g = 0; g < rows->n_groups; g++)
            plan->copies[plan->n_copies++] = (struct cache_copy){g, c.from, c.to};
    }
    for (int s = 0; step && !rows->shares && s < step->n_seqs; s++)
        forget(rows, step, s);
}

/* Rows before `end` that are there, from the first on. */
static int32_t n_there(const struct draft_rows *rows, const int32_t *table, int32_t end) {
    for (int32_t i = 0; i * rows->block_size < end; i++)
        if (rows->n_filled[table[i]] < rows->block_size)
            return MIN(i * rows->block_size + rows->n_filled[table[i]], end);
    return end;
}

struct draft_text draft_text_of(struct draft_rows *rows, const struct batch_plan *step, int s, int32_t end) {
    int32_t room = rows->bucket.max_tokens - rows->plan->n_tokens;
    struct draft_text text = {.end = end, .held = blocks_of(rows, step->seq_len[s]) * rows->block_size};
    text.first = n_there(rows, table_of(rows, step, s), MIN(end, step->seq_len[s]));
    text.is_whole = end - text.first <= room;
    text.end = MIN(end, text.first + room);
    return text;
}

static void mark(struct draft_rows *rows, const int32_t *table, struct draft_text text) {
    for (int32_t p = text.first; p < MIN(text.end, text.held); p++) {
        int32_t *n = &rows->n_filled[table[p / rows->block_size]], slot = p % rows->block_size;
        *n = slot <= *n ? slot + 1 : *n;
    }
}

static void add_table(struct draft_rows *rows, const struct batch_plan *step, int s, int32_t end, int scratch) {
    struct batch_plan *plan = rows->plan;
    int32_t n_held = MIN(blocks_of(rows, step->seq_len[s]), blocks_of(rows, end)), n = blocks_of(rows, end);
    for (int g = 0; g < rows->n_groups; g++) {
        int group = rows->shares ? g : rows->target_group;
        int32_t *to = plan->block_table[g] + (size_t)plan->n_seqs * (size_t)plan->table_width[g];
        memcpy(to, step->block_table[group] + (size_t)s * (size_t)step->table_width[group],
               (size_t)n_held * sizeof *to);
        BUG_IF(!rows->shares && n > n_held && (scratch < 0 || n - n_held > rows->per_seq));
        for (int32_t i = n_held; i < n && !rows->shares; i++)
            to[i] = rows->first_scratch + scratch * rows->per_seq + (i - n_held);
    }
}

static void add_row(struct batch_plan *plan, int32_t position, int32_t token) {
    plan->from_row[plan->n_tokens] = -1;
    plan->token_id[plan->n_tokens] = token;
    plan->position[plan->n_tokens++] = position;
}

static void end_sequence(struct draft_rows *rows, const struct batch_plan *step, int s, int32_t end, int scratch) {
    struct batch_plan *plan = rows->plan;
    add_table(rows, step, s, end, scratch);
    plan->seq_len[plan->n_seqs] = plan->n_known[plan->n_seqs] = end;
    plan->query_start[++plan->n_seqs] = plan->n_tokens;
}

void draft_rows_add(struct draft_rows *rows, const struct batch_plan *step, int s, struct draft_text text,
                    const int32_t *token, int scratch) {
    for (int32_t p = text.first; p < text.end; p++)
        add_row(rows->plan, p, token[p]);
    end_sequence(rows, step, s, text.end, scratch);
    mark(rows, table_of(rows, step, s), text);
}

void draft_rows_blank_first(struct draft_rows *rows) {
    rows->plan->token_id[rows->plan->query_start[rows->plan->n_seqs - 1]] = -1; // no table has it: the row is 0
}

void draft_rows_add_ahead(struct draft_rows *rows, const struct batch_plan *step, int s, int32_t position,
                          const int32_t *tokens, int n, int scratch) {
    for (int i = 0; i < n; i++)
        add_row(rows->plan, position + i, tokens[i]);
    end_sequence(rows, step, s, position + n, scratch);
}

int32_t draft_rows_first_of_fork(const struct draft_rows *rows, const struct batch_plan *step, int s, int32_t end) {
    return MIN(blocks_of(rows, step->seq_len[s]), end / rows->block_size);
}

/* A block of the text's, of which those behind the step's are scratch, or of a fork. */
static int32_t block_behind(const struct draft_rows *rows, const struct batch_plan *step, const struct draft_fork *f,
                            int32_t entry) {
    int32_t n_held = blocks_of(rows, step->seq_len[f->s]), scratch = rows->first_scratch + f->from * rows->per_seq;
    if (f->is_from_text)
        return entry < n_held ? table_of(rows, step, f->s)[entry] : scratch + entry - n_held;
    return scratch + entry - f->first_entry;
}

void draft_rows_add_fork(struct draft_rows *rows, const struct batch_plan *step, const struct draft_fork *f) {
    struct batch_plan *plan = rows->plan;
    int32_t n = blocks_of(rows, f->position + 1), to = rows->first_scratch + f->to * rows->per_seq;
    BUG_IF(rows->shares || n - f->first_entry > rows->per_seq);
    for (int g = 0; g < rows->n_groups; g++) {
        int32_t *table = plan->block_table[g] + (size_t)plan->n_seqs * (size_t)plan->table_width[g];
        memcpy(table, table_of(rows, step, f->s), (size_t)f->first_entry * sizeof *table);
        for (int32_t i = f->first_entry; i < n; i++) {
            table[i] = to + i - f->first_entry;
            if (i * rows->block_size < f->position)
                plan->copies[plan->n_copies++] = (struct cache_copy){g, block_behind(rows, step, f, i), table[i]};
        }
    }
    add_row(plan, f->position, f->token);
    plan->seq_len[plan->n_seqs] = plan->n_known[plan->n_seqs] = f->position + 1;
    plan->query_start[++plan->n_seqs] = plan->n_tokens;
}

void draft_rows_without(struct draft_rows *rows, const struct batch_plan *step) {
    if (rows->shares)
        return;
    for (int i = 0; i < step->n_copies; i++)
        if (step->copies[i].group == rows->target_group)
            rows->n_filled[step->copies[i].to] = 0;
}
