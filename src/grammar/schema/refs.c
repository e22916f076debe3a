/* refs.c - where $ref, $dynamicRef and $recursiveRef lead, within one document.
 *
 * One walk over the places where schemas stand notes each $id as a resource and each $anchor. A reference is
 * joined to the URI of its resource; what is in no resource of the document is refused, nothing is fetched. */
#include "grammar/schema/reader.h"
#include "grammar/schema/uri.h"

static struct str string_at(const json_t *object, const char *key) {
    const json_t *v = json_object_get(object, key);
    return json_is_string(v) ? (struct str){json_string_value(v), json_string_length(v)} : (struct str){NULL, 0};
}

static int draft_of(struct reader *r, const json_t *schema, int outer) {
    struct str s = string_at(schema, "$schema");
    static const struct {
        const char *part;
        int draft;
    } drafts[] = {{"draft-04", 4}, {"draft-06", 6}, {"draft-07", 7}, {"2019-09", 2019}};
    if (!s.ptr)
        return outer;
    const char *number = strstr(s.ptr, "json-schema.org/draft-0");
    char digit = number ? number[strlen("json-schema.org/draft-0")] : '\0';
    if (digit >= '1' && digit <= '3')
        reader_refuse(r, ERR_UNSUPPORTED, "$schema: drafts before 4 are not read");
    for (size_t i = 0; i < ARRAY_LEN(drafts); i++)
        if (strstr(s.ptr, drafts[i].part))
            return drafts[i].draft;
    return 2020;
}

#define GROW(r, name, n_name, cap)                                                \
    do {                                                                          \
        if ((r)->n_name == (r)->cap) {                                            \
            (r)->cap = (r)->cap ? 2 * (r)->cap : 16;                              \
            (r)->name = xrealloc((r)->name, (size_t)(r)->cap, sizeof *(r)->name); \
        }                                                                         \
    } while (0)

static int resource_add(struct reader *r, struct str uri, const json_t *root, int draft) {
    GROW(r, resources, n_resources, cap_resources);
    r->resources[r->n_resources] = (struct resource){uri, root, draft};
    return r->n_resources++;
}

static void anchor_add(struct reader *r, int resource, struct str name, const json_t *json, bool dynamic) {
    GROW(r, anchors, n_anchors, cap_anchors);
    r->anchors[r->n_anchors++] = (struct anchor){resource, name, json, dynamic};
}

static struct str join(struct reader *r, struct str base, struct str reference) {
    struct buf out = {0};
    uri_join(&out, base, reference);
    struct str kept = {arena_strdup(&r->arena, buf_view(&out)), out.len};
    buf_release(&out);
    return kept;
}

/* The $id of a schema (id in draft 4), or nothing. Before 2019-09 a $ref hides what stands beside it. */
static struct str id_of(const json_t *schema, int draft) {
    if (draft <= 7 && json_is_string(json_object_get(schema, "$ref")))
        return (struct str){NULL, 0};
    return string_at(schema, draft == 4 ? "id" : "$id");
}

static int resource_at(struct reader *r, const json_t *root) {
    reader_work(r, (size_t)r->n_resources / 16);
    for (int i = 0; i < r->n_resources; i++)
        if (r->resources[i].root == root)
            return i;
    return -1;
}

static const char *const one_schema[] = {"additionalProperties",
                                         "additionalItems",
                                         "unevaluatedProperties",
                                         "unevaluatedItems",
                                         "items",
                                         "contains",
                                         "propertyNames",
                                         "not",
                                         "if",
                                         "then",
                                         "else"};
static const char *const array_of_schemas[] = {"allOf", "anyOf", "oneOf", "prefixItems", "items"};
static const char *const map_of_schemas[] = {"properties",  "patternProperties", "$defs",
                                             "definitions", "dependentSchemas",  "dependencies"};

static void walk(struct reader *r, const json_t *schema, int resource, int depth);

static void walk_children(struct reader *r, const json_t *schema, int resource, int depth) {
    for (size_t i = 0; i < ARRAY_LEN(one_schema); i++)
        walk(r, json_object_get(schema, one_schema[i]), resource, depth);
    for (size_t i = 0; i < ARRAY_LEN(array_of_schemas); i++) {
        const json_t *list = json_object_get(schema, array_of_schemas[i]);
        for (size_t k = 0; json_is_array(list) && k < json_array_size(list); k++)
            walk(r, json_array_get(list, k), resource, depth);
    }
    for (size_t i = 0; i < ARRAY_LEN(map_of_schemas); i++) {
        const char *key;
        json_t *value;
        json_object_foreach(json_object_get(schema, map_of_schemas[i]), key, value) walk(r, value, resource, depth);
    }
}

