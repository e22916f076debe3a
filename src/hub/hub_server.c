/* hub_server.c - see hub_server.h. */
#include "hub/hub_server.h"

#include "base/file.h"
#include "base/folder.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>

enum { MAX_LISTING = 64 << 20, LISTING_SECONDS = 60, MAX_REDIRECTS = 8, STALL_SECONDS = 30 };

// ---- the environment --------------------------------------------------------------------------------------------

static const char *set_or(const char *variable, const char *otherwise) {
    const char *value = getenv(variable);
    return value && *value ? value : otherwise;
}

bool hub_is_offline(void) {
    static const char *const yes[] = {"1", "ON", "YES", "TRUE"};
    const char *value = set_or("HF_HUB_OFFLINE", "");
    for (size_t i = 0; i < ARRAY_LEN(yes); i++)
        if (strcasecmp(value, yes[i]) == 0)
            return true;
    return false;
}

/* The hub's own tools leave the token of a login in a file. */
static void read_token_file(char *out, size_t out_bytes) {
    char path[FOLDER_PATH_BYTES];
    const char *home = set_or("HF_HOME", NULL), *given = set_or("HF_TOKEN_PATH", NULL);
    int n = given  ? snprintf(path, sizeof path, "%s", given)
            : home ? snprintf(path, sizeof path, "%s/token", home)
                   : snprintf(path, sizeof path, "%s/.cache/huggingface/token", set_or("HOME", ""));
    FILE *f = n > 0 && (size_t)n < sizeof path ? fopen(path, "r") : NULL;
    if (!f)
        return;
    size_t len = fread(out, 1, out_bytes - 1, f);
    out[len] = '\0';
    out[strcspn(out, " \t\r\n")] = '\0';
    fclose(f);
}

static bool is_https(const char *url) { return strncasecmp(url, "https://", 8) == 0; }

/* Nobody else is on the way to this machine. */
static bool is_here(const char *url) {
    static const char *const names[] = {"http://127.0.0.1", "http://localhost", "http://[::1]"};
    for (size_t i = 0; i < ARRAY_LEN(names); i++) {
        size_t n = strlen(names[i]);
        if (strncasecmp(url, names[i], n) == 0 && strchr(":/", url[n])) // the end, too
            return true;
    }
    return false;
}

enum status hub_server_open(struct hub_server *s, struct error *err) {
    const char *endpoint = set_or("HF_ENDPOINT", "https://huggingface.co"), *token = set_or("HF_TOKEN", NULL);
    size_t n = strlen(endpoint);
    *s = (struct hub_server){0};
    while (n > 0 && endpoint[n - 1] == '/')
        n--;
    if (n >= sizeof s->endpoint || (!is_https(endpoint) && strncasecmp(endpoint, "http://", 7) != 0))
        return fail(err, ERR_ARG, "HF_ENDPOINT is \"%s\", it must be an address such as https://huggingface.co",
                    endpoint);
    memcpy(s->endpoint, endpoint, n);
    if (token && strlen(token) >= sizeof s->token)
        return fail(err, ERR_ARG, "HF_TOKEN has %zu bytes, and a token has at most %zu", strlen(token),
                    sizeof s->token - 1);
    if (token)
        strcpy(s->token, token);
    else
        read_token_file(s->token, sizeof s->token);
    if (*s->token && !is_https(s->endpoint) && !is_here(s->endpoint))
        return fail(err, ERR_ARG, "%s: a token goes over https only, or to this machine; unset HF_TOKEN to ask without",
                    s->endpoint);
    if (strpbrk(s->token, "\r\n"))
        return fail(err, ERR_ARG, "HF_TOKEN has a line end, which no token has");
    return OK;
}

// ---- requests ---------------------------------------------------------------------------------------------------

void hub_request(const struct hub_server *s, CURL *easy, const char *url, struct curl_slist **headers) {
    char line[600];
    *headers = NULL;
    libcurl.easy_reset(easy);
    libcurl.easy_setopt(easy, CURLOPT_URL, url);
    libcurl.easy_setopt(easy, CURLOPT_PROTOCOLS_STR, "http,https");
    libcurl.easy_setopt(easy, CURLOPT_REDIR_PROTOCOLS_STR, is_https(s->endpoint) ? "https" : "http,https");
    libcurl.easy_setopt(easy, CURLOPT_FOLLOWLOCATION, 1L);
    libcurl.easy_setopt(easy, CURLOPT_MAXREDIRS, (long)MAX_REDIRECTS);
    libcurl.easy_setopt(easy, CURLOPT_NOSIGNAL, 1L);
    libcurl.easy_setopt(easy, CURLOPT_CONNECTTIMEOUT, 15L);
    libcurl.easy_setopt(easy, CURLOPT_LOW_SPEED_LIMIT, 1L);
    libcurl.easy_setopt(easy, CURLOPT_LOW_SPEED_TIME, (long)STALL_SECONDS);
    libcurl.easy_setopt(easy, CURLOPT_HTTP_VERSION, (long)CURL_HTTP_VERSION_1_1);
    libcurl.easy_setopt(easy, CURLOPT_USERAGENT, "gyre");
    if (*s->token) { // libcurl keeps a header of this name from other hosts that a redirect leads to
        snprintf(line, sizeof line, "Authorization: Bearer %s", s->token);
        *headers = libcurl.slist_append(NULL, line);
        libcurl.easy_setopt(easy, CURLOPT_HTTPHEADER, *headers);
    }
}

