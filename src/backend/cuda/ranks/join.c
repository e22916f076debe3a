/* join.c - see join.h. */
#include "backend/cuda/ranks/join.h"
#include "backend/cuda/device/device.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Two cards of which the first does not reach the second's memory, if there are such. */
struct apart {
    bool are;
    int from, to;
};

struct ranks {
    struct dmeeting meeting;
    void *box;
    int32_t *missed;           // pinned
    struct apart out_of_reach; // of any two of the ranks
};

static enum status check_ranks(struct loaded *const *ranks, int n, struct error *err) {
    if (n > MEETING_RANKS)
        return fail(err, ERR_UNSUPPORTED, "%s: the CUDA backend runs a model on up to %d cards, not on %d",
                    ranks[0]->program->name, MEETING_RANKS, n);
    for (int i = 0; i < n; i++) {
        const struct program *p = ranks[i]->program;
        BUG_IF(ranks[i]->ranks);
        if (p->rank != i || p->n_ranks != n)
            return fail(err, ERR_ARG, "%s: rank %d of %d was joined as rank %d of %d", p->name, p->rank, p->n_ranks, i,
                        n);
        for (int k = 0; k < i; k++)
            if (ranks[k]->device == ranks[i]->device)
                return fail(err, ERR_ARG, "%s: ranks %d and %d are on one device, and would wait for each other",
                            p->name, k, i);
    }
    return OK;
}

/* The first two of which one does not reach the other's memory. */
static enum status find_apart(struct loaded *const *ranks, int n, struct apart *out, struct error *err) {
    for (int i = 0; i < n; i++)
        for (int k = 0; k < n; k++) {
            struct device *from = ranks[i]->device;
            int can = 0, to = ranks[k]->device->index;
            if (from->index == to || out->are)
                continue;
            TRY(device_enter(from, err));
            DEVICE_TRY(from, err, cudaDeviceCanAccessPeer(&can, from->index, to), "asking whether it reaches GPU %d",
                       to);
            if (!can)
                *out = (struct apart){true, from->index, to};
        }
    return OK;
}

/* The card `from` may read and write what the card `to` has, from now on. */
static enum status open_to(struct device *from, const struct device *to, struct error *err) {
    if (from->index == to->index)
        return OK;
    TRY(device_enter(from, err));
    cudaError_t code = cudaDeviceEnablePeerAccess(to->index, 0);
    if (code == cudaErrorPeerAccessAlreadyEnabled)
        cudaGetLastError(); // is no fault
    else
        DEVICE_TRY(from, err, code, "reaching the memory of GPU %d", to->index);
    return OK;
}

static enum status take_cleared(struct device *d, void **out, int64_t n_bytes, struct error *err) {
    TRY(memory_take(d, out, n_bytes, "what other ranks send", err));
    DEVICE_TRY(d, err, cudaMemsetAsync(*out, 0, (size_t)n_bytes, d->stream), "clearing %lld bytes", (long long)n_bytes);
    DEVICE_TRY(d, err, cudaStreamSynchronize(d->stream), "clearing %lld bytes", (long long)n_bytes);
    return OK;
}

static enum status take_box(struct loaded *loaded, int n, bool by_host, struct error *err) {
    struct device *d = loaded->device;
    struct ranks *r = loaded->ranks = xcalloc(1, sizeof *r);
    int64_t n_bytes = meeting_box_bytes(n);
    r->meeting.by_host = by_host;
    TRY(device_enter(d, err));
    TRY(by_host ? pinned_take(d, &r->box, n_bytes, "what other ranks send", err)
                : take_cleared(d, &r->box, n_bytes, err));
    if (by_host)
        memset(r->box, 0, (size_t)n_bytes);
    TRY(take_cleared(d, &r->meeting.counts, MEETING_COUNTS, err));
    TRY(pinned_take(d, &r->missed, sizeof *r->missed, "ranks", err));
    *r->missed = 0;
    return OK;
}

/* Rows go whole. */
static enum status check_widths(const struct program *p, struct error *err) {
    for (int i = 0; i < p->n_ops; i++) {
        const struct op *op = &p->ops[i];
        if ((op->code == OP_ALL_REDUCE || op->code == OP_ALL_GATHER) && op->out[0].width > MEETING_SLICED)
            return fail(err, ERR_UNSUPPORTED,
                        "%s: tensor-parallel-size: rows of %lld numbers are too wide to go through the host's memory",
                        p->name, (long long)op->out[0].width);
    }
    return OK;
}

