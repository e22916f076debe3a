/* answer.h - what a model answers to one prompt, collected: ids, text as it becomes certain, and how it went.
 *
 *     struct answer a;
 *     answer_init(&a, tok, stop, n_stop);             tok may be NULL: ids only
 *     answer_submit(&a, g, &request, &err);           request.user says whose events are whose
 *     events -> answer_take(&a, g, &event, &err);     until a.done; a.text grows and is never taken back
 *     answer_release(&a); */
#pragma once

#include "base/buf.h"
#include "base/status.h"
#include "gyre.h"
#include "text/detokenizer.h"
#include "text/stop_filter.h"

struct answer {
    struct detokenizer *detokenizer; // NULL: no text
    struct stop_filter stop;
    struct token_ids prompt, ids;
    struct buf text;
    struct buf logprobs; // JSON objects, one a token, if asked
    struct gyre_request request;
    uint64_t id;
    bool stopped; // a stop string was met
    bool done;
    enum gyre_finish finish;
    struct gyre_timing timing;
};

void answer_init(struct answer *a, const struct tokenizer *tok, const char *const *stop, size_t n_stop);
void answer_release(struct answer *a);

enum status answer_submit(struct answer *a, struct gyre *g, const struct gyre_request *request, struct error *err);

/* The event must be one of this answer's. An error is a fault of this answer alone; it is over then. */
enum status answer_take(struct answer *a, struct gyre *g, const struct gyre_event *event, struct error *err);

/* Writes to standard output what has come since *printed (terminal_print), and flushes it. */
void answer_print(const struct answer *a, size_t *printed);

/* "stop", "length" or "cancelled". */
const char *answer_finish_reason(const struct answer *a);

/* {"prompt_ids":[...],"ids":[...],"text":"...","finish_reason":"stop","timings":{...}}; text is null without a
 * tokenizer. */
void answer_json(const struct answer *a, struct buf *out);

double answer_prompt_rate(const struct answer *a); // tokens a second; 0 when there is nothing to measure
double answer_decode_rate(const struct answer *a);

/* [1,2,3] */
void json_ids(const int32_t *ids, size_t n, struct buf *out);

/* A number that reads back as the same float; null where JSON has no number for it. */
void json_float(float x, struct buf *out);
