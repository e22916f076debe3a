/* head.h - what the head of a request must be before anything is done with it. Pure functions over borrowed bytes. */
#pragma once

#include "base/arena.h"
#include "http/http.h"

enum { HEAD_MAX_FIELDS = 100, TARGET_MAX_PARAMETERS = 64 };

struct head_field {
    struct str name, value; // the value without blanks around it
};

struct head {
    struct str method, target;
    int minor; // of HTTP/1.minor
    struct head_field fields[HEAD_MAX_FIELDS];
    size_t n_fields;

    // What head_check found:
    bool chunked, has_length, wants_continue;
    uint64_t length;
};

/* Checks the fields against each other. Returns 0, or the status to refuse with and a sentence in *why.
 *
 * Refused: names that are no token, control characters in values, not exactly one Host (HTTP/1.1), a Content-Length
 * that is repeated or not a plain number, or that stands beside Transfer-Encoding, and a transfer coding other than
 * one "chunked". So there is one reading of where the body ends, or none. */
int head_check(struct head *head, const char **why);

/* Splits a target in origin form (/path?query) or absolute form (http://host/path?query), or "*". Nothing is decoded
 * or normalised; bytes other than printable ASCII, a fragment, a user and an empty host are refused. The authority
 * is "host:port" of the absolute form; its ptr is NULL in the others. */
int target_split(struct str target, struct str *authority, struct str *path, struct str *query, const char **why);

/* The field's value; ptr is NULL when there is none. Names compare without regard to case. */
struct str head_find(const struct head_field *fields, size_t n, const char *name);

/* The host of "host:port" or "[v6]:port". */
struct str host_of(struct str authority);

/* localhost, or a name below it: loopback everywhere (RFC 6761). */
bool host_is_localhost(struct str host);

/* Such a name, an address of 127.0.0.0/8, [::1], or a name
 * without a dot: no page of the web has one, as public names have dots, and what it means is for this machine's own
 * files to say. */
bool host_is_local(struct str host);

struct str blank_trim(struct str s); // without spaces and tabs around it

bool name_equal(struct str a, struct str b); // of ASCII, without regard to case

enum http_method method_of(struct str name);
const char *method_name(enum http_method method);

/* Whether a Content-Type is the wanted one, with or without parameters. */
bool is_media_type(struct str content_type, struct str wanted);

/* A client's x-request-id that may be sent back: 1 to 128 letters, digits and -_.:/+= */
bool is_request_id(struct str s);

/* Whether path fits the pattern; *id is what stood for {id}, still encoded (empty without one). */
bool path_matches(const char *pattern, struct str path, struct str *id);

/* Decodes %XX, and '+' to a blank if asked. False for a broken escape, a NUL, or what is not UTF-8 then. */
bool percent_decode(struct arena *a, struct str s, bool plus, struct str *out);

/* Finds name=value among &-separated parameters; the value is still encoded, ptr NULL when there is none. */
struct str query_find(struct str query, const char *name);
