/* tool_parser_parts.h - the parser of answers, in parts. For this folder.
 *
 *     TEXT ──reasoning_open──► REASONING ──reasoning_close──► AFTER_REASONING ──► TEXT
 *     TEXT, REASONING ──a call's mark──► HEAD ──name of a tool, arguments begin──► ARGUMENTS, TAGGED
 *     HEAD ──anything else──► what it was before, the mark being text
 *     ARGUMENTS, TAGGED ──► TAIL ──► BETWEEN ──► HEAD (one more call), TEXT (no more)
 *     CHANNELS: Harmony's messages, by themselves
 *
 * Text that is not decided waits in `held`, from `at` on. A state's function takes what it can and returns whether
 * another look at the rest, perhaps by another state, may take more. */
#pragma once

#include "text/arguments/tool_literal.h"
#include "text/arguments/tool_value.h"
#include "text/tools/tool_marks.h"
#include "text/tools/tool_parser.h"
#include "text/tools/tool_rows.h"

enum parser_state {
    PARSER_TEXT,
    PARSER_REASONING,
    PARSER_AFTER_REASONING,
    PARSER_HEAD,
    PARSER_ARGUMENTS,
    PARSER_TAGGED,
    PARSER_TAIL,
    PARSER_BETWEEN,
    PARSER_CHANNEL_HEADER,
    PARSER_CHANNEL_BODY,
};

enum { MAX_HELD = 8 << 20, MAX_HEAD = 16 << 10, MAX_NAME = 256, MAX_KEY = 1024 };

enum trigger_kind { TRIGGER_CALL, TRIGGER_REASONING, TRIGGER_NOTHING };

struct trigger {
    struct str mark;
    enum trigger_kind kind;
    bool first; // only where nothing but blanks came before
    bool bare;  // { or [, which much else begins with
};

enum { MAX_TRIGGERS = 16 };

/* What the beginning of a call says. Texts are of the held text. */
struct head {
    struct str name, id;
    struct str early;                   // JSON: arguments that stand before the name
    size_t end;                         // of the head: where the arguments begin, or behind the object
    bool no_arguments;                  // there are none
    int depth;                          // JSON: objects that are open
    const struct tool_wrapper *wrapper; // before it; NULL: the marks of the template
};

enum value_state { VALUE_NEXT, VALUE_KEY, VALUE_STRING, VALUE_OTHER };

struct tool_parser {
    const struct tool_format *f;
    struct tool_parser_options options;
    json_t *tools;      // by name, the function objects
    json_t *parameters; // of the running call: its schema; borrowed
    struct trigger triggers[MAX_TRIGGERS];
    size_t n_triggers;
    bool starts[256]; // bytes that a trigger begins with

    struct buf held;
    size_t at;
    char tail[4]; // the beginning of a code point
    size_t n_tail;
    bool ended; // no more text will come

    enum parser_state state;
    bool blank_so_far; // nothing but blanks since the answer's beginning, its reasoning or a call
    bool after_call;
    bool line_end;       // TEXT: one that ends the mark of a content is no part of it
    bool from_reasoning; // HEAD: what turns out to be no call is reasoning
    bool verbatim;       // REASONING: its mark came twice, so nothing is cut from it
    bool reasoning_began;
    bool mark_is_whole;                 // REASONING: the prompt wrote it
    bool mark_was_twice;                // REASONING: and the second one is gone
    bool in_section;                    // HEAD: behind another call
    const struct tool_wrapper *wrapper; // around the calls; NULL: the marks of the template
    struct tool_wrapper section;        // the template's, around JSON where it shows none
    size_t look_again;                  // with so many bytes: what is long is not read anew with each piece

    int n_calls;
    bool running; // a call is open
    struct literal literal;
    int depth;  // JSON: objects to be closed behind the arguments
    int n_keys; // TAGGED
    enum value_state value;
    struct value_end value_end;         // VALUE_OTHER
    struct buf value_open, value_close; // nested: marks around the value
    const json_t *value_schema;         // nested: borrowed
    int types;                          // of the value, as its schema allows
    bool is_cdata;                      // VALUE_OTHER
    struct str wrapped;                 // VALUE_OTHER: its key, where the value may be all of the arguments; else empty

    // CHANNELS
    enum { CHANNEL_CONTENT, CHANNEL_REASONING, CHANNEL_CALL, CHANNEL_DROPPED } channel;
    bool channel_is_written; // with its marks
};

/* ---- shared ---- */

static inline struct str parser_rest(const struct tool_parser *p) { return str_from(buf_view(&p->held), p->at); }
void parser_take(struct tool_parser *p, size_t n); // n bytes of the rest are done with
void parser_tell(struct tool_parser *p, enum tool_event_kind kind, struct str text);
void parser_tell_text(struct tool_parser *p, enum tool_event_kind kind, size_t n); // and takes it
void parser_begin_call(struct tool_parser *p, struct str name, struct str id);
void parser_end_call(struct tool_parser *p);
void parser_tell_word(struct tool_parser *p);  // the last one of arguments that are over before they are whole
void parser_break_call(struct tool_parser *p); // its arguments are no JSON: what follows is content
const json_t *parser_tool(const struct tool_parser *p, struct str name); // NULL: there is no such

/* ---- states ---- */

bool parser_head(struct tool_parser *p);
bool parser_tell_partial_head(struct tool_parser *p); // a call whose name is whole, where the text is cut
bool parser_arguments(struct tool_parser *p);
bool parser_tail(struct tool_parser *p);
bool parser_between(struct tool_parser *p);
bool parser_tagged(struct tool_parser *p);
void parser_finish_tagged(struct tool_parser *p, bool close);
bool parser_channel_header(struct tool_parser *p);
bool parser_channel_body(struct tool_parser *p);

/* ---- tool_json.c: JSON that is not all there yet ---- */

/* The length of the value at the beginning of s. MARK_MORE: it is not whole; MARK_NO: it is none. */
enum mark_match json_length(struct str s, size_t *length);

/* The members of a call's object from *at on, in s, up to its arguments or its end. bare: an object with other members
 * than a call's is none. MARK_MORE: h has what is there. */
enum mark_match json_head(const struct tool_format *f, struct str s, size_t at, bool bare, struct head *h);

/* What is left of h.depth objects behind the arguments; *id is an id among it, or empty. */
enum mark_match json_rest(const struct tool_format *f, struct str s, int depth, size_t *at, struct str *id);

struct str str_first_part(struct str mark); // its first tag, or word
