/* fuzz_template.c - any bytes as a template, and behind a NUL byte as the JSON it is rendered with: parsed and
 * rendered, or refused with a sentence, within small limits. Rendering twice gives the same. */
#include "jinja/template.h"

static const struct template_limits limits = {
    .max_steps = 20000, .max_output_bytes = 1 << 20, .max_memory_bytes = 8 << 20, .max_time_us = 5 * 1000 * 1000};
static const struct tm now = {.tm_year = 126, .tm_mon = 2, .tm_mday = 14, .tm_wday = 6, .tm_yday = 72};

static json_t *context_of(struct str text) {
    static const char usual[] = "{\"s\": \"Gr\xC3\xBC\xC3\x9F"
                                "e <b>\", \"l\": [3, \"x\", null], \"d\": {\"k\": true}, \"f\": 2.5, "
                                "\"messages\": [{\"role\": \"user\", \"content\": \"hi\"}]}";
    json_t *context = NULL;
    if (jv_parse(text, "context", JV_ALLOW_DUPLICATES, &context, NULL) == OK && json_is_object(context))
        return context;
    json_decref(context);
    BUG_IF(jv_parse(STR(usual), "usual", 0, &context, NULL) != OK);
    return context;
}

static enum status render(const struct template *t, const json_t *context, struct buf *out) {
    struct error err = {0};
    struct template_options options = {.limits = limits, .now = &now};
    enum status st = template_render(t, context, &options, out, &err);
    BUG_IF(st == OK ? !utf8_valid(buf_view(out)) : out->len || !err.text[0] || !utf8_valid(str_of(err.text)));
    return st;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes) {
    struct error err = {0};
    struct template *t;
    const uint8_t *nul = n_bytes ? memchr(data, 0, n_bytes) : NULL;
    size_t n_text = nul ? (size_t)(nul - data) : n_bytes;
    struct str rest = nul ? (struct str){(const char *)nul + 1, n_bytes - n_text - 1} : STR("");
    if (template_parse((struct str){(const char *)data, n_text}, "t", &t, &err) != OK) {
        BUG_IF(!err.text[0] || !utf8_valid(str_of(err.text)));
        return 0;
    }
    json_t *context = context_of(rest);
    struct buf first = {0}, second = {0};
    enum status a = render(t, context, &first), b = render(t, context, &second);
    BUG_IF(a != b && a != ERR_LIMIT && b != ERR_LIMIT);
    BUG_IF(a == OK && b == OK && !str_eq(buf_view(&first), buf_view(&second)));
    buf_release(&first);
    buf_release(&second);
    json_decref(context);
    template_free(t);
    return 0;
}
