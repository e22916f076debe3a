/* ebnf.h - rules as EBNF has them, while a front end (GBNF, Lark) reads them; then the intermediate form.
 *
 * Rules that are regular and small become terminals where they are used, so that a grammar written character by
 * character is matched as fast as one with a lexer; it changes no language. Bodies may name rules that come later. */
#pragma once

#include "base/arena.h"
#include "grammar/front.h"

typedef uint32_t ebnf_id;
struct ebnf;

enum { EBNF_EMPTY = 0 };

struct ebnf *ebnf_open(struct ir *ir);
void ebnf_free(struct ebnf *e);

ebnf_id ebnf_rx(struct ebnf *e, rx_id rx);
ebnf_id ebnf_ir(struct ebnf *e, ir_id node); // what is no expression: special tokens, another grammar
ebnf_id ebnf_seq(struct ebnf *e, const ebnf_id *parts, size_t n);
ebnf_id ebnf_alt(struct ebnf *e, const ebnf_id *parts, size_t n);
ebnf_id ebnf_repeat(struct ebnf *e, ebnf_id a, int32_t min, int32_t max);
ebnf_id ebnf_ref(struct ebnf *e, struct str rule);

/* False where the rule has a body already. */
bool ebnf_define(struct ebnf *e, struct str rule, ebnf_id body);
bool ebnf_defined(struct ebnf *e, struct str rule);

/* The text of a rule; ERR_FORMAT if it, or one that it needs, has no body. */
enum status ebnf_finish(struct ebnf *e, struct str root, ir_id *out, struct error *err);
