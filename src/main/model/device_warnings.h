/* device_warnings.h - tells whoever started an engine what its device has to warn of (core/backend.h,
 * device_report). */
#pragma once

#include <stdint.h>
#include <stdio.h>

struct gyre;
struct device_report;

/* Each of reports [n] that warns now and is not in *told, by its place, which is then added. */
void device_warnings_print(const struct device_report *reports, int n, uint32_t *told, FILE *out);
/* Of an engine that is about to be closed, on standard error. g NULL: nothing. */
void device_warnings_of(const struct gyre *g);
