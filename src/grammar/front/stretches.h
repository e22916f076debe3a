/* stretches.h - how many stretches of free text an expression has: repeats of large classes of characters, as the
 * inside of a string. Within one, a mask costs a walk through most of the vocabulary once for each state, so a terminal
 * has one at most: then the states of its like are shared. */
#pragma once

#include "grammar/rx.h"

uint32_t stretches_count(struct rx_pool *pool, rx_id rx);
bool stretches_good_terminal(struct rx_pool *pool, rx_id rx); // one stretch at most
