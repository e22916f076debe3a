/* things.h - part of device.c: things that are made and given back. */
#pragma once

// ---- things that are made and given back ------------------------------------------------------------------------

enum kind { MEMORY, PINNED, STREAM, EVENT, GRAPH, EXEC, DESCRIPTION, RANGE, N_KINDS };
static const char *const kind_names[N_KINDS] = {"memory", "pinned memory",    "stream",      "event",
                                                "graph",  "executable graph", "description", "addresses"};

struct thing {
    struct thing *next;
    void *at;
    size_t n_bytes;
    enum kind kind;
    int64_t call;
};
static struct thing *things;
static size_t held;

static void misused(const char *what) {
#ifdef DRY_LIBRARY
    fprintf(stderr, "dry: misused: %s\n", what);
#endif
    if (!dry.misuse[0])
        snprintf(dry.misuse, sizeof dry.misuse, "%s", what);
}

static void *made(enum kind kind, void *at, size_t n_bytes) {
    struct thing *t = calloc(1, sizeof *t);
    pthread_mutex_lock(&lock);
    *t = (struct thing){things, at, n_bytes, kind, dry.n_calls};
    things = t;
    held += kind == MEMORY ? n_bytes : 0;
    pthread_mutex_unlock(&lock);
    return at;
}

/* Its bytes; negative: it is not, as of NULL. */
static int64_t given_back(enum kind kind, const void *at) {
    pthread_mutex_lock(&lock);
    struct thing **link = &things, *t = NULL;
    while (*link && ((*link)->at != at || (*link)->kind != kind))
        link = &(*link)->next;
    if (at && *link) {
        t = *link;
        *link = t->next;
        held -= kind == MEMORY ? t->n_bytes : 0;
    } else if (at) {
        misused(kind_names[kind]);
    }
    pthread_mutex_unlock(&lock);
    int64_t n_bytes = t ? (int64_t)t->n_bytes : -1;
    free(t);
    return n_bytes;
}

int64_t dry_alive(void) {
    int64_t n = 0;
    for (const struct thing *t = things; t; t = t->next)
        n++;
    return n;
}

void dry_list_alive(void) {
    for (const struct thing *t = things; t; t = t->next)
        fprintf(stderr, "    %s of %zu bytes, made before call %lld\n", kind_names[t->kind], t->n_bytes,
                (long long)t->call + 1);
}
