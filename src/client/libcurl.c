/* libcurl.c - see libcurl.h. */
#include "client/libcurl.h"

#include <dlfcn.h>

struct libcurl libcurl;

/* A name that the library lacks would be one of a version before 2020. */
static bool find(void *library, const char *name, void *address) {
    void *found = dlsym(library, name);
    *(void **)address = found;
    return found;
}

enum status libcurl_open(struct error *err) {
    static void *library;
    if (library)
        return OK;
    library = dlopen("libcurl.so.4", RTLD_NOW | RTLD_LOCAL);
    if (!library)
        return fail(err, ERR_UNSUPPORTED, "libcurl is missing (Debian's package libcurl4): %s", dlerror());
#define LIBCURL_CALL(name)                            \
    if (!find(library, "curl_" #name, &libcurl.name)) \
        return fail(err, ERR_UNSUPPORTED, "libcurl is too old: it has no curl_" #name);
    LIBCURL_CALLS(LIBCURL_CALL)
#undef LIBCURL_CALL
    return libcurl.global_init(CURL_GLOBAL_DEFAULT) == CURLE_OK ? OK
                                                                : fail(err, ERR_UNSUPPORTED, "libcurl does not start");
}
