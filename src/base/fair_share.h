/* fair_share.h - whose turn it is among tenants that share an engine: start-time fair queueing (Goyal, Vin, Cheng,
 * 1996).
 *
 * Each request gets a tag when it comes, and requests run in the order of their tags:
 *
 *     tag = max(virtual time, finish of its tenant)           finish of its tenant = tag + cost
 *
 * The virtual time is the largest tag that has started. So requests of one tenant follow each other at the distance of
 * their costs, while a tenant that asked for little stands next to those that run now: whoever floods the queue waits
 * behind himself. A tenant gets no credit for the time in which it asked for nothing. Between two tenants that both
 * always have something waiting, the tokens that they got differ by no more than their largest requests and what may
 * run at once.
 *
 * A cost is a number of tokens, which is not known before the answer has ended: an expected one is charged when the
 * request comes, and what it was too much or too little is settled with the tenant's next ones. With one tenant, tags
 * are in the order of arrival. No allocation after init. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct fair_share {
    int64_t *finish; // [n_tenants]
    int n_tenants;
    int64_t now, latest; // virtual time, and the largest finish of all
    double mean_answer;  // tokens of the last answers
};

void fair_share_init(struct fair_share *f, int n_tenants);
void fair_share_release(struct fair_share *f);

/* What a request is charged when it comes. */
int64_t fair_share_cost(const struct fair_share *f, int64_t n_prompt, int64_t max_tokens);

/* Its tag. idle: nothing else waits or runs. */
int64_t fair_share_arrive(struct fair_share *f, int tenant, int64_t cost, bool idle);

/* A request with this tag is in a step for the first time. */
void fair_share_start(struct fair_share *f, int64_t tag);

/* It has ended, was charged `cost`, and computed n_prompt prompt tokens and n_answer tokens. */
void fair_share_settle(struct fair_share *f, int tenant, int64_t cost, int64_t n_prompt, int64_t n_answer);
