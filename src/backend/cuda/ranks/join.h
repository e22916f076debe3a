/* join.h - programs of ranks of one model, each on a card, made to meet: backend_ops.join. See meeting.h. */
#pragma once

#include "backend/cuda/cuda.h"
#include "backend/cuda/ranks/meeting.h"

/* Opens the cards' memory to each other, and gives each rank its box: in the host's memory where two cards do not reach
 * each other's, or the device option peer-access asks for it. Ranks on one card (device option share-cards) meet
 * there. */
enum status cuda_join(struct loaded *const *ranks, int n, struct error *err);
void ranks_leave(struct loaded *loaded); // gives back what it took of this one

/* That they meet in the host's memory, if they do. */
bool ranks_slow_way(const struct loaded *loaded, char *out, size_t n);

const struct dmeeting *ranks_meeting(const struct loaded *loaded);
/* Whether a program of ranks has been joined, and has no op that needs it and is not there yet. */
enum status ranks_check_joined(const struct loaded *loaded, struct error *err);
/* Whether a rank has waited for another in vain: the device's fault, from then on. */
enum status ranks_check(const struct loaded *loaded, struct error *err);

/* Whether ranks tell each other the largest logits of a step of so many rows, in executable.bests. */
bool ranks_have_bests(const struct executable *exe, int n_rows);
