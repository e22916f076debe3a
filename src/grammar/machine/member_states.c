/* member_states.c - what has been seen of the members of an object, interned, and what may still come. See machine.h.
 */
#include "grammar/machine/machine.h"

#include <xxhash.h>

static size_t n_words(const struct members *m) { return (m->n_known + 63) / 64; }

static uint32_t intern(struct machine *m, struct member_state s, const uint64_t *bits) {
    const struct members *spec = &m->net->members[s.members];
    size_t words = n_words(spec);
    uint64_t hash =
        XXH3_64bits_withSeed(bits, words * sizeof *bits,
                             number_mix((uint64_t)s.members << 34 ^ (uint64_t)s.count << 2 ^ s.phase) ^ s.except);
    uint64_t at = number_index_begin(&m->member_index, hash);
    for (uint32_t found; (found = number_index_next(&m->member_index, hash, &at));) {
        const struct member_state *x = &m->member_states.at[found - 1];
        if (x->members == s.members && x->count == s.count && x->phase == s.phase && x->except == s.except &&
            same_bytes(m->member_bits.at + x->bits, bits, words * sizeof *bits))
            return found - 1;
    }
    s.bits = (uint32_t)m->member_bits.n;
    for (size_t w = 0; w < words; w++)
        VEC_PUSH(m->member_bits, bits[w]);
    VEC_PUSH(m->member_states, s);
    number_index_put(&m->member_index, hash, (uint32_t)m->member_states.n);
    return (uint32_t)m->member_states.n - 1;
}

/* A copy of s with member i seen (UINT32_MAX: none more) and a phase. */
static uint32_t moved(struct machine *m, uint32_t state, uint32_t i, enum member_phase phase) {
    struct member_state s = m->member_states.at[state];
    const struct members *spec = &m->net->members[s.members];
    size_t words = n_words(spec);
    uint64_t small[8] = {0}, *bits = words <= ARRAY_LEN(small) ? small : xmalloc(words * sizeof *bits);
    if (words)
        memcpy(bits, m->member_bits.at + s.bits, words * sizeof *bits);
    s.phase = phase;
    if (i != UINT32_MAX) {
        int32_t most = MAX(spec->min, spec->max == IR_NO_MAX ? 0 : spec->max);
        s.count = (uint32_t)MIN((int64_t)s.count + 1, MAX(most, 1));
        if (i < spec->n_known)
            bits[i / 64] |= (uint64_t)1 << (i % 64);
        if (spec->ordered) // what stands before it in the array is over
            for (uint32_t k = 0; k < MIN(i, spec->n_known); k++)
                bits[k / 64] |= (uint64_t)1 << (k % 64);
    }
    uint32_t out = intern(m, s, bits);
    if (bits != small)
        free(bits);
    return out;
}

uint32_t member_state_begin(struct machine *m, uint32_t members) {
    const struct members *spec = &m->net->members[members];
    uint64_t *bits = xcalloc(n_words(spec) + 1, sizeof *bits);
    uint32_t out = intern(m, (struct member_state){.members = members}, bits);
    free(bits);
    return out;
}
uint32_t member_state_after(struct machine *m, uint32_t state, uint32_t i) {
    return moved(m, state, i, MEMBERS_AFTER_MEMBER);
}
uint32_t member_state_separated(struct machine *m, uint32_t state) {
    return moved(m, state, UINT32_MAX, MEMBERS_AFTER_SEPARATOR);
}

uint32_t member_state_except(struct machine *m, uint32_t state, uint32_t text) {
    struct member_state s = m->member_states.at[state];
    size_t words = n_words(&m->net->members[s.members]);
    s.except = distinct_except(m, s.except, text);
    uint64_t *bits = xmalloc((words + 1) * sizeof *bits); // interning may move the table
    if (words)
        memcpy(bits, m->member_bits.at + s.bits, words * sizeof *bits);
    uint32_t out = intern(m, s, bits);
    free(bits);
    return out;
}

