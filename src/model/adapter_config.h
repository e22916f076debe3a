/* adapter_config.h - adapter_config.json: what of it decides what an adapter adds. See adapter.h. */
#pragma once

#include "base/json/json.h"
#include "base/status.h"

struct adapter_config;

/* ERR_UNSUPPORTED names a setting under which the adapter is something else than an addend B A x a module. */
enum status adapter_config_open(const char *path, struct adapter_config **out, struct error *err);
/* The same of what is parsed already; `path` is for messages. */
enum status adapter_config_read(const json_t *config, const char *path, struct adapter_config **out, struct error *err);
void adapter_config_free(struct adapter_config *c); // NULL is fine

/* Of a module, as the base model calls it: its rank as configured, and what B A x is multiplied by at that rank.
 * ERR_LIMIT names a pattern of which it cannot be told in bounded time whether it matches the module. */
enum status adapter_config_rank(const struct adapter_config *c, const char *module, int64_t *rank, struct error *err);
enum status adapter_config_scale(const struct adapter_config *c, const char *module, int64_t rank, double *scale,
                                 struct error *err);
