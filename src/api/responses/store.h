/* store.h - the responses that are stored: what GET shows, and what a later response goes on from.
 *
 *     response  id, tenant, body ─► turn: its input and output items ─► the turn before, by previous_response_id ─► ...
 *
 * In memory, and gone with the process. All of it together has at most max_bytes: past that the oldest response goes,
 * of the tenant that has most, so that nobody loses theirs to one who stores much. A turn lives as long as a response
 * or a later turn needs it, so deleting a response leaves conversations that went on from it whole.
 *
 * A tenant sees its own only. Any thread; turns never change, so who holds one reads it without the lock. */
#pragma once

#include "base/buf.h"
#include "base/json/json.h"

struct response_store;
struct turn;

struct response_store *response_store_open(size_t max_bytes);
size_t response_store_max(const struct response_store *s);
void response_store_free(struct response_store *s); // NULL is fine

/* The turn of a stored response that is over, held; ERR_ARG names previous_response_id. */
enum status response_store_find(struct response_store *s, int32_t tenant, const char *id, struct turn **out,
                                struct error *err);
void response_store_release(struct response_store *s, struct turn *t); // NULL is fine

/* Appends the items of the conversation up to and with this turn, oldest first. *budget as in jv_parse_within. */
enum status turn_items(const struct turn *t, size_t *budget, json_t *items, struct error *err);

struct stored_response {
    const char *id;
    int32_t tenant;
    struct turn *before;      // borrowed; NULL: it begins a conversation
    struct str body;          // the response object
    struct str input, output; // arrays of items
    bool goes_on;             // in the background: put again, with `replaces`, once it is over
    bool replaces;            // what was stored while it went on; nothing, if that was deleted meanwhile
};

/* False: it was not stored: it alone is larger than all that may be, or there is nothing to replace. What it was to
 * replace is gone then too. */
bool response_store_put(struct response_store *s, const struct stored_response *r);

/* One that goes on has ended without an output, and there is no memory to say more: its status becomes "failed". */
void response_store_fail(struct response_store *s, int32_t tenant, const char *id);

/* Appends its body. False: there is none of the tenant. */
bool response_store_body(struct response_store *s, int32_t tenant, const char *id, struct buf *body, bool *goes_on);

/* Its input and all that came before it: the turn before, held, or NULL, and its own input appended. False: there is
 * none. */
bool response_store_input(struct response_store *s, int32_t tenant, const char *id, struct turn **before,
                          struct buf *input);

bool response_store_delete(struct response_store *s, int32_t tenant, const char *id);

/* What is stored now, in bytes and responses: for /metrics. */
void response_store_size(struct response_store *s, size_t *bytes, size_t *n);
