/* weights.h - a program's weights on a device. */
#pragma once

#include "backend/xla/xla.h"

/* Lists the program's weights in the order of arguments, and what they will be: matrices of the type of products, or
 * int8 with a scale a row (l->has_int8_weights); what ops read whole in float32. */
void weights_list(struct loaded *l);

/* Places them. Formats that the device does not multiply by are made wide on the way. */
enum status weights_place(struct loaded *l, bool is_dummy, const struct load_progress *progress, struct error *err);
/* In place of those without data (load_options.dummy_weights). */
enum status dummies_make(struct loaded *l, struct error *err);
void weights_release(struct loaded *l);
int64_t weights_bytes(const struct loaded *l); // on the device
int64_t weights_bytes_of(const struct loaded *l, const struct weight *w);
