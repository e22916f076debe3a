/* placed.c - the table of weights on the device, by the weight's address. */
#include "backend/cuda/cuda.h"
#include "backend/cuda/weights/weights.h"

#include <string.h>

size_t placed_slot(const struct loaded *loaded, const struct weight *w) {
    size_t mask = (size_t)loaded->n_slots - 1, i = ((uintptr_t)w >> 4) * 0x9E3779B97F4A7C15u >> 20 & mask;
    while (loaded->placed[i].weight && loaded->placed[i].weight != w)
        i = (i + 1) & mask;
    return i;
}

struct placed *placed_on_device(const struct loaded *loaded, const struct weight *w) {
    struct placed *found = &loaded->placed[placed_slot(loaded, w)];
    BUG_IF(found->weight != w);
    return found;
}

const struct placed *weight_on_device(const struct loaded *loaded, const struct weight *w) {
    return w ? placed_on_device(loaded, w) : NULL;
}

bool part_is_plain(const struct weight_part *part) { return strcmp(part->format->name, qformat_plain.name) == 0; }
