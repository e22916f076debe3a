/* plan.h - plan.c: the plan's way to the device. */
#pragma once

#include "backend/cuda/cuda.h"

enum status plan_alloc(struct executable *exe, struct error *err);
void plan_free(struct executable *exe);
bool plan_has_states(const struct program *p);
/* What STATES reads of the plan on the device: a row a token, and the source. */
struct dstates plan_states(const struct executable *exe);
/* Of a program whose states go back, on the device: [sequences], recurrent/delta.h. */
const int32_t *plan_state_base(const struct executable *exe);
const int32_t *plan_state_kept(const struct executable *exe);
enum status cuda_states_from(struct executable *exe, int i, struct executable *from, int tap, struct error *err);
/* Writes the slot's plan, and what its rows ask for, to the slot and puts its way to the device on the stream. Without
 * a sample all logits will be written. */
enum status plan_send(struct executable *exe, struct step_slot *slot, struct error *err);
/* What the rows of a late step ask for, once the device has taken its plan. */
enum status plan_send_late_rows(struct executable *exe, struct step_slot *slot, struct error *err);
