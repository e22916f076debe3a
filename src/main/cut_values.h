/* cut_values.h - tells whoever started an engine that float16 had to cut values, which its answers may show. */
#pragma once

#include <stdint.h>
#include <stdio.h>

struct gyre;

/* n_rows, n_steps: device_counts.n_rows_cut and n_watched of core/backend.h. Nothing if n_rows is 0. */
void cut_values_tell(int64_t n_rows, int64_t n_steps, FILE *out);
/* Of an engine that is about to be closed, on standard error. g NULL: nothing. */
void cut_values_tell_of(const struct gyre *g);
