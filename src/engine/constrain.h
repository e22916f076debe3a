/* constrain.h - grammars in the step (constrain.c), of engine.h's structs. */
#pragma once

#include "base/status.h"

#include <stdbool.h>
#include <stdint.h>

struct gyre;
struct request;
struct sample_params;

/* Before a request with one is queued; whether a helper works for it, so that it may
 * not be freed; whether what a row may give is not known before the step in flight is collected; the row's mask, for
 * which it waits until then (-1: however long it takes), or false; the request has a token more, and does not end; all
 * that have one were told so. */
enum status engine_constrain_begin(struct gyre *g, struct error *err);
bool engine_is_constrained(const struct gyre *g, const struct request *r);
bool engine_mask_is_late(const struct request *r, int32_t position);
bool engine_mask_row(struct gyre *g, const struct request *r, int32_t position, int64_t until_us,
                     struct sample_params *p);
void engine_constrain_next(struct gyre *g, struct request *r);
bool engine_may_constrain_guesses(const struct gyre *g, const struct request *r); // behind a grammar: now
void engine_constrain_guesses(struct gyre *g, struct request *r, int n);          // they are in the sequence
void engine_constrain_go(struct gyre *g);

/* Who waits for a mask that takes long is in no step meanwhile, so that others need not wait. Before a step is planned;
 * until when the rows of a late one are waited for; a row of it whose mask is not there: it is void; who ends; while
 * nothing else is left to do, waits for one. */
void engine_hold_slow(struct gyre *g);
int64_t engine_patience_until_us(const struct gyre *g);
void engine_hold_row(struct gyre *g, struct request *r);
void engine_hold_no_more(struct gyre *g, struct request *r);
void engine_await_held(struct gyre *g);
