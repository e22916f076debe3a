/* executable.c - see run.h: what an executable is made of, and that it is given back. */
#include "backend/xla/run.h"

#include "backend/xla/dense.h"

#include <stdlib.h>

/* Of any launch; tables of all entries, and as many rows as tokens. */
static int64_t most_ints(const struct executable *exe) {
    const struct loaded *l = exe->loaded;
    int64_t tokens = exe->most_tokens, seqs = exe->most_seqs, n = 3 * tokens + 3 * seqs + 5 * tokens + 2;
    n += 2 * l->device->steps * seqs;
    for (int g = 0; g < l->program->n_groups; g++)
        n += seqs * (l->table_width[g] + 1);
    return n + l->n_rank_ints;
}

static int64_t most_floats(const struct executable *exe) {
    int64_t n = 3 + states_width(exe->program);
    for (int i = 0; i < exe->program->n_ropes; i++)
        n += exe->program->ropes[i]->dim;
    return n * MAX(exe->most_tokens, exe->loaded->device->steps * exe->most_seqs);
}

static int widest_hidden(const struct program *p) {
    int width = val_given(p->hidden) ? p->hidden.width : 0;
    for (int i = 0; i < p->n_taps; i++)
        width = MAX(width, p->taps[i].width);
    return width;
}

/* Where a step leaves its tokens for the next. */
static enum status alloc_fed(struct executable *exe, struct error *err) {
    const struct program *p = exe->program;
    if (p->ops[p->n_ops - 1].code != OP_SAMPLE || exe->bucket.max_rows == 0)
        return OK;
    exe->n_fed = shape_seqs(exe->bucket.max_rows);
    int32_t *zeros = xcalloc((size_t)exe->n_fed, sizeof *zeros);
    enum status st = OK;
    for (int i = 0; i < 2 && st == OK; i++)
        st = pjrt_upload(exe->loaded->device->pjrt, exe->loaded->device->index, PJRT_S32, (int64_t[]){exe->n_fed}, 1,
                         zeros, &exe->fed[i], err);
    free(zeros);
    return st;
}

enum status run_compile(struct loaded *l, struct bucket bucket, struct executable **out, struct error *err) {
    BUG_IF(bucket.max_tokens < 1 || bucket.max_seqs < 1 || bucket.max_rows < 0);
    BUG_IF(!l->caches && l->n_caches > 0); // alloc_cache comes first
    struct executable *exe = xcalloc(1, sizeof *exe);
    *exe = (struct executable){.loaded = l, .program = l->program, .bucket = bucket};
    exe->most_seqs = shape_seqs(bucket.max_seqs);
    exe->most_tokens = MAX(shape_queries(bucket.max_tokens), exe->most_seqs);
    int64_t rows = bucket.max_rows, vocab = l->program->vocab_size;
    exe->numbers = xcalloc((size_t)(most_ints(exe) + most_floats(exe)), sizeof(int32_t));
    exe->ints = exe->numbers;
    int most_drawn = MAX(exe->most_tokens, ahead_most(l, 1) * exe->most_seqs);
    exe->drawn = xcalloc((size_t)most_drawn * DRAWN_INTS, sizeof *exe->drawn);
    exe->pieces = xcalloc((size_t)bucket.max_seqs + 1, sizeof *exe->pieces);
    exe->seqs = xcalloc((size_t)bucket.max_seqs + 1, sizeof *exe->seqs);
    exe->rows = xcalloc((size_t)rows + 1, sizeof *exe->rows);
    exe->before.pieces = xcalloc((size_t)bucket.max_seqs + 1, sizeof *exe->before.pieces);
    exe->before.rows = xcalloc((size_t)rows + 1, sizeof *exe->before.rows);
    exe->has_logits = xcalloc((size_t)rows + 1, sizeof *exe->has_logits);
    exe->sample = xcalloc((size_t)rows + 1, sizeof *exe->sample);
    exe->hidden = xcalloc((size_t)exe->most_tokens * (size_t)widest_hidden(l->program) + 1, sizeof *exe->hidden);
    exe->ahead = ahead_new(l, bucket, exe->most_seqs);
    dense_reserve(l, exe->most_seqs);
    exe->hidden_piece = -1;
    exe->is_settled = true;
    for (int i = 0; i < 2; i++)
        exe->results[i] = xcalloc((size_t)rows + 1, sizeof *exe->results[i]);
    sample_scratch_init(&exe->scratch, vocab);
    // as large as a launch's logits of all rows, and touched where a row is read
    exe->logits = calloc((size_t)(MAX(shape_queries((int)rows), exe->most_seqs) * vocab) + 1, sizeof *exe->logits);
    if (!exe->logits) {
        run_free(exe);
        return fail(err, ERR_MEMORY, "%s: no memory for the logits of %lld rows", l->program->name, (long long)rows);
    }
    enum status st = alloc_fed(exe, err);
    if (st != OK)
        run_free(exe);
    else
        *out = exe;
    return st;
}

void run_free_values(const struct executable *exe, struct piece *piece) {
    const struct pjrt *p = exe->loaded->device->pjrt;
    pjrt_buffer_free(p, piece->logits);
    piece->logits = NULL;
    for (int k = 0; k <= MAX_TAPS; k++) {
        pjrt_buffer_free(p, piece->hidden[k]);
        piece->hidden[k] = NULL;
    }
}

void run_free_outputs(struct executable *exe) {
    for (int i = 0; i < exe->n_pieces; i++) {
        run_free_values(exe, &exe->pieces[i]);
        pjrt_buffer_free(exe->loaded->device->pjrt, exe->pieces[i].drawn);
    }
    exe->n_pieces = 0;
    exe->hidden_piece = -1;
}

void run_free_unread(struct executable *exe) {
    for (int i = 0; i < exe->before.n_pieces; i++)
        pjrt_buffer_free(exe->loaded->device->pjrt, exe->before.pieces[i].drawn);
    exe->before.n_pieces = 0;
}

void run_free(struct executable *exe) {
    if (!exe)
        return;
    run_free_outputs(exe);
    run_free_unread(exe);
    for (int i = 0; i < 2; i++)
        pjrt_buffer_free(exe->loaded->device->pjrt, exe->fed[i]);
    free(exe->before.pieces);
    free(exe->before.rows);
    ahead_free(exe->ahead);
    sample_scratch_release(&exe->scratch);
    free(exe->numbers);
    free(exe->drawn);
    free(exe->pieces);
    free(exe->seqs);
    free(exe->rows);
    free(exe->has_logits);
    free(exe->sample);
    free(exe->hidden);
    free(exe->logits);
    for (int i = 0; i < 2; i++)
        free(exe->results[i]);
    free(exe);
}
