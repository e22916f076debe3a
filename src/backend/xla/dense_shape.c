/* dense_shape.c - see dense_shape.h. */
#include "backend/xla/dense_shape.h"

bool dense_is_paged(const struct loaded *l, int group) { return l->program->groups[group].kind != CACHE_STATE; }

bool dense_has(const struct loaded *l, int array) { return dense_is_paged(l, l->caches[array].group); }

bool dense_stands_for(const struct loaded *l, const struct launch_shape *s, int array) {
    return s->is_dense && dense_has(l, array);
}

int dense_width(const struct loaded *l, const struct launch_shape *s, int group) {
    struct launch_shape most = *s;
    most.n_queries = 1;
    most.n_steps = l->device->steps; // any launch's, so that copies stay where they are
    return inputs_table_width(l, &most, group);
}

struct shape dense_shape(const struct loaded *l, const struct launch_shape *s, int array) {
    struct shape shape = l->caches[array].shape;
    shape.dims[0] = s->n_seqs;
    shape.dims[2] = (int64_t)dense_width(l, s, l->caches[array].group) * l->block_size;
    return shape;
}