static void note_anchors(struct reader *r, const json_t *schema, int resource, struct str id) {
    int draft = r->resources[resource].draft;
    struct str anchor = string_at(schema, "$anchor"), dynamic = string_at(schema, "$dynamicAnchor");
    if (draft <= 7 && id.len > 1 && id.ptr[0] == '#')
        anchor_add(r, resource, (struct str){id.ptr + 1, id.len - 1}, schema, false);
    if (draft > 7 && anchor.ptr)
        anchor_add(r, resource, anchor, schema, false);
    if (draft > 7 && dynamic.ptr)
        anchor_add(r, resource, dynamic, schema, true);
    r->has_dynamic |= json_object_get(schema, "$dynamicRef") || json_object_get(schema, "$recursiveRef");
    r->has_unevaluated |=
        json_object_get(schema, "unevaluatedProperties") || json_object_get(schema, "unevaluatedItems");
}

static void walk(struct reader *r, const json_t *schema, int resource, int depth) {
    if (!json_is_object(schema) || refused(r))
        return;
    if (depth > 2 * MAX_DEPTH) {
        reader_refuse(r, ERR_LIMIT, "schemas are nested more than %d deep", 2 * MAX_DEPTH);
        return;
    }
    reader_work(r, 1);
    int draft = draft_of(r, schema, r->resources[resource].draft);
    struct str id = id_of(schema, draft), uri;
    if (id.ptr && schema != r->document && id.len > 0 && id.ptr[0] != '#') {
        uri_fragment(id, &uri);
        resource = resource_add(r, join(r, r->resources[resource].uri, uri), schema, draft);
    }
    note_anchors(r, schema, resource, id);
    walk_children(r, schema, resource, depth + 1);
}

void refs_index(struct reader *r) {
    int draft = draft_of(r, r->document, 2020);
    struct str id = json_is_object(r->document) ? id_of(r->document, draft) : (struct str){NULL, 0}, uri;
    uri_fragment(id.ptr ? id : STR(""), &uri);
    resource_add(r, join(r, STR(""), uri), r->document, draft);
    GROW(r, scopes, n_scopes, cap_scopes);
    r->scopes[r->n_scopes++] = (struct scope){-1, 0};
    walk(r, r->document, 0, 0);
}

/* The scope `outer` with `resource` entered; a resource that was entered before adds nothing, so scopes are finite. */
static int scope_enter(struct reader *r, int outer, int resource) {
    if (!r->has_dynamic)
        return 0;
    for (int s = outer; s >= 0; s = r->scopes[s].outer)
        if (r->scopes[s].resource == resource)
            return outer;
    for (int s = 0; s < r->n_scopes; s++)
        if (r->scopes[s].outer == outer && r->scopes[s].resource == resource)
            return s;
    reader_work(r, (size_t)r->n_scopes);
    GROW(r, scopes, n_scopes, cap_scopes);
    r->scopes[r->n_scopes] = (struct scope){outer, resource};
    return r->n_scopes++;
}

static struct place enter(struct reader *r, struct place at, int resource) {
    return resource == at.base ? at : (struct place){resource, scope_enter(r, at.scope, resource)};
}

struct place refs_place(struct reader *r, const json_t *json, struct place outer) {
    if (!json_is_object(json) || json == r->document || (!json_object_get(json, "$id") && !json_object_get(json, "id")))
        return outer;
    int resource = resource_at(r, json);
    return resource >= 0 ? enter(r, outer, resource) : outer;
}

