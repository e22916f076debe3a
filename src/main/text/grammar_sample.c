/* grammar_sample.c - see grammar_sample.h. */
#include "main/text/grammar_sample.h"

#include "base/random.h"

struct draw {
    uint64_t seed, n; // draws so far
};

static uint32_t draw(struct draw *d) { return philox4x32(d->seed, d->n++, 0).v[0]; }

/* How likely a byte is to be tried, of 16: most bytes of UTF-8 and white space are dull. */
static unsigned weight(uint8_t byte) { return byte >= 0x80 ? 1 : strchr(" \n\t\r\\", byte) ? 2 : 16; }

static bool take(struct matcher *m, uint8_t byte, struct buf *out) {
    if (!matcher_accept_bytes(m, (struct str){(const char *)&byte, 1}))
        return false;
    buf_push(out, (char)byte);
    return true;
}

static bool take_any(struct matcher *m, struct draw *d, struct buf *out) {
    static const char closers[] = "\"}]\"";
    enum { TRIES = 400 };
    for (int i = 0; i < TRIES; i++) {
        bool close = draw(d) % 64 < MIN(out->len, 48);
        uint8_t byte = close ? (uint8_t)closers[draw(d) % 4] : (uint8_t)draw(d);
        if (draw(d) % 16 < weight(byte) && take(m, byte, out))
            return true;
    }
    uint8_t first = (uint8_t)draw(d); // few bytes are allowed
    for (unsigned i = 0; i < 256; i++)
        if (take(m, (uint8_t)(first + i), out))
            return true;
    return false;
}

enum sample_end grammar_sample(struct matcher *m, uint64_t seed, size_t max_bytes, struct buf *out) {
    struct draw d = {seed, 0};
    while (out->len < max_bytes) {
        if (matcher_may_end(m) && draw(&d) % 64 < 16 + MIN(out->len, 40))
            return SAMPLE_FINISHED;
        if (!take_any(m, &d, out))
            return matcher_may_end(m) ? SAMPLE_FINISHED : SAMPLE_STUCK;
    }
    return matcher_may_end(m) ? SAMPLE_FINISHED : SAMPLE_CUT;
}
