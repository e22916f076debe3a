/* wire.c - see wire.h. */
#include "dist/wire.h"

#include "base/clock.h"

#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>
#include <xxhash.h>

static const uint64_t MAGIC = 0x3165726957727967u; // "gyrWire1"
enum { BACKLOG = 64, HOST = 256, STEP = 1 << 20 }; // bytes are made room for as they come, so many at a time

struct wire {
    int fd;
};

struct frame {
    uint64_t magic, bytes, hash;
    uint32_t kind, reserved;
};

// ---- addresses --------------------------------------------------------------------------------------------------

/* "host:port", "[::1]:port". */
static enum status resolve(const char *address, bool passive, struct addrinfo **out, struct error *err) {
    char host[HOST];
    const char *colon = strrchr(address, ':');
    size_t n = colon ? (size_t)(colon - address) : 0;
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = passive ? AI_PASSIVE : 0};
    if (!colon || !colon[1] || n >= sizeof host)
        return fail(err, ERR_ARG, "%.200s is not an address as 127.0.0.1:9000", address);
    bool is_bracketed = n > 1 && address[0] == '[' && address[n - 1] == ']';
    snprintf(host, sizeof host, "%.*s", (int)(is_bracketed ? n - 2 : n), address + is_bracketed);
    int e = getaddrinfo(n ? host : NULL, colon + 1, &hints, out);
    return e == 0 ? OK : fail(err, ERR_IO, "%.200s: %s", address, gai_strerror(e));
}

static enum status wrong(const char *address, const char *what, struct error *err) {
    return fail(err, ERR_IO, "%.200s: %s: %s", address, what, strerror(errno));
}

static int port_of(int fd) {
    struct sockaddr_storage a;
    socklen_t n = sizeof a;
    if (getsockname(fd, (struct sockaddr *)&a, &n) != 0)
        return 0;
    return ntohs(a.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)&a)->sin6_port
                                         : ((struct sockaddr_in *)&a)->sin_port);
}

enum status wire_listen(const char *address, int *fd, int *port, struct error *err) {
    struct addrinfo *a;
    int one = 1;
    TRY(resolve(address, true, &a, err));
    *fd = socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    bool is_there = *fd >= 0 && setsockopt(*fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one) == 0 &&
                    bind(*fd, a->ai_addr, a->ai_addrlen) == 0 && listen(*fd, BACKLOG) == 0;
    enum status st = is_there ? OK : wrong(address, "it cannot be listened on", err);
    freeaddrinfo(a);
    if (!is_there && *fd >= 0)
        close(*fd);
    *port = is_there ? port_of(*fd) : 0;
    return st;
}

/* A peer whose host lost its power sends no end of the connection. */
static void ask_whether_it_is_there(int fd) {
    int one = 1, first_s = WIRE_GONE_S / 2, each_s = WIRE_GONE_S / 6;
    unsigned gone_ms = WIRE_GONE_S * 1000;
    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &one, sizeof one);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &first_s, sizeof first_s);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &each_s, sizeof each_s);
    setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &gone_ms, sizeof gone_ms);
}

static struct wire *wire_of(int fd) {
    int one = 1;
    struct wire *w = xcalloc(1, sizeof *w);
    w->fd = fd;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    ask_whether_it_is_there(fd);
    fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
    return w;
}

enum status wire_accept(int fd, struct wire **out, struct error *err) {
    for (;;) {
        int peer = accept4(fd, NULL, NULL, SOCK_CLOEXEC);
        if (peer >= 0) {
            *out = wire_of(peer);
            return OK;
        }
        if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM)
            usleep(10000); // others will close theirs
        else if (errno != EINTR && errno != ECONNABORTED)
            return fail(err, ERR_IO, "nobody is listened to any more: %s", strerror(errno));
    }
}

bool wire_comes(int fd, int timeout_ms) {
    struct pollfd p = {.fd = fd, .events = POLLIN};
    return poll(&p, 1, timeout_ms) > 0;
}

void wire_stop_listening(int fd) { shutdown(fd, SHUT_RDWR); }
void wire_close_listening(int fd) { close(fd); }

// ---- waiting ----------------------------------------------------------------------------------------------------

static enum status await(int fd, short what, int64_t until_us, struct error *err) {
    for (;;) {
        int64_t left_us = until_us - clock_us();
        struct pollfd p = {.fd = fd, .events = what};
        if (left_us <= 0)
            return fail(err, ERR_IO, "the peer is late");
        int n = poll(&p, 1, (int)MIN(left_us / 1000 + 1, INT32_MAX));
        if (n > 0)
            return OK;
        if (n < 0 && errno != EINTR)
            return fail(err, ERR_IO, "the peer cannot be waited for: %s", strerror(errno));
    }
}

