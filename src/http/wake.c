/* wake.c - what other threads do to an I/O thread: they wake it, and hand it accepted sockets. */
#include "http/internal.h"

#include <stdlib.h>
#include <unistd.h>

static void ring(struct io *io) {
    uint64_t one = 1;
    COUNT(io->server, wakes, 1);
    BUG_IF(write(io->wake_fd, &one, sizeof one) != sizeof one);
}

void io_wake(struct io *io) {
    if (!atomic_exchange(&io->woken, true))
        ring(io);
}

void http_wake(struct http_server *s, int thread) { io_wake(&s->io[thread]); }

bool io_adopt(struct io *io, int fd, const struct sockaddr_storage *address, socklen_t n_address) {
    struct newcomer *n = malloc(sizeof *n);
    if (!n)
        return false;
    *n = (struct newcomer){.fd = fd, .n_address = n_address, .address = *address};
    pthread_mutex_lock(&io->newcomers_mutex);
    n->next = io->newcomers;
    io->newcomers = n;
    pthread_mutex_unlock(&io->newcomers_mutex);
    io_wake(io);
    return true;
}

struct newcomer *io_take_newcomers(struct io *io) {
    pthread_mutex_lock(&io->newcomers_mutex);
    struct newcomer *all = io->newcomers;
    io->newcomers = NULL;
    pthread_mutex_unlock(&io->newcomers_mutex);
    return all;
}
