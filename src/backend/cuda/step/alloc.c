/* alloc.c - what an executable takes of the device, counted before it is there and while it is allocated by the same
 * code. */
#include "backend/cuda/device/device.h"
#include "backend/cuda/step/compile.h"

enum { PLACE = 512 }; // what the device's allocator rounds to

enum status device_alloc(struct executable *exe, void *out, int64_t n_bytes, const char *what, struct error *err) {
    n_bytes = (MAX(n_bytes, 1) + PLACE - 1) / PLACE * PLACE;
    exe->step_bytes += n_bytes;
    return exe->only_sized ? OK : memory_take(exe->loaded->device, out, n_bytes, what, err);
}
