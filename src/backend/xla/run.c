/* run.c - see run.h: the steps of an executable. Launches are queued by run and read by collect. */
#include "backend/xla/run.h"

#include "backend/xla/cache.h"
#include "backend/xla/dense.h"
#include "backend/xla/replicas.h"

#include "base/clock.h"

#include <stdlib.h>
#include <string.h>

/* The time since then is that phase's; returns now. */
static int64_t note_phase(struct executable *exe, enum phase phase, int64_t since_us) {
    int64_t now = clock_us();
    exe->phase_us[phase] += now - since_us;
    return now;
}

/* ---- launches ---- */

static bool asks_for_logits(const struct executable *exe, const struct piece *piece) {
    bool asks = !exe->params && piece->n_rows > 0;
    for (int i = 0; i < piece->n_rows && !asks; i++)
        asks = !pack_is_drawn_there(&exe->sample[exe->rows[piece->first_row + i]]);
    return asks;
}

static bool draws(const struct executable *exe, const struct piece *piece) {
    bool any = false;
    for (int i = 0; i < piece->n_rows && exe->params; i++) {
        const struct sample_params *p = &exe->sample[exe->rows[piece->first_row + i]];
        any |= p->temperature > 0 && pack_is_drawn_there(p);
    }
    return any;
}

/* Of the step that was started last, and of the one before it. */
static struct pjrt_buffer **fed_now(struct executable *exe) { return &exe->fed[(exe->n_run - 1) & 1]; }
static struct pjrt_buffer **fed_before(struct executable *exe) { return &exe->fed[exe->n_run & 1]; }

/* Caches, and the copies that stand for others of them, as a launch takes and leaves them; returns how many. */
static int list_caches(struct loaded *l, const struct launch_shape *s, struct pjrt_buffer ***out) {
    int n = 0;
    for (int i = 0; i < l->n_caches; i++)
        if (!dense_stands_for(l, s, i))
            out[n++] = &l->caches[i].buffer;
    for (int i = 0; i < l->n_caches; i++)
        if (dense_stands_for(l, s, i))
            out[n++] = dense_buffer(l, i);
    return n;
}

/* What the program gives, to where it belongs: caches first. */
static void take_outputs(struct executable *exe, struct piece *piece) {
    struct loaded *l = exe->loaded;
    int n = list_caches(l, &piece->shape, l->given);
    for (int i = 0; i < n; i++) {
        pjrt_buffer_free(l->device->pjrt, *l->given[i]); // given away: only the handle is left
        *l->given[i] = l->outputs[i];
    }
    if (exe->n_fed > 0) {
        pjrt_buffer_free(l->device->pjrt, *fed_now(exe));
        *fed_now(exe) = l->outputs[n++];
    }
    if (exe->program->ops[exe->program->n_ops - 1].code == OP_SAMPLE) {
        piece->drawn = l->outputs[n++];
        if (!launch_keeps_logits(l, &piece->shape))
            return;
        piece->logits = l->outputs[n++];
    }
    if (val_given(exe->program->hidden))
        piece->hidden[0] = l->outputs[n++];
    for (int i = 0; i < exe->program->n_taps; i++)
        piece->hidden[1 + i] = l->outputs[n++];
}

static int fill_arguments(struct executable *exe, const struct piece *piece, struct pjrt_buffer *numbers) {
    struct loaded *l = exe->loaded;
    int n = list_caches(l, &piece->shape, l->given);
    for (int i = 0; i < n; i++)
        l->arguments[i] = *l->given[i];
    if (exe->n_fed > 0)
        l->arguments[n++] = *fed_now(exe);
    for (int i = 0; i < l->n_weights; i++) {
        l->arguments[n++] = l->weights[i].buffer;
        if (l->weights[i].is_scaled)
            l->arguments[n++] = l->weights[i].scales;
    }
    if (exe->n_fed > 0)
        l->arguments[n++] = *fed_before(exe);
    l->arguments[n++] = numbers;
    return n;
}

/* The time since then, without what compiling took since that was `compiled_us`, which is counted by itself. */
static void note_prepared(struct executable *exe, int64_t since_us, int64_t compiled_us) {
    (void)note_phase(exe, PHASE_PREPARE, since_us + exe->loaded->compile_us - compiled_us);
}

static enum status prepare_caches(struct executable *exe, const struct piece *piece, struct error *err) {
    struct loaded *l = exe->loaded;
    int64_t start = clock_us(), compiled = l->compile_us;
    const int *seqs = exe->seqs + piece->first_seq;
    if (piece->shape.is_dense)
        TRY(dense_prepare(l, exe->plan, seqs, piece->n_seqs, piece->n_loop, &piece->shape, err));
    else
        TRY(dense_drain_rows(l, exe->plan, seqs, piece->n_seqs, err));
    note_prepared(exe, start, compiled);
    return OK;
}

