/* forced_split.h - the tokens that a tokenizer would have made of a text that must come, behind tokens that are there.
 *
 * What they are depends on what stands before, which is there as tokens already, and on what comes behind, which nobody
 * knows. So the text is split together with the last tokens before it, and with several things that may follow: only
 * the tokens that come about each time are told. The last ones, which could be joined with what follows, are left to
 * the model. */
#pragma once

#include "text/tokenizer.h"

/* Writes up to max tokens, which together spell the beginning of `text`; 0 where the tokenizer would not put a boundary
 * between the n_before tokens and the text, or does not give back what it reads. */
int tokenizer_split_behind(const struct tokenizer *tok, struct encoder *enc, const int32_t *before, int n_before,
                           struct str text, int32_t *out, int max);