/* Letters, digits and "-_.~/" as they are, anything else as %XX. */
static void put_escaped(struct buf *out, const char *text) {
    for (const unsigned char *p = (const unsigned char *)text; *p; p++)
        if (isalnum(*p) || strchr("-_.~/", *p))
            buf_push(out, (char)*p);
        else
            buf_printf(out, "%%%02X", *p);
}

void hub_file_url(const struct hub_server *s, const char *repo, const char *commit, const char *file, struct buf *out) {
    buf_printf(out, "%s/%s/resolve/%s/", s->endpoint, repo, commit);
    put_escaped(out, file);
}

// ---- a listing --------------------------------------------------------------------------------------------------

static size_t take_body(char *bytes, size_t one, size_t n, void *to) {
    struct buf *body = to;
    (void)one;
    if (body->len + n > MAX_LISTING)
        return 0;
    buf_append(body, bytes, n);
    return n;
}

static enum status refusal(const struct hub_server *s, const struct hub_name *name, long status, struct error *err) {
    if (status == 401 || status == 404)
        return fail(err, ERR_IO, "%s: %s has no model of that name and revision (%s), or it is private%s: see %s/%s",
                    name->repo, s->endpoint, name->revision,
                    *s->token ? " to this HF_TOKEN" : ", and HF_TOKEN would have to say who asks", s->endpoint,
                    name->repo);
    if (status == 403)
        return fail(err, ERR_IO, "%s: its owner wants terms accepted first, at %s/%s, by whom HF_TOKEN%s is",
                    name->repo, s->endpoint, name->repo, *s->token ? "" : " (not set)");
    return fail(err, ERR_IO, "%s: %s answers %ld", name->repo, s->endpoint, status);
}

static enum status fetch_listing(const struct hub_server *s, const struct hub_name *name, const char *url,
                                 struct buf *body, struct error *err) {
    struct curl_slist *headers;
    char text[CURL_ERROR_SIZE] = "";
    long status = 0;
    CURL *easy = libcurl.easy_init();
    BUG_IF(!easy);
    hub_request(s, easy, url, &headers);
    libcurl.easy_setopt(easy, CURLOPT_TIMEOUT, (long)LISTING_SECONDS);
    libcurl.easy_setopt(easy, CURLOPT_ERRORBUFFER, text);
    libcurl.easy_setopt(easy, CURLOPT_WRITEFUNCTION, take_body);
    libcurl.easy_setopt(easy, CURLOPT_WRITEDATA, body);
    CURLcode code = libcurl.easy_perform(easy);
    libcurl.easy_getinfo(easy, CURLINFO_RESPONSE_CODE, &status);
    libcurl.easy_cleanup(easy);
    libcurl.slist_free_all(headers);
    if (code == CURLE_WRITE_ERROR && body->len > MAX_LISTING - CURL_MAX_WRITE_SIZE)
        return fail(err, ERR_LIMIT, "%s: what it says of %s is longer than %d MiB", s->endpoint, name->repo,
                    MAX_LISTING >> 20);
    if (code != CURLE_OK)
        return fail(err, ERR_IO, "%s: %s: %s", name->repo, s->endpoint, *text ? text : libcurl.easy_strerror(code));
    return status == 200 ? OK : refusal(s, name, status, err);
}

enum status hub_list(const struct hub_server *s, const struct hub_name *name, struct hub_listing *out,
                     struct error *err) {
    struct buf url = {0}, body = {0};
    json_t *answer = NULL;
    buf_printf(&url, "%s/api/models/%s/revision/", s->endpoint, name->repo);
    for (const char *p = name->revision; *p; p++) // a slash in a branch is a part of its name
        buf_printf(&url, *p == '/' ? "%%2F" : "%c", *p);
    buf_str(&url, STR("?blobs=true"));
    enum status st = fetch_listing(s, name, url.ptr, &body, err);
    if (st == OK)
        st = jv_parse(buf_view(&body), s->endpoint, JV_ALLOW_DUPLICATES, &answer, err);
    if (st == OK)
        st = hub_listing_read(answer, s->endpoint, out, err);
    json_decref(answer);
    buf_release(&url);
    buf_release(&body);
    return st;
}
