/* prompt_fetch.h - the decode role: long prompts are computed by another server, and their cache fetched from it.
 *
 *     submit ──► fetching: how much is remembered here? ──► ask for the rest ──► remember it ──► engine's inbox
 *                          too little to ask for, or the other server is gone, late or wrong ──►
 *
 * Parts come, and are remembered, while the other server computes the rest. The engine then finds the prompt in its
 * prefix cache and computes what is left of it; where nothing came that is all. So each request is answered once and by
 * this server, whatever the other one does. After a fault it is left alone for a while (REST_US). A few threads fetch
 * at a time.
 *
 * That a client leaves is no fault. But the time in which a fetch was under way and nothing came is summed up, once for
 * fetches at the same time, from the last word of any: a client that leaves when the sum is timeout_us or more leaves a
 * server that hangs, which is a fault, told and counted as one. */
#pragma once

#include "engine/lanes/lane.h"
#include "engine/service.h"

struct prompt_fetch_options {
    const char *address;  // of the prefill server: "10.0.0.2:9000"
    uint64_t identity;    // of model and numerics; the same on both sides
    int64_t least_tokens; // that are not remembered here, for a prompt to be fetched
    int64_t timeout_us;   // for a prompt's cache to come
};

/* From now on, until the lane is closed. ERR_UNSUPPORTED as handover_check. The other server need not be there yet. */
enum status prompt_fetch_open(struct lane *lane, const struct prompt_fetch_options *options, struct error *err);
