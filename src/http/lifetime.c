/* lifetime.c - how long an exchange lives: its holds, the end of its connection, who is told, and what is freed. */
#include "http/internal.h"

#include <stdlib.h>
#include <sys/socket.h>

static struct exchange *of(const struct http_exchange *x) { return (struct exchange *)x; }

void exchange_drop_body(struct exchange *x) {
    atomic_fetch_sub(&x->io->server->body_bytes, x->body_reserved);
    x->body_reserved = 0;
    x->pub.body = (struct str){0};
    inflater_free(x->inflater);
    x->inflater = NULL;
    buf_release(&x->body);
    buf_release(&x->packed);
}

void exchange_free(struct exchange *x) {
    struct http_server *s = x->io->server;
    if (x->head_read) {
        x->io->n_exchanges--;
        atomic_fetch_sub(&s->stats.in_flight, 1);
    }
    exchange_drop_body(x);
    if (x->response)
        MHD_destroy_response(x->response);
    buf_release(&x->out);
    arena_release(&x->pub.arena);
    free(x);
}

/* Who does not hold does not want to know, and may have given up what the exchange points to. */
void exchange_tell(struct exchange *x, enum http_gone why) {
    if (x->lent || x->n_holds == 0 || x->told_gone || exchange_answered(x) || !x->pub.route->gone)
        return;
    x->told_gone = true;
    x->gone_why = why;
    x->pub.route->gone(&x->pub, why);
}

static void tell_finished(struct exchange *x, const struct http_outcome *o) {
    struct alloc_scope scope;
    alloc_scope_begin(&scope);
    if (setjmp(scope.env) != 0)
        return;
    x->io->server->options.finished(&x->pub, o);
    alloc_scope_end(&scope);
}

static void report(struct exchange *x, bool complete) {
    struct http_server *s = x->io->server;
    if (!complete && x->gone_why == HTTP_GONE_SLOW)
        COUNT(s, gone_slow, 1);
    else if (!complete)
        COUNT(s, gone_client, 1);
    if (s->options.finished) {
        struct http_outcome o = {.status = x->status,
                                 .body_bytes = x->body_seen,
                                 .sent_bytes = x->sent_bytes,
                                 .duration_us = clock_us() - x->started_us,
                                 .complete = complete,
                                 .gone = x->gone_why};
        tell_finished(x, &o);
    }
}

/* Its connection has done with it. */
void exchange_over(struct exchange *x, bool complete) {
    if (x->head_read)
        report(x, complete);
    if (x->n_holds == 0)
        exchange_free(x);
    else
        exchange_tell(x, x->gone_why); // which may release, and so free it
}

void exchange_end(void *io, struct MHD_Connection *mhd, void **context, enum MHD_RequestTerminationCode how) {
    (void)io;
    struct exchange *x = *context;
    if (!x)
        return;
    struct conn *c = conn_of(mhd);
    *context = NULL;
    c->exchange = NULL;
    conn_reading(c, DEADLINE_NONE);
    if (how == MHD_REQUEST_TERMINATED_TIMEOUT_REACHED)
        x->gone_why = HTTP_GONE_SLOW;
    if (x->io->stage >= STAGE_DRAIN)
        shutdown(c->fd, SHUT_RDWR); // what was written still arrives
    if (x->lent) {                  // the rest when it is back
        x->ended = true;
        exchange_leave(x);
        return;
    }
    bool complete = how == MHD_REQUEST_TERMINATED_COMPLETED_OK && exchange_answered(x) && !c->dead;
    if (complete && x->answer == ANSWER_WHOLE && x->pub.method != HTTP_HEAD)
        x->sent_bytes = x->out.len;
    x->conn = NULL;
    exchange_over(x, complete);
}

void http_hold(struct http_exchange *x) { of(x)->n_holds++; }

void http_release(struct http_exchange *pub) {
    struct exchange *x = of(pub);
    BUG_IF(x->n_holds <= 0);
    if (--x->n_holds > 0 || x->lent)
        return;
    if (!x->conn)
        exchange_free(x);
    else if (!exchange_answered(x))
        conn_kill(x->conn);
}
