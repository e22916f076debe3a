/* plan_rows.h - plan_rows.c: what a plan says of its rows, in the slot. */
#pragma once

#include "backend/cuda/cuda.h"

void plan_rows_write_late(struct executable *exe, struct step_slot *slot); // of which anything may be asked later
enum status plan_rows_write(struct executable *exe, struct step_slot *slot, struct error *err); // by slot->sample
bool plan_lists_fit(const struct step_slot *slot); // on the device: there is room for them
