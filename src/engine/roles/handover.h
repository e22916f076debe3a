/* handover.h - what an engine's prefix cache has of a prompt, as bytes that another engine of its model takes over:
 * prefill apart from decode.
 *
 *     giver                                            taker
 *                                                      from = handover_known(g, &prompt)
 *     handover_give(g, &prompt, from, &bytes)  ─────►  handover_take(g, &prompt, bytes)
 *
 * Bytes: a header, then pieces in the order in which the taker wants them; a piece is a block, or a recurrent state, of
 * all layers of a group.
 *
 *     header   magic, identity of model and numerics, hash of the tokens, block size, from, n, number of pieces
 *     piece    group, entry, bytes, hash of the bytes | bytes
 *
 * Nothing of them is trusted: sizes and order must be those that follow from the taker's own cache, hashes must be
 * right; else nothing is taken, and the prompt is computed. Numbers are of the machine's byte order, which the magic
 * tells. Called by the thread that owns the engine, with no step in flight. */
#pragma once

#include "base/buf.h"
#include "base/status.h"
#include "base/str.h"
#include "gyre.h"

struct handover_prompt {
    const int32_t *tokens; // [n]
    int32_t n;
    int32_t tenant;    // whose cached prompts it may find, and becomes one of
    uint64_t identity; // of the model and of what it is computed in; the same on both sides
};

/* ERR_UNSUPPORTED: the engine's device, or options, cannot do it; with the reason. */
enum status handover_check(const struct gyre *g, struct error *err);

/* Whole blocks of the prompt that a request would find now. */
int32_t handover_known(struct gyre *g, const struct handover_prompt *p);

/* Of what is remembered of the prompt, up to the block before its last token, all behind the first `from` blocks.
 * ERR_FULL: no more than those is remembered. ERR_LIMIT: it is more than max_bytes. ERR_MEMORY: than out's
 * budget has; other statuses are the device's. Nothing is appended then. */
enum status handover_give(struct gyre *g, const struct handover_prompt *p, int32_t from, size_t max_bytes,
                          struct buf *out, struct error *err);

/* n: behind how many blocks of the prompt the bytes end. Where those are remembered already nothing is copied.
 * ERR_FORMAT: bytes that are not such, with what is wrong; ERR_FULL: there is no room, or what they follow is not
 * remembered any more. */
enum status handover_take(struct gyre *g, const struct handover_prompt *p, struct str bytes, int32_t *n,
                          struct error *err);

/* Bytes that giving a prompt of n tokens may take at most. */
int64_t handover_most_bytes(const struct gyre *g, int64_t n_tokens);
