/* ir_arena.h - the intermediate form as the compiler reads it (net.c). ir.h is for those who write it. */
#pragma once

#include "base/arena.h"
#include "grammar/ir.h"

struct ir_token_list {
    struct ir_token *tokens; // [n]
    uint32_t n;
    bool none_of; // a special token that is not among them
};

struct ir {
    struct rx_pool *rx;
    struct ir_node *nodes;
    uint16_t *depth; // [n_nodes], not through rules
    uint32_t n_nodes, cap_nodes, max_nodes;
    ir_id *parts;
    size_t n_parts, cap_parts;
    struct ir_token_list *tokens;
    uint32_t n_tokens, cap_tokens;
    struct ir_members *members; // what they point to is in memory
    uint32_t n_members, cap_members;
    char **rule_names; // [n_rules]; b of a rule is its number
    uint32_t n_rules, cap_rules;
    struct arena memory;
    struct error err;
};
