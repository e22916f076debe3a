/* handover.h - blocks of caches to and from bytes of the host that another engine gives or takes, beside steps
 * (core/backend_handover.h). Of a block:
 *
 *     layer 0's part | layer 1's | ... | of a state that can go back: int64_t, tokens that it has
 *
 * A part is what a block of a layer takes, without what pads it to pieces of memory. */
#pragma once

#include "backend/cuda/cuda.h"

extern const struct backend_handover cuda_handover;

/* Behind what clears memory on the device's stream, which copies then wait for. */
enum status handover_note_cleared(struct loaded *loaded, struct error *err);
void handover_release(struct loaded *loaded);
