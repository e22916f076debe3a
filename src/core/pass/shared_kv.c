/* shared_kv.c - caches without what of a key follows from its value: see pass.h.
 *
 * Where v is k before its norm and rotation (v_from_k), and both are normed, a key is its value times the weight of the
 * key's norm, turned. The channels that the rotation leaves alone need not be stored: whoever reads the cache takes
 * v's, and the query is multiplied by that weight instead. */
#include "core/pass/pass.h"

#include "base/status.h"

#include <stdlib.h>

static bool is_of(const struct program *p, const struct op *op, enum opcode code, int group) {
    int cache = code == OP_QKV_PREP ? op->args.qkv_prep.cache : op->args.attention.cache;
    return op->code == code && p->caches[cache].group == group;
}

/* Channels of the op's keys that are turned, if the others follow from v; else 0. */
static int turned_of(const struct program *p, const struct op *op) {
    const struct qkv_args *a = &op->args.qkv_prep;
    const struct rope *rope = a->rope >= 0 ? p->ropes[a->rope] : NULL;
    bool normed = a->v_norm && op->weights[0] && (op->weights[1] || a->k_absent);
    if (!a->v_from_k || !normed || !rope || rope->dim != a->head_dim || a->v_head_dim != a->head_dim)
        return 0;
    int turned = rope_turned(rope);
    return turned < a->head_dim ? turned : 0;
}

int shared_kv_channels(const struct program *p, int group) {
    int channels = -1;
    for (int i = 0; i < p->n_ops; i++) {
        const struct op *op = &p->ops[i];
        if (is_of(p, op, OP_ATTENTION, group) && op->args.attention.paired_values)
            return 0;
        if (!is_of(p, op, OP_QKV_PREP, group))
            continue;
        int turned = turned_of(p, op);
        if (channels >= 0 && turned != channels)
            return 0;
        channels = turned;
    }
    return MAX(channels, 0);
}

/* The weight of the norm of the keys in a cache, which layers that only read it need too. */
static const struct weight *norm_of_keys(const struct program *p, int cache) {
    for (int i = 0; i < p->n_ops; i++)
        if (p->ops[i].code == OP_QKV_PREP && p->ops[i].args.qkv_prep.cache == cache &&
            !p->ops[i].args.qkv_prep.k_absent)
            return p->ops[i].weights[1];
    BUG_IF(true); // a cache that nobody fills
    return NULL;
}

static void share(struct program *p, int group, int channels, const struct program *owner) {
    p->groups[group].k_dim = channels;
    p->groups[group].shared_kv = true;
    for (int i = 0; i < p->n_ops; i++) {
        struct op *op = &p->ops[i];
        if (is_of(p, op, OP_ATTENTION, group))
            op->args.attention.rotary_dim = channels;
        if (!is_of(p, op, OP_QKV_PREP, group))
            continue;
        op->args.qkv_prep.rotary_dim = channels;
        op->weights[1] = norm_of_keys(owner, op->args.qkv_prep.cache);
    }
}

struct program *pass_shared_kv(const struct program *from, bool (*takes)(int head_dim, int channels)) {
    struct program *p = program_copy(from);
    for (int g = 0; g < p->n_groups; g++) {
        int channels = p->groups[g].kind == CACHE_KV ? shared_kv_channels(p, g) : 0;
        if (channels > 0 && (!takes || takes(p->groups[g].k_dim, channels)))
            share(p, g, channels, p);
    }
    return p;
}

struct program *pass_shared_kv_as(const struct program *from, const struct program *owner) {
    struct program *p = program_copy(from);
    for (int g = 0; g < p->n_groups; g++)
        if (owner->groups[g].shared_kv)
            share(p, g, owner->groups[g].k_dim, owner);
    return p;
}
