/* test_generation.c - tokens of an answer that has not ended become chunks of a stream. */
#include "check.h"

#include "api/answer/generation.h"

static void write_content(struct choice *c, struct buf *out) { buf_str(out, buf_view(&c->content)); }
static const struct dialect plain = {.id_prefix = "", .chunk = write_content};

/* One choice whose service has published `ids`; the last one is the end-of-sequence token. It has not said that the
 * answer is done. */
struct stream {
    struct tokenizer *tok;
    struct token_ids ids;
    struct api_thread thread;
    struct api api;
    struct http_exchange x;
    struct answer answer;
    struct choice choice;
    struct generation g;
};

static void open_stream(struct stream *s, const char *text, bool include_stop) {
    struct error err;
    *s = (struct stream){
        .g = {.api = &s->api, .x = &s->x, .dialect = &plain, .stream = true, .include_stop = include_stop}};
    EXPECT_OK(tokenizer_open("build/data/tokenizers/qwen3", &s->tok, &err), err);
    struct encoder *enc = encoder_open(s->tok);
    EXPECT_OK(tokenizer_encode(enc, str_of(text), 0, &s->ids, &err), err);
    encoder_free(enc);
    s->api.threads = &s->thread;
    s->x.user = &s->g;
    s->answer = (struct answer){.tokens = s->ids.ids, .n_tokens = (int32_t)s->ids.n, .n_text = (int32_t)s->ids.n - 1};
    s->choice = (struct choice){.generation = &s->g, .answer = &s->answer, .first_text = -1};
    s->choice.detokenizer = detokenizer_open(s->tok, 0);
    stop_filter_init(&s->choice.stop, NULL, 0);
    s->g.choices = &s->choice;
    s->g.n_choices = s->g.n_prompts = s->g.n_shown = 1;
}

static void close_stream(struct stream *s) {
    detokenizer_free(s->choice.detokenizer);
    stop_filter_release(&s->choice.stop);
    buf_release(&s->choice.content);
    buf_release(&s->choice.reasoning);
    buf_release(&s->thread.piece);
    buf_release(&s->thread.shown);
    token_ids_release(&s->ids);
    tokenizer_free(s->tok);
}

static void check_text(bool include_stop, const char *want) {
    struct stream s;
    struct buf out = {0};
    open_stream(&s, "one two three", include_stop);
    EXPECT_EQ(s.ids.n, 3);
    EXPECT(!generation_fill(&s.x, &out));
    EXPECT(str_eq(buf_view(&out), str_of(want)));
    buf_release(&out);
    close_stream(&s);
}

static void an_end_token_with_a_text_is_not_shown_before_done(void **state) {
    (void)state;
    check_text(false, "one two");
    check_text(true, "one two three");
}

/* A character that was cut becomes U+FFFD only when the answer ends. */
static void a_stop_string_that_the_end_completes_is_named(void **state) {
    (void)state;
    static const char *const stops[] = {"\xEF\xBF\xBD"};
    struct stream s;
    struct buf out = {0};
    open_stream(&s, "\xF0\x93\x80\x80", true);
    EXPECT(s.ids.n > 1);
    s.answer.n_tokens = 1;
    s.answer.n_text = INT32_MAX;
    s.answer.done = true;
    s.answer.finish = GYRE_LENGTH;
    s.g.stops = stops;
    stop_filter_release(&s.choice.stop);
    stop_filter_init(&s.choice.stop, stops, 1);
    EXPECT(!generation_fill(&s.x, &out)); // the answer was not counted as done
    EXPECT_STR(s.choice.finish_reason, "stop");
    EXPECT(s.choice.stop_string == stops[0]);
    EXPECT(str_eq(buf_view(&out), STR("\xEF\xBF\xBD")));
    buf_release(&out);
    close_stream(&s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_end_token_with_a_text_is_not_shown_before_done),
        cmocka_unit_test(a_stop_string_that_the_end_completes_is_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
