/* upload.c - weights on their way to the device, as fast as the link is.
 *
 * The weights are cut into pieces of whole rows of one part. Several threads take piece after piece: each copies (or,
 * where a format is not the device's, decodes) it from the checkpoint's map into pinned memory, sends it on a stream of
 * its own, and puts the kernel behind it that makes the element wanted; meanwhile it fills its other piece. One thread
 * copies some 8 GB/s out of the page cache, the link takes 50. A dummy's piece is made where it would have been sent
 * to, and goes on from there like any other.
 *
 * Eight threads with pieces of 4 MB sent 52 GB/s on an H200 out of the page cache, four threads 30, eight with pieces
 * of 16 MB 38. */
#include "backend/cuda/cuda.h"
#include "backend/cuda/device/device.h"
#include "backend/cuda/value.h"
#include "backend/cuda/weights/layout.h"
#include "backend/cuda/weights/place.h"
#include "backend/cuda/weights/quads.h"
#include "backend/cuda/weights/weights.h"

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

enum {
    PIECE_BYTES = 4 << 20,
    IN_FLIGHT = 2,
    MOST_THREADS = 8,
    BYTES_A_THREAD = 64 << 20,
    ALIGNMENT = 256,
    PROGRESS_MS = 5
};

struct piece {
    const struct placed *placed;
    const struct dweight *to;
    const struct weight_part *part;
    int64_t first;                    // row of the weight that is `to`'s first
    int64_t row, row_in_part, n_rows; // row: of the weight
};

struct upload {
    struct loaded *loaded;
    struct dplaced *counts; // [n_slots], on the device
    struct piece *pieces;
    size_t n_pieces, capacity, slot_bytes;
    pthread_mutex_t lock;
    size_t next;
    int64_t done, total; // bytes as stored
    int n_running;
    struct error err; // the first
};

static const float BIAS = 0.1f; // deviation of a dummy's biases: of 1 they would route all tokens alike

// ---- pieces -----------------------------------------------------------------------------------------------------

static void add_piece(struct upload *u, struct piece piece) {
    if (u->n_pieces == u->capacity) {
        u->capacity = MAX(u->capacity * 2, 1024);
        u->pieces = xrealloc(u->pieces, u->capacity, sizeof *u->pieces);
    }
    u->pieces[u->n_pieces++] = piece;
    int64_t n_bytes = piece.n_rows * layout_row_bytes(piece.part, piece.to->element, piece.to->in);
    u->total += n_bytes;
    u->slot_bytes = MAX(u->slot_bytes, (size_t)n_bytes + ALIGNMENT);
}

static enum status cut(struct upload *u, const struct placed *placed, const struct dweight *to, struct error *err) {
    const struct weight *w = placed->weight;
    int64_t row = 0, first = 0;
    int n_runs = 0;
    for (int i = 0; i < w->n_parts; row += w->parts[i++].n_rows) {
        const struct weight_part *part = &w->parts[i];
        if (row == first + to->out && n_runs < placed->n_rest && to->element == ELEMENT_QUADS)
            first = row, to = &placed->rest[n_runs++];
        int64_t row_bytes = layout_row_bytes(part, to->element, w->in), most = (PIECE_BYTES - ALIGNMENT) / row_bytes;
        if (most == 0)
            return fail(err, ERR_UNSUPPORTED, "%s: rows of %lld bytes are too long", w->name, (long long)row_bytes);
        int64_t of_expert = placed_expert(placed).rows;
        for (int64_t r = 0, n; r < part->n_rows; r += n) {
            n = MIN(most, part->n_rows - r);
            n = of_expert ? MIN(n, of_expert - (row + r) % of_expert) : n;
            add_piece(u, (struct piece){placed, to, part, first, row + r, r, n});
        }
    }
    return OK;
}

static enum status cut_all(struct upload *u, struct error *err) {
    for (int i = 0; i < u->loaded->n_slots; i++) {
        const struct placed *p = &u->loaded->placed[i];
        if (p->matrix.at)
            TRY(cut(u, p, &p->matrix, err));
        if (p->floats.at)
            TRY(cut(u, p, &p->floats, err));
    }
    return OK;
}

