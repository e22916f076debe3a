/* argmax_filter.c - greedy steps without reading all of the head (argmax_filter.cu): where the head's copy in 8 bits
 * lies, and which steps try it; see cuda.h.
 *
 * A step of which every row wants its most probable token, of all or of those that a mask lets through, and no more has
 * its tokens from argmax_filter.cu, and the head and SAMPLE, whose nodes stand behind, end at once. What the rows want,
 * and whether screening is paused, is read on the device, so one graph serves all steps. The head in 16 bits decides
 * either way: tokens are the same.
 *
 * Where a model's rows have outlying channels steps are left too often at first; the device then asks for a copy whose
 * columns are scaled, and it is made before some later step, as all of a stream is in order
 * (argmax_filter_columns.cuh; 1.3 ms for 152,064 x 3,584).
 *
 * The copy is made when the weights are there, of any head of 16 bits without a bias, wherever it came from. It takes
 * half of the head's own memory again: there is none where that is more than a SHARE-th of what the weights leave free,
 * or where the head is so small that reading it is not what a step waits for. Its rows lie on the side of the L2 where
 * they are read (argmax_filter_units.cuh), so it begins with a page; GYRE_L2_COPIES=0 does without that. In the
 * environment GYRE_ARGMAX_FILTER=0 does without it, to measure; GYRE_ARGMAX_FILTER=n makes it of small heads too and
 * lets steps look at no more than n rows of the head a token, for tests. With GYRE_LINEAR, which names the path of
 * every product, there is none. */
#include "backend/cuda/head/argmax_filter.h"
#include "backend/cuda/cuda.h"
#include "backend/cuda/device/device.h"
#include "backend/cuda/device/l2_copies.h"
#include "backend/cuda/head/head.h"
#include "backend/cuda/head/lm_head.h"
#include "backend/cuda/step/compile.h"
#include "backend/cuda/step/padded.h"
#include "backend/cuda/value.h"
#include "backend/cuda/weights/weights.h"

#include <stdlib.h>
#include <string.h>

enum { SHARE = 16 };
static const int64_t WORTH_BYTES = 64 << 20; // of the head

// ---- the copy -------------------------------------------------------------------------------------------------------

enum status filter_check(struct error *err) {
    const char *named = getenv("GYRE_ARGMAX_FILTER");
    if (!named || (*named && strspn(named, "0123456789") == strlen(named) && strlen(named) <= 9))
        return OK;
    return fail(err, ERR_ARG, "GYRE_ARGMAX_FILTER: \"%.40s\" is not a number of rows of the head, nor 0", named);
}

/* Whether the head may have one: any, or one that is large enough. */
static bool is_wanted(int64_t head_bytes) {
    const char *named = getenv("GYRE_ARGMAX_FILTER");
    return !getenv("GYRE_LINEAR") && (named ? atoi(named) != 0 : head_bytes >= WORTH_BYTES);
}

int64_t filter_room(struct loaded *loaded, const struct program *p) {
    const struct op *head = head_of(p);
    if (!head || head->weights[1] || !loaded->device->is_fast)
        return 0;
    struct dweight w = weight_on_device(loaded, head->weights[0])->matrix;
    bool fits =
        (w.element == ELEMENT_F16 || w.element == ELEMENT_BF16) && w.in % 8 == 0; // rows are read 16 bytes at a time
    if (!fits || !is_wanted(w.out * w.in * element_bytes(w.element)))
        return 0;
    int64_t n_bytes = filter_copy_bytes(w) + 2 * SIDES_PAGE; // it begins with a page, and its last may be measured
    loaded->filter.left_out = n_bytes > (memory_left(loaded->device) - loaded->weight_bytes) / SHARE;
    loaded->filter.n_bytes = n_bytes;
    loaded->filter.head = loaded->filter.left_out ? NULL : head->weights[0];
    return loaded->filter.left_out ? 0 : n_bytes;
}

/* Which side of the L2 the copy's pages are on, so that who reads them may be near (argmax_filter_units.cuh). */
static enum status find_sides(struct loaded *loaded, struct dweight w, struct error *err) {
    int n_pages = (int)((filter_pages_bytes(w) + SIDES_PAGE - 1) / SIDES_PAGE);
    struct dside_pages found;
    if (!l2_copy_wanted(loaded->device))
        return OK;
    TRY(l2_copy_sides(loaded, err));
    if (loaded->l2_copy.sides.none)
        return OK;
    loaded->filter.flips = xcalloc((size_t)n_pages / 32 + 1, sizeof *loaded->filter.flips);
    DEVICE_TRY(loaded->device, err,
               sides_of_pages(loaded->device->stream, &loaded->l2_copy.sides, loaded->filter.copy, n_pages,
                              loaded->filter.flips, &found),
               "%s: finding the sides of %d pages", loaded->filter.head->name, n_pages);
    if (found.none) {
        free(loaded->filter.flips);
        loaded->filter.flips = NULL;
    }
    return OK;
}

static struct dfilter copy_of(const struct loaded *loaded) {
    return (struct dfilter){.w = weight_on_device(loaded, loaded->filter.head)->matrix,
                            .copy = loaded->filter.copy,
                            .sides = loaded->filter.flips ? &loaded->l2_copy.sides : NULL,
                            .flips = loaded->filter.flips};
}

