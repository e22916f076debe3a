/* handover.c - see handover.h.
 *
 * Copies have a stream of their own, and two halves of staging by turns, on the device and pinned on the host, so that
 * a link is busy while the processor copies:
 *
 *     get    cache ─ gather ─► half on the device ─► half on the host ─ processor ─► out
 *     put    in ─ processor ─► half on the host ─► half on the device ─ scatter ─► cache
 *
 *     show   cache ─ gather ─► window, cudaMalloc'd and exported (CUDA IPC)
 *     take   another process's window ─ scatter, which reads over the link ─► cache
 *
 * One thread at a time copies; others wait for it. What is read was written, and what is written is read by, no step in
 * flight: that is the caller's to know, and nothing here waits for the device's stream but for what cleared the memory.
 * A fault is told to who copies: the device's own is the engine's thread's. */
#include "backend/cuda/cache/handover.h"

#include "backend/cuda/cache/block_run.h"
#include "backend/cuda/cache/cache.h"
#include "backend/cuda/cache/handed.h"
#include "backend/cuda/device/device.h"
#include "backend/cuda/device/virtual.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

enum { HALVES = 2, HALF_BYTES = 4 << 20 };

struct handed_copies {
    pthread_mutex_t lock; // of what follows
    cudaStream_t stream;
    char *here[HALVES], *there[HALVES]; // pinned; the device's
    cudaEvent_t done[HALVES];
    char *window;                  // of this device; NULL: it was not shared
    char *opened;                  // of another; NULL: none was
    char opened_name[WINDOW_NAME]; // whose it is
    uint64_t number;               // of the window of this device
    cudaEvent_t cleared;           // on the device's stream, by the thread of the engine
};
struct window_name {
    cudaIpcMemHandle_t handle;
    uint64_t number;
};
_Static_assert(sizeof(struct window_name) == WINDOW_NAME, "a handle and a number are a window's name");

// ---- memory -----------------------------------------------------------------------------------------------------

/* Under the lock. */
static void close_window(struct loaded *loaded) {
    struct handed_copies *c = loaded->copies;
    if (c->opened && cudaSetDevice(loaded->device->index) == cudaSuccess)
        cudaIpcCloseMemHandle(c->opened);
    cudaGetLastError(); // what is wrong with the device others are told
    c->opened = NULL;
}

void handover_release(struct loaded *loaded) {
    struct handed_copies *c = loaded->copies;
    if (!c)
        return;
    for (int h = 0; h < HALVES; h++) {
        cudaFreeHost(c->here[h]);
        cudaFree(c->there[h]);
        if (c->done[h])
            cudaEventDestroy(c->done[h]);
    }
    close_window(loaded);
    cudaFree(c->window);
    if (c->cleared)
        cudaEventDestroy(c->cleared);
    if (c->stream)
        cudaStreamDestroy(c->stream);
    pthread_mutex_destroy(&c->lock);
    free(c);
    loaded->copies = NULL;
}

enum status handover_note_cleared(struct loaded *loaded, struct error *err) {
    if (loaded->copies)
        DEVICE_TRY(loaded->device, err, cudaEventRecord(loaded->copies->cleared, loaded->device->stream),
                   "what clears the cache");
    return OK;
}

static enum status make(struct loaded *loaded, struct error *err) {
    struct device *d = loaded->device;
    struct handed_copies *c = loaded->copies = xcalloc(1, sizeof *c);
    pthread_mutex_init(&c->lock, NULL);
    DEVICE_TRY(d, err, cudaStreamCreateWithFlags(&c->stream, cudaStreamNonBlocking), "a stream for copies");
    DEVICE_TRY(d, err, cudaEventCreateWithFlags(&c->cleared, cudaEventDisableTiming), "an event");
    for (int h = 0; h < HALVES; h++) {
        TRY(pinned_take(d, &c->here[h], HALF_BYTES, "a cache that is handed over", err));
        TRY(memory_take(d, &c->there[h], HALF_BYTES, "a cache that is handed over", err));
        DEVICE_TRY(d, err, cudaEventCreateWithFlags(&c->done[h], cudaEventDisableTiming | cudaEventBlockingSync),
                   "an event");
    }
    return handover_note_cleared(loaded, err);
}

static enum status prepare(struct loaded *loaded, struct error *err) {
    if (loaded->copies)
        return OK;
    if (loaded->device->fault.status != OK) {
        *err = loaded->device->fault;
        return err->status;
    }
    TRY(device_enter(loaded->device, err));
    enum status st = make(loaded, err);
    if (st != OK)
        handover_release(loaded);
    return st;
}

// ---- sizes ------------------------------------------------------------------------------------------------------

/* Of states, which may be able to go back. */
static int64_t tail_bytes(const struct loaded *loaded, int group) {
    return loaded->program->groups[group].kind == CACHE_STATE ? (int64_t)sizeof(int64_t) : 0;
}

