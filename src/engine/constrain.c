/* constrain.c - grammars in the step: which mask a row is drawn with, and when it can be known.
 *
 * A row whose last token is known has its mask when the step is planned. One that follows a token of the step in flight
 * has it only when that is collected, so its step is late (backend_ops.draw): started without masks, drawn with them.
 * While it runs the helpers work (constraint.h). Rows without a grammar that share a late step wait with it.
 *
 * Jump-forward: where the grammar leaves no choice the host knows what a row will draw. Of a late step it puts all of
 * what must come into the sequence before the next one is planned, which computes it at once. Of any other the first
 * token is drawn, and the rest put in with it. */
#include "engine/engine.h"

#include <unistd.h>

enum { MOST_HELPERS = 8, PROCESSORS_A_HELPER = 4 };

enum status engine_constrain_begin(struct gyre *g, struct error *err) {
    long n = sysconf(_SC_NPROCESSORS_ONLN) / PROCESSORS_A_HELPER;
    if (!g->mask_crew)
        g->mask_crew = mask_crew_open((int)MAX(MIN(n, MOST_HELPERS), 1));
    return g->mask_crew ? OK : fail(err, ERR_MEMORY, "no thread could be started for grammars");
}

void engine_constrain_end(struct gyre *g, struct request *r) {
    if (r->constraint && g->mask_crew)
        mask_crew_await(g->mask_crew, r->constraint);
}

static bool draws(const struct request *r, int32_t position) {
    return r->asked.max_tokens > 0 && position >= r->sequence.n_known - 1;
}

bool engine_mask_is_late(const struct request *r, int32_t position) {
    return r->constraint && draws(r, position) && sequence_expects(&r->sequence, position);
}

void engine_mask_row(struct gyre *g, const struct request *r, int32_t position, struct sample_params *p) {
    struct constraint *c = r->constraint;
    if (!c || r->ended || !draws(r, position))
        return;
    mask_crew_await(g->mask_crew, c);
    p->mask = c->mask;
    if (c->must_end)
        p->n_banned = 0;
    if (c->n_forced > 0) // the mask is of what follows
        p->mask = NULL, p->n_banned = 0, p->allowed = c->forced, p->n_allowed = 1;
}

void engine_constrain_next(struct gyre *g, struct request *r) {
    if (r->constraint)
        mask_crew_give(g->mask_crew, r->constraint, r->sequence.n_known);
}

void engine_constrain_go(struct gyre *g) {
    if (g->mask_crew)
        mask_crew_go(g->mask_crew);
}
