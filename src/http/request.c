/* request.c - what a handler asks about its exchange: the thread, fields, parameters, whether the client is gone. */
#include "http/internal.h"

static struct exchange *of(const struct http_exchange *x) { return (struct exchange *)x; }

int http_thread(const struct http_exchange *x) { return (int)(of(x)->io - of(x)->io->server->io); }

void *http_context(const struct http_exchange *x) { return of(x)->io->server->options.context; }

struct str http_field(const struct http_exchange *x, const char *name) {
    return head_find(of(x)->fields, of(x)->n_fields, name);
}

struct str http_parameter(struct http_exchange *x, const char *name) {
    struct str raw = query_find(x->query, name), decoded;
    return raw.ptr && percent_decode(&x->arena, raw, true, &decoded) ? decoded : (struct str){0};
}

bool http_is_gone(const struct http_exchange *pub) {
    const struct exchange *x = of(pub);
    return x->lent ? atomic_load(&x->left) : !x->conn || x->conn->dead;
}
