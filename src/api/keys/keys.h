/* keys.h - who may ask, and how much: API keys with a name and limits each.
 *
 * A file of keys has a line for each, blanks between fields, and comments from a '#' on that begins a line or follows a
 * blank:
 *
 *     # name    key, or its SHA-256             limits, all optional
 *     alice     sk-5f0c2a9e71                   requests=60 tokens=100k concurrency=4 priority=-1
 *     ci        sha256:9f86d081884c7d659a2f...  tokens=20k
 *
 *     name         letters, digits, - _ and '.', up to 63; what logs and messages call the key
 *     key          8 characters or more without blanks, or sha256: and 64 hexadecimal digits (printf %s KEY |
 *                  sha256sum)
 *     requests     a minute: of everything that is sent as POST
 *     tokens       a minute: prompt and answer; k is 1,000 and M 1,000,000
 *     concurrency  requests in flight
 *     priority     of its requests, lower first; a request may lower its own further, not raise it
 *
 * Only digests are kept, and comparing them takes as long whatever was sent. Each key is a tenant of the engine, which
 * gives tenants equal shares (base/fair_share.h), and prompts of different keys share no cache.
 *
 * A limit a minute is a bucket that holds as much as the limit and fills evenly. A request takes one from the bucket of
 * requests and pays its prompt and, if it says max_tokens, those too when it starts, and gets back what it did not use
 * when it ends; it is let in while there is anything in the bucket of tokens. Text that was tokenized is paid for in
 * any case, also by /tokenize and by requests that are refused, unless they are told to come again. */
#pragma once

#include "base/status.h"
#include "base/str.h"

#include <pthread.h>

enum { KEYS_MAX = 4095, KEY_NAME_MAX = 63 }; // names that a server has known since it began; tenant 0 is nobody's

/* 0: no limit. */
struct key_limits {
    int64_t requests, tokens; // a minute
    int64_t concurrency;
    int32_t priority;
    bool has_priority;
};

/* Lives as long as the keyring, whatever files say later. */
struct api_key {
    char name[KEY_NAME_MAX + 1];
    int32_t tenant; // 1 .. KEYS_MAX
    struct key_limits limits;
    double requests, tokens; // in the buckets; tokens may be below 0
    int64_t filled_us;
    int64_t n_in_flight;
};

struct keyring {
    pthread_mutex_t lock; // of all that follows
    struct key_digest *digests;
    size_t n_digests;
    struct api_key *keys[KEYS_MAX];
    int n_keys;
    size_t n_given; // of digests: by keyring_add, before those of the file
};

void keyring_init(struct keyring *r);
void keyring_release(struct keyring *r);

/* A key without limits, named "key1" and so on. Before the first keyring_load. */
enum status keyring_add(struct keyring *r, const char *key, struct error *err);

/* Takes the keys of a file in place of those of the last one. On an error, which names file and line, nothing changes.
 */
enum status keyring_load(struct keyring *r, const char *path, struct error *err);

/* NULL: there is no such key. */
struct api_key *keyring_find(struct keyring *r, struct str sent);

/* What a key's answers say about its limits: x-ratelimit-*. A limit of 0 has none. */
struct key_state {
    struct key_limits limits;
    int64_t requests, tokens;       // left now
    int64_t requests_us, tokens_us; // until the buckets are full
};

enum key_refusal { KEY_ADMITTED, KEY_REQUESTS, KEY_TOKENS, KEY_CONCURRENCY };

/* A request begins, unless a limit is used up; then *retry_us is when it will not be. */
enum key_refusal keyring_enter(struct keyring *r, struct api_key *k, int64_t now_us, struct key_state *state,
                               int64_t *retry_us);
void keyring_leave(struct keyring *r, struct api_key *k);

/* Takes tokens out of the bucket, or gives back (below 0). */
void keyring_charge(struct keyring *r, struct api_key *k, int64_t tokens);
