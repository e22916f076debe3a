/* calibration_text.h - a text that a model is looked at with, as tokens. */
#pragma once

#include "base/status.h"
#include "text/token_ids.h"

/* Of a file, without special tokens; - is standard input. */
enum status calibration_text(const char *model, const char *path, struct token_ids *out, struct error *err);
