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

// ---- a function: names ----------------------------------------------------------------------------------------------

enum kind { REGISTER, SHARED_VARIABLE, PARAMETER, LOCAL_VARIABLE, CALL_PARAMETER };
struct name {
    struct word word; // of registers in a range: without the number
    enum kind kind;
    int bits;
    uint32_t first, n; // of registers: the place of the first, and how many in a range (0: one of just this name); else
                       // where it lies
};
struct label {
    struct word word;
    int copy; // of the body, where it was read into its caller
    uint32_t at;
};
struct jump {
    struct word word;
    int copy;
    uint32_t insn;
    int line;
};

struct builder {
    struct text *text;
    struct function *f;
    struct reader *r;
    struct name *names;
    int n_names;
    int first_name; // of the body that is read; names before are its callers'
    int scope[64], n_scopes;
    struct label *labels;
    int n_labels;
    struct jump *jumps;
    int n_jumps;
    uint32_t code_room;
    int copy, n_copies, depth;
    struct word result; // of a function that is called: the name of its result's parameter in the caller
    struct constant {
        uint64_t value;
        bool wide;
        uint32_t place;
    } * constants;
    int n_constants;
};

static const struct name *add_name(struct builder *b, struct name n) {
    b->names = grown(b->names, b->n_names, sizeof *b->names);
    b->names[b->n_names] = n;
    return &b->names[b->n_names++];
}

static uint32_t register_bytes(int bits) {
    return bits == 1 ? 8 : bits == 64 ? 8 * LANES : bits == 128 ? 16 * LANES : 4 * LANES;
}
static uint32_t add_registers(struct builder *b, int bits, uint32_t n) {
    uint32_t first = b->f->register_bytes;
    b->f->register_bytes += n * register_bytes(bits);
    b->f->register_bytes = (b->f->register_bytes + 31) & ~31u;
    return first;
}

static const struct name *find_name(const struct builder *b, struct word w) {
    for (int i = b->n_names - 1; i >= b->first_name; i--) {
        const struct name *n = &b->names[i];
        if (n->kind != REGISTER || n->n == 0) {
            if (same(n->word, w))
                return n;
        } else if (w.n > n->word.n && !memcmp(w.at, n->word.at, n->word.n) && isdigit((unsigned char)w.at[n->word.n])) {
            bool digits = true;
            for (uint32_t k = n->word.n; k < w.n; k++)
                digits = digits && isdigit((unsigned char)w.at[k]);
            if (digits)
                return n;
        }
    }
    return NULL;
}

/* value as all lanes have it; wide: of 64 bits. */
static uint32_t constant_place(struct builder *b, uint64_t value, bool wide) {
    struct function *f = b->f;
    for (int i = b->n_constants - 1; i >= 0; i--)
        if (b->constants[i].value == value && b->constants[i].wide == wide)
            return b->constants[i].place;
    uint32_t bytes = wide ? 8 * LANES : 4 * LANES;
    if (f->constant_bytes + bytes > f->constant_room) {
        f->constant_room = f->constant_room ? 2 * f->constant_room : 1 << 14;
        f->constants = wanted(realloc(f->constants, f->constant_room));
    }
    for (int lane = 0; lane < LANES; lane++)
        memcpy(f->constants + f->constant_bytes + lane * (wide ? 8 : 4), &value, wide ? 8 : 4);
    b->constants = grown(b->constants, b->n_constants, sizeof *b->constants);
    b->constants[b->n_constants] = (struct constant){value, wide, f->constant_bytes | 1};
    f->constant_bytes += bytes;
    return b->constants[b->n_constants++].place;
}

static uint32_t special_place(struct builder *b, uint32_t *place, int bits) {
    if (*place == DISCARD)
        *place = add_registers(b, bits, 1);
    return *place;
}

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

enum { MOST_ARGS = 600 };
struct operands {
    uint32_t place[MOST_ARGS];
    int n, n_braced, bits, bits_last; // of the first operand and of the last, if it is a register
    int64_t offset;
    bool has_offset, braces_first;
    struct word name_of_first; // where the first is no register: for branches and calls
};

static void put(struct builder *b, struct operands *o, uint32_t place, int bits) {
    if (o->n == MOST_ARGS)
        bad(b->r, "more than %d operands", MOST_ARGS);
    if (o->n == 0)
        o->bits = bits;
    o->bits_last = bits;
    o->place[o->n++] = place;
}