static int64_t span_of(const struct loaded *loaded, int group) {
    return cuda_cache_block_bytes(loaded, group, loaded->block_size);
}

static int64_t handed_bytes(const struct loaded *loaded, int group) {
    return span_of(loaded, group) + tail_bytes(loaded, group);
}

// ---- copies -----------------------------------------------------------------------------------------------------

/* Blocks [n] and their places in the host's memory. All their bytes are counted one behind the other; a run of them
 * passes through a half. */
struct moving {
    struct loaded *loaded;
    int group;
    const int32_t *blocks;
    int64_t n, span;
    char *out;
    const char *in;
    size_t stride;
    char *row; // in place of them: of a device's memory, where blocks lie one behind the other
    bool shows;
};

static enum status failed(cudaError_t code, const struct moving *m, struct error *err) {
    cudaGetLastError();
    return fail(err, ERR_DEVICE, "handing over %lld blocks of group %d: %s", (long long)m->n, m->group,
                cudaGetErrorString(code));
}

static int64_t end_of_run(const struct moving *m, int64_t first) {
    int64_t most_blocks = (first / m->span + MOST_HANDED) * m->span;
    return MIN(MIN(first + HALF_BYTES, most_blocks), m->n * m->span);
}

/* Bytes [first, end) between a half and their places. */
static void copy_here(const struct moving *m, char *half, int64_t first, int64_t end) {
    for (int64_t x = first; x < end;) {
        int64_t i = x / m->span, r = x % m->span, n = MIN(end - x, m->span - r);
        size_t place = (size_t)i * m->stride + (size_t)r;
        if (m->out)
            memcpy(m->out + place, half + (x - first), (size_t)n);
        else
            memcpy(half + (x - first), m->in + place, (size_t)n);
        x += n;
    }
}

static struct dhanded run_of(const struct moving *m, char *row, int64_t first, int64_t end) {
    int n_layers = m->loaded->program->groups[m->group].n_layers;
    int64_t first_block = first / m->span, shift = first_block * m->span;
    struct dhanded h = {.part = m->span / n_layers,
                        .n_layers = n_layers,
                        .row = row,
                        .stride = m->span,
                        .first = first - shift,
                        .end = end - shift};
    for (int64_t i = first_block; i * m->span < end; i++) {
        struct block_run b = block_run_of(m->loaded, m->group, m->blocks[i]);
        h.block[i - first_block] = b.at;
        h.pitch = (int64_t)b.pitch;
    }
    return h;
}

static cudaError_t start_run(const struct moving *m, int h, int64_t first, int64_t end) {
    struct handed_copies *c = m->loaded->copies;
    struct dhanded run = run_of(m, c->there[h], first, end);
    size_t n = (size_t)(end - first);
    cudaError_t code = cudaSuccess;
    if (m->in) {
        copy_here(m, c->here[h], first, end);
        code = cudaMemcpyAsync(c->there[h], c->here[h], n, cudaMemcpyHostToDevice, c->stream);
        launch_scatter(c->stream, &run);
    } else {
        launch_gather(c->stream, &run);
        code = cudaMemcpyAsync(c->here[h], c->there[h], n, cudaMemcpyDeviceToHost, c->stream);
    }
    cudaError_t launched = cudaGetLastError();
    code = code == cudaSuccess ? launched : code;
    return code == cudaSuccess ? cudaEventRecord(c->done[h], c->stream) : code;
}

/* While a run is under way the one before it is brought to its places. */
static cudaError_t move_runs(const struct moving *m) {
    struct handed_copies *c = m->loaded->copies;
    int64_t all = m->n * m->span, begun[HALVES] = {0}, end[HALVES] = {0}, next = 0, left = 0;
    for (int64_t k = 0; left < all; k++) {
        int h = (int)(k % HALVES);
        if (end[h] > begun[h]) { // under way since its last turn
            cudaError_t code = cudaEventSynchronize(c->done[h]);
            if (code != cudaSuccess)
                return code;
            if (m->out)
                copy_here(m, c->here[h], begun[h], end[h]);
            left = end[h];
        }
        begun[h] = next, end[h] = next < all ? end_of_run(m, next) : next;
        cudaError_t code = end[h] > begun[h] ? start_run(m, h, begun[h], end[h]) : cudaSuccess;
        if (code != cudaSuccess)
            return code;
        next = end[h];
    }
    return cudaSuccess;
}

