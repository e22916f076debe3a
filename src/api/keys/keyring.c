/* keyring.c - see keys.h: the keys of a file and their buckets. */
#include "api/keys/keys.h"

#include "base/buf.h"
#include "base/clock.h"
#include "base/file.h"

#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SHORTEST_KEY = 8, LONGEST_KEY = 8192 }; // half of what a request's head may have

struct key_digest {
    unsigned char bytes[crypto_hash_sha256_BYTES];
    struct api_key *key;
};

void keyring_init(struct keyring *r) {
    BUG_IF(sodium_init() < 0);
    *r = (struct keyring){0};
    pthread_mutex_init(&r->lock, NULL);
}

void keyring_release(struct keyring *r) {
    for (int i = 0; i < r->n_keys; i++)
        free(r->keys[i]);
    free(r->digests);
    pthread_mutex_destroy(&r->lock);
}

// ---- reading a file ---------------------------------------------------------------------------------------------

/* What a line says. */
struct key_line {
    struct str name;
    unsigned char digest[crypto_hash_sha256_BYTES];
    struct key_limits limits;
};

struct key_file {
    struct key_line *lines; // [n]
    size_t n;
};

static bool is_blank(char c) { return c == ' ' || c == '\t' || c == '\r'; }

static struct str next_word(struct str *rest) {
    size_t i = 0, start;
    while (i < rest->len && is_blank(rest->ptr[i]))
        i++;
    for (start = i; i < rest->len && !is_blank(rest->ptr[i]);)
        i++;
    struct str word = {rest->ptr + start, i - start};
    *rest = (struct str){rest->ptr + i, rest->len - i};
    return word;
}

static enum status check_name(struct str name, struct error *err) {
    for (size_t i = 0; i < name.len; i++)
        if (name.ptr[i] == '\0' ||
            !strchr("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.", name.ptr[i]))
            return fail(err, ERR_FORMAT,
                        "a name has letters, digits, '-', '_' and '.', and here is something else at %zu", i + 1);
    return name.len <= KEY_NAME_MAX
               ? OK
               : fail(err, ERR_FORMAT, "the name has %zu characters, at most %d are taken", name.len, KEY_NAME_MAX);
}

static void digest_of(struct str key, unsigned char *out) {
    crypto_hash_sha256(out, (const unsigned char *)key.ptr, key.len);
}

/* Whether a header field can carry the key: what cannot be sent lets nobody in. The sentence does not repeat it. */
static enum status check_key(struct str key, struct error *err) {
    for (size_t i = 0; i < key.len; i++) {
        unsigned char c = (unsigned char)key.ptr[i];
        if (c < ' ' || c == 0x7F || (c == ' ' && (i == 0 || i + 1 == key.len)))
            return fail(err, ERR_FORMAT, "the key has %s at %zu, which no client can send",
                        c == '\n' ? "the end of a line" : c == ' ' ? "a blank" : "a control character", i + 1);
    }
    return key.len <= LONGEST_KEY ? OK
                                  : fail(err, ERR_FORMAT, "the key has %zu bytes, more than the %d that can be sent",
                                         key.len, LONGEST_KEY);
}

/* The sentence does not repeat the word: it may be most of a key. */
static enum status read_key(struct str word, unsigned char *digest, struct error *err) {
    struct str prefix = STR("sha256:");
    if (word.len == 0)
        return fail(err, ERR_FORMAT, "after the name comes a key, or sha256: and its digest");
    if (str_starts(word, prefix)) {
        size_t n = 0;
        if (word.len - prefix.len != 2 * crypto_hash_sha256_BYTES ||
            sodium_hex2bin(digest, crypto_hash_sha256_BYTES, word.ptr + prefix.len, word.len - prefix.len, NULL, &n,
                           NULL) != 0 ||
            n != crypto_hash_sha256_BYTES)
            return fail(err, ERR_FORMAT, "what follows sha256: is not 64 hexadecimal digits");
        return OK;
    }
    if (word.len < SHORTEST_KEY)
        return fail(err, ERR_FORMAT, "the key has %zu characters, fewer than %d: too easy to guess", word.len,
                    SHORTEST_KEY);
    TRY(check_key(word, err));
    digest_of(word, digest);
    return OK;
}

