/* program_internal.h - what program.c and record.c share. */
#pragma once

#include "core/program.h"

/* Room for one more element in an array of n that grows by doubling. */
void *program_grown(void *array, int n, int *cap, size_t size);
