/* module.h - PTX as text, parsed: functions, their registers and instructions. The subset that nvcc writes for kernels
 * without calls. */
#pragma once

#include "machine.h"

struct param {
    uint32_t at, size; // bytes, in the block of parameters
};

struct function {
    const char *name;
    struct insn *code;
    uint32_t n_code;
    struct param *params;
    int n_params;
    uint32_t param_bytes;
    uint32_t register_bytes; // of a warp
    char *constants;         // of all warps
    uint32_t constant_bytes, constant_room;
    uint32_t static_shared; // where dynamic shared memory begins: SHARED_FIRST and what is declared
    uint32_t local_bytes;   // of a thread
    uint32_t dynamic_align;
    uint32_t cluster[3]; // of .reqnctapercluster, or 0
    /* Registers that a warp begins with: which it is, where. DISCARD: not used. */
    uint32_t special[32];
    uint32_t param_at;  // register of the parameters' address, for ld.param and mov of a parameter's name
    uint32_t shared_at; // register of the address of shared memory's beginning (rank << 24)
    uint32_t local_at;  // register of a lane's local memory
};

enum special {
    TID_X,
    TID_Y,
    TID_Z,
    NTID_X,
    NTID_Y,
    NTID_Z,
    CTAID_X,
    CTAID_Y,
    CTAID_Z,
    NCTAID_X,
    NCTAID_Y,
    NCTAID_Z,
    LANEID,
    WARPID,
    CLUSTER_CTARANK,
    CLUSTER_NCTARANK,
    CLUSTERID_X,
    CLUSTERID_Y,
    CLUSTERID_Z,
    NCLUSTERID_X,
    NCLUSTERID_Y,
    NCLUSTERID_Z,
    CLUSTER_CTAID_X,
    LANEMASK_LT,
    LANEMASK_EQ,
    LANEMASK_GE,
    LANEMASK_LE,
    LANEMASK_GT,
    DYNAMIC_SMEM_SIZE,
    SMID,
    N_SPECIAL
};
extern const char *const SPECIAL_NAMES[N_SPECIAL]; // "%tid.x"

struct module {
    struct function *functions;
    int n_functions;
    struct global {
        char *name;
        unsigned char *at;
        uint32_t size;
    } * globals; // variables of .global and .const
    int n_globals;
};

/* Parses a whole text; what it does not understand ends the program with file (a name for messages) and line.
 * Functions' bodies are parsed when they are first launched (module_function), as most of a file never is. The text
 * must stay. */
struct module *module_parse(const char *name, const char *text, size_t size);
/* NULL: there is none of that name. */
const struct function *module_function(struct module *m, const char *name);
