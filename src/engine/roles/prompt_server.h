/* prompt_server.h - the prefill role: computes prompts that other servers ask for, and gives them their cache.
 *
 * A prompt goes through the engine as any request, of no tokens to answer, and finds what is cached of it. A thread a
 * connection, MOST_ASKERS at most. Who asks is not trusted: sizes are checked, and another model is refused. */
#pragma once

#include "engine/lanes/lane.h"

enum { MOST_ASKERS = 64 };

struct prompt_server;

/* Listens on "host:port"; *port becomes the port. The identity is of model and numerics (handover.h). */
enum status prompt_server_open(struct lane *lane, const char *address, uint64_t identity, struct prompt_server **out,
                               int *port, struct error *err);
void prompt_server_close(struct prompt_server *s);          // NULL is fine
int64_t prompt_server_given(const struct prompt_server *s); // prompts, so far; NULL: 0
