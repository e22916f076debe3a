/* fingerprint.h - what an answer depends on besides its request, as one short word: system_fingerprint of answers.
 *
 * Two servers with the same one have the same weights, the same program and compute in the same formats on the same
 * kind of device, so the same request with the same seed gets the same answer. It says the same after each start. */
#pragma once

#include "main/flags/engine_flags.h"

enum { FINGERPRINT_BYTES = 24 };

/* "fp_" and 16 hexadecimal digits: a hash of
 *
 *     the weights   each tensor's name, type and shape, and a few of its bytes (4,096 tensors at most): reading all
 *                   of a large model would take a minute. A change that spares all of those bytes goes unnoticed.
 *     the settings  config.json, or the header of a GGUF file
 *     the build     the build ID of this program, and of the device's library where there is one
 *     the numerics  device, formats of products, cache and weights; the processor's instructions or the GPU's model
 *
 * `model` is a folder that has been opened with the flags. */
void fingerprint_of(const struct engine_flags *flags, const char *model, char out[FINGERPRINT_BYTES]);

/* Of the same but the build: whether what stands at `model` is still what this process has opened. */
uint64_t fingerprint_of_model(const struct engine_flags *flags, const char *model);
