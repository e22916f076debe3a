/* libcurl.h - libcurl, loaded when a verb first needs it: linked in it would bring twenty libraries and 4 ms of the
 * processor to each start of gyre, most of which have nobody to ask over HTTP.
 *
 *     TRY(libcurl_open(err));
 *     CURL *easy = libcurl.easy_init();      curl_easy_init, and so on */
#pragma once

#include "base/status.h"

#include <curl/curl.h>

/* clang-format off */
#define LIBCURL_CALLS(X) \
    X(global_init) X(slist_append) X(slist_free_all) \
    X(easy_init) X(easy_reset) X(easy_setopt) X(easy_perform) X(easy_getinfo) X(easy_strerror) X(easy_cleanup) \
    X(multi_init) X(multi_setopt) X(multi_add_handle) X(multi_perform) X(multi_poll) X(multi_info_read) \
    X(multi_remove_handle) X(multi_cleanup)
/* clang-format on */

struct libcurl {
#define LIBCURL_CALL(name) __typeof__(curl_##name) *name;
    LIBCURL_CALLS(LIBCURL_CALL)
#undef LIBCURL_CALL
};
extern struct libcurl libcurl;

/* Once a process, before any other call; again is fine. Stays until the end. */
enum status libcurl_open(struct error *err);
