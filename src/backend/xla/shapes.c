/* shapes.c - see run.h: how steps are padded. Each padded shape is compiled once, and compilers take seconds: so there
 * are few. A row of padding costs a product its share of the arithmetic, not of the weights that are read. */
#include "backend/xla/dense.h"
#include "backend/xla/run.h"

/* 1, 4, 16, 64, then by doubling. */
int shape_queries(int n) {
    int size = 1;
    while (size < n)
        size *= size < 64 ? 4 : 2;
    return size;
}

/* 1, 4, then by doubling. */
int shape_seqs(int n) {
    int size = 1;
    while (size < n)
        size *= size < 4 ? 4 : 2;
    return size;
}

int shape_widest_table(const struct loaded *l) {
    int width = 1;
    for (int g = 0; g < l->program->n_groups; g++)
        width = MAX(width, l->table_width[g]);
    return width;
}

/* 256, then by fours, up to what block tables hold. */
int shape_context(const struct loaded *l, int n) {
    int64_t size = MAX(256, l->block_size), all = (int64_t)shape_widest_table(l) * l->block_size;
    while (size < n)
        size *= 4;
    return (int)MIN(size, all);
}

enum { LAUNCH_TOKENS = 2048 }; // that launches are joined up to: what a layer leaves of a row is a dozen widths

/* Of sequences of so many rows each. */
static int most_of_launch(const struct executable *exe, int padded) {
    return padded == 1 ? exe->most_tokens : MAX(MIN(exe->most_tokens, LAUNCH_TOKENS), padded);
}

static int n_queries(const struct batch_plan *plan, int seq) {
    return plan->query_start[seq + 1] - plan->query_start[seq];
}

/* Output rows of the piece's sequences, in the order of these. Those of one sequence follow one another in the plan. */
static void take_rows(struct executable *exe, struct piece *piece) {
    const struct batch_plan *plan = exe->plan;
    for (int i = 0; i < piece->n_seqs; i++) {
        int seq = exe->seqs[piece->first_seq + i], low = 0, high = plan->n_rows;
        while (low < high) { // the first row of this sequence: rows ascend
            int middle = low + (high - low) / 2;
            *(plan->out_row[middle] < plan->query_start[seq] ? &low : &high) =
                plan->out_row[middle] < plan->query_start[seq] ? middle + 1 : middle;
        }
        for (; low < plan->n_rows && plan->out_row[low] < plan->query_start[seq + 1]; low++)
            exe->rows[piece->first_row + piece->n_rows++] = low;
    }
}

static void close_piece(struct executable *exe, int padded_queries) {
    struct piece *piece = &exe->pieces[exe->n_pieces++];
    int longest = 1;
    for (int i = 0; i < piece->n_seqs; i++)
        longest = MAX(longest, exe->plan->seq_len[exe->seqs[piece->first_seq + i]]);
    piece->shape = (struct launch_shape){
        .n_seqs = shape_seqs(piece->n_seqs),
        .n_queries = padded_queries,
        .n_steps = 1,
        .context = shape_context(exe->loaded, longest + (padded_queries == 1 ? exe->loaded->device->steps - 1 : 0))};
    dense_keep_size(exe->loaded, &piece->shape);
    piece->shape.is_dense = dense_fits(exe->loaded, &piece->shape);
    if (piece->shape.is_dense)
        dense_arrange(exe->loaded, exe->plan, exe->seqs + piece->first_seq, piece->n_seqs);
    take_rows(exe, piece);
    piece->shape.n_rows = piece->n_rows <= piece->shape.n_seqs
                              ? piece->shape.n_seqs
                              : MIN(shape_queries(piece->n_rows), launch_tokens(&piece->shape));
}

void shape_pieces(struct executable *exe, const struct batch_plan *plan) {
    int n_seqs = 0, n_rows = 0, most = 0;
    exe->plan = plan;
    exe->n_pieces = 0;
    for (int s = 0; s < plan->n_seqs; s++)
        most = MAX(most, shape_queries(n_queries(plan, s)));
    for (int padded = 1; padded <= most; padded = shape_queries(padded + 1)) {
        struct piece *piece = NULL;
        for (int s = 0; s < plan->n_seqs; s++) {
            if (n_queries(plan, s) == 0 || shape_queries(n_queries(plan, s)) != padded)
                continue;
            if (piece && shape_seqs(piece->n_seqs + 1) * padded > most_of_launch(exe, padded)) {
                close_piece(exe, padded);
                n_rows += piece->n_rows;
                piece = NULL;
            }
            if (!piece) {
                piece = &exe->pieces[exe->n_pieces];
                *piece = (struct piece){.first_seq = n_seqs, .first_row = n_rows};
            }
            exe->seqs[n_seqs++] = s;
            piece->n_seqs++;
        }
        if (piece) {
            close_piece(exe, padded);
            n_rows += piece->n_rows;
        }
    }
}
