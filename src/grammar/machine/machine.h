/* machine.h - the pushdown automaton of a net (net.h), built while texts are read: what front matchers step through.
 *
 * An item is a place in a rule: a state, what it counts (`extra`), and the frame to which its rule returns. A frame is
 * what all callers of a rule at one place in the text want to go on with: a set of items. Frames are interned by what
 * is in them, and a call at the end of a rule puts its caller's returns into the frame itself, so lists of any length
 * written with recursion on either end keep a handful of frames. (This is Earley's algorithm, with origin sets named by
 * content instead of by place; Leo's right recursion comes of itself.)
 *
 * A row is a set of items behind a terminal: which terminals may come next, and where each leads. A thread is a
 * terminal being read: the row it began in and the state of its automaton (rx_pool.h). A config is the set of threads
 * behind some bytes of text. Where a terminal may end, a config has threads of its row's successor too: no cut into
 * terminals is preferred, all that are possible live side by side. Rows, threads and configs do not know what stood
 * before them but by frames, and so they recur: a step is a look into a table most of the time.
 *
 * Row 0 and config 0 are the dead ones. Nothing here locks: whoever owns a machine does. */
#pragma once

#include "grammar/net.h"
#include "grammar/numbers.h"
#include "grammar/rx_pool.h"

struct item {
    uint32_t state, extra, frame;
};

struct frame {
    uint32_t rule, first, n; // links [first, first + n): items to go on with behind the rule
    uint32_t callers;        // of a rule in a left-recursive circle: its set of calls, the key instead of links
    bool filled;             // such a frame's links are there
};

struct call {
    uint32_t rule;
    struct item back;
};

struct call_set {
    uint32_t first, n; // of calls
};

struct wait {
    uint32_t terminal;
    struct item item;
};

struct row {
    uint32_t items, n_items; // as interned: sorted
    uint32_t waits, n_waits; // sorted by terminal
    uint32_t heads, n_heads; // terminals that may come, each once
    bool may_end;
};

struct thread {
    uint32_t row, terminal;
    rx_id at;
    uint32_t text; // of a distinct terminal: what it has read (distinct.c); 0 of others
};

struct config {
    uint32_t first, n; // threads, sorted
    bool may_end;
    int16_t forced; // the byte that must come; CONFIG_FREE, or CONFIG_UNASKED
    int32_t mask;   // slot of its mask; -1
};
enum { CONFIG_FREE = -1, CONFIG_UNASKED = -2 };

/* What has been seen of an object's members: see ir_members. */
struct member_state {
    uint32_t members, count, phase, bits; // bits: offset into member_bits, of known members
    rx_id except;                         // keys of distinct others that have been; RX_NEVER of others
};
enum member_phase { MEMBERS_BEGIN, MEMBERS_AFTER_MEMBER, MEMBERS_AFTER_SEPARATOR };

/* A terminal of distinct others without the keys that have been: numbered behind those of the net. */
struct distinct_terminal {
    rx_id rx;
    bool alive;
};

struct text_node { // a text, as one that is a byte shorter and its last byte
    uint32_t before;
    uint8_t byte;
};

struct machine {
    const struct net *net;
    struct rx_pool *rx; // its own copy, grown by derivatives
    VEC(struct frame) frames;
    VEC(struct item) links;
    VEC(struct call_set) call_sets;
    VEC(struct call) calls;
    VEC(struct row) rows;
    VEC(struct item) row_items;
    VEC(struct wait) waits;
    VEC(uint32_t) heads;
    VEC(struct config) configs;
    VEC(struct thread) threads;
    VEC(struct member_state) member_states;
    VEC(uint64_t) member_bits;
    VEC(struct distinct_terminal) distinct;
    VEC(struct text_node) texts; // from 1 on
    struct number_index frame_index, call_set_index, row_index, config_index, member_index;
    struct number_map advances;    // row, terminal -> row
    struct number_map unions;      // row, row -> row
    struct number_map steps;       // config, byte -> config
    struct number_map distinct_of; // terminal, except -> distinct terminal
    struct number_map text_of;     // text, byte -> text
    uint32_t start;                // config
    struct closing *closing;       // working memory of rows.c
    VEC(struct thread) next;       // of configs.c
    VEC(uint32_t) next_rows;
    // Bounds
    size_t max_bytes;
    int64_t work_left, next_look; // of the call that runs
    enum status failed;
    const char *why;
};

