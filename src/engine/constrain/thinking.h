/* thinking.h - a bound of what a model thinks: once it has so many tokens, the one that ends it must come (thinking.c).
 * Of engine.h's structs. */
#pragma once

#include "base/status.h"

#include <stdbool.h>
#include <stdint.h>

struct request;
struct sample_params;

struct thinking {
    bool is_bound;
    const int32_t *begin; // [n_begin]
    int n_begin;
    int32_t end;
    int32_t left;   // tokens that may still be thought, of those that are not begun
    int32_t begun;  // where the first token of what is thought now stands; -1: it thinks nothing
    int32_t n_seen; // tokens that were looked at
};

/* Of what was asked for, whose arrays are copied. */
enum status engine_thinking_init(struct request *r, int32_t n_vocab, struct error *err);

/* Whether the row may have to end it, and that is not known before the step in flight is collected; changes a row that
 * has to; whether one of the next n tokens may have to. */
bool engine_thinking_is_late(struct request *r, int32_t position);
void engine_end_thinking(struct request *r, int32_t position, struct sample_params *p);
bool engine_thinking_may_end(const struct request *r, int n);
