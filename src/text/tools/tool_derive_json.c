/* tool_derive_json.c - see tool_derive.h: calls that are JSON objects, by themselves or in an array. */
#include "text/tools/tool_derive.h"
#include "text/tools/tool_marks.h"

// ---- values -------------------------------------------------------------------------------------------------------

/* The JSON value that begins at s, and its length. */
static json_t *json_beginning(struct str s, size_t *length) {
    json_error_t e;
    json_t *value = json_loadb(s.ptr, s.len, JSON_DISABLE_EOF_CHECK, &e);
    *length = value ? (size_t)e.position : 0;
    return value;
}

/* The first array or object from `at` on that reaches beyond `word`. */
json_t *derive_json_around(struct str s, size_t at, size_t word, size_t *begin, size_t *end) {
    for (size_t i = at, n; i < word; i++) {
        if (s.ptr[i] != '{' && s.ptr[i] != '[')
            continue;
        json_t *value = json_beginning(str_from(s, i), &n);
        if (value && i + n > word) {
            *begin = i;
            *end = i + n;
            return value;
        }
        json_decref(value);
    }
    return NULL;
}

static bool says(const json_t *value, const char *word) {
    return json_is_string(value) && strcmp(json_string_value(value), word) == 0;
}

bool derive_is_arguments(const json_t *value) {
    return says(json_object_get(value, WORD_KEY), WORD_VALUE) ||
           (json_is_string(value) && strstr(json_string_value(value), WORD_VALUE));
}

static void take_id_key(struct deriver *d, const char *key, const json_t *value) {
    bool is_index = says(value, "0") || (json_is_integer(value) && json_integer_value(value) == 0);
    if (!says(value, WORD_ID) && !is_index)
        return;
    d->f->id_key = derive_keep(d, str_of(key));
    d->f->id = is_index ? TOOL_ID_INDEX : TOOL_ID_ANY;
}

static bool take_keys(struct deriver *d, const json_t *object) {
    struct tool_format *f = d->f;
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)object, key, value) {
        if (json_is_object(value) && says(json_object_get(value, "name"), WORD_NAME)) {
            f->wrapper_key = derive_keep(d, str_of(key));
            if (!take_keys(d, value))
                return false;
        } else if (strcmp(key, WORD_NAME) == 0 && derive_is_arguments(value))
            return true; // {N: A}
        else if (says(value, WORD_NAME))
            f->name_key = derive_keep(d, str_of(key));
        else if (derive_is_arguments(value))
            f->arguments_key = derive_keep(d, str_of(key));
        else
            take_id_key(d, key, value);
    }
    return f->name_key.len && f->arguments_key.len;
}

// ---- their text -------------------------------------------------------------------------------------------------

/* Where the id stands: its word, or what is behind its key where it is an index. */
static size_t find_id(const struct deriver *d, struct str object) {
    size_t at = text_find(object, STR(WORD_ID));
    if (at != NOT_FOUND || d->f->id != TOOL_ID_INDEX)
        return at;
    size_t key = text_find(object, d->f->id_key);
    at = key == NOT_FOUND ? key : text_find(str_from(object, key + d->f->id_key.len), STR("0"));
    return at == NOT_FOUND ? at : at + key + d->f->id_key.len;
}

struct slot {
    size_t begin, end;
    enum tool_slot slot;
};

