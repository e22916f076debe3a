/* lark_reader.h - what the parts of Lark's reader share. See lark.c. */
#pragma once

#include "base/buf.h"
#include "grammar/front/ebnf.h"

struct lark {
    struct str text;
    size_t at;
    struct ebnf *ebnf;
    struct ir *ir;
    const struct grammar_style *style;
    struct error *err;
    int depth;
    bool in_terminal;   // what is read is a terminal's: nothing is ignored within
    const char *prefix; // of names that are defined and asked for: "common." while the library is read
    bool has_common;
    ebnf_id *ignored; // alternatives
    size_t n_ignored, cap_ignored;
};

enum lark_limits { LARK_MAX_DEPTH = 150 };

enum status lark_bad(const struct lark *l, enum status st, const char *what, struct str name);
static const struct str lark_no_name = {"", 0};

/* lark_lex.c */
char lark_peek(const struct lark *l);
struct str lark_rest(const struct lark *l);
bool lark_take_if(struct lark *l, struct str text);
void lark_skip(struct lark *l, bool lines); // blanks and comments; lines: ends of lines too
struct str lark_take_name(struct lark *l);  // of a rule or terminal, with _ ! ?; empty if there is none
bool lark_is_terminal(struct str name);     // upper case
enum status lark_take_int(struct lark *l, int32_t *out);
enum status lark_read_string(struct lark *l, rx_id *out, uint32_t *only); // only: its character, UINT32_MAX if not one
enum status lark_read_regex(struct lark *l, rx_id *out);
enum status lark_read_token(struct lark *l, ebnf_id *out); // <name>, <[1-3,5]>
enum status lark_read_json(struct lark *l, ebnf_id *out);  // behind %json

/* lark_rules.c: alternatives of a rule or terminal, up to what cannot go on. */
enum status lark_read_alternatives(struct lark *l, bool nested, ebnf_id *out);
ebnf_id lark_ref(struct lark *l, struct str name);

/* The library that %import common. names, as Lark text. */
extern const char lark_common[];
