/* machine.h - a machine on the CPU that runs the CUDA backend's kernels as they were compiled, from their PTX: so that
 * they are tested where there is no GPU.
 *
 * What is real: every instruction that nvcc made of a kernel, 32 lanes of a warp together; divergence; warps, blocks
 * and clusters; shared memory of a block and of its neighbours; barriers of all kinds; bulk copies with tensor maps and
 * swizzles; the tensor core's products; and, behind the runtime's functions, streams, graphs and memory. What is not:
 * time; caches; sums of the tensor core that are cut off (here they are rounded, and approximations such as ex2 are
 * too); and kernels that start early (each runs to its end, so a missing wait_for_previous is not found). Clusters run
 * one after the other too, but where one does nothing any more than look at memory (ld.volatile and its like) the next
 * begins beside it, as far as a device has room.
 *
 * It is made to find faults, so where there is a choice it takes the bad one:
 *   - memory that nobody wrote is 0xff bytes (NaNs), and an access outside of an allocation or of shared memory ends
 *   the program with the kernel and the line of PTX; - bulk copies land when their barrier is looked at, at the
 *   earliest, in an order drawn from a seed; what lay there before is poisoned when they are asked for; - so do
 *   arrivals at barriers of other blocks; a block that ends within some instructions of one ends the program, as it may
 *   on a device; - products of the tensor core read their operands, and write their sums, when they are waited for and
 *   no sooner; - warps run in an order drawn from the seed, until they wait; when all wait for ever, all are named.
 *
 * An op test of the backend takes seconds to a minute: some 30 million instructions of a warp a second, and 10 to 19
 * billion multiply-adds of the tensor core.
 *
 *     $GYRE_PTX_SEED            what is drawn (1)
 *     $GYRE_PTX_KEEP=FOLDER     writes the PTX there that lines in messages refer to
 *     $GYRE_PTX_TIMES=1         at the end, the time that each kernel took
 *     $GYRE_PTX_PROCESSORS=N    multiprocessors that the device says it has (132): other numbers cut work otherwise
 *     $GYRE_PTX_DEVICES=N       so many devices, alike; memory of one is not kept from another, but with
 *     $GYRE_PTX_NO_PEERS=1      none reaches another's
 *     $GYRE_PTX_CAPABILITY=N    of the device: 80, 86, 89, 90 (what it is unless told) or 100
 *
 *     words.c, module.c, parse.c    PTX text to functions and instructions                          (words.h, module.h)
 *     machine.c                     clusters, blocks and warps; who runs; divergence
 *     arithmetic.c, arithmetic.def  what lanes compute                                              (numbers.h: halves,
 *                                   bfloat16, e4m3)
 *     memory.c                      loads, stores, atomics; where an address lies
 *     control.c                     branches, barriers of threads, votes, shuffles
 *     copies.c                      barriers in shared memory, asynchronous copies, tensor maps     (tensor_map.h)
 *     matrices.c                    ldmatrix and its like, mma, wgmma
 *     cudart*.c, cublaslt.c         the runtime, the driver and the library, as far as tests and the backend call them
 *                                   (runtime.h)
 *
 * An instruction is found by its whole name in the tables of those files (struct opcode). One that is in none ends the
 * program when it is reached, with its name: nothing is passed over. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { LANES = 32, MOST_CLUSTER = 16, SHARED_MOST = 228 << 10, SHARED_FIRST = 1024, NAMED_BARRIERS = 16 };

// ---- registers ------------------------------------------------------------------------------------------------------

/* A register of all lanes. 16 and 32 bits lie in u32 (upper bits of 16 are zero), 64 bits in u64. A predicate is a word
 * of `u32[0]`, a bit a lane. Constants that stand in instructions are registers too, which nobody writes. */
union lanes {
    uint32_t u32[LANES];
    int32_t s32[LANES];
    float f32[LANES];
    uint64_t u64[LANES];
    int64_t s64[LANES];
    double f64[LANES];
};

