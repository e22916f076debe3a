/* connection.c - connections come and go, wait, and leave while we wait.
 *
 * MHD reads and writes; but it does not look at a suspended connection, and an exchange that waits for its answer is
 * suspended. So each socket is also in our epoll set, edge-triggered: for the first byte of a request (the deadline of
 * its head begins), for FIN, and for the end. See "Clients that leave" in http.h. */
#include "http/internal.h"

#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <arpa/inet.h>

struct conn *conn_of(struct MHD_Connection *mhd) {
    return MHD_get_connection_info(mhd, MHD_CONNECTION_INFO_SOCKET_CONTEXT)->socket_context;
}

static void name_client(char *out, size_t n, const struct sockaddr *address) {
    char ip[INET6_ADDRSTRLEN];
    if (address && address->sa_family == AF_INET) {
        const struct sockaddr_in *a = (const void *)address;
        snprintf(out, n, "%s:%d", inet_ntop(AF_INET, &a->sin_addr, ip, sizeof ip), ntohs(a->sin_port));
    } else if (address && address->sa_family == AF_INET6) {
        const struct sockaddr_in6 *a = (const void *)address;
        snprintf(out, n, "[%s]:%d", inet_ntop(AF_INET6, &a->sin6_addr, ip, sizeof ip), ntohs(a->sin6_port));
    } else {
        snprintf(out, n, "unix");
    }
}

/* NULL: there is no memory for one; what it asks is not answered. */
static struct conn *conn_new(struct io *io, struct MHD_Connection *mhd) {
    struct conn *c = calloc(1, sizeof *c);
    if (!c)
        return NULL;
    c->source.kind = SOURCE_CONN;
    c->io = io;
    c->mhd = mhd;
    c->fd = MHD_get_connection_info(mhd, MHD_CONNECTION_INFO_CONNECTION_FD)->connect_fd;
    c->deadline = DEADLINE_NONE;
    name_client(c->client, sizeof c->client,
                MHD_get_connection_info(mhd, MHD_CONNECTION_INFO_CLIENT_ADDRESS)->client_addr);
    c->next = io->conns;
    if (io->conns)
        io->conns->prev = c;
    io->conns = c;
    struct epoll_event e = {.events = EPOLLIN | EPOLLRDHUP | EPOLLET, .data.ptr = c};
    if (epoll_ctl(io->epoll_fd, EPOLL_CTL_ADD, c->fd, &e) != 0)
        conn_kill(c); // out of kernel memory: a connection that cannot be watched is not served
    return c;
}

static void forget_deadline(struct conn *c) {
    if (c->deadline == DEADLINE_NONE)
        return;
    struct deadline_list *from = &c->io->deadlines[c->deadline];
    *(c->deadline_prev ? &c->deadline_prev->deadline_next : &from->first) = c->deadline_next;
    *(c->deadline_next ? &c->deadline_next->deadline_prev : &from->last) = c->deadline_prev;
    c->deadline = DEADLINE_NONE;
}

static void conn_free(struct conn *c) {
    BUG_IF(c->exchange);
    forget_deadline(c);
    epoll_ctl(c->io->epoll_fd, EPOLL_CTL_DEL, c->fd, NULL);
    if (c->prev)
        c->prev->next = c->next;
    else
        c->io->conns = c->next;
    if (c->next)
        c->next->prev = c->prev;
    atomic_fetch_sub(&c->io->n_conns, 1);
    c->io->n_closed++;
    free(c);
}

void conn_notify(void *io, struct MHD_Connection *mhd, void **context, enum MHD_ConnectionNotificationCode code) {
    if (code == MHD_CONNECTION_NOTIFY_STARTED) {
        *context = conn_new(io, mhd);
    } else if (*context) {
        void *left = ((struct conn *)*context)->exchange;
        if (left) // the library has paths on which it gives up a request without a word
            exchange_end(io, mhd, &left, MHD_REQUEST_TERMINATED_WITH_ERROR);
        conn_free(*context);
        *context = NULL;
    } else {
        atomic_fetch_sub(&((struct io *)io)->n_conns, 1);
    }
}

void conn_deadline(struct conn *c, enum deadline kind) {
    forget_deadline(c);
    c->deadline = c->dead ? DEADLINE_DEAD : kind;
    if (c->deadline == DEADLINE_NONE)
        return;
    struct deadline_list *to = &c->io->deadlines[c->deadline];
    c->deadline_us = clock_us() + to->span_us;
    c->deadline_prev = to->last;
    c->deadline_next = NULL;
    *(to->last ? &to->last->deadline_next : &to->first) = c;
    to->last = c;
}

/* Of a client that sent FIN nothing more will come than what is here already. MHD sees the end only if it comes
 * alone: edge-triggered, it takes a read that did not fill its buffer for the last, though FIN may have come with
 * those bytes. */
