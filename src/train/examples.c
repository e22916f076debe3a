/* examples.c - see examples.h. */
#include "train/examples.h"

#include "base/machine_memory.h"

#include <stdlib.h>
#include <string.h>

// ---- rows -------------------------------------------------------------------------------------------------------

void examples_init(struct examples *e, int64_t tap_size, int64_t window) {
    *e = (struct examples){.tap_size = tap_size, .window = window};
    e->start = xcalloc(1, sizeof *e->start);
}

void examples_release(struct examples *e) {
    free(e->start);
    free(e->taps);
    free(e->next);
    free(e->choice);
    free(e->log_share);
    *e = (struct examples){0};
}

static int64_t row_bytes(int64_t tap_size) { return tap_size * 2 + 4 + TEACHER_CHOICES * 8; }

enum status examples_check_memory(int64_t n_rows, int64_t tap_size, struct error *err) {
    struct machine_memory memory;
    machine_memory_get(&memory);
    double wanted = (double)n_rows * (double)row_bytes(tap_size);
    return wanted < 0.9 * (double)memory.available
               ? OK
               : fail(err, ERR_MEMORY, "training: hidden states of %lld tokens take %.1f GB, and %.1f GB are free",
                      (long long)n_rows, wanted * 1e-9, (double)memory.available * 1e-9);
}

static bool grow(void **at, int64_t rows, size_t row) {
    void *moved = realloc(*at, (size_t)rows * row);
    *at = moved ? moved : *at;
    return moved;
}

static enum status reserve_rows(struct examples *e, int64_t more, struct error *err) {
    if (e->n_rows + more <= e->row_cap)
        return OK;
    int64_t cap = MAX(e->row_cap + e->row_cap / 2, e->n_rows + more);
    TRY(examples_check_memory(cap - e->row_cap, e->tap_size, err));
    bool fine = grow((void **)&e->taps, cap, (size_t)e->tap_size * sizeof *e->taps);
    fine = fine && grow((void **)&e->next, cap, sizeof *e->next);
    fine = fine && grow((void **)&e->choice, cap, TEACHER_CHOICES * sizeof *e->choice);
    fine = fine && grow((void **)&e->log_share, cap, TEACHER_CHOICES * sizeof *e->log_share);
    if (!fine)
        return fail(err, ERR_MEMORY, "training: no memory for hidden states of %lld tokens", (long long)cap);
    e->row_cap = cap;
    return OK;
}

struct taking {
    struct examples *e;
    int64_t n; // rows of the text
};

static void take(void *context, int64_t position, const struct sight *s) {
    const struct taking *t = context;
    struct examples *e = t->e;
    int64_t width = e->tap_size / s->n_taps;
    uint16_t *taps = e->taps + (e->n_rows + position) * e->tap_size;
    for (int i = 0; i < s->n_taps && position < t->n; i++)
        for (int64_t c = 0; c < width; c++)
            taps[i * width + c] = f32_to_bf16(s->taps[i][c]);
    if (position == 0)
        return;
    int64_t row = (e->n_rows + position - 1) * TEACHER_CHOICES;
    memcpy(e->choice + row, s->token, sizeof s->token);
    memcpy(e->log_share + row, s->logprob, sizeof s->logprob);
}

static void add_piece(struct examples *e, int64_t end) {
    if (e->n_pieces == e->piece_cap) {
        e->piece_cap = e->piece_cap ? 2 * e->piece_cap : 64;
        e->start = xrealloc(e->start, (size_t)e->piece_cap + 1, sizeof *e->start);
    }
    e->start[++e->n_pieces] = end;
}

enum status examples_add(struct examples *e, struct teacher *t, const int32_t *ids, int64_t n, struct error *err) {
    struct taking taking = {e, n - 1};
    if (n < 2)
        return OK;
    TRY(reserve_rows(e, n - 1, err));
    TRY(teacher_read(t, ids, n, take, &taking, err));
    memcpy(e->next + e->n_rows, ids + 1, (size_t)(n - 1) * sizeof *ids);
    for (int64_t at = 0; at < n - 1; at += e->window)
        add_piece(e, e->n_rows + MIN(at + e->window, n - 1));
    e->n_rows += n - 1;
    return OK;
}

// ---- the draft's vocabulary -------------------------------------------------------------------------------------

struct counted {
    int64_t n;
    int32_t token;
};

static int more_frequent(const void *a, const void *b) {
    const struct counted *x = a, *y = b;
    if (x->n != y->n)
        return x->n > y->n ? -1 : 1;
    return x->token < y->token ? -1 : 1;
}

static int smaller(const void *a, const void *b) {
    int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    return (x > y) - (x < y);
}

void draft_vocab_of(struct draft_vocab *v, const int32_t *target_id, int32_t n, int32_t n_target) {
    *v = (struct draft_vocab){.n = n, .n_target = n_target};
    v->target_id = xcalloc((size_t)n, sizeof *v->target_id);
    v->place = xcalloc((size_t)n_target, sizeof *v->place);
    memcpy(v->target_id, target_id, (size_t)n * sizeof *target_id);
    for (int32_t i = 0; i < n_target; i++)
        v->place[i] = -1;
    for (int32_t i = 0; i < n; i++)
        v->place[target_id[i]] = i;
}

void draft_vocab_all(struct draft_vocab *v, int32_t n_target) {
    int32_t *ids = xcalloc((size_t)n_target, sizeof *ids);
    for (int32_t i = 0; i < n_target; i++)
        ids[i] = i;
    draft_vocab_of(v, ids, n_target, n_target);
    free(ids);
}

void draft_vocab_choose(struct draft_vocab *v, const struct examples *e, int32_t n, int32_t n_target) {
    struct counted *all = xcalloc((size_t)n_target, sizeof *all);
    int32_t *chosen = xcalloc((size_t)n, sizeof *chosen);
    BUG_IF(n < 1 || n > n_target);
    for (int32_t i = 0; i < n_target; i++)
        all[i].token = i;
    for (int64_t r = 0; r < e->n_rows; r++)
        all[e->next[r]].n++;
    qsort(all, (size_t)n_target, sizeof *all, more_frequent);
    for (int32_t i = 0; i < n; i++)
        chosen[i] = all[i].token;
    qsort(chosen, (size_t)n, sizeof *chosen, smaller);
    draft_vocab_of(v, chosen, n, n_target);
    free(chosen);
    free(all);
}

void draft_vocab_release(struct draft_vocab *v) {
    free(v->target_id);
    free(v->place);
    *v = (struct draft_vocab){0};
}

double draft_vocab_coverage(const struct draft_vocab *v, const struct examples *e) {
    int64_t n = 0;
    for (int64_t r = 0; r < e->n_rows; r++)
        n += v->place[e->next[r]] >= 0;
    return e->n_rows ? (double)n / (double)e->n_rows : 0;
}
