/* recurrent.h - delta_layer.c: the DeltaNet layers of a program. */
#pragma once

#include "backend/cuda/cuda.h"

/* Finds the layers that the fast kernels take whole (compiled_op.pair), once ops are compiled. */
void delta_layers_pair(struct executable *exe);
