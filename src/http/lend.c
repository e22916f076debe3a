/* lend.c - see lend.h. */
#include "http/internal.h"

static struct exchange *of(const struct http_exchange *x) { return (struct exchange *)x; }

void http_lend(struct http_exchange *x) { of(x)->lent = true; }

bool http_is_lent(const struct http_exchange *x) { return of(x)->lent; }

bool http_was_left(const struct http_exchange *x) { return atomic_load(&of(x)->left); }

void http_give_back(struct http_exchange *pub) {
    struct exchange *x = of(pub);
    struct io *io = x->io;
    x->next_given = atomic_load(&io->given);
    while (!atomic_compare_exchange_weak(&io->given, &x->next_given, x))
        ;
    io_wake(io); // the exchange may be gone by now
}

static void refuse_within_scope(struct exchange *x) {
    struct alloc_scope scope;
    alloc_scope_begin(&scope);
    if (setjmp(scope.env) != 0) {
        x->broken = true;
        return;
    }
    answer_error(x, 503, "there is not enough memory for the request now", &(struct http_header){"Retry-After", "1"},
                 1);
    alloc_scope_end(&scope);
}

void http_fail(struct http_exchange *pub) {
    struct exchange *x = of(pub);
    if (x->answer == ANSWER_NONE && x->n_holds == 0)
        refuse_within_scope(x);
    else
        x->broken = true;
    if (x->broken && !x->lent && x->conn)
        conn_kill(x->conn);
}

static void take_back(struct exchange *x) {
    struct io *io = x->io;
    x->lent = false;
    exchange_drop_body(x); // an answer may go on for minutes
    if (x->ended)
        x->conn = NULL;
    else if (x->broken)
        conn_kill(x->conn); // first: who is told now must see that it is gone
    x->n_holds++;           // while others look at it
    if (io->server->options.returned)
        io->server->options.returned(&x->pub);
    x->n_holds--;
    if (x->ended) {
        exchange_over(x, false);
        return;
    }
    BUG_IF(!x->answer && x->n_holds == 0 && !x->conn->dead); // who had it answers, or holds
    if (x->answer && !x->broken)
        answer_commit(x);
    if (io->stage >= STAGE_TELL)
        exchange_tell(x, HTTP_GONE_STOPPING);
}

/* In the order in which they were given back. */
void exchange_take_back(struct io *io) {
    struct exchange *given = atomic_exchange(&io->given, NULL), *first = NULL;
    while (given) {
        struct exchange *next = given->next_given;
        given->next_given = first;
        first = given;
        given = next;
    }
    while (first) {
        struct exchange *next = first->next_given;
        take_back(first);
        first = next;
    }
}

void exchange_free_given(struct io *io) {
    for (struct exchange *x = atomic_exchange(&io->given, NULL), *next; x; x = next) {
        next = x->next_given;
        exchange_free(x);
    }
}
