/* http_attack_rig.h - what a server is held to after an attack. */
#pragma once

#include "http_rig.h"

#include <malloc.h>
#include <sys/socket.h>
#include <unistd.h>

/* More than any of these takes with others on the machine, and less than the time-out that would end it anyway. */
#define SOON_US 60000000

static inline void expect_alive(int port) {
    struct heard a = ask(port, GET("/hello"));
    EXPECT(a.status == 200 && strcmp(a.body.ptr, "hello\n") == 0);
    heard_release(&a);
}

/* Closes with RST, as a process that is killed with unread data does. */
static inline void reset(int fd) {
    setsockopt(fd, SOL_SOCKET, SO_LINGER, &(struct linger){.l_onoff = 1}, sizeof(struct linger));
    close(fd);
}

/* Waits until the server has this many connections and holds at least so many bytes of bodies. */
static inline void settle(const struct rig *r, int connections, size_t body_bytes) {
    struct http_stats s;
    for (int64_t end = clock_us() + PATIENCE_US; clock_us() < end; usleep(1000)) {
        http_stats(r->server, &s);
        if (s.connections == connections && s.body_bytes >= body_bytes)
            return;
    }
    fail_msg("%d connections and %zu bytes, not %d and %zu", s.connections, s.body_bytes, connections, body_bytes);
}
