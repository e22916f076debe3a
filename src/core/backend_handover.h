/* backend_handover.h - a cache's blocks to and from another engine: backend_ops.handover.
 *
 * What a block of a group holds in all its layers, or a slot of a state group, as bytes of the host that mean the same
 * to every device which loaded the same program with the same options. */
#pragma once

#include "core/backend_types.h"

struct loaded;

enum {
    WINDOW_NAME = 72, // 64 by which the system finds it, and its own number, which names no other
    WINDOW_MEMORY = 256 << 20,
    WINDOW_BYTES = WINDOW_MEMORY - 4096, // for blocks; behind them the number again
};

struct backend_handover {
    int64_t (*bytes)(const struct loaded *l, int group); // of one; once there is a cache

    /* Memory for copies, of bounded size and kept; between steps, before the first of them. ERR_MEMORY. NULL: they need
     * none. */
    enum status (*prepare)(struct loaded *l, struct error *err);

    /* Blocks [n] of a group, to and from places that lie `stride` bytes apart. Any thread, beside steps and beside each
     * other; back when it is done. No step that is in flight or is started meanwhile writes these blocks, or reads
     * those that are put. What fails fails here, and is no fault of the device. */
    enum status (*get)(struct loaded *l, int group, const int32_t *blocks, int n, void *out, size_t stride,
                       struct error *err);
    enum status (*put)(struct loaded *l, int group, const int32_t *blocks, int n, const void *in, size_t stride,
                       struct error *err);

    /* Windows: memory of the device which another process of this host finds by a name, so that blocks go from device
     * to device. share makes this device's, once, and says its name: its number is drawn then, and take looks for it
     * before and after it copies, as memory of a process that is gone may be found by what names another's now. show
     * copies blocks [n] of a group that is none of states to its byte `at` on, one behind the other; take, from the
     * window of that name. Any thread, beside steps, as get and put. ERR_UNSUPPORTED of share and take: there is none,
     * or it cannot be reached from here, or is another's by now, or smaller. All NULL: there are none. */
    enum status (*share)(struct loaded *l, char name[WINDOW_NAME], struct error *err);
    enum status (*show)(struct loaded *l, int group, const int32_t *blocks, int n, size_t at, struct error *err);
    enum status (*take)(struct loaded *l, const char name[WINDOW_NAME], int group, const int32_t *blocks, int n,
                        size_t at, struct error *err);
    /* Any thread: keeps no window of others open, whose process may be gone. NULL: none is kept. */
    void (*leave)(struct loaded *l);

    /* ERR_FORMAT: the bytes that another engine gave as the state behind n_tokens, of a state group, say of themselves
     * what cannot be; put is not called with them. NULL: they say nothing. */
    enum status (*check)(const struct loaded *l, int group, int32_t n_tokens, const void *in, struct error *err);
};
