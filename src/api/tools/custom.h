/* custom.h - custom tools: their input is a text, perhaps of a grammar, and no JSON.
 *
 * A model knows functions. So it is shown a custom tool as a function with one argument, the string `input`, and what
 * it writes there is the input. Inside of this server it is {"type": "custom", "function": {...}, "format"}, whose
 * format binds the text: {"syntax": "lark" or "regex", "definition"}, {} for any text. No client brings such a tool:
 * those of type custom are all made anew here, and a member that a client adds to a function means nothing. */
#pragma once

#include "base/buf.h"
#include "base/json/json.h"

/* One tool as a function; `custom` has its name, description and format, as Responses write them or as chat completions
 * do. Sentences begin with where. */
enum status custom_as_function(const json_t *custom, const char *where, json_t **out, struct error *err);

/* OpenAI's tools of chat completions, those of {"type": "custom", "custom": {...}} as functions: a new reference. What
 * is no array, or no tool, stays as it is. To be called once, of what a client wrote. */
enum status custom_tools_as_functions(const json_t *tools, json_t **out, struct error *err);

/* The tools as templates see them, functions all, without formats: a new reference. */
json_t *custom_tools_shown(const json_t *tools);

/* A call {"type": "custom", "custom": {"name", "input"}} as a function's; messages with such calls, a new reference. */
json_t *custom_call_as_function(const json_t *id, const json_t *name, const json_t *input);
json_t *custom_calls_as_functions(const json_t *messages);

bool custom_is(const json_t *tools, struct str name); // of functions as made above

/* The input out of a call's arguments as they come. Arguments that are none of {"input": "..."} are the input as they
 * are. What stands behind that string is nobody's. */
struct custom_input {
    struct buf held; // JSON that is not decided yet
    bool is_text, is_raw, ended;
};
void custom_input_feed(struct custom_input *c, struct str arguments, struct buf *out);
void custom_input_finish(struct custom_input *c, struct buf *out); // no more will come
void custom_input_release(struct custom_input *c);
