/* draft_kind.h - what a draft is, before it is opened. */
#pragma once

#include <stdbool.h>

/* Whether draft_open would take it for a model of its own, and no head of the target. method and path as in struct
 * draft_source; false too if the folder cannot be read: draft_open says why. */
bool draft_is_model(const char *method, const char *path);
