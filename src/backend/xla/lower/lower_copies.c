/* lower_copies.c - see xla.h: blocks of caches copied one after the other, in the arrays' own memory. */
#include "backend/xla/xla.h"

#include <stdlib.h>

static void lower_copies(const struct loaded *l, const int *arrays, int n, struct buf *out) {
    struct hlo h = {0};
    struct tensor *x = xcalloc((size_t)n, sizeof *x);
    struct loop *loop = xcalloc(1, sizeof *loop);
    for (int i = 0; i < n; i++)
        x[i] = hlo_argument(&h, l->caches[arrays[i]].type, l->caches[arrays[i]].shape, i);
    struct tensor ints = hlo_argument(&h, TYPE_S32, SHAPE(1 + 2 * COPIES_A_LAUNCH), NO_ALIAS);
    hlo_loop_begin(&h, loop, hlo_reshape(&h, hlo_slice(&h, ints, 0, 0, 1), SCALAR), x, n);
    struct tensor at = hlo_binary(&h, "multiply", loop->at, hlo_int(&h, 2));
    struct tensor pair[2];
    for (int i = 0; i < 2; i++)
        pair[i] = hlo_reshape(&h, hlo_window(&h, ints, 0, hlo_binary(&h, "add", at, hlo_int(&h, 1 + i)), 1), SCALAR);
    for (int i = 0; i < n; i++)
        x[i] = hlo_set_window(&h, loop->now[i], 0, pair[1], hlo_window(&h, loop->now[i], 0, pair[0], 1));
    hlo_loop_end(&h, loop, x, x);
    for (int i = 0; i < n; i++)
        hlo_result(&h, x[i]);
    hlo_module(&h, "copies", 1, out);
    free(x);
    free(loop);
}

int copied_arrays(const struct loaded *l, int group, int *out) {
    int n = 0;
    for (int i = 0; i < l->n_caches; i++) {
        bool is_state = l->program->groups[l->caches[i].group].kind == CACHE_STATE;
        if (group == STATE_SLOTS ? is_state : l->caches[i].group == group)
            out[n++] = i;
    }
    return n;
}

void xla_lower_copies(const struct loaded *l, int group, struct buf *out) {
    int *arrays = xcalloc((size_t)l->n_caches + 1, sizeof *arrays);
    lower_copies(l, arrays, copied_arrays(l, group, arrays), out);
    free(arrays);
}
