/* public.h - what the files of this room share: errors on their way out, and buffers that become the caller's. */
#pragma once

#include "base/buf.h"
#include "gyre_text.h"
#include "text/tokenizer.h"

/* Writes a sentence to the caller, who may not want it, and returns its status. */
int public_report(struct gyre_error *out, const struct error *err);

/* Hands over what was collected; what is empty becomes "". */
struct gyre_string public_string(struct buf *take_text);

/* Of a gyre_text, for streams. */
const struct tokenizer *public_tokenizer(const struct gyre_text *t);

/* The grammar, which it keeps for the next time, and its tokens: two references; and how t splits texts. */
struct grammar_source;
enum status public_compile(struct gyre_text *t, const struct grammar_source *source, struct gyre_grammar *out,
                           struct error *err);

/* The options of this version, checked; NULL: all zero. */
enum status public_stream_options(const struct gyre_stream_options *from, struct gyre_stream_options *out,
                                  struct error *err);
