/* mask_states.c - see mask_states.h. */
#include "grammar/mask_states.h"

enum { MAX_REACHED = 8, BUDGET = 32, PATIENCE = 2, MAX_CHARACTERS = 8 };
enum { NO_ROW = 1 }; // a place in next: whatever the byte, the step is new

// ---- states -----------------------------------------------------------------------------------------------------

void mask_states_init(struct mask_states *s, struct rx_pool *pool) {
    *s = (struct mask_states){.pool = pool, .patience = PATIENCE, .budget = BUDGET};
    VEC_PUSH(s->next, 0); // of the dead state
    VEC_PUSH(s->next, MASK_STATE_NEW);
    mask_state_number(s, RX_NEVER);
}

void mask_states_release(struct mask_states *s) {
    free(s->at.at);
    free(s->next.at);
    free(s->characters.at);
    free(s->number_of.slots);
    free(s->safe_of.slots);
    free(s->safe.at);
}

uint32_t mask_state_number(struct mask_states *s, rx_id id) {
    uint32_t *known = number_map_find(&s->number_of, id);
    if (known)
        return *known;
    struct mask_state x = {.id = id, .next = id == RX_NEVER ? 0 : NO_ROW, .accepts = rx_accepts(s->pool, id)};
    VEC_PUSH(s->at, x);
    number_map_put(&s->number_of, id, (uint32_t)s->at.n - 1);
    return (uint32_t)s->at.n - 1;
}

/* A state's row, made when a step from it is first asked for. Past a limit of the pool there is none. */
static void make_row(struct mask_states *s, struct mask_state *x) {
    const struct rx_row row = *rx_row_get(s->pool, x->id);
    if (s->pool->failed != OK)
        return;
    x->map = row.map;
    x->next = row.n ? (uint32_t)s->next.n : 0;
    for (unsigned i = 0; i < row.n; i++)
        VEC_PUSH(s->next, MASK_STATE_NEW);
}

uint32_t mask_state_make_step(struct mask_states *s, uint32_t state, uint8_t byte) {
    if (s->at.at[state].next == NO_ROW)
        make_row(s, &s->at.at[state]);
    const struct mask_state x = s->at.at[state];
    if (x.next <= NO_ROW)
        return 0;
    uint32_t next = mask_state_number(s, rx_step(s->pool, x.id, byte));
    return s->next.at[x.next + s->pool->maps[x.map][byte]] = next;
}

// ---- kinds of bytes ---------------------------------------------------------------------------------------------

static void kinds_take_out(struct kinds *k, unsigned kind) { k->w[kind >> 6] &= ~((uint64_t)1 << (kind & 63)); }
static struct kinds kinds_others(struct kinds k) { return (struct kinds){{~k.w[0], ~k.w[1]}}; }
static struct kinds kinds_both(struct kinds a, struct kinds b) {
    return (struct kinds){{a.w[0] & b.w[0], a.w[1] & b.w[1]}};
}

/* The bytes of a kind of ASCII. */
static unsigned first_byte(unsigned kind) { return kind == KIND_CONTROL ? 0 : kind; }
static unsigned end_byte(unsigned kind) { return kind == KIND_CONTROL ? 4 : kind + 1; }
static bool is_ascii(unsigned kind) { return kind == KIND_CONTROL || kind >= 4; }

/* Kinds beyond ASCII have no single byte; what is behind their characters. */
static const unsigned beyond_ascii[2] = {KIND_CHARACTER, KIND_PUNCTUATION};
static struct mask_behind behind_kind(const struct mask_state *x, unsigned kind) {
    bool is_one = kind == KIND_CHARACTER || kind == KIND_PUNCTUATION;
    return is_one ? x->behind[kind == KIND_PUNCTUATION] : (struct mask_behind){0};
}

/* A walk over characters beyond ASCII from a state: those of U+2000 to U+203F, or all others. */
struct characters {
    struct {
        uint32_t at;
        uint8_t utf8;
    } todo[32];
    size_t n;
    uint32_t behind[MAX_CHARACTERS];
    uint32_t n_behind;
    bool all_alive, ill_is_dead;
};

static bool put_behind(struct characters *c, uint32_t state) {
    for (uint32_t i = 0; i < c->n_behind; i++)
        if (c->behind[i] == state)
            return true;
    if (c->n_behind == MAX_CHARACTERS)
        return false;
    c->behind[c->n_behind++] = state;
    return true;
}