static enum status read_number(struct str name, struct str value, int64_t min, int64_t *out, struct error *err) {
    bool negative = value.len > 0 && value.ptr[0] == '-';
    int64_t n = 0, unit = 1;
    size_t i = negative;
    for (; i < value.len && value.ptr[i] >= '0' && value.ptr[i] <= '9' && n < INT32_MAX; i++)
        n = 10 * n + (value.ptr[i] - '0');
    bool has_digits = i > (size_t)negative;
    if (i + 1 == value.len && has_digits && (value.ptr[i] == 'k' || value.ptr[i] == 'M')) {
        unit = value.ptr[i] == 'k' ? 1000 : 1000000;
        i++;
    }
    n *= negative ? -unit : unit;
    if (!has_digits || i != value.len || n < min || n > INT32_MAX)
        return fail(err, ERR_FORMAT, "%.*s: \"%.*s\" is not a whole number between %lld and %d", (int)name.len,
                    name.ptr, (int)MIN(value.len, (size_t)40), value.ptr, (long long)min, INT32_MAX);
    *out = n;
    return OK;
}

static enum status read_once(struct str name, bool was_read, struct str value, int64_t *out, struct error *err) {
    return was_read ? fail(err, ERR_FORMAT, "%.*s= is given twice", (int)name.len, name.ptr)
                    : read_number(name, value, 1, out, err);
}

static enum status read_limit(struct str word, struct key_limits *l, struct error *err) {
    const char *equals = memchr(word.ptr, '=', word.len);
    struct str name = {word.ptr, equals ? (size_t)(equals - word.ptr) : word.len};
    struct str value = equals ? (struct str){equals + 1, word.len - name.len - 1} : (struct str){"", 0};
    int64_t priority = 0;
    if (str_eq(name, STR("requests")))
        return read_once(name, l->requests != 0, value, &l->requests, err);
    if (str_eq(name, STR("tokens")))
        return read_once(name, l->tokens != 0, value, &l->tokens, err);
    if (str_eq(name, STR("concurrency")))
        return read_once(name, l->concurrency != 0, value, &l->concurrency, err);
    if (str_eq(name, STR("priority")) && l->has_priority)
        return fail(err, ERR_FORMAT, "priority= is given twice");
    if (str_eq(name, STR("priority"))) {
        l->has_priority = true;
        TRY(read_number(name, value, -INT32_MAX, &priority, err));
        l->priority = (int32_t)priority;
        return OK;
    }
    return fail(err, ERR_FORMAT, "\"%.*s\" is no limit; there are requests= tokens= concurrency= priority=",
                (int)MIN(name.len, (size_t)40), name.ptr);
}

static enum status check_new(const struct key_file *f, const struct key_line *line, struct error *err) {
    for (size_t i = 0; i < f->n; i++) {
        if (str_eq(f->lines[i].name, line->name))
            return fail(err, ERR_FORMAT, "the name %.*s was there already", (int)line->name.len, line->name.ptr);
        if (memcmp(f->lines[i].digest, line->digest, sizeof line->digest) == 0)
            return fail(err, ERR_FORMAT, "%.*s has the key of %.*s", (int)line->name.len, line->name.ptr,
                        (int)f->lines[i].name.len, f->lines[i].name.ptr);
    }
    return f->n < KEYS_MAX ? OK : fail(err, ERR_LIMIT, "there are more than %d keys", KEYS_MAX);
}

/* Without its comment. One begins at a line's start or behind a blank: a key may hold '#'. */
static struct str without_comment(struct str line) {
    for (size_t i = 0; i < line.len; i++)
        if (line.ptr[i] == '#' && (i == 0 || is_blank(line.ptr[i - 1])))
            return (struct str){line.ptr, i};
    return line;
}

static enum status read_line(struct str text, struct key_file *f, struct error *err) {
    struct key_line line = {0};
    text = without_comment(text);
    line.name = next_word(&text);
    if (line.name.len == 0)
        return OK;
    TRY(check_name(line.name, err));
    TRY(read_key(next_word(&text), line.digest, err));
    for (struct str word; (word = next_word(&text)).len > 0;)
        TRY(read_limit(word, &line.limits, err));
    TRY(check_new(f, &line, err));
    f->lines = xrealloc(f->lines, f->n + 1, sizeof *f->lines);
    f->lines[f->n++] = line;
    return OK;
}