/* Of a head that holds what is not finite there is none. */
static enum status copy_if_finite(struct loaded *loaded, unsigned long long *n_on_device, struct error *err) {
    struct dfilter s = copy_of(loaded);
    const char *name = loaded->filter.head->name;
    unsigned long long n_not_finite;
    DEVICE_TRY(loaded->device, err, cudaMemsetAsync(n_on_device, 0, sizeof n_not_finite, loaded->device->stream),
               "%s: copying it to 8 bits", name);
    launch_filter_copy(loaded->device->stream, &s, n_on_device);
    DEVICE_TRY(loaded->device, err, cudaGetLastError(), "%s: copying it to 8 bits", name);
    DEVICE_TRY(loaded->device, err, cudaStreamSynchronize(loaded->device->stream), "%s: copying it to 8 bits", name);
    DEVICE_TRY(loaded->device, err, cudaMemcpy(&n_not_finite, n_on_device, sizeof n_not_finite, cudaMemcpyDeviceToHost),
               "%s: copying it to 8 bits", name);
    loaded->filter.not_finite = n_not_finite > 0;
    if (loaded->filter.not_finite)
        loaded->filter.head = NULL;
    return OK;
}

enum status filter_copy(struct loaded *loaded, struct error *err) {
    unsigned long long *n_not_finite;
    if (!loaded->filter.head)
        return OK;
    loaded->filter.copy = (char *)loaded->filter.copy + (-(uintptr_t)loaded->filter.copy & (SIDES_PAGE - 1));
    TRY(find_sides(loaded, weight_on_device(loaded, loaded->filter.head)->matrix, err));
    TRY(memory_take(loaded->device, &n_not_finite, sizeof *n_not_finite, "a count", err));
    enum status st = copy_if_finite(loaded, n_not_finite, err);
    cudaFree(n_not_finite);
    return st;
}

// ---- steps ----------------------------------------------------------------------------------------------------------

static int budget(void) {
    const char *named = getenv("GYRE_ARGMAX_FILTER");
    return named ? atoi(named) : 0;
}

enum status filter_alloc(struct executable *exe, struct error *err) {
    const struct op *head = head_of(exe->program);
    if (!head_may_be_ours(exe) || !exe->loaded->filter.head || head->weights[0] != exe->loaded->filter.head)
        return OK;
    struct dweight w = weight_on_device(exe->loaded, head->weights[0])->matrix;
    int rows = MIN(padded_rows(MAX(exe->bucket.max_rows, 1)), HEAD_MAX_ROWS);
    TRY(device_alloc(exe, &exe->filter.state, sizeof *exe->filter.state, "what steps tell one another", err));
    TRY(device_alloc(exe, &exe->filter.scratch, filter_scratch_bytes(w, rows), "candidates for the largest logit",
                     err));
    if (exe->only_sized)
        return OK;
    TRY(pinned_take(exe->loaded->device, &exe->filter.asked, sizeof *exe->filter.asked, "a word", err));
    *exe->filter.asked = 0;
    DEVICE_TRY(exe->loaded->device, err,
               cudaMemsetAsync(exe->filter.state, 0, sizeof *exe->filter.state, exe->loaded->device->stream),
               "clearing what steps tell one another");
    return OK;
}

static bool does(const struct executable *exe, int n_rows) {
    const struct compiled_op *c = compiled_lm_head(exe);
    struct dlm_head h = dhead_of(exe, c);
    struct dmat x = c->convert.at ? c->convert : c->in[0];
    return filter_takes(&h, x, n_rows) && (c->convert.at || !c->in_order.at || filter_takes(&h, c->in_order, n_rows));
}

const int32_t *filter_done(const struct executable *exe, int n_rows) {
    return exe->filter.scratch && head_does(exe, n_rows) && does(exe, n_rows) ? &exe->filter.state->is_done : NULL;
}

static struct dfilter filter_of(const struct executable *exe, const struct compiled_op *head) {
    struct dfilter s = copy_of(exe->loaded);
    s.cap = dhead_of(exe, head).cap;
    s.budget = budget();
    s.scratch = exe->filter.scratch;
    s.state = exe->filter.state;
    s.asked = exe->filter.asked;
    s.counts = exe->loaded->counts;
    return s;
}

enum status filter_run(const struct executable *exe, const struct compiled_op *c, const struct launch *l, struct dmat x,
                       struct error *err) {
    struct dfilter s = filter_of(exe, c);
    DEVICE_TRY(exe->loaded->device, err, launch_filter(l, l->n_rows, &s, x), "%s: screening %d rows did not start",
               c->op->weights[0]->name, l->n_rows);
    return OK;
}

enum status filter_again(const struct executable *exe, struct error *err) {
    if (!exe->filter.asked || !*(const volatile int32_t *)exe->filter.asked)
        return OK;
    struct dfilter s = filter_of(exe, compiled_lm_head(exe));
    *exe->filter.asked = 0;
    launch_filter_again(exe->loaded->device->stream, &s);
    DEVICE_TRY(exe->loaded->device, err, cudaGetLastError(), "%s: copying it to 8 bits again",
               exe->loaded->filter.head->name);
    return OK;
}
