/* l2_copy.c - which weights are there once more, whole on either side of the L2 (l2_copy.h), and where; see cuda.h.
 *
 * A byte from the own side takes 111 pJ and one of addresses as they come 129, in steps whose clock is what the power
 * limit leaves (l2_topology.h). That is worth it where a step of 65 to 512 rows reads each weight once: gate_up by
 * gemm_fp8_gated.cu, and of up to 256 rows others by gemm_fp8_split_k.cu (docs/lab/cuda_decoding.md). A copy has tiles
 * of one width: of gate_up that which most numbers of rows want, of others what gemm_fp8_split_k.cu says, for two kinds
 * of steps where it wants two. Steps with other tiles read the rows.
 *
 * Copies are made when the weights are there, from what is there; nothing writes weights after that. A copy takes twice
 * its weight and more, as either side has all of it. Weights of one shape have copies together, the largest first, as
 * far as all that is no more than a SHARE-th of what the weights leave of the memory that may be taken
 * (gpu_memory_utilization). There are none where the device has no two sides, nor of a weight whose copy would be more
 * than L2_COPY_MOST_PAGES pages (some 230 MB of weight). Results are the same to the bit either way.
 *
 * In the environment GYRE_L2_COPIES=0 does without them, to measure; GYRE_L2_COPIES=force makes them of small weights
 * too, whatever they take, and by made-up sides where the device has none, for tests. */
#include "backend/cuda/cuda.h"
#include "backend/cuda/device/device.h"
#include "backend/cuda/device/l2_copies.h"
#include "backend/cuda/linear/fp8/gemm_fp8_gated.h"
#include "backend/cuda/linear/fp8/gemm_fp8_split_k.h"
#include "backend/cuda/step/fold.h"
#include "backend/cuda/step/padded.h"
#include "backend/cuda/value.h"
#include "backend/cuda/weights/weights.h"

#include <stdlib.h>
#include <string.h>

enum { SHARE = 6, FEW_ROWS = 64, MOST_KINDS = 64 };
static const int64_t WORTH_WIDE = 32 << 20, WORTH_SPLIT = 8 << 20; // of a weight

static bool is_named(const char *what) {
    const char *named = getenv("GYRE_L2_COPIES");
    return named && strcmp(named, what) == 0;
}

enum status l2_copy_check(struct error *err) {
    const char *named = getenv("GYRE_L2_COPIES");
    if (!named || is_named("0") || is_named("force"))
        return OK;
    return fail(err, ERR_ARG, "GYRE_L2_COPIES: \"%.40s\" is neither 0 nor force", named);
}

// ---- kinds of weights -----------------------------------------------------------------------------------------------

/* Weights of one shape, that are read by one kernel. */
struct kind {
    struct dweight like;
    int act; // behind them; negative: none
    int n;
    struct dl2_copy l2_copy[L2_COPY_SHAPES]; // of each; at NULL yet
    int n_shapes, n_pages;                   // n_pages: of all
    bool is_judged, is_in;
};

struct l2_copy_make {
    struct placed *of;
    const struct kind *kind;
    struct dl2_copy l2_copy[L2_COPY_SHAPES];
};

struct l2_copy {
    struct kind kinds[MOST_KINDS];
    struct l2_copy_make *copies; // [n]
    int n_kinds, n;
};

/* The width of tiles that most of the numbers of rows want. */
static struct l2_copy_shape gated_shape(const struct dgated *w) {
    int n[32] = {0}, best = 0;
    for (int i = padded_index(FEW_ROWS) + 1; padded_rows_at(i) <= GATED_MAX_ROWS; i++) {
        int octets = gated_cut_of(w, padded_rows_at(i)).octets;
        BUG_IF(octets < 0 || octets >= (int)ARRAY_LEN(n));
        if (++n[octets] > n[best])
            best = octets;
    }
    return (struct l2_copy_shape){.rows = 16 * best, .halves = 2};
}

static void lay_out(struct kind *k) {
    struct dgated wide = {.w = k->like, .act = k->act};
    for (int i = 0; i < L2_COPY_SHAPES; i++) {
        struct l2_copy_shape shape = {.rows = k->act >= 0 ? 0 : split_k_l2_copy_rows(k->like, i), .halves = 1};
        if (k->act >= 0 && i == 0)
            shape = gated_shape(&wide);
        if (shape.rows > 0 && l2_copy_lay_out(k->like, shape, &k->l2_copy[k->n_shapes]))
            k->n_shapes++;
    }
}

static int pages_of_one(const struct kind *k) {
    int n = 0;
    for (int i = 0; i < k->n_shapes; i++)
        n += l2_copy_pages(&k->l2_copy[i]);
    return n;
}

