/* regex_language.c - the language of a regular expression that says something of places.
 *
 * A part is made together with the language of what stands behind it (`rest`). So a lookahead is `rest` and what it
 * wants, a negative one `rest` and not that, and $ says that rest may be empty and is. ^ is true where nothing stands
 * before. What would need more (a lookahead that is repeated) is refused. */
#include "grammar/front/regex_tree.h"
#include "grammar/rx_pool.h"

enum place { AT_START, BEHIND, MAYBE_BEHIND };

static enum status language(struct regex_reader *r, const struct tree *t, enum place place, rx_id rest, rx_id *out);

static bool is_zero_wide(const struct tree *t) {
    return t->kind >= TREE_START || (t->kind == TREE_RX && t->rx == RX_EMPTY);
}

static bool may_be_empty(const struct regex_reader *r, const struct tree *t) {
    switch (t->kind) {
    case TREE_RX: return rx_nullable(r->rx, t->rx);
    case TREE_SEQ:
        for (size_t i = 0; i < t->n; i++)
            if (!may_be_empty(r, t->parts[i]))
                return false;
        return true;
    case TREE_ALT:
        for (size_t i = 0; i < t->n; i++)
            if (may_be_empty(r, t->parts[i]))
                return true;
        return false;
    case TREE_REPEAT: return t->min == 0 || may_be_empty(r, t->parts[0]);
    default: return true;
    }
}

/* Whether nothing but places is in it. */
static bool only_places(const struct tree *t) {
    if (t->kind != TREE_SEQ && t->kind != TREE_ALT)
        return is_zero_wide(t);
    for (size_t i = 0; i < t->n; i++)
        if (!only_places(t->parts[i]))
            return false;
    return true;
}

static enum status sequence(struct regex_reader *r, const struct tree *t, enum place place, rx_id rest, rx_id *out) {
    enum place *places = arena_calloc(&r->memory, t->n + 1, sizeof *places);
    for (size_t i = 0; i < t->n; i++) {
        places[i] = place;
        if (!only_places(t->parts[i]))
            place = !may_be_empty(r, t->parts[i]) ? BEHIND : place == AT_START ? MAYBE_BEHIND : place;
    }
    for (size_t i = t->n; i-- > 0;)
        TRY(language(r, t->parts[i], places[i], rest, &rest));
    *out = rest;
    return OK;
}

static enum status repeat(struct regex_reader *r, const struct tree *t, enum place place, rx_id rest, rx_id *out) {
    enum { MAX_COPIES = 8 };
    if (t->max == RX_NO_MAX || t->max > MAX_COPIES)
        return regex_bad(r, ERR_UNSUPPORTED, "^, $ or a lookahead within a repeat is not enforced");
    for (int32_t i = t->max; i > 0; i--) {
        rx_id with;
        TRY(language(r, t->parts[0], i == 1 ? place : place == AT_START ? MAYBE_BEHIND : place, rest, &with));
        rest = i > t->min ? rx_alt(r->rx, rest, with) : with;
    }
    *out = rest;
    return OK;
}

/* Repeats of repeats multiply what is made, though it may all be one: no limit of nodes sees that. */
static enum status count_step(struct regex_reader *r) {
    enum { MAX_STEPS = 3 << 20, STEPS_A_LOOK = 1024 }; // three times the parts of the longest text
    if (++r->steps > MAX_STEPS)
        return regex_bad(r, ERR_LIMIT, "repeats of repeats with ^, $ or a lookahead within are too large");
    if (r->steps % STEPS_A_LOOK)
        return OK;
    rx_check_time(r->rx);
    return rx_check(r->rx, r->err);
}

static enum status language(struct regex_reader *r, const struct tree *t, enum place place, rx_id rest, rx_id *out) {
    rx_id found = RX_NEVER;
    TRY(count_step(r));
    switch (t->kind) {
    case TREE_RX: *out = rx_seq(r->rx, t->rx, rest); return OK;
    case TREE_SEQ: return sequence(r, t, place, rest, out);
    case TREE_REPEAT: return repeat(r, t, place, rest, out);
    case TREE_ALT:
        for (size_t i = 0; i < t->n; i++) {
            rx_id one;
            TRY(language(r, t->parts[i], place, rest, &one));
            found = rx_alt(r->rx, found, one);
        }
        break;
    case TREE_START:
        if (place == MAYBE_BEHIND)
            return regex_bad(r, ERR_UNSUPPORTED, "^ behind what may be empty is not enforced");
        found = place == AT_START ? rest : RX_NEVER;
        break;
    case TREE_END: found = rx_nullable(r->rx, rest) ? RX_EMPTY : RX_NEVER; break;
    case TREE_AHEAD:
    case TREE_NOT_AHEAD:
        TRY(language(r, t->parts[0], place, RX_ALL, &found));
        found = rx_and(r->rx, rest, t->kind == TREE_AHEAD ? found : rx_not(r->rx, found));
        break;
    }
    *out = found;
    return OK;
}

enum status regex_language(struct regex_reader *r, const struct tree *t, rx_id *out) {
    if (!(r->flags & REGEX_SEARCH))
        return language(r, t, AT_START, RX_EMPTY, out);
    rx_id any = rx_any_text(r->rx), from_start, behind;
    TRY(language(r, t, BEHIND, any, &behind));
    TRY(language(r, t, AT_START, any, &from_start));
    if (behind == from_start) // no ^
        *out = rx_seq(r->rx, any, behind);
    else
        *out = rx_alt(r->rx, from_start, rx_seq(r->rx, rx_seq(r->rx, rx_any_char(r->rx), any), behind));
    return OK;
}
