/* trainer.c - see trainer.h. */
#include "train/trainer.h"

#include "base/clock.h"
#include "base/random.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { SQUARES = 4096, WARM_UP = 40 };

void held_out_release(struct held_out *h) {
    texts_release(&h->texts);
    examples_release(&h->examples);
    free(h->n_prompt);
    *h = (struct held_out){0};
}

// ---- opening ----------------------------------------------------------------------------------------------------

static void room_init(struct batch_room *room, const struct trainer *t, const struct examples *e,
                      const struct weight *embed, int64_t n_texts, int64_t n_rows) {
    *room = (struct batch_room){.examples = e, .vocab = t->vocab, .embed = embed, .best_share = 0.5f};
    batch_room_init(room, n_texts, n_rows, e->tap_size, t->config.shape.hidden);
}

static enum status share_lm_head(struct trainer *t, const struct weight *lm_head, struct error *err) {
    if (t->config.shape.kind != HEAD_MTP)
        return OK;
    t->lm_head = calloc((size_t)lm_head->out, (size_t)lm_head->in * sizeof *t->lm_head);
    if (!t->lm_head)
        return fail(err, ERR_MEMORY, "training: no memory for the %lld rows of the target's head",
                    (long long)lm_head->out);
    weight_rows_f32(lm_head, 0, lm_head->out, t->lm_head);
    t->head.lm_head = t->lm_head;
    return OK;
}

enum status trainer_init(struct trainer *t, const struct trainer_options *o, const struct head_config *c,
                         const struct draft_vocab *vocab, const struct draft_target *target,
                         const struct examples *examples, const struct held_out *held, struct error *err) {
    *t = (struct trainer){.o = *o, .config = *c, .examples = examples, .held = held, .vocab = vocab, .epoch = -1};
    int64_t rows = o->batch * o->window, n = head_size(&c->shape);
    int steps = MAX(o->guesses, ACCEPTANCE_GUESSES);
    TRY(head_init_f32(&t->head, &c->shape, math_find(NULL), steps, MAX(rows, held->longest), err));
    TRY(share_lm_head(t, target->lm_head, err));
    t->crew = crew_open(o->n_threads, math_scratch_bytes(MAX(o->window, held->longest), sizeof(float)));
    room_init(&t->room, t, examples, target->embed, o->batch, rows);
    if (held->examples.n_pieces)
        room_init(&t->held_room, t, &held->examples, target->embed, 1, held->longest);
    t->order = xcalloc((size_t)examples->n_pieces + 1, sizeof *t->order);
    t->m = calloc((size_t)n, sizeof *t->m);
    t->v = calloc((size_t)n, sizeof *t->v);
    t->rounded = calloc((size_t)n, sizeof *t->rounded);
    t->squares = xcalloc((size_t)(n / SQUARES + 1), sizeof *t->squares);
    return t->m && t->v && t->rounded ? OK
                                      : fail(err, ERR_MEMORY, "training: no memory for %lld weights", (long long)n);
}

void trainer_release(struct trainer *t) {
    crew_free(t->crew);
    batch_room_release(&t->room);
    batch_room_release(&t->held_room);
    head_release_f32(&t->head);
    free(t->order);
    free(t->m);
    free(t->v);
    free(t->rounded);
    free(t->lm_head);
    free(t->squares);
    *t = (struct trainer){0};
}

// ---- a step -----------------------------------------------------------------------------------------------------

int64_t trainer_epoch_steps(const struct trainer *t) { return (t->examples->n_pieces + t->o.batch - 1) / t->o.batch; }

/* Another order of the pieces in each epoch, which follows from the seed (Fisher and Yates). */
static void shuffle(struct trainer *t, int64_t epoch) {
    int64_t n = t->examples->n_pieces;
    if (t->epoch == epoch)
        return;
    t->epoch = epoch;
    for (int64_t i = 0; i < n; i++)
        t->order[i] = i;
    for (int64_t i = n - 1; i > 0; i--) {
        int64_t j = (int64_t)(philox_uniform(t->o.seed, (uint64_t)i, (uint64_t)epoch) * (double)(i + 1));
        int64_t kept = t->order[i];
        t->order[i] = t->order[j];
        t->order[j] = kept;
    }
}

