/* lower_ring.c - see lower.h: rings of windows (core/pass/pass.h). A ring is read whole, where it lies, as the one
 * block of a sequence's table; what a place of it holds follows from the sequence's last row alone, so that a sequence
 * may go back, as far as what was put since is no window's. */
#include "backend/xla/lower/lower.h"

struct tensor lower_ring_positions(struct lower *c, int ring) {
    struct hlo *h = &c->h;
    int64_t n_seqs = c->s.n_seqs, n_queries = c->s.n_queries;
    struct shape shape = SHAPE(n_seqs, ring);
    struct tensor position = hlo_reshape(h, c->position, SHAPE(n_seqs, n_queries));
    struct tensor last = hlo_reshape(h, hlo_slice(h, position, 1, n_queries - 1, 1), SHAPE(n_seqs));
    struct tensor at = hlo_rows(h, last, shape), turn = hlo_int(h, ring);
    struct tensor behind = hlo_binary(h, "subtract", at, hlo_iota(h, TYPE_S32, shape, 1)); // above -ring
    behind = hlo_binary(h, "remainder", hlo_binary(h, "add", behind, turn), turn);
    struct tensor holds = hlo_binary(h, "subtract", at, behind);
    return hlo_spread(h, holds, SHAPE(n_seqs, n_queries, ring), AXES(0, 2));
}