/* Between a window and the cache. */
static cudaError_t move_row(const struct moving *m) {
    struct handed_copies *c = m->loaded->copies;
    int64_t all = m->n * m->span, most = (int64_t)MOST_HANDED * m->span;
    for (int64_t first = 0; first < all; first += most) {
        struct dhanded run = run_of(m, m->row + first, first, MIN(first + most, all));
        if (m->shows)
            launch_gather(c->stream, &run);
        else
            launch_scatter(c->stream, &run);
        cudaError_t code = cudaGetLastError();
        if (code != cudaSuccess)
            return code;
    }
    cudaError_t code = cudaEventRecord(c->done[0], c->stream);
    return code == cudaSuccess ? cudaEventSynchronize(c->done[0]) : code;
}

/* Under the lock. */
static enum status move_locked(const struct moving *m, struct error *err) {
    struct loaded *loaded = m->loaded;
    struct handed_copies *c = loaded->copies;
    if (m->n == 0 || m->span == 0)
        return OK;
    cudaError_t code = cudaSetDevice(loaded->device->index);
    if (code == cudaSuccess)
        code = cudaStreamWaitEvent(c->stream, c->cleared, 0);
    if (code == cudaSuccess)
        code = m->row ? move_row(m) : move_runs(m);
    if (code != cudaSuccess)
        cudaStreamSynchronize(c->stream); // nothing is under way any more
    return code == cudaSuccess ? OK : failed(code, m, err);
}

static enum status move(const struct moving *m, struct error *err) {
    pthread_mutex_lock(&m->loaded->copies->lock);
    enum status st = move_locked(m, err);
    pthread_mutex_unlock(&m->loaded->copies->lock);
    return st;
}

static enum status get(struct loaded *loaded, int group, const int32_t *blocks, int n, void *out, size_t stride,
                       struct error *err) {
    int64_t span = span_of(loaded, group);
    struct moving m = {.loaded = loaded, .group = group, .blocks = blocks, .n = n, .span = span};
    m.out = out, m.stride = stride;
    TRY(move(&m, err));
    for (int i = 0; i < n && tail_bytes(loaded, group) > 0; i++) {
        int64_t base = loaded->state_base[blocks[i]];
        memcpy((char *)out + (size_t)i * stride + span, &base, sizeof base);
    }
    return OK;
}

static int64_t base_in(const struct loaded *loaded, int group, const void *in) {
    int64_t base = 0;
    if (tail_bytes(loaded, group) > 0)
        memcpy(&base, (const char *)in + span_of(loaded, group), sizeof base);
    return base;
}

/* ERR_FORMAT: a state that can go back lags behind its n_tokens by less than nothing or more than its rows. So that a
 * step may begin there (step/plan.c, write_bases). */
static enum status check(const struct loaded *loaded, int group, int32_t n_tokens, const void *in, struct error *err) {
    int64_t base = base_in(loaded, group, in);
    if (base < 0 || base > INT32_MAX)
        return fail(err, ERR_FORMAT, "a recurrent state that was handed over has %lld tokens", (long long)base);
    if (loaded->n_back > 0 && (base < n_tokens - (int64_t)loaded->n_back || base > n_tokens))
        return fail(err, ERR_FORMAT,
                    "a recurrent state that was handed over has %lld tokens; behind %d it may lag by %d",
                    (long long)base, n_tokens, loaded->n_back);
    return OK;
}

static enum status put(struct loaded *loaded, int group, const int32_t *blocks, int n, const void *in, size_t stride,
                       struct error *err) {
    struct moving m = {.loaded = loaded, .group = group, .blocks = blocks, .n = n, .span = span_of(loaded, group)};
    m.in = in, m.stride = stride;
    TRY(move(&m, err));
    for (int i = 0; i < n && tail_bytes(loaded, group) > 0; i++)
        loaded->state_base[blocks[i]] = (int32_t)base_in(loaded, group, (const char *)in + (size_t)i * stride);
    return OK;
}

// ---- windows ----------------------------------------------------------------------------------------------------

/* What is wrong is no fault: bytes go then. */
static enum status no_window(cudaError_t code, const char *what, struct error *err) {
    cudaGetLastError();
    return fail(err, ERR_UNSUPPORTED, "%s: %s", what, cudaGetErrorString(code));
}

/* All of it is filled before anybody knows its name. Under the lock. */
static cudaError_t new_window(struct handed_copies *c) {
    char *window = NULL;
    BUG_IF(getrandom(&c->number, sizeof c->number, 0) != sizeof c->number);
    cudaError_t code = cudaMalloc((void **)&window, WINDOW_MEMORY);
    memcpy(c->here[0], &c->number, sizeof c->number);
    if (code == cudaSuccess)
        code = cudaMemcpyAsync(window + WINDOW_BYTES, c->here[0], sizeof c->number, cudaMemcpyHostToDevice, c->stream);
    if (code == cudaSuccess)
        code = cudaStreamSynchronize(c->stream);
    if (code != cudaSuccess)
        cudaFree(window);
    else
        c->window = window;
    return code;
}

