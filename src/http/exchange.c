/* exchange.c - one request from its first line to its end: read, checked, routed, handed to its handler.
 *
 * libmicrohttpd calls exchange_begin when it has the request line, exchange_go_on when it has the head, for each
 * piece of the body, when the body is complete, and again whenever the connection was resumed; and exchange_end
 * (lifetime.c) last. A refusal is normally sent after the body was read and dropped: a client that still sends would
 * lose it to a reset. */
#include "http/internal.h"

#include <stdio.h>
#include <stdlib.h>

/* ---- the start --------------------------------------------------------------------------------------------------- */

/* Copies what was asked, and who asks; false: there is no memory. */
static bool name_target(struct exchange *x, const struct conn *c, const char *target) {
    struct alloc_scope scope;
    alloc_scope_begin(&scope);
    if (setjmp(scope.env) != 0) {
        arena_release(&x->pub.arena);
        return false;
    }
    x->pub.client = arena_strdup(&x->pub.arena, str_of(c->client));
    x->target = str_of(arena_strdup(&x->pub.arena, str_of(target ? target : "")));
    alloc_scope_end(&scope);
    return true;
}

static size_t n_parameters(const char *target) {
    size_t n = 0;
    for (const char *p = target ? strchr(target, '?') : NULL; p; p = strchr(p + 1, '&'))
        n++;
    return n;
}

/* The library takes a record of each parameter from the memory of the head, before anybody asks what it is for, and
 * 0.9.75 does not recover where none is left. */
static void refuse_parameters(struct conn *c) {
    if (!c->io->server->tls)
        raw_refuse(c->io->server, c->fd, 414, "the request target has too many parameters");
    conn_kill(c);
}

void *exchange_begin(void *io, const char *target, struct MHD_Connection *mhd) {
    struct conn *c = conn_of(mhd);
    BUG_IF(c && c->exchange);
    if (c && n_parameters(target) > TARGET_MAX_PARAMETERS) {
        refuse_parameters(c);
        return NULL;
    }
    struct exchange *x = c ? calloc(1, sizeof *x) : NULL;
    if (!x || !name_target(x, c, target)) { // exchange_go_on closes the connection
        free(x);
        return NULL;
    }
    x->io = io;
    x->conn = c;
    x->started_us = clock_us();
    c->exchange = x;
    if (c->deadline == DEADLINE_NONE)
        conn_reading(c, DEADLINE_HEAD);
    return x;
}

/* ---- the head ---------------------------------------------------------------------------------------------------- */

static enum MHD_Result collect_field(void *arg, enum MHD_ValueKind kind, const char *key, size_t n_key,
                                     const char *value, size_t n_value) {
    (void)kind;
    struct head *h = arg;
    if (h->n_fields < HEAD_MAX_FIELDS)
        h->fields[h->n_fields] = (struct head_field){{key, n_key}, {value ? value : "", n_value}};
    h->n_fields++;
    return MHD_YES;
}

#if MHD_VERSION < 0x01000000
/* Whether the lines of the head follow each other without a gap.
 *
 * Before 1.0 the library takes a lone LF for the end of a line, drops what follows a NUL, ends the head at a line that
 * begins with one, and joins folded lines; a proxy in front may have read something else. It parses in place, and so
 * each of these leaves a gap between the end of one value and the next name, which are two bytes (CR LF) apart. */
static bool is_seamless(const struct head *h, const char *version, size_t head_bytes) {
    uintptr_t end = (uintptr_t)version + strlen(version);
    for (size_t i = 0; i < h->n_fields; i++) {
        const struct head_field *f = &h->fields[i];
        if ((uintptr_t)f->name.ptr != end + 2 || f->value.ptr <= f->name.ptr + f->name.len)
            return false;
        for (const char *p = f->name.ptr + f->name.len + 1; p < f->value.ptr; p++)
            if (*p != ' ' && *p != '\t')
                return false;
        end = (uintptr_t)f->value.ptr + f->value.len;
    }
    return end + 4 == (uintptr_t)h->method.ptr + head_bytes;
}
#else
/* The library is strict: see io_open. */
static bool is_seamless(const struct head *h, const char *version, size_t head_bytes) {
    (void)h, (void)version, (void)head_bytes;
    return true;
}
#endif

