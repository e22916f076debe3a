/* prompt_wire.h - what the two roles say to each other, in frames of dist/wire.h.
 *
 *     asker                    server
 *     ASK             ──────►  computes, and meanwhile
 *                     ◄──────  PART, ...                  bytes
 *                     ◄──────  WINDOW                     of one host: they lie on the server's device
 *     TAKEN, LATE,    ──────►                             it may be used again; bytes have to come, for this prompt,
 *     REFUSED                                             or from now on
 *                     ◄──────  CACHE, or why not */
#pragma once

#include "core/backend_handover.h"

#include <stdint.h>

enum {
    PROMPT_ASK,     // struct prompt_ask and its tokens
    PROMPT_CACHE,   // the bytes of handover.h, all or the last of them; none, where parts were all
    PROMPT_NOTHING, // a sentence: why there is no cache of it, nor soon of another
    PROMPT_FULL,    // a sentence: why there is no room for it, by a server that is well
    PROMPT_PART,    // bytes of handover.h of blocks that were computed meanwhile; more follows
    PROMPT_WINDOW,  // likewise: struct prompt_window, and the header of what is shown there
    PROMPT_TAKEN,   // nothing: what was shown is there
    PROMPT_LATE,    // nothing: it was not copied in time; what is left of this prompt has to come as bytes
    PROMPT_REFUSED, // nothing: it cannot be reached, and no other will be
};

struct prompt_ask {
    uint64_t identity;
    uint64_t host;                     // prompt_host of one whose device takes from windows; 0: bytes alone
    int32_t tenant, from, n, reserved; // from: blocks that the asker remembers; n: tokens that follow
};

/* Until then, of the clock that both have (clock_us), or until the asker's word, nothing else is shown there: what was
 * not copied before is not used. The asker's word is waited for longer than that, and comes once for each. */
struct prompt_window {
    char name[WINDOW_NAME];
    uint64_t at;
    int64_t until_us;
};

/* A number of this host, and of its clock as this process sees it (time_namespaces(7)), until it is started anew; 0: it
 * does not say. */
uint64_t prompt_host(void);
