/* mask_states.h - the states of a terminal's automaton that a walk through the vocabulary meets, with what such a walk
 * asks of them.
 *
 * States are numbered as they are met; 0 is the dead one. A step is two loads. Of each state some kinds of bytes are
 * safe: a token of these alone stays alive, whatever states it comes through. Some are fatal: behind safe ones they are
 * the end, always, and no state on the way accepts. So only tokens with a byte of another kind need be looked at. */
#pragma once

#include "grammar/rx_pool.h"
#include "grammar/trie.h"

struct mask_behind {   // the states behind characters beyond ASCII, if these are alive
    uint32_t first, n; // in characters
};

struct mask_state {
    rx_id id;
    uint32_t map, next; // of its row: the map of bytes to classes, and where the classes' states are
    bool accepts;
    bool knows_alive, knows_safe;
    bool ill_is_dead;   // what is no UTF-8; of no meaning where characters beyond ASCII are dead
    struct kinds alive; // kinds of bytes that lead on
    struct kinds safe, fatal;
    uint32_t free; // the state with its counters let loose, as which it behaves for `slack` bytes; itself: it has none
    int slack;
    struct mask_behind behind[2]; // KIND_CHARACTER, KIND_PUNCTUATION
};

struct mask_states {
    struct rx_pool *pool;
    VEC(struct mask_state) at;
    VEC(uint32_t) next;       // by class; MASK_STATE_NEW
    VEC(uint32_t) characters; // states
    struct number_map number_of;
    struct number_map safe_of; // an expression that holds itself behind these kinds -> place in safe
    VEC(struct kinds) safe;
    int patience, budget; // failures, and states, of looking for all states that are reached
};

enum { MASK_STATE_NEW = UINT32_MAX };

void mask_states_init(struct mask_states *s, struct rx_pool *pool);
void mask_states_release(struct mask_states *s);

uint32_t mask_state_number(struct mask_states *s, rx_id id);
uint32_t mask_state_make_step(struct mask_states *s, uint32_t state, uint8_t byte);

static inline uint32_t mask_state_step(struct mask_states *s, uint32_t state, uint8_t byte) {
    const struct mask_state *x = &s->at.at[state];
    uint32_t next = s->next.at[x->next + s->pool->maps[x->map][byte]];
    return next == MASK_STATE_NEW ? mask_state_make_step(s, state, byte) : next;
}

/* Whether a state counts characters, and only that: each that is safe in *like, the same state without counters, leads
 * to one state, which has a round less. Returns how many characters it takes at most, MAX_COUNTED for any number; -1:
 * it does not. */
int mask_state_counted(struct mask_states *s, uint32_t state, uint32_t *like);

/* Finds safe and fatal kinds. The result is valid until the next state is made. */
void mask_state_find_safe(struct mask_states *s, uint32_t state);
static inline const struct mask_state *mask_state_safe(struct mask_states *s, uint32_t state) {
    if (!s->at.at[state].knows_safe)
        mask_state_find_safe(s, state);
    return &s->at.at[state];
}