static bool put_within(struct characters *c, uint32_t state, uint8_t utf8) {
    for (size_t i = 0; i < c->n; i++)
        if (c->todo[i].at == state && c->todo[i].utf8 == utf8)
            return true;
    if (c->n == ARRAY_LEN(c->todo))
        return false;
    c->todo[c->n].at = state;
    c->todo[c->n++].utf8 = utf8;
    return true;
}

/* Stretches of bytes that the automaton of UTF-8 does not tell apart: of each state, those it may meet. */
struct stretch {
    uint8_t first, last, next;
};
enum { MAX_STRETCHES = 12 };
static struct stretch stretches[UTF8_STATES][MAX_STRETCHES];
static int n_stretches[UTF8_STATES];

static void find_stretches(void) {
    for (unsigned state = 0; state < UTF8_STATES; state++)
        for (unsigned byte = state == UTF8_BETWEEN ? 0x80 : 0; byte < 0x100; byte++) {
            uint8_t next = utf8_next((uint8_t)state, (uint8_t)byte);
            int n = n_stretches[state];
            if (n > 0 && stretches[state][n - 1].next == next)
                stretches[state][n - 1].last = (uint8_t)byte;
            else
                stretches[state][n_stretches[state]++] = (struct stretch){(uint8_t)byte, (uint8_t)byte, next};
        }
}

/* The bytes of a stretch, those of a class of the state's row once. False: of too many states, or one is dead that must
 * not be. */
static bool follow_stretch(struct mask_states *s, uint32_t state, struct stretch to, struct characters *c) {
    for (unsigned byte = to.first; byte <= to.last; byte++) {
        const uint8_t *map = s->pool->maps[s->at.at[state].map];
        if (byte > to.first && map[byte] == map[byte - 1])
            continue;
        uint32_t next = mask_state_step(s, state, (uint8_t)byte);
        if (to.next == UTF8_ILL)
            c->ill_is_dead = c->ill_is_dead && next == 0;
        else if (next == 0)
            c->all_alive = false;
        else if (!(to.next == UTF8_BETWEEN ? put_behind(c, next) : put_within(c, next, to.next)))
            return false;
    }
    return true;
}

/* From a state where UTF-8 is in state `from`. *c: whether all characters lead on, to where, and whether what is no
 * UTF-8 is dead. Of too many states nothing is said to be. */
static void follow_characters(struct mask_states *s, uint32_t state, uint8_t from, struct characters *c) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, find_stretches);
    c->n = c->n_behind = 0;
    c->all_alive = c->ill_is_dead = true;
    put_within(c, state, from);
    for (size_t i = 0; i < c->n; i++) {
        uint32_t at = c->todo[i].at;
        uint8_t utf8 = c->todo[i].utf8;
        mask_state_step(s, at, 0x80); // its row is there from now on
        for (int k = 0; k < n_stretches[utf8]; k++)
            if (stretches[utf8][k].next != UTF8_PUNCTUATION && !follow_stretch(s, at, stretches[utf8][k], c)) {
                c->all_alive = c->ill_is_dead = false;
                return;
            }
    }
}

static void keep_behind(struct mask_states *s, uint32_t state, unsigned kind, const struct characters *c) {
    struct mask_behind *behind = &s->at.at[state].behind[kind == KIND_PUNCTUATION];
    *behind = (struct mask_behind){(uint32_t)s->characters.n, c->n_behind};
    for (uint32_t i = 0; i < c->n_behind; i++)
        VEC_PUSH(s->characters, c->behind[i]);
    kinds_add(&s->at.at[state].alive, kind);
}

/* The kinds beyond ASCII that lead on. */
static void find_alive_characters(struct mask_states *s, uint32_t state) {
    struct characters c;
    follow_characters(s, state, UTF8_BETWEEN, &c);
    bool ill_is_dead = c.ill_is_dead;
    if (c.all_alive)
        keep_behind(s, state, KIND_CHARACTER, &c);
    uint32_t behind = mask_state_step(s, mask_state_step(s, state, 0xE2), 0x80);
    if (behind) {
        follow_characters(s, behind, UTF8_PUNCTUATION, &c);
        ill_is_dead = ill_is_dead && c.ill_is_dead;
        if (c.all_alive)
            keep_behind(s, state, KIND_PUNCTUATION, &c);
    }
    s->at.at[state].ill_is_dead = ill_is_dead;
}

