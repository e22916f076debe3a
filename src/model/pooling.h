/* pooling.h - how a model's folder says that a text becomes one vector: sentence-transformers' modules.json and the
 * config.json of its pooling module. */
#pragma once

#include "base/status.h"
#include "gyre.h"

/* What the folder says; the last token's state, normalised, where it says nothing. ERR_UNSUPPORTED, naming the file,
 * for ways that gyre_pooling does not have (CLS, max, weighted means) and for modules that are not pooling and
 * normalising. */
enum status pooling_read(const char *folder, enum gyre_pooling *pooling, bool *normalize, struct error *err);
