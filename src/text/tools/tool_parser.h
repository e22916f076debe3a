/* tool_parser.h - parts an answer into reasoning, content and tool calls while it streams.
 *
 * Text comes in pieces of any size. What is certain is told at once, to a function of the caller; what could be part of
 * a mark is held back until more text decides. Nothing that is told ends inside a code point.
 *
 *     const struct tool_parser_options o = {.tools = tools, .told = f, .arg = x};
 *     struct tool_parser *p = tool_parser_open(format, &o);
 *     tool_parser_feed(p, piece); ...           // f is called with events, in order
 *     tool_parser_finish(p, TOOL_TEXT_ENDED);
 *     tool_parser_free(p);
 *
 * A call is one when its marks, or usual ones (tool_rows.h), and the name of a tool that was given are there; until
 * then it is text, and what turns out to be none stays content (or reasoning) as it was written, not a character less.
 * From then on its arguments are told as they come, as pieces of a JSON text: native JSON as it is, control characters
 * in strings escaped; Python's literals and tagged values are made JSON, by the types in the tool's schema. Where JSON
 * breaks inside arguments the call ends, and the rest is content. An argument of tags that may hold all the others is
 * told when it is whole.
 *
 * Held back at most: a mark, a call up to its name, one value that is no string; MAX_HELD of these, then it is text.
 * Bounded by the answer alone: brackets of Python until they are a set or a tuple or not, and blanks between a call's
 * end and its section's. */
#pragma once

#include "text/tools/tool_format.h"

enum tool_event_kind {
    TOOL_EVENT_CONTENT,   // text
    TOOL_EVENT_REASONING, // text
    TOOL_EVENT_BLANKS,    // text: blanks behind the reasoning that its mark does not have; nobody's
    TOOL_EVENT_CALL,      // begins call `index`: name in text; id, if the model wrote one before the arguments
    TOOL_EVENT_ARGUMENTS, // text: more of the arguments of call `index`
    TOOL_EVENT_ID,        // the id of call `index`, in text, where it is written behind the arguments
    TOOL_EVENT_END,       // call `index` is over
};

struct tool_event {
    enum tool_event_kind kind;
    int index; // of calls, from 0
    struct str text, id;
};

typedef void (*tool_told)(void *arg, const struct tool_event *event); // texts are borrowed for the call

struct tool_parser_options {
    const json_t *tools; // OpenAI's; NULL or empty: calls are text. Borrowed until tool_parser_free
    bool keep_reasoning; // in the content, with its marks as they were written
    struct str opened;   // tool_format_opened(): what the prompt's end has begun; borrowed for the call
    tool_told told;
    void *arg;
};

enum tool_end {
    TOOL_TEXT_ENDED,   // the model ended it: what is open is closed
    TOOL_TEXT_CUT,     // max_tokens, a stop string, a cancel: what is open stays open
    TOOL_TEXT_PARTIAL, // more may come: only what is certain
};

struct tool_parser;

struct tool_parser *tool_parser_open(const struct tool_format *f, const struct tool_parser_options *options);
void tool_parser_free(struct tool_parser *p); // NULL is fine
void tool_parser_feed(struct tool_parser *p, struct str piece);
void tool_parser_finish(struct tool_parser *p, enum tool_end end);

/* Where the text is now, and how many calls began. */
enum tool_place { TOOL_IN_TEXT, TOOL_IN_REASONING, TOOL_BEHIND_REASONING /* in the blanks */ };
enum tool_place tool_parser_place(const struct tool_parser *p);
int tool_parser_n_calls(const struct tool_parser *p);
