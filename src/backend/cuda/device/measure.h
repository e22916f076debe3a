/* measure.h - what the card can do at best, measured when somebody asks (backend_probes.measure). */
#pragma once

#include "backend/cuda/value.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Reads n_bytes once; sink [1]. */
void launch_read(cudaStream_t stream, int n_processors, const void *at, size_t n_bytes, uint32_t *sink);

/* Random numbers of that element: sizes near 1, both signs. Never zeros, which take less power and so run faster. */
void launch_fill(cudaStream_t stream, int n_processors, void *at, size_t n_bytes, enum element e);

/* What launchers are told of the thread's device from then on (ptx/card.cuh), of a card that is not there: before they
 * ask. */
void card_pretend(int n_multiprocessors, int capability);

#ifdef __cplusplus
}
#endif
