/* adapter_flags.h - --lora-modules, as vllm serve has it: LoRA adapters, each under a name of its own. */
#pragma once

#include "main/flags/engine_flags.h"

struct adapter_flags {
    struct flag_list modules;
    struct gyre_adapter *all; // as long as the process
};

#define ADAPTER_FLAGS(a)                                                                                            \
    {                                                                                                               \
        "lora-modules", 0, FLAG_LIST, &(a).modules, "NAME=PATH", "Engine",                                          \
            "a LoRA adapter as PEFT writes it, on the CPU; may be repeated. {\"name\": N, \"path\": P} is the same" \
    }

/* Reads what was given into the engine's flags. A name that is `taken`, or comes twice, is refused. */
enum status adapter_flags_read(struct adapter_flags *a, const char *const *taken, size_t n_taken,
                               struct engine_flags *engine, struct error *err);