static void keep_fields(struct exchange *x, const struct head *h) {
    struct arena *a = &x->pub.arena;
    x->fields = arena_calloc(a, h->n_fields, sizeof *x->fields);
    x->n_fields = h->n_fields;
    for (size_t i = 0; i < h->n_fields; i++) {
        x->fields[i].name = (struct str){arena_strdup(a, h->fields[i].name), h->fields[i].name.len};
        x->fields[i].value = (struct str){arena_strdup(a, h->fields[i].value), h->fields[i].value.len};
    }
}

static void name_request(struct exchange *x, const struct head *h) {
    struct http_server *s = x->io->server;
    struct str sent = head_find(h->fields, MIN(h->n_fields, (size_t)HEAD_MAX_FIELDS), "x-request-id");
    if (sent.ptr && is_request_id(sent)) {
        x->pub.request_id = str_of(arena_strdup(&x->pub.arena, sent));
        return;
    }
    // No two alike, and no order to see.
    uint64_t n = atomic_fetch_add(&s->next_id, 1) * 0x9E3779B97F4A7C15u + s->id_key;
    x->pub.request_id =
        str_of(arena_printf(&x->pub.arena, "%08x%016llx", (unsigned)(s->id_key >> 32), (unsigned long long)n));
}

/* Checks the head; the status to refuse it with, or 0. */
static int read_head(struct exchange *x, struct head *h, struct MHD_Connection *mhd, const char *version,
                     const char **why) {
    const struct http_options *o = &x->io->server->options;
    MHD_get_connection_values_n(mhd, MHD_HEADER_KIND, collect_field, h);
    name_request(x, h);
    h->target = x->target;
    h->minor = str_eq(str_of(version), STR("HTTP/1.0")) ? 0 : 1;
    x->minor = h->minor;
    x->pub.method = method_of(h->method);
    size_t n_bytes = MHD_get_connection_info(mhd, MHD_CONNECTION_INFO_REQUEST_HEADER_SIZE)->header_size;
    if (x->target.len > o->target_bytes)
        return *why = "the request target is too long", 414;
    if (h->n_fields > HEAD_MAX_FIELDS || n_bytes > o->header_bytes)
        return *why = "the header fields are too large", 431;
    if (!is_seamless(h, version, n_bytes))
        return *why = "the header holds a line that is not one", 400;
    for (size_t i = 0; i < h->n_fields; i++)
        h->fields[i].value = blank_trim(h->fields[i].value);
    int status = head_check(h, why);
    if (status == 0)
        status = target_split(x->target, &x->authority, &x->pub.path, &x->pub.query, why);
    if (status == 0)
        keep_fields(x, h);
    return status;
}

/* ---- the host ---------------------------------------------------------------------------------------------------- */

static bool is_allowed_host(const struct http_options *o, struct str host) {
    for (size_t i = 0; i < o->n_allowed_hosts; i++)
        if ((host.len > 0 && name_equal(host, host_of(str_of(o->allowed_hosts[i])))) ||
            str_eq(str_of(o->allowed_hosts[i]), STR("*")))
            return true;
    return host_is_local(host) || (o->host && name_equal(host, str_of(o->host)));
}

static int refuse_host(struct exchange *x, struct str host, const char **why) {
    *why = arena_printf(&x->pub.arena, "the Host %.*s is none of this server's names; --allowed-host lets one in",
                        (int)MIN(host.len, (size_t)100), host.ptr);
    return 421;
}