/* Under the lock. */
static cudaError_t make_window(struct loaded *loaded, char *name) {
    struct handed_copies *c = loaded->copies;
    struct window_name w = {{{0}}, 0};
    cudaError_t code = cudaSetDevice(loaded->device->index);
    if (code == cudaSuccess && !c->window)
        code = new_window(c);
    if (code == cudaSuccess)
        code = cudaIpcGetMemHandle(&w.handle, c->window);
    w.number = c->number;
    memcpy(name, &w, sizeof w);
    return code;
}

static enum status share(struct loaded *loaded, char name[WINDOW_NAME], struct error *err) {
    pthread_mutex_lock(&loaded->copies->lock);
    cudaError_t code = make_window(loaded, name);
    pthread_mutex_unlock(&loaded->copies->lock);
    return code == cudaSuccess ? OK : no_window(code, "a window of this device's memory cannot be shared", err);
}

static enum status show(struct loaded *loaded, int group, const int32_t *blocks, int n, size_t at, struct error *err) {
    struct moving m = {.loaded = loaded, .group = group, .blocks = blocks, .n = n, .span = span_of(loaded, group)};
    BUG_IF(!loaded->copies->window || at + (size_t)(m.n * m.span) > WINDOW_BYTES);
    m.row = loaded->copies->window + at, m.shows = true;
    return move(&m, err);
}

static void leave(struct loaded *loaded) {
    if (!loaded->copies)
        return;
    pthread_mutex_lock(&loaded->copies->lock);
    close_window(loaded);
    pthread_mutex_unlock(&loaded->copies->lock);
}

/* Under the lock. One is open at a time: the server behind a name that is new was started anew. */
static enum status open_window(struct loaded *loaded, const char *name, struct error *err) {
    static const char what[] = "the memory of the other server's device cannot be reached";
    struct handed_copies *c = loaded->copies;
    struct window_name w;
    if (c->opened && memcmp(c->opened_name, name, WINDOW_NAME) == 0)
        return OK;
    close_window(loaded);
    memcpy(&w, name, sizeof w);
    memcpy(c->opened_name, name, WINDOW_NAME);
    cudaError_t code = cudaSetDevice(loaded->device->index);
    if (code == cudaSuccess)
        code = cudaIpcOpenMemHandle((void **)&c->opened, w.handle, cudaIpcMemLazyEnablePeerAccess);
    if (code != cudaSuccess) {
        c->opened = NULL;
        return no_window(code, what, err);
    }
    size_t n_bytes = virtual_bytes_behind(c->opened);
    return n_bytes >= WINDOW_MEMORY ? OK : fail(err, ERR_UNSUPPORTED, "%s: it has %zu bytes", what, n_bytes);
}

/* ERR_UNSUPPORTED: what is open is not the window of the name it was opened by. Under the lock. */
static enum status check_number(const struct handed_copies *c, struct error *err) {
    struct window_name w;
    cudaError_t code =
        cudaMemcpyAsync(c->here[0], c->opened + WINDOW_BYTES, sizeof w.number, cudaMemcpyDeviceToHost, c->stream);
    if (code == cudaSuccess)
        code = cudaStreamSynchronize(c->stream);
    if (code != cudaSuccess)
        return no_window(code, "the number of the other server's window cannot be read", err);
    memcpy(&w, c->opened_name, sizeof w);
    return memcmp(c->here[0], &w.number, sizeof w.number) == 0
               ? OK
               : fail(err, ERR_UNSUPPORTED, "the memory of the other server's device is not the window that it names");
}

/* Under the lock. */
static enum status take_locked(struct moving *m, const char *name, size_t at, struct error *err) {
    TRY(open_window(m->loaded, name, err));
    TRY(check_number(m->loaded->copies, err));
    m->row = m->loaded->copies->opened + at;
    TRY(move_locked(m, err));
    return check_number(m->loaded->copies, err);
}

static enum status take(struct loaded *loaded, const char name[WINDOW_NAME], int group, const int32_t *blocks, int n,
                        size_t at, struct error *err) {
    struct moving m = {.loaded = loaded, .group = group, .blocks = blocks, .n = n, .span = span_of(loaded, group)};
    BUG_IF(at + (size_t)(m.n * m.span) > WINDOW_BYTES);
    pthread_mutex_lock(&loaded->copies->lock);
    enum status st = take_locked(&m, name, at, err);
    if (st != OK)
        close_window(loaded);
    pthread_mutex_unlock(&loaded->copies->lock);
    return st;
}

const struct backend_handover cuda_handover = {.bytes = handed_bytes,
                                               .prepare = prepare,
                                               .get = get,
                                               .put = put,
                                               .share = share,
                                               .show = show,
                                               .take = take,
                                               .leave = leave,
                                               .check = check};
