/* ir.h - the intermediate form that front ends (schema, regex, GBNF, Lark, tags) make of a grammar.
 *
 * A node is a number in an arena: terminals (regular expressions, rx.h), sequences, alternatives, repeats, rules that
 * may recurse, and the members of a JSON object. Matching has no lexer that runs first: a text is in the language if
 * there is any way to cut it into terminals, so overlapping terminals are right, and where one ends never matters.
 *
 *     struct rx_pool *rx = ir_rx(ir);
 *     ir_id value = ir_rule(ir, "value");
 *     ir_define(ir, value, ir_alt(ir, ir_terminal(ir, number), ir_seq_of(ir, (ir_id[]){open, value, close}, 3)));
 *
 * Calls do not fail one by one: what a limit forbids makes the ir failed, and ir_check says so once at the end.
 * How fine terminals are cut matters for speed alone: a mask is kept for each state of each terminal, for all grammars
 * with the same terminal. So a JSON string is one terminal, and not one with what stands behind it. */
#pragma once

#include "base/status.h"
#include "base/str.h"
#include "grammar/rx.h"

typedef uint32_t ir_id;
struct ir;

enum { IR_NEVER = 0, IR_EMPTY = 1 }; // no text; the empty text
enum { IR_NO_MAX = -1 };

struct ir *ir_open(uint32_t max_nodes); // of ir and rx, each
void ir_free(struct ir *ir);            // NULL is fine
struct rx_pool *ir_rx(struct ir *ir);
void ir_allow_time(struct ir *ir, int64_t us); // processor time from now on, behind which building fails

/* OK, or what has failed in ir or rx: a limit, or what ir_fail said. */
enum status ir_check(const struct ir *ir, struct error *err);

ir_id ir_terminal(struct ir *ir, rx_id rx); // of an rx that is nullable: it may be left out
ir_id ir_bytes(struct ir *ir, struct str literal);
ir_id ir_class(struct ir *ir, const struct code_range *ranges, size_t n);
ir_id ir_seq(struct ir *ir, ir_id a, ir_id b);
ir_id ir_seq_of(struct ir *ir, const ir_id *parts, size_t n);
ir_id ir_alt(struct ir *ir, ir_id a, ir_id b);
ir_id ir_alt_of(struct ir *ir, const ir_id *parts, size_t n);
ir_id ir_repeat(struct ir *ir, ir_id a, int32_t min, int32_t max); // a counter where it is large, not copies
ir_id ir_optional(struct ir *ir, ir_id a);

/* A rule, to be defined once later; it may be used before, within itself, and on its left end. A rule that is used and
 * not defined is an error of ir_check. The name is for errors, and is copied. */
ir_id ir_rule(struct ir *ir, const char *name);
void ir_define(struct ir *ir, ir_id rule, ir_id body);

/* The special token of this name, or (name.ptr NULL) this id: no text. Whether there is one is seen when a matcher is
 * opened. ir_not_tokens: one special token that is not among the n named. */
struct ir_token {
    struct str name; // copied
    int32_t id;
    bool may_lack; // then nothing stands for it: give the text that may stand in its place as an alternative
};
ir_id ir_token(struct ir *ir, struct ir_token token);
ir_id ir_not_tokens(struct ir *ir, const struct ir_token *tokens, size_t n);

/* Free text up to the first place where one of the triggers ends, without it: a text in which none occurs. */
ir_id ir_text_without(struct ir *ir, const struct str *triggers, size_t n);

/* The members of an object, between its braces: in any order, each known one at most once, those that are required
 * once, and any number of others. `separator` stands between two members. A key is a terminal with its quotes; keys of
 * `known` and `others` must not overlap (take them apart with rx_and and rx_not), so that a key tells which it is.
 * A member is key, then value, which begins with the colon. The state is a set of what has been seen: n members in any
 * order cost n, not n!.
 *
 * A member whose value no text can be is never begun. Where the required ones exclude one another by max, or min cannot
 * be reached, the node is IR_NEVER. Two others with the same key count as two members, but where `distinct` is set:
 * then no key of others stands twice (byte for byte), and there must be `min` different ones, or the matcher may get
 * stuck.
 * `needs` says: where known member `seen` stands, known member `needed` must stand too. `excludes`: they may not stand
 * together. ordered: known members in the order of the array only, others after all of them; without needs and
 * excludes. */
struct ir_member {
    rx_id key;
    ir_id value;
    bool required; // of others it is not read
};
struct ir_pair {
    uint32_t seen, other; // indices into known
};
struct ir_members {
    const struct ir_member *known, *others;
    const struct ir_pair *needs, *excludes;
    size_t n_known, n_others, n_needs, n_excludes;
    rx_id separator;
    int32_t min, max; // of all members; max IR_NO_MAX: no bound
    bool ordered, distinct;
};
ir_id ir_members(struct ir *ir, const struct ir_members *members); // copies what it points to

/* A front end's own sentence; the first failure stays. Returns IR_NEVER. */
ir_id ir_fail(struct ir *ir, enum status status, const char *format, ...) __attribute__((format(printf, 3, 4)));

/* The nodes as the compiler reads them. */
enum ir_kind {
    IR_KIND_NEVER,
    IR_KIND_EMPTY,
    IR_KIND_TERMINAL, // a: rx
    IR_KIND_TOKENS,   // a: index of its list
    IR_KIND_SEQ,      // parts
    IR_KIND_ALT,      // parts
    IR_KIND_REPEAT,   // a: body; min, max
    IR_KIND_RULE,     // a: body, IR_NEVER until defined
    IR_KIND_MEMBERS,  // a: index of the members
};
struct ir_node {
    uint8_t kind;
    uint32_t a, b;    // parts: [a, a + b) of ir_parts
    int32_t min, max; // REPEAT
};