/* 421 for a name that is none of ours, or 0. The authority of a target in absolute form overrides Host (RFC 9112,
 * 3.2.2); Host is checked all the same, as a browser sets it. */
static int check_host(struct exchange *x, const char **why) {
    const struct http_server *s = x->io->server;
    const struct str names[] = {x->authority, http_field(&x->pub, "Host")};
    if (!s->options.guards_host || !(s->is_local || s->options.n_allowed_hosts) || strcmp(x->pub.client, "unix") == 0)
        return 0;
    for (size_t i = 0; i < ARRAY_LEN(names); i++)
        if (names[i].ptr && !is_allowed_host(&s->options, host_of(names[i])))
            return refuse_host(x, host_of(names[i]), why);
    return 0;
}

/* ---- the route --------------------------------------------------------------------------------------------------- */

static void allow(struct buf *list, enum http_method m) {
    buf_printf(list, "%s%s", list->len ? ", " : "", method_name(m));
}

static void answer_options(struct exchange *x, const char *allowed) {
    struct http_header headers[4] = {{"Allow", allowed}};
    size_t n = 1;
    if (x->io->server->options.cors_origin && http_field(&x->pub, "Access-Control-Request-Method").ptr) {
        headers[n++] = (struct http_header){"Access-Control-Allow-Methods", allowed};
        // "*" does not cover Authorization.
        headers[n++] = (struct http_header){"Access-Control-Allow-Headers", "*, Authorization"};
        headers[n++] = (struct http_header){"Access-Control-Max-Age", "86400"};
    }
    http_reply(&x->pub, &(struct http_answer){.status = 204, .headers = headers, .n_headers = n}, STR(""));
}

/* Whether there is something at the path, for one method or another. */
static bool look_up(struct exchange *x, struct str path, struct str *id, struct buf *allowed) {
    const struct http_options *o = &x->io->server->options;
    for (size_t i = 0; i < o->n_routes && !x->pub.route; i++) {
        const struct http_route *r = &o->routes[i];
        if (!path_matches(r->path, path, id))
            continue;
        if (r->method == x->pub.method || (r->method == HTTP_GET && x->pub.method == HTTP_HEAD))
            x->pub.route = r;
        allow(allowed, r->method);
        if (r->method == HTTP_GET)
            allow(allowed, HTTP_HEAD);
    }
    return allowed->len > 0;
}

/* As it was sent, or without a slash at its end, or below the prefix that clients leave out; x->pub.path is then as
 * routes have it. */
static bool look_everywhere(struct exchange *x, struct str *id, struct buf *allowed) {
    const char *prefix = x->io->server->options.implied_prefix;
    struct str path = x->pub.path;
    if (path.len > 1 && path.ptr[path.len - 1] == '/')
        path.len--;
    if (look_up(x, path, id, allowed)) {
        x->pub.path = path;
        return true;
    }
    if (!prefix)
        return false;
    path = str_of(arena_printf(&x->pub.arena, "%s%.*s", prefix, STR_ARG(path)));
    if (!look_up(x, path, id, allowed))
        return false;
    x->pub.path = path;
    return true;
}

/* Finds the route, or answers that there is none, or what is allowed. */
static void find_route(struct exchange *x) {
    struct buf allowed = {0};
    struct str id = {0};
    look_everywhere(x, &id, &allowed);
    bool star = str_eq(x->pub.path, STR("*"));
    if (x->pub.route) {
        if (!percent_decode(&x->pub.arena, id, false, &x->pub.id))
            answer_error(x, 400, "the path holds an escape that is none", NULL, 0);
    } else if (x->pub.method == HTTP_OPTIONS && (star || allowed.len)) {
        allow(&allowed, HTTP_OPTIONS);
        answer_options(x, star ? "GET, HEAD, POST, OPTIONS" : allowed.ptr);
    } else if (allowed.len) {
        answer_error(x, 405, "this path is there for another method", &(struct http_header){"Allow", allowed.ptr}, 1);
    } else {
        answer_error(x, 404, "there is nothing at this path", NULL, 0);
    }
    buf_release(&allowed);
}

