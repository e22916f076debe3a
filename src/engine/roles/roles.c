/* roles.c - see roles.h. */
#include "engine/roles/roles.h"

#include "engine/roles/prompt_server.h"

static enum status only_lane(const struct service *s, struct lane **out, struct error *err) {
    *out = service_lane(s);
    return *out ? OK : fail(err, ERR_UNSUPPORTED, "a role is one engine's, and there are several");
}

static void close_server(void *of) { prompt_server_close(of); }
static void count_given(void *of, struct service_state *out) {
    struct prompt_server_count c = prompt_server_count(of);
    out->n_given_prompts = c.n_given, out->giving_us = c.giving_us;
}

enum status service_give_prompts(struct service *s, const char *address, uint64_t identity, int *port,
                                 struct error *err) {
    struct lane *lane;
    struct prompt_server *server;
    TRY(only_lane(s, &lane, err));
    struct prompt_server_options options = {.address = address, .identity = identity};
    TRY(prompt_server_open(lane, &options, &server, port, err));
    service_take_guest(s, &(struct service_guest){close_server, count_given, server});
    return OK;
}

enum status service_fetch_prompts(struct service *s, const struct prompt_fetch_options *options, struct error *err) {
    struct lane *lane;
    TRY(only_lane(s, &lane, err));
    return prompt_fetch_open(lane, options, err);
}
