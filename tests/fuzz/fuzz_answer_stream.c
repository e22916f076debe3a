/* fuzz_answer_stream.c - any bytes as a server's stream of events, cut anywhere: the same events come as from the
 * whole, and each is an answer's chunk or refused with a sentence. */
#include "client/answer_event.h"
#include "client/sse.h"

struct seen {
    struct answer_event event;
    struct buf all; // the data of each event, with ends
};

static enum status take(void *context, struct str data, struct error *err) {
    struct seen *s = context;
    struct error fault;
    buf_str(&s->all, data);
    buf_push(&s->all, '\n');
    if (answer_event_read(&s->event, data, &fault) != OK) {
        BUG_IF(!fault.text[0] || !utf8_valid(str_of(fault.text)));
        return OK;
    }
    BUG_IF(!utf8_valid(buf_view(&s->event.content)) || !utf8_valid(buf_view(&s->event.reasoning)));
    (void)err;
    return OK;
}

static void read_stream(const char *bytes, size_t n, size_t piece, struct seen *s) {
    struct sse sse = {0};
    struct error err;
    for (size_t i = 0; i < n; i += piece)
        BUG_IF(sse_feed(&sse, bytes + i, MIN(piece, n - i), take, s, &err) != OK);
    sse_release(&sse);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes) {
    struct seen whole = {0}, cut = {0};
    if (n_bytes == 0)
        return 0;
    read_stream((const char *)data + 1, n_bytes - 1, MAX(n_bytes, 1), &whole);
    read_stream((const char *)data + 1, n_bytes - 1, 1 + data[0] % 16, &cut);
    BUG_IF(!str_eq(buf_view(&whole.all), buf_view(&cut.all)));
    answer_event_release(&whole.event);
    answer_event_release(&cut.event);
    buf_release(&whole.all);
    buf_release(&cut.all);
    return 0;
}
