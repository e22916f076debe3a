/* visit.h - the visits of handover.h by a thread that is not the engine's. The engine goes on; this thread waits for it
 * to come between steps, for steps that were started before, and for copies.
 *
 *     visit_hold (or visit_hold_now, on the engine's thread); visit_read, part by part; visit_end
 *     visit_write
 *
 * ERR_FULL also says that the lane is being closed, ERR_DEVICE that the engine was opened anew. */
#pragma once

#include "engine/lanes/lane.h"
#include "engine/roles/handover.h"
#include "engine/roles/prompt_wire.h"

struct visit {
    struct lane *lane;
    const struct handover_prompt *prompt;
    int32_t from; // blocks
    struct handover_visit of;
    bool settles;
    enum status status; // of what was asked last
    struct error err;
};

/* ERR_UNSUPPORTED as handover_check, ERR_MEMORY: copies have no memory. */
enum status visit_prepare(struct lane *lane, struct error *err);

/* Whole blocks of the prompt that are remembered; 0 where the lane is being closed. */
int32_t visit_known(struct lane *lane, const struct handover_prompt *p);

/* Of what there is of v->prompt behind v->from blocks. What came of it is v->status. */
void visit_hold(struct visit *v);
void visit_hold_now(struct gyre *g, struct visit *v);
enum status visit_read(struct visit *v, struct handover_part part, size_t max_bytes, struct buf *out,
                       struct error *err);
void visit_end(struct visit *v); // whatever came of it

/* Likewise by windows: ERR_UNSUPPORTED where bytes have to go. share: the name of this engine's. show: of a part that
 * can be (handover_can_be_shown). take: ERR_IO if it was too late. leave: no window of others is kept open. */
enum status visit_share(struct lane *lane, char window[WINDOW_NAME], struct error *err);
enum status visit_show(struct visit *v, struct handover_part part, size_t at, struct buf *out, struct error *err);
enum status visit_take(struct lane *lane, const struct handover_prompt *p, struct str bytes,
                       const struct prompt_window *window, int32_t *n, struct error *err);
void visit_leave(struct lane *lane);

/* Checks the bytes and takes them over; *n: behind how many blocks they end. */
enum status visit_write(struct lane *lane, const struct handover_prompt *p, struct str bytes, int32_t *n,
                        struct error *err);
