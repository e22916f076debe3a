/* memory.c - loads, stores and atomics, and where an address lies. Nothing outside of an allocation, of shared memory
 * or of a lane's local memory is touched. */
#include "module.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// ---- allocations ----------------------------------------------------------------------------------------------------

struct range {
    uint64_t from, to;
    int device; // whose it is; 0: everybody's
};
static struct range *ranges; // in order
static int n_ranges, room_ranges;

/* The first that ends behind the address. */
static int range_behind(uint64_t at) {
    int low = 0, high = n_ranges;
    while (low < high) {
        int middle = (low + high) / 2;
        if (ranges[middle].to > at)
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

void memory_add(const void *at, size_t n) { memory_add_of(0, at, n); }

void memory_add_of(int device, const void *at, size_t n) {
    uint64_t from = (uintptr_t)at;
    int i = range_behind(from);
    if (n_ranges == room_ranges) {
        room_ranges = room_ranges ? 2 * room_ranges : 256;
        ranges = realloc(ranges, (size_t)room_ranges * sizeof *ranges);
        if (!ranges)
            machine_fault(NULL, "no memory");
    }
    memmove(ranges + i + 1, ranges + i, (size_t)(n_ranges - i) * sizeof *ranges);
    ranges[i] = (struct range){from, from + n, device};
    n_ranges++;
}

void memory_remove(const void *at) {
    int i = range_behind((uintptr_t)at);
    if (i < n_ranges && ranges[i].from == (uintptr_t)at) {
        memmove(ranges + i, ranges + i + 1, (size_t)(n_ranges - i - 1) * sizeof *ranges);
        n_ranges--;
    }
}

/* NULL: there is none. */
static const struct range *allocation_at(uint64_t at, uint64_t n) {
    static int last;
    if (last < n_ranges && ranges[last].from <= at && at + n <= ranges[last].to)
        return &ranges[last];
    int i = range_behind(at);
    if (i == n_ranges || at < ranges[i].from || at + n > ranges[i].to)
        return NULL;
    last = i;
    return &ranges[i];
}

static bool is_allocated(const struct warp *w, uint64_t at, uint64_t n) {
    const struct range *r = allocation_at(at, n);
    int of = w->block->cluster->launch->of;
    if (r && of && r->device && of != r->device)
        machine_fault(w, "%#llx is device %d's, which device %d does not reach", (unsigned long long)at, r->device - 1,
                      of - 1);
    return r != NULL;
}

// ---- addresses ------------------------------------------------------------------------------------------------------

unsigned char *global_at(struct warp *w, uint64_t address, uint32_t n) {
    if (!is_allocated(w, address, n))
        machine_fault(w, "%u bytes at %#llx are in no allocation", n, (unsigned long long)address);
    return (unsigned char *)(uintptr_t)address;
}

unsigned char *shared_at(struct warp *w, uint32_t address, uint32_t n) {
    uint32_t rank = address >> 24, place = address & 0xffffff;
    struct cluster *c = w->block->cluster;
    if (rank >= (uint32_t)c->n_blocks || place < SHARED_FIRST || place + n > c->blocks[rank].shared_end)
        machine_fault(w, "%u bytes at %#x are not in shared memory, which has %u bytes in %d blocks", n, address,
                      w->block->shared_end - SHARED_FIRST, c->n_blocks);
    return c->blocks[rank].shared + place;
}

/* Of shared memory of a block of the cluster, or its end. */
static struct block *block_of(const struct warp *w, uint64_t address) {
    struct cluster *c = w->block->cluster;
    for (int i = 0; i < c->n_blocks; i++)
        if (address - (uintptr_t)c->blocks[i].shared <= SHARED_MOST)
            return &c->blocks[i];
    return NULL;
}

static bool is_local(const struct warp *w, uint64_t address) {
    const struct block *b = w->block;
    size_t size = (size_t)b->n_warps * LANES * ((b->cluster->launch->f->local_bytes + 15) & ~15u);
    return b->local && address - (uintptr_t)b->local < size;
}

/* Parameters are read through the address of what the launch was given. */
static bool is_parameter(const struct warp *w, uint64_t address, uint64_t n) {
    const struct launch_of *l = w->block->cluster->launch;
    uint64_t at = address - (uintptr_t)l->params;
    return at <= l->f->param_bytes && n <= l->f->param_bytes - at;
}

unsigned char *generic_at(struct warp *w, uint64_t address, uint32_t n) {
    const struct block *b = block_of(w, address);
    if (b)
        return shared_at(w, (uint32_t)b->rank << 24 | (uint32_t)(address - (uintptr_t)b->shared), n);
    if (is_local(w, address) || is_parameter(w, address, n))
        return (unsigned char *)(uintptr_t)address;
    return global_at(w, address, n);
}

static enum outcome run_shared_to_generic(struct warp *w, const struct insn *i, uint32_t lanes) {
    EACH_LANE (lane, lanes) {
        uint32_t from = (uint32_t)arg_of(w, i, 1)->u64[lane];
        const struct cluster *c = w->block->cluster;
        if (from >> 24 >= (uint32_t)c->n_blocks)
            machine_fault(w, "%#x is no address of shared memory", from);
        arg_of(w, i, 0)->u64[lane] = (uintptr_t)c->blocks[from >> 24].shared + (from & 0xffffff);
    }
    return NEXT;
}

static enum outcome run_generic_to_shared(struct warp *w, const struct insn *i, uint32_t lanes) {
    EACH_LANE (lane, lanes) {
        uint64_t from = arg_of(w, i, 1)->u64[lane];
        const struct block *b = block_of(w, from);
        if (!b)
            machine_fault(w, "%#llx is not in shared memory", (unsigned long long)from);
        arg_of(w, i, 0)->u64[lane] = (uint64_t)b->rank << 24 | (from - (uintptr_t)b->shared);
    }
    return NEXT;
}

static enum outcome run_same_address(struct warp *w, const struct insn *i, uint32_t lanes) {
    EACH_LANE (lane, lanes)
        arg_of(w, i, 0)->u64[lane] = arg_of(w, i, 1)->u64[lane];
    return NEXT;
}

// ---- accesses -------------------------------------------------------------------------------------------------------

enum space { GENERIC, GLOBAL, SHARED, LOCAL, PARAM };

/* What a mnemonic says: "ld.global.cg.v2.f32". */
struct access {
    enum space space;
    uint32_t size, n; // of an element, in bytes; elements
    bool is_signed;
    enum { NO_OP, ADD, MIN, MAX, AND, OR, XOR, EXCH, CAS } op; // of atom and red
    bool is_float;
    bool polls; // ld: of what others may write at the same time
};

static bool next_part(const char **at, char *part, size_t room) {
    if (!**at)
        return false;
    size_t n = 0;
    for (; **at && **at != '.'; (*at)++)
        if (n + 1 < room)
            part[n++] = **at;
    part[n] = 0;
    *at += **at == '.';
    return true;
}

static uint32_t size_of_type(const char *part) {
    static const struct {
        const char *name;
        uint32_t size;
    } TYPES[] = {{"b8", 1},  {"u8", 1},  {"s8", 1},    {"b16", 2},    {"u16", 2}, {"s16", 2}, {"b32", 4}, {"u32", 4},
                 {"s32", 4}, {"f32", 4}, {"f16x2", 4}, {"bf16x2", 4}, {"b64", 8}, {"u64", 8}, {"s64", 8}, {"f64", 8}};
    for (size_t i = 0; i < sizeof TYPES / sizeof *TYPES; i++)
        if (!strcmp(part, TYPES[i].name))
            return TYPES[i].size;
    return 0;
}

static const struct access *access_of(struct warp *w, const struct insn *i) {
    static const char *const OPS[] = {"", "add", "min", "max", "and", "or", "xor", "exch", "cas"};
    static const char *const MEANINGLESS[] = {
        "ld",       "st",      "atom",    "red",     "cg",      "cs",  "ca",  "cv",  "wt",      "wb",   "lu", "nc",
        "volatile", "relaxed", "acquire", "release", "acq_rel", "gpu", "cta", "sys", "cluster", "weak", "rn"};
    if (i->own)
        return i->own;
    struct access *a = calloc(1, sizeof *a);
    if (!a)
        machine_fault(w, "no memory");
    a->n = 1;
    char part[48];
    for (const char *at = i->name; next_part(&at, part, sizeof part);) {
        bool known = false;
        uint32_t size = size_of_type(part);
        for (size_t k = ADD; k < sizeof OPS / sizeof *OPS; k++)
            if (!strcmp(part, OPS[k]))
                a->op = k, known = true;
        for (size_t k = 0; k < sizeof MEANINGLESS / sizeof *MEANINGLESS; k++)
            known = known || !strcmp(part, MEANINGLESS[k]);
        a->polls = a->polls || !strcmp(part, "volatile") || !strcmp(part, "relaxed") || !strcmp(part, "acquire");
        if (size) {
            a->size = size, a->is_signed = part[0] == 's', a->is_float = part[0] == 'f';
        } else if (!strcmp(part, "v2") || !strcmp(part, "v4") || !strcmp(part, "v8")) {
            a->n = (uint32_t)(part[1] - '0');
        } else if (!strcmp(part, "global") || !strcmp(part, "const")) {
            a->space = GLOBAL;
        } else if (!strncmp(part, "shared", 6)) {
            a->space = SHARED;
        } else if (!strcmp(part, "local")) {
            a->space = LOCAL;
        } else if (!strcmp(part, "param")) {
            a->space = PARAM;
        } else if (!known && strncmp(part, "L1::", 4) && strncmp(part, "L2::", 4)) {
            machine_fault(w, "'%s' of '%s' is not understood", part, i->name);
        }
    }
    if (!a->size)
        machine_fault(w, "'%s' has no type", i->name);
    insn_keep(i, a);
    return a;
}

/* Lowest and highest address of the lanes, and all bits that any has. */
struct span {
    uint64_t low, high, bits;
};
static struct span span_of(const struct insn *i, const struct access *a, const union lanes *base, uint32_t lanes) {
    struct span s = {UINT64_MAX, 0, 0};
    EACH_LANE (lane, lanes) {
        uint64_t at =
            a->space == SHARED ? base->u32[lane] + (uint32_t)i->offset : base->u64[lane] + (uint64_t)i->offset;
        s.low = at < s.low ? at : s.low;
        s.high = at > s.high ? at : s.high;
        s.bits |= at;
    }
    return s;
}

/* What is to be added to the lanes' addresses (without the instruction's offset) for pointers. Usually all lie in one
 * place, which is looked at once; else each is. Generic addresses are pointers. */
static uint64_t pointers_of(struct warp *w, const struct insn *i, const struct access *a, const union lanes *base,
                            uint32_t lanes) {
    uint32_t n = a->size * a->n;
    struct span s = span_of(i, a, base, lanes);
    if (s.bits & (n - 1))
        machine_fault(w, "%u bytes at an address that is no multiple of them, of %#llx to %#llx", n,
                      (unsigned long long)s.low, (unsigned long long)s.high);
    if (a->space == SHARED) {
        if (s.low >> 24 != s.high >> 24)
            machine_fault(w, "lanes of a warp look into different blocks' shared memory");
        shared_at(w, (uint32_t)s.high, n);
        return (uintptr_t)shared_at(w, (uint32_t)s.low, n) - s.low + (uint64_t)i->offset;
    }
    uint64_t all = s.high - s.low + n;
    if (!is_allocated(w, s.low, all) && (a->space == GLOBAL || !is_parameter(w, s.low, all)))
        EACH_LANE (lane, lanes) {
            uint64_t at = base->u64[lane] + (uint64_t)i->offset;
            a->space == GLOBAL ? global_at(w, at, n) : generic_at(w, at, n);
        }
    return (uint64_t)i->offset;
}

/* Of a lane: its address, as a register of 32 or of 64 bits has it. */
static unsigned char *pointer_of(const struct access *a, const union lanes *base, uint32_t lane, uint64_t add) {
    return (unsigned char *)(uintptr_t)((a->space == SHARED ? base->u32[lane] : base->u64[lane]) + add);
}

/* Of sizes that the compiler knows. */
static uint64_t read_bytes(const unsigned char *from, uint32_t size) {
    uint64_t v = 0;
    switch (size) {
    case 1: return *from;
    case 2: memcpy(&v, from, 2); return v;
    case 4: memcpy(&v, from, 4); return v;
    default: memcpy(&v, from, 8); return v;
    }
}
static void write_bytes(unsigned char *to, uint32_t size, uint64_t v) {
    switch (size) {
    case 1: *to = (unsigned char)v; break;
    case 2: memcpy(to, &v, 2); break;
    case 4: memcpy(to, &v, 4); break;
    default: memcpy(to, &v, 8); break;
    }
}

static uint64_t read_value(const unsigned char *from, const struct access *a, int bits) {
    uint64_t v = read_bytes(from, a->size);
    if (a->is_signed && a->size < 8)
        v = (uint64_t)((int64_t)(v << (64 - 8 * a->size)) >> (64 - 8 * a->size));
    return bits == 16 ? (uint16_t)v : v;
}

static void put_value(union lanes *to, uint32_t lane, uint32_t size, int bits, uint64_t v) {
    if (size == 8 || bits == 64)
        to->u64[lane] = v;
    else
        to->u32[lane] = (uint32_t)v;
}

static void load_words(union lanes *to, const struct access *a, const union lanes *base, uint32_t lanes, uint64_t add) {
    EACH_LANE (lane, lanes)
        memcpy(&to->u32[lane], pointer_of(a, base, lane, add), 4);
}

static enum outcome run_ld(struct warp *w, const struct insn *i, uint32_t lanes) {
    const struct access *a = access_of(w, i);
    union lanes base; // which may be among those that are read
    memcpy(&base, arg_of(w, i, (int)a->n), a->space == SHARED ? sizeof base.u32 : sizeof base);
    uint64_t add = pointers_of(w, i, a, &base, lanes);
    for (uint32_t k = 0; k < a->n; k++, add += a->size) {
        if (i->arg[k] == DISCARD)
            continue;
        union lanes *to = arg_of(w, i, (int)k);
        if (a->size == 4 && i->bits == 32)
            load_words(to, a, &base, lanes, add);
        else
            EACH_LANE (lane, lanes)
                put_value(to, lane, a->size, i->bits, read_value(pointer_of(a, &base, lane, add), a, i->bits));
    }
    if (!a->polls || a->space == SHARED)
        return NEXT;
    w->block->cluster->polls = true;
    return YIELD;
}

static uint64_t value_at(const union lanes *from, uint32_t lane, int bits) {
    return bits == 64 ? from->u64[lane] : from->u32[lane];
}

static enum outcome run_st(struct warp *w, const struct insn *i, uint32_t lanes) {
    const struct access *a = access_of(w, i);
    const union lanes *base = arg_of(w, i, 0);
    uint64_t add = pointers_of(w, i, a, base, lanes);
    int bits = a->size == 8 ? 64 : i->bits_last;
    for (uint32_t k = 0; k < a->n; k++, add += a->size) {
        const union lanes *from = arg_of(w, i, 1 + (int)k);
        if (a->size == 4 && bits != 64)
            EACH_LANE (lane, lanes)
                memcpy(pointer_of(a, base, lane, add), &from->u32[lane], 4);
        else
            EACH_LANE (lane, lanes)
                write_bytes(pointer_of(a, base, lane, add), a->size, value_at(from, lane, bits));
    }
    return NEXT;
}

// ---- atomics --------------------------------------------------------------------------------------------------------

static uint64_t double_sum(uint64_t a, uint64_t b) {
    union {
        uint64_t bits;
        double d;
    } x = {a}, y = {b};
    x.d += y.d;
    return x.bits;
}

static uint64_t float_sum(uint64_t a, uint64_t b) {
    union {
        uint32_t bits;
        float f;
    } x = {(uint32_t)a}, y = {(uint32_t)b};
    x.f += y.f;
    return x.bits;
}

static uint64_t sum_of(const struct access *a, uint64_t x, uint64_t y) {
    return !a->is_float ? x + y : a->size == 4 ? float_sum(x, y) : double_sum(x, y);
}

static uint64_t combined(struct warp *w, const struct insn *i, const struct access *a, uint64_t old, uint64_t by,
                         uint64_t other) {
    bool less = a->is_signed ? (int64_t)by < (int64_t)old : by < old;
    switch (a->op) {
    case ADD: return sum_of(a, old, by);
    case MIN: return less ? by : old;
    case MAX: return less ? old : by;
    case AND: return old & by;
    case OR: return old | by;
    case XOR: return old ^ by;
    case EXCH: return by;
    case CAS: return old == by ? other : old;
    default: machine_fault(w, "'%s' is not understood", i->name);
    }
}

static uint64_t value_of(const union lanes *from, uint32_t lane, const struct access *a) {
    if (a->size == 8)
        return from->u64[lane];
    return a->is_signed ? (uint64_t)(int64_t)from->s32[lane] : from->u32[lane];
}

/* first: the argument that is the address. Lanes one after the other. */
static void run_atomic(struct warp *w, const struct insn *i, uint32_t lanes, int first) {
    const struct access *a = access_of(w, i);
    union lanes base;
    memcpy(&base, arg_of(w, i, first), a->space == SHARED ? sizeof base.u32 : sizeof base);
    uint64_t add = pointers_of(w, i, a, &base, lanes);
    EACH_LANE (lane, lanes) {
        unsigned char *at = pointer_of(a, &base, lane, add);
        uint64_t old = read_value(at, a, 64),
                 other = i->n_args > first + 2 ? value_of(arg_of(w, i, first + 2), lane, a) : 0;
        uint64_t now = combined(w, i, a, old, value_of(arg_of(w, i, first + 1), lane, a), other);
        write_bytes(at, a->size, now);
        if (first && i->arg[0] != DISCARD)
            put_value(arg_of(w, i, 0), lane, a->size, i->bits, old);
    }
}

static enum outcome run_atom(struct warp *w, const struct insn *i, uint32_t lanes) {
    run_atomic(w, i, lanes, 1);
    return NEXT;
}
static enum outcome run_red(struct warp *w, const struct insn *i, uint32_t lanes) {
    run_atomic(w, i, lanes, 0);
    return NEXT;
}

// ---- hints ----------------------------------------------------------------------------------------------------------

static enum outcome run_nothing(struct warp *w, const struct insn *i, uint32_t lanes) {
    (void)w, (void)i, (void)lanes;
    return NEXT;
}
static enum outcome run_policy(struct warp *w, const struct insn *i, uint32_t lanes) {
    EACH_LANE (lane, lanes)
        arg_of(w, i, 0)->u64[lane] = 0;
    return NEXT;
}

const struct opcode memory_ops[] = {
    {"ld.*", run_ld},
    {"st.*", run_st},
    {"atom.*", run_atom},
    {"red.*", run_red},
    {"cvta.to.shared.u64", run_generic_to_shared},
    {"cvta.shared.u64", run_shared_to_generic},
    {"cvta.*", run_same_address},
    {"prefetch*", run_nothing},
    {"applypriority*", run_nothing},
    {"discard*", run_nothing},
    {"createpolicy*", run_policy},
    {NULL, NULL},
};