static enum status copy_blocks(struct executable *exe, struct error *err) {
    struct loaded *l = exe->loaded;
    int64_t start = clock_us(), compiled = l->compile_us;
    TRY(dense_drain_copied(l, exe->plan->copies, exe->plan->n_copies, err));
    TRY(cache_copy_blocks(l, exe->plan->copies, exe->plan->n_copies, err));
    for (int i = 0; i < exe->plan->n_copies; i++)
        if (exe->plan->copies[i].group >= 0)
            dense_wrote_block(l, exe->plan->copies[i].group, exe->plan->copies[i].to);
    note_prepared(exe, start, compiled);
    return OK;
}

static void note_written(struct executable *exe, const struct piece *piece) {
    const int *seqs = exe->seqs + piece->first_seq;
    if (piece->shape.is_dense)
        dense_put(exe->loaded, exe->plan, seqs, piece->n_seqs, piece->n_loop);
    for (int i = 0; i < piece->n_seqs && !piece->shape.is_dense; i++)
        dense_wrote_rows(exe->loaded, exe->plan, seqs[i], piece->n_loop);
}

static enum status launch(struct executable *exe, struct piece *piece, const struct sample_result *before,
                          struct error *err) {
    struct loaded *l = exe->loaded;
    const struct device *d = l->device;
    const struct compiled *program;
    struct pjrt_buffer *numbers = NULL;
    struct inputs at;
    piece->shape.draws = draws(exe, piece);
    piece->n_loop = ahead_steps(exe);
    piece->shape.n_fed = exe->n_fed;
    piece->asks_for_logits = asks_for_logits(exe, piece);
    piece->shape.n_steps = ahead_most(l, piece->shape.n_queries);
    if ((piece->asks_for_logits || exe->plan->wants_hidden) && !launch_keeps_logits(l, &piece->shape))
        piece->shape.n_steps = 1;
    TRY(prepare_caches(exe, piece, err));
    TRY(replicas_compiled(l, &piece->shape, &program, err));
    int64_t now = clock_us();
    inputs_layout(l, &piece->shape, &at);
    pack_inputs(exe, piece, &at, before);
    now = note_phase(exe, PHASE_PACK, now);
    enum status st =
        pjrt_upload(d->pjrt, d->index, PJRT_S32, (int64_t[]){at.n_ints + at.n_floats}, 1, exe->numbers, &numbers, err);
    now = note_phase(exe, PHASE_UPLOAD, now);
    if (st == OK)
        st = replicas_execute(l, program, fill_arguments(exe, piece, numbers), err);
    pjrt_buffer_free(d->pjrt, numbers);
    if (st == OK) {
        take_outputs(exe, piece);
        note_written(exe, piece);
    }
    (void)note_phase(exe, PHASE_EXECUTE, now);
    exe->n_launches++;
    exe->n_padded_rows += launch_tokens(&piece->shape);
    return st;
}

/* ---- steps ---- */

/* The first fault stays: what is in the caches is not known any more. */
static enum status stick(struct executable *exe, enum status st, const struct error *err) {
    if (st == OK)
        return OK;
    exe->loaded->device->fault = *err;
    exe->loaded->device->fault.status = ERR_DEVICE;
    replicas_break(exe->loaded, err);
    return ERR_DEVICE;
}

static enum status check_fault(const struct executable *exe, struct error *err) {
    if (exe->loaded->device->fault.status == OK)
        return OK;
    *err = exe->loaded->device->fault;
    return err->status;
}

/* Of the step that was started last, and of the one before it. */
static struct sample_result *results_now(struct executable *exe) { return exe->results[(exe->n_run - 1) & 1]; }
static struct sample_result *results_before(struct executable *exe) { return exe->results[exe->n_run & 1]; }

/* Whether the step takes all that it needs of the one before on the device: then it is started before that is read. A
 * GPU's loop is not: its host waits for each round within the launch, and a first token would come eight steps late. */
static bool goes_on_there(const struct executable *exe, const struct batch_plan *plan,
                          const struct sample_params *sample) {
    bool waits = device_is_gpu(exe->loaded->device) && ahead_loops(exe, plan);
    bool does = exe->n_fed > 0 && !exe->is_settled && exe->params && sample && !waits;
    for (int i = 0; i < exe->n_pieces && does; i++)
        does = !exe->pieces[i].asks_for_logits && exe->pieces[i].n_loop == 1; // several are read first
    for (int r = 0; r < plan->n_rows && does; r++)
        does = pack_is_drawn_there(&sample[r]);
    return does;
}

