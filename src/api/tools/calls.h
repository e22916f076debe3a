/* calls.h - the tool calls of an answer, as a choice keeps them until its dialect writes them. */
#pragma once

#include "api/tools/ask.h"
#include "api/tools/custom.h"
#include "text/tools/tool_parser.h"

struct tool_call {
    char *id, *name;
    bool is_custom;
    struct custom_input input; // of a custom one
    struct buf arguments;      // JSON text, all that has come; of a custom one the input
    bool ended;
    bool begun;       // streams: was written, with id and name ...
    size_t n_written; // ... and so much of its arguments
};

/* Of its arguments, what is not yet written. */
static inline struct str tool_call_news(const struct tool_call *call) {
    return (struct str){buf_view(&call->arguments).ptr + call->n_written, call->arguments.len - call->n_written};
}

struct tool_calls {
    struct tool_call *all; // [n], in their order
    int n;
    int n_over; // streams: of those that are ended and written whole
};

/* Takes an event of a call of the tools that were asked for. */
void tool_calls_take(struct tool_calls *calls, const struct tool_format *f, const struct tool_ask *ask,
                     const struct tool_event *e);

/* Streams: whether there is anything new to be written, and that it was. */
bool tool_calls_have_news(const struct tool_calls *calls);
void tool_calls_written(struct tool_calls *calls);

void tool_calls_release(struct tool_calls *calls);
