/* shared.c - see shared.h. */
#include "grammar/shared.h"

#include <stdlib.h>

static int by_number(const void *a, const void *b) {
    int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    return x < y ? -1 : x > y;
}

bool token_list_has(const struct token_list *list, int32_t id) {
    return list->n && bsearch(&id, list->ids, (size_t)list->n, sizeof id, by_number);
}

static int32_t id_of(const struct token_trie *trie, const struct ir_token *token) {
    if (token->name.ptr)
        return token_trie_special(trie, token->name);
    return token->id >= 0 && token->id < trie->n_vocab ? token->id : -1;
}

static bool is_end(const struct token_trie *trie, int32_t id) {
    for (int32_t i = 0; i < trie->n_ends; i++)
        if (trie->ends[i] == id)
            return true;
    return false;
}

/* The ids that a terminal names, or all special tokens but those, and but the ends of an answer. */
static enum status resolve(const struct token_trie *trie, const struct ir_token_list *from, struct token_list *to,
                           struct error *err) {
    bool may_lack = from->n > 0 && from->tokens[0].may_lack; // such lists are of one
    if (!trie && !may_lack)
        return fail(err, ERR_ARG, "the grammar asks for special tokens, and there is no vocabulary");
    int32_t *named = xcalloc(from->n + 1, sizeof *named), n = 0;
    for (uint32_t i = 0; i < from->n && trie; i++) {
        named[n] = id_of(trie, &from->tokens[i]);
        bool is_text = named[n] >= 0 && trie->is_text[named[n] / 32] >> (named[n] % 32) & 1;
        if (named[n] >= 0 && !is_text) {
            n++;
            continue;
        }
        if (may_lack)
            continue;
        free(named);
        if (from->tokens[i].name.ptr)
            return fail(err, ERR_ARG, "the vocabulary has no special token %.*s, which the grammar asks for",
                        STR_ARG(from->tokens[i].name));
        return fail(err, ERR_ARG, "token %d, which the grammar asks for, is %s", from->tokens[i].id,
                    is_text ? "no special one: its text can be asked for" : "not in the vocabulary");
    }
    qsort(named, (size_t)n, sizeof *named, by_number);
    *to = (struct token_list){named, n};
    if (!from->none_of)
        return OK;
    int32_t *others = xcalloc((size_t)trie->n_specials + 1, sizeof *others), m = 0;
    for (int32_t i = 0; i < trie->n_specials; i++)
        if (!token_list_has(to, trie->specials[i].id) && !is_end(trie, trie->specials[i].id))
            others[m++] = trie->specials[i].id;
    qsort(others, (size_t)m, sizeof *others, by_number);
    free(named);
    *to = (struct token_list){others, m};
    return OK;
}

static void shared_free(struct shared *s) {
    if (s->machine && s->token_lists)
        for (uint32_t t = 0; t < s->machine->net->n_terminals; t++)
            free(s->token_lists[t].ids);
    free(s->token_lists);
    free(s->chosen);
    for (int32_t i = 0; i < s->n_slots; i++)
        free(s->slots[i].bits);
    free(s->slots);
    for (size_t i = 0; i < s->tables.n; i++)
        mask_table_put(s->trie, s->tables.at[i]);
    free(s->tables.at);
    free(s->table_of.slots);
    free(s->walk);
    machine_free(s->machine);
    token_trie_free(s->trie);
    pthread_rwlock_destroy(&s->lock);
    free(s);
}

/* Who finds something new waits for those who read, not for those who come behind. */
static void init_lock(pthread_rwlock_t *lock) {
    pthread_rwlockattr_t attributes;
    pthread_rwlockattr_init(&attributes);
    pthread_rwlockattr_setkind_np(&attributes, PTHREAD_RWLOCK_PREFER_WRITER_NONRECURSIVE_NP);
    pthread_rwlock_init(lock, &attributes);
    pthread_rwlockattr_destroy(&attributes);
}

enum { LOOKS = 1000 };

