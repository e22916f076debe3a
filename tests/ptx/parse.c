/* parse.c - the body of a function: names, instructions and their operands (module.h). Functions that are called are
 * read into their callers, with registers of their own. */
#include "words.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

const char *const SPECIAL_NAMES[N_SPECIAL] = {
    [TID_X] = "%tid.x",
    [TID_Y] = "%tid.y",
    [TID_Z] = "%tid.z",
    [NTID_X] = "%ntid.x",
    [NTID_Y] = "%ntid.y",
    [NTID_Z] = "%ntid.z",
    [CTAID_X] = "%ctaid.x",
    [CTAID_Y] = "%ctaid.y",
    [CTAID_Z] = "%ctaid.z",
    [NCTAID_X] = "%nctaid.x",
    [NCTAID_Y] = "%nctaid.y",
    [NCTAID_Z] = "%nctaid.z",
    [LANEID] = "%laneid",
    [WARPID] = "%warpid",
    [CLUSTER_CTARANK] = "%cluster_ctarank",
    [CLUSTER_NCTARANK] = "%cluster_nctarank",
    [CLUSTERID_X] = "%clusterid.x",
    [CLUSTERID_Y] = "%clusterid.y",
    [CLUSTERID_Z] = "%clusterid.z",
    [NCLUSTERID_X] = "%nclusterid.x",
    [NCLUSTERID_Y] = "%nclusterid.y",
    [NCLUSTERID_Z] = "%nclusterid.z",
    [CLUSTER_CTAID_X] = "%cluster_ctaid.x",
    [LANEMASK_LT] = "%lanemask_lt",
    [LANEMASK_EQ] = "%lanemask_eq",
    [LANEMASK_GE] = "%lanemask_ge",
    [LANEMASK_LE] = "%lanemask_le",
    [LANEMASK_GT] = "%lanemask_gt",
    [DYNAMIC_SMEM_SIZE] = "%dynamic_smem_size",
    [SMID] = "%smid",
};

static const char *const ALL_OPS_NAMES = "arithmetic, memory, control, copies, matrices";
static const struct opcode *const ALL_OPS[] = {control_ops, copy_ops, memory_ops, arithmetic_ops, matrix_ops};

#include "parts/names.h"

// ---- a function: instructions ---------------------------------------------------------------------------------------

static const struct opcode *find_op(struct word name) {
    for (size_t k = 0; k < sizeof ALL_OPS / sizeof *ALL_OPS; k++)
        for (const struct opcode *o = ALL_OPS[k]; o->name; o++) {
            size_t n = strlen(o->name);
            if (o->name[n - 1] == '*' ? name.n >= n - 1 && !memcmp(name.at, o->name, n - 1) : is(name, o->name))
                return o;
        }
    return NULL;
}

static enum outcome run_unknown(struct warp *w, const struct insn *i, uint32_t lanes) {
    (void)lanes;
    machine_fault(w, "'%s' is in none of the tables (%s)", i->name, ALL_OPS_NAMES);
}

/* Names of operations are looked for once each. */
static void name_op(struct insn *i, struct word name) {
    enum { ROOM = 4096 };
    static struct {
        char *name;
        op_run *run;
    } known[ROOM];
    uint32_t hash = 0;
    for (uint32_t k = 0; k < name.n; k++)
        hash = hash * 31 + (unsigned char)name.at[k];
    for (hash %= ROOM; known[hash].name && !is(name, known[hash].name);)
        hash = (hash + 1) % ROOM;
    if (!known[hash].name) {
        const struct opcode *o = find_op(name);
        known[hash].name = copy_of(name);
        known[hash].run = o ? o->run : run_unknown;
    }
    i->name = known[hash].name, i->run = known[hash].run;
}

#include "parts/operands.h"

// ---- a function: declarations, calls and statements -----------------------------------------------------------------

/* .reg .b32 %r<12>; or .reg .pred p, q; */
static void read_registers(struct builder *b) {
    struct reader *r = b->r;
    int bits = bits_of_directive(next_word(r));
    if (!bits)
        bad(r, "a register of a type that is not known");
    bits = bits == 8 ? 16 : bits;
    struct word w;
    do {
        struct name n = {.word = next_word(r), .kind = REGISTER, .bits = bits};
        uint32_t many = 1;
        w = next_word(r);
        if (is(w, "<")) {
            many = n.n = (uint32_t)number_of(r, next_word(r));
            expect(r, ">");
            w = next_word(r);
        }
        n.first = add_registers(b, bits, many);
        add_name(b, n);
    } while (is(w, ","));
    if (!is(w, ";"))
        bad(r, "'%.*s' behind a register", (int)w.n, w.at);
}