static enum MHD_Result begin_request(struct exchange *x, struct MHD_Connection *mhd, const char *method,
                                     const char *version) {
    const struct http_options *o = &x->io->server->options;
    struct head h = {.method = str_of(method)};
    const char *why = "";
    x->head_read = true;
    x->io->n_exchanges++;
    COUNT(x->io->server, exchanges, 1);
    atomic_fetch_add(&x->io->server->stats.in_flight, 1);
    int status = read_head(x, &h, mhd, version, &why);
    if (status == 0)
        status = check_host(x, &why);
    x->closes = status != 0 || h.chunked || x->io->stage >= STAGE_DRAIN;
    x->body_limit = o->max_body;
    if (status)
        answer_error(x, status, why, NULL, 0);
    else
        find_route(x);
    if (!x->answer) {
        if (x->pub.route->max_body)
            x->body_limit = x->pub.route->max_body;
        body_check(x, &h);
    }
    if (!x->answer && o->admit && !o->admit(&x->pub))
        BUG_IF(!x->answer);
    conn_reading(x->conn, h.chunked || h.length ? DEADLINE_BODY : DEADLINE_NONE);
    // After a head that is not clear nobody knows where a body ends; and who waits for "100 Continue" sends none.
    if (x->answer && (status || h.wants_continue || h.length > body_drop_limit(x)))
        return answer_queue(x);
    return MHD_YES;
}

/* The request is complete, or its connection was resumed. */
static enum MHD_Result answer_or_wait(struct exchange *x) {
    if (x->conn->dead)
        return MHD_NO;
    if (!x->handled && !x->answer) {
        conn_deadline(x->conn, DEADLINE_NONE);
        if (!body_is_whole(x))
            return answer_queue(x);
        x->handled = true;
        x->pub.body = buf_view(&x->body);
        const struct http_route *route = x->pub.route;
        void (*hand_over)(struct http_exchange *) = x->io->server->options.hand_over;
        (route->flags & HTTP_LONG && hand_over ? hand_over : route->handle)(&x->pub);
        BUG_IF(!x->lent && !x->answer && x->n_holds == 0); // a handler answers, or holds
        if (x->conn->dead)
            return MHD_NO;
    }
    if (!exchange_waits(x))
        return answer_queue(x);
    conn_wait(x->conn);
    return MHD_YES;
}

/* What MHD has for the exchange. */
struct progress {
    struct MHD_Connection *mhd;
    const char *method, *version, *upload;
    size_t n_upload;
};

static enum MHD_Result go_on(struct exchange *x, const struct progress *p) {
    if (!x->head_read)
        return begin_request(x, p->mhd, p->method, p->version);
    return p->n_upload > 0 ? body_take(x, p->upload, p->n_upload) : answer_or_wait(x);
}

/* Where there is no memory for what is done here, the connection is closed. */
static enum MHD_Result go_on_within_scope(struct exchange *x, const struct progress *p) {
    struct alloc_scope scope;
    alloc_scope_begin(&scope);
    if (setjmp(scope.env) != 0) {
        conn_kill(x->conn);
        return MHD_NO;
    }
    enum MHD_Result result = go_on(x, p);
    alloc_scope_end(&scope);
    return result;
}

enum MHD_Result exchange_go_on(void *io, struct MHD_Connection *mhd, const char *url, const char *method,
                               const char *version, const char *upload, size_t *n_upload, void **context) {
    (void)io, (void)url; // decoded already, so useless for telling paths apart
    const struct progress p = {mhd, method, version, upload, *n_upload};
    if (!*context)
        return MHD_NO;
    if (((struct exchange *)*context)->head_read)
        *n_upload = 0;
    return go_on_within_scope(*context, &p);
}
