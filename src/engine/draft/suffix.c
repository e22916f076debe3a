/* suffix.c - see suffix.h. */
#include "engine/draft/suffix.h"

#include "base/status.h"

#include <stdlib.h>
#include <string.h>

enum { ROOT = 0, NOWHERE = -1, SEPARATOR = -1 };

struct state {
    int32_t length, link; // of the longest run that ends here; the state of its longest end that ends elsewhere, too
    int32_t end;          // in the text, of the first place where it stands
    int32_t first_edge;
};

struct symbol {
    uint64_t owner;
    int32_t token;
};

struct edge {
    uint64_t owner;
    int32_t token, from, to, next; // next of the same state
};

struct automaton {
    struct state *states; // [2 * capacity + 2]
    struct edge *edges;   // [4 * capacity + 4]
    int32_t *buckets;     // [n_buckets]: edges by state and symbol, open addressing
    int32_t *text;        // [capacity]
    int32_t n_states, n_edges, most_edges, n_text, n_buckets, last;
    int64_t generation;
};

struct suffix_index {
    int32_t capacity;
    struct automaton of[2]; // the newer one first
    int64_t n_generations;
};

// ---- edges ------------------------------------------------------------------------------------------------------

static bool leads(const struct edge *e, int32_t from, struct symbol symbol) {
    return e->from == from && e->token == symbol.token && e->owner == symbol.owner;
}

/* The bucket of the edge, or where it would be. */
static int32_t *bucket_of(const struct automaton *a, int32_t from, struct symbol symbol) {
    uint64_t place = (uint64_t)from << 32 | (uint32_t)symbol.token;
    uint64_t h = (symbol.owner ^ place * 0x9E3779B97F4A7C15u) * 0xD6E8FEB86659FD93u;
    for (uint32_t i = (uint32_t)(h >> 32);; i++) {
        int32_t *b = &a->buckets[i & (uint32_t)(a->n_buckets - 1)];
        if (*b == NOWHERE || leads(&a->edges[*b], from, symbol))
            return b;
    }
}

static int32_t target_of(const struct automaton *a, int32_t from, struct symbol symbol) {
    int32_t e = *bucket_of(a, from, symbol);
    return e == NOWHERE ? NOWHERE : a->edges[e].to;
}

static void set_edge(struct automaton *a, int32_t from, struct symbol symbol, int32_t to) {
    int32_t *b = bucket_of(a, from, symbol);
    if (*b == NOWHERE) {
        BUG_IF(a->n_edges == a->most_edges); // an automaton has at most three a token
        *b = a->n_edges++;
        a->edges[*b] = (struct edge){symbol.owner, symbol.token, from, to, a->states[from].first_edge};
        a->states[from].first_edge = *b;
    }
    a->edges[*b].to = to;
}

// ---- the automaton ----------------------------------------------------------------------------------------------

static void begin(struct automaton *a, int64_t generation) {
    memset(a->buckets, 0xff, (size_t)a->n_buckets * sizeof *a->buckets);
    a->states[ROOT] = (struct state){0, NOWHERE, 0, NOWHERE};
    a->n_states = 1;
    a->n_edges = a->n_text = a->last = 0;
    a->generation = generation;
}

/* A state for the end of `at` that `symbol` leads to, which is shorter than what has been there. */
static int32_t split(struct automaton *a, int32_t at, int32_t long_one, struct symbol symbol) {
    int32_t clone = a->n_states++;
    a->states[clone] = a->states[long_one];
    a->states[clone].length = a->states[at].length + 1;
    a->states[clone].first_edge = NOWHERE;
    for (int32_t e = a->states[long_one].first_edge; e != NOWHERE; e = a->edges[e].next)
        set_edge(a, clone, (struct symbol){a->edges[e].owner, a->edges[e].token}, a->edges[e].to);
    for (; at != NOWHERE && target_of(a, at, symbol) == long_one; at = a->states[at].link)
        set_edge(a, at, symbol, clone);
    a->states[long_one].link = clone;
    return clone;
}

/* The text may stand there already: then it ends at another place, too. */
static void extend(struct automaton *a, struct symbol symbol) {
    int32_t at = a->last, known = target_of(a, at, symbol);
    a->text[a->n_text++] = symbol.token;
    if (known != NOWHERE) {
        bool fits = a->states[known].length == a->states[at].length + 1;
        a->last = fits ? known : split(a, at, known, symbol);
        return;
    }
    int32_t next = a->n_states++;
    a->states[next] = (struct state){a->states[at].length + 1, ROOT, a->n_text, NOWHERE};
    for (; at != NOWHERE && target_of(a, at, symbol) == NOWHERE; at = a->states[at].link)
        set_edge(a, at, symbol, next);
    if (at != NOWHERE) {
        int32_t there = target_of(a, at, symbol);
        bool fits = a->states[there].length == a->states[at].length + 1;
        a->states[next].link = fits ? there : split(a, at, there, symbol);
    }
    a->last = next;
}

