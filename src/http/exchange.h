/* exchange.h - struct exchange, and what the files that work on one do for each other and for the loop.
 *
 * All of it runs on the exchange's I/O thread, but for what lend.h says. internal.h says what each file is for. */
#pragma once

#include "http/head.h"
#include "http/inflate.h"
#include "http/lend.h"

#include <microhttpd.h>
#include <stdatomic.h>

struct io;
struct conn;

enum answer_kind { ANSWER_NONE, ANSWER_WHOLE, ANSWER_STREAM };

struct exchange {
    struct http_exchange pub; // first: the two are cast into each other
    struct io *io;
    struct conn *conn;    // NULL once MHD is done with the request
    struct str target;    // as it was sent
    struct str authority; // of a target in absolute form, in target
    int minor;            // of HTTP/1.minor
    struct head_field *fields;
    size_t n_fields;
    int64_t started_us;
    int n_holds;

    bool head_read; // checked; routed or refused
    bool handled;   // handle was called
    bool told_gone;
    bool closes; // the connection ends with this exchange

    bool lent;                   // another thread has it: of what follows here, and of pub, this one touches nothing
    atomic_bool left;            // while it was lent its client left; or is to be cut off
    bool broken;                 // http_fail: there is no answer to be had
    bool ended;                  // exchange_end was called meanwhile
    struct exchange *next_given; // on io->given

    struct buf body;
    bool compressed;           // as it is sent
    struct buf packed;         // that body, once it is unpacked elsewhere
    struct inflater *inflater; // of one that is compressed, from its first byte on
    uint64_t body_seen;        // bytes as they were sent, kept or not
    size_t body_limit, body_reserved;
    bool is_small; // its length was said, and is little

    struct http_header added[HTTP_MAX_ADDED];
    size_t n_added;
    enum answer_kind answer;
    int status;
    struct MHD_Response *response; // until MHD has it
    struct buf out;                // the whole body, or what of the stream was made but not sent: out[out_sent ... len)
    size_t out_sent;
    uint64_t sent_bytes;
    bool stream_ended; // fill has said so
    const char *ping;
    enum http_gone gone_why;
};

/* ---- exchange.c -------------------------------------------------------------------------------------------------- */

void *exchange_begin(void *io, const char *target, struct MHD_Connection *mhd);
enum MHD_Result exchange_go_on(void *io, struct MHD_Connection *mhd, const char *url, const char *method,
                               const char *version, const char *upload, size_t *n_upload, void **context);

/* ---- lifetime.c -------------------------------------------------------------------------------------------------- */

void exchange_end(void *io, struct MHD_Connection *mhd, void **context, enum MHD_RequestTerminationCode how);
void exchange_over(struct exchange *x, bool complete); // its connection has done with it
void exchange_tell(struct exchange *x, enum http_gone why);
void exchange_drop_body(struct exchange *x);
void exchange_free(struct exchange *x);

/* Nothing more comes from the handler. */
static inline bool exchange_answered(const struct exchange *x) {
    return x->answer == ANSWER_WHOLE || (x->answer == ANSWER_STREAM && x->stream_ended);
}

/* A stream has begun. */
static inline bool exchange_streams(const struct exchange *x) { return !x->lent && x->answer == ANSWER_STREAM; }

/* Its handler has not answered yet. */
static inline bool exchange_waits(const struct exchange *x) { return x->lent || x->answer == ANSWER_NONE; }

/* Its client is going: whoever works on it may stop. */
static inline void exchange_leave(struct exchange *x) {
    if (x->lent)
        atomic_store(&x->left, true);
}

/* ---- lend.c ------------------------------------------------------------------------------------------------------ */

void exchange_take_back(struct io *io);  // what was lent and is given back
void exchange_free_given(struct io *io); // what was given back after the thread had ended

/* ---- body.c ------------------------------------------------------------------------------------------------------ */

void body_check(struct exchange *x, const struct head *h); // before it is read; refuses what it must not be
enum MHD_Result body_take(struct exchange *x, const char *bytes, size_t n);
bool body_is_whole(struct exchange *x); // at its end; if not, that is said

/* A body that will not be used is read and dropped up to this size; past it the connection closes at once. */
size_t body_drop_limit(const struct exchange *x);

/* ---- answer.c ---------------------------------------------------------------------------------------------------- */

enum MHD_Result answer_queue(struct exchange *x);
void answer_commit(struct exchange *x); // what was answered, now that the exchange is its thread's again

void answer_error(struct exchange *x, int status, const char *message, const struct http_header *headers,
                  size_t n_headers);
