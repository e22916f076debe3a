/* module.c - the functions and variables of a PTX text (module.h). A text is looked through once; a function's body is
 * read when it is first wanted. */
#include "words.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

/* Behind its first brace; to behind its last. */
static void skip_body(struct reader *r) {
    for (int depth = 1; depth > 0;) {
        struct word w = next_word(r);
        if (w.n == 0)
            bad(r, "the file ends within a function");
        depth += is(w, "{") - is(w, "}");
    }
}

/* .global or .const .align N .bM name[size] = {bytes}; */
static void read_global(struct text *t, struct reader *r) {
    uint32_t align = 1, size = 0, element = 1;
    struct word w, name = {0};
    for (w = next_word(r); *w.at == '.'; w = next_word(r)) {
        if (is(w, ".align"))
            align = (uint32_t)number_of(r, next_word(r));
        else if (bits_of_directive(w))
            element = (uint32_t)bits_of_directive(w) / 8;
    }
    name = w;
    size = element;
    w = next_word(r);
    if (is(w, "[")) {
        size = element * (uint32_t)number_of(r, next_word(r));
        expect(r, "]");
        w = next_word(r);
    }
    struct module *m = &t->module;
    m->globals = grown(m->globals, m->n_globals, sizeof *m->globals);
    unsigned char *at = wanted(aligned_alloc(align < 64 ? 64 : align, (size + 127) & ~127u));
    memset(at, 0, size);
    if (is(w, "=")) {
        uint32_t n = 0;
        do {
            w = next_word(r);
            if (isdigit((unsigned char)*w.at) && n + element <= size) {
                uint64_t v = number_of(r, w);
                memcpy(at + n, &v, element);
                n += element;
            }
        } while (!is(w, ";"));
    }
    memory_add(at, size);
    m->globals[m->n_globals++] = (struct global){copy_of(name), at, size};
}

static void read_extern_shared(struct text *t, struct reader *r) {
    uint32_t align = 16;
    struct word w;
    for (w = next_word(r); *w.at == '.'; w = next_word(r))
        if (is(w, ".align"))
            align = (uint32_t)number_of(r, next_word(r));
    t->shared = grown(t->shared, t->n_shared, sizeof *t->shared);
    t->shared[t->n_shared++] = (struct shared_name){w, align};
    skip_until(r, ";");
}

/* Behind .entry or .func: remembers where its parameters and its body are. A declaration has no body. */
static void read_head(struct text *t, struct reader *r, bool is_entry) {
    struct module *m = &t->module;
    struct reader result = *r;
    struct word w = next_word(r);
    if (!is_entry && is(w, "(")) { // what it returns
        skip_until(r, ")");
        w = next_word(r);
    } else {
        result.end = result.at;
    }
    struct body b = {.params = *r, .is_entry = is_entry};
    for (struct word at = peek_word(r); !is(at, "{") && !is(at, ";"); at = peek_word(r))
        next_word(r);
    b.params.end = r->at;
    if (is(next_word(r), ";"))
        return;
    b.code = *r;
    skip_body(r);
    b.code.end = r->at - 1;
    m->functions = grown(m->functions, m->n_functions, sizeof *m->functions);
    t->bodies = grown(t->bodies, m->n_functions, sizeof *t->bodies);
    memset(&m->functions[m->n_functions], 0, sizeof *m->functions);
    m->functions[m->n_functions].name = copy_of(w);
    t->bodies[m->n_functions++] = b;
}

struct module *module_parse(const char *name, const char *at, size_t size) {
    struct text *t = wanted(calloc(1, sizeof *t));
    struct reader *r = &t->all;
    *r = (struct reader){name, at, at + size, 1};
    for (;;) {
        struct word w = next_word(r);
        if (w.n == 0)
            return &t->module;
        if (is(w, ".version") || is(w, ".target") || is(w, ".address_size"))
            while (r->at < r->end && *r->at != '\n')
                r->at++;
        else if (is(w, ".visible") || is(w, ".weak"))
            ;
        else if (is(w, ".global") || is(w, ".const"))
            read_global(t, r);
        else if (is(w, ".extern") && is(peek_word(r), ".shared"))
            read_extern_shared(t, r);
        else if (is(w, ".entry") || is(w, ".func"))
            read_head(t, r, is(w, ".entry"));
        else
            bad(r, "'%.*s' is not understood", (int)w.n, w.at);
    }
}

const struct function *module_function(struct module *m, const char *name) {
    struct text *t = (struct text *)m;
    for (int i = 0; i < m->n_functions; i++)
        if (!strcmp(m->functions[i].name, name)) {
            if (!m->functions[i].code)
                read_function(t, i);
            return &m->functions[i];
        }
    return NULL;
}