// ---- both -------------------------------------------------------------------------------------------------------

struct suffix_index *suffix_open(int32_t capacity) {
    struct suffix_index *x = xcalloc(1, sizeof *x);
    x->capacity = capacity;
    for (int i = 0; i < 2; i++) {
        struct automaton *a = &x->of[i];
        a->n_buckets = 16;
        while (a->n_buckets < 6 * capacity)
            a->n_buckets *= 2;
        a->most_edges = 4 * capacity + 4;
        a->states = xcalloc(2 * (size_t)capacity + 2, sizeof *a->states);
        a->edges = xcalloc((size_t)a->most_edges, sizeof *a->edges);
        a->buckets = xcalloc((size_t)a->n_buckets, sizeof *a->buckets);
        a->text = xcalloc((size_t)capacity, sizeof *a->text);
        begin(a, ++x->n_generations);
    }
    return x;
}

void suffix_free(struct suffix_index *x) {
    for (int i = 0; x && i < 2; i++) {
        free(x->of[i].states);
        free(x->of[i].edges);
        free(x->of[i].buckets);
        free(x->of[i].text);
    }
    free(x);
}

void suffix_add(struct suffix_index *x, uint64_t owner, const int32_t *tokens, int32_t n) {
    n = MIN(n, x->capacity - 1);
    if (x->of[0].n_text + n + 1 > x->capacity) {
        struct automaton old = x->of[1];
        x->of[1] = x->of[0];
        x->of[0] = old;
        begin(&x->of[0], ++x->n_generations);
    }
    struct automaton *a = &x->of[0];
    for (int32_t i = 0; i < n; i++)
        extend(a, (struct symbol){owner, tokens[i]});
    a->text[a->n_text++] = SEPARATOR; // nothing is guessed past it
    a->last = ROOT;
}

static void advance(const struct automaton *a, struct symbol symbol, int32_t *state, int32_t *length) {
    int32_t next;
    while ((next = target_of(a, *state, symbol)) == NOWHERE && *state != ROOT) {
        *state = a->states[*state].link;
        *length = MIN(*length, a->states[*state].length);
    }
    if (next != NOWHERE)
        *state = next, ++*length;
    else
        *length = 0;
}

/* A generation that the match knows nothing of is followed from a few tokens before the end. */
static void follow(const struct automaton *a, struct suffix_match *m, int g, uint64_t owner, const int32_t *tokens,
                   int32_t n) {
    int32_t from = m->n_seen;
    if (m->generation[g] != a->generation) {
        m->generation[g] = a->generation;
        m->state[g] = ROOT;
        m->length[g] = 0;
        from = MAX(n - SUFFIX_CONTEXT, 0);
    }
    for (int32_t i = from; i < n; i++)
        advance(a, (struct symbol){owner, tokens[i]}, &m->state[g], &m->length[g]);
}

static int copy_behind(const struct automaton *a, int32_t at, int skip, int32_t *out, int max) {
    int n = 0;
    for (int i = 0; i < skip + max && at < a->n_text && a->text[at] != SEPARATOR; i++, at++)
        if (i >= skip)
            out[n++] = a->text[at];
    return n;
}

int suffix_guess(const struct suffix_index *x, struct suffix_match *m, uint64_t owner, const struct sequence *seq,
                 int32_t *out, int max) {
    int best = -1;
    if (m->generation[0] == x->of[1].generation) { // the newer became the older
        m->state[1] = m->state[0], m->length[1] = m->length[0], m->generation[1] = m->generation[0];
        m->generation[0] = 0;
    }
    for (int g = 0; g < 2; g++) {
        follow(&x->of[g], m, g, owner, seq->tokens, seq->n_known);
        if (m->length[g] >= LEAST_SUFFIX && (best < 0 || m->length[g] > m->length[best]))
            best = g;
    }
    m->n_seen = seq->n_known;
    if (best < 0)
        return 0;
    const struct automaton *a = &x->of[best];
    return copy_behind(a, a->states[m->state[best]].end, seq->n_tokens - seq->n_known, out, max);
}
