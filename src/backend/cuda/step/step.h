/* step.h - a step: started and collected; see step.c. */
#pragma once

#include "backend/cuda/cuda.h"

enum status step_run(struct executable *exe, const struct batch_plan *plan, const struct sample_params *sample,
                     struct error *err);
enum status step_draw(struct executable *exe, const struct sample_params *sample, struct error *err);
enum status step_collect(struct executable *exe, struct sample_result *results, struct error *err);
const struct step_slot *step_collected(const struct executable *exe); // the one collected last

bool watch_begins(struct loaded *loaded); // whether the step that is about to be launched, no graph, is looked at
