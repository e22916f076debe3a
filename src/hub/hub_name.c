/* hub_name.c - see hub_name.h. */
#include "hub/hub_name.h"

#include "base/str.h"

#include <ctype.h>
#include <string.h>
#include <strings.h>

/* What stands behind the address of the hub; the whole of anything else. */
static const char *without_address(const char *text) {
    static const char *const addresses[] = {"https://", "http://", "www.", "huggingface.co/", "hf.co/", "hf://"};
    for (size_t i = 0; i < sizeof addresses / sizeof *addresses; i++)
        if (strncasecmp(text, addresses[i], strlen(addresses[i])) == 0)
            text += strlen(addresses[i]);
    return text;
}

/* Parts of letters, digits and "-_." with single slashes between them. */
static bool is_safe(struct str s, int slashes) {
    for (size_t i = 0; i < s.len; i++) {
        unsigned char c = (unsigned char)s.ptr[i];
        bool begins = i == 0 || s.ptr[i - 1] == '/';
        if (c == '/' ? begins || i + 1 == s.len || slashes-- == 0
            : begins ? !isalnum(c) && c != '_'
                     : !isalnum(c) && !strchr("-_.", c))
            return false;
    }
    return s.len > 0;
}

static bool take(struct str s, int slashes, char *out, size_t out_bytes) {
    if (!is_safe(s, slashes) || s.len >= out_bytes)
        return false;
    memcpy(out, s.ptr, s.len);
    out[s.len] = '\0';
    return true;
}

bool hub_name_read(const char *text, struct hub_name *out) {
    const char *name = without_address(text), *at = strchr(name, '@');
    struct str repo = {name, at ? (size_t)(at - name) : strlen(name)};
    const char *colon = memchr(repo.ptr, ':', repo.len);
    *out = (struct hub_name){.revision = "main"};
    if (colon) {
        const char *quant = colon + 1;
        if (!take((struct str){quant, (size_t)(repo.ptr + repo.len - quant)}, 0, out->quant, sizeof out->quant))
            return false;
        repo.len = (size_t)(colon - repo.ptr);
    }
    if (at && !take(str_of(at + 1), 8, out->revision, sizeof out->revision))
        return false;
    return take(repo, 1, out->repo, sizeof out->repo) && strchr(out->repo, '/');
}
