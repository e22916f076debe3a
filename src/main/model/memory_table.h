/* memory_table.h - what an engine takes of the memory, as a table to read. */
#pragma once

#include "gyre.h"

#include <stdio.h>

/* Also says so when the context is shorter than the model's for want of memory and when no prefixes can be shared,
 * and what the device warns of. */
void memory_table_print(const struct gyre *g, FILE *out);