/* Leaves the step that was started last to be read later. */
static void put_aside(struct executable *exe) {
    struct unread now = {exe->pieces, exe->n_pieces, exe->rows};
    BUG_IF(exe->before.n_pieces > 0);
    for (int i = 0; i < exe->n_pieces; i++)
        run_free_values(exe, &exe->pieces[i]);
    exe->pieces = exe->before.pieces;
    exe->rows = exe->before.rows;
    exe->n_pieces = 0;
    exe->before = now;
    exe->n_unread++;
}

static void take_sample(struct executable *exe, const struct sample_params *sample) {
    for (int r = 0; r < exe->plan->n_rows; r++) {
        exe->sample[r] = sample[r];
        if (sample[r].has_newest && !pack_is_drawn_there(&sample[r])) // then the step before was read
            exe->sample[r].newest = results_before(exe)[sample[r].newest_row].token;
    }
}

static enum status run_pieces(struct executable *exe, struct error *err) {
    const struct sample_result *before = exe->before.n_pieces > 0 ? NULL : results_before(exe);
    TRY(copy_blocks(exe, err));
    for (int i = 0; i < exe->n_pieces; i++)
        TRY(launch(exe, &exe->pieces[i], before, err));
    return OK;
}

/* As the plan has them. */
static bool rows_are_in_order(const struct executable *exe, const struct piece *piece) {
    bool are = exe->n_pieces == 1;
    for (int i = 0; i < piece->n_rows && are; i++)
        are = exe->rows[piece->first_row + i] == i;
    return are;
}

/* Logits of a piece's rows to their places. */
static enum status fetch_logits(struct executable *exe, const struct piece *piece, struct error *err) {
    int64_t vocab = exe->program->vocab_size, n_bytes = piece->shape.n_rows * vocab * (int64_t)sizeof *exe->logits;
    const struct pjrt *p = exe->loaded->device->pjrt;
    bool in_order = rows_are_in_order(exe, piece);
    if (in_order)
        TRY(pjrt_download(p, piece->logits, exe->logits, n_bytes, err));
    float *all = in_order ? NULL : malloc((size_t)n_bytes);
    if (!in_order && !all)
        return fail(err, ERR_MEMORY, "device xla: no memory for the logits of %d rows", piece->shape.n_rows);
    enum status st = all ? pjrt_download(p, piece->logits, all, n_bytes, err) : OK;
    for (int i = 0; i < piece->n_rows && st == OK; i++) {
        int row = exe->rows[piece->first_row + i];
        if (all)
            memcpy(exe->logits + row * vocab, all + i * vocab, (size_t)vocab * sizeof *all);
        exe->has_logits[row] = true;
    }
    free(all);
    return st;
}

struct sample_result run_result_of(const int32_t *drawn, int n_rows, int row) {
    return (struct sample_result){.token = drawn[DRAWN_TOKEN * n_rows + row],
                                  .argmax = drawn[DRAWN_ARGMAX * n_rows + row],
                                  .not_finite = drawn[DRAWN_NOT_FINITE * n_rows + row] != 0};
}

/* Of a step whose rows are `rows`. */
static enum status read_piece(struct executable *exe, const struct piece *piece, const int *rows,
                              struct sample_result *results, struct error *err) {
    int n = piece->shape.n_rows;
    int32_t *drawn = piece->n_loop > 1 ? ahead_take(exe, piece->n_loop, n) : exe->drawn;
    int64_t start = clock_us();
    if (!piece->drawn)
        return OK;
    TRY(pjrt_download(exe->loaded->device->pjrt, piece->drawn, drawn,
                      (int64_t)piece->shape.n_steps * n * DRAWN_INTS * (int64_t)sizeof *drawn, err));
    if (piece->asks_for_logits)
        TRY(fetch_logits(exe, piece, err));
    (void)note_phase(exe, PHASE_READ, start);
    for (int i = 0; i < piece->n_rows; i++)
        results[rows[piece->first_row + i]] = run_result_of(drawn, n, i);
    return OK;
}

static enum status read_pieces(struct executable *exe, struct error *err) {
    for (int i = 0; i < exe->n_pieces; i++)
        TRY(read_piece(exe, &exe->pieces[i], exe->rows, results_now(exe), err));
    return OK;
}

static enum status read_before(struct executable *exe, struct error *err) {
    for (int i = 0; i < exe->before.n_pieces; i++)
        TRY(read_piece(exe, &exe->before.pieces[i], exe->before.rows, results_before(exe), err));
    run_free_unread(exe);
    return OK;
}

