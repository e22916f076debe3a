/* handover.h - what an engine's prefix cache has of a prompt, as bytes that another engine of its model takes over:
 * prefill apart from decode. Steps of both go on meanwhile.
 *
 *     giver                                     taker
 *                                               from = handover_known(g, &prompt)           E
 *     handover_hold(g, &prompt, from, &visit)                                               E
 *     handover_settles(&visit): asked again until it does                                   E
 *     handover_read(&visit, part, &bytes) ───►  handover_check_bytes(g, &prompt, bytes)
 *                                               handover_make_room(g, &prompt, bytes, &visit)   E
 *                                               handover_settles(&visit)                    E
 *                                               handover_write(&visit, bytes)
 *     handover_end(&visit)                      handover_adopt(&visit)                      E
 *
 * E: by the thread that owns the engine, between steps, and at once: blocks are counted, and where no step is in flight
 * settles makes the copies of states and blocks that the next one would begin with. What moves bytes, and takes as long
 * as they are many, any other thread does. A visit holds its blocks until it is ended; while it is there
 * the engine is.
 *
 * Bytes: a header, then pieces in the order in which the taker wants them; a piece is a block, or a recurrent state, of
 * all layers of a group.
 *
 *     header   magic, identity of model and numerics, hash of the tokens, block size, from, n, number of pieces
 *     piece    group, entry, bytes, hash of the bytes | bytes
 *
 * Nothing of them is trusted: sizes and order must be those that follow from the taker's own cache, hashes must be
 * right; else nothing is taken, and the prompt is computed. Numbers are of the machine's byte order, which the magic
 * tells. */
#pragma once

#include "base/arena.h"
#include "base/buf.h"
#include "base/status.h"
#include "base/str.h"
#include "gyre.h"
#include "sched/sequence.h"

struct handover_prompt {
    const int32_t *tokens; // [n]
    int32_t n;
    int32_t tenant;    // whose cached prompts it may find, and becomes one of
    uint64_t identity; // of the model and of what it is computed in; the same on both sides
};

/* Entries [from, n) of a prompt's cache. */
struct handover_visit {
    struct gyre *g;  // NULL: there is none
    uint64_t number; // of that
    struct arena arena;
    struct sequence seq;
    const struct handover_prompt *prompt;
    int32_t from, n;
    int64_t settles_at;
};

/* ERR_UNSUPPORTED: the engine's device, or options, cannot do it; with the reason. */
enum status handover_check(const struct gyre *g, struct error *err);

/* What copies need, once and between steps; ERR_MEMORY. The others see to it that it is there. */
enum status handover_prepare(struct gyre *g, struct error *err);

/* Whole blocks of the prompt that a request would find now. */
int32_t handover_known(struct gyre *g, const struct handover_prompt *p);

/* Bytes that giving a prompt of n tokens may take at most. */
int64_t handover_most_bytes(const struct gyre *g, int64_t n_tokens);

/* Of what is remembered of the prompt, up to the block before its last token, all behind the first `from` blocks.
 * ERR_FULL: no more than those is remembered. There is no visit then. */
enum status handover_hold(struct gyre *g, const struct handover_prompt *p, int32_t from, struct handover_visit *v,
                          struct error *err);

/* Entries [from, end) of a visit, end as handover_part says: as many as part_bytes hold, one at least; all, where a
 * text that ends there would want others (windows of attention, states). */
struct handover_part {
    int32_t from, end;
};
struct handover_part handover_part(const struct handover_visit *v, int32_t from, size_t part_bytes);

/* Appends the part, once the visit settles. ERR_LIMIT: it is more than max_bytes; ERR_MEMORY: than out's budget has;
 * other statuses are the device's. Nothing is appended then. */
enum status handover_read(const struct handover_visit *v, struct handover_part part, size_t max_bytes, struct buf *out,
                          struct error *err);

/* Whether the part can be shown: not states, nor what is more than max_bytes. */
bool handover_can_be_shown(const struct handover_visit *v, struct handover_part part, size_t max_bytes);

/* Shows such a part in the device's window (core/backend_handover.h) from byte `at` on; appends the header alone. */
enum status handover_show(const struct handover_visit *v, struct handover_part part, size_t at, struct buf *out,
                          struct error *err);

/* ERR_FORMAT: bytes that are not such, with what is wrong; of what is shown the header. */
enum status handover_check_shown(const struct gyre *g, const struct handover_prompt *p, struct str bytes, size_t at,
                                 struct error *err);
enum status handover_check_bytes(const struct gyre *g, const struct handover_prompt *p, struct str bytes,
                                 struct error *err);

/* For bytes that were checked. Where what they hold is remembered already nothing is to be written. ERR_FULL: there is
 * no room, or what they follow is not remembered any more. There is no visit then. */
enum status handover_make_room(struct gyre *g, const struct handover_prompt *p, struct str bytes,
                               struct handover_visit *v, struct error *err);
enum status handover_write(const struct handover_visit *v, struct str bytes, struct error *err);
enum status handover_take_shown(const struct handover_visit *v, const char *window, size_t at, struct error *err);

/* Whether steps that may write what is read, or read what is written, have ended. */
enum status handover_settles(struct handover_visit *v, bool *does, struct error *err);

/* Gives back what the visit holds, if there is one; adopt: what was written is remembered from now on. */
void handover_end(struct handover_visit *v);
void handover_adopt(struct handover_visit *v);

/* Of an engine that is there no more: the visit alone. */
void handover_leave(struct handover_visit *v);
