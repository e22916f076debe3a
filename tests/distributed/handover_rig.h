/* handover_rig.h - handing a prompt's cache over in one call, by a thread that owns the engine, which has no step in
 * flight: what engine/roles/visit.h does beside steps. */
#pragma once

#include "engine/engine.h"
#include "engine/roles/handover.h"

static inline enum status settle_at_rest(struct handover_visit *v, struct error *err) {
    bool settles;
    TRY(handover_settles(v, &settles, err));
    BUG_IF(!settles);
    return OK;
}

static inline enum status handover_give(struct gyre *g, const struct handover_prompt *p, int32_t from, size_t max_bytes,
                                        struct buf *out, struct error *err) {
    struct handover_visit v;
    TRY(handover_hold(g, p, from, &v, err));
    enum status st = settle_at_rest(&v, err);
    if (st == OK)
        st = handover_read(&v, handover_part(&v, from, SIZE_MAX), max_bytes, out, err);
    handover_end(&v);
    return st;
}

/* *n: behind how many blocks the bytes end. */
static inline enum status handover_take(struct gyre *g, const struct handover_prompt *p, struct str bytes, int32_t *n,
                                        struct error *err) {
    struct handover_visit v;
    *n = 0;
    TRY(handover_check_bytes(g, p, bytes, err));
    TRY(handover_make_room(g, p, bytes, &v, err));
    enum status st = settle_at_rest(&v, err);
    if (st == OK)
        st = handover_write(&v, bytes, err);
    int32_t end = v.n;
    if (st == OK)
        handover_adopt(&v);
    handover_end(&v);
    *n = st == OK ? end : 0;
    return st;
}

/* What `from` and more of the prompt a shows in its window, taken by b. ERR_UNSUPPORTED: it cannot be. */
static inline enum status handover_by_window(struct gyre *a, struct gyre *b, const struct handover_prompt *p,
                                             int32_t from, struct error *err) {
    enum { AT = 4096 };
    char name[WINDOW_NAME];
    struct handover_visit give, take = {0};
    struct buf header = {0};
    TRY(handover_hold(a, p, from, &give, err));
    enum status st = settle_at_rest(&give, err);
    if (st == OK)
        st = a->ops->handover->share(a->loaded, name, err);
    if (st == OK)
        st = handover_can_be_shown(&give, handover_part(&give, from, SIZE_MAX), WINDOW_BYTES - AT)
                 ? OK
                 : fail(err, ERR_UNSUPPORTED, "it cannot be shown");
    if (st == OK)
        st = handover_show(&give, handover_part(&give, from, SIZE_MAX), AT, &header, err);
    handover_end(&give);
    if (st == OK)
        st = handover_check_shown(b, p, buf_view(&header), AT, err);
    if (st == OK)
        st = handover_make_room(b, p, buf_view(&header), &take, err);
    if (st == OK)
        st = settle_at_rest(&take, err);
    if (st == OK)
        st = handover_take_shown(&take, name, AT, err);
    if (st == OK)
        handover_adopt(&take);
    handover_end(&take);
    buf_release(&header);
    return st;
}