/* The marks around the slots of an object, as the template writes it: {"name": "N", "arguments": A}. */
static void take_text(struct deriver *d, struct str object) {
    struct tool_format *f = d->f;
    size_t name = text_find(object, STR(WORD_NAME)), value = text_find(object, STR(WORD_VALUE)), begin = 0, end = 0;
    json_t *arguments = NULL; // the innermost object that has the value in it
    for (size_t at = value == NOT_FOUND ? 0 : value; at > 0 && !arguments; at--)
        if (object.ptr[at - 1] == '{')
            arguments = derive_json_around(object, at - 1, value, &begin, &end);
    bool known = name != NOT_FOUND && arguments && derive_is_arguments(arguments) && object.ptr[begin - 1] != '"';
    json_decref(arguments);
    if (!known)
        return;
    struct slot slots[] = {{name, name + strlen(WORD_NAME), TOOL_SLOT_NAME}, {begin, end, TOOL_SLOT_ARGUMENTS}, {0}};
    size_t n = 2, id = find_id(d, object), from = 0;
    if (id != NOT_FOUND)
        slots[n++] = (struct slot){id, id + (f->id == TOOL_ID_INDEX ? 1 : strlen(WORD_ID)), TOOL_SLOT_ID};
    for (size_t i = 0; i < n; i++) // by place
        for (size_t k = i + 1; k < n; k++)
            if (slots[k].begin < slots[i].begin) {
                struct slot other = slots[i];
                slots[i] = slots[k];
                slots[k] = other;
            }
    for (size_t i = 0; i < n; i++) {
        derive_add_head(f, derive_span(object, from, slots[i].begin), slots[i].slot);
        from = slots[i].end;
    }
    f->object_close = str_from(object, from);
}

/* The brackets of an array with two objects, and what parts them. */
static void take_array(struct deriver *d, struct str two) {
    size_t first = text_find(two, STR(WORD_NAME)), second = text_find(two, STR(WORD_NAME_2)), begin, end, from = 0;
    json_t *array = first == NOT_FOUND ? NULL : derive_json_around(two, 0, first, &begin, &end);
    size_t objects[2][2];
    for (int i = 0; array && i < 2; i++) {
        size_t word = i ? second : first;
        json_t *object = derive_json_around(two, i ? from : begin + 1, word, &objects[i][0], &objects[i][1]);
        if (!object) {
            json_decref(array);
            return;
        }
        from = objects[i][1];
        json_decref(object);
    }
    if (array) {
        d->f->array_open = derive_span(two, begin, objects[0][0]);
        d->f->call_separator = derive_span(two, objects[0][1], objects[1][0]);
        d->f->array_close = derive_span(two, objects[1][1], end);
    }
    json_decref(array);
}

// ---- calls ------------------------------------------------------------------------------------------------------

bool derive_json_calls(struct deriver *d, struct shown *one) {
    struct tool_format *f = d->f;
    struct str close = str_from(one->text, one->end), two, middle = {0};
    struct str x = derive_without_content(d, derive_two_calls(d), str_to(one->text, one->begin));
    f->in_array = json_is_array(one->value);
    const json_t *object = f->in_array ? json_array_get(one->value, 0) : one->value;
    if (!take_keys(d, object))
        return false;
    f->style = TOOL_STYLE_JSON;
    f->arguments = TOOL_ARGUMENTS_JSON;
    bool has_two = derive_show_calls(d, derive_two_calls(d), &two);
    size_t second = has_two ? text_find(two, STR(WORD_NAME_2)) : NOT_FOUND;
    f->one_call = second == NOT_FOUND;
    if (f->in_array) {
        size_t begin, end;
        json_t *first =
            derive_json_around(one->text, one->begin + 1, text_find(one->text, STR(WORD_NAME)), &begin, &end);
        if (first)
            take_text(d, derive_span(one->text, begin, end));
        json_decref(first);
        if (second != NOT_FOUND)
            take_array(d, two);
        f->section_open = x;
        f->section_close = derive_closing(x, derive_without_turn_end(d, close));
        return true;
    }
    take_text(d, derive_span(one->text, one->begin, one->end));
    size_t begin, end, begin_2, end_2;
    json_t *a = has_two ? derive_json_around(two, 0, text_find(two, STR(WORD_NAME)), &begin, &end) : NULL;
    json_t *b = a && second != NOT_FOUND ? derive_json_around(two, end, second, &begin_2, &end_2) : NULL;
    if (b)
        middle = derive_span(two, end, begin_2);
    json_decref(a);
    json_decref(b);
    derive_take_section(d, x, middle, close);
    return true;
}