struct warp;
struct insn;

/* What becomes of the lanes that ran an instruction. */
enum outcome {
    NEXT,  // they go on
    YIELD, // they go on when others have run: what they look at may change
    AGAIN, // they could not: the same instruction when others have run
    MOVED  // the instruction has said where they are (warp_jump, warp_exit)
};
/* lanes: a bit for each that takes part, active and with a true guard; never 0. */
typedef enum outcome op_run(struct warp *w, const struct insn *i, uint32_t lanes);

/* name: the whole mnemonic, "cvt.rn.f16x2.e4m3x2". Where it ends in '*' whatever follows is the same to it,
 * "prefetch*", or read by it from insn.name. */
struct opcode {
    const char *name;
    op_run *run;
};
extern const struct opcode arithmetic_ops[], memory_ops[], control_ops[], copy_ops[],
    matrix_ops[]; // each ends with {NULL, NULL}

/* Operands in the order of the text, with what stands in braces or brackets, or behind '|', one after another: "ld.v2
 * {%r1, %r2}, [%rd1+8]" has r1, r2, rd1. What is not there has no place: "_" is DISCARD. arg: places in the warp's
 * registers (register_of). */
enum { MOST_FIXED_ARGS = 4 };
#define DISCARD UINT32_MAX
struct insn {
    op_run *run;
    const char *name; // the mnemonic
    const uint32_t *arg;
    uint16_t n_args,
        n_braced;   // n_braced: how many stood in the first braces (elements of a vector; sums of a product), 0: none
    uint32_t guard; // register of the predicate, or DISCARD
    bool guard_not; // @!p
    uint8_t bits,
        bits_last;  // of the first and the last operand, if they are registers: 1, 16, 32 or 64; a store may be of less
    int64_t offset; // in brackets: [%rd1 + offset]
    uint32_t target; // of a branch: index of an instruction
    int line;        // in the PTX
    const void *own; // what an op has found out about the instruction; NULL at first (insn_keep)
};

/* For ops: remembers what they found out, for the next time. */
static inline void insn_keep(const struct insn *i, const void *own) { ((struct insn *)(uintptr_t)i)->own = own; }

// ---- who runs -------------------------------------------------------------------------------------------------------

struct function; // module.h
struct block;
struct cluster;

/* Lanes of a warp that stand at the same instruction. */
struct group {
    uint32_t pc, lanes;
    uint32_t waits; // of a barrier: the phase that it waits to end, + 1; 0: has not arrived
    bool stuck;     // could not go on since others ran
};

enum { MOST_PRODUCTS = 256, MOST_BATCHES = 64 };
struct product { // a wgmma that is under way: this warp's 16 of its 64 rows
    const struct insn *insn;
    uint64_t a, b; // descriptors; a: unless it is in registers
    uint32_t a_words[4][LANES];
    bool add;
};

struct warp {
    struct block *block;
    char *base[2]; // registers of this warp, constants of the function
    struct group groups[LANES];
    int n_groups, at; // the group that runs
    int index;        // in the block
    uint32_t exited;
    struct product *products; // MOST_PRODUCTS, oldest first
    int n_products, n_committed, batch[MOST_BATCHES], n_batches;
    uint64_t n_closed;           // batches, since it began
    struct async_copy *cp_async; // of copies.c
    uint32_t cluster_phase;      // of barrier.cluster, that its threads arrived in
    uint64_t n_run;              // instructions
};

struct block {
    struct cluster *cluster;
    int rank;          // in the cluster
    uint32_t index[3]; // blockIdx
    unsigned char
        *shared; // SHARED_MOST bytes; addresses of the block are rank << 24 | place, and places begin at SHARED_FIRST
    uint32_t shared_end; // behind what the launch asked for
    uint64_t *in_flight; // copies.c: a bit for each 4 bytes that a copy is to fill
    struct warp *warps;
    int n_warps, n_alive; // n_alive: threads that have not exited
    unsigned char *local; // of all threads
    struct {
        uint32_t phase, arrived, votes, result; // votes: of bar.red so far; result: of the phase before
    } barriers[NAMED_BARRIERS];
};

