/* request_log.h - one line a request, when it is over, on a descriptor.
 *
 *     2026-11-21T23:50:00.123Z 200 POST /v1/completions request_id=5f.. id=cmpl-.. client=127.0.0.1:50412 key=team
 *         prompt=4 cached=0 generated=20 queue_ms=0.1 ttft_ms=3.4 total_ms=60.1 finish=length ended=complete
 *
 * (on one line), or the same as an object of JSON. A line is one write. When nobody reads the other end, lines are
 * dropped and counted, and no request waits for the log. */
#pragma once

#include "base/buf.h"

#include <pthread.h>
#include <stdatomic.h>

struct record_entry;

enum request_log_format { REQUEST_LOG_TEXT, REQUEST_LOG_JSON, REQUEST_LOG_OFF };

struct request_log {
    pthread_mutex_t lock;
    int fd;
    enum request_log_format format;
    _Atomic int64_t n_dropped;
};

void request_log_init(struct request_log *log, int fd, enum request_log_format format);
void request_log_release(struct request_log *log);
void request_log_write(struct request_log *log, const struct record_entry *e);

/* The members of e as JSON, with braces. */
void record_append_json(struct buf *out, const struct record_entry *e);
