/* matcher.c - see matcher.h: a stack of configs, one a token. */
#include "grammar/matcher.h"
#include "grammar/shared.h"

#include <stdlib.h>

enum { ENDED = UINT32_MAX }; // the config behind an end token

struct matcher {
    struct grammar *grammar;
    struct shared *shared;
    uint32_t *configs; // [n + 1]: the first is behind no token
    size_t n, cap;
    struct error err; // of what made it dead
};

static uint32_t top(const struct matcher *m) { return m->configs[m->n]; }

static void push(struct matcher *m, uint32_t config) {
    if (m->n + 2 > m->cap) {
        m->cap = m->cap ? m->cap * 2 : 64;
        m->configs = xrealloc(m->configs, m->cap, sizeof *m->configs);
    }
    m->configs[++m->n] = config;
}

enum status matcher_open(struct grammar *grammar, struct token_trie *trie, struct matcher **out, struct error *err) {
    struct shared *shared;
    TRY(shared_get(grammar, trie, &shared, err));
    struct matcher *m = xcalloc(1, sizeof *m);
    m->grammar = grammar_hold(grammar);
    m->shared = shared;
    m->cap = 64;
    m->configs = xcalloc(m->cap, sizeof *m->configs);
    m->configs[0] = shared->machine->start;
    *out = m;
    return OK;
}

void matcher_free(struct matcher *m) {
    if (!m)
        return;
    shared_put(m->shared);
    grammar_release(m->grammar);
    free(m->configs);
    free(m);
}

struct matcher *matcher_copy(const struct matcher *from) {
    struct matcher *m = xmalloc(sizeof *m);
    *m = *from;
    grammar_hold(m->grammar);
    pthread_mutex_lock(&m->grammar->lock);
    m->shared->references++;
    pthread_mutex_unlock(&m->grammar->lock);
    m->configs = xmalloc(m->cap * sizeof *m->configs);
    memcpy(m->configs, from->configs, (from->n + 1) * sizeof *m->configs);
    return m;
}

/* Locks, and gives the machine its bounds for one call. */
static struct machine *begin(struct matcher *m, size_t n_bytes) {
    shared_lock_write(m->shared);
    machine_allow(m->shared->machine, n_bytes);
    return m->shared->machine;
}

static void end(struct matcher *m) {
    struct machine *machine = m->shared->machine;
    if (machine->failed != OK)
        fail(&m->err, machine->failed, "%s", machine->why);
    pthread_rwlock_unlock(&m->shared->lock);
}

static bool is_end_token(const struct token_trie *t, int32_t token) {
    for (int32_t i = 0; i < t->n_ends; i++)
        if (t->ends[i] == token)
            return true;
    return false;
}

static uint32_t step_special(struct shared *s, uint32_t config, int32_t token) {
    bool any = false;
    for (uint32_t t = 0; t < s->machine->net->n_terminals; t++)
        any |= s->chosen[t] = token_list_has(&s->token_lists[t], token);
    return any ? config_take_terminals(s->machine, config, s->chosen) : 0;
}

static bool is_plain_text(const struct token_trie *t, int32_t token) {
    return t->is_text[token / 32] >> (token % 32) & 1 && !is_end_token(t, token);
}

/* What was met before is only read, beside others who read. 0: it was not, or the token is not allowed. */
static uint32_t known_next(struct matcher *m, int32_t token) {
    const struct token_trie *t = m->shared->trie;
    uint32_t next = 0;
    if (!is_plain_text(t, token))
        return 0;
    shared_lock_read(m->shared);
    if (machine_is_full(m->shared->machine) ||
        !config_known_steps(m->shared->machine, top(m), t->text_of[token], &next))
        next = 0;
    pthread_rwlock_unlock(&m->shared->lock);
    return next;
}

static bool known_mask(struct matcher *m, uint32_t *bits) {
    shared_lock_read(m->shared);
    bool is_known = !machine_is_full(m->shared->machine) && shared_known_mask(m->shared, top(m), bits);
    pthread_rwlock_unlock(&m->shared->lock);
    return is_known;
}

bool matcher_accept(struct matcher *m, int32_t token) {
    struct token_trie *t = m->shared->trie;
    if (!t || token < 0 || token >= t->n_vocab || top(m) == ENDED || m->err.status != OK)
        return false;
    uint32_t next = known_next(m, token);
    if (next) {
        push(m, next);
        return true;
    }
    struct machine *machine = begin(m, 0);
    if (machine->failed != OK)
        ;
    else if (is_end_token(t, token) && machine->configs.at[top(m)].may_end)
        next = ENDED;
    else if (is_plain_text(t, token))
        next = config_steps(machine, top(m), t->text_of[token]);
    if (!next && machine->failed == OK)
        next = step_special(m->shared, top(m), token);
    end(m);
    if (!next || m->err.status != OK)
        return false;
    push(m, next);
    return true;
}

