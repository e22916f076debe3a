/* answer_event.h - what a chunk of an OpenAI-compatible answer says, of chat or completions, streamed or whole.
 *
 * The server is not trusted: what is not JSON, or of other types than it should be, is a fault or passed over. */
#pragma once

#include "base/buf.h"
#include "base/status.h"

struct answer_event {
    bool has_choice; // choices is not empty
    struct buf content, reasoning, finish_reason;
    struct str tool_calls; // the JSON of a delta's or message's, within the text that was read; empty: none
    bool has_usage;
    int64_t prompt_tokens, completion_tokens;
    bool failed;
    struct buf error; // the message, if failed
};

/* Empties e and reads one JSON text into it. Of several choices the texts are joined, and the last one's calls
 * are told. */
enum status answer_event_read(struct answer_event *e, struct str json, struct error *err);
void answer_event_release(struct answer_event *e);
