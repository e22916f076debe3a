/* backend.h - the XLA backend for other rooms: its table, and what a plugin and its devices are, for people. */
#pragma once

#include "base/buf.h"
#include "core/backend.h"

extern const struct backend_ops backend_xla;

/* A line each: the library, its versions, its devices with their memory. plugin: a path; NULL: that which is found. */
enum status xla_describe(const char *plugin, struct buf *out, struct error *err);
/* The same as a JSON object. */
enum status xla_describe_json(const char *plugin, struct buf *out, struct error *err);
