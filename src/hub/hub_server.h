/* hub_server.h - the hub over HTTP: where it is, who asks, and what a repository has.
 *
 * $HF_ENDPOINT (https://huggingface.co), $HF_TOKEN or the file of the hub's login ($HF_TOKEN_PATH, HF_HOME/token). The
 * token goes to the endpoint's host alone, not with redirects to others, and over plain http only to this machine. */
#pragma once

#include "base/buf.h"
#include "client/libcurl.h"
#include "hub/hub_files.h"

struct hub_server {
    char endpoint[512];
    char token[512]; // empty: none
};

/* Reads the environment. ERR_ARG for an endpoint that is no http address. libcurl must be open. */
enum status hub_server_open(struct hub_server *s, struct error *err);

/* Whether $HF_HUB_OFFLINE forbids the network. */
bool hub_is_offline(void);

/* What all requests share: address, redirects, time limits, the token. *headers is the caller's, to be freed with
 * slist_free_all when the request is over. */
void hub_request(const struct hub_server *s, CURL *easy, const char *url, struct curl_slist **headers);

/* Asks which files the revision has, and of which commit. Errors say what to do: HF_TOKEN, the page of a
 * gated model. */
enum status hub_list(const struct hub_server *s, const struct hub_name *name, struct hub_listing *out,
                     struct error *err);

/* ENDPOINT/REPO/resolve/COMMIT/FILE, each part escaped. */
void hub_file_url(const struct hub_server *s, const char *repo, const char *commit, const char *file, struct buf *out);
