/* engine_chat.c - see engine_chat.h.
 *
 * Each turn renders the whole conversation through the template; the engine's prefix cache knows what the turns before
 * computed of it. */
#include "main/run/engine_chat.h"

#include "console/dialogue.h"
#include "console/interrupt.h"
#include "main/run/answer.h"

#include <stdio.h>

struct speaker {
    struct gyre *g;
    struct model_text *text;
    const struct engine_chat_options *options;
};

static enum status stream_answer(struct speaker *s, struct answer *a, struct error *err) {
    size_t printed = 0;
    enum status st = OK;
    while (!a->done) {
        struct gyre_event events[16];
        int n = gyre_poll(s->g, events, 16);
        for (int i = 0; i < n; i++) {
            enum status one = answer_take(a, s->g, &events[i], st == OK ? err : NULL);
            st = st == OK ? one : st;
        }
        answer_print(a, &printed);
        if (interrupt_taken())
            gyre_cancel(s->g, a->id);
    }
    return st;
}

static enum status ask(struct speaker *s, json_t *messages, struct answer *a, struct error *err) {
    struct token_ids prompt = {0};
    struct gyre_request q = s->options->request;
    enum status st = model_text_encode_chat(s->text, messages, &prompt, err);
    if (st == OK) {
        q.prompt = prompt.ids, q.n_prompt = (int64_t)prompt.n;
        st = answer_submit(a, s->g, &q, err);
    }
    token_ids_release(&prompt);
    TRY(st);
    return stream_answer(s, a, err);
}

static enum status answer(void *self, json_t *messages, struct dialogue_answer *out, struct error *err) {
    struct speaker *s = self;
    struct answer a;
    answer_init(&a, s->text->tok, s->options->stop, s->options->n_stop);
    enum status st = ask(s, messages, &a, err);
    buf_str(&out->text, buf_view(&a.text));
    snprintf(out->note, sizeof out->note, "%zu tokens, %.0f tok/s%s", a.ids.n, answer_decode_rate(&a),
             a.finish == GYRE_CANCELLED && !a.stopped ? ", stopped"
             : a.finish == GYRE_LENGTH                ? ", out of tokens"
                                                      : "");
    answer_release(&a);
    return st;
}

int engine_chat(struct gyre *g, struct model_text *text, const struct engine_chat_options *options) {
    struct speaker s = {.g = g, .text = text, .options = options};
    return dialogue(&(struct dialogue_model){answer, &s}, options->system);
}