static enum status read_lines(struct str text, const char *path, struct key_file *f, struct error *err) {
    for (int number = 1; text.len > 0; number++) {
        const char *end = memchr(text.ptr, '\n', text.len);
        size_t n = end ? (size_t)(end - text.ptr) : text.len;
        enum status st = read_line((struct str){text.ptr, n}, f, err);
        if (st != OK)
            return fail_within(err, st, "%s:%d", path, number);
        text = (struct str){text.ptr + n + (end != NULL), text.len - n - (end != NULL)};
    }
    return f->n > 0 ? OK : fail(err, ERR_FORMAT, "%s: there is no key in it", path);
}

// ---- taking the keys over ---------------------------------------------------------------------------------------

static struct api_key *find_name(const struct keyring *r, struct str name) {
    for (int i = 0; i < r->n_keys; i++)
        if (str_eq(str_of(r->keys[i]->name), name))
            return r->keys[i];
    return NULL;
}

static struct api_key *new_key(struct keyring *r, struct str name) {
    struct api_key *k = r->keys[r->n_keys++] = xcalloc(1, sizeof *k);
    snprintf(k->name, sizeof k->name, "%.*s", (int)name.len, name.ptr);
    k->tenant = r->n_keys;
    k->filled_us = clock_us();
    return k;
}

/* New limits begin with full buckets. */
static void set_limits(struct api_key *k, struct key_limits l) {
    if (l.requests != k->limits.requests)
        k->requests = (double)l.requests;
    if (l.tokens != k->limits.tokens)
        k->tokens = (double)l.tokens;
    k->limits = l;
}

static enum status check_room(const struct keyring *r, const struct key_file *f, const char *path, struct error *err) {
    size_t n_new = 0;
    for (size_t i = 0; i < f->n; i++) {
        n_new += !find_name(r, f->lines[i].name);
        for (size_t k = 0; k < r->n_given; k++)
            if (str_eq(str_of(r->digests[k].key->name), f->lines[i].name))
                return fail(err, ERR_FORMAT, "%s: the name %s is that of a key of --api-key", path,
                            r->digests[k].key->name);
    }
    if (r->n_keys + n_new > KEYS_MAX)
        return fail(
            err, ERR_LIMIT,
            "%s: with these, the server would have known more than %d names of keys since it began; start it again",
            path, KEYS_MAX);
    return OK;
}

static void take_lines(struct keyring *r, const struct key_file *f) {
    r->digests = xrealloc(r->digests, r->n_given + f->n, sizeof *r->digests);
    r->n_digests = r->n_given;
    for (size_t i = 0; i < f->n; i++) {
        struct api_key *k = find_name(r, f->lines[i].name);
        if (!k)
            k = new_key(r, f->lines[i].name);
        set_limits(k, f->lines[i].limits);
        struct key_digest *d = &r->digests[r->n_digests++];
        memcpy(d->bytes, f->lines[i].digest, sizeof d->bytes);
        d->key = k;
    }
}

enum status keyring_load(struct keyring *r, const char *path, struct error *err) {
    struct key_file f = {0};
    struct buf text = {0};
    enum status st = file_read(path, 1 << 20, &text, err);
    if (st == OK)
        st = read_lines(buf_view(&text), path, &f, err);
    pthread_mutex_lock(&r->lock);
    if (st == OK)
        st = check_room(r, &f, path, err);
    if (st == OK)
        take_lines(r, &f);
    pthread_mutex_unlock(&r->lock);
    if (text.len > 0)
        sodium_memzero(text.ptr, text.len);
    free(f.lines);
    buf_release(&text);
    return st;
}