bool matcher_accept_bytes(struct matcher *m, struct str bytes) {
    if (top(m) == ENDED || m->err.status != OK)
        return false;
    struct machine *machine = begin(m, bytes.len);
    uint32_t next = machine->failed == OK ? config_steps(machine, top(m), bytes) : 0;
    end(m);
    if (!next || m->err.status != OK)
        return false;
    push(m, next);
    return true;
}

void matcher_back(struct matcher *m, size_t n) {
    BUG_IF(n > m->n);
    m->n -= n;
}
size_t matcher_n_tokens(const struct matcher *m) { return m->n; }

void matcher_mask(struct matcher *m, uint32_t *bits) {
    const struct token_trie *t = m->shared->trie;
    BUG_IF(!t);
    bool is_over = top(m) == ENDED || m->err.status != OK;
    if (!is_over && known_mask(m, bits))
        return;
    memset(bits, 0, (size_t)t->n_words * sizeof *bits);
    if (is_over)
        return;
    begin(m, 0);
    if (m->shared->machine->failed == OK)
        shared_mask(m->shared, top(m), bits);
    end(m);
    if (m->err.status != OK)
        memset(bits, 0, (size_t)t->n_words * sizeof *bits);
}

bool matcher_may_end(const struct matcher *m) {
    if (top(m) == ENDED || m->err.status != OK)
        return top(m) == ENDED;
    shared_lock_read(m->shared);
    bool may = m->shared->machine->configs.at[top(m)].may_end;
    pthread_rwlock_unlock(&m->shared->lock);
    return may;
}
bool matcher_has_ended(const struct matcher *m) { return top(m) == ENDED; }

bool matcher_is_dead(const struct matcher *m, struct error *err) {
    if (m->err.status == OK)
        return false;
    if (err)
        *err = m->err;
    return true;
}

/* The only byte of a set; -1 if there is none, or more. */
static int only_byte(const struct rx_set *set) {
    int found = -1;
    for (int w = 0; w < 4; w++) {
        if (!set->w[w])
            continue;
        if (found >= 0 || (set->w[w] & (set->w[w] - 1)))
            return -1;
        found = 64 * w + __builtin_ctzll(set->w[w]);
    }
    return found;
}

/* Whether a special token may come. */
static bool takes_special(const struct shared *s, uint32_t config) {
    const struct config *c = &s->machine->configs.at[config];
    for (uint32_t i = 0; i < c->n; i++) {
        uint32_t terminal = s->machine->threads.at[c->first + i].terminal;
        if (!terminal_is_distinct(s->machine, terminal) && s->token_lists[terminal].n)
            return true;
    }
    return false;
}

/* The byte that must come behind a config, or CONFIG_FREE; kept there unless a bound is met. */
static int forced_byte(struct shared *s, uint32_t config) {
    struct config *c = &s->machine->configs.at[config];
    if (c->forced != CONFIG_UNASKED)
        return c->forced;
    struct rx_set first = config_first_bytes(s->machine, config);
    if (s->machine->failed != OK)
        return CONFIG_FREE;
    bool is_free = c->may_end || takes_special(s, config);
    return c->forced = (int16_t)(is_free ? CONFIG_FREE : only_byte(&first));
}

/* Most of the time nothing is forced and that is known: it is read beside others who read. */
static bool is_known_free(struct matcher *m) {
    shared_lock_read(m->shared);
    bool is_free = m->shared->machine->configs.at[top(m)].forced == CONFIG_FREE;
    pthread_rwlock_unlock(&m->shared->lock);
    return is_free;
}

size_t matcher_forced(struct matcher *m, size_t max, struct buf *out) {
    size_t n = 0;
    if (top(m) == ENDED || m->err.status != OK || is_known_free(m))
        return 0;
    struct machine *machine = begin(m, max);
    for (uint32_t at = top(m); n < max && at && machine->failed == OK; n++) {
        int byte = forced_byte(m->shared, at);
        if (byte == CONFIG_FREE)
            break;
        at = config_step(machine, at, (uint8_t)byte);
        buf_push(out, (char)byte);
    }
    end(m);
    return n;
}
