/* postprocessor.c - see postprocessor.h. */
#include "text/stages/postprocessor.h"

#include "text/tokenizer.h"

enum { NEST_MAX = 20, ITEMS_MAX = 1024 };

void postprocessor_release(struct postprocessor *p) {
    for (size_t i = 0; i < p->n; i++)
        token_ids_release(&p->templates[i]);
    free(p->templates);
    *p = (struct postprocessor){0};
}

void postprocessor_take_template(struct postprocessor *p, struct token_ids items) {
    p->templates = xrealloc(p->templates, p->n + 1, sizeof *p->templates);
    p->templates[p->n++] = items;
}

static bool is_body_alone(const struct token_ids *t, bool add_special) {
    size_t n_bodies = 0, n_special = 0;
    for (size_t i = 0; i < t->n; i++)
        t->ids[i] == TEMPLATE_BODY ? n_bodies++ : n_special++;
    return n_bodies == 1 && (n_special == 0 || !add_special);
}

bool postprocessor_is_identity(const struct postprocessor *p, bool add_special) {
    for (size_t i = 0; i < p->n; i++)
        if (!is_body_alone(&p->templates[i], add_special))
            return false;
    return true;
}

static void apply(const struct token_ids *t, bool add_special, const struct token_ids *body, struct token_ids *out) {
    out->n = 0;
    for (size_t i = 0; i < t->n; i++) {
        if (t->ids[i] != TEMPLATE_BODY) {
            if (add_special)
                token_ids_push(out, t->ids[i]);
            continue;
        }
        if (!token_ids_reserve(out, body->n)) // the budget says so
            return;
        if (body->n)
            memcpy(out->ids + out->n, body->ids, body->n * sizeof *body->ids);
        out->n += body->n;
    }
}

void postprocessor_run(const struct postprocessor *p, bool add_special, struct token_ids *body,
                       struct token_ids *spare) {
    for (size_t i = 0; i < p->n; i++) {
        apply(&p->templates[i], add_special, body, spare);
        struct token_ids swap = *body;
        *body = *spare;
        *spare = swap;
    }
}

static enum status push_id(struct token_ids *items, const json_t *id, const char *where, struct error *err) {
    if (!json_is_integer(id) || json_integer_value(id) < 0 || json_integer_value(id) >= TOKENIZER_MAX_TOKENS)
        return fail(err, ERR_FORMAT, "%s: \"post_processor\" has an id that is no token id", where);
    if (items->n >= ITEMS_MAX)
        return fail(err, ERR_LIMIT, "%s: \"post_processor\" has more than %d items", where, ITEMS_MAX);
    token_ids_push(items, (int32_t)json_integer_value(id));
    return OK;
}

/* {"SpecialToken": {"id": "<s>"}}: all ids that special_tokens has for it. */
static enum status push_special(struct token_ids *items, const json_t *v, const json_t *item, const char *where,
                                struct error *err) {
    const char *name;
    TRY(jv_string(item, where, "id", &name, err));
    const json_t *ids = json_object_get(json_object_get(json_object_get(v, "special_tokens"), name), "ids");
    if (!json_is_array(ids))
        return fail(err, ERR_FORMAT, "%s: \"post_processor\" names the special token \"%s\" and gives no ids for it",
                    where, name);
    size_t i;
    const json_t *id;
    json_array_foreach(ids, i, id) TRY(push_id(items, id, where, err));
    return OK;
}

static enum status push_sequence(struct token_ids *items, const json_t *item, const char *where, struct error *err) {
    const char *name;
    TRY(jv_string(item, where, "id", &name, err));
    if (strcmp(name, "A") != 0)
        return fail(err, ERR_UNSUPPORTED, "%s: \"post_processor\" wants the text \"%s\" in \"single\", there is only A",
                    where, name);
    for (size_t k = 0; k < items->n; k++)
        if (items->ids[k] == TEMPLATE_BODY)
            return fail(err, ERR_UNSUPPORTED, "%s: \"post_processor\" has the text twice in \"single\"", where);
    token_ids_push(items, TEMPLATE_BODY);
    return OK;
}

static enum status read_template(const json_t *v, const char *where, struct token_ids *items, struct error *err) {
    json_t *single;
    TRY(jv_array_or_null(v, where, "single", &single, err));
    size_t i;
    json_t *item;
    json_array_foreach(single, i, item) {
        const json_t *special = json_object_get(item, "SpecialToken"), *sequence = json_object_get(item, "Sequence");
        if (special)
            TRY(push_special(items, v, special, where, err));
        else if (sequence)
            TRY(push_sequence(items, sequence, where, err));
        else
            return fail(err, ERR_FORMAT,
                        "%s: \"post_processor\" has an item in \"single\" that is neither SpecialToken nor Sequence",
                        where);
    }
    return OK;
}

/* BERT and RoBERTa: "cls" and "sep" are pairs of a text and an id. */
static enum status read_around(const json_t *v, const char *where, struct token_ids *items, struct error *err) {
    TRY(push_id(items, json_array_get(json_object_get(v, "cls"), 1), where, err));
    token_ids_push(items, TEMPLATE_BODY);
    return push_id(items, json_array_get(json_object_get(v, "sep"), 1), where, err);
}

static enum status read_value(const json_t *v, const char *where, int depth, struct postprocessor *out,
                              struct error *err);

static enum status read_sequence(const json_t *v, const char *where, int depth, struct postprocessor *out,
                                 struct error *err) {
    json_t *list;
    TRY(jv_array_or_null(v, where, "processors", &list, err));
    size_t i;
    json_t *item;
    json_array_foreach(list, i, item) TRY(read_value(item, where, depth + 1, out, err));
    return OK;
}

static enum status read_value(const json_t *v, const char *where, int depth, struct postprocessor *out,
                              struct error *err) {
    const char *type;
    if (depth > NEST_MAX)
        return fail(err, ERR_LIMIT, "%s: \"post_processor\" nests more than %d deep", where, NEST_MAX);
    if (!json_is_object(v))
        return fail(err, ERR_FORMAT, "%s: \"post_processor\" is %s, it must be an object", where, jv_type_name(v));
    TRY(jv_string(v, where, "type", &type, err));
    if (strcmp(type, "ByteLevel") == 0) // it only moves offsets
        return OK;
    if (strcmp(type, "Sequence") == 0)
        return read_sequence(v, where, depth, out, err);
    struct token_ids items = {0};
    enum status st;
    if (strcmp(type, "TemplateProcessing") == 0)
        st = read_template(v, where, &items, err);
    else if (strcmp(type, "BertProcessing") == 0 || strcmp(type, "RobertaProcessing") == 0)
        st = read_around(v, where, &items, err);
    else
        st = fail(err, ERR_UNSUPPORTED, "%s: the post-processor \"%s\" is not supported", where, type);
    if (st == OK)
        postprocessor_take_template(out, items);
    else
        token_ids_release(&items);
    return st;
}

enum status postprocessor_read(const json_t *value, const char *where, struct postprocessor *out, struct error *err) {
    *out = (struct postprocessor){0};
    if (!value || json_is_null(value))
        return OK;
    TRY(read_value(value, where, 0, out, err));
    enum { TEMPLATES_MAX = 16 };
    return out->n <= TEMPLATES_MAX
               ? OK
               : fail(err, ERR_LIMIT, "%s: \"post_processor\" has more than %d templates", where, TEMPLATES_MAX);
}