/* Finds the kinds that lead on from a state. */
static void find_alive(struct mask_states *s, uint32_t state) {
    struct kinds alive = {0};
    for (unsigned kind = 0; kind < N_KINDS; kind++) {
        bool all = is_ascii(kind);
        for (unsigned byte = first_byte(kind); all && byte < end_byte(kind); byte++)
            all = mask_state_step(s, state, (uint8_t)byte) != 0;
        if (all)
            kinds_add(&alive, kind);
    }
    s->at.at[state].alive = alive;
    find_alive_characters(s, state);
    s->at.at[state].knows_alive = s->pool->failed == OK;
}

static struct kinds alive_of(struct mask_states *s, uint32_t state) {
    if (!s->at.at[state].knows_alive)
        find_alive(s, state);
    return s->at.at[state].alive;
}

// ---- safe by what stays within ----------------------------------------------------------------------------------

/* Whether an expression is x, or x or something else. */
static bool holds(const struct rx_pool *p, rx_id in, rx_id x) {
    const struct rx_node *node = &p->nodes[in];
    bool found = in == x;
    for (uint32_t i = 0; node->kind == RX_K_ALT && i < node->b && !found; i++)
        found = p->lists[node->a + i] == x;
    return found;
}

/* The kinds behind which an expression that matches something still holds itself: of what is searched for anywhere in a
 * text, all that a text may have. */
static struct kinds held_behind(struct mask_states *s, rx_id x) {
    uint32_t *known = number_map_find(&s->safe_of, x);
    if (known)
        return s->safe.at[*known];
    uint32_t state = mask_state_number(s, x);
    struct kinds safe = alive_of(s, state);
    for (unsigned kind = 0; kind < N_KINDS; kind++) {
        if (!kinds_have(safe, kind))
            continue;
        bool all = true;
        for (unsigned byte = first_byte(kind); is_ascii(kind) && byte < end_byte(kind); byte++)
            all = all && holds(s->pool, s->at.at[mask_state_step(s, state, (uint8_t)byte)].id, x);
        struct mask_behind behind = behind_kind(&s->at.at[state], kind);
        for (uint32_t i = 0; i < behind.n; i++)
            all = all && holds(s->pool, s->at.at[s->characters.at[behind.first + i]].id, x);
        if (!all)
            kinds_take_out(&safe, kind);
    }
    VEC_PUSH(s->safe, safe);
    number_map_put(&s->safe_of, x, (uint32_t)s->safe.n - 1);
    return safe;
}

static bool may_stay(const struct rx_pool *p, rx_id x) {
    const struct rx_node *node = &p->nodes[x];
    return node->kind == RX_K_SEQ && p->nodes[node->a].kind == RX_K_REPEAT && p->nodes[node->a].max == RX_NO_MAX &&
           rx_known_alive(p, x) == 1;
}

/* Without what must follow, as a string's end: behind what holds its beginning, all of it holds itself. */
static rx_id beginning_of(const struct rx_pool *p, rx_id id) {
    while (p->nodes[id].kind == RX_K_SEQ && rx_known_alive(p, id) == 1) {
        rx_id a = p->nodes[id].a;
        if (p->nodes[a].kind != RX_K_ALT && p->nodes[a].kind != RX_K_SEQ)
            break;
        id = a;
    }
    return id;
}

/* The best of a state's alternatives. */
static struct kinds safe_by_holding(struct mask_states *s, rx_id id) {
    struct kinds best = {0};
    id = beginning_of(s->pool, id);
    const struct rx_node node = s->pool->nodes[id];
    for (uint32_t i = 0; i < (node.kind == RX_K_ALT ? node.b : 1); i++) {
        rx_id x = node.kind == RX_K_ALT ? s->pool->lists[node.a + i] : id;
        struct kinds safe = {0};
        if (may_stay(s->pool, x))
            safe = held_behind(s, x);
        if (kinds_count(safe) > kinds_count(best))
            best = safe;
    }
    return best;
}

// ---- safe by all states that are reached ------------------------------------------------------------------------

struct reached {
    uint32_t state[MAX_REACHED];
    unsigned by[MAX_REACHED]; // a kind
    int n;
};

static bool reach(struct mask_states *s, struct reached *r, uint32_t state, unsigned by) {
    for (int i = 0; i < r->n; i++)
        if (r->state[i] == state)
            return true;
    if (r->n == MAX_REACHED || (!s->at.at[state].knows_alive && s->budget-- <= 0))
        return false;
    r->state[r->n] = state;
    r->by[r->n++] = by;
    return true;
}