static struct insn *add_insn(struct builder *b, struct word name, const struct operands *o, uint32_t guard,
                             bool guard_not) {
    struct function *f = b->f;
    if (f->n_code == b->code_room) {
        b->code_room = b->code_room ? 2 * b->code_room : 1024;
        f->code = wanted(realloc(f->code, b->code_room * sizeof *f->code));
    }
    uint32_t *arg = wanted(malloc((size_t)(o->n + 1) * sizeof *arg));
    memcpy(arg, o->place, (size_t)o->n * sizeof *arg);
    struct insn *i = &f->code[f->n_code++];
    *i = (struct insn){.arg = arg,
                       .n_args = (uint16_t)o->n,
                       .n_braced = (uint16_t)o->n_braced,
                       .guard = guard,
                       .guard_not = guard_not,
                       .bits = (uint8_t)o->bits,
                       .bits_last = (uint8_t)o->bits_last,
                       .offset = o->offset,
                       .line = b->r->line};
    name_op(i, name);
    return i;
}

/* A register that has the address of a variable. */
static uint32_t address_of(struct builder *b, const struct name *n, int bits) {
    struct operands o = {.n = 0};
    uint32_t to = add_registers(b, bits, 1);
    put(b, &o, to, bits);
    if (n->kind == SHARED_VARIABLE) {
        put(b, &o, special_place(b, &b->f->shared_at, 32), 0);
        put(b, &o, constant_place(b, n->first, false), 0);
        if (bits == 64) { // of 32 bits first
            o.place[0] = add_registers(b, 32, 1);
            add_insn(b, WORD("add.u32"), &o, DISCARD, false);
            o.place[1] = o.place[0], o.place[0] = to, o.n = 2;
            add_insn(b, WORD("cvt.u64.u32"), &o, DISCARD, false);
        } else {
            add_insn(b, WORD("add.u32"), &o, DISCARD, false);
        }
        return to;
    }
    put(b, &o, special_place(b, n->kind == LOCAL_VARIABLE ? &b->f->local_at : &b->f->param_at, 64), 0);
    put(b, &o, constant_place(b, n->first, true), 0);
    add_insn(b, WORD("add.u64"), &o, DISCARD, false);
    return to;
}

static const struct global *find_global(const struct builder *b, struct word w) {
    for (int i = 0; i < b->text->module.n_globals; i++)
        if (is(w, b->text->module.globals[i].name))
            return &b->text->module.globals[i];
    return NULL;
}

/* A word as an operand: a register, a number, a special register or a variable's address. bits: of a number. */
static void put_word(struct builder *b, struct operands *o, struct word w, int bits) {
    const struct name *n = find_name(b, w);
    const struct global *g;
    if (is(w, "_")) {
        put(b, o, DISCARD, 0);
    } else if (n && n->kind == REGISTER) {
        uint32_t index = n->n ? (uint32_t)strtoul(w.at + n->word.n, NULL, 10) : 0;
        if (n->n && index >= n->n)
            bad(b->r, "'%.*s' is not declared", (int)w.n, w.at);
        put(b, o, n->first + index * register_bytes(n->bits), n->bits);
    } else if (n) {
        put(b, o, address_of(b, n, n->kind == SHARED_VARIABLE ? (bits == 64 ? 64 : 32) : 64), 0);
    } else if (is(w, "%clock") || is(w, "%clock64") || is(w, "%globaltimer")) {
        bool timer = w.at[1] == 'g';
        struct operands clock = {.n = 0};
        put(b, &clock, add_registers(b, 64, 1), 64);
        add_insn(b, timer ? WORD("machine.timer") : WORD("machine.clock"), &clock, DISCARD, false);
        put(b, o, clock.place[0], 64);
    } else if (*w.at == '%') {
        for (int k = 0; k < N_SPECIAL; k++)
            if (is(w, SPECIAL_NAMES[k])) {
                put(b, o, special_place(b, &b->f->special[k], 32), 0);
                return;
            }
        bad(b->r, "the register '%.*s' is not known", (int)w.n, w.at);
    } else if (isdigit((unsigned char)*w.at)) {
        uint64_t v = number_of(b->r, w);
        put(b, o, constant_place(b, bits == 1 ? (v ? UINT32_MAX : 0) : bits == 64 ? v : (uint32_t)v, bits == 64), 0);
    } else if ((g = find_global(b, w))) {
        put(b, o, constant_place(b, (uintptr_t)g->at, true), 0);
    } else {
        if (o->n == 0)
            o->name_of_first = w;
        put(b, o, DISCARD, 0);
    }
}

