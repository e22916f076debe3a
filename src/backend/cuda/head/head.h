/* head.h - the end of a program on the host side: lm_head.c, and argmax_filter.c, which leaves most of it out in greedy
 * steps. */
#pragma once

#include "backend/cuda/cuda.h"

/* The LINEAR whose rows are the logits, all of them, but for a SOFTCAP between it and SAMPLE, and that nobody else
 * reads; NULL: there is none. */
const struct op *head_of(const struct program *p);
void head_lives(const struct program *p, struct value *values); // what it reads lives until SOFTCAP's result is written
bool head_may_be_ours(const struct executable *exe);            // it has a head, in 16 bits or more
enum status head_alloc(struct executable *exe, struct error *err);        // what it leaves for SAMPLE
const struct compiled_op *compiled_lm_head(const struct executable *exe); // NULL: none
struct dlm_head dhead_of(const struct executable *exe, const struct compiled_op *c);
bool head_compiled(const struct executable *exe, const struct compiled_op *c,
                   struct dmat x);                        // whether lm_head.cu takes it; x: what it reads
bool head_does(const struct executable *exe, int n_rows); // whether it does, in a step of so many rows
enum status head_run(const struct executable *exe, const struct compiled_op *c, const struct launch *l, struct dmat x,
                     struct error *err);
struct dbests head_bests(const struct executable *exe, int n_rows);

/* Bytes for a copy of the program's head, once all weights have been counted; 0: it gets none. */
int64_t filter_room(struct loaded *loaded, const struct program *p);
enum status filter_check(struct error *err); // whether GYRE_ARGMAX_FILTER, if it is set, is a number
enum status filter_copy(struct loaded *loaded, struct error *err); // once they are there
enum status filter_alloc(struct executable *exe, struct error *err);
const int32_t *filter_done(const struct executable *exe,
                           int n_rows); // what says that a step needs nothing more; NULL: it is not tried
enum status filter_run(const struct executable *exe, const struct compiled_op *c, const struct launch *l, struct dmat x,
                       struct error *err);
enum status filter_again(const struct executable *exe,
                         struct error *err); // before a step: the copy anew, if steps have asked for it