uint32_t member_key(struct machine *m, uint32_t state, uint32_t i) {
    const struct member_state s = m->member_states.at[state];
    const struct members *spec = &m->net->members[s.members];
    return spec->distinct && i >= spec->n_known ? distinct_terminal(m, spec->all[i].key, s.except) : spec->all[i].key;
}

static bool seen(const struct machine *m, const struct member_state *s, uint32_t i) {
    return m->member_bits.at[s->bits + i / 64] >> (i % 64) & 1;
}

/* How many known members must come yet, if `next` (a known one, or UINT32_MAX) comes; UINT32_MAX: it cannot be. next is
 * counted too. */
static uint32_t missing(struct machine *m, const struct member_state *s, uint32_t next) {
    const struct members *spec = &m->net->members[s->members];
    uint32_t n = spec->n_known, count = 0;
    if (!spec->n_needs && !spec->n_excludes) {
        for (uint32_t i = 0; i < n; i++) {
            bool wanted = (spec->all[i].required || i == next) && !seen(m, s, i);
            if (wanted && spec->ordered && next != UINT32_MAX && i < next)
                return UINT32_MAX;
            count += wanted;
        }
        return count;
    }
    bool small[512], *set = 2 * n <= ARRAY_LEN(small) ? small : xmalloc(2 * n * sizeof *set), *usable = set + n;
    uint32_t n_seen = 0, size;
    for (uint32_t i = 0; i < n; i++) {
        usable[i] = spec->all[i].usable;
        set[i] = seen(m, s, i) || spec->all[i].required || i == next;
        n_seen += seen(m, s, i);
    }
    machine_spend(m, (int64_t)n + spec->n_needs + spec->n_excludes);
    bool fits = members_fit(spec->needs, spec->n_needs, spec->excludes, spec->n_excludes, usable, n, set, &size);
    if (set != small)
        free(set);
    return fits ? size - n_seen : UINT32_MAX;
}

bool member_state_may_end(struct machine *m, uint32_t state) {
    const struct member_state s = m->member_states.at[state];
    const struct members *spec = &m->net->members[s.members];
    return s.phase != MEMBERS_AFTER_SEPARATOR && s.count >= (uint32_t)spec->min && missing(m, &s, UINT32_MAX) == 0;
}

/* Where known members come in their order, taking i leaves the earlier ones out: are there enough behind it? */
static bool enough_behind(const struct members *spec, const struct member_state *s, uint32_t i) {
    uint32_t n = s->count + 1;
    for (uint32_t k = i + 1; k < spec->n_known + spec->n_others; k++) {
        if (spec->all[k].usable && k >= spec->n_known)
            return true;
        n += spec->all[k].usable;
    }
    return n >= (uint32_t)spec->min;
}

bool member_state_allows(struct machine *m, uint32_t state, uint32_t i) {
    const struct member_state s = m->member_states.at[state];
    const struct members *spec = &m->net->members[s.members];
    bool known = i < spec->n_known;
    if (!spec->all[i].usable || (known && seen(m, &s, i)))
        return false;
    if (!known && spec->distinct && !distinct_is_alive(m, member_key(m, state, i)))
        return false;
    uint32_t more = missing(m, &s, known ? i : UINT32_MAX);
    if (more == UINT32_MAX || (!known && spec->ordered && more))
        return false;
    if (known && spec->ordered && !enough_behind(spec, &s, i))
        return false;
    return spec->max == IR_NO_MAX || (uint64_t)s.count + !known + more <= (uint32_t)spec->max;
}

bool member_state_allows_any(struct machine *m, uint32_t state) {
    const struct members *spec = &m->net->members[m->member_states.at[state].members];
    for (uint32_t i = 0; i < spec->n_known + spec->n_others; i++)
        if (member_state_allows(m, state, i))
            return true;
    return false;
}
