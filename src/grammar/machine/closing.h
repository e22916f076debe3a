/* closing.h - working memory while a row is made (rows.c, predict.c). See machine.h. */
#pragma once

#include "grammar/machine/machine.h"

enum { ROOT_FRAME = 0 }; // returns to nothing: the text may end

struct closing {
    VEC(struct item) todo, kept, back; // back: links of the frame that is made
    VEC(struct wait) waits;
    VEC(struct call) calls;  // a heap, the least order of a rule first
    VEC(struct call) circle; // all external calls of a left-recursive circle
    VEC(struct call) inner;  // calls within it
    VEC(uint32_t) reached;   // rules of it
    VEC(uint32_t) heads;
    struct {
        struct item item;
        uint32_t epoch;
    } * seen;
    uint32_t seen_mask, n_seen, epoch;
    bool may_end;
};

static inline bool same_item(struct item a, struct item b) {
    return a.state == b.state && a.extra == b.extra && a.frame == b.frame;
}
static inline int order_items(struct item a, struct item b) {
    if (a.state != b.state)
        return a.state < b.state ? -1 : 1;
    if (a.extra != b.extra)
        return a.extra < b.extra ? -1 : 1;
    return a.frame < b.frame ? -1 : a.frame > b.frame;
}

/* Which items have been met: begins anew. */
void closing_forget(struct closing *c);
/* Puts an item on the list, once. */
void closing_push(struct closing *c, struct item item);
/* Pushes what follows an item where what it stands before may be left out. */
void closing_step_over(struct machine *m, struct closing *c, struct item i);

uint32_t member_state_of(struct machine *m, uint32_t members, uint32_t extra);

/* Fills in what may follow the items of a new row, which are in `kept`. */
void row_predict(struct machine *m, struct closing *c, struct row *row);
