/* net.h - a grammar as states: what the front ends' form (ir.h) is compiled to, once, for the machine to follow.
 *
 * A rule is a net of states from its start to END. What may recurse or repeat many times is a rule of its own (the body
 * of a counted repeat, the value of a member), called from a state that says where to go on. Whatever no text can
 * satisfy has been taken out: from every state that is left a text can be finished. */
#pragma once

#include "grammar/ir_arena.h"

enum state_kind {
    STATE_END,
    STATE_FORK,     // to each of [a, a + b) of forks, without a byte
    STATE_TERMINAL, // a: terminal
    STATE_CALL,     // a: rule
    STATE_REPEAT,   // a: repeat; counts in the item
    STATE_MEMBERS,  // a: members; what has been seen is in the item
    STATE_VALUE,    // a: members, b: member; behind its key. next is the STATE_MEMBERS
};
struct state {
    uint8_t kind;
    uint32_t a, b, next;
};

struct terminal {
    rx_id rx; // matches no empty text (what may be left out is a fork); RX_NEVER: a special token
    uint32_t tokens;
};

struct rule {
    uint32_t start;
    bool nullable;
    bool left_recursive; // it calls itself, perhaps by way of others, before it takes a byte
    uint32_t order;      // rules that call this one before they take a byte have a smaller one, or the same
};

struct repeat {
    int32_t min, max;
    uint32_t rule;
};

struct member {
    uint32_t key, value; // terminal, rule
    bool required, usable;
};

struct members {
    struct member *all; // [n_known + n_others]
    uint32_t n_known, n_others;
    const struct ir_pair *needs, *excludes;
    uint32_t n_needs, n_excludes;
    uint32_t separator; // terminal; UINT32_MAX: no more than one member
    int32_t min, max;
    bool ordered, distinct, separator_may_be_empty;
};

struct net {
    struct state *states;
    uint32_t n_states, cap_states;
    uint32_t *forks;
    uint32_t n_forks, cap_forks;
    struct terminal *terminals;
    uint32_t n_terminals, cap_terminals;
    struct rule *rules; // [0] is the whole
    uint32_t n_rules, cap_rules;
    struct repeat *repeats;
    uint32_t n_repeats, cap_repeats;
    struct members *members;
    uint32_t n_members, cap_members;
    struct ir *ir; // owned: pool of expressions, lists of tokens
};

/* Takes ir (which the net frees). ERR_FORMAT where no text follows the grammar. */
enum status net_compile(struct ir *take_ir, ir_id root, struct net **out, struct error *err);
void net_free(struct net *net); // NULL is fine
size_t net_bytes(const struct net *net);

/* The least sets of nodes that may be empty, and of those that some text satisfies (ir_facts.c). */
struct ir_facts {
    bool *nullable, *productive; // [n_nodes]
};
enum status ir_facts_find(struct ir *ir, struct ir_facts *out, struct error *err);
void ir_facts_release(struct ir_facts *facts);

/* Whether the members that have been seen, and all that these and the required ones need, can stand together. seen and
 * usable are [n_known]; *size is how many known members that is. work [n_known] is the caller's. */
bool members_fit(const struct ir_pair *needs, size_t n_needs, const struct ir_pair *excludes, size_t n_excludes,
                 const bool *usable, size_t n_known, bool *seen_and_required, uint32_t *size);

/* Sets order and left_recursive of all rules (rule_order.c). */
void net_order_rules(struct net *net);

/* May the members be none at all? */
static inline bool members_nullable(const struct members *m) {
    for (uint32_t i = 0; i < m->n_known; i++)
        if (m->all[i].required)
            return false;
    return m->min == 0;
}
