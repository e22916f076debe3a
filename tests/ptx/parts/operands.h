/* operands.h - part of parse.c: instructions and their operands. */
#pragma once

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
