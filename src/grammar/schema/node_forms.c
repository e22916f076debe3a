/* node_forms.c - what a node allows, worked out once. */
#include "grammar/schema/reader.h"

static const struct forms *work_out(struct reader *r, const struct node *n) {
    const struct forms *f = forms_none();
    switch (n->kind) {
    case KIND_FALSE: break;
    case KIND_TRUE: return forms_all(r);
    case KIND_SCHEMA: return read_schema(r, n->json, n->place);
    case KIND_VALUE: return forms_of_value(r, n->json);
    case KIND_AND:
        f = node_forms(r, n->args[0]);
        for (int i = 1; i < n->n_args; i++)
            f = prune(r, forms_and(r, f, node_forms(r, n->args[i])));
        return f;
    case KIND_OR:
        for (int i = 0; i < n->n_args; i++)
            f = forms_or(r, f, node_forms(r, n->args[i]));
        return f;
    case KIND_NOT: return forms_not(r, node_forms(r, n->args[0]));
    }
    return f;
}

const struct forms *node_forms(struct reader *r, node_id id) {
    if (r->nodes[id].forms)
        return r->nodes[id].forms;
    if (r->nodes[id].working)
        reader_refuse(r, ERR_UNSUPPORTED, "$ref: a schema refers to itself without a property or item between");
    if (r->depth >= MAX_DEPTH)
        reader_refuse(r, ERR_LIMIT, "allOf, anyOf, $ref ... are nested more than %d deep", MAX_DEPTH);
    if (refused(r))
        return forms_none();
    r->nodes[id].working = true;
    r->depth++;
    struct node n = r->nodes[id]; // the table moves as it grows
    const json_t *outer = r->current;
    r->current = n.kind == KIND_SCHEMA ? n.json : outer;
    const struct forms *forms = work_out(r, &n);
    r->current = outer;
    r->depth--;
    r->nodes[id].working = false;
    if (r->gave_up)
        return forms_none();
    r->nodes[id].forms = forms;
    return forms;
}

const struct forms *node_try(struct reader *r, node_id id) {
    if (r->nodes[id].forms || refused(r))
        return r->nodes[id].forms;
    r->trying++;
    const struct forms *forms = node_forms(r, id);
    r->trying--;
    if (!r->gave_up)
        return forms;
    r->gave_up = false;
    return NULL;
}
