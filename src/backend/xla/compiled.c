/* compiled.c - see compiled.h. */
#include "backend/xla/compiled.h"

#include "backend/xla/dense_shape.h"
#include "backend/xla/store.h"

#include "base/clock.h"
#include "base/file.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* For these devices, or from the disk. */
static enum status compile_text(struct loaded *l, const int *ids, int n_ids, struct str text, struct pjrt_loaded **out,
                                struct error *err) {
    const struct device *d = l->device;
    struct buf options = {0};
    char name[STORE_NAME_BYTES];
    pjrt_compile_options(ids, n_ids, &options);
    store_name(d->pjrt, d->index, text, buf_view(&options), name);
    bool is_there = d->store >= 0 && store_load(d->store, name, d->pjrt, out);
    enum status st = is_there ? OK : pjrt_compile(d->pjrt, text, buf_view(&options), out, err);
    if (st == OK && !is_there && d->store >= 0)
        store_save(d->store, name, d->pjrt, *out);
    l->n_from_disk += is_there;
    l->n_compiled += !is_there;
    buf_release(&options);
    return st;
}

enum status compiled_make(struct loaded *l, struct str text, struct pjrt_loaded **out, struct error *err) {
    int id = pjrt_device_id(l->device->pjrt, l->device->index);
    return compile_text(l, &id, 1, text, out, err);
}

/* Caches that are copied instead of being written where they lie would cost more than all else. */
static enum status check_alias(const struct loaded *l, const struct compiled *c, struct error *err) {
    int64_t given = 0;
    for (int i = 0; i < l->n_caches && c->dense != DENSE_ZEROS; i++) {
        bool is_state = l->program->groups[l->caches[i].group].kind == CACHE_STATE;
        bool is_given =
            c->copies == NO_COPIES || (c->copies == STATE_SLOTS ? is_state : l->caches[i].group == c->copies);
        bool is_copy = !c->drains && dense_stands_for(l, &c->shape, i);
        if (is_given)
            given += shape_count(is_copy ? dense_shape(l, &c->shape, i) : l->caches[i].shape);
    }
    return c->bytes.aliased >= given || c->bytes.arguments == 0
               ? OK
               : fail(err, ERR_DEVICE, "device xla: %s: of caches of %lld elements %lld bytes are written in place",
                      l->program->name, (long long)given, (long long)c->bytes.aliased);
}

/* What a thread compiles. */
struct job {
    struct loaded *l;
    struct compiled *made;
    enum status status;
    struct error *err;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool is_over;                // under lock
    int64_t n_before, us_before; // programs of l
};

/* For people who want to read it: device option dump. */
static enum status dump(const struct loaded *l, struct str text, struct error *err) {
    char name[32], path[PJRT_PATH_BYTES];
    if (!l->device->dump)
        return OK;
    snprintf(name, sizeof name, "%lld.mlir", (long long)(l->n_compiled + l->n_from_disk));
    TRY(path_join(path, sizeof path, l->device->dump, name, err));
    return file_write(path, text, err);
}

static bool is_step(const struct compiled *c) { return c->copies == NO_COPIES && c->dense == 0; }

static void lower(const struct loaded *l, const struct compiled *c, struct buf *text) {
    if (is_step(c))
        xla_lower(l, &c->shape, text);
    else if (c->dense == DENSE_ZEROS)
        xla_lower_dense_zeros(l, &c->shape, text);
    else if (c->dense > 0)
        (c->drains ? xla_lower_drain : xla_lower_fill)(l, &c->shape, c->copies, c->dense, text);
    else
        xla_lower_copies(l, c->copies, text);
}

static enum status make(struct loaded *l, struct compiled *c, struct error *err) {
    struct buf text = {0};
    int64_t start = clock_us();
    lower(l, c, &text);
    enum status st = dump(l, buf_view(&text), err);
    if (st == OK)
        st = is_step(c) ? compile_text(l, l->ids, l->n_ids, buf_view(&text), &c->program, err)
                        : compiled_make(l, buf_view(&text), &c->program, err);
    if (st == OK)
        st = pjrt_program_bytes(l->device->pjrt, c->program, &c->bytes, err);
    if (st == OK)
        st = check_alias(l, c, err);
    l->compile_us += clock_us() - start;
    buf_release(&text);
    return st;
}

static void *run_job(void *arg) {
    struct job *job = arg;
    job->status = make(job->l, job->made, job->err);
    pthread_mutex_lock(&job->lock);
    job->is_over = true;
    pthread_cond_signal(&job->changed);
    pthread_mutex_unlock(&job->lock);
    return NULL;
}

// ---- waiting for it ---------------------------------------------------------------------------------------------

/* A compiler takes seconds, of large models minutes, and does not say how far it is. */
static void say_how_long(const struct job *job, int64_t us) {
    const struct launch_shape *s = &job->made->shape;
    char what[96] = "copies of a cache", others[64] = "";
    if (is_step(job->made))
        snprintf(what, sizeof what, "a step of %d x %d tokens, with up to %d of context", s->n_seqs, s->n_queries,
                 s->context);
    if (job->n_before > 0)
        snprintf(others, sizeof others, "; %lld programs before it took %lld s", (long long)job->n_before,
                 (long long)(job->us_before / 1000000));
    fprintf(stderr, "gyre: xla: compiling %s: %lld s so far%s\n", what, (long long)(us / 1000000), others);
}

