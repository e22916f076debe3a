/* warnings.c - what makes steps slower, or memory fuller, than whoever started them may expect (core/backend.h). Each
 * is a sentence; what costs most comes first. */
#include "backend/cuda/attention/lists.h"
#include "backend/cuda/cache/cache.h"
#include "backend/cuda/device/manifest.h"
#include "backend/cuda/device/probes.h"
#include "backend/cuda/ranks/join.h"
#include "backend/cuda/step/launch.h"
#include "backend/cuda/step/node.h"
#include "backend/cuda/weights/weights.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Writes the sentence; false: there is nothing to say. */
typedef bool warning(struct executable *exe, char *out, size_t n);

static bool no_fast_kernels(struct executable *exe, char *out, size_t n) {
    const struct device *d = exe->loaded->device;
    if (d->is_fast)
        return false;
    if (d->arch->is_fast)
        snprintf(out, n, "steps run on plain kernels, which are slow, as kernels=plain asks");
    else
        snprintf(out, n,
                 "GPU %d runs the library's code for sm_%d: plain kernels, which are slow, compiled for it and never "
                 "run on it by us",
                 d->index, d->arch->number);
    return true;
}

static bool slow_sums(struct executable *exe, char *out, size_t n) { return ranks_slow_way(exe->loaded, out, n); }

// ---- layers -----------------------------------------------------------------------------------------------------

enum { MOST_SLOW = 8 };

/* Ops that a slow kernel computes, by what they are. */
struct slow_ops {
    const char *what[MOST_SLOW];
    int count[MOST_SLOW], n;
};

static void count_op(struct slow_ops *s, const char *what) {
    int i = 0;
    while (i < s->n && strcmp(s->what[i], what) != 0)
        i++;
    if (i == MOST_SLOW)
        return;
    s->what[i] = what;
    s->count[i]++;
    s->n = MAX(s->n, i + 1);
}

/* `seen` [n_ops]: ops that are counted already, as a step of one row and one of many have them. */
static void count_slow(struct executable *exe, const struct launch *l, bool *seen, struct slow_ops *s) {
    int n = step_lower(exe, l, 0, exe->program->n_ops);
    for (int i = 0; i < n; i++) {
        const struct node *node = &exe->nodes[i];
        int op = (int)(node->c - exe->ops);
        if (node->kernel->slow && !seen[op])
            count_op(s, node->kernel->slow);
        seen[op] = seen[op] || node->kernel->slow;
    }
}

static bool slow_layers(struct executable *exe, char *out, size_t n) {
    int most = exe->bucket.max_tokens;
    struct launch decodes = launch_of(exe, 1),
                  prompt = {exe->loaded->device->stream, most, 1, 1, exe->plan_view, exe->loaded->block_size, false};
    bool *seen = xcalloc((size_t)exe->program->n_ops, sizeof *seen);
    struct slow_ops s = {.n = 0};
    count_slow(exe, &decodes, seen, &s);
    count_slow(exe, &prompt, seen, &s);
    free(seen);
    size_t at = 0;
    for (int i = 0; i < s.n && at < n; i++)
        at += (size_t)snprintf(out + at, n - at, "%s%s of %d layers", i ? ", " : "", s.what[i], s.count[i]);
    if (s.n > 0 && at < n)
        snprintf(out + at, n - at, " %s slow: plain kernels compute %s", s.n > 1 ? "are" : "is",
                 s.n > 1 ? "them" : "it");
    return s.n > 0;
}

