/* recurrent.h - delta_layer.c: the DeltaNet layers of a program. */
#pragma once

#include "backend/cuda/cuda.h"

/* Finds the layers that the fast kernels take whole (compiled_op.pair), once ops are compiled. Refuses states in
 * bfloat16 where plain kernels, which have float32 alone, would have one. */
enum status delta_layers_pair(struct executable *exe, struct error *err);
