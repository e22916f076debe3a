/* plan_replay.h - gyre plan --trace: a trace replayed on numbers of cards, as a table or as JSON. */
#pragma once

#include "base/json/json.h"
#include "sizing/replay.h"

struct plan_replay {
    const char *trace;
    const int32_t *cards; // [n_cards]
    size_t n_cards;
    double rate;        // requests/s a card; 0: four fifths of what arithmetic says that a card could take
    int64_t n_requests; // of the trace, for each engine
    int64_t max_tokens, max_seqs, max_len;
    double itl_target_ms;
};

/* With the layout that gives a card the most tokens of requests with prompts. into: NULL, or what becomes "replays". */
enum status plan_replay(const struct plan_replay *p, const struct sizing *s, const struct layout *all, int n,
                        json_t *into, struct error *err);