void conn_reading(struct conn *c, enum deadline kind) { conn_deadline(c, c->half_closed ? DEADLINE_FIN : kind); }

static bool is_reading(const struct conn *c) {
    const struct exchange *x = c->exchange; // a refusal waits for the end of the body
    return !x || (!x->handled && (x->answer == ANSWER_NONE || x->response));
}

static void end_reading(struct conn *c) {
    int n_unread = 0;
    if (!is_reading(c))
        return; // exchange_end comes back to it
    ioctl(c->fd, FIONREAD, &n_unread);
    if (n_unread == 0 || c->io->server->tls)
        conn_kill(c);
    else
        conn_deadline(c, DEADLINE_FIN);
}

void conn_resume(struct conn *c) {
    if (!c->suspended)
        return;
    c->suspended = false;
    c->io->daemon_has_work = true;
    MHD_resume_connection(c->mhd);
}

void conn_kill(struct conn *c) {
    conn_resume(c); // MHD asks the exchange, which says that this is the end
    if (c->exchange)
        exchange_leave(c->exchange);
    if (c->dead)
        return; // shutdown is an event of its own: it would be told to us, and so on for ever
    c->dead = true;
    shutdown(c->fd, SHUT_RDWR);
    conn_deadline(c, DEADLINE_DEAD);
}

/* Unless there is no memory for it. */
static void append_ping(struct exchange *x) {
    struct alloc_scope scope;
    alloc_scope_begin(&scope);
    if (setjmp(scope.env) != 0)
        return;
    buf_append(&x->out, x->ping, strlen(x->ping));
    alloc_scope_end(&scope);
}

/* Sends the ping of a stream that has nothing else to say. */
static void ping(struct exchange *x) {
    if (!x->ping || !x->conn->suspended || x->out_sent != x->out.len)
        return;
    buf_clear(&x->out);
    x->out_sent = 0;
    append_ping(x);
    conn_resume(x->conn);
}

/* Finds out whether a client that sent FIN still listens: RST comes back if not, and with it EPOLLHUP. */
static void probe(struct conn *c) {
    struct exchange *x = c->exchange;
    static const char interim[] = "HTTP/1.1 100 Continue\r\n\r\n";
    if (is_reading(c))
        conn_reading(c, DEADLINE_FIN);
    if (!c->suspended || !x)
        return; // MHD reads or writes, and will see for itself
    if (c->io->server->tls || x->minor == 0)
        conn_kill(c);
    else if (exchange_streams(x))
        ping(x);
    else if (exchange_waits(x) && send(c->fd, interim, sizeof interim - 1, MSG_DONTWAIT | MSG_NOSIGNAL) < 0)
        conn_kill(c);
}

void conn_wait(struct conn *c) {
    c->suspended = true;
    MHD_suspend_connection(c->mhd);
    if (c->half_closed && exchange_waits(c->exchange)) // a stream's next bytes will tell
        probe(c);
}

void conn_event(struct conn *c, unsigned epoll_events) {
    if (epoll_events & (EPOLLHUP | EPOLLERR)) {
        conn_kill(c);
    } else if (epoll_events & EPOLLRDHUP) {
        if (!c->half_closed) {
            c->half_closed = true;
            probe(c);
        }
    } else if (!c->exchange && c->deadline == DEADLINE_NONE) {
        conn_deadline(c, DEADLINE_HEAD);
    }
}

/* MHD's look at a socket is edge-triggered too, and it can miss the end of one that came while it had the socket
 * aside: it would then keep the connection for its idle timeout. With one of a second that is over now. */
static void insist(struct conn *c) {
    MHD_set_connection_option(c->mhd, MHD_CONNECTION_OPTION_TIMEOUT, 1u);
    c->io->daemon_has_work = true;
    conn_deadline(c, DEADLINE_DEAD);
}

void conn_expire(struct conn *c) {
    struct exchange *x = c->exchange;
    if (c->deadline == DEADLINE_DEAD) {
        insist(c);
        return;
    }
    if (c->deadline == DEADLINE_PING) {
        conn_deadline(c, DEADLINE_PING);
        ping(x);
        return;
    }
    if (c->deadline == DEADLINE_FIN) {
        conn_deadline(c, DEADLINE_NONE);
        end_reading(c);
        return;
    }
    COUNT(c->io->server, timed_out, 1);
    bool head = c->deadline == DEADLINE_HEAD;
    conn_deadline(c, DEADLINE_NONE);
    if (!c->io->server->tls)
        raw_refuse(c->io->server, c->fd, 408,
                   head ? "the head of the request did not arrive in time"
                        : "the body of the request did not arrive in time");
    conn_kill(c);
}