/* Whether it is the host's memory through which ranks meet, as cards do not reach each other's or an option asks. */
static enum status choose_way(struct loaded *const *ranks, int n, struct apart *apart, bool *by_host,
                              struct error *err) {
    TRY(find_apart(ranks, n, apart, err));
    *by_host = apart->are || ranks[0]->device->meets_by_host;
    return *by_host ? check_widths(ranks[0]->program, err) : OK;
}

enum status cuda_join(struct loaded *const *ranks, int n, struct error *err) {
    bool one_card = false, by_host;
    struct apart apart = {.are = false};
    TRY(check_ranks(ranks, n, err));
    TRY(choose_way(ranks, n, &apart, &by_host, err));
    for (int i = 0; i < n; i++)
        for (int k = 0; k < n; k++) {
            TRY(by_host ? OK : open_to(ranks[i]->device, ranks[k]->device, err));
            one_card |= k < i && ranks[i]->device->index == ranks[k]->device->index;
        }
    for (int i = 0; i < n; i++)
        TRY(take_box(ranks[i], n, by_host, err)); // what was taken goes with ranks_leave
    for (int i = 0; i < n; i++) {
        struct ranks *r = ranks[i]->ranks;
        r->out_of_reach = apart;
        r->meeting = (struct dmeeting){.rank = i,
                                       .n = n,
                                       .counts = r->meeting.counts,
                                       .missed = r->missed,
                                       .patience_ns = (unsigned long long)ranks[i]->device->patience_s * 1000000000u,
                                       .one_card = one_card,
                                       .by_host = by_host};
        for (int k = 0; k < n; k++)
            r->meeting.boxes[k] = ranks[k]->ranks->box;
    }
    return OK;
}

void ranks_leave(struct loaded *loaded) {
    if (!loaded->ranks)
        return;
    if (loaded->ranks->meeting.by_host)
        cudaFreeHost(loaded->ranks->box);
    else
        cudaFree(loaded->ranks->box);
    cudaFree(loaded->ranks->meeting.counts);
    cudaFreeHost(loaded->ranks->missed);
    free(loaded->ranks);
}

bool ranks_slow_way(const struct loaded *loaded, char *out, size_t n) {
    const struct ranks *r = loaded->ranks;
    if (!r || !r->meeting.by_host)
        return false;
    if (r->out_of_reach.are)
        snprintf(out, n,
                 "GPU %d does not reach the memory of GPU %d (nvidia-smi topo -p2p rw): sums over ranks go through the "
                 "host's, which is slow",
                 r->out_of_reach.from, r->out_of_reach.to);
    else
        snprintf(out, n, "sums over ranks go through the host's memory, which is slow, as peer-access=0 asks");
    return true;
}

const struct dmeeting *ranks_meeting(const struct loaded *loaded) { return &loaded->ranks->meeting; }

enum status ranks_check_joined(const struct loaded *loaded, struct error *err) {
    const struct program *p = loaded->program;
    if (p->n_ranks > 1 && !loaded->ranks)
        return fail(err, ERR_ARG, "%s: ALL_REDUCE: rank %d of %d has not been joined with the others", p->name, p->rank,
                    p->n_ranks);
    return OK;
}

enum status ranks_check(const struct loaded *loaded, struct error *err) {
    const struct ranks *r = loaded->ranks;
    struct error *fault = &loaded->device->fault;
    int missed = r ? *(const volatile int32_t *)r->missed : 0;
    if (missed == 0)
        return OK;
    if (fault->status == OK)
        fail(fault, ERR_DEVICE, "CUDA device %d: %s: rank %d did not come within %d s (device option patience)",
             loaded->device->index, loaded->program->name, missed - 1, loaded->device->patience_s);
    *err = *fault;
    return ERR_DEVICE;
}

bool ranks_have_bests(const struct executable *exe, int n_rows) {
    return exe->program->n_ranks > 1 && exe->bests && n_rows > 0 && n_rows <= MEETING_BEST_ROWS;
}
