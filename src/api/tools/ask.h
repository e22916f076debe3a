/* ask.h - what a request says about tools: which there are, and which may, must or must not be called.
 *
 *     tools                 functions, as chat completions have them: {"type": "function", "function": {...}}; and
 *                           custom ones, which become functions (custom.h)
 *     tool_choice           none, auto, required, {"type": "function", "function": {"name"}}, or
 *                           {"type": "allowed_tools", "allowed_tools": {"mode": "auto" or "required", "tools": [...]}}
 *     parallel_tool_calls   false: one call at most
 *
 * A choice that must be met, and tools that are strict, become a grammar (structured/structured.h): calls are then
 * valid by construction. Other calls are read as the model writes them (text/tools/tool_parser.h). */
#pragma once

#include "api/structured/structured.h"
#include "text/tools/tool_format.h"

struct tool_ask {
    json_t *tools; // that may be called; owned; NULL: none, so that calls are text
    enum tool_choice_kind choice;
    const char *name; // NAMED; borrowed from the request's body
    bool parallel, is_limited /* by allowed_tools: to be held to */;
    int n_before; // calls in the history
};

/* Reads the three fields of chat completions; sentences call tools "tools". tool_ask_release in either case. */
enum status tool_ask_read(const json_t *body, struct tool_ask *out, struct error *err);

/* The same of dialects that write tools otherwise, and the other two fields as chat completions do: tools are functions
 * by then (custom.h). */
enum status tool_ask_choose(const json_t *body, json_t *tools, struct tool_ask *out, struct error *err);

/* The same of dialects that write all otherwise: functions, which it takes, and a choice "none", "auto", "required" or
 * "named". */
enum status tool_ask_set(struct tool_ask *out, json_t *take_tools, const char *choice, const char *name, bool parallel,
                         struct error *err);
void tool_ask_release(struct tool_ask *ask);

/* The tools as templates know them, which have not heard of "strict". */
json_t *tools_shown(const json_t *tools);

/* Refuses tools where f does not know how the model calls them. Counts the calls of messages. */
enum status tool_ask_check(struct tool_ask *ask, const struct tool_format *f, const json_t *messages,
                           struct error *err);

/* Asks for the grammar, if the choice or a tool needs one; together with what the request asks for itself: an answer in
 * that form, or calls. opened: tool_format_opened's, of the prompt. */
enum status tool_ask_bind(const struct tool_ask *ask, const struct tool_format *f, struct str opened,
                          struct structured *s, struct error *err);
