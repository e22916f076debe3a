/* pack.c - see run.h: the numbers of a launch, out of the plan's. */
#include "backend/xla/run.h"

#include "base/random.h"
#include "core/sample_weight.h"

#include <math.h>
#include <string.h>

/* Asked for nothing that needs the row itself. */
static bool is_unchanged(const struct sample_params *p) {
    struct sample_params greedy = *p;
    greedy.temperature = 0;
    return sample_is_plain(&greedy);
}

bool pack_is_drawn_there(const struct sample_params *p) { return is_unchanged(p); }

static void pack_angles(struct executable *exe, const struct inputs *at, int64_t row, int64_t position,
                        int64_t n_known) {
    for (int r = 0; r < exe->program->n_ropes; r++) {
        const struct rope *rope = exe->program->ropes[r];
        float *angles = exe->floats + at->cos_sin[r] + row * rope->dim;
        rope_cos_sin(rope, position, n_known, angles, angles + rope->dim / 2);
    }
}

/* The token of a row of the plan: what is known, or where the device finds it. */
static void pack_token(struct executable *exe, const struct inputs *at, int t, int to,
                       const struct sample_result *before) {
    const struct batch_plan *plan = exe->plan;
    int row = plan->from_row[t];
    exe->ints[at->token + to] = row < 0  ? plan->token_id[t]
                                : before ? program_token_of(exe->program, before[row].token)
                                         : 0;
    if (exe->n_fed > 0)
        exe->ints[at->from_row + to] = before ? -1 : row;
}

/* Token rows of one sequence, and rows of padding that are as its last. */
static void pack_tokens(struct executable *exe, const struct piece *piece, const struct inputs *at, int i,
                        const struct sample_result *before) {
    const struct batch_plan *plan = exe->plan;
    int seq = exe->seqs[piece->first_seq + i], first = plan->query_start[seq], n = plan->query_start[seq + 1] - first;
    for (int q = 0; q < piece->shape.n_queries; q++) {
        int t = first + MIN(q, n - 1), to = i * piece->shape.n_queries + q;
        pack_token(exe, at, t, to, before);
        exe->ints[at->position + to] = plan->position[t];
        for (int step = 0; step < piece->n_loop; step++)
            pack_angles(exe, at, (int64_t)step * launch_tokens(&piece->shape) + to, plan->position[t] + step,
                        plan->n_known[seq] + step);
        if (at->states_width > 0)
            memcpy(exe->floats + at->states + (int64_t)to * at->states_width,
                   plan->states + (int64_t)t * at->states_width, (size_t)at->states_width * sizeof *exe->floats);
    }
}

/* The first entry of the table that any row of the sequence sees. */
static int first_entry(const struct executable *exe, int group, int seq) {
    const struct batch_plan *plan = exe->plan;
    int window = exe->program->groups[group].window, first = plan->position[plan->query_start[seq]];
    return window > 0 && first >= window ? (first - window + 1) / exe->loaded->block_size : 0;
}

/* Blocks that its tokens of the launch's steps lie in, and those before. */
static void pack_table(struct executable *exe, const struct piece *piece, const struct inputs *at, int i, int group) {
    const struct batch_plan *plan = exe->plan;
    int seq = exe->seqs[piece->first_seq + i], width = at->width[group], from = first_entry(exe, group, seq);
    int n_tokens = plan->seq_len[seq] + piece->n_loop - 1,
        n_used = (n_tokens + exe->loaded->block_size - 1) / exe->loaded->block_size;
    const int32_t *table = plan->block_table[group] + (int64_t)seq * plan->table_width[group];
    BUG_IF(n_used - from > width || n_used > plan->table_width[group]);
    exe->ints[at->base[group] + i] = from * exe->loaded->block_size;
    for (int k = 0; k < width; k++)
        exe->ints[at->table[group] + i * width + k] = from + k < n_used ? MAX(table[from + k], 0) : 0;
}

static void pack_sequence(struct executable *exe, const struct piece *piece, const struct inputs *at, int i,
                          const struct sample_result *before) {
    const struct batch_plan *plan = exe->plan;
    int seq = exe->seqs[piece->first_seq + i];
    exe->ints[at->n_query + i] = plan->query_start[seq + 1] - plan->query_start[seq];
    exe->ints[at->state_slot + i] = plan->state_slot[seq];
    exe->ints[at->adapter + i] = plan->adapter[seq];
    pack_tokens(exe, piece, at, i, before);
    for (int g = 0; g < exe->program->n_groups; g++)
        if (exe->program->groups[g].kind != CACHE_STATE)
            pack_table(exe, piece, at, i, g);
}

/* How a row is drawn, if it is on the device; else it is argmax there, and nobody reads that. */
static void pack_draw(struct executable *exe, const struct inputs *at, int i, int n_rows, int n_loop,
                      const struct sample_params *p) {
    exe->floats[at->temperature + i] = p->temperature;
    exe->floats[at->top_p + i] = p->top_p < 1 ? p->top_p : 2; // 2: more than all of it
    exe->floats[at->least + i] = p->min_p > 0 ? fmaxf(logf(p->min_p), SAMPLE_LEAST_EXPONENT) : SAMPLE_LEAST_EXPONENT;
    exe->ints[at->top_k + i] = p->top_k > 0 ? p->top_k : INT32_MAX;
    for (int step = 0; step < n_loop; step++) {
        uint64_t bits = philox_bits53(p->seed, p->sequence, p->position + (uint64_t)step);
        exe->ints[at->bits + 2 * step * n_rows + i] = (int32_t)(uint32_t)bits;
        exe->ints[at->bits + (2 * step + 1) * n_rows + i] = (int32_t)(uint32_t)(bits >> 32);
    }
}

static void pack_rows(struct executable *exe, const struct piece *piece, const struct inputs *at) {
    const struct batch_plan *plan = exe->plan;
    for (int i = 0; i < piece->shape.n_rows && exe->n_fed > 0; i++)
        exe->ints[at->fed_to + i] = i < piece->n_rows ? exe->rows[piece->first_row + i] : exe->n_fed;
    for (int i = 0; i < piece->n_rows; i++) {
        int row = exe->rows[piece->first_row + i], t = plan->out_row[row], k = 0;
        while (plan->query_start[exe->seqs[piece->first_seq + k] + 1] <= t ||
               plan->query_start[exe->seqs[piece->first_seq + k]] > t)
            k++;
        exe->ints[at->out_row + i] =
            k * piece->shape.n_queries + t - plan->query_start[exe->seqs[piece->first_seq + k]];
        if (exe->params && pack_is_drawn_there(&exe->sample[row]))
            pack_draw(exe, at, i, piece->shape.n_rows, piece->n_loop, &exe->sample[row]);
    }
}

void pack_inputs(struct executable *exe, const struct piece *piece, const struct inputs *at,
                 const struct sample_result *before) {
    const struct loaded *l = exe->loaded;
    exe->floats = (float *)exe->numbers + at->n_ints;
    memset(exe->numbers, 0, ((size_t)at->n_ints + (size_t)at->n_floats) * sizeof *exe->ints);
    for (int i = 0; i < piece->n_seqs; i++)
        pack_sequence(exe, piece, at, i, before);
    for (int i = piece->n_seqs; i < piece->shape.n_seqs; i++)
        exe->ints[at->state_slot + i] = l->n_states; // which there is not
    for (int i = 0; i < l->n_rank_ints; i++)
        exe->ints[at->ranks + i] = l->rank_ints[i];
    exe->ints[at->n_loop] = piece->n_loop;
    pack_rows(exe, piece, at);
}
