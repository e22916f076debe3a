/* emit_object.c - object forms as members in any order.
 *
 * Keys may be written twice only where that is no harm: named ones never, others not where it matters how many
 * different ones there are. "Some key of a language has a value that fits" becomes one such key, once, or one of
 * the named. */
#include "grammar/schema/emit.h"

enum { MAX_ONCE = 4 };

static ir_id member_value(struct reader *r, node_id value) {
    return ir_seq(r->ir, ir_terminal(r->ir, r->colon), emit_value(r, value));
}

struct list {
    struct ir_member *known, *others;
    struct ir_pair *needs;
    size_t n_known, n_others, n_needs;
};

static void known_keys(struct reader *r, const struct object_form *f, struct list *out, uint32_t *place) {
    struct rx_pool *rx = ir_rx(r->ir);
    for (int i = 0; i < f->n_named && !refused(r); i++) {
        place[i] = UINT32_MAX;
        if (f->named[i].value == NODE_FALSE)
            continue;
        place[i] = (uint32_t)out->n_known;
        out->known[out->n_known++] = (struct ir_member){emit_quoted_rx(r, rx_bytes(rx, f->named[i].key)),
                                                        member_value(r, f->named[i].value), f->named[i].required};
    }
}

/* Languages of other keys, but for those that a single key of `some` takes. */
static void other_keys(struct reader *r, const struct object_form *f, rx_id taken, struct list *out) {
    for (int i = 0; i < f->n_others && !refused(r); i++) {
        if (f->others[i].value == NODE_FALSE)
            continue;
        rx_id keys = object_unnamed(r, f, f->others[i].keys);
        if (taken != RX_NEVER)
            keys = text_and(r, keys, text_not(r, taken));
        out->others[out->n_others++] =
            (struct ir_member){f->min > 1 ? emit_quoted_one_way(r, keys) : emit_quoted_rx(r, keys),
                               member_value(r, f->others[i].value), false};
    }
}

static int named_index(const struct object_form *f, struct str key) {
    for (int i = 0; i < f->n_named; i++)
        if (str_eq(f->named[i].key, key))
            return i;
    return -1;
}

static void add_needs(const struct object_form *f, const uint32_t *place, struct list *out) {
    for (int i = 0; i < f->n_needs; i++) {
        uint32_t seen = place[named_index(f, f->needs[i].seen)], needed = place[named_index(f, f->needs[i].needed)];
        if (seen != UINT32_MAX && needed != UINT32_MAX && seen != needed)
            out->needs[out->n_needs++] = (struct ir_pair){seen, needed};
    }
}

/* Keys that need one which may not be there may not be there either. */
static struct object_form without_hopeless(struct reader *r, const struct object_form *f, bool *possible) {
    struct object_form out = *f;
    struct named *named = arena_calloc(&r->arena, (size_t)f->n_named, sizeof *named);
    copy_bytes(named, f->named, (size_t)f->n_named * sizeof *named);
    out.named = named;
    for (bool again = f->n_needs > 0; again;) {
        again = false;
        for (int i = 0; i < f->n_needs; i++) {
            struct named *seen = &named[named_index(f, f->needs[i].seen)];
            struct named *needed = &named[named_index(f, f->needs[i].needed)];
            if (needed->value == NODE_FALSE && seen->value != NODE_FALSE) {
                seen->value = NODE_FALSE;
                again = true;
            }
        }
    }
    *possible = object_possible(&out);
    return out;
}

/* Other keys may stand twice, and then count for one: so where more than one of them is needed to reach the minimum,
 * they must be distinct. */
static bool must_differ(const struct object_form *f, const struct list *list) {
    int64_t required = 0;
    for (size_t i = 0; i < list->n_known; i++)
        required += list->known[i].required;
    return list->n_others > 0 && f->min > required + 1;
}

static enum enough enough_keys(struct reader *r, const struct object_form *f, const struct list *list) {
    rx_id keys = RX_NEVER;
    for (size_t i = 0; i < list->n_others; i++)
        keys = rx_alt(ir_rx(r->ir), keys, list->others[i].key);
    int64_t missing = f->min - (int64_t)list->n_known;
    enum enough enough = missing > 0 ? has_texts(ir_rx(r->ir), keys, missing) : ENOUGH;
    if (enough == NOT_KNOWN)
        reader_refuse(r, ERR_UNSUPPORTED, "minProperties: %lld is not enforced here: too few keys are known",
                      (long long)f->min);
    return enough;
}

static int32_t bound(int64_t n) { return n == UNBOUNDED ? IR_NO_MAX : (int32_t)MIN(n, INT32_MAX); }

/* Keys that must be there once, each of a language of its own that `others` do not take. */
struct once {
    struct some keys[MAX_ONCE];
    int n;
};

static void once_keys(struct reader *r, const struct once *once, struct list *list) {
    for (int i = 0; i < once->n; i++)
        list->known[list->n_known++] =
            (struct ir_member){emit_quoted_rx(r, once->keys[i].keys), member_value(r, once->keys[i].value), true};
}

