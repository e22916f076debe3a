/* tool_format.h - how a model writes reasoning and tool calls: data, found from its chat template.
 *
 * A template shows how past turns are written, so it is rendered in pairs (with and without reasoning, tools, calls;
 * one call and two; one argument and two; a string and a number) with words that no template has, and what stands
 * between those words is what the model writes around them. A tokenizer that says it itself (response_template) is
 * believed first; a table of rows, recognised by texts of the template's source, is for what cannot be rendered.
 *
 *     struct tool_format *f = tool_format_open(chat, NULL);         // once a model; never fails
 *     if (f->style == TOOL_STYLE_NONE) ...                          // calls are not understood: tools are refused
 *     tool_parser_open(f, ...)                                      // tool_parser.h, for each answer
 *     tool_format_tag(f, tools, &choice, ...)                       // a grammar that makes calls valid
 *
 * A text is reasoning, content and sections of calls. Marks are kept as the template writes them, blanks included;
 * whoever reads takes blanks around a mark as they come, but of values, where they count.
 *
 *     [reasoning_open R reasoning_close] [content_open C content_close]
 *     section_open  call call_separator call  section_close
 *     call, JSON     call_open {"name": N, "arguments": A, "id": I} call_close   or such items of one array
 *     call, MARKED   (mark slot)... call_close, each slot N, I or A: <tool_call>N<sep>A</tool_call>
 *     channels       Harmony's messages: <|channel|>NAME to=functions.N<|message|>A<|call|>
 *     A              JSON; a literal as Python or Gemma writes one; or for each: key_open K key_close V value_close
 *     nested         key_open K key_close V value_close K key_close, and so within V, of objects and arrays */
#pragma once

#include "base/arena.h"
#include "base/buf.h"
#include "base/json/json.h"
#include "text/chat/template_chat.h"

enum tool_style { TOOL_STYLE_NONE, TOOL_STYLE_JSON, TOOL_STYLE_MARKED, TOOL_STYLE_CHANNELS };

enum tool_slot { TOOL_SLOT_NAME, TOOL_SLOT_ID, TOOL_SLOT_ARGUMENTS };

enum tool_arguments {
    TOOL_ARGUMENTS_JSON,
    TOOL_ARGUMENTS_LITERAL, // f(a=1, b='x') or f{a:1,b:<|"|>x<|"|>}
    TOOL_ARGUMENTS_TAGGED,  // a tag a key: strings as they are, anything else as JSON
};

/* What an id looks like. */
enum tool_id {
    TOOL_ID_ANY,   // the model writes none: "call_" and 20 letters and digits
    TOOL_ID_INDEX, // "0", "1", ...
    TOOL_ID_NINE,  // nine letters and digits
    TOOL_ID_PATH,  // functions.NAME:INDEX
};

struct tool_head {
    struct str mark; // before the slot; may be empty
    enum tool_slot slot;
};

enum { TOOL_HEADS = 3 };

/* CHANNELS: what goes on behind a message that is no answer, and begins the answer. */
#define TOOL_CHANNEL_AGAIN "<|start|>assistant"
#define TOOL_CHANNEL_ANSWER "<|channel|>final<|message|>"

struct tool_format {
    struct arena arena;  // of all texts below
    const char *found;   // "derived", "response_template", or the name of a row; NULL: nothing was found
    const char *refusal; // why calls are not understood; NULL where they are

    struct str reasoning_open, reasoning_close;
    bool reasoning_is_exact; // the blanks around both are known too
    bool reasoning_is_guess; // nothing was found: <think>, since models are tuned to think under older templates
    struct str content_open, content_close; // often empty; no part of what is said

    enum tool_style style;
    struct str section_open, section_close; // often empty
    struct str call_open, call_separator, call_close;
    struct str call_prefix; // may stand before calls that open without a mark
    bool one_call;          // a template that refuses more in a message

    // JSON. Its text, for grammars: heads and object_close, in array_open ... call_separator ... array_close
    bool in_array;
    struct str array_open, array_close, object_close;
    struct str wrapper_key, name_key, arguments_key, id_key; // no name_key: the object is {N: A}

    // MARKED: heads[0].mark is call_open. JSON: the object's text; none: as json.dumps writes it
    struct tool_head heads[TOOL_HEADS];
    size_t n_heads;

    enum tool_arguments arguments;
    struct str arguments_open, arguments_close; // around them all
    struct str key_open, key_close, value_close, argument_separator;
    bool nested;                // TAGGED: elements, whose end has their key too
    struct str key_close_other; // before what is no string, where it differs from key_close
    struct str quote;           // LITERAL: around strings; empty: " or '

    enum tool_id id;
};

/* How a variant's model writes; v NULL: the variant for requests with tools; t NULL: a model without a template. A
 * rendering that fails or costs too much tells nothing, so an odd template gives a format without calls, whose refusal
 * says why. */
struct tool_format *tool_format_open(const struct chat_template *t, const struct chat_variant *v);
void tool_format_free(struct tool_format *f); // NULL is fine

/* One line for people: "<tool_call> JSON, reasoning <think>", or why not. */
void tool_format_describe(const struct tool_format *f, struct buf *out);

/* The end of a rendered prompt that belongs to the model's turn: "<think>\n" where the prompt opens the reasoning, the
 * opening of a call, and empty most of the time. Borrowed from prompt. */
struct str tool_format_opened(const struct tool_format *f, struct str prompt);

/* Whether that end is inside the reasoning; and whether the prompt has closed it, so that there will be none. In
 * channels: whether the prompt ends within a message. */
bool tool_format_opens_reasoning(const struct tool_format *f, struct str prompt);
bool tool_format_ends_reasoning(const struct tool_format *f, struct str prompt);

/* Appends an id for call `index` of a turn, in the form that the template takes. random: 128 bits. */
void tool_format_make_id(const struct tool_format *f, struct str name, int index, const uint64_t random[2],
                         struct buf *out);

/* ---- grammars ---- */

enum tool_choice_kind { TOOL_CHOICE_AUTO, TOOL_CHOICE_REQUIRED, TOOL_CHOICE_NAMED };

struct tool_choice {
    enum tool_choice_kind kind;
    const char *name;  // NAMED
    bool parallel;     // more than one call, but of a tool that is named
    bool limited;      // AUTO: the tools are not all that the model knows of
    struct str opened; // tool_format_opened's, which the answer's text does not repeat
};

/* A structural tag (a JSON value, for grammar_compile) in which a text's calls are valid by construction: with AUTO
 * whenever a call begins, otherwise at once. Arguments follow the schemas of tools that are strict or must be called;
 * parameters that such a schema does not list are none, unless it speaks of others. The grammar is of what follows the
 * reasoning. tools are those that may be called, OpenAI's [{"type": "function", "function": {...}}], and {"type":
 * "custom", "function", "format": {"syntax": "lark" or "regex", "definition"}}, whose argument `input` has that form
 * (api/tools/custom.h; other formats bind nothing). *out is NULL where a choice of AUTO binds nothing: no tool is
 * strict, several calls are fine, of any tool; or calls open without a mark. In channels the grammar is of all that the
 * model writes, reasoning included: tool_format_answer makes one of another. ERR_UNSUPPORTED where calls are not
 * understood; ERR_ARG names a tool that is not there. */
enum status tool_format_tag(const struct tool_format *f, const json_t *tools, const struct tool_choice *choice,
                            json_t **out, struct error *err);

/* CHANNELS: an element of a structural tag as an answer, behind what is thought. Other formats: the element. */
json_t *tool_format_answer(const struct tool_format *f, json_t *take_element);
