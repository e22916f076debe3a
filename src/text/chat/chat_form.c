/* chat_form.c - see chat_form.h. */
#include "text/chat/chat_form.h"

// Words that no template has of its own.
#define FIRST "quartzite"
#define SECOND "jasperoid"
#define UNSEEN "obsidianite" // in members of a part that only somebody who prints the part itself shows

struct finder {
    const struct template *template;
    const json_t *globals;
    struct chat_form *form;
    struct buf shown; // by the last rendering that succeeded
};

enum chat_role chat_role_of(const char *role) {
    static const char *const names[CHAT_N_ROLES] = {"system", "user", "assistant", "tool"};
    for (int i = 0; i < CHAT_N_ROLES; i++)
        if (strcmp(role, names[i]) == 0)
            return (enum chat_role)i;
    return strcmp(role, "developer") == 0 ? CHAT_SYSTEM : CHAT_USER;
}

// ---- renderings -------------------------------------------------------------------------------------------------

static json_t *example_tools(void) {
    return json_pack("[{s:s, s:{s:s, s:s, s:{s:s, s:{s:{s:s, s:s}}, s:[s]}}}]", "type", "function", "function", "name",
                     "look", "description", "Looks.", "parameters", "type", "object", "properties", "at", "type",
                     "string", "description", "Where.", "required", "at");
}

static bool render_with(struct finder *f, const json_t *messages, json_t *take_tools) {
    // Steps and not time, so that a busy machine finds the same; what a step may do is bounded by memory.
    static const struct template_options bounded = {
        .limits = {.max_steps = 200 * 1000, .max_output_bytes = 1 << 20, .max_memory_bytes = 8 << 20}};
    json_t *context = json_copy((json_t *)f->globals);
    json_object_set(context, "messages", (json_t *)messages);
    json_object_set_new(context, "tools", take_tools);
    json_object_set_new(context, "documents", json_null());
    json_object_set_new(context, "add_generation_prompt", json_true());
    buf_clear(&f->shown);
    bool rendered = template_render(f->template, context, &bounded, &f->shown, NULL) == OK;
    json_decref(context);
    return rendered;
}

/* Some templates show nothing, or fail, where no tools are given. */
static bool render(struct finder *f, json_t *take_messages) {
    bool rendered = render_with(f, take_messages, json_null()) || render_with(f, take_messages, example_tools());
    json_decref(take_messages);
    return rendered;
}

static size_t times(const struct finder *f, const char *word) {
    struct str text = buf_view(&f->shown);
    size_t n = 0, length = strlen(word);
    for (const char *at = text.ptr; (at = memmem(at, (size_t)(text.ptr + text.len - at), word, length)); at += length)
        n++;
    return n;
}

static bool shows(const struct finder *f, const char *word) { return times(f, word) > 0; }

// ---- histories --------------------------------------------------------------------------------------------------

static json_t *say(const char *role, json_t *take_content) {
    return json_pack("{s:s, s:o}", "role", role, "content", take_content);
}

static json_t *user(void) { return say("user", json_string("Hi")); }

/* Nine letters and digits, which is all that Mistral's templates take for an id. */
static json_t *call(json_t *take_content, json_t *take_arguments) {
    return json_pack("{s:s, s:o, s:[{s:s, s:s, s:{s:s, s:o}}]}", "role", "assistant", "content", take_content,
                     "tool_calls", "id", "call12345", "type", "function", "function", "name", "look", "arguments",
                     take_arguments);
}

static json_t *answer(json_t *take_content) {
    return json_pack("{s:s, s:s, s:s, s:o}", "role", "tool", "tool_call_id", "call12345", "name", "look", "content",
                     take_content);
}

static json_t *history_of_call(json_t *take_content, json_t *take_arguments, json_t *take_answer) {
    return json_pack("[o, o, o]", user(), call(take_content, take_arguments), answer(take_answer));
}

static json_t *some_arguments(const struct chat_form *form) {
    return form->arguments_are_text ? json_string("{\"at\": \"x\"}") : json_pack("{s:s}", "at", "x");
}

