/* text_places.c - a sequence's text in the draft's tokens: see text_drafter_parts.h. */
#include "engine/draft/text_drafter_parts.h"

#include <string.h>

/* Tokens of the target that are cut at a time, before they are closed, and that stay open. */
enum { MOST_OPEN = 512, CLOSED_FROM = 64, KEPT_OPEN = 16 };

// ---- places -----------------------------------------------------------------------------------------------------

static void give_blocks(struct text_drafter *d, struct text_place *t) {
    while (t->n_blocks > 0)
        d->free_blocks[d->n_free++] = t->blocks[--t->n_blocks];
    t->n_rows = 0;
}

/* Of those that are in no chain of this follow, that which was used longest ago. */
static struct text_place *oldest(struct text_drafter *d, bool has_blocks) {
    struct text_place *found = NULL;
    for (int i = 0; i < d->n_places; i++) {
        struct text_place *t = &d->places[i];
        if (t->used != d->n_follows && (!has_blocks || t->n_blocks > 0) && (!found || t->used < found->used))
            found = t;
    }
    return found;
}

static struct text_place *place_of(struct text_drafter *d, uint64_t owner) {
    for (int i = 0; i < d->n_places; i++)
        if (d->places[i].is_taken && d->places[i].owner == owner)
            return &d->places[i];
    struct text_place *t = oldest(d, false);
    if (!t)
        return NULL;
    give_blocks(d, t);
    t->n_ids = t->n_closed = t->n_closed_ids = 0;
    t->is_taken = true;
    t->owner = owner;
    if (d->own.first >= 0) {
        t->ids[t->n_ids++] = d->own.first;
        t->n_closed_ids = 1;
    }
    return t;
}

static bool take_blocks(struct text_drafter *d, struct text_place *t, int32_t n_rows) {
    int32_t wanted = (n_rows + d->block_size - 1) / d->block_size;
    for (struct text_place *other; t->n_blocks + d->n_free < wanted && (other = oldest(d, true));)
        give_blocks(d, other);
    if (t->n_blocks + d->n_free < wanted)
        return false;
    while (t->n_blocks < wanted)
        t->blocks[t->n_blocks++] = d->free_blocks[--d->n_free];
    return true;
}

// ---- cutting ----------------------------------------------------------------------------------------------------

/* A special token that the draft has not is left out, and its own first token, which is there. */
static bool is_left_out(const struct text_drafter *d, int32_t id, int32_t at) {
    if (!token_is_special(&d->target, id))
        return false;
    return d->special[id] < 0 || (at == 0 && d->special[id] == d->own.first);
}

/* Bytes of the target's tokens [first, end), as many as have room; returns how many, with d->ends. */
static int32_t gather(struct text_drafter *d, const int32_t *tokens, int32_t first, int32_t end) {
    int32_t n = 0, n_bytes = 0;
    for (; first + n < end && n < MOST_OPEN; n++) {
        int32_t id = tokens[first + n], length = is_left_out(d, id, first + n) ? 0 : token_length(&d->target, id);
        if (n_bytes + length > MOST_CUT_BYTES)
            break;
        memcpy(d->bytes + n_bytes, length ? token_at(&d->target, id) : "", (size_t)length);
        d->ends[n] = n_bytes += length;
    }
    return n;
}

/* The open part becomes these tokens; rows behind the first that is another are not there any more. */
static bool take(struct text_drafter *d, struct text_place *t, int n) {
    int32_t at = t->n_closed_ids, same = 0;
    while (same < n && at + same < t->n_ids && t->ids[at + same] == d->cut[same])
        same++;
    if (at + n > d->longest)
        return false;
    memcpy(t->ids + at, d->cut, (size_t)n * sizeof *t->ids);
    t->n_ids = at + n;
    t->n_rows = MIN(t->n_rows, at + same);
    return true;
}

/* Up to the last border of tokens of both that leaves some open; where there is none, and it has to be, all. */
static void close_some(const struct text_drafter *d, struct text_place *t, int32_t n, int n_cut, bool must) {
    int32_t i = n - KEPT_OPEN;
    int j = n_cut;
    for (; i > 0; i--) {
        while (j > 0 && d->cut_end[j - 1] > d->ends[i - 1])
            j--;
        if (j > 0 && d->cut_end[j - 1] == d->ends[i - 1])
            break;
    }
    if (i <= 0 && !must)
        return;
    t->n_closed += i > 0 ? i : n;
    t->n_closed_ids += i > 0 ? j : n_cut;
}

static bool cut(struct text_drafter *d, struct text_place *t, const struct sequence *seq) {
    for (bool is_whole = false; !is_whole;) {
        int32_t n = gather(d, seq->tokens, t->n_closed, seq->n_known);
        int n_cut = token_bytes_cut(&d->own, d->bytes, n ? d->ends[n - 1] : 0, d->cut, d->cut_end, MOST_CUT_BYTES);
        is_whole = t->n_closed + n == seq->n_known;
        if (!take(d, t, n_cut))
            return false;
        if (n > CLOSED_FROM || !is_whole) // few long tokens fill the bytes as well
            close_some(d, t, n, n_cut, !is_whole);
    }
    return t->n_ids > 0;
}

struct text_place *text_place_for(struct text_drafter *d, const struct request *r, int n_ahead) {
    struct text_place *t = place_of(d, r->id);
    if (!t)
        return NULL;
    t->used = d->n_follows;
    bool fits = cut(d, t, &r->sequence) && t->n_ids + n_ahead <= d->longest;
    if (!fits) // nor will it any more
        give_blocks(d, t);
    return fits && take_blocks(d, t, t->n_ids + n_ahead) ? t : NULL;
}

int text_place_guesses(struct text_drafter *d, const struct text_place *t, int n, int32_t *out, int max) {
    int n_bytes = 0;
    for (int i = t->n_ids - n; i < t->n_ids; i++) {
        int length = token_length(&d->own, t->ids[i]);
        if (n_bytes + length > MOST_CUT_BYTES)
            break;
        memcpy(d->bytes + n_bytes, length ? token_at(&d->own, t->ids[i]) : "", (size_t)length);
        n_bytes += length;
    }
    return token_bytes_cut(&d->target, d->bytes, n_bytes, out, d->cut_end, max);
}