/* Of a card with fast ones. */
static bool slow_attention(struct executable *exe, char *out, size_t n) {
    const struct loaded *loaded = exe->loaded;
    const struct op *plain = NULL;
    int n_plain = attention_n_plain(exe, &plain);
    if (n_plain == 0 || !loaded->device->is_fast)
        return false;
    if (kv_element(loaded) == ELEMENT_KV_INT4) {
        snprintf(out, n,
                 "attention of %d layers is slow, by a plain kernel: over caches of int4 a fast one is for heads of "
                 "64, 128 or 256 channels (here %d), blocks of 64 tokens (here %d), keys and values each for itself",
                 n_plain, plain->args.attention.head_dim, loaded->block_size);
        return true;
    }
    snprintf(out, n,
             "attention of %d layers is slow, by a plain kernel: fast ones are for heads of 64, 128, 256 or 512 "
             "channels (here %d), blocks of 16 tokens and more (here %d), caches of 8 or 16 bits (here %d)",
             n_plain, plain->args.attention.head_dim, loaded->block_size, 8 * (int)element_bytes(kv_element(loaded)));
    return true;
}

// ---- memory -----------------------------------------------------------------------------------------------------

/* Matrices that take more bytes on the device than in the checkpoint. */
static bool grown_weights(struct executable *exe, char *out, size_t n) {
    struct grown g = weights_grown(exe->loaded);
    if (g.placed_bytes == 0)
        return false;
    snprintf(out, n,
             "%d weights of %s take %.1f MiB on the card and %.1f MiB in the file: the card has them in %d bits", g.n,
             g.format, (double)g.placed_bytes / (1 << 20), (double)g.stored_bytes / (1 << 20), g.bits);
    return true;
}

static bool filter_left_out(struct executable *exe, char *out, size_t n) {
    const struct loaded *loaded = exe->loaded;
    if (loaded->filter.left_out)
        snprintf(out, n,
                 "greedy steps read all of the head: its copy in 8 bits, %lld MiB, is a large part of what the weights "
                 "leave free",
                 (long long)(loaded->filter.n_bytes >> 20));
    else if (loaded->filter.not_finite)
        snprintf(out, n, "greedy steps read all of the head: it holds what is not finite");
    return loaded->filter.left_out || loaded->filter.not_finite;
}

static bool l2_copies_left_out(struct executable *exe, char *out, size_t n) {
    const struct loaded *loaded = exe->loaded;
    if (loaded->l2_copy.n_left_out > 0)
        snprintf(out, n,
                 "large steps read %d weights from both sides of the L2: copies for either side are a large part of "
                 "what the weights leave free",
                 loaded->l2_copy.n_left_out);
    else if (loaded->l2_copy.none)
        snprintf(out, n, "large steps read weights from both sides of the L2, which are not known: %s",
                 loaded->l2_copy.none);
    return loaded->l2_copy.n_left_out > 0 || loaded->l2_copy.none;
}

// ---- time -------------------------------------------------------------------------------------------------------

static bool untimed(struct executable *exe, char *out, size_t n) {
    if (exe->n_untimed > 0)
        snprintf(out, n,
                 "%d sizes of steps compute with the usual kernels, not with those that are fastest here: the time for "
                 "timing them was over; the next start goes on",
                 exe->n_untimed);
    return exe->n_untimed > 0;
}

static bool narrow_states(struct executable *exe, char *out, size_t n) {
    int n_layers = 0;
    for (int i = 0; i < exe->program->n_ops; i++)
        n_layers += exe->program->ops[i].code == OP_DELTA_RULE;
    if (n_layers == 0 || exe->loaded->device->state == ELEMENT_F32)
        return false;
    snprintf(out, n,
             "states of %d layers are kept in bfloat16, as state=bfloat16 asks: each step rounds every number of them "
             "by up to 2^-8 of its size",
             n_layers);
    return true;
}

static warning *const warnings[] = {no_fast_kernels, slow_sums, narrow_states,   slow_layers,       slow_attention,
                                    grown_weights,   untimed,   filter_left_out, l2_copies_left_out};

bool cuda_warning(struct executable *exe, int i, char *out, size_t n) {
    for (size_t k = 0; k < ARRAY_LEN(warnings); k++)
        if (warnings[k](exe, out, n) && i-- == 0)
            return true;
    return false;
}
