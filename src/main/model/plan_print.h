/* plan_print.h - what gyre plan says: tables for people, or one JSON object. */
#pragma once

#include "base/json/json.h"
#include "model/model.h"
#include "sizing/layouts.h"

/* A table for each batch, of the layouts that no other one beats there; or of all. */
void plan_print(const struct model *m, const struct sizing *s, const struct layout *all, int n, bool dominated_too);
/* take_replays: NULL, or an array that becomes "replays". */
void plan_print_json(const struct model *m, const struct sizing *s, const struct layout *all, int n,
                     json_t *take_replays);
