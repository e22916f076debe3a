/* fuzz_history.c - any JSON as the messages of a chat: made fit for a template, or refused with a sentence. The first
 * byte says which form the template has. What was made fit renders, and does not change when it is made so again. */
#include "text/chat/chat_messages.h"
#include "text/chat/template_chat.h"

static struct chat_form form_of(uint8_t bits) {
    struct chat_form form = {.arguments_are_text = bits & 1, .takes_null_at_calls = bits & 2};
    form.knows_developer = bits & 8;
    for (int role = 0; role < CHAT_N_ROLES; role++)
        form.content[role] = (enum chat_content)((bits >> 4) % 3);
    return form;
}

static void check_twice(json_t *messages, const struct chat_form *form, struct jv_numbers *numbers) {
    struct error err;
    json_t *before = json_deep_copy(messages);
    BUG_IF(chat_messages_fit(messages, "messages", form, numbers, &err) != OK);
    BUG_IF(!json_equal(before, messages));
    json_decref(before);
}

static void render(json_t *messages, struct jv_numbers *numbers) {
    static const char walks[] =
        "{% for m in messages %}{{ m.role }}{{ m.content }}{% for c in m.tool_calls %}{{ c.function.name }}"
        "{{ c.function.arguments }}{% endfor %}{% endfor %}";
    struct error err;
    struct buf out = {0};
    struct template *t;
    BUG_IF(template_parse(STR(walks), "t", &t, &err) != OK);
    json_t *context = json_object();
    json_object_set(context, "messages", messages);
    enum status st = template_render(t, context, &(struct template_options){.numbers = numbers}, &out, &err);
    BUG_IF(st != OK && st != ERR_LIMIT);
    json_decref(context);
    template_free(t);
    buf_release(&out);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes) {
    json_t *messages;
    struct error err = {0};
    if (n_bytes == 0)
        return 0;
    struct chat_form form = form_of(data[0]);
    struct jv_numbers numbers = {0};
    size_t budget = JV_MAX_BYTES;
    struct str text = {(const char *)data + 1, n_bytes - 1};
    if (jv_parse_numbers(text, "x", JV_ALLOW_DUPLICATES, &budget, &numbers, &messages, &err) != OK) {
        jv_numbers_release(&numbers);
        return 0;
    }
    enum status st = chat_messages_fit(messages, "messages", &form, &numbers, &err);
    BUG_IF(st != OK && (!err.text[0] || !utf8_valid(str_of(err.text))));
    if (st == OK) {
        check_twice(messages, &form, &numbers);
        render(messages, &numbers);
    }
    json_decref(messages);
    jv_numbers_release(&numbers);
    return 0;
}