static void begin_batch(struct trainer *t) {
    int64_t a_epoch = trainer_epoch_steps(t), first = t->step % a_epoch * t->o.batch;
    shuffle(t, t->step / a_epoch);
    batch_room_begin(&t->room, t->order + first, (int)MIN(t->o.batch, t->examples->n_pieces - first));
    t->head.steps = t->o.guesses;
}

static double rate(const struct trainer *t) {
    double done = (double)t->step / (double)MAX(t->o.n_steps, 1), warm = (double)(t->step + 1) / WARM_UP;
    return t->o.lr * MIN(1, warm) * (0.02 + 0.98 * 0.5 * (1 + cos(3.14159265358979323846 * MIN(done, 1))));
}

static void add_squares(struct trainer *t, const struct worker *w) {
    int64_t i, end, n = head_size(&t->config.shape);
    for (worker_share(w, (n + SQUARES - 1) / SQUARES, 1, &i, &end); i < end; i++) {
        double sum = 0;
        for (int64_t k = i * SQUARES; k < MIN(n, (i + 1) * SQUARES); k++)
            sum += (double)t->head.grad[k] * (double)t->head.grad[k];
        t->squares[i] = sum;
    }
}

static double gradient_length(const struct trainer *t) {
    double sum = 0;
    for (int64_t i = 0; i <= (head_size(&t->config.shape) - 1) / SQUARES; i++)
        sum += t->squares[i];
    return sqrt(sum);
}

static void compute(void *arg, const struct worker *w) {
    struct trainer *t = arg;
    batch_room_fill(&t->room, w);
    worker_meet(w);
    head_train_f32(&t->head, w, &t->room.batch);
    add_squares(t, w);
}

static void update(void *arg, const struct worker *w) {
    struct trainer *t = arg;
    double length = gradient_length(t);
    struct adamw_f32 o = {(float)rate(t), 0.9f, 0.97f, 1e-8f, 0.01f, t->step + 1};
    t->head.math->adamw(w, &o, head_size(&t->config.shape), (float)(length > 1 ? 1 / length : 1), t->head.grad, t->m,
                        t->v, t->head.weight);
}

enum status trainer_step(struct trainer *t, struct error *err) {
    begin_batch(t);
    crew_run(t->crew, compute, t);
    if (!isfinite(t->head.total) || !isfinite(gradient_length(t)))
        return fail(err, ERR_FORMAT, "training: the loss is no number any more at step %lld; a smaller --lr may help",
                    (long long)t->step + 1);
    crew_run(t->crew, update, t);
    t->step++;
    return OK;
}

double trainer_step_seconds(struct trainer *t) {
    double best = INFINITY;
    for (int i = 0; i < 3; i++) {
        int64_t start = clock_us();
        begin_batch(t);
        crew_run(t->crew, compute, t);
        best = MIN(best, clock_seconds_since(start));
    }
    return best;
}

// ---- acceptance -------------------------------------------------------------------------------------------------

static void guess_held(void *arg, const struct worker *w) {
    struct trainer *t = arg;
    batch_room_fill(&t->held_room, w);
    worker_meet(w);
    head_guess_f32(&t->head, w, &t->held_room.batch);
}

static int32_t guess_at(const void *context, int i, int64_t row) {
    const struct trainer *t = context;
    return t->vocab->target_id[t->head.guess[i * t->head.max_rows + row]];
}

void trainer_measure(struct trainer *t, struct acceptance *out) {
    const struct held_out *held = t->held;
    float *weight = t->head.weight;
    *out = (struct acceptance){0};
    head_round(&t->config.shape, weight, t->rounded);
    t->head.weight = t->rounded;
    t->head.steps = ACCEPTANCE_GUESSES;
    for (int64_t i = 0; i < held->examples.n_pieces; i++) {
        batch_room_begin(&t->held_room, &i, 1);
        crew_run(t->crew, guess_held, t);
        acceptance_add(out, texts_ids(&held->texts, i), held->n_prompt[i],
                       texts_length(&held->texts, i) - held->n_prompt[i], guess_at, t);
    }
    t->head.weight = weight;
}