/* NULL: there are too many. */
static struct kind *kind_of(struct l2_copy *all, struct dweight w, int act) {
    for (int i = 0; i < all->n_kinds; i++)
        if (all->kinds[i].like.out == w.out && all->kinds[i].like.in == w.in && all->kinds[i].act == act)
            return &all->kinds[i];
    if (all->n_kinds == MOST_KINDS)
        return NULL;
    struct kind *k = &all->kinds[all->n_kinds++];
    *k = (struct kind){.like = w, .act = act};
    lay_out(k);
    return k;
}

static bool is_worth_it(struct dweight w, bool gated) {
    return w.element == ELEMENT_E4M3 && w.in <= HALF_SUMS_IN &&
           (w.out * w.in >= (gated ? WORTH_WIDE : WORTH_SPLIT) || is_named("force"));
}

static void add(struct loaded *loaded, const struct program *p, int op) {
    struct l2_copy *all = loaded->l2_copy.all;
    bool gated = gated_act_follows(p, op);
    int act = gated ? (int)p->ops[op + 1].args.gated_act.act : -1;
    if (p->ops[op].code != OP_LINEAR || act > 1) // gemm_fp8_gated.cu has SiLU and GELU by tanh
        return;
    struct placed *of = placed_on_device(loaded, p->ops[op].weights[0]);
    if (!is_worth_it(of->matrix, gated))
        return;
    for (int i = 0; i < all->n; i++)
        if (all->copies[i].of == of) // of two ops
            return;
    struct kind *k = kind_of(all, of->matrix, act);
    if (!k || k->n_shapes == 0)
        return;
    all->copies[all->n++] = (struct l2_copy_make){.of = of, .kind = k};
    k->n++;
    k->n_pages += pages_of_one(k);
}

// ---- room -----------------------------------------------------------------------------------------------------------

/* Of a device that has no sides: as good as any for a reader. */
static void make_up(uint32_t *bits, int n) {
    for (int i = 0; i < n; i++)
        bits[i] = (uint32_t)(i + 1) * 0x9E3779B9u;
}

bool l2_copy_wanted(const struct device *d) { return d->is_fast && !is_named("0"); }

enum status l2_copy_sides(struct loaded *loaded, struct error *err) {
    if (loaded->l2_copy.looked)
        return OK;
    DEVICE_TRY(loaded->device, err, l2_sides_find(loaded->device->stream, &loaded->l2_copy.sides),
               "finding the sides of its L2");
    loaded->l2_copy.looked = true;
    if (loaded->l2_copy.sides.none && is_named("force")) {
        make_up(loaded->l2_copy.sides.sm, SIDES_MOST_SMS / 32);
        make_up(&loaded->l2_copy.sides.hash, 1);
    }
    return OK;
}

static enum status find_sides(struct loaded *loaded, struct error *err) {
    TRY(l2_copy_sides(loaded, err));
    loaded->l2_copy.none = loaded->l2_copy.sides.none;
    if (loaded->l2_copy.none && !is_named("force"))
        loaded->l2_copy.all->n = 0;
    return OK;
}

static struct kind *largest_left(struct l2_copy *all) {
    struct kind *largest = NULL;
    for (int i = 0; i < all->n_kinds; i++) {
        struct kind *k = &all->kinds[i];
        if (!k->is_judged && k->n > 0 && (!largest || k->like.out * k->like.in > largest->like.out * largest->like.in))
            largest = k;
    }
    return largest;
}

/* Kinds that have room, the largest first. */
static void choose(struct loaded *loaded, int64_t room) {
    for (struct kind *k; (k = largest_left(loaded->l2_copy.all));) {
        k->is_judged = true;
        k->is_in = (int64_t)(loaded->l2_copy.n_pages + k->n_pages) * SIDES_PAGE <= room || is_named("force");
        if (k->is_in)
            loaded->l2_copy.n_pages += k->n_pages;
        else
            loaded->l2_copy.n_left_out += k->n;
    }
}

/* Of a card that is not there, whose multiprocessors say how tiles are cut and so what copies take: at most. */
static int64_t most_bytes(const struct loaded *loaded, const struct program *p) {
    int64_t n_bytes = 0, room = MAX((memory_left(loaded->device) - loaded->weight_bytes) / SHARE, 0);
    for (int i = 0; i < p->n_ops; i++) {
        bool gated = gated_act_follows(p, i);
        if (p->ops[i].code != OP_LINEAR || (gated && p->ops[i + 1].args.gated_act.act > 1))
            continue;
        struct dweight w = weight_on_device(loaded, p->ops[i].weights[0])->matrix;
        if (is_worth_it(w, gated))
            n_bytes += 2 * (gated ? 1 : L2_COPY_SHAPES) * w.out * w.in;
    }
    return MIN(n_bytes, room);
}

