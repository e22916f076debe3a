/* plan.h - plan.c: the plan's way to the device. */
#pragma once

#include "backend/cuda/cuda.h"

enum status plan_alloc(struct executable *exe, struct error *err);
void plan_free(struct executable *exe);
/* Writes the slot's plan, and what its rows ask for, to the slot and puts its way to the device on the stream. Without
 * a sample all logits will be written. */
enum status plan_send(struct executable *exe, struct step_slot *slot, struct error *err);
/* What the rows of a late step ask for, once the device has taken its plan. */
enum status plan_send_rows(struct executable *exe, struct step_slot *slot, struct error *err);