static void pause_a_little(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

void shared_lock_read(struct shared *s) {
    for (int i = 0; i < LOOKS; i++, pause_a_little())
        if (pthread_rwlock_tryrdlock(&s->lock) == 0)
            return;
    pthread_rwlock_rdlock(&s->lock);
}

void shared_lock_write(struct shared *s) {
    for (int i = 0; i < LOOKS; i++, pause_a_little())
        if (pthread_rwlock_trywrlock(&s->lock) == 0)
            return;
    pthread_rwlock_wrlock(&s->lock);
}

static enum status shared_open(struct grammar *g, struct token_trie *trie, struct shared **out, struct error *err) {
    struct shared *s = xcalloc(1, sizeof *s);
    const struct net *p = g->net;
    s->grammar = g;
    s->trie = trie ? token_trie_hold(trie) : NULL;
    init_lock(&s->lock);
    s->machine = machine_open(p, g->memory_bytes, err);
    enum status st = s->machine ? OK : err->status;
    s->token_lists = xcalloc(p->n_terminals + 1, sizeof *s->token_lists);
    s->chosen = xcalloc(p->n_terminals + 1, sizeof *s->chosen);
    for (uint32_t t = 0; t < p->n_terminals && st == OK; t++)
        if (p->terminals[t].rx == RX_NEVER)
            st = resolve(trie, &p->ir->tokens[p->terminals[t].tokens], &s->token_lists[t], err);
    if (st != OK) {
        shared_free(s);
        return st;
    }
    if (trie) {
        s->walk = xcalloc(2 * ((size_t)trie->max_depth + 2), sizeof *s->walk);
        s->max_slots = (int32_t)MAX(16, g->memory_bytes / 8 / ((size_t)trie->n_words * 4));
    }
    *out = s;
    return OK;
}

static void unlink_current(struct grammar *g, struct shared *s) {
    for (struct shared **at = &g->current; *at; at = &(*at)->next)
        if (*at == s) {
            *at = s->next;
            if (--s->references == 0)
                shared_free(s);
            return;
        }
}

enum status shared_get(struct grammar *g, struct token_trie *trie, struct shared **out, struct error *err) {
    enum status st = OK;
    pthread_mutex_lock(&g->lock);
    struct shared *s = g->current;
    while (s && s->trie != trie)
        s = s->next;
    if (s) {
        shared_lock_read(s);
        bool large = machine_bytes(s->machine) > g->memory_bytes / 4;
        pthread_rwlock_unlock(&s->lock);
        if (large) {
            unlink_current(g, s);
            s = NULL;
        }
    }
    if (!s) {
        st = shared_open(g, trie, &s, err);
        if (st == OK) {
            s->references = 1;
            s->next = g->current;
            g->current = s;
        }
    }
    if (st == OK)
        s->references++;
    pthread_mutex_unlock(&g->lock);
    *out = s;
    return st;
}

void shared_put(struct shared *s) {
    struct grammar *g = s->grammar;
    pthread_mutex_lock(&g->lock);
    bool last = --s->references == 0;
    pthread_mutex_unlock(&g->lock);
    if (last)
        shared_free(s);
}

// ---- grammars ---------------------------------------------------------------------------------------------------

struct grammar *grammar_hold(struct grammar *g) {
    pthread_mutex_lock(&g->lock);
    g->references++;
    pthread_mutex_unlock(&g->lock);
    return g;
}

void grammar_release(struct grammar *g) {
    if (!g)
        return;
    pthread_mutex_lock(&g->lock);
    bool last = --g->references == 0;
    pthread_mutex_unlock(&g->lock);
    if (!last)
        return;
    while (g->current)
        unlink_current(g, g->current);
    net_free(g->net);
    pthread_mutex_destroy(&g->lock);
    free(g);
}

size_t grammar_bytes(struct grammar *g) {
    pthread_mutex_lock(&g->lock);
    size_t n = sizeof *g + net_bytes(g->net);
    for (struct shared *s = g->current; s; s = s->next) {
        shared_lock_read(s);
        n += machine_bytes(s->machine) + (s->trie ? (size_t)s->n_slots * (size_t)s->trie->n_words * 4 : 0);
        pthread_rwlock_unlock(&s->lock);
    }
    pthread_mutex_unlock(&g->lock);
    return n;
}
