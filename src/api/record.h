/* record.h - what is kept of each request: while it is in flight, for /debug/requests; when it is over, as one line of
 * the log and in a flight recorder of fixed size.
 *
 *     head read ─ api_admit ─ record_begin ─► in flight ── both over ─► one log line, flight recorder
 *                  generation_start ─ record_generating ┘ ├ record_generated: the last token has come, or will not
 *                                                         └ http's finished: the answer was sent, or nobody is there
 *
 * A request whose client leaves is over only when its answers have ended, so the line has the tokens that were computed
 * for nobody. Of a prompt and its answer only the lengths are kept, and of a key only its name. */
#pragma once

#include "api/keys/keys.h"
#include "base/histogram.h"
#include "base/json/json.h"
#include "http/http.h"

#include <pthread.h>

struct generation;

/* A request as it is shown: strings are cut to fit. */
struct record_entry {
    int64_t began_unix_us, total_us;
    char request_id[80], id[64], client[64], key[64], method[8], path[96];
    int status;        // 0: not answered (yet)
    const char *ended; // "complete", "client left", "client slow", "shutdown"; NULL: in flight
    const char
        *finish;    // of its answers: "stop", "length", "abort", "error", "mixed"; NULL: there are none or they go on
    bool generates; // what follows is there
    bool started;   // a step with it has begun
    int n_choices;
    int64_t n_prompt, n_cached, n_generated;
    int64_t grammar_us;             // that finding or compiling its grammar took; 0: it has none
    int64_t queue_us, predicted_us; // waited for the first step, and what was predicted when it came
    int64_t first_token_us;         // first_token_us: from its beginning; 0: none came
    int64_t n_steps, sum_batch, max_batch, n_preempted;
    int64_t queue_reason, cache_miss; // enum admission, enum gyre_cache_miss
    uint64_t body_bytes, sent_bytes;
};

enum { FLIGHT_RECORDER_SIZE = 256 };

struct api_record {
    struct api_record *prev, *next; // in flight, under the lock
    struct http_exchange *x;
    json_t *body;                  // that was read; freed when the handler has ended, however it did
    struct jv_numbers numbers;     // of it, and of what is parsed for its prompt; likewise
    struct api_key *key;           // that it was sent with; NULL: none was wanted
    bool entered;                  // it counts as in flight for the key
    int64_t charged;               // tokens, to the key
    int64_t grammar_us;            // see record_entry
    int64_t n_text_tokens;         // that were made of its texts: it pays for so many at least
    int64_t wait_us;               // that it was refused for; 0: it was not
    struct generation *generation; // under the lock: while its answers are there
    int64_t began_us, began_unix_us;
    bool sent; // finished was called, and `outcome` is what it said
    struct http_outcome outcome;
    struct record_entry generated; // of its generation, once that is over
};

/* Of a server. */
struct records {
    pthread_mutex_t lock;
    struct api_record *in_flight;
    struct record_entry *recorder; // [FLIGHT_RECORDER_SIZE], a ring
    uint64_t n_finished;           // the last one is at (n_finished - 1) % size
    int64_t n_by_status[600];      // of all that are over; 0: not answered
    struct histogram n_asked;      // answers of a prompt; under the lock
};

void records_init(struct records *r);
void records_release(struct records *r);

/* On the thread that has the exchange, all of these: its own, or the one that it is lent to. */
struct api_record *record_begin(struct http_exchange *x);
void record_generating(struct http_exchange *x, struct generation *g);
void record_generated(
    struct http_exchange *x); // before its answers are released; or none came to be: it pays for its text

/* Under the lock: as it is now. */
void record_show(const struct api_record *rec, struct record_entry *e);

/* http's hook: also for what http itself refused. */
void record_finished(struct http_exchange *x, const struct http_outcome *outcome);
