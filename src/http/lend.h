/* lend.h - an exchange on which another thread works for a while.
 *
 *     hand_over, on its I/O thread   http_lend ─► another thread: http_body_ready, the route's handler, http_give_back
 *
 * What the handler answers, holds or releases takes effect when the exchange is back: then `returned` is called, the
 * answer goes its way, and gone() and finished(), which waited, are called. Meanwhile the client may leave
 * (http_was_left). */
#pragma once

#include "http/http.h"

/* From here on another thread may do with the exchange what a handler may, and its own thread leaves it alone:
 * gone() and finished() wait, and what is answered, held or released takes effect when it is given back. In
 * hand_over only. */
void http_lend(struct http_exchange *x);

/* What was done for the exchange has failed, as there is no memory: it is told 503 if nothing was answered or held,
 * else its connection closes, and gone() follows. By whoever has it. */
void http_fail(struct http_exchange *x);

/* By that thread, which must have answered or hold it, or have been told that it was left. The exchange is not its
 * own any more. */
void http_give_back(struct http_exchange *x);

/* Of an exchange that is lent; any thread. Its client is gone: no use in working for it. */
bool http_was_left(const struct http_exchange *x);

/* Unpacks a body that was sent compressed; false: it was refused. By that thread, before the handler; and until
 * then, how long the body may become by it. */
bool http_body_ready(struct http_exchange *x);
size_t http_body_most(const struct http_exchange *x);

/* On the exchange's thread. */
bool http_is_lent(const struct http_exchange *x);
