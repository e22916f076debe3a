/* page.h - the chat page: one HTML file that needs nothing else, in the program.
 *
 * Its parts are in api/page/; tools/page.sh joins them when gyre is built. */
#pragma once

#include <stddef.h>

struct page {
    const unsigned char *html;
    size_t html_bytes;
    const unsigned char *packed; // the same, gzip
    size_t packed_bytes;
    const char *etag;
    /* Content-Security-Policy: the page's own script and style by their digests and nothing else, no image that would
     * have to be fetched, no markup made of text. Any server may be asked, since the race view asks two. */
    const char *policy;
};

extern const struct page page;
