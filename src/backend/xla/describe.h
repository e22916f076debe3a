/* describe.h - what a plugin and its devices are, for people: gyre info --device xla. */
#pragma once

#include "base/buf.h"
#include "base/status.h"

/* A line each: the library, its versions, its devices with their memory. plugin: a path; NULL: that which is found. */
enum status xla_describe(const char *plugin, struct buf *out, struct error *err);
/* The same as a JSON object. */
enum status xla_describe_json(const char *plugin, struct buf *out, struct error *err);
