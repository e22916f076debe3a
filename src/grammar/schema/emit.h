/* emit.h - what the files that emit (emit.c, emit_array.c, emit_object.c) share. */
#pragma once

#include "grammar/schema/reader.h"

ir_id emit_value(struct reader *r, node_id id); // a text of a value of the node
ir_id emit_array(struct reader *r, const struct array_form *f);
ir_id emit_object(struct reader *r, const struct object_form *f);
ir_id emit_between(struct reader *r, const char *open, ir_id body, const char *close);
ir_id emit_quoted(struct reader *r, rx_id text); // a JSON string that says a text of the language
rx_id emit_quoted_rx(struct reader *r, rx_id text);
rx_id emit_quoted_one_way(struct reader *r, rx_id text);   // spelled so that equal texts are equal bytes
rx_id emit_words(struct reader *r, const struct forms *f); // null, false, true