/* With a sign, or turned around. */
static void put_next(struct builder *b, struct operands *o, int bits) {
    struct reader *r = b->r;
    struct word w = next_word(r);
    if (is(w, "-")) {
        w = next_word(r);
        uint64_t v = -number_of(r, w);
        put(b, o, constant_place(b, bits == 1 ? UINT32_MAX : bits == 64 ? v : (uint32_t)v, bits == 64), 0);
    } else if (is(w, "!")) {
        struct operands turned = {.n = 0};
        put(b, &turned, add_registers(b, 1, 1), 1);
        put_word(b, &turned, next_word(r), 1);
        add_insn(b, WORD("not.pred"), &turned, DISCARD, false);
        put(b, o, turned.place[0], 1);
    } else {
        put_word(b, o, w, bits);
    }
}

/* [register or variable + offset] or [register, {coordinates}] */
static void put_brackets(struct builder *b, struct operands *o) {
    struct reader *r = b->r;
    struct word w = next_word(r);
    const struct name *n = find_name(b, w);
    int64_t offset = 0;
    if (n && n->kind == SHARED_VARIABLE) {
        put(b, o, special_place(b, &b->f->shared_at, 32), 32);
        offset = n->first;
    } else if (n && n->kind == PARAMETER) {
        put(b, o, special_place(b, &b->f->param_at, 64), 64);
        offset = n->first;
    } else if (n && n->kind == LOCAL_VARIABLE) {
        put(b, o, special_place(b, &b->f->local_at, 64), 64);
        offset = n->first;
    } else {
        put_word(b, o, w, 64);
    }
    for (w = next_word(r); !is(w, "]"); w = next_word(r)) {
        if (is(w, "+")) {
            w = next_word(r);
            offset += is(w, "-") ? -(int64_t)number_of(r, next_word(r)) : (int64_t)number_of(r, w);
        } else if (is(w, "{") || is(w, ",") || is(w, "}")) {
            if (is(w, ",") && is(peek_word(r), "{"))
                continue;
            if (!is(w, "}"))
                put_next(b, o, 32);
        } else {
            bad(r, "'%.*s' in an address", (int)w.n, w.at);
        }
    }
    if (offset) {
        if (o->has_offset)
            bad(r, "two offsets in an instruction");
        o->offset = offset, o->has_offset = true;
    }
}

/* How many bits a number has as the operand of an instruction. */
static int bits_of_number(struct word name, int index, bool in_braces) {
    bool shifts = begins(name, "shl.") || begins(name, "shr."), fields = begins(name, "bfi.") || begins(name, "bfe.");
    if (begins(name, "mad.wide.") && index == 3)
        return 64;
    if ((shifts && index == 2) || (fields && index >= (begins(name, "bfi.") ? 3 : 2)) || begins(name, "mbarrier.") ||
        begins(name, "cp.") || begins(name, "wgmma.") || begins(name, "createpolicy."))
        return 32;
    if (in_braces && begins(name, "mov."))
        return bits_of_mnemonic(name) == 64 ? 32 : 16;
    if (begins(name, "selp.") && index == 3)
        return 1;
    int bits = bits_of_mnemonic(name);
    return bits == 64 || bits == 1 ? bits : 32;
}

static void read_operands(struct builder *b, struct word name, struct operands *o) {
    struct reader *r = b->r;
    for (int index = 0;; index++) {
        struct word w = peek_word(r);
        if (is(w, ";")) {
            next_word(r);
            return;
        }
        if (is(w, "[")) {
            next_word(r);
            put_brackets(b, o);
        } else if (is(w, "{")) {
            int before = o->n;
            do {
                next_word(r);
                put_next(b, o, bits_of_number(name, index, true));
                w = peek_word(r);
            } while (is(w, ","));
            expect(r, "}");
            if (o->n_braced == 0) {
                o->n_braced = o->n - before;
                o->braces_first = before == 0;
            }
        } else {
            put_next(b, o, bits_of_number(name, index, false));
        }
        w = next_word(r);
        if (is(w, ";"))
            return;
        if (!is(w, ",") && !is(w, "|"))
            bad(r, "'%.*s' behind an operand of %.*s", (int)w.n, w.at, (int)name.n, name.at);
    }
}

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