uint32_t read_variable(struct reader *r, struct word *name, uint32_t *align) {
    uint32_t element = 1, n = 1;
    *align = 0;
    for (*name = next_word(r); *name->at == '.'; *name = next_word(r)) {
        if (is(*name, ".align"))
            *align = (uint32_t)number_of(r, next_word(r));
        else if (bits_of_directive(*name))
            element = (uint32_t)bits_of_directive(*name) / 8;
    }
    if (*align == 0)
        *align = element;
    if (is(peek_word(r), "[")) {
        next_word(r);
        n = (uint32_t)number_of(r, next_word(r));
        expect(r, "]");
    }
    return n * element;
}

static uint32_t aligned(uint32_t at, uint32_t to) { return (at + to - 1) / to * to; }

static void read_storage(struct builder *b, enum kind kind, uint32_t *end) {
    struct word name;
    uint32_t align, size = read_variable(b->r, &name, &align);
    *end = aligned(*end, align);
    add_name(b, (struct name){.word = name, .kind = kind, .first = *end});
    *end += size;
    expect(b->r, ";");
}

/* A parameter of a call: a register. */
static uint32_t call_parameter(struct builder *b, struct word name, int bits) {
    const struct name *n = find_name(b, name);
    if (n)
        return n->first;
    uint32_t place = add_registers(b, bits, 1);
    add_name(b, (struct name){.word = name, .kind = CALL_PARAMETER, .bits = bits, .first = place});
    return place;
}

static void read_body(struct builder *b);

/* Names of the parameters of a function that is called, in order, are the registers of the caller's. */
static void read_callee(struct builder *b, int which, struct word result, const struct word *given, int n_given) {
    struct text *t = b->text;
    struct body *body = &t->bodies[which];
    struct reader params = body->params, code = body->code, *before = b->r;
    int first_name = b->first_name, copy = b->copy, n_names;
    struct name *args = wanted(calloc((size_t)n_given + 1, sizeof *args));
    if (++b->depth > 8)
        bad(before, "functions that call one another more than 8 deep");
    for (int i = 0; i < n_given; i++)
        args[i] = *find_name(b, given[i]);
    args[n_given] = *find_name(b, result);
    n_names = b->n_names;
    b->first_name = b->n_names;
    b->copy = ++b->n_copies;
    b->r = &params;
    int n = 0;
    for (struct word w = next_word(&params); w.n; w = next_word(&params))
        if (is(w, ".param")) {
            uint32_t align;
            struct name arg = args[n < n_given ? n : 0];
            read_variable(b->r, &arg.word, &align);
            if (n++ < n_given)
                add_name(b, arg);
        }
    if (n != n_given)
        bad(before, "%d parameters for %d", n_given, n);
    args[n_given].word = WORD("func_retval0");
    add_name(b, args[n_given]);
    b->r = &code;
    read_body(b);
    // Its return goes here.
    b->labels = grown(b->labels, b->n_labels, sizeof *b->labels);
    b->labels[b->n_labels++] = (struct label){WORD("<end>"), b->copy, b->f->n_code};
    b->r = before, b->first_name = first_name, b->copy = copy, b->n_names = n_names;
    b->depth--;
    free(args);
}

/* call.uni (result), name, (a, b); */
static void read_call(struct builder *b) {
    struct reader *r = b->r;
    struct word result, name, given[16];
    int n = 0;
    expect(r, "(");
    result = next_word(r);
    expect(r, ")");
    expect(r, ",");
    name = next_word(r);
    expect(r, ",");
    expect(r, "(");
    for (struct word w = next_word(r); !is(w, ")"); w = next_word(r))
        if (!is(w, ",")) {
            if (n == 16)
                bad(r, "a call with more than 16 parameters");
            given[n++] = w;
        }
    expect(r, ";");
    for (int i = 0; i < b->text->module.n_functions; i++)
        if (is(name, b->text->module.functions[i].name)) {
            read_callee(b, i, result, given, n);
            return;
        }
    bad(r, "'%.*s' is called and not there", (int)name.n, name.at);
}

