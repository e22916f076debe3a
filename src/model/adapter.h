/* adapter.h - low-rank adapters (LoRA) as PEFT stores them: a folder with adapter_config.json and
 * adapter_model.safetensors.
 *
 *     struct adapter_files *a;
 *     TRY(adapter_open("adapters/tone", "tone", model, &a, &err));
 *     pass_adapter(model->program, (const struct adapter *[]){adapter_of(a)}, 1, &program, &err);
 *     TRY(adapter_check(a, &err)); // what was copied is what the file has
 *     adapter_free(a);             // what pass_adapter made needs it no more
 *
 * Each pair of tensors BASE.MODULE.lora_A.weight [r, in] and lora_B.weight [out, r] is the addend of one module, with
 * the scale lora_alpha / r, or lora_alpha / sqrt(r) with use_rslora; rank_pattern and alpha_pattern hold for the
 * modules that their keys match as PEFT matches them. What would make other numbers is refused with the name of the
 * setting: DoRA, biases, modules_to_save, lora_embedding_*, target_parameters, layer_replication, and initialisations
 * that change the base (pissa and the like). Tensors that belong to no projection of the model, such as those of
 * experts, are refused by name. */
#pragma once

#include "core/pass/pass.h"
#include "model/model.h"

struct adapter_files;

enum status adapter_open(const char *folder, const char *name, const struct model *model, struct adapter_files **out,
                         struct error *err);
void adapter_free(struct adapter_files *a); // NULL is fine
/* checkpoint_check of its file, whose numbers are read by pass_adapter: ask after that. */
enum status adapter_check(const struct adapter_files *a, struct error *err);
const struct adapter *adapter_of(const struct adapter_files *a);
