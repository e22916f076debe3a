/* stream.c - the text of one answer behind gyre_text.h: a detokenizer, and the stop strings behind it. */
#include "lib/public.h"

#include "engine/abi.h"
#include "text/detokenizer.h"
#include "text/stop_filter.h"

enum { MAX_STOP_STRINGS = 1024, MAX_STOP_BYTES = 1 << 20 }; // each byte of a text is held against each string

struct gyre_stream {
    struct detokenizer *detokenizer;
    struct stop_filter stop;
    struct buf piece, text;
    int64_t min_tokens, n_tokens;
    bool include_stop;
    int stopped; // place of the stop string; -1: none
};

static enum status check_options(const struct gyre_stream_options *o, struct error *err) {
    if (o->n_stop > MAX_STOP_STRINGS)
        return fail(err, ERR_ARG, "stop: %zu strings, at most %d are allowed", o->n_stop, MAX_STOP_STRINGS);
    if ((o->n_stop > 0 && !o->stop) || (o->n_prompt > 0 && !o->prompt))
        return fail(err, ERR_ARG, "%s: it is NULL, and its length is not 0",
                    o->n_stop > 0 && !o->stop ? "stop" : "prompt");
    for (size_t i = 0; i < o->n_stop; i++)
        if (!o->stop[i] || !o->stop[i][0] || strnlen(o->stop[i], MAX_STOP_BYTES) == MAX_STOP_BYTES)
            return fail(err, ERR_ARG, "stop[%zu]: it must be a text that is not empty, below %d bytes", i,
                        MAX_STOP_BYTES);
    if (o->min_tokens < 0)
        return fail(err, ERR_ARG, "min_tokens: %lld is negative", (long long)o->min_tokens);
    return OK;
}

enum status public_stream_options(const struct gyre_stream_options *from, struct gyre_stream_options *o,
                                  struct error *err) {
    static const struct abi_struct layout = {"gyre_stream_options", sizeof *o,
                                             ABI_SIZE_UP_TO(struct gyre_stream_options, keep_special)};
    *o = (struct gyre_stream_options){0};
    if (from)
        TRY(abi_read(&layout, from, o, err));
    return check_options(o, err);
}

int gyre_stream_open(const struct gyre_text *t, const struct gyre_stream_options *options, struct gyre_stream **out,
                     struct gyre_error *err) {
    struct error e = {0};
    struct gyre_stream_options o;
    *out = NULL;
    if (public_stream_options(options, &o, &e) != OK)
        return public_report(err, &e);
    struct gyre_stream *s = xcalloc(1, sizeof *s);
    s->detokenizer = detokenizer_open(public_tokenizer(t), o.keep_special ? 0 : DETOKENIZE_SKIP_SPECIAL);
    stop_filter_init(&s->stop, o.stop, o.n_stop);
    s->min_tokens = o.min_tokens;
    s->include_stop = o.include_stop;
    s->stopped = -1;
    if (o.n_prompt > 0 && detokenizer_begin_after(s->detokenizer, o.prompt, o.n_prompt, &e) != OK) {
        gyre_stream_close(s);
        return public_report(err, &e);
    }
    *out = s;
    return 0;
}

void gyre_stream_close(struct gyre_stream *s) {
    if (!s)
        return;
    detokenizer_free(s->detokenizer);
    stop_filter_release(&s->stop);
    buf_release(&s->piece);
    buf_release(&s->text);
    free(s);
}

static void pass_on(struct gyre_stream *s) {
    if (s->n_tokens <= s->min_tokens) {
        buf_str(&s->text, buf_view(&s->piece));
        return;
    }
    if (!stop_filter_feed(&s->stop, buf_view(&s->piece), &s->text))
        return;
    s->stopped = stop_filter_met(&s->stop);
    if (s->include_stop)
        buf_str(&s->text, str_of(s->stop.strings[s->stopped].text));
}

int gyre_stream_feed(struct gyre_stream *s, int32_t id, struct gyre_error *err) {
    struct error e = {0};
    if (s->stopped >= 0)
        return 0;
    s->n_tokens++;
    buf_clear(&s->piece);
    if (detokenizer_feed(s->detokenizer, id, &s->piece, &e) != OK)
        return public_report(err, &e);
    pass_on(s);
    return 0;
}

int gyre_stream_finish(struct gyre_stream *s, struct gyre_error *err) {
    struct error e = {0};
    if (s->stopped >= 0)
        return 0;
    buf_clear(&s->piece);
    enum status st = detokenizer_finish(s->detokenizer, &s->piece, &e);
    if (st == OK) {
        pass_on(s);
        stop_filter_finish(&s->stop, &s->text);
    }
    return st == OK ? 0 : public_report(err, &e);
}

const char *gyre_stream_text(const struct gyre_stream *s, size_t *n_bytes) {
    if (n_bytes)
        *n_bytes = s->text.len;
    return buf_view(&s->text).ptr;
}

int gyre_stream_stopped(const struct gyre_stream *s) { return s->stopped; }
