/* model_pull.h - a model of the hub in place of a folder, and how a person sees one come. */
#pragma once

#include "base/arena.h"
#include "hub/hub_pull.h"

/* Brings the model, with bars on stderr, and writes to path what to open. Ctrl-C stops; what came is kept. */
enum status model_pull(const struct hub_name *name, struct hub_report *report, char path[FOLDER_PATH_BYTES],
                       struct error *err);

/* Where *model is no path but a name of the hub, sets it to what to open: from the cache, or, if may_pull, from the
 * hub. The text is in memory. Anything else stays as it is. ERR_IO says how to get a model that is not here. */
enum status model_name_resolve(const char **model, bool may_pull, struct arena *memory, struct error *err);
