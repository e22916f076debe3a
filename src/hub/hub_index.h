/* hub_index.h - model.safetensors.index.json, which says what files a model's weights are in. It is not trusted. */
#pragma once

#include "base/json/json.h"
#include "base/status.h"

/* The files that the index at `path` names, as keys of an object that is the caller's, also where this fails. where:
 * what it is called in errors. */
enum status hub_index_read(const char *path, const char *where, json_t **shards, struct error *err);
