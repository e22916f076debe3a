/* grammar.c - grammars behind gyre_text.h: compiled for a model's text, and given to requests. */
#include "lib/public.h"

#include "base/json/json.h"
#include "engine/abi.h"
#include "engine/constraint.h"

#include <stdlib.h>

static const struct abi_struct abi_grammar_source = {"gyre_grammar_source", sizeof(struct gyre_grammar_source),
                                                     ABI_SIZE_UP_TO(struct gyre_grammar_source, is_thinking)};

static struct str str_or_none(const char *s) { return s ? str_of(s) : (struct str){0}; }

/* Texts of JSON are read into *own. */
static enum status source_of(const struct gyre_grammar_source *from, struct grammar_source *out, json_t **own,
                             struct error *err) {
    static const enum grammar_kind kinds[] = {
        [GYRE_JSON_SCHEMA] = GRAMMAR_JSON_SCHEMA,
        [GYRE_JSON_OBJECT] = GRAMMAR_JSON_OBJECT,
        [GYRE_REGEX] = GRAMMAR_REGEX,
        [GYRE_GRAMMAR] = GRAMMAR_GBNF,
        [GYRE_CHOICE] = GRAMMAR_CHOICE,
        [GYRE_STRUCTURAL_TAG] = GRAMMAR_STRUCTURAL_TAG,
    };
    if ((size_t)from->kind >= ARRAY_LEN(kinds))
        return fail(err, ERR_ARG, "kind: %d is none of enum gyre_grammar_kind", (int)from->kind);
    if (!from->text && from->kind != GYRE_JSON_OBJECT)
        return fail(err, ERR_ARG, "text: it is NULL");
    struct str text = {from->text, from->text ? from->n_bytes : 0};
    *out = (struct grammar_source){
        .kind = from->kind == GYRE_GRAMMAR ? grammar_kind_of(text) : kinds[from->kind],
        .text = text,
        .style = {str_or_none(from->whitespace), from->compact},
        .reasoning = {str_or_none(from->think_begin), str_or_none(from->think_end), from->is_thinking}};
    if (from->think_end && !from->think_begin && !from->is_thinking)
        return fail(err, ERR_ARG, "think_begin: it is NULL");
    bool is_json = from->kind == GYRE_JSON_SCHEMA || from->kind == GYRE_CHOICE || from->kind == GYRE_STRUCTURAL_TAG;
    TRY(is_json ? jv_parse(text, "text", JV_ALLOW_DUPLICATES, own, err) : OK);
    out->value = *own;
    return OK;
}

int gyre_grammar_compile(const struct gyre_text *t, const struct gyre_grammar_source *source, struct gyre_grammar **out,
                         struct gyre_error *err) {
    struct error e = {0};
    struct gyre_grammar_source asked;
    struct grammar_source from;
    json_t *own = NULL;
    struct gyre_grammar *g = xcalloc(1, sizeof *g);
    enum status st = abi_read(&abi_grammar_source, source, &asked, &e);
    if (st == OK)
        st = source_of(&asked, &from, &own, &e);
    if (st == OK)
        st = public_compile((struct gyre_text *)t, &from, g, &e);
    json_decref(own);
    *out = st == OK ? g : NULL;
    if (st == OK)
        return 0;
    gyre_grammar_free(g);
    if (e.status == ERR_FORMAT || e.status == ERR_LIMIT) // of what was asked, as all of a grammar is
        e.status = ERR_ARG;
    return public_report(err, &e);
}

void gyre_grammar_free(struct gyre_grammar *g) {
    if (!g)
        return;
    grammar_release(g->grammar);
    token_trie_free(g->tokens);
    free(g);
}