/* One step of a JSON pointer: the member or item of `at` that `token` (escaped) names. */
static const json_t *pointer_step(const json_t *at, struct str token) {
    struct buf name = {0};
    for (size_t i = 0; i < token.len; i++) {
        bool escape = token.ptr[i] == '~' && i + 1 < token.len && (token.ptr[i + 1] == '0' || token.ptr[i + 1] == '1');
        buf_push(&name, !escape ? token.ptr[i] : token.ptr[i + 1] == '0' ? '~' : '/');
        i += escape;
    }
    const json_t *found = NULL;
    if (json_is_object(at)) {
        found = json_object_getn(at, buf_view(&name).ptr, name.len);
    } else if (json_is_array(at) && name.len > 0 && name.len < 9 && strspn(name.ptr, "0123456789") == name.len) {
        found = json_array_get(at, (size_t)atol(name.ptr));
    }
    buf_release(&name);
    return found;
}

static const json_t *pointer_find(struct reader *r, struct str pointer, struct place *place) {
    struct buf plain = {0};
    uri_unescape(&plain, pointer);
    struct str rest = buf_view(&plain);
    const json_t *at = r->resources[place->base].root;
    while (at && rest.len > 0) {
        const char *slash = memchr(rest.ptr + 1, '/', rest.len - 1);
        size_t n = slash ? (size_t)(slash - rest.ptr) : rest.len;
        at = pointer_step(at, (struct str){rest.ptr + 1, n - 1});
        rest = (struct str){rest.ptr + n, rest.len - n};
        if (at)
            *place = refs_place(r, at, *place);
    }
    buf_release(&plain);
    return at;
}

static const struct anchor *anchor_find(struct reader *r, int resource, struct str name) {
    reader_work(r, (size_t)r->n_anchors / 16);
    for (int i = 0; i < r->n_anchors; i++)
        if (r->anchors[i].resource == resource && str_eq(r->anchors[i].name, name))
            return &r->anchors[i];
    return NULL;
}

const json_t *refs_find(struct reader *r, const char *keyword, struct str ref, struct place at, struct place *place) {
    struct str without, fragment = uri_fragment(ref, &without);
    struct str uri = join(r, r->resources[at.base].uri, without);
    int resource = -1;
    reader_work(r, 1 + (size_t)r->n_resources / 16);
    for (int i = 0; i < r->n_resources && resource < 0; i++)
        if (str_eq(r->resources[i].uri, uri))
            resource = i;
    if (without.len == 0)
        resource = at.base;
    if (resource < 0) {
        reader_refuse(r, ERR_UNSUPPORTED, "%s: \"%.*s\" is not in this document, and nothing is fetched", keyword,
                      (int)MIN(ref.len, 200), ref.ptr);
        return NULL;
    }
    *place = enter(r, at, resource);
    const json_t *found = r->resources[resource].root;
    if (fragment.len > 0 && fragment.ptr[0] == '/') {
        found = pointer_find(r, fragment, place);
    } else if (fragment.len > 0) {
        const struct anchor *anchor = anchor_find(r, resource, fragment);
        found = anchor ? anchor->json : NULL;
    }
    if (!json_is_object(found) && !json_is_boolean(found)) {
        reader_refuse(r, ERR_FORMAT, "%s: \"%.*s\" leads to no schema", keyword, (int)MIN(ref.len, 200), ref.ptr);
        return NULL;
    }
    return found;
}

const json_t *refs_find_dynamic(struct reader *r, struct str ref, struct place at, struct place *place) {
    const json_t *found = refs_find(r, "$dynamicRef", ref, at, place);
    struct str without, name = uri_fragment(ref, &without);
    const struct anchor *bookend = found && name.len > 0 ? anchor_find(r, place->base, name) : NULL;
    if (!bookend || !bookend->dynamic || bookend->json != found)
        return found;
    int outermost = place->base;
    for (int s = place->scope; s >= 0; s = r->scopes[s].outer) {
        const struct anchor *a = anchor_find(r, r->scopes[s].resource, name);
        if (a && a->dynamic) {
            found = a->json;
            outermost = r->scopes[s].resource;
        }
    }
    *place = enter(r, at, outermost);
    return found;
}

static bool is_recursive(const struct reader *r, int resource) {
    return json_is_true(json_object_get(r->resources[resource].root, "$recursiveAnchor"));
}

const json_t *refs_find_recursive(struct reader *r, struct place at, struct place *place) {
    int outermost = at.base;
    if (is_recursive(r, at.base))
        for (int s = at.scope; s >= 0; s = r->scopes[s].outer)
            if (is_recursive(r, r->scopes[s].resource))
                outermost = r->scopes[s].resource;
    *place = enter(r, at, outermost);
    return r->resources[outermost].root;
}
