/* join.c - see join.h. */
#include "backend/cuda/ranks/join.h"
#include "backend/cuda/device/device.h"

#include <stdlib.h>

struct ranks {
    struct dmeeting meeting;
    void *box;
    int32_t *missed; // pinned
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

/* The card `from` may read and write what the card `to` has, from now on. */
static enum status open_to(struct device *from, const struct device *to, struct error *err) {
    int can = 0;
    if (from->index == to->index)
        return OK;
    TRY(device_enter(from, err));
    DEVICE_TRY(from, err, cudaDeviceCanAccessPeer(&can, from->index, to->index), "asking whether it reaches GPU %d",
               to->index);
    if (!can)
        return fail(err, ERR_UNSUPPORTED,
                    "tensor-parallel-size: GPU %d does not reach the memory of GPU %d (nvidia-smi topo -p2p rw)",
                    from->index, to->index);
    cudaError_t code = cudaDeviceEnablePeerAccess(to->index, 0);
    if (code == cudaErrorPeerAccessAlreadyEnabled)
        cudaGetLastError(); // is no fault
    else
        DEVICE_TRY(from, err, code, "reaching the memory of GPU %d", to->index);
    return OK;
}

static enum status take_box(struct loaded *loaded, int n, struct error *err) {
    struct device *d = loaded->device;
    struct ranks *r = loaded->ranks = xcalloc(1, sizeof *r);
    int64_t n_bytes = meeting_box_bytes(n);
    TRY(device_enter(d, err));
    TRY(memory_take(d, &r->box, n_bytes, "what other ranks send", err));
    DEVICE_TRY(d, err, cudaMemsetAsync(r->box, 0, (size_t)n_bytes, d->stream), "clearing %lld bytes",
               (long long)n_bytes);
    DEVICE_TRY(d, err, cudaStreamSynchronize(d->stream), "clearing %lld bytes", (long long)n_bytes);
    TRY(pinned_take(d, &r->missed, sizeof *r->missed, "ranks", err));
    *r->missed = 0;
    return OK;
}

enum status cuda_join(struct loaded *const *ranks, int n, struct error *err) {
    bool one_card = false;
    TRY(check_ranks(ranks, n, err));
    for (int i = 0; i < n; i++)
        for (int k = 0; k < n; k++) {
            TRY(open_to(ranks[i]->device, ranks[k]->device, err));
            one_card |= k < i && ranks[i]->device->index == ranks[k]->device->index;
        }
    for (int i = 0; i < n; i++)
        TRY(take_box(ranks[i], n, err)); // what was taken goes with ranks_leave
    for (int i = 0; i < n; i++) {
        struct ranks *r = ranks[i]->ranks;
        r->meeting = (struct dmeeting){.rank = i,
                                       .n = n,
                                       .missed = r->missed,
                                       .patience_ns = (unsigned long long)ranks[i]->device->patience_s * 1000000000u,
                                       .one_card = one_card};
        for (int k = 0; k < n; k++)
            r->meeting.boxes[k] = ranks[k]->ranks->box;
    }
    return OK;
}

void ranks_leave(struct loaded *loaded) {
    if (!loaded->ranks)
        return;
    cudaFree(loaded->ranks->box);
    cudaFreeHost(loaded->ranks->missed);
    free(loaded->ranks);
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
