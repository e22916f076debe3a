/* prep_pool.h - the threads on which requests become prompts: JSON, chat template, tokenizer.
 *
 *     I/O thread                                a thread of the pool                     I/O thread
 *     body complete ─ api_hand_over ───────┬──► handler: JSON ─ template ─ ids ─ submit ─► answer, or its stream
 *                                          └─ no room: 429 or 503
 *
 * That takes as long as a body is large, up to a second, and an I/O thread has thousands of connections whose streams,
 * aborts and health checks would wait. Only the way in is here: tokens become text and JSON on the I/O thread, in
 * microseconds each.
 *
 * What a request owns meanwhile is its exchange, with body and arena. It is lent (http/lend.h): one thread has it at
 * a time, so nothing of it is locked.
 *
 * Whose turn it is: start-time fair queueing over the keys (base/fair_share.h), a request's cost being the bytes of its
 * body. Who sends much waits behind himself. Requests of one key start in the order in which their bodies were
 * complete; answers of different connections have no order among each other.
 *
 * Bounds: the first of several threads takes small bodies only, so that a small request waits for small ones only, and
 * the memory that large ones become is that of n_threads - 1 of them. The others have a lower priority, so that the
 * engine, where it computes on the same processors, goes on; they take small ones while the first has one. What waits
 * of one key, or of all without keys, has at most `max_waiting` bytes: more is refused.
 *
 * A client that leaves: its request is dropped when its turn comes. If it is being worked on, that goes to its end,
 * which the bounds on texts keep near (api_tokenize), and nobody gets the answer. Shutdown: what waits while http_stop
 * is patient is worked on, and hears from the service that it drains; prep_pool_close drops the rest. */
#pragma once

#include "http/lend.h"

struct prep_pool;

/* n_tenants: tenants are below it. `work` is called for each exchange, to call its route's handler. */
enum status prep_pool_open(int n_threads, int n_tenants, size_t max_waiting, void (*work)(struct http_exchange *x),
                           struct prep_pool **out, struct error *err);

/* On the exchange's thread: lends it to the thread of the pool that will call its route's handler. False: what waits of
 * the tenant is too much, and nothing was done. */
bool prep_pool_add(struct prep_pool *p, struct http_exchange *x, int tenant);

/* After http_stop, before http_free. Waits for what is being worked on. NULL is fine. */
void prep_pool_close(struct prep_pool *p);
