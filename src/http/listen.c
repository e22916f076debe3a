/* listen.c - opens the listening sockets, accepts, and spreads connections over the I/O threads. */
#include "http/internal.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

enum { ACCEPT_AT_ONCE = 64, BACKLOG = 4096 };

/* ---- listening --------------------------------------------------------------------------------------------------- */

static enum status add_listener(struct http_server *s, int fd, struct error *err) {
    struct listener *l = &s->listeners[s->n_listeners++];
    *l = (struct listener){{SOURCE_LISTENER}, fd};
    struct epoll_event e = {.events = EPOLLIN, .data.ptr = l};
    if (listen(fd, BACKLOG) != 0 || epoll_ctl(s->io[0].epoll_fd, EPOLL_CTL_ADD, fd, &e) != 0)
        return fail(err, ERR_IO, "a socket cannot listen: %s", strerror(errno));
    return OK;
}

static in_port_t *port_in(struct sockaddr *a) {
    return a->sa_family == AF_INET6 ? &((struct sockaddr_in6 *)a)->sin6_port : &((struct sockaddr_in *)a)->sin_port;
}

static int port_of(int fd) {
    struct sockaddr_storage a;
    socklen_t n = sizeof a;
    if (getsockname(fd, (struct sockaddr *)&a, &n) != 0)
        return 0;
    return ntohs(*port_in((struct sockaddr *)&a));
}

/* Bytes that the system takes of a connection before the network has taken those before (its sockets have this from the
 * listening one). Else it is up to 4 MiB, a whole answer, and nobody knew that its client does not read. */
enum { MOST_UNSENT = 128 << 10 };

static int bind_tcp(const struct addrinfo *a) {
    int one = 1, most = MOST_UNSENT, fd = socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return -1;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    setsockopt(fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT, &most, sizeof most);
    if (a->ai_family == AF_INET6)
        setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &one, sizeof one);
    if (bind(fd, a->ai_addr, a->ai_addrlen) == 0)
        return fd;
    int why = errno;
    close(fd);
    errno = why;
    return -1;
}

static bool is_loopback(const struct sockaddr *a) {
    if (a->sa_family == AF_INET6)
        return IN6_IS_ADDR_LOOPBACK(&((const struct sockaddr_in6 *)a)->sin6_addr);
    return ntohl(((const struct sockaddr_in *)a)->sin_addr.s_addr) >> 24 == 127;
}

/* Where to listen. A system without /etc/hosts (an image made from nothing, a chroot) does not know localhost. */
static enum status find_addresses(const struct http_options *o, struct addrinfo **out, struct error *err) {
    bool is_localhost = o->host && host_is_localhost(str_of(o->host));
    struct addrinfo hints = {
        .ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM, .ai_flags = is_localhost ? 0 : AI_PASSIVE};
    char port[16];
    snprintf(port, sizeof port, "%d", o->port);
    int why = getaddrinfo(is_localhost ? NULL : o->host, port, &hints, out); // of NULL: loopback, or with PASSIVE all
    return why ? fail(err, ERR_ARG, "host %s: %s", o->host ? o->host : "*", gai_strerror(why)) : OK;
}

enum status listen_tcp(struct http_server *s, struct error *err) {
    const struct http_options *o = &s->options;
    struct addrinfo *list;
    TRY(find_addresses(o, &list, err));
    enum status status = OK;
    int errors = 0;
    for (struct addrinfo *a = list; a && status == OK && s->n_listeners < (int)ARRAY_LEN(s->listeners) - 1;
         a = a->ai_next) {
        if (s->port && o->port == 0) // the second address gets the port that the system chose for the first
            *port_in(a->ai_addr) = htons((uint16_t)s->port);
        int fd = bind_tcp(a);
        if (fd < 0) {
            errors = errno;
            continue; // a machine without IPv6 has names that resolve to it
        }
        s->is_local = (s->is_local || s->n_listeners == 0) && is_loopback(a->ai_addr);
        status = add_listener(s, fd, err);
        s->port = port_of(fd);
    }
    freeaddrinfo(list);
    if (status == OK && !s->n_listeners)
        return fail(err, ERR_IO, "cannot listen on %s port %d: %s", o->host ? o->host : "any address,", o->port,
                    strerror(errors));
    return status;
}