static enum status connect_to(const char *address, const struct addrinfo *a, int64_t until_us, struct wire **out,
                              struct error *err) {
    int fd = socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0), why = 0;
    socklen_t n = sizeof why;
    enum status st = fd >= 0 ? OK : wrong(address, "there is no socket for it", err);
    if (st == OK && connect(fd, a->ai_addr, a->ai_addrlen) != 0 && errno != EINPROGRESS)
        st = wrong(address, "it cannot be connected to", err);
    if (st == OK)
        st = await(fd, POLLOUT, until_us, err);
    if (st == OK && (getsockopt(fd, SOL_SOCKET, SO_ERROR, &why, &n) != 0 || why != 0)) {
        errno = why;
        st = wrong(address, "it cannot be connected to", err);
    }
    if (st == OK)
        *out = wire_of(fd);
    else if (fd >= 0)
        close(fd);
    return st;
}

enum { LEAST_US = 250000 }; // for an address far away

/* One behind the other: each has an equal share of the time that those before it have left, but no less than that. */
enum status wire_connect(const char *address, int timeout_ms, struct wire **out, struct error *err) {
    struct addrinfo *all;
    int64_t until_us = clock_us() + (int64_t)timeout_ms * 1000;
    int n_left = 0;
    TRY(resolve(address, false, &all, err));
    for (const struct addrinfo *a = all; a; a = a->ai_next)
        n_left++;
    enum status st = ERR_IO;
    for (const struct addrinfo *a = all; a && st != OK; a = a->ai_next, n_left--) {
        int64_t now_us = clock_us();
        int64_t share_us = MAX((until_us - now_us) / n_left, LEAST_US);
        st = connect_to(address, a, MIN(now_us + share_us, until_us), out, err);
    }
    freeaddrinfo(all);
    return st;
}

bool wire_is_closed(const struct wire *w) {
    char byte;
    ssize_t n = recv(w->fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
    return n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR);
}

bool wire_has_frame(const struct wire *w, size_t n) {
    int there = 0;
    return wire_is_closed(w) || (ioctl(w->fd, FIONREAD, &there) == 0 && (size_t)there >= sizeof(struct frame) + n);
}

void wire_break(struct wire *w) { shutdown(w->fd, SHUT_RDWR); }

void wire_close(struct wire *w) {
    if (!w)
        return;
    close(w->fd);
    free(w);
}

// ---- frames -----------------------------------------------------------------------------------------------------

static enum status send_all(struct wire *w, const char *at, size_t n, int64_t until_us, struct error *err) {
    while (n > 0) {
        ssize_t sent = send(w->fd, at, n, MSG_NOSIGNAL);
        if (sent < 0 && (errno == EAGAIN || errno == EINTR)) {
            TRY(await(w->fd, POLLOUT, until_us, err));
            continue;
        }
        if (sent < 0)
            return fail(err, ERR_IO, "the peer is gone: %s", strerror(errno));
        at += sent, n -= (size_t)sent;
    }
    return OK;
}

static enum status receive_all(struct wire *w, char *at, size_t n, int64_t until_us, struct error *err) {
    while (n > 0) {
        ssize_t got = recv(w->fd, at, n, 0);
        if (got < 0 && (errno == EAGAIN || errno == EINTR)) {
            TRY(await(w->fd, POLLIN, until_us, err));
            continue;
        }
        if (got <= 0)
            return fail(err, ERR_IO, "the peer is gone%s%s", got < 0 ? ": " : "", got < 0 ? strerror(errno) : "");
        at += got, n -= (size_t)got;
    }
    return OK;
}

enum status wire_send(struct wire *w, uint32_t kind, struct str bytes, int64_t until_us, struct error *err) {
    struct frame f = {MAGIC, bytes.len, XXH3_64bits(bytes.ptr, bytes.len), kind, 0};
    TRY(send_all(w, (const char *)&f, sizeof f, until_us, err));
    return send_all(w, bytes.ptr, bytes.len, until_us, err);
}

enum status wire_await(struct wire *w, int64_t until_us, struct error *err) {
    return await(w->fd, POLLIN, until_us, err);
}

enum status wire_receive(struct wire *w, uint32_t *kind, struct buf *bytes, size_t most_bytes, int64_t until_us,
                         struct error *err) {
    struct frame f;
    size_t first = bytes->len;
    TRY(receive_all(w, (char *)&f, sizeof f, until_us, err));
    if (f.magic != MAGIC || f.reserved != 0)
        return fail(err, ERR_FORMAT, "the peer speaks another language");
    if (f.bytes > most_bytes)
        return fail(err, ERR_LIMIT, "the peer sends %llu bytes, at most %zu may be", (unsigned long long)f.bytes,
                    most_bytes);
    for (size_t left = (size_t)f.bytes; left > 0;) {
        size_t n = MIN(left, (size_t)STEP);
        if (!buf_reserve(bytes, n))
            return fail(err, ERR_MEMORY, "there is no room for what the peer sends");
        TRY(receive_all(w, bytes->ptr + bytes->len, n, until_us, err));
        bytes->len += n, left -= n;
    }
    if (XXH3_64bits(bytes->ptr + first, bytes->len - first) != f.hash)
        return fail(err, ERR_FORMAT, "what the peer sent was changed on its way");
    *kind = f.kind;
    return OK;
}
