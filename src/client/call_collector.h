/* call_collector.h - the calls of tools of one answer, put together from its pieces.
 *
 * A stream brings of each call its place, id and name once, and its arguments in pieces. The server is not trusted:
 * types that are wrong, places that are too many and calls that are too long are faults. */
#pragma once

#include "base/buf.h"
#include "base/json/json.h"

struct call_collector {
    struct collected_call {
        struct buf id, name, arguments;
    } * calls;
    size_t n, n_bytes;
};

/* Takes the text of one `tool_calls`: an array, of a delta or of a whole message. */
enum status call_collector_take(struct call_collector *c, struct str json, struct error *err);

/* The calls as a message brings them, [{"id", "type": "function", "function": {"name", "arguments"}}]: the caller's.
 * NULL if there was none. */
json_t *call_collector_json(const struct call_collector *c);

void call_collector_release(struct call_collector *c); // it may be used again