/* ld.param and st.param of a call's parameter: a mov. False: it is a kernel's. */
static bool read_call_access(struct builder *b, struct word name) {
    struct reader *r = b->r, ahead = *r;
    bool stores = begins(name, "st.param");
    int bits = bits_of_mnemonic(name);
    struct operands o = {.n = 0};
    if (!stores) {
        next_word(&ahead);
        next_word(&ahead);
    }
    next_word(&ahead); // [
    const struct name *n = find_name(b, next_word(&ahead));
    if (!n || n->kind != CALL_PARAMETER)
        return false;
    uint32_t place = n->first;
    if (stores) {
        *r = ahead;
        while (!is(next_word(r), ","))
            ;
        put(b, &o, place, bits);
        put_next(b, &o, bits);
        expect(r, ";");
    } else {
        put_word(b, &o, next_word(r), bits);
        put(b, &o, place, bits);
        skip_until(r, ";");
    }
    add_insn(b, bits == 64 ? WORD("mov.b64") : WORD("mov.b32"), &o, DISCARD, false);
    return true;
}

static void add_jump(struct builder *b, struct word to, uint32_t insn) {
    b->jumps = grown(b->jumps, b->n_jumps, sizeof *b->jumps);
    b->jumps[b->n_jumps++] = (struct jump){to, b->copy, insn, b->r->line};
}

/* cvt may read a register of 64 bits as less: its low bits, in a register of that size. */
static void narrow_source(struct builder *b, struct word name, struct operands *o) {
    if (!begins(name, "cvt.") || o->bits_last != 64 || bits_of_mnemonic(name) == 64)
        return;
    struct operands low = {.n = 0};
    put(b, &low, add_registers(b, 32, 1), 32);
    put(b, &low, o->place[o->n - 1], 64);
    o->place[o->n - 1] = low.place[0];
    o->bits_last = 32;
    add_insn(b, WORD("cvt.u32.u64"), &low, DISCARD, false);
}

static void read_instruction(struct builder *b, struct word w) {
    struct operands o = {.n = 0};
    uint32_t guard = DISCARD;
    bool guard_not = false;
    if (is(w, "@")) {
        struct operands p = {.n = 0};
        w = next_word(b->r);
        if ((guard_not = is(w, "!")))
            w = next_word(b->r);
        put_word(b, &p, w, 1);
        guard = p.place[0];
        w = next_word(b->r);
    }
    if (begins(w, "call")) {
        if (guard != DISCARD)
            bad(b->r, "a call with a guard");
        read_call(b);
        return;
    }
    if ((begins(w, "ld.param") || begins(w, "st.param")) && read_call_access(b, w))
        return;
    if (b->depth > 0 && is(w, "ret")) {
        expect(b->r, ";");
        struct insn *i = add_insn(b, WORD("bra"), &o, guard, guard_not);
        add_jump(b, WORD("<end>"), (uint32_t)(i - b->f->code));
        return;
    }
    read_operands(b, w, &o);
    narrow_source(b, w, &o);
    if (o.n_braced && is(w, "mov.b32"))
        w = o.braces_first ? WORD("unpack.b32") : WORD("pack.b32");
    else if (o.n_braced && is(w, "mov.b64"))
        w = o.braces_first ? WORD("unpack.b64") : WORD("pack.b64");
    struct insn *i = add_insn(b, w, &o, guard, guard_not);
    if (begins(w, "bra"))
        add_jump(b, o.name_of_first, (uint32_t)(i - b->f->code));
}

static void read_directive(struct builder *b, struct word w) {
    if (is(w, ".reg")) {
        read_registers(b);
    } else if (is(w, ".shared")) {
        read_storage(b, SHARED_VARIABLE, &b->f->static_shared);
    } else if (is(w, ".local")) {
        read_storage(b, LOCAL_VARIABLE, &b->f->local_bytes);
    } else if (is(w, ".param")) {
        struct word name;
        uint32_t align, size = read_variable(b->r, &name, &align);
        if (size > 8)
            bad(b->r, "a call with a parameter of %u bytes", size);
        call_parameter(b, name, size > 4 ? 64 : 32);
        expect(b->r, ";");
    } else if (is(w, ".pragma")) {
        skip_until(b->r, ";");
    } else {
        bad(b->r, "'%.*s' in a function", (int)w.n, w.at);
    }
}