/* Rows that the device did not draw. */
static void draw_on_host(struct executable *exe, bool all) {
    int64_t vocab = exe->program->vocab_size;
    for (int r = 0; r < exe->plan->n_rows; r++) {
        if (!exe->has_logits[r] || (!all && pack_is_drawn_there(&exe->sample[r])))
            continue;
        sample_row(exe->logits + r * vocab, vocab, &exe->sample[r], &exe->scratch, &results_now(exe)[r]);
        exe->n_host_drawn++;
    }
}

/* The results of the step that was started last. */
static enum status settle(struct executable *exe, struct error *err) {
    if (exe->is_settled)
        return OK;
    TRY(stick(exe, read_pieces(exe, err), err));
    draw_on_host(exe, !exe->params);
    exe->is_settled = true;
    return OK;
}

/* What the step before has drawn is read first where the host needs it; else the device goes on by itself. */
enum status run_step(struct executable *exe, const struct batch_plan *plan, const struct sample_params *sample,
                     struct error *err) {
    BUG_IF(plan->n_tokens > exe->bucket.max_tokens || plan->n_seqs > exe->bucket.max_seqs ||
           plan->n_rows > exe->bucket.max_rows || exe->n_run - exe->n_collected > 1);
    TRY(check_fault(exe, err));
    if (goes_on_there(exe, plan, sample))
        put_aside(exe);
    else
        TRY(settle(exe, err));
    run_free_outputs(exe);
    memset(exe->has_logits, 0, (size_t)exe->bucket.max_rows);
    exe->params = sample;
    exe->n_results[exe->n_run++ & 1] = plan->n_rows;
    exe->is_settled = false;
    shape_pieces(exe, plan);
    if (sample)
        take_sample(exe, sample);
    if (ahead_serve(exe, results_before(exe), results_now(exe))) {
        exe->n_pieces = 0;
        exe->is_settled = true;
        exe->n_foreseen++;
        return OK;
    }
    return stick(exe, run_pieces(exe, err), err);
}

enum status run_draw(struct executable *exe, const struct sample_params *sample, struct error *err) {
    BUG_IF(exe->params || exe->is_settled);
    TRY(check_fault(exe, err));
    take_sample(exe, sample);
    return settle(exe, err);
}

enum status run_collect(struct executable *exe, struct sample_result *results, struct error *err) {
    BUG_IF(exe->n_collected == exe->n_run);
    TRY(check_fault(exe, err));
    TRY(exe->n_collected == exe->n_run - 1 ? settle(exe, err) : stick(exe, read_before(exe, err), err));
    int at = (int)(exe->n_collected++ & 1);
    memcpy(results, exe->results[at], (size_t)exe->n_results[at] * sizeof *results);
    return OK;
}

/* ---- what is left to be read ---- */

enum status run_logits(struct executable *exe, int row, const float **out, struct error *err) {
    BUG_IF(row < 0 || row >= exe->plan->n_rows || !exe->has_logits[row]);
    (void)err;
    *out = exe->logits + (int64_t)row * exe->program->vocab_size;
    return OK;
}

/* The piece that has a token row of the plan, and which of its rows that is. */
static int find_token(const struct executable *exe, int t, int *row) {
    const struct batch_plan *plan = exe->plan;
    for (int i = 0; i < exe->n_pieces; i++) {
        const struct piece *piece = &exe->pieces[i];
        for (int k = 0; k < piece->n_seqs; k++) {
            int seq = exe->seqs[piece->first_seq + k];
            if (t < plan->query_start[seq] || t >= plan->query_start[seq + 1])
                continue;
            *row = k * piece->shape.n_queries + t - plan->query_start[seq];
            return i;
        }
    }
    bug(__FILE__, __LINE__, "a token that no sequence has");
}

enum status run_hidden(struct executable *exe, int tap, int t, const float **out, struct error *err) {
    const struct program *p = exe->program;
    BUG_IF(t < 0 || t >= exe->plan->n_tokens || tap < 0 || tap > p->n_taps);
    int64_t width = tap == 0 ? p->hidden.width : p->taps[tap - 1].width;
    int row, i = find_token(exe, t, &row);
    if (exe->hidden_piece != i || exe->hidden_tap != tap) {
        const struct piece *piece = &exe->pieces[i];
        int64_t n_bytes = launch_tokens(&piece->shape) * width * (int64_t)sizeof *exe->hidden;
        exe->hidden_piece = -1;
        TRY(stick(exe, pjrt_download(exe->loaded->device->pjrt, piece->hidden[tap], exe->hidden, n_bytes, err), err));
        exe->hidden_piece = i;
        exe->hidden_tap = tap;
    }
    *out = exe->hidden + row * width;
    return OK;
}
