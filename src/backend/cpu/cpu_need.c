/* cpu_need.c - the scratch memory that the reference functions use. */
#include "backend/cpu/cpu.h"

struct need cpu_need(const struct op *op) {
    const union op_args *a = &op->args;
    switch (op->code) {
    case OP_LINEAR: return (struct need){.worker = op->in[0].width};                 // a row of weights
    case OP_QKV_PREP: return (struct need){.worker = a->qkv_prep.head_dim};          // a key
    case OP_MLA_PREP: return (struct need){.worker = a->mla.rank};                   // a row of Wuk
    case OP_MLA_ATTENTION: return (struct need){.worker = 2 * (int64_t)a->mla.rank}; // the sum, a row of Wuv
    case OP_MOE_ROUTE: return (struct need){.worker = 2 * (int64_t)a->moe_route.n_experts + a->moe_route.n_groups};
    case OP_MOE_FFN:
        return (struct need){.worker = MAX(op->in[0].width, a->moe_ffn.ffn_size) + 3 * (int64_t)a->moe_ffn.ffn_size};
    case OP_LORA: // A x, a row of A or B
        return (struct need){.worker = (int64_t)a->lora.n_modules * a->lora.rank + MAX(op->in[1].width, a->lora.rank)};
    case OP_DELTA_RULE: { // q, k, the error; a state that is thrown away
        int64_t dk = a->delta_rule.key_dim, dv = a->delta_rule.value_dim;
        return (struct need){.worker = 2 * dk + dv + dk * dv};
    }
    default: return (struct need){0, 0};
    }
}