static json_t *history_with(const struct chat_form *form, enum chat_role role, json_t *take_content) {
    switch (role) {
    case CHAT_SYSTEM: return json_pack("[o, o]", say("system", take_content), user());
    case CHAT_ASSISTANT: return json_pack("[o, o, o]", user(), say("assistant", take_content), user());
    case CHAT_TOOL: return history_of_call(json_string(""), some_arguments(form), take_content);
    default: return json_pack("[o]", say("user", take_content));
    }
}

// ---- what they tell ---------------------------------------------------------------------------------------------

static void find_arguments(struct finder *f) {
    static const char text[] = "{\"" FIRST "\": \"" SECOND "\"}";
    json_t *object = json_pack("{s:s}", FIRST, SECOND);
    bool by_object = render(f, history_of_call(json_string(""), object, json_string("7"))) && !shows(f, "'" FIRST "'");
    if (by_object)
        return; // shown as JSON, walked, or not shown at all
    f->form->arguments_are_text =
        render(f, history_of_call(json_string(""), json_string(text), json_string("7"))) && shows(f, text);
}

static json_t *two_parts(void) {
    return json_pack("[{s:s, s:s, s:s}, {s:s, s:s, s:s}]", "type", "text", "text", FIRST, UNSEEN, UNSEEN, "type",
                     "text", "text", SECOND, UNSEEN, UNSEEN);
}

static void find_content(struct finder *f, enum chat_role role) {
    enum chat_content *out = &f->form->content[role];
    bool walks =
        render(f, history_with(f->form, role, two_parts())) && shows(f, FIRST) && shows(f, SECOND) && !shows(f, UNSEEN);
    if (!walks)
        return;
    bool takes_text = render(f, history_with(f->form, role, json_string(FIRST))) && shows(f, FIRST);
    *out = takes_text ? CHAT_CONTENT_GIVEN : CHAT_CONTENT_PARTS;
}

static bool takes_null(struct finder *f) {
    if (!render(f, history_of_call(json_null(), some_arguments(f->form), json_string("7"))))
        return false;
    size_t none = times(f, "None"), null = times(f, "null");
    bool rendered = render(f, history_of_call(json_string(""), some_arguments(f->form), json_string("7")));
    return !rendered || (none <= times(f, "None") && null <= times(f, "null"));
}

static void find_developer(struct finder *f, struct str source) {
    bool named =
        memmem(source.ptr, source.len, "\"developer\"", 11) || memmem(source.ptr, source.len, "'developer'", 11);
    f->form->knows_developer =
        named && render(f, json_pack("[o, o]", say("developer", json_string(FIRST)), user())) && shows(f, FIRST);
}

static bool takes_function(struct finder *f, json_t *take_function) {
    json_t *messages = json_pack("[o]", user());
    bool takes = render_with(f, messages, json_pack("[{s:s, s:o}]", "type", "function", "function", take_function));
    json_decref(messages);
    return takes;
}

static void find_functions(struct finder *f) {
    json_t *tools = example_tools(), *whole = json_object_get(json_array_get(tools, 0), "function");
    json_t *described = json_pack("{s:s, s:s}", "name", "look", "description", "Looks."), *bare = json_copy(whole);
    json_t *empty = json_pack("{s:s, s:s, s:{}}", "name", "look", "description", "Looks.", "parameters");
    json_object_del(bare, "description");
    if (takes_function(f, json_incref(whole))) {
        f->form->needs_description = !takes_function(f, json_incref(bare));
        f->form->needs_parameters =
            !takes_function(f, json_incref(described)) || !takes_function(f, json_incref(empty));
    }
    json_decref(tools);
    json_decref(bare);
    json_decref(described);
    json_decref(empty);
}

void chat_form_find(const struct template *t, struct str source, const json_t *globals, struct chat_form *out) {
    *out = (struct chat_form){0};
    struct finder f = {.template = t, .globals = globals, .form = out};
    find_arguments(&f);
    for (int role = 0; role < CHAT_N_ROLES; role++)
        find_content(&f, (enum chat_role)role);
    out->takes_null_at_calls = takes_null(&f);
    find_developer(&f, source);
    find_functions(&f);
    buf_release(&f.shown);
}