static bool reach_behind(struct mask_states *s, struct reached *r, uint32_t state, struct kinds safe) {
    bool ok = true;
    for (unsigned kind = 0; kind < N_KINDS && ok; kind++) {
        if (!kinds_have(safe, kind))
            continue;
        for (unsigned byte = first_byte(kind); is_ascii(kind) && ok && byte < end_byte(kind); byte++)
            ok = reach(s, r, mask_state_step(s, state, (uint8_t)byte), kind);
        struct mask_behind behind = behind_kind(&s->at.at[state], kind);
        for (uint32_t i = 0; ok && i < behind.n; i++)
            ok = reach(s, r, s->characters.at[behind.first + i], kind);
    }
    return ok;
}

/* Goes to all states that kinds of *safe lead to. Where one is dead behind some of them these are not safe; behind most
 * of them, the kind that led there is not. False: not known. */
static bool close_over(struct mask_states *s, uint32_t state, struct kinds *safe, struct reached *r) {
    for (bool again = true; again;) {
        again = false;
        r->n = 0;
        if (!reach(s, r, state, 0))
            return false;
        for (int i = 0; i < r->n && !again; i++) {
            struct kinds dead = kinds_both(*safe, kinds_others(alive_of(s, r->state[i])));
            again = kinds_count(dead) > 0;
            if (again && i > 0 && 2 * kinds_count(dead) > kinds_count(*safe))
                kinds_take_out(safe, r->by[i]);
            else if (again)
                *safe = kinds_both(*safe, kinds_others(dead));
            else if (!reach_behind(s, r, r->state[i], *safe))
                return false;
        }
    }
    return true;
}

/* Whether one state is behind each character of a kind. */
static bool is_behind_all(const struct mask_states *s, uint32_t state, unsigned kind, uint32_t behind) {
    struct mask_behind found = behind_kind(&s->at.at[state], kind);
    return found.n == 1 && s->characters.at[found.first] == behind;
}

/* The kinds behind which a state is what it was. */
static struct kinds safe_by_staying(struct mask_states *s, uint32_t state) {
    struct kinds safe = alive_of(s, state);
    for (unsigned kind = 0; kind < N_KINDS; kind++)
        for (unsigned byte = first_byte(kind); is_ascii(kind) && byte < end_byte(kind); byte++)
            if (mask_state_step(s, state, (uint8_t)byte) != state)
                kinds_take_out(&safe, kind);
    for (unsigned i = 0; i < ARRAY_LEN(beyond_ascii); i++)
        if (!is_behind_all(s, state, beyond_ascii[i], state))
            kinds_take_out(&safe, beyond_ascii[i]);
    return safe;
}

/* Whether a byte of the kind is the end of a text here, whatever follows. */
static bool is_fatal(struct mask_states *s, uint32_t state, unsigned kind) {
    const struct mask_state *x = &s->at.at[state];
    if (kind == KIND_ILL_FORMED)
        return kinds_have(x->alive, KIND_CHARACTER) && x->ill_is_dead;
    if (kind == KIND_PUNCTUATION)
        return mask_state_step(s, mask_state_step(s, state, 0xE2), 0x80) == 0;
    unsigned first = kind == KIND_CHARACTER ? 0x80 : first_byte(kind);
    unsigned end = kind == KIND_CHARACTER ? 0x100 : end_byte(kind);
    bool fatal = kind == KIND_CHARACTER || is_ascii(kind);
    for (unsigned byte = first; fatal && byte < end; byte++)
        fatal = mask_state_step(s, state, (uint8_t)byte) == 0;
    return fatal;
}

static struct kinds fatal_of(struct mask_states *s, const struct reached *r, struct kinds safe) {
    struct kinds fatal = {0};
    for (int i = 0; i < r->n; i++)
        if (s->at.at[r->state[i]].accepts)
            return fatal;
    for (unsigned kind = 0; kind < N_KINDS; kind++) {
        bool all = !kinds_have(safe, kind);
        for (int i = 0; all && i < r->n; i++)
            all = is_fatal(s, r->state[i], kind);
        if (all)
            kinds_add(&fatal, kind);
    }
    return fatal;
}