static rx_id taken_by(struct reader *r, const struct once *once) {
    rx_id taken = RX_NEVER;
    for (int i = 0; i < once->n; i++)
        taken = rx_alt(ir_rx(r->ir), taken, once->keys[i].keys);
    return taken;
}

/* The form without `some`, but with the keys of `once`. */
static ir_id emit_members(struct reader *r, const struct object_form *given, const struct once *once) {
    bool possible;
    struct object_form f = without_hopeless(r, given, &possible);
    if (!possible)
        return IR_NEVER;
    size_t most = (size_t)(f.n_named + f.n_others + f.n_needs) + MAX_ONCE;
    struct list list = {xcalloc(most, sizeof *list.known),
                        xcalloc(most, sizeof *list.others),
                        xcalloc(most, sizeof *list.needs),
                        0,
                        0,
                        0};
    uint32_t *place = xcalloc(most, sizeof *place);
    known_keys(r, &f, &list, place);
    add_needs(&f, place, &list);
    once_keys(r, once, &list);
    other_keys(r, &f, taken_by(r, once), &list);
    bool distinct = must_differ(&f, &list);
    possible = !distinct || enough_keys(r, &f, &list) == ENOUGH;
    struct ir_members members = {.known = list.known,
                                 .others = list.others,
                                 .needs = list.needs,
                                 .n_known = list.n_known,
                                 .n_others = list.n_others,
                                 .n_needs = list.n_needs,
                                 .separator = r->comma,
                                 .distinct = distinct,
                                 .min = bound(f.min),
                                 .max = bound(f.max)};
    ir_id out = refused(r) || !possible ? IR_NEVER : ir_members(r->ir, &members);
    free(place);
    free(list.known);
    free(list.others);
    free(list.needs);
    return out;
}

static ir_id emit_some(struct reader *r, const struct object_form *f, int i, const struct once *once);

/* some[i] by a key that the form names. */
static ir_id by_named(struct reader *r, const struct object_form *f, int i, const struct once *once) {
    const struct some *some = &f->some[i];
    ir_id out = IR_NEVER;
    for (int k = 0; k < f->n_named && !refused(r); k++) {
        if (!rx_match(ir_rx(r->ir), some->keys, f->named[k].key))
            continue;
        struct object_form with = object_with(r, f->named[k].key, some->value), next;
        reader_work(r, (size_t)f->n_named);
        if (object_and(r, f, &with, &next))
            out = ir_alt(r->ir, out, emit_some(r, &next, i + 1, once));
    }
    return out;
}

/* some[i] by a key that is already there once. */
static ir_id by_once(struct reader *r, const struct object_form *f, int i, const struct once *once) {
    ir_id out = IR_NEVER;
    for (int k = 0; k < once->n && !refused(r); k++) {
        struct once narrower = *once;
        struct some *key = &narrower.keys[k];
        *key = (struct some){text_and(r, key->keys, f->some[i].keys), node_and(r, key->value, f->some[i].value)};
        if (key->value != NODE_FALSE && !language_is_empty(r, key->keys))
            out = ir_alt(r->ir, out, emit_some(r, f, i + 1, &narrower));
    }
    return out;
}

/* some[i] by one more key. It is not told from those that are there already where their languages meet: then a
 * text must do with one key for both. */
static ir_id by_other(struct reader *r, const struct object_form *f, int i, const struct once *once) {
    ir_id out = IR_NEVER;
    for (int k = 0; k < f->n_others && !refused(r); k++) {
        node_id value = node_and(r, f->others[k].value, f->some[i].value);
        rx_id keys = object_unnamed(r, f, text_and(r, f->others[k].keys, f->some[i].keys));
        if (once->n > 0)
            keys = text_and(r, keys, text_not(r, taken_by(r, once)));
        if (value == NODE_FALSE || language_is_empty(r, keys))
            continue;
        if (once->n == MAX_ONCE)
            reader_refuse(r, ERR_UNSUPPORTED, "not: of more than %d languages of keys at once is not enforced",
                          MAX_ONCE);
        struct once more = *once;
        if (!refused(r))
            more.keys[more.n++] = (struct some){keys, value};
        out = ir_alt(r->ir, out, emit_some(r, f, i + 1, &more));
    }
    return out;
}

static ir_id emit_some(struct reader *r, const struct object_form *f, int i, const struct once *once) {
    reader_work(r, 64);
    if (refused(r))
        return IR_NEVER;
    if (i == f->n_some)
        return emit_members(r, f, once);
    ir_id out = ir_alt(r->ir, by_named(r, f, i, once), by_once(r, f, i, once));
    return ir_alt(r->ir, out, by_other(r, f, i, once));
}

ir_id emit_object(struct reader *r, const struct object_form *f) {
    return emit_between(r, "{", emit_some(r, f, 0, &(struct once){.n = 0}), "}");
}
