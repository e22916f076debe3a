/* inflate.c - see inflate.h. */
#include "http/inflate.h"

#include "base/guard.h"
#include "base/status.h"

#include <stdlib.h>
#include <zlib.h>

enum { WINDOW = 15, EITHER_FORMAT = 32 };

struct inflater {
    z_stream z;
    bool ended;
};

struct inflater *inflater_open(void) {
    struct inflater *f = xcalloc(1, sizeof *f);
    if (inflateInit2(&f->z, WINDOW + EITHER_FORMAT) == Z_OK)
        return f;
    free(f);
    alloc_failed(sizeof *f);
}

void inflater_free(struct inflater *f) {
    if (f)
        inflateEnd(&f->z);
    free(f);
}

void inflater_give(struct inflater *f, const char *bytes, size_t n) {
    BUG_IF(f->z.avail_in > 0 || n > UINT32_MAX);
    f->z.next_in = (Bytef *)bytes;
    f->z.avail_in = (uInt)n;
}

/* gzip may be several members one after the other. */
static bool begin_next_member(struct inflater *f) {
    f->ended = false;
    return inflateReset(&f->z) == Z_OK;
}

bool inflater_take(struct inflater *f, char *out, size_t size, size_t *n) {
    f->z.next_out = (Bytef *)out;
    f->z.avail_out = (uInt)size;
    *n = 0;
    while (f->z.avail_out > 0) {
        if (f->ended && f->z.avail_in == 0)
            break;
        if (f->ended && !begin_next_member(f))
            return false;
        int rc = inflate(&f->z, Z_NO_FLUSH);
        if (rc == Z_MEM_ERROR)
            alloc_failed(1 << WINDOW);
        if (rc == Z_BUF_ERROR) // wants more bytes than were given
            break;
        if (rc != Z_OK && rc != Z_STREAM_END)
            return false;
        f->ended = rc == Z_STREAM_END;
    }
    *n = size - f->z.avail_out;
    return true;
}

bool inflater_ended(const struct inflater *f) { return f->ended && f->z.avail_in == 0; }