struct cluster {
    const struct launch_of *launch;
    struct block blocks[MOST_CLUSTER];
    int n_blocks;
    uint32_t index[3];
    struct {
        uint32_t phase, arrived;
    } barrier;                   // barrier.cluster, of all threads that are alive
    struct pending_copy *copies; // copies.c: asked for and not landed
    int n_copies, room_copies;
    uint64_t random, n_turns; // n_turns: how often all warps have had their turn
    int idle;                 // turns on end in which none did much
    bool polls;               // in the last of them somebody looked whether others have written
};

/* A launch: what cudaLaunchKernelExC says of it. params: the parameters, one after another as the function lays them
 * out. */
struct launch_of {
    const struct function *f;
    const unsigned char *params;
    uint32_t grid[3], threads[3], cluster[3];
    uint32_t shared;           // dynamic
    int of;                    // the device that runs it, from 1; 0: it reaches all memory
    int at_once;               // clusters that a device has room for; 0: all
    void (*lets_others)(void); // called when all do nothing but look at memory; NULL: nobody else writes
};
/* Runs all blocks to their end. A fault ends the program with a sentence on stderr (machine_fault). */
void machine_launch(const struct launch_of *l);
/* Seed of everything that is free: $GYRE_PTX_SEED, or 1. */
uint64_t machine_random(struct cluster *c);

_Noreturn void machine_fault(const struct warp *w, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Where a group stands, of the warp's group that runs. */
void warp_jump(struct warp *w, uint32_t lanes,
               uint32_t pc); // lanes of the group that runs go there; others of it go on
void warp_exit(struct warp *w, uint32_t lanes);

// ---- for ops --------------------------------------------------------------------------------------------------------

/* Registers lie at even places, constants at odd ones. */
static inline union lanes *register_of(const struct warp *w, uint32_t place) {
    return (union lanes *)(w->base[place & 1] + (place & ~1u));
}
static inline union lanes *arg_of(const struct warp *w, const struct insn *i, int k) {
    return register_of(w, i->arg[k]);
}
/* A predicate's word. */
static inline uint32_t *flag_of(const struct warp *w, const struct insn *i, int k) { return arg_of(w, i, k)->u32; }

/* For the lanes of a mask; `lane` is the name. */
#define EACH_LANE(lane, mask) \
    for (uint32_t left_ = (mask), lane = 0; left_ && (lane = (uint32_t)__builtin_ctz(left_), true); left_ &= left_ - 1)

/* memory.c. An address of shared memory (32 bits: of any block of the cluster) or of global memory as a pointer, if n
 * bytes lie there; else a fault. */
unsigned char *shared_at(struct warp *w, uint32_t address, uint32_t n);
unsigned char *global_at(struct warp *w, uint64_t address, uint32_t n);
/* Any: global memory, or shared memory by its address as a pointer. */
unsigned char *generic_at(struct warp *w, uint64_t address, uint32_t n);
/* Allocations of the device: kept by cudart.c through these; global_at asks them. */
void memory_add(const void *at, size_t n);                // of all devices
void memory_add_of(int device, const void *at, size_t n); // of one, from 1: a launch of another (of) does not reach it
void memory_remove(const void *at);

/* copies.c, for machine.c: lands what may land when nothing else can go on; false: there was nothing. all: everything
 * (the cluster ends). */
bool copies_land(struct cluster *c, bool all);
/* Likewise: the last thread of a block exits. For control.c: what the warp has told other blocks comes before what
 * follows. */
void copies_end(struct block *b);
void copies_order(struct warp *w);
