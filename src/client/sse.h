/* sse.h - server-sent events as they come in: bytes to the data of each event.
 *
 *     struct sse s = {0};
 *     sse_feed(&s, bytes, n, take_event, context, &err);      any cuts
 *     sse_release(&s);
 *
 * Lines end with \n or \r\n. Comments and fields other than data are passed over; several data lines are joined. An
 * event past SSE_MAX_EVENT is a fault: nobody sends one, and memory is finite. */
#pragma once

#include "base/buf.h"
#include "base/status.h"

enum { SSE_MAX_EVENT = 16 << 20 };

struct sse {
    struct buf line; // that is not complete yet
    struct buf data; // of the event at hand
    bool has_data;
};

/* take gets the data of one event, good until it returns; a fault of it ends the feeding. */
typedef enum status sse_take(void *context, struct str data, struct error *err);

enum status sse_feed(struct sse *s, const char *bytes, size_t n, sse_take *take, void *context, struct error *err);
void sse_release(struct sse *s);