enum status l2_copy_room(struct loaded *loaded, const struct program *p, int64_t *n_bytes, struct error *err) {
    *n_bytes = 0;
    if (!l2_copy_wanted(loaded->device))
        return OK;
    if (loaded->device->card) {
        *n_bytes = loaded->l2_copy.n_bytes = most_bytes(loaded, p);
        return OK;
    }
    loaded->l2_copy.all = xcalloc(1, sizeof *loaded->l2_copy.all);
    loaded->l2_copy.all->copies = xcalloc((size_t)p->n_ops, sizeof *loaded->l2_copy.all->copies);
    for (int i = 0; i < p->n_ops; i++)
        add(loaded, p, i);
    if (loaded->l2_copy.all->n > 0)
        TRY(find_sides(loaded, err));
    if (loaded->l2_copy.all->n == 0)
        return OK;
    choose(loaded, (memory_left(loaded->device) - loaded->weight_bytes) / SHARE);
    loaded->l2_copy.n_bytes = loaded->l2_copy.n_pages > 0 ? (loaded->l2_copy.n_pages + 1) * (int64_t)SIDES_PAGE
                                                          : 0; // one more: places are whole pages
    *n_bytes = loaded->l2_copy.n_bytes;
    return OK;
}

// ---- copies ---------------------------------------------------------------------------------------------------------

static enum status find_flips(struct loaded *loaded, void *at, uint32_t *flips, struct error *err) {
    struct dside_pages found;
    if (loaded->l2_copy.sides.none) {
        make_up(flips, (loaded->l2_copy.n_pages + 31) / 32);
        return OK;
    }
    DEVICE_TRY(
        loaded->device, err,
        sides_of_pages(loaded->device->stream, &loaded->l2_copy.sides, at, loaded->l2_copy.n_pages, flips, &found),
        "finding the sides of %d pages", loaded->l2_copy.n_pages);
    loaded->l2_copy.none = found.none;
    return OK;
}

/* At page *page, which goes on. */
static void copy_one(struct loaded *loaded, struct l2_copy_make *c, char *at, const uint32_t *flips, int *page) {
    for (int k = 0; k < c->kind->n_shapes; k++) {
        struct dl2_copy *n = &c->l2_copy[k];
        *n = c->kind->l2_copy[k];
        n->at = at + (int64_t)*page * SIDES_PAGE;
        n->hash = loaded->l2_copy.sides.hash;
        memcpy(n->sm_sides, loaded->l2_copy.sides.sm, sizeof n->sm_sides);
        for (int i = 0; i < l2_copy_pages(n); i++, ++*page)
            n->flips[i / 32] |= (flips[*page / 32] >> *page % 32 & 1) << i % 32;
        launch_l2_copy(loaded->device->stream, n, c->of->matrix);
        c->of->l2_copy[k] = n;
    }
}

static enum status copy_all(struct loaded *loaded, char *at, const uint32_t *flips, struct error *err) {
    int page = 0;
    for (int i = 0; i < loaded->l2_copy.all->n; i++)
        if (loaded->l2_copy.all->copies[i].kind->is_in)
            copy_one(loaded, &loaded->l2_copy.all->copies[i], at, flips, &page);
    BUG_IF(page != loaded->l2_copy.n_pages);
    DEVICE_TRY(loaded->device, err, cudaGetLastError(), "copying weights to %d pages by the sides of its L2", page);
    DEVICE_TRY(loaded->device, err, cudaStreamSynchronize(loaded->device->stream),
               "copying weights to %d pages by the sides of its L2", page);
    return OK;
}

enum status l2_copy_make(struct loaded *loaded, struct error *err) {
    if (loaded->l2_copy.n_pages == 0)
        return OK;
    char *at = (char *)loaded->l2_copy.at + (-(uintptr_t)loaded->l2_copy.at & (SIDES_PAGE - 1));
    uint32_t *flips = xcalloc((size_t)(loaded->l2_copy.n_pages + 31) / 32, sizeof *flips);
    enum status st = find_flips(loaded, at, flips, err);
    if (st == OK && (!loaded->l2_copy.none ||
                     loaded->l2_copy.sides.none)) // none now: its memory is otherwise than what the sides were found by
        st = copy_all(loaded, at, flips, err);
    free(flips);
    return st;
}

void l2_copy_release(struct loaded *loaded) {
    if (loaded->l2_copy.all)
        free(loaded->l2_copy.all->copies);
    free(loaded->l2_copy.all);
}
