/* roles.h - prefill apart from decode, of a service of one engine.
 *
 * The identity is a hash of what says that two servers have the same model and numerics. Each is called once; the role
 * ends with the service. */
#pragma once

#include "engine/roles/prompt_fetch.h"
#include "engine/service.h"

/* Prefill: gives others the cache of prompts, listening on "host:port"; *port says on which. */
enum status service_give_prompts(struct service *s, const char *address, uint64_t identity, int *port,
                                 struct error *err);

/* Decode: has prompts of least_tokens and more computed there (prompt_fetch.h). */
enum status service_fetch_prompts(struct service *s, const struct prompt_fetch_options *options, struct error *err);