struct machine *machine_open(const struct net *net, size_t max_bytes, struct error *err); // NULL: a limit
void machine_free(struct machine *machine);
size_t machine_bytes(const struct machine *machine);
bool machine_is_full(const struct machine *machine); // it takes more than it may

/* Before each call from outside: gives it its bounds of work, in items and states looked at, of time, and of memory.
 * n_bytes: of a text that it reads. */
void machine_allow(struct machine *machine, size_t n_bytes);
bool machine_spend(struct machine *machine, int64_t work); // false: a bound is met; the call is to be given up
void machine_fail(struct machine *machine, enum status status, const char *why);

/* Rows (rows.c): the one that a text begins with, the one behind terminal `t` of row, and the union of two. 0 where a
 * bound is met. */
uint32_t row_start(struct machine *machine);
uint32_t row_advance(struct machine *machine, uint32_t row, uint32_t t);
uint32_t row_advance_behind(struct machine *machine, struct thread thread); // the same, of a thread at its end
uint32_t row_union(struct machine *machine, uint32_t a, uint32_t b);
void closing_free(struct closing *closing);

/* Configs (configs.c). */
uint32_t config_of_row(struct machine *machine, uint32_t row);
uint32_t config_of_thread(struct machine *machine, struct thread thread);
uint32_t config_step(struct machine *machine, uint32_t config, uint8_t byte);
uint32_t config_steps(struct machine *machine, uint32_t config, struct str bytes);
/* The same where each step was taken before, without changing anything; false: one was not. */
bool config_known_steps(const struct machine *machine, uint32_t config, struct str bytes, uint32_t *out);
uint32_t config_take_terminals(struct machine *machine, uint32_t config, const bool *terminals); // special tokens
struct rx_set config_first_bytes(struct machine *machine, uint32_t config);

/* States of members (member_states.c). i: known ones, then others. */
uint32_t member_state_begin(struct machine *machine, uint32_t members);
uint32_t member_state_after(struct machine *machine, uint32_t state, uint32_t i);
uint32_t member_state_separated(struct machine *machine, uint32_t state);
bool member_state_may_end(struct machine *machine, uint32_t state);
bool member_state_allows(struct machine *machine, uint32_t state, uint32_t i);
bool member_state_allows_any(struct machine *machine, uint32_t state);

/* Distinct others (distinct.c): their terminals know what they have read, and row_advance_behind takes it from those of
 * the members that follow. Off the texts that have been, their states are those of the terminal without them. */
uint32_t distinct_terminal(struct machine *machine, uint32_t terminal, rx_id except);
bool distinct_is_alive(const struct machine *machine, uint32_t terminal);
bool distinct_has_two(struct machine *machine, rx_id at); // texts, at least; false: perhaps not
/* Whether it may depend on the distinct member before if a config takes a byte: one ends, or can only be one text. */
bool step_is_doubtful(struct machine *machine, uint32_t config, uint8_t byte);
uint32_t distinct_text(struct machine *machine, uint32_t text, uint8_t byte); // text with one more byte
rx_id distinct_except(struct machine *machine, rx_id except, uint32_t text);
enum { TEXT_EMPTY = 1 };
static inline bool terminal_is_distinct(const struct machine *machine, uint32_t terminal) {
    return terminal >= machine->net->n_terminals;
}
static inline rx_id terminal_rx(const struct machine *machine, uint32_t terminal) {
    return terminal_is_distinct(machine, terminal) ? machine->distinct.at[terminal - machine->net->n_terminals].rx
                                                   : machine->net->terminals[terminal].rx;
}
uint32_t member_state_except(struct machine *machine, uint32_t state, uint32_t text); // with one more key that has been
uint32_t member_key(struct machine *machine, uint32_t state, uint32_t i);             // the terminal of a member's key
