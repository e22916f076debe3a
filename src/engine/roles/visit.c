/* visit.c - see visit.h. */
#include "engine/roles/visit.h"

#include "base/clock.h"
#include "engine/engine.h"

struct call {
    struct visit *visit;
    int32_t known;
    struct handover_part part;
    size_t max_bytes;
    struct buf *out;
    struct str bytes;
    const struct prompt_window *window; // NULL: there is none
    char *name;
    size_t at;
};

/* The engine that the visit is of may have failed, and another one be there. */
static bool is_there(struct gyre *g, struct visit *v) {
    bool is = v->of.g && g->number == v->of.number;
    if (!is) {
        handover_leave(&v->of);
        v->status = fail(&v->err, ERR_DEVICE, "the engine was opened anew");
    }
    return is;
}

static void prepare(struct gyre *g, void *context) {
    struct call *c = context;
    c->visit->status = handover_prepare(g, &c->visit->err);
}

static void look(struct gyre *g, void *context) {
    struct call *c = context;
    c->known = handover_known(g, c->visit->prompt);
}

static void settle(struct gyre *g, void *context) {
    struct call *c = context;
    if (is_there(g, c->visit))
        c->visit->status = handover_settles(&c->visit->of, &c->visit->settles, &c->visit->err);
}

static void hold(struct gyre *g, void *context) {
    struct call *c = context;
    visit_hold_now(g, c->visit);
}

static void make_room(struct gyre *g, void *context) {
    struct call *c = context;
    struct visit *v = c->visit;
    v->status = handover_make_room(g, v->prompt, c->bytes, &v->of, &v->err);
    if (v->status == OK)
        settle(g, c);
}

static void check(struct gyre *g, void *context) {
    struct call *c = context;
    struct visit *v = c->visit;
    v->status = c->window ? handover_check_shown(g, v->prompt, c->bytes, c->window->at, &v->err)
                          : handover_check_bytes(g, v->prompt, c->bytes, &v->err);
}

static void share(struct gyre *g, void *context) {
    struct call *c = context;
    struct visit *v = c->visit;
    v->status = g->ops->handover->share ? g->ops->handover->share(g->loaded, c->name, &v->err)
                                        : fail(&v->err, ERR_UNSUPPORTED, "device %s has no windows", g->ops->name);
}

static void show(struct gyre *g, void *context) {
    struct call *c = context;
    struct visit *v = c->visit;
    if (is_there(g, v))
        v->status = handover_show(&v->of, c->part, c->at, c->out, &v->err);
}

static void read_part(struct gyre *g, void *context) {
    struct call *c = context;
    struct visit *v = c->visit;
    if (is_there(g, v))
        v->status = handover_read(&v->of, c->part, c->max_bytes, c->out, &v->err);
}

static void write_blocks(struct gyre *g, void *context) {
    struct call *c = context;
    struct visit *v = c->visit;
    if (is_there(g, v))
        v->status = handover_write(&v->of, c->bytes, &v->err);
}

/* What is shown may be other blocks' by now. */
static void take_shown(struct gyre *g, void *context) {
    struct call *c = context;
    struct visit *v = c->visit;
    if (is_there(g, v))
        v->status = handover_take_shown(&v->of, c->window->name, c->window->at, &v->err);
    if (v->status == OK && clock_us() >= c->window->until_us)
        v->status = fail(&v->err, ERR_IO, "what was shown was not copied in time");
}

static void end(struct gyre *g, void *context) {
    struct call *c = context;
    if (is_there(g, c->visit))
        handover_end(&c->visit->of);
}

static void adopt(struct gyre *g, void *context) {
    struct call *c = context;
    if (is_there(g, c->visit))
        handover_adopt(&c->visit->of);
}

/* Either, unless something has failed. */
static void do_between(void (*run)(struct gyre *g, void *context), struct call *c) {
    struct visit *v = c->visit;
    if (v->status == OK && !lane_errand(v->lane, run, c))
        v->status = fail(&v->err, ERR_FULL, "the server is shutting down");
}
static void do_beside(void (*run)(struct gyre *g, void *context), struct call *c) {
    struct visit *v = c->visit;
    if (v->status == OK && !lane_beside(v->lane, run, c))
        v->status = fail(&v->err, ERR_DEVICE, "the engine is opened anew");
}
static void wait_until_settled(struct call *c) {
    while (c->visit->status == OK && !c->visit->settles)
        do_between(settle, c);
}

static enum status outcome(const struct visit *v, struct error *err) {
    if (v->status != OK)
        *err = v->err;
    return v->status;
}

enum status visit_prepare(struct lane *lane, struct error *err) {
    struct visit v = {.lane = lane};
    do_between(prepare, &(struct call){.visit = &v});
    return outcome(&v, err);
}

int32_t visit_known(struct lane *lane, const struct handover_prompt *p) {
    struct visit v = {.lane = lane, .prompt = p};
    struct call c = {.visit = &v};
    return lane_errand(lane, look, &c) ? c.known : 0;
}

void visit_hold_now(struct gyre *g, struct visit *v) {
    v->status = handover_hold(g, v->prompt, v->from, &v->of, &v->err);
    if (v->status == OK)
        settle(g, &(struct call){.visit = v});
}

void visit_hold(struct visit *v) {
    struct call c = {.visit = v};
    do_between(hold, &c);
    wait_until_settled(&c);
}

enum status visit_read(struct visit *v, struct handover_part part, size_t max_bytes, struct buf *out,
                       struct error *err) {
    struct call c = {.visit = v, .part = part, .max_bytes = max_bytes, .out = out};
    wait_until_settled(&c);
    do_beside(read_part, &c);
    return outcome(v, err);
}

/* A visit that nobody ends any more is of an engine that is being closed. */
void visit_end(struct visit *v) {
    if (v->of.g && !lane_errand(v->lane, end, &(struct call){.visit = v}))
        handover_leave(&v->of);
}

enum status visit_share(struct lane *lane, char window[WINDOW_NAME], struct error *err) {
    struct visit v = {.lane = lane};
    do_beside(share, &(struct call){.visit = &v, .name = window});
    return outcome(&v, err);
}

enum status visit_show(struct visit *v, struct handover_part part, size_t at, struct buf *out, struct error *err) {
    struct call c = {.visit = v, .part = part, .at = at, .out = out};
    wait_until_settled(&c);
    do_beside(show, &c);
    return outcome(v, err);
}

static void leave(struct gyre *g, void *context) {
    (void)context;
    if (g->ops->handover->leave)
        g->ops->handover->leave(g->loaded);
}

void visit_leave(struct lane *lane) { lane_beside(lane, leave, NULL); }

static enum status take_over(struct call *c, int32_t *n, struct error *err) {
    struct visit *v = c->visit;
    do_beside(check, c);
    do_between(make_room, c);
    wait_until_settled(c);
    *n = v->of.n;
    do_beside(c->window ? take_shown : write_blocks, c);
    do_between(adopt, c);
    enum status st = outcome(v, err);
    visit_end(v);
    return st;
}

enum status visit_write(struct lane *lane, const struct handover_prompt *p, struct str bytes, int32_t *n,
                        struct error *err) {
    struct visit v = {.lane = lane, .prompt = p};
    return take_over(&(struct call){.visit = &v, .bytes = bytes}, n, err);
}

enum status visit_take(struct lane *lane, const struct handover_prompt *p, struct str bytes,
                       const struct prompt_window *window, int32_t *n, struct error *err) {
    struct visit v = {.lane = lane, .prompt = p};
    return take_over(&(struct call){.visit = &v, .bytes = bytes, .window = window}, n, err);
}