// ---- a thread ---------------------------------------------------------------------------------------------------

struct slot {
    char *pinned, *staged; // [slot_bytes] on either side
    cudaEvent_t free;      // when what was last sent from it has arrived
};

struct worker {
    struct upload *u;
    cudaStream_t stream;
    struct slot slots[IN_FLIGHT];
};

static int64_t scales_offset(const struct piece *p) { // behind the rows, in the piece
    int64_t n = layout_elements_bytes(p->part, p->to->element, p->to->in, p->n_rows);
    return (n + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

static void fill_pinned(const struct piece *p, char *pinned) {
    layout_fill(&(struct layout_rows){p->placed->weight, p->part, p->to->element, p->placed->column_order, p->row,
                                      p->row_in_part, p->n_rows, pinned, scales_offset(p)});
}

/* Rows that need no kernel: their element is the one wanted, but for e4m3, whose sizes are looked at. */
static bool goes_straight(const struct piece *p) {
    enum element e = p->to->element;
    return layout_sent(p->part, e) == e && e != ELEMENT_E4M3 && !is_in_blocks(e) && e != ELEMENT_QUADS;
}

static cudaError_t send_straight(const struct worker *w, const struct slot *s, const struct piece *p) {
    int64_t row_bytes = p->to->in * element_bytes(p->to->element);
    char *to = (char *)(uintptr_t)p->to->at + p->row * row_bytes;
    return cudaMemcpyAsync(to, s->pinned, (size_t)(p->n_rows * row_bytes), cudaMemcpyHostToDevice, w->stream);
}

static void make_dummy(const struct worker *w, const struct slot *s, const struct piece *p, enum element e) {
    bool vector = p->placed->weight->in == 1, bias = vector && strstr(p->placed->weight->name, "bias");
    struct ddummy d = {1 + (uint64_t)p->placed->number, bias ? BIAS : 1 / sqrtf((float)p->placed->weight->in),
                       vector && !bias};
    launch_fill_dummy(w->stream, &d, p->row * p->to->in, p->n_rows * p->to->in, s->staged, e);
}

/* The expert's matrix that a piece is of, and which of its rows comes first; of other matrices the run of rows. */
static struct dweight matrix_of(const struct piece *p, int64_t *first) {
    struct dexpert of = placed_expert(p->placed);
    struct dweight to = *p->to;
    *first = p->row - p->first;
    if (of.rows == 0)
        return to;
    int64_t expert = p->row / of.rows;
    to.at = (const char *)to.at + expert * of.bytes, to.scale += expert * of.rows, to.out = of.rows;
    *first -= expert * of.rows;
    return to;
}

static cudaError_t send_quads(const struct worker *w, const struct slot *s, const struct piece *p) {
    struct dplaced *counts = &w->u->counts[p->placed - w->u->loaded->placed];
    int64_t in = p->to->in, first;
    struct dweight to = matrix_of(p, &first);
    enum element e = layout_sent(p->part, ELEMENT_QUADS);
    if (e != ELEMENT_QUADS) {
        struct dstored numbers = {.at = s->staged, .in = in, .element = e};
        cudaError_t code = cudaSuccess;
        if (p->part->data)
            code = cudaMemcpyAsync(s->staged, s->pinned, (size_t)(p->n_rows * in * element_bytes(e)),
                                   cudaMemcpyHostToDevice, w->stream);
        else
            make_dummy(w, s, p, e);
        if (code != cudaSuccess)
            return code;
        launch_quantise_quads(w->stream, &numbers, p->n_rows, to, first, counts);
        return cudaGetLastError();
    }
    bool blocks = p->part->format->block_cols != 0; // of GGUF
    int64_t n_bytes = blocks ? layout_elements_bytes(p->part, ELEMENT_QUADS, in, p->n_rows)
                             : scales_offset(p) + p->n_rows * quads_scales_bytes_a_row(p->part, in);
    struct dstored_quads x = quads_stored(p->part, p->to->quads, in, p->n_rows, s->staged, scales_offset(p));
    cudaError_t code = cudaMemcpyAsync(s->staged, s->pinned, (size_t)n_bytes, cudaMemcpyHostToDevice, w->stream);
    if (code != cudaSuccess)
        return code;
    struct dstored_gguf rows = {(const uint8_t *)s->staged, in, n_bytes / p->n_rows};
    if (blocks)
        launch_place_gguf(w->stream, &rows, p->n_rows, to, first, counts);
    else
        launch_place_quads(w->stream, &x, p->n_rows, to, first, counts);
    return cudaGetLastError();
}

static cudaError_t send_to_kernel(const struct worker *w, const struct slot *s, const struct piece *p) {
    enum element placed = p->to->element, e = layout_sent(p->part, placed);
    int64_t n_scales = layout_scales_a_row(p->part, placed, p->to->in),
            scale_bytes = is_in_blocks(e) ? 1 : (int64_t)sizeof(float),
            n_bytes = layout_elements_bytes(p->part, placed, p->to->in, p->n_rows);
    if (n_scales > 0)
        n_bytes = scales_offset(p) + p->n_rows * n_scales * scale_bytes;
    if (p->part->data) {
        cudaError_t code = cudaMemcpyAsync(s->staged, s->pinned, (size_t)n_bytes, cudaMemcpyHostToDevice, w->stream);
        if (code != cudaSuccess)
            return code;
    } else {
        make_dummy(w, s, p, e);
    }
    const void *scales = n_scales > 0 ? s->staged + scales_offset(p) : NULL;
    struct dplaced *counts = &w->u->counts[p->placed - w->u->loaded->placed];
    struct dstored x = {s->staged,
                        p->to->in,
                        e,
                        is_in_blocks(e) ? NULL : scales,
                        n_scales,
                        p->part->scale.block_cols,
                        is_in_blocks(e) ? scales : NULL};
    if (is_in_blocks(placed))
        launch_place_blocks(w->stream, &x, p->n_rows, *p->to, p->placed->blocks, p->row, counts);
    else
        launch_place_rows(w->stream, &x, p->n_rows, *p->to, p->row, counts);
    return cudaGetLastError();
}

static cudaError_t send(const struct worker *w, struct slot *s, const struct piece *p) {
    cudaError_t code = cudaEventSynchronize(s->free);
    if (code != cudaSuccess)
        return code;
    if (p->part->data)
        fill_pinned(p, s->pinned);
    if (p->to->element == ELEMENT_QUADS)
        code = send_quads(w, s, p);
    else
        code = p->part->data && goes_straight(p) ? send_straight(w, s, p) : send_to_kernel(w, s, p);
    return code == cudaSuccess ? cudaEventRecord(s->free, w->stream) : code;
}

static cudaError_t slot_open(struct slot *s, size_t n_bytes, const char **lacks) {
    *lacks = "pinned memory of the host's for weights on their way";
    cudaError_t code = cudaMallocHost((void **)&s->pinned, n_bytes);
    if (code != cudaSuccess)
        return code;
    *lacks = "memory for weights on their way";
    code = cudaMalloc((void **)&s->staged, n_bytes);
    return code == cudaSuccess ? cudaEventCreateWithFlags(&s->free, cudaEventDisableTiming) : code;
}

static cudaError_t worker_open(struct worker *w, const char **lacks) {
    *lacks = "a stream for weights on their way";
    cudaError_t code = cudaSetDevice(w->u->loaded->device->index);
    if (code == cudaSuccess)
        code = cudaStreamCreateWithFlags(&w->stream, cudaStreamNonBlocking);
    for (int i = 0; code == cudaSuccess && i < IN_FLIGHT; i++)
        code = slot_open(&w->slots[i], w->u->slot_bytes, lacks);
    return code;
}

static void worker_close(struct worker *w) {
    for (int i = 0; i < IN_FLIGHT; i++) {
        cudaFreeHost(w->slots[i].pinned);
        cudaFree(w->slots[i].staged);
        if (w->slots[i].free)
            cudaEventDestroy(w->slots[i].free);
    }
    if (w->stream)
        cudaStreamDestroy(w->stream);
}

/* NULL: there is none left, or a thread has failed. */
static const struct piece *next_piece(struct upload *u, const struct piece *done) {
    pthread_mutex_lock(&u->lock);
    if (done)
        u->done += done->n_rows * layout_row_bytes(done->part, done->to->element, done->to->in);
    const struct piece *p = u->err.status == OK && u->next < u->n_pieces ? &u->pieces[u->next++] : NULL;
    pthread_mutex_unlock(&u->lock);
    return p;
}

static void worker_failed(struct upload *u, cudaError_t code, const char *doing) {
    pthread_mutex_lock(&u->lock);
    if (u->err.status == OK)
        device_fault(u->loaded->device, &u->err, code, "%s", doing);
    pthread_mutex_unlock(&u->lock);
}

static void piece_failed(struct upload *u, cudaError_t code, const struct piece *p) {
    char doing[280];
    snprintf(doing, sizeof doing, "placing %.160s [%lld, %lld], %lld rows from %lld on", p->placed->weight->name,
             (long long)p->placed->weight->out, (long long)p->placed->weight->in, (long long)p->n_rows,
             (long long)p->row);
    worker_failed(u, code, doing);
}

static void *work(void *context) {
    struct worker *w = context;
    struct upload *u = w->u;
    const char *lacks;
    cudaError_t code = worker_open(w, &lacks);
    if (code != cudaSuccess)
        worker_failed(u, code, lacks);
    const struct piece *p = code == cudaSuccess ? next_piece(u, NULL) : NULL;
    for (int i = 0; p; i = (i + 1) % IN_FLIGHT, p = next_piece(u, p))
        if ((code = send(w, &w->slots[i], p)) != cudaSuccess)
            piece_failed(u, code, p);
    if (w->stream && (code = cudaStreamSynchronize(w->stream)) != cudaSuccess)
        worker_failed(u, code, "placing weights");
    worker_close(w);
    pthread_mutex_lock(&u->lock);
    u->n_running--;
    pthread_mutex_unlock(&u->lock);
    return NULL;
}

// ---- all of it --------------------------------------------------------------------------------------------------

/* Tells how far it is until nothing runs any more. */
static void watch(struct upload *u) {
    for (bool running = true; running;) {
        nanosleep(&(struct timespec){.tv_nsec = PROGRESS_MS * 1000000L}, NULL);
        pthread_mutex_lock(&u->lock);
        running = u->n_running > 0;
        int64_t done = u->done;
        pthread_mutex_unlock(&u->lock);
        load_progress_step(&u->loaded->progress, done, u->total);
    }
}

static int threads_wanted(const struct upload *u) {
    int64_t n = MIN(MIN((int64_t)sysconf(_SC_NPROCESSORS_ONLN), (int64_t)u->n_pieces), 1 + u->total / BYTES_A_THREAD);
    return (int)MIN(MAX(n, 1), MOST_THREADS);
}

static void run_workers(struct upload *u) {
    struct worker workers[MOST_THREADS] = {0};
    pthread_t threads[MOST_THREADS];
    int n = 0, wanted = threads_wanted(u);
    u->n_running = wanted;
    for (; n < wanted; n++) {
        workers[n].u = u;
        if (pthread_create(&threads[n], NULL, work, &workers[n]) != 0)
            break;
    }
    pthread_mutex_lock(&u->lock);
    u->n_running -= wanted - n; // of those that could not be started
    if (n == 0)
        fail(&u->err, ERR_MEMORY, "no thread can be started to load weights");
    pthread_mutex_unlock(&u->lock);
    watch(u);
    for (int i = 0; i < n; i++)
        pthread_join(threads[i], NULL);
}

enum status upload_weights(struct loaded *loaded, struct dplaced *counts, struct error *err) {
    struct upload u = {.loaded = loaded, .counts = counts};
    enum status st = cut_all(&u, err);
    if (st == OK) {
        pthread_mutex_init(&u.lock, NULL);
        run_workers(&u);
        pthread_mutex_destroy(&u.lock);
        st = u.err.status;
        if (st != OK)
            *err = u.err;
    }
    free(u.pieces);
    return st;
}