enum status keyring_add(struct keyring *r, const char *key, struct error *err) {
    char name[32];
    if (!*key)
        return fail(err, ERR_ARG, "--api-key: the key is empty");
    enum status st = check_key(str_of(key), err);
    if (st != OK)
        return fail_within(err, st, "--api-key");
    if (r->n_keys == KEYS_MAX)
        return fail(err, ERR_ARG, "--api-key: there are more than %d keys", KEYS_MAX);
    snprintf(name, sizeof name, "key%zu", r->n_given + 1);
    r->digests = xrealloc(r->digests, r->n_given + 1, sizeof *r->digests);
    digest_of(str_of(key), r->digests[r->n_given].bytes);
    r->digests[r->n_given++].key = new_key(r, str_of(name));
    r->n_digests = r->n_given;
    return OK;
}

/* Every digest is looked at to its end, so the time says nothing about which one, or how much of it, was met. */
struct api_key *keyring_find(struct keyring *r, struct str sent) {
    unsigned char digest[crypto_hash_sha256_BYTES];
    struct api_key *found = NULL;
    digest_of(sent, digest);
    pthread_mutex_lock(&r->lock);
    for (size_t i = 0; i < r->n_digests; i++)
        if (sodium_memcmp(digest, r->digests[i].bytes, sizeof digest) == 0)
            found = r->digests[i].key;
    pthread_mutex_unlock(&r->lock);
    return found;
}

// ---- buckets ----------------------------------------------------------------------------------------------------

static const double MINUTE = 60e6;

static void fill(struct api_key *k, int64_t now_us) {
    double minutes = (double)(now_us - k->filled_us) / MINUTE;
    if (minutes <= 0)
        return;
    k->requests = MIN(k->requests + minutes * (double)k->limits.requests, (double)k->limits.requests);
    k->tokens = MIN(k->tokens + minutes * (double)k->limits.tokens, (double)k->limits.tokens);
    k->filled_us = now_us;
}

/* When a bucket that has `level` will have `wanted`. */
static int64_t time_until(double level, double wanted, int64_t limit) {
    return limit == 0 || level >= wanted ? 0 : (int64_t)((wanted - level) / (double)limit * MINUTE) + 1;
}

static enum key_refusal refusal_of(const struct api_key *k, int64_t *retry_us) {
    *retry_us = 0;
    if (k->limits.concurrency > 0 && k->n_in_flight >= k->limits.concurrency)
        return *retry_us = 1000000, KEY_CONCURRENCY; // nobody knows when one of them ends
    if (k->limits.requests > 0 && k->requests < 1)
        return *retry_us = time_until(k->requests, 1, k->limits.requests), KEY_REQUESTS;
    if (k->limits.tokens > 0 && k->tokens < 1)
        return *retry_us = time_until(k->tokens, 1, k->limits.tokens), KEY_TOKENS;
    return KEY_ADMITTED;
}

static struct key_state state_of(const struct api_key *k) {
    return (struct key_state){
        .limits = k->limits,
        .requests = MAX((int64_t)k->requests, 0),
        .tokens = MAX((int64_t)k->tokens, 0),
        .requests_us = time_until(k->requests, (double)k->limits.requests, k->limits.requests),
        .tokens_us = time_until(k->tokens, (double)k->limits.tokens, k->limits.tokens),
    };
}

enum key_refusal keyring_enter(struct keyring *r, struct api_key *k, int64_t now_us, struct key_state *state,
                               int64_t *retry_us) {
    pthread_mutex_lock(&r->lock);
    fill(k, now_us);
    enum key_refusal refusal = refusal_of(k, retry_us);
    if (refusal == KEY_ADMITTED) {
        k->n_in_flight++;
        if (k->limits.requests > 0)
            k->requests -= 1;
    }
    *state = state_of(k);
    pthread_mutex_unlock(&r->lock);
    return refusal;
}

void keyring_leave(struct keyring *r, struct api_key *k) {
    pthread_mutex_lock(&r->lock);
    k->n_in_flight--;
    pthread_mutex_unlock(&r->lock);
}

void keyring_charge(struct keyring *r, struct api_key *k, int64_t tokens) {
    pthread_mutex_lock(&r->lock);
    if (k->limits.tokens > 0)
        k->tokens = MIN(k->tokens - (double)tokens, (double)k->limits.tokens);
    pthread_mutex_unlock(&r->lock);
}
