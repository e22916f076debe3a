/* keys.c - who may ask: API keys, sent as "Authorization: Bearer KEY" or "x-api-key: KEY".
 *
 * Checked by route when the head is read, so neither another spelling of a path nor a body gets past, and a body without a key is
 * not kept. Health is for everybody: a probe has no key. So is the chat
 * page, which asks for one. */
#include "api/api.h"
#include "api/endpoints.h"

/* Takes as long whatever the key is: only the length of what was sent shows. */
static bool is_key(struct str sent, const char *key) {
    size_t n = strlen(key);
    unsigned char differs = sent.len != n;
    for (size_t i = 0; i < sent.len; i++)
        differs |= (unsigned char)(sent.ptr[i] ^ key[n ? i % n : 0]);
    return !differs;
}

/* The scheme's name is compared without regard to case, as RFC 9110 has it. */
static struct str sent_key(const struct http_exchange *x) {
    struct str field = http_field(x, "Authorization"), scheme = STR("Bearer ");
    if (!field.ptr)
        return http_field(x, "x-api-key");
    if (field.len < scheme.len || strncasecmp(field.ptr, scheme.ptr, scheme.len) != 0)
        return (struct str){0};
    return (struct str){field.ptr + scheme.len, field.len - scheme.len};
}

static bool is_for_everybody(const struct http_route *route) {
    return route->handle == endpoint_live || route->handle == endpoint_ready || route->handle == endpoint_page;
}

bool api_admit(struct http_exchange *x) {
    const struct api_options *o = &api_of(x)->options;
    struct api_record *rec = record_begin(x);
    if (o->n_keys == 0 || is_for_everybody(x->route))
        return true;
    struct str sent = sent_key(x);
    size_t which = 0; // from 1
    for (size_t i = 0; i < o->n_keys; i++)
        which |= is_key(sent, o->keys[i]) ? i + 1 : 0;
    if (which) {
        rec->key = arena_printf(&x->arena, "key%zu", which);
        return true;
    }
    struct buf body = {0};
    api_append_error(&body, x->path, 401, NULL,
                     sent.ptr ? "the API key is not one of this server's" : "an API key is missing: send Authorization: Bearer KEY");
    const struct http_header challenge = {"WWW-Authenticate", "Bearer"};
    http_reply(x, &(struct http_answer){.status = 401, .content_type = "application/json", .headers = &challenge, .n_headers = 1},
               buf_view(&body));
    buf_release(&body);
    return false;
}