static struct timespec clock_at(int64_t us) {
    return (struct timespec){.tv_sec = us / 1000000, .tv_nsec = us % 1000000 * 1000};
}

/* Until it is over; from FIRST_US on, and then each EACH_US, standard error says for how long. */
static void wait_for(struct job *job) {
    enum { FIRST_US = 2000000, EACH_US = 5000000 };
    int64_t start = clock_us(), next = start + FIRST_US;
    pthread_mutex_lock(&job->lock);
    while (!job->is_over) {
        struct timespec until = clock_at(next);
        bool late = pthread_cond_timedwait(&job->changed, &job->lock, &until) == ETIMEDOUT;
        if (!late || job->is_over)
            continue;
        say_how_long(job, clock_us() - start);
        next = clock_us() + EACH_US; // a process that was stopped does not make up for it
    }
    pthread_mutex_unlock(&job->lock);
}

static void job_init(struct job *job) {
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC); // clock_us's
    pthread_cond_init(&job->changed, &attributes);
    pthread_condattr_destroy(&attributes);
    pthread_mutex_init(&job->lock, NULL);
}

static void job_release(struct job *job) {
    pthread_cond_destroy(&job->changed);
    pthread_mutex_destroy(&job->lock);
}

static enum status add(struct loaded *l, struct compiled wanted, const struct compiled **out, struct error *err) {
    struct compiled *c = malloc(sizeof *c);
    pthread_t thread;
    if (!c)
        return fail(err, ERR_MEMORY, "%s: no memory for an executable", l->program->name);
    *c = wanted;
    struct job job = {.l = l, .made = c, .status = OK, .err = err};
    job.n_before = l->n_compiled + l->n_from_disk;
    job.us_before = l->compile_us;
    job_init(&job);
    if (pthread_create(&thread, NULL, run_job, &job) != 0)
        job.status = fail(err, ERR_MEMORY, "%s: no thread could be started to compile", l->program->name);
    else {
        wait_for(&job);
        pthread_join(thread, NULL);
    }
    job_release(&job);
    if (job.status != OK) {
        pjrt_loaded_free(l->device->pjrt, c->program);
        free(c);
        return job.status;
    }
    c->next = l->compiled;
    l->compiled = c;
    *out = c;
    return OK;
}

static bool is_same(const struct compiled *a, const struct compiled *b) {
    const struct launch_shape *x = &a->shape, *y = &b->shape;
    return a->copies == b->copies && x->n_seqs == y->n_seqs && x->n_queries == y->n_queries && x->n_rows == y->n_rows &&
           x->context == y->context && x->draws == y->draws && x->n_steps == y->n_steps && x->n_fed == y->n_fed &&
           x->is_dense == y->is_dense && a->dense == b->dense && a->drains == b->drains;
}

static enum status find_or_add(struct loaded *l, struct compiled wanted, const struct compiled **out,
                               struct error *err) {
    for (const struct compiled *c = l->compiled; c; c = c->next)
        if (is_same(c, &wanted)) {
            *out = c;
            return OK;
        }
    return add(l, wanted, out, err);
}

enum status compiled_step(struct loaded *l, const struct launch_shape *shape, const struct compiled **out,
                          struct error *err) {
    return find_or_add(l, (struct compiled){.shape = *shape, .copies = NO_COPIES}, out, err);
}

enum status compiled_copies(struct loaded *l, int group, const struct compiled **out, struct error *err) {
    return find_or_add(l, (struct compiled){.copies = group}, out, err);
}

enum status compiled_dense(struct loaded *l, const struct launch_shape *shape, int dense, int group,
                           const struct compiled **out, struct error *err) {
    struct launch_shape arrays = {.n_seqs = shape->n_seqs, .context = shape->context, .n_queries = 1, .is_dense = true};
    int copies = dense == DENSE_ZEROS ? NO_COPIES : group;
    return find_or_add(l, (struct compiled){.shape = arrays, .copies = copies, .dense = dense}, out, err);
}

enum status compiled_drain(struct loaded *l, const struct launch_shape *shape, int n, int group,
                           const struct compiled **out, struct error *err) {
    struct launch_shape arrays = {.n_seqs = shape->n_seqs, .context = shape->context, .n_queries = 1, .is_dense = true};
    return find_or_add(l, (struct compiled){.shape = arrays, .copies = group, .dense = n, .drains = true}, out, err);
}

void compiled_release(struct loaded *l) {
    for (struct compiled *c = l->compiled, *next; c; c = next) {
        next = c->next;
        pjrt_loaded_free(l->device->pjrt, c->program);
        free(c);
    }
    l->compiled = NULL;
}

enum status compiled_execute(struct loaded *l, const struct compiled *program, int n_arguments, struct error *err) {
    struct pjrt_buffer *const *arguments = l->arguments;
    struct pjrt_buffer **outputs = l->outputs;
    return pjrt_execute(l->device->pjrt, program->program, &arguments, 1, n_arguments, &outputs, err);
}

enum status compiled_run(struct loaded *l, struct pjrt_loaded *program, struct pjrt_buffer *const *arguments,
                         int n_arguments, struct pjrt_buffer **outputs, struct error *err) {
    return pjrt_execute(l->device->pjrt, program, &arguments, 1, n_arguments, &outputs, err);
}