/* Removes a socket that nobody answers any more; leaves everything else alone. */
static void remove_stale(const struct sockaddr_un *a) {
    struct stat st;
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd >= 0 && stat(a->sun_path, &st) == 0 && S_ISSOCK(st.st_mode) &&
        connect(fd, (const struct sockaddr *)a, sizeof *a) != 0 && errno == ECONNREFUSED)
        unlink(a->sun_path);
    if (fd >= 0)
        close(fd);
}

enum status listen_unix(struct http_server *s, struct error *err) {
    const char *path = s->options.unix_path;
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    if (strlen(path) >= sizeof a.sun_path)
        return fail(err, ERR_ARG, "%s: the path of a Unix socket has at most %zu bytes", path, sizeof a.sun_path - 1);
    strcpy(a.sun_path, path);
    remove_stale(&a);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0 || bind(fd, (const struct sockaddr *)&a, sizeof a) != 0) {
        int why = errno;
        if (fd >= 0)
            close(fd);
        return fail(err, ERR_IO, "%s: cannot listen: %s", path, strerror(why));
    }
    s->unix_bound = true;
    return add_listener(s, fd, err);
}

void listen_close(struct http_server *s) {
    for (int i = 0; i < s->n_listeners; i++)
        close(s->listeners[i].fd); // which takes it out of the epoll set
    s->n_listeners = 0;
    if (s->unix_bound)
        unlink(s->options.unix_path);
    s->unix_bound = false;
}

/* ---- accepting --------------------------------------------------------------------------------------------------- */

/* The first threads get a few connections each before the rest is spread: what a step brings to a few streams then
 * wakes one thread instead of all, which costs less than it takes to serve them one after the other. */
static struct io *thread_for_newcomer(struct http_server *s, int *n_all) {
    enum { FEW = 16 };
    struct io *best = &s->io[0];
    *n_all = 0;
    for (int i = 0; i < s->n_io; i++) {
        int n = atomic_load(&s->io[i].n_conns), least = atomic_load(&best->n_conns);
        *n_all += n;
        if (least >= FEW && n < least)
            best = &s->io[i];
    }
    return best;
}

/* Without a free descriptor the newcomer would stay in the queue and epoll report it for ever: it is taken with the
 * spare one and closed. */
static void turn_away(struct http_server *s, int listener) {
    close(s->spare_fd);
    int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
    if (fd >= 0)
        close(fd);
    s->spare_fd = eventfd(0, EFD_CLOEXEC);
    COUNT(s, refused_full, 1);
}

void listen_accept(struct http_server *s, struct listener *l) {
    for (int i = 0; i < ACCEPT_AT_ONCE; i++) {
        struct sockaddr_storage address = {0};
        socklen_t n_address = sizeof address;
        int n_all, fd = accept4(l->fd, (struct sockaddr *)&address, &n_address, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (fd < 0 && (errno == EMFILE || errno == ENFILE))
            turn_away(s, l->fd);
        if (fd < 0)
            break;
        struct io *io = thread_for_newcomer(s, &n_all);
        if (n_all >= s->options.max_connections) {
            COUNT(s, refused_full, 1);
            if (!s->tls)
                raw_refuse(s, fd, 503, "the server has all the connections that it may have");
            close(fd);
            continue;
        }
        COUNT(s, accepted, 1);
        atomic_fetch_add(&io->n_conns, 1);
        if (!io_adopt(io, fd, &address, n_address)) {
            atomic_fetch_sub(&io->n_conns, 1);
            COUNT(s, refused_full, 1);
            close(fd);
        }
    }
}
