/* request_defaults.h - what requests to a server ask for where they say nothing: the model's generation_config.json,
 * and what the line says over it. */
#pragma once

#include "api/api.h"

/* Reads --override-generation-config, a JSON object as vLLM takes it: temperature, top_p, top_k, min_p,
 * repetition_penalty, and max_new_tokens, the most that any answer may have. `own` false stands for
 * --generation-config vllm: what the model's file says is left aside. */
enum status request_defaults_read(const char *json, bool own, struct request_defaults *out, struct error *err);
