/* compile.c - from a source to a grammar. See grammar.h. */
#include "grammar/front.h"
#include "grammar/shared.h"

enum {
    DEFAULT_SOURCE_BYTES = 1 << 20,
    DEFAULT_NODES = 1 << 20,
    DEFAULT_MEMORY_BYTES = 128 << 20,
    DEFAULT_COMPILE_US = 900000,
};

/* The bytes of all strings of a value; what is deeper than `depth` counts as too many. */
static size_t bytes_of(const json_t *value, int depth) {
    size_t n = 8;
    if (depth == 0)
        return SIZE_MAX / 4;
    if (json_is_string(value))
        return n + json_string_length(value);
    if (json_is_array(value)) {
        size_t i;
        json_t *item;
        json_array_foreach((json_t *)value, i, item) n += bytes_of(item, depth - 1);
    }
    if (json_is_object(value)) {
        const char *key;
        json_t *item;
        json_object_foreach((json_t *)value, key, item) n += strlen(key) + bytes_of(item, depth - 1);
    }
    return MIN(n, SIZE_MAX / 4);
}

static enum status read_source(struct ir *ir, const struct grammar_source *s, ir_id *root, struct error *err) {
    switch (s->kind) {
    case GRAMMAR_JSON_SCHEMA: return schema_read(ir, s->value, &s->style, root, err);
    case GRAMMAR_JSON_OBJECT: return json_object_read(ir, &s->style, root, err);
    case GRAMMAR_REGEX: return regex_read(ir, s->text, root, err);
    case GRAMMAR_GBNF: return gbnf_read(ir, s->text, root, err);
    case GRAMMAR_LARK: return lark_read(ir, s->text, root, err);
    case GRAMMAR_CHOICE: return choice_read(ir, s->value, root, err);
    case GRAMMAR_STRUCTURAL_TAG: return tags_read(ir, s->value, &s->style, root, err);
    }
    return fail(err, ERR_ARG, "a grammar of an unknown kind");
}

static enum status check_size(const struct grammar_source *s, size_t most, struct error *err) {
    bool is_text = s->kind == GRAMMAR_REGEX || s->kind == GRAMMAR_GBNF || s->kind == GRAMMAR_LARK;
    if (is_text ? !s->text.ptr : !s->value && s->kind != GRAMMAR_JSON_OBJECT)
        return fail(err, ERR_ARG, "a grammar without a source");
    enum { MAX_DEPTH = 512 };
    size_t n = is_text ? s->text.len : s->value ? bytes_of(s->value, MAX_DEPTH) : 0;
    if (n > most)
        return fail(err, ERR_LIMIT, "the grammar is longer than %zu bytes, or nested deeper than %d", most, MAX_DEPTH);
    return OK;
}

enum status grammar_compile(const struct grammar_source *source, const struct grammar_limits *limits,
                            struct grammar **out, struct error *err) {
    struct grammar_limits l = limits ? *limits : (struct grammar_limits){0};
    TRY(check_size(source, l.source_bytes ? l.source_bytes : DEFAULT_SOURCE_BYTES, err));
    struct ir *ir = ir_open(l.nodes ? l.nodes : DEFAULT_NODES);
    ir_allow_time(ir, l.compile_us ? l.compile_us : DEFAULT_COMPILE_US);
    ir_id root = IR_NEVER;
    struct net *net = NULL;
    enum status st = read_source(ir, source, &root, err);
    if (st == OK)
        st = net_compile(ir, ir_after_reasoning(ir, &source->reasoning, root), &net, err);
    else
        ir_free(ir);
    if (st != OK)
        return st;
    struct grammar *g = xcalloc(1, sizeof *g);
    g->net = net;
    g->memory_bytes = l.memory_bytes ? l.memory_bytes : DEFAULT_MEMORY_BYTES;
    g->references = 1;
    pthread_mutex_init(&g->lock, NULL);
    *out = g;
    return OK;
}
