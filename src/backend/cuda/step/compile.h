/* compile.h - a program made ready for steps up to a size. */
#pragma once

#include "backend/cuda/cuda.h"

enum status cuda_compile(struct loaded *loaded, struct bucket bucket, struct executable **out, struct error *err);
void cuda_free_executable(struct executable *exe); // NULL is fine

enum { LIBRARIES = 160 << 20 }; // modules that load and graphs that are instantiated later than the question is asked

/* Bytes that a step takes: all is compiled, and nothing allocated. */
enum status step_sized(struct loaded *loaded, struct bucket bucket, int64_t *n_bytes, struct error *err);

enum status cuda_cache_room(struct loaded *loaded, struct bucket bucket, int n, int block_size, const int *table_width,
                            double share, int64_t *out, struct error *err);

/* *(void **)out becomes memory of the device, unless the executable is only sized; either way it is counted. Whatever a
 * step needs is asked for here, before graphs are captured. */
enum status device_alloc(struct executable *exe, void *out, int64_t n_bytes, const char *what, struct error *err);