static void let_loose(struct mask_states *s, uint32_t state) {
    rx_id id = s->at.at[state].id, free = id;
    bool counts = (s->pool->nodes[id].flags & (RX_COUNTS | RX_BOOLEAN)) == RX_COUNTS; // rounds for ever have no end
    int slack = counts ? rx_slack(s->pool, id, &free) : 0;
    uint32_t number = slack && free != RX_NEVER ? mask_state_number(s, free) : state;
    s->at.at[state].free = number;
    s->at.at[state].slack = slack;
}

static void keep_safe(struct mask_states *s, uint32_t state, struct kinds safe, struct kinds fatal) {
    struct mask_state *x = &s->at.at[state];
    x->safe = safe;
    x->fatal = fatal;
    x->knows_safe = true;
}

/* What is asked of states that a text may never come to may meet a limit. It is forgotten then: nothing is safe. True:
 * it did. */
static bool forget_failure(struct mask_states *s, enum status before) {
    if (s->pool->failed == before)
        return false;
    s->pool->failed = OK;
    s->patience = 0;
    return true;
}

void mask_state_find_safe(struct mask_states *s, uint32_t state) {
    enum { MANY = 24 };
    enum status before = s->pool->failed;
    struct reached r = {.n = 0};
    struct kinds fatal = {0}, safe = safe_by_holding(s, s->at.at[state].id);
    let_loose(s, state);
    if (kinds_count(safe) < MANY && s->at.at[state].free != state)
        safe = (struct kinds){0}; // it changes with each byte
    else if (kinds_count(safe) < MANY) {
        safe = alive_of(s, state);
        if (s->patience > 0 && close_over(s, state, &safe, &r)) {
            fatal = fatal_of(s, &r, safe);
            for (int i = 1; i < r.n && s->pool->failed == before; i++) // what is safe here is safe there
                if (!s->at.at[r.state[i]].knows_safe)
                    keep_safe(s, r.state[i], safe, fatal);
        } else {
            safe = safe_by_staying(s, state);
            s->patience--;
        }
    }
    if (forget_failure(s, before))
        safe = fatal = (struct kinds){0};
    keep_safe(s, state, safe, fatal);
}

// ---- counted characters -----------------------------------------------------------------------------------------

/* SEQ(REPEAT(c, min, max), rest) behind one round, and without its counters; false: it is no such state. */
static bool take_counters(struct rx_pool *p, rx_id id, rx_id *less, rx_id *free) {
    const struct rx_node seq = p->nodes[id];
    if (seq.kind != RX_K_SEQ || p->nodes[seq.a].kind != RX_K_REPEAT)
        return false;
    const struct rx_node repeat = p->nodes[seq.a];
    int32_t max = repeat.max == RX_NO_MAX ? RX_NO_MAX : repeat.max - 1;
    if (repeat.max == RX_NO_MAX ? repeat.min < 2 : repeat.max >= MAX_COUNTED)
        return false;
    *less = rx_seq_as_is(p, rx_repeat(p, repeat.a, MAX(repeat.min - 1, 0), max), seq.b);
    *free = rx_seq_as_is(p, rx_repeat(p, repeat.a, 0, RX_NO_MAX), seq.b);
    return true;
}

int mask_state_counted(struct mask_states *s, uint32_t state, uint32_t *like) {
    enum status before = s->pool->failed;
    rx_id id = s->at.at[state].id, less, free;
    if (!take_counters(s->pool, id, &less, &free))
        return -1;
    uint32_t behind = mask_state_number(s, less);
    *like = mask_state_number(s, free);
    struct kinds safe = mask_state_safe(s, *like)->safe;
    bool same = kinds_are_within(safe, alive_of(s, state));
    for (unsigned kind = 0; kind < N_KINDS && same; kind++)
        for (unsigned byte = first_byte(kind); kinds_have(safe, kind) && is_ascii(kind) && byte < end_byte(kind);
             byte++)
            same = same && mask_state_step(s, state, (uint8_t)byte) == behind;
    for (unsigned i = 0; i < ARRAY_LEN(beyond_ascii); i++)
        if (kinds_have(safe, beyond_ascii[i]))
            same = same && is_behind_all(s, state, beyond_ascii[i], behind);
    int32_t max = s->pool->nodes[s->pool->nodes[id].a].max;
    same = !forget_failure(s, before) && same;
    return !same ? -1 : max == RX_NO_MAX ? MAX_COUNTED : max;
}
