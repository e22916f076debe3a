/* prompt_wire.h - what the two roles say to each other, in frames of dist/wire.h. */
#pragma once

#include <stdint.h>

enum {
    PROMPT_ASK,     // struct prompt_ask and its tokens
    PROMPT_CACHE,   // the bytes of handover.h, all or the last of them; none, where parts were all
    PROMPT_NOTHING, // a sentence: why there is no cache of it, nor soon of another
    PROMPT_FULL,    // a sentence: why there is no room for it, by a server that is well
    PROMPT_PART,    // bytes of handover.h of blocks that were computed meanwhile; more follows
};

struct prompt_ask {
    uint64_t identity;
    int32_t tenant, from, n, reserved; // from: blocks that the asker remembers; n: tokens that follow
};
