/* names.h - part of parse.c: a function and its names: registers, variables, constants. */
#pragma once

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