/* To the end of the text that the reader has. */
static void read_body(struct builder *b) {
    struct reader *r = b->r;
    int floor = b->n_scopes;
    for (;;) {
        struct word w = next_word(r);
        if (w.n == 0)
            break;
        if (is(w, "{")) {
            if (b->n_scopes == 64)
                bad(r, "braces more than 64 deep");
            b->scope[b->n_scopes++] = b->n_names;
        } else if (is(w, "}")) {
            if (b->n_scopes == floor)
                bad(r, "a brace too many");
            b->n_names = b->scope[--b->n_scopes];
        } else if (is(w, ";")) {
            continue;
        } else if (is(peek_word(r), ":")) {
            next_word(r);
            b->labels = grown(b->labels, b->n_labels, sizeof *b->labels);
            b->labels[b->n_labels++] = (struct label){w, b->copy, b->f->n_code};
        } else if (*w.at == '.') {
            read_directive(b, w);
        } else {
            read_instruction(b, w);
        }
    }
}

static void find_targets(struct builder *b) {
    for (int i = 0; i < b->n_jumps; i++) {
        struct jump *j = &b->jumps[i];
        int k = 0;
        while (k < b->n_labels && (b->labels[k].copy != j->copy || !same(b->labels[k].word, j->word)))
            k++;
        if (k == b->n_labels)
            bad(&(struct reader){b->r->file, NULL, NULL, j->line}, "there is no label '%.*s'", (int)j->word.n,
                j->word.at);
        b->f->code[j->insn].target = b->labels[k].at;
    }
}

/* Parameters of a kernel, and what stands between them and its body. */
static void read_params(struct builder *b, struct reader *r) {
    struct function *f = b->f;
    b->r = r;
    for (struct word w = next_word(r); w.n; w = next_word(r)) {
        if (is(w, ".param")) {
            struct word name;
            uint32_t align, size = read_variable(b->r, &name, &align);
            f->param_bytes = aligned(f->param_bytes, align);
            f->params = grown(f->params, f->n_params, sizeof *f->params);
            f->params[f->n_params++] = (struct param){f->param_bytes, size};
            add_name(b, (struct name){.word = name, .kind = PARAMETER, .first = f->param_bytes});
            f->param_bytes += size;
        } else if (is(w, ".reqnctapercluster")) {
            for (int i = 0; i < 3; i++)
                f->cluster[i] = 1;
            for (int i = 0; i < 3 && isdigit((unsigned char)*peek_word(r).at); i++) {
                f->cluster[i] = (uint32_t)number_of(r, next_word(r));
                if (is(peek_word(r), ","))
                    next_word(r);
            }
        }
    }
}

void read_function(struct text *t, int which) {
    struct function *f = &t->module.functions[which];
    struct reader params = t->bodies[which].params, code = t->bodies[which].code;
    struct builder b = {.text = t, .f = f};
    f->shared_at = f->param_at = f->local_at = DISCARD;
    for (int i = 0; i < N_SPECIAL; i++)
        f->special[i] = DISCARD;
    f->static_shared = SHARED_FIRST;
    read_params(&b, &params);
    // Dynamic shared memory lies behind what is declared, wherever that stands in the body.
    struct reader ahead = code;
    struct builder sizes = {.text = t, .f = &(struct function){.static_shared = SHARED_FIRST}, .r = &ahead};
    for (struct word w = next_word(&ahead); w.n; w = next_word(&ahead))
        if (is(w, ".shared") && *peek_word(&ahead).at == '.')
            read_storage(&sizes, SHARED_VARIABLE, &sizes.f->static_shared);
    free(sizes.names);
    for (int i = 0; i < t->n_shared; i++)
        if (f->dynamic_align < t->shared[i].align)
            f->dynamic_align = t->shared[i].align;
    uint32_t dynamic = aligned(sizes.f->static_shared, f->dynamic_align ? f->dynamic_align : 16);
    for (int i = 0; i < t->n_shared; i++)
        add_name(&b, (struct name){.word = t->shared[i].name, .kind = SHARED_VARIABLE, .first = dynamic});
    b.r = &code;
    read_body(&b);
    struct operands none = {.n = 0};
    add_insn(&b, WORD("exit"), &none, DISCARD, false);
    find_targets(&b);
    f->static_shared = dynamic;
    free(b.names), free(b.labels), free(b.jumps), free(b.constants);
}
